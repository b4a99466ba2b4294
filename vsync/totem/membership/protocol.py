"""The membership protocol of one member: its phase, and the transitions between phases.

Only this module creates and drops the phase objects, and routes joins, merges, commit tokens and
timers to the current one. A message that a phase does not expect is counted by its kind and the
phase, and dropped.
"""

from __future__ import annotations

from vsync.totem.context import Context, Timer, Timers, names
from vsync.totem.events import View
from vsync.totem.membership.commit import CommitPhase, filled
from vsync.totem.membership.connectivity import Connectivity
from vsync.totem.membership.departures import LEFT, STUCK, Departures
from vsync.totem.membership.failure_detector import Prober
from vsync.totem.membership.gather import GatherPhase
from vsync.totem.membership.gather_sets import GatherSets
from vsync.totem.membership.merge import MergeDetector
from vsync.totem.membership.recovery import Exchange, RecoveryPhase
from vsync.totem.membership.ring_ids import RingIds
from vsync.totem.membership.wire_versions import WireVersions
from vsync.totem.ordering.application import Delivery, Intake
from vsync.totem.ordering.operational import OperationalPhase
from vsync.totem.ordering.ring import Ring
from vsync.totem.ordering.token_passing import TokenPassing
from vsync.totem.phases import Phase, Reason, after
from vsync.types import NO_RING, Member, RingId
from vsync.wire.messages import CommitEntry, CommitToken, Data, Join, Merge, Token, Wake


