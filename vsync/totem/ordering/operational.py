"""The operational phase: token visits on the installed ring, and delivery in its order."""

from __future__ import annotations

import math
from collections.abc import Callable

from vsync.totem.context import Context, Timer, Timers
from vsync.totem.events import Broadcast, Marks, Send
from vsync.totem.ordering.application import Delivery, Intake
from vsync.totem.ordering.reports import (
    FAR_S,
    FRAMES_MAX,
    MEMBERS_MAX,
    PACE_S,
    OwnMark,
    Reports,
    ReportWait,
    with_mark,
)
from vsync.totem.ordering.ring import Ring, same
from vsync.totem.ordering.token_passing import TokenPassing
from vsync.types import Member
from vsync.wire.messages import Data, Report, Token, Wake


class OperationalPhase:
    """An installed ring at work: when its token is visited, held or slowed.

    `failed_to_receive` is called with a member that holds aru back, which ends the phase. `visited`
    is called after each visit.
    """

    def __init__(
        self,
        context: Context,
        ring: Ring,
        intake: Intake,
        delivery: Delivery,
        tokens: TokenPassing,
        failed_to_receive: Callable[[Member, float], None],
        visited: Callable[[Ring, float], None],
    ) -> None:
        self.ring = ring
        self.waiting: Token | None = None  # accepted, not yet visited
        self.held = False  # the waiting token rests, or is held, because nobody has work
        self.solo: Token | None = None  # the token of a ring of one is never on its way
        self._slowed = False  # the waiting token is kept because the application is behind
        self._asked = 0  # how many were called for the token since the last visit
        self._called = False  # another member called for it
        self._keeps = False  # as far as this member knows, it was the last with urgent work
        self._marks_shown: tuple[int, ...] = ()
        self._kept_until = 0.0  # the waiting token is kept until then for more frames; 0: not
        self._own = OwnMark(intake.mark, ring.marks[ring.index])
        self._reports = Reports(len(ring.members), ring.index)
        self._wait = ReportWait(context.config.rest_ms, context.config.keep_ms)
        self._reported = False  # something arrived that `_use_reports` has not seen yet
        self._early_at = 0.0  # when early frames last went out
        self._awaited = 0  # my last urgent frame whose marks are still awaited; 0: they came
        self._context = context
        self._config = context.config
        self._intake = intake
        self._delivery = delivery
        self._tokens = tokens
        self._failed_to_receive = failed_to_receive
        self._visited = visited
        self.timers: Timers = {
            Timer.SOLO: self._on_solo_timer,
            Timer.HOLD: self._on_hold_timer,
        }

    def start(self, now: float) -> None:
        """The ring was installed."""
        self.ring.installed()
        self._show_marks()
        if len(self.ring.members) == 1:
            self._tokens.alone(self.ring, now)
            self.solo = self.ring.first_token()
            self._context.arm(Timer.SOLO, now)

    # -- reception ---------------------------------------------------------------------------

    def on_data(self, frame: Data, *, early: bool = False) -> None:
        ring = self.ring
        token = self.waiting or self.solo
        if frame.ring != ring.id:
            self._context.count("data_other_ring")
        elif token is not None and frame.seq > token.seq:
            # The token is here, so nobody has given out this number yet: the frame is forged.
            self._context.count("data_beyond_token")
        elif code := ring.add(frame):
            self._context.count(code)
        elif early:
            self._reports.frame(frame.seq, frame.origin, ring.hop)
            self._reported = True

    def on_report(self, sender: Member, report: Report, now: float) -> None:
        """Keep another member's report on early frames until everything received was handled."""
        ring, token = self.ring, self.waiting
        if report.ring != ring.id:
            self._context.count("report_other_ring")
        elif (index := ring.indices.get(sender)) is None:
            self._context.count("report_stranger")
        elif token is not None and report.held > token.seq:
            self._context.count("report_beyond_token")
        elif not self._reports.take(index, report, ring.hop):
            self._context.count("report_overtaken")
            self._wait.late(report, now)
        else:
            self._reported = True

    def on_token(self, sender: Member, token: Token, now: float) -> None:
        """Check a token, and keep it until everything received before it was handled."""
        if self._tokens.accept(self.ring, sender, token, now):
            self.waiting = token
            self._reports.end()
            if self._awaited and token.marks == self.ring.marks:
                self._marks_moved_last(self.ring.known)

    def on_wake(self, message: Wake, now: float) -> None:
        if message.ring != self.ring.id:
            self._context.count("wake_other_ring")
            return
        self._called, self._keeps = True, False
        self._end_hold(now)

    def work_arrived(self, now: float, *, urgent: bool = True) -> None:
        """There is something to send; `urgent`: make sure that the token does not rest."""
        ring = self.ring
        if self.solo is not None:
            self._context.due.setdefault(Timer.SOLO, now + self._intake.throttle_s)
        elif self.waiting is not None:
            if urgent and self._send_early(now):
                return
            if urgent or ring.idle >= self._config.idle_visits_before_hold:
                self._end_hold(now)
        elif urgent and self._reports.under_way:
            self._call_keeper()
        elif ring.may_be_held:
            self._call(ring.members[:1])
        elif urgent and (ring.may_rest or self._may_be_kept):
            self._call(ring.members)

    def mark_changed(self, now: float) -> None:
        """The mark goes out with the next token, or by a report to the member that keeps the token.

        A member that waits for a commit is not called for the token.
        """
        ring, own, reports = self.ring, self._own, self._reports
        own.set(self._intake.mark, ring.safe)
        if self.solo is not None:
            self.work_arrived(now)
        elif reports.under_way and not self._is_silent:
            if self.waiting is not None:
                self._write_marks(self.waiting)
            else:
                self._report_news()
        elif self.waiting is not None:
            self._end_hold(now)
        elif ring.rests_soon:
            self._call(ring.members[:1] if ring.may_be_held else ring.members)

    @property
    def _may_be_kept(self) -> bool:
        """Whether another member may keep the token although the last frame is this member's."""
        ring = self.ring
        return ring.safe == ring.forwarded and not self._keeps and same(ring.marks)

    def _call(self, members: tuple[Member, ...]) -> None:
        """Call for the token, at the members where it may rest."""
        if len(members) > self._asked:
            self._asked = len(members)
            for member in members:
                if member != self.ring.me:
                    self._context.count("token_called")
                    self._context.send(member, Wake(self.ring.id))

    # -- the visit ---------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Visit the waiting token, if any, unless this member holds it while the ring is idle."""
        if self._reported:
            self._reported = False
            self._use_reports(now)
        token = self.waiting
        if token is None or self.held:
            return
        if self._intake.throttle_s:
            if not self._slowed:
                self._slowed = True
                self._context.count("token_slowed")
                self._context.arm(Timer.HOLD, now + self._intake.throttle_s)
        elif self._intake.urgent and self._may_stay(token):
            self._keep(token, now)
            if self._send_early(now):
                self._context.count("token_kept")
            else:
                self._end_hold(now)
        elif rest_ms := self._rest_ms(token):
            self.held = True
            self._context.arm(Timer.HOLD, now + rest_ms / 1000)
            if self._kept_until:
                self._context.count("token_kept")
                self._keep(token, now)
        else:
            self.waiting = None
            self._visit(token, now)

    def _rest_ms(self, token: Token) -> int:
        """How long the token stays here, if nothing happens meanwhile.

        While nothing else is under way a member keeps the token until its own commit has ended, so
        that the token goes round with the new mark instead of many times without it. When all is
        done it stays with the member that last had urgent work, because more may come from there,
        or else with the representative.
        """
        ring, intake, config = self.ring, self._intake, self._config
        if not ring.settled or intake.urgent or self._called:
            return 0
        if intake.coming > intake.mark:
            self._context.count("token_waited")
            return config.commit_wait_ms
        marks, idle = token.marks, ring.idle
        if intake.mark != marks[ring.index]:
            return 0
        rests = idle >= config.idle_visits_before_rest
        # The sender of the last frame must also see that the marks are the same: `_may_be_kept`.
        done = same(marks) and (ring.mine == token.seq or idle > 0)
        if self._keeps and not ring.may_be_held and (rests or done):
            self._kept_until = math.inf
            return config.keep_ms
        if ring.index or not rests:
            return 0
        if idle < config.idle_visits_before_hold:
            self._context.count("token_rested")
            return config.rest_ms
        if intake.queue:
            return 0
        self._context.count("token_held")
        return config.hold_ms

    def _visit(self, token: Token, now: float) -> None:
        ring, context, intake = self.ring, self._context, self._intake
        if (late := ring.failed_to_receive(token, now)) is not None:
            self._failed_to_receive(late, now)
            return
        # Everything known at the visit before has been delivered by all others by now.
        delivered = max(ring.known, token.everywhere)
        mark = self._own.shown(delivered, token.marks[ring.index])
        self._own.visited()
        visit = ring.visit(token, intake.queue, mark, self._config.accelerated_frames)
        framed, out = context.codec.data_frame, context.out
        resent, before, passed, after, asked = visit
        if resent:
            context.count("retransmitted", len(resent))
            out.extend([Broadcast(framed(body)) for body in resent])
        if asked:
            context.count("asked", asked)
        if before:
            out.extend([Broadcast(framed(body)) for body in before])
        self._tokens.pass_on(ring.successor, passed, now)
        if after:
            out.extend([Broadcast(framed(body)) for body in after])
        if intake.urgent and (before or after):
            self._awaited = ring.mine
        if not self._keeps and intake.urgent and ring.mine == ring.forwarded:
            self._keeps = True
            self._call(ring.members)  # a former keeper keeps it no longer
        self._asked, self._called = 0, False
        if len(ring.members) <= MEMBERS_MAX:
            self._reports.begin(ring.forwarded)
        intake.visited()
        self._show_marks()
        if mark != intake.mark and ring.rests_soon:
            self._call(ring.members)  # nobody keeps the token before it shows this mark
        self._visited(ring, now)

    def _marks_moved_last(self, known: int) -> None:
        """Stop waiting for marks, if all know the frame and this member's own mark covers it.

        A mark of another member that has not moved for a rotation by then may take long: its disk
        is slow, or it has none.
        """
        intake = self._intake
        if (
            known >= self._awaited
            and intake.coming <= intake.mark == self.ring.marks[self.ring.index]
        ):
            self._awaited = 0

    def _end_hold(self, now: float) -> None:
        """There is work: a held token goes on at once."""
        if self.held:
            self._on_hold_timer(now)

    # -- reports in place of rotations ---------------------------------------------------------

    def _may_stay(self, token: Token) -> bool:
        """Whether a token that comes when this member has work may stay here: the last urgent work
        was its own, no frame is missing, and its disk has all that was applied."""
        ring, intake = self.ring, self._intake
        return (
            self._keeps
            and token.seq == token.aru == ring.window.aru
            and not token.wanted
            and intake.coming <= intake.mark
        )

    def _keep(self, token: Token, now: float) -> None:
        """The token stays here, as more may follow."""
        self.held, self._kept_until = True, now + self._config.keep_ms / 1000
        self._context.arm(Timer.HOLD, self._kept_until)
        self.ring.keeps(token)
        self._show_marks()  # they may have come with this token
        self._reports.begin(token.seq, self.ring.hop)

    def _call_keeper(self) -> None:
        """Another member sends while it keeps the token: a member that has work calls it."""
        members = self.ring.members
        if self._asked < len(members):
            self._asked = len(members)
            self._context.count("token_called")
            self._context.send(members[self._reports.keeper], Wake(self.ring.id))

    def _send_early(self, now: float) -> bool:
        """Send queued payloads while the token stays; False: the token must go on.

        Payloads that arrive while frames are under way go out with the next ones, when those are
        safe, or at once if the other members are far and those went out some time ago.
        """
        ring, token, intake = self.ring, self.waiting, self._intake
        wait_s = self._wait.seconds
        if token is None or not self._kept_until or now + wait_s > self._kept_until:
            return False
        few = min(FRAMES_MAX, self._config.personal_frames - ring.early)
        if (
            len(ring.members) > MEMBERS_MAX
            or self._is_silent
            or intake.queue.backlog(ring.room) > few
        ):
            return False
        follows = self._wait.shortest_s > FAR_S and now >= self._early_at + PACE_S
        if ring.early and ring.safe < token.seq and not follows:
            return True
        waits = ring.early and token.everywhere < token.seq
        self.waiting, bodies = ring.send_early(token, intake.queue)
        if not bodies:
            return False
        self._context.count("sent_early", len(bodies))
        framed = self._context.codec.early_frame
        self._context.out.extend([Broadcast(framed(body)) for body in bodies])
        self._reports.sent(self.waiting.seq)
        self._awaited = self.waiting.seq
        intake.visited()
        self._early_at = now
        self._wait.begin(ring.hop, self.waiting.seq, now)
        if not waits:
            self._context.arm(Timer.HOLD, now + wait_s)
        return True

    def _use_reports(self, now: float) -> None:
        """Handle early frames, or reports on them, that came in."""
        ring, reports, token = self.ring, self._reports, self.waiting
        reports.received(ring.window.aru)
        if not reports.under_way:
            return
        if token is None and self._is_silent:
            return
        ring.held_by_all(reports.held_by_all())
        if token is not None:
            self._settle_early(token, now)
            return
        if reports.told != (reports.upto, ring.safe):
            self._report_news()
        if self._awaited and same(ring.marks):
            self._marks_moved_last(ring.safe)
        if self._intake.urgent or self._awaited:
            self._call_keeper()  # who keeps the token has the marks as well

    @property
    def _is_silent(self) -> bool:
        """Whether this member reports nothing and sends nothing early, so that the token moves.

        Either its application is behind, and the ring waits for it; or its mark fell, and all
        members must see that with the token before anything becomes safe that this member sent
        since.
        """
        return self._intake.throttle_s > 0 or self._own.fell

    def _report_news(self) -> None:
        """Tell all members what else it holds; the keeper also what it delivered, and its mark."""
        ring, reports = self.ring, self._reports
        holds_more = reports.upto > reports.told[0]
        self._report(ring.others if holds_more else (ring.members[reports.keeper],))

    def _settle_early(self, token: Token, now: float) -> None:
        """At the keeper: handle what all have delivered, marks this makes visible, the next
        frame.
        """
        ring, reports = self.ring, self._reports
        delivered = reports.delivered_by_all(ring.safe)
        if delivered > token.everywhere:
            self.waiting = token = token._replace(everywhere=delivered)
            self._wait.answered(delivered, now)
            later = self._kept_until if delivered == token.seq else now + self._wait.seconds
            self._context.arm(Timer.HOLD, min(later, self._kept_until))
        if delivered > ring.delivered:
            self.deliver()
        self._write_marks(token)
        if ring.safe == token.seq and self._intake.urgent and not self._send_early(now):
            self._end_hold(now)

    def _write_marks(self, token: Token) -> None:
        """Write marks on the token that is kept: nobody has a visit before it goes on."""
        ring, delivered = self.ring, max(self.ring.known, token.everywhere)
        marks = self._reports.marks(token.marks, delivered)
        own = self._own.shown(delivered, marks[ring.index])
        if own != marks[ring.index]:
            marks = with_mark(marks, ring.index, own)
        if marks != token.marks:
            self.waiting = token._replace(marks=marks)
            ring.keeps(self.waiting)
            self._show_marks()

    def _report(self, members: tuple[Member, ...]) -> None:
        """Report the frames held here, those delivered in this turn, and the mark."""
        ring, reports, context = self.ring, self._reports, self._context
        mark, covers = self._own.latest()
        reports.reported(ring.safe)
        report = Report(ring.id, reports.hop, reports.upto, ring.safe, mark, covers)
        frame = context.codec.encode(report)
        context.count("reports_sent", len(members))
        context.out.extend([Send(member, frame) for member in members])

    # -- timers ------------------------------------------------------------------------------

    def _on_hold_timer(self, now: float) -> None:
        """Send the held token on: because there is work, or so that nobody misses it."""
        self._context.cancel(Timer.HOLD)
        token = self.waiting
        self.waiting, self.held, self._slowed, self._kept_until = None, False, False, 0.0
        if token is not None:
            if token.everywhere < token.seq and self._reports.under_way:
                self._context.count("reports_late")
            self._visit(token, now)

    def _on_solo_timer(self, now: float) -> None:
        """A ring of one: nobody to wait for, so everything is safe as soon as it has its place."""
        ring, token, intake = self.ring, self.solo, self._intake
        if token is None:
            return
        ring.accept(token)
        self.solo = ring.visit(token, intake.queue, intake.mark, 0).token
        ring.all_safe()
        self._show_marks()
        self.deliver()
        if intake.queue:
            self._context.arm(Timer.SOLO, now + intake.throttle_s)

    # -- delivery ----------------------------------------------------------------------------

    def deliver(self) -> None:
        ring = self.ring
        if ring.delivered < ring.window.aru:
            for frame in ring.ready():
                self._delivery.emit(ring, frame, False)
        ring.release()

    def _show_marks(self) -> None:
        ring = self.ring
        if ring.marks != self._marks_shown:
            self._marks_shown = ring.marks
            named = {m.name: v for m, v in zip(ring.members, ring.marks, strict=True)}
            self._context.out.append(Marks(named))