class Membership:
    """The phase of one member, the last installed ring, and the phase objects."""

    def __init__(
        self, context: Context, intake: Intake, delivery: Delivery, tokens: TokenPassing
    ) -> None:
        self.phase = Phase.IDLE
        self.current: Ring | None = None  # the ring installed last; frozen while another forms
        # Each of these exists only while it is needed: `gather` until a ring is installed,
        # `commit` until then or until the attempt is aborted, `recovery` in its last part.
        self.operational: OperationalPhase | None = None
        self.gather: GatherPhase | None = None
        self.commit: CommitPhase | None = None
        self.recovery: RecoveryPhase | None = None
        self.ring_ids = RingIds()
        self.connectivity = Connectivity(context.me, context.config.hearing_ms / 1000)
        self.merges = MergeDetector(context, self.connectivity, self.ring_ids, self._enter_gather)
        self.departures = Departures(context, tokens.tempo)
        self.prober = Prober(
            context, self.connectivity, self._watched, self._enter_gather, self.departures
        )
        self._context = context
        self._intake = intake
        self._delivery = delivery
        self.tokens = tokens
        self.wire_versions = WireVersions(context.me.name, context.codec)
        self._leave_notice_at = 0.0
        self._timers: Timers = {
            Timer.TOKEN_RESEND: tokens.on_resend_timer,
            Timer.TOKEN_LOSS: self._on_token_loss,
            Timer.MERGE: self._on_merge_timer,
            Timer.CHECK: self.prober.check,
        }
        self.on_timer = self._timers  # with those of the present phase: another's do nothing

    @property
    def ring(self) -> RingId:
        """The last installed ring."""
        return self.current.id if self.current is not None else NO_RING

    @property
    def members(self) -> tuple[Member, ...]:
        return self.current.members if self.current is not None else ()

    def known_members(self) -> tuple[Member, ...]:
        """Members of the ring, candidates of the next one, and members that reports name."""
        ours = self.gather.sets.candidates() if self.gather is not None else self.members
        return tuple(sorted({*ours, *self.connectivity.reachable}))

    def describe(self) -> str:
        return f"{self._context.me} {self.phase.value} {self.ring} {names(self.members)}"

    # -- begin and end -----------------------------------------------------------------------

    def start(self, now: float) -> None:
        self._move(Reason.START)
        self.gather = self._new_gather(())
        self.on_timer = self._timers | self.gather.timers
        lonely_s = self._context.config.lonely_wait_ms / 1000
        self._context.arm(Timer.LONELY, now + lonely_s)
        self.gather.announce(now)

    def leave(self, now: float) -> None:
        if self.recovery is not None:
            self.recovery.exchange.abort()
        self._move(Reason.LEAVE)
        self.operational = self.gather = self.commit = self.recovery = None
        self._context.due.clear()
        self._send_leave_notice(now)

    def on_late_join(self, join: Join, now: float) -> None:
        """A join arrived after the leave: its sender gets another notice if it counts on me."""
        me = self._context.me
        if me in join.proc and me not in join.failed and now >= self._leave_notice_at:
            self._send_leave_notice(now)

    def _send_leave_notice(self, now: float) -> None:
        me = self._context.me
        self._leave_notice_at = now + self._context.config.join_timeout_ms / 1000
        others = tuple(m for m in self.members if m != me)
        self._context.broadcast(Join(others, (me,), self.ring_ids.highest_seq, True))

    # -- messages ----------------------------------------------------------------------------

    def data_while_forming(self, frame: Data) -> None:
        """Handle a data frame while no ring is installed."""
        if self.phase is Phase.GATHER:
            ring = self.current
            if ring is None or frame.ring != ring.id:
                self._context.count("data_other_ring")
            # It is kept for the recovery, but nothing is delivered any more.
            elif code := ring.add(frame):
                self._context.count(code)
        elif self.recovery is not None:
            self.recovery.on_data(frame)
        else:
            # In commit: what this member holds is written in the commit token and must not change.
            self._context.count(f"data_in_{self.phase.value}")

    def token_while_forming(self, sender: Member, token: Token, now: float) -> None:
        """Handle a regular token while no ring is installed."""
        if self.recovery is not None:
            self.recovery.on_token(sender, token, now)
        else:
            self._context.count(f"token_in_{self.phase.value}")

    def turn_while_forming(self, now: float) -> None:
        """Nothing more to receive: use the token of the ring under way, if there is one."""
        if self.recovery is not None and self.recovery.turn(now):
            self._install(self.recovery, now)

    def on_wake(self, message: Wake, now: float) -> None:
        if self.operational is not None:
            self.operational.on_wake(message, now)
        else:
            self._context.count("wake_other_ring")

    def on_join(self, sender: Member, join: Join, now: float) -> None:
        self.ring_ids.learn(join.ring_seq)
        self._context.note_join("join_heard", join, sender)
        if join.leaving:
            self.departures.evidence((sender,), LEFT)
            self.connectivity.forget((sender,))
        else:
            self.merges.learn(sender, join.reception, 1, now)
        ring = self.current
        ours = ring is not None and sender in ring.members and not join.leaving
        if ours and ring is not None and join.ring_seq < ring.id.seq:
            self._context.count("join_stale")  # sent before the ring was formed (pitfall 28)
            return
        if ours:
            mine = () if self.gather is None else self.gather.sets.failed
            self.departures.given_up(sender, set(join.failed).difference(mine))
        if self.operational is not None:
            self.merges.on_join(self.operational.ring, sender, join, now)
        elif self.gather is None:
            self._context.count("join_outside")
        elif self.commit is None:
            self.gather.on_join(sender, join, now)
        elif self.commit.broken_by(
            sender, join, self.gather.sets, recovering=self.recovery is not None
        ):
            gather = self._enter_gather(Reason.JOIN)
            gather.sets.absorb(sender, join)
            gather.announce(now)
        else:
            self._context.count("join_while_forming")

    def on_merge(self, sender: Member, merge: Merge, now: float) -> None:
        """A member of this ring, or of another one, announced it."""
        self.merges.learn(sender, merge.reception, len(merge.members), now)
        if self.operational is not None:
            self.merges.on_merge(self.operational.ring, sender, merge, now)
        elif self.gather is not None and self.commit is None:
            self.gather.on_merge(sender, now)
        else:
            self._context.count("foreign_while_forming")

    def on_commit(self, sender: Member, commit: CommitToken, now: float) -> None:
        me, members = self._context.me, commit.members
        forming, recovery = self.commit, self.recovery
        if me not in members or sender != members[members.index(me) - 1]:
            self._context.count("commit_sender")
        elif self.gather is not None and forming is None:
            self.gather.on_commit(commit, now)
        elif forming is None or commit.ring != forming.ring:
            self._context.count("commit_other_ring")
        elif commit.hop != forming.expect or None in commit.entries:
            self._context.count("commit_again")
        elif recovery is None:
            forming.full()
            self._begin_recovery(forming, commit, now)
        elif forming.index == 0 and not recovery.originated:
            # Once only, whoever repeats it (pitfall 25).
            if recovery.originate(now):
                self._install(recovery, now)
        else:
            self._context.count("commit_again")

    def on_new_reception(self, now: float) -> None:
        """Frames arrive from a member for the first time, or again: announce that at once."""
        if not self.connectivity.changed(now):
            return
        if self.operational is not None:
            self.merges.announce(self.operational.ring, now)
        elif self.gather is not None and self.commit is None:
            self.gather.join_soon(now)

    # -- timers ------------------------------------------------------------------------------

    def _on_token_loss(self, now: float) -> None:
        self._context.count("token_lost")
        self._enter_gather(Reason.TOKEN_LOST).announce(now)

    def _on_merge_timer(self, now: float) -> None:
        if self.operational is not None:
            self.merges.announce(self.operational.ring, now)

    # -- phase moves -------------------------------------------------------------------------

    def _move(self, reason: Reason) -> None:
        was, self.phase = self.phase, after(self.phase, reason)
        self._context.count(f"phase_{self.phase.value}")
        self._context.note(
            "phase", was=was.value, now=self.phase.value, why=reason.value, ring=str(self.ring)
        )

    def _new_gather(self, also: tuple[Member, ...]) -> GatherPhase:
        sets = GatherSets(self._context.me, self.members, also)
        return GatherPhase(
            self._context, sets, self.connectivity, self.ring_ids, self._move, self._commit_to
        )

    def _enter_gather(
        self, reason: Reason, also: tuple[Member, ...] = (), failed: tuple[Member, ...] = ()
    ) -> GatherPhase:
        """Give up the ring, or the attempt at one; the caller announces the sets afterwards."""
        if self.recovery is not None:
            self.recovery.exchange.abort()
            self.ring_ids.past.append(self.recovery.ring.id)
        self.operational = self.commit = self.recovery = None
        self._move(reason)
        self.tokens.stop()
        self._context.cancel(Timer.HOLD, Timer.MERGE, Timer.SOLO)
        if self.gather is None:
            self.gather = self._new_gather(also)
        else:
            self.gather.again(also)
        self.on_timer = self._timers | self.gather.timers
        self.gather.sets.fail(failed)
        return self.gather

    def _failed_to_receive(self, member: Member, now: float) -> None:
        """A member does not receive frames: go on without it (Totem: failure to receive)."""
        self._context.note("stuck", member=member.name)
        self.departures.evidence((member,), STUCK)
        self._enter_gather(Reason.MEMBER_STUCK, failed=(member,)).announce(now)

    def _watched(self) -> tuple[Member, ...]:
        """The members that the failure detector watches: those of the ring, or the candidates."""
        if self.gather is not None:
            return self.gather.sets.candidates()
        return self.members if self.operational is not None else ()

    def _entry(self) -> CommitEntry:
        """The state of the old ring, for the commit token."""
        ring, mark = self.current, self._intake.mark
        if ring is None:
            return CommitEntry(NO_RING, 0, 0, 0, mark, ())
        window = ring.window
        return CommitEntry(
            ring.id, window.aru, window.high, ring.safe, mark, tuple(sorted(ring.obliged))
        )

    def _commit_to(self, commit: CommitToken, reason: Reason, now: float) -> None:
        self._context.cancel(Timer.JOIN, Timer.CONSENSUS, Timer.LONELY)
        self.on_timer = self._timers
        self._move(reason)
        self.ring_ids.commit(commit.ring)
        self.commit = forming = CommitPhase(commit, self._context.me, self.tokens)
        self._context.note("commit", ring=str(commit.ring), members=names(commit.members))
        commit = filled(commit, forming.index, self._entry())
        if len(commit.members) == 1:
            self._begin_recovery(forming, commit, now)
        else:
            forming.pass_on(commit, now)

    def _begin_recovery(self, forming: CommitPhase, commit: CommitToken, now: float) -> None:
        """All entries are present: the old ring is frozen, the new ring's token may come."""
        self._move(Reason.COMMIT_FULL)
        entries = tuple(e for e in commit.entries if e is not None)
        assert len(entries) == len(commit.members)
        marks = tuple(e.mark for e in entries)
        self.wire_versions.forming(member.name for member in commit.members)
        ring = Ring(
            commit.ring,
            commit.members,
            self._context.me,
            marks,
            self._context.config,
            self._context.codec.envelope_bytes,
        )
        exchange = Exchange(ring, self.current, entries)
        self.recovery = RecoveryPhase(
            self._context, exchange, self._intake, self.tokens, self._failed_to_receive
        )
        self._context.note(
            "recovery", ring=str(ring.id), old=str(self.ring), together=names(exchange.trans),
            to_send=exchange.backlog(0),
        )  # fmt: skip
        if len(commit.members) == 1:
            self._install(self.recovery, now)
        else:
            forming.pass_on(commit._replace(hop=commit.hop + 1), now)

    def _install(self, recovery: RecoveryPhase, now: float) -> None:
        """Close the old ring and install the new one, in one step."""
        self._move(Reason.RECOVERED)
        old, ring, gather = self.current, recovery.ring, self.gather
        assert gather is not None
        came = frozenset[Member]()
        if old is not None:
            came = frozenset(recovery.exchange.trans)
            recovery.close(old, self._delivery)
            self.ring_ids.past.append(old.id)
        if forgotten := self._delivery.assembly.forget():
            self._context.count("fragments_forgotten", forgotten)
        if self._intake.queue.restart():
            self._context.count("fragments_sent_again")
        self.merges.installed(ring, gather.sets.received, now)
        self.departures.on_ring(
            () if old is None else old.members, ring.members, came, self.connectivity.heard(), now
        )
        self.current = ring
        self.recovery = self.commit = self.gather = None
        joined = tuple(m for m in ring.members if m not in came)
        left = () if old is None else tuple(m for m in old.members if m not in came)
        self._context.out.append(View(ring.id, ring.members, joined, left))
        self._context.note(
            "view",
            ring=str(ring.id),
            members=names(ring.members),
            joined=names(joined),
            left=names(left),
            first_seq=ring.delivered + 1,
        )
        self.operational = OperationalPhase(
            self._context, ring, self._intake, self._delivery, self.tokens,
            self._failed_to_receive, self.merges.announce_before_rest,
        )  # fmt: skip
        self.on_timer = self._timers | self.operational.timers
        self.operational.start(now)
        self.merges.arm(now)

    # -- self-check --------------------------------------------------------------------------

    def invariants(self) -> None:
        """Assert what must hold between any two calls."""
        phase, current, operational = self.phase, self.current, self.operational
        recovering = phase is Phase.RECOVERY
        forming = recovering or phase is Phase.COMMIT
        gathering = forming or phase is Phase.GATHER
        assert (self.gather is not None) == gathering, self.describe()
        assert (self.commit is not None) == forming, self.describe()
        assert (self.recovery is not None) == recovering, self.describe()
        assert (operational is not None) == (phase is Phase.OPERATIONAL), self.describe()
        if operational is not None:
            assert operational.ring is current, self.describe()
            assert not operational.held or operational.waiting is not None, self.describe()
        assert self.ring_ids.committed_seq <= self.ring_ids.highest_seq, self.describe()
        if operational is not None or gathering:
            assert self._context.due, f"nothing will ever happen: {self.describe()}"
        if current is not None:
            assert current.id.seq <= self.ring_ids.committed_seq, self.describe()
            current.invariants()
        if self.recovery is not None:
            self.recovery.ring.invariants()
            self.recovery.exchange.invariants()
        if self.gather is not None:
            self.gather.sets.invariants()
