"""The primary component: which views may act, from which state and from which point in the order.

The layer sits between the ring (`node`) and a replicated application. It knows neither sockets nor
clocks nor the content of the replicated state. For each regular view:

1. *Exchange*: each member multicasts its `StateReport` (safe). When the last report is delivered,
   all members compute the same plan (`state_exchange.make_plan`).
2. *Catch up*: a member whose state equals the donor's has nothing to do. A member of the donor's
   last view that only lacks the knowledge that its last messages were safe applies exactly those of
   them that the donor applied. Any other member fetches the donor's state (`Transfer`).
3. *Re-propose*: the donor multicasts the unstable messages that it holds beyond its state, as a new
   Raft leader keeps its suffix: a member that is gone may have applied some of them.
4. *Promise*: a member that has caught up makes the epoch record durable (`PersistEpoch`, which also
   makes its state up to there durable) and multicasts PROMISED.
5. *Activate*: with promises from a majority of the voters, and a reply from every member that may
   need no transfer, the donor multicasts ACTIVATE. Its delivery in the regular view decides: all
   members apply what was re-proposed, then the activation, which is the first command of the epoch,
   at the same position.

Messages that were delivered in a view that is not active, or that are unstable at members other
than the donor, are dropped by all members; their origin submits them again. Nothing is applied that
is not safe in a primary view, so no member ever holds a suffix that its primary might lack ("apply
on safe").

Only a member that has caught up counts for the durable mark. An inquorate member orders nothing,
applies nothing and sends nothing to its clients.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from vsync.primary.durable_mark import PrimaryMark
from vsync.primary.events import (
    ACTIVATE,
    APP,
    BEHIND,
    CAUGHT_UP,
    HELD,
    PROMISED,
    REPROPOSED,
    STATE,
    Activated,
    Activation,
    DurableMark,
    Held,
    Holders,
    Inquorate,
    NeverJoins,
    Ordered,
    PersistEpoch,
    PlanReply,
    PrimaryEvent,
    PrimaryPhase,
    Replicated,
    StateReport,
    Suspended,
    Transfer,
    Unstable,
    decode,
)
from vsync.primary.settings import advice, settings_refusal
from vsync.primary.state_exchange import (
    Plan,
    PlanVerdict,
    activate,
    common_version,
    make_plan,
    refuse,
)
from vsync.primary.unstable import UnstableMessages
from vsync.quorum.reconfiguration import alone
from vsync.quorum.voter_set import Terms, parse, voter_set
from vsync.totem.events import Deliver, Marks, Output, Transitional, View
from vsync.types import NO_RING, Member


class Primary:
    """One member of the primary component protocol. Sans-I/O: outputs in, events out."""

    def __init__(self, me: Member, app: Replicated) -> None:
        self.me = me
        self.app = app
        self.phase = PrimaryPhase.APART
        self.reason = "no view yet"
        self.ring = NO_RING
        self.members: tuple[Member, ...] = ()
        self.plan: Plan | None = None
        self.epoch = 0
        self.activation: Activation | None = None
        self.counters: dict[str, int] = {}
        self.meetings = 0
        """The number of views so far that had another member."""
        self._reports: dict[Member, StateReport] = {}
        self._reported: StateReport | None = None  # this member's, as last sent
        self._replies: dict[Member, bool] = {}  # promised (True) or behind (False)
        self._fresh: dict[Member, bool] = {}
        self.mark = PrimaryMark()
        self._vote = False  # a pair's, held in this view
        self._is_current = False  # no other member has continued without this one
        self.apart = ""  # the outcome, if both of a pair continued alone
        self._waits = True  # wait_for_all: not in a quorum yet, or not any more
        self._replaced = False  # the state was fetched, and no activation has announced it yet
        self._has_state = False
        self._activate_sent = False
        self._requests = 0
        self._awaited = b""  # what to send once the latest request is durable; empty: nothing
        self._unstable = UnstableMessages()
        self._reproposed: list[Unstable] = []  # by the donor, to be applied before the activation
        self._events: list[PrimaryEvent] = []
        self._outgoing: list[bytes] = []

    # -- what comes in ---------------------------------------------------------------------------

    def on_output(self, output: Output) -> None:
        """Take one output of the node, in order."""
        if isinstance(output, Deliver):
            self._on_deliver(output)
        elif isinstance(output, Marks):
            self.mark.marks = output.marks
            self._update_mark()
        elif isinstance(output, View):
            self._on_view(output)
        elif isinstance(output, Transitional):
            self._on_transitional()

    def persisted(self, request: int) -> None:
        """The `PersistEpoch` of this number is durable, and so is everything applied before it.

        Only the latest request counts. A promise that becomes durable after the activation proves
        nothing about what was ordered since: it must not pass for the HELD on which an arbitrator's
        record rests (G8).
        """
        if request != self._requests or not self._awaited:
            return
        answer, self._awaited = self._awaited, b""
        if answer == PROMISED:
            assert self.plan is not None
            self._send(PROMISED, (self.plan.epoch, self._replaced))
        else:
            self._send(HELD, (self.epoch,))

    def _persist(self, plan: Plan, answer: bytes) -> None:
        """Request a durable promise, to be followed by `answer`: PROMISED or HELD."""
        self._requests += 1
        self._awaited = answer
        self._events.append(PersistEpoch(plan.epoch, plan.cluster_id, plan.voters, self._requests))

    def activation_applied(self, position: int) -> None:
        """The state contains the activation of this view, at `position` or before."""
        self.mark.activation_applied(position)
        self._update_mark()

    def voters_changed(self, voters: Terms) -> bool:
        """Take the voters from the last applied position on.

        Returns True if they are others than before, so there may be an event.
        """
        changed = self.phase is PrimaryPhase.ACTIVE and self.mark.voters_changed(voters)
        if changed:
            self._update_mark()
        return changed

    def durable(self) -> int:
        """Return the position that a quorum of the voters in the state has made durable."""
        return self.mark.reported

    def state_replaced(self) -> None:
        """The state in memory is no longer the one that this member's clients have followed.

        This outlasts the view, until an activation ends the old session. It also holds where the
        state has not reached the one that `Transfer` asked for, and another view takes it as it is.
        """
        self._replaced = True
        self._unstable.state_replaced()

    def caught_up(self) -> None:
        """The state that `state_replaced` announced is complete, durable and verified."""
        if self.plan is None or self._has_state:
            return
        self._has_state = True
        self._is_current = self.phase is PrimaryPhase.ACTIVE
        self._unstable.complete = self.phase is PrimaryPhase.ACTIVE
        self._replaced = self.epoch != self.plan.epoch  # else the activation has ended the session
        if self.phase is PrimaryPhase.CATCHING_UP:
            plan = self.plan
            self._persist(plan, PROMISED)
        elif self.phase is PrimaryPhase.ACTIVE:
            self._send(CAUGHT_UP, (self.epoch,))

    def state_report_changed(self) -> None:
        """Send the report again, for example because this member no longer waits for others."""
        if self.phase in (PrimaryPhase.EXCHANGE, PrimaryPhase.INQUORATE):
            self._send_state_report()

    def take_vote(self) -> None:
        """Hold the third vote of the pair in this view, if that helps."""
        if self.lacks_its_peer and not self._vote:
            self._vote = True
            self._send_state_report()

    # -- what goes out ---------------------------------------------------------------------------

    def take(self) -> list[PrimaryEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def take_outgoing(self) -> list[bytes]:
        """Return payloads to multicast with guarantee SAFE; `put_back` what the ring refused."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def put_back(self, payloads: list[bytes]) -> None:
        """Keep payloads that the ring had no room for; they are sent first the next time."""
        self._outgoing[:0] = payloads

    @staticmethod
    def wrap(payload: bytes) -> bytes:
        """Return the ring payload that carries an application payload."""
        return APP + payload

    @property
    def active(self) -> bool:
        """Whether this view is primary (this member may still be catching up)."""
        return self.phase is PrimaryPhase.ACTIVE

    @property
    def left_out(self) -> bool:
        """Whether it is decided that this member is in no primary view now."""
        return self.phase is PrimaryPhase.INQUORATE

    @property
    def lacks_its_peer(self) -> bool:
        """Whether the pair's third vote would let this member continue.

        It is in a view without the state of the other member, and it is *current*: it was in the
        last primary view that it knows of, with all of its state, and has not restarted since. The
        other member may have continued without a member that restarted or had to be given the
        state.
        """
        if self.phase is not PrimaryPhase.INQUORATE or not self._is_current:
            return False
        mine = self._reports.get(self.me)
        if mine is None or not (terms := alone(mine.voters, self.me.name)):
            return False
        (peer,) = parse(terms).latest.away
        return not any(m.name == peer and report.filled for m, report in self._reports.items())

    def _is_overtaken_by(self, report: StateReport) -> bool:
        """Whether a member of this cluster continued without this one, by its report."""
        own = self._reported
        if own is None or not report.filled or report.cluster_id != own.cluster_id:
            return False
        away = voter_set(report.voters).away
        return report.state_epoch > own.state_epoch or self.me.name in away

    @property
    def has_caught_up(self) -> bool:
        """Whether this member has the primary's state and counts."""
        return self.phase is PrimaryPhase.ACTIVE and self.me.name in self.mark.caught_up

    def durable_everywhere(self) -> int:
        """Return the position that every caught up member of the view has made durable."""
        return self.mark.everywhere()

    def marks_with_state(self) -> dict[str, int]:
        """Return, by name, the position that each caught up member with data has made durable."""
        mark = self.mark
        return {name: mark.marks.get(name, 0) for name in mark.caught_up - mark.without_data}

    def durable_elsewhere(self) -> int:
        """Return the position that is durable at members who can continue without this one.

        That is a quorum of the voters, or the other member of a pair.
        """
        mark, others = self.mark, self.caught_up_names - {self.me.name}
        may = [mark.marks.get(name, 0) for name in others if alone(mark.voters, name)]
        return max([mark.reported, *may])

    def marks(self) -> dict[str, int]:
        """Return each view member's durable mark as the token last showed it, by name."""
        return dict(self.mark.marks)

    def labels(self) -> dict[str, str]:
        """Return the label that each member of the view reported, by name."""
        return {m.name: s.label for m, s in self._reports.items()}

    @property
    def reports(self) -> Mapping[Member, StateReport]:
        """The reports that the members of the view have sent so far."""
        return self._reports

    def newest(self) -> tuple[Member, StateReport] | None:
        """Return the member of the view with the newest usable state, and its report."""
        states = {m: r for m, r in self._reports.items() if r.filled and not r.arbitrator}
        if not states:
            return None
        newest = max(sorted(states), key=lambda m: (states[m].state_epoch, states[m].position))
        return newest, states[newest]

    def common_version(self) -> int:
        """Return the newest version of the payloads that all members of the view execute."""
        return common_version(self._reports.values())

    def advice(self) -> list[str]:
        """Return which settings that should be equal differ in this view, with both values."""
        return advice(self.me, self._reports)

    @property
    def caught_up_names(self) -> frozenset[str]:
        """The names of the members that have the primary's state."""
        return self.mark.caught_up

    @property
    def joining_names(self) -> frozenset[str]:
        """The names of view members that have no vote now, because they lack the state."""
        if self.active:
            return frozenset(m.name for m in self.members) - self.caught_up_names
        return frozenset(
            m.name for m, one in self._reports.items() if not (one.filled or one.arbitrator)
        )

    # -- views -----------------------------------------------------------------------------------

    def _on_transitional(self) -> None:
        if self.phase is PrimaryPhase.ACTIVE:
            self._unstable.view_ends(self.epoch, applies=self._has_state)
        if self.phase is not PrimaryPhase.APART:
            self._events.append(Suspended("the view is changing"))
        self.phase, self.reason = PrimaryPhase.APART, "the view is changing"
        self._awaited = b""

    def _on_view(self, view: View) -> None:
        self.phase, self.reason = PrimaryPhase.EXCHANGE, "exchanging states"
        self.ring, self.members = view.ring, view.members
        self.meetings += len(view.members) > 1
        self.plan = None
        self._reports, self._replies, self._fresh = {}, {}, {}
        self.mark.view_begins()
        self._has_state = self._activate_sent = self._vote = False
        self._awaited = b""
        self._unstable.view_ended()
        self._reproposed = []
        self._outgoing = []
        self._send_state_report()

    def _send_state_report(self) -> None:
        report, mine = self.app.state_report(), self._unstable
        reach = mine.reach(report.state_epoch)
        report = report._replace(
            reach=reach, complete=mine.complete, unstable=len(mine), waits=self._waits,
            vote=self._vote,
        )  # fmt: skip
        self._reported = report
        self._send(STATE, (report,))

    def _send(self, tag: bytes, fields: tuple[object, ...]) -> None:
        self._outgoing.append(tag + msgpack.packb((tuple(self.ring), *fields)))

    # -- ordered messages ------------------------------------------------------------------------

    def _on_deliver(self, d: Deliver) -> None:
        for payload in d.payloads:
            tag = payload[:1]
            if tag == APP:
                self._on_app(d, payload[1:])
                continue
            try:
                ring, body = decode(tag, payload)
            except (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException):
                self._count("malformed")
                continue
            if ring != self.ring:
                self._count("of_another_view")
            elif isinstance(body, Activation):
                self._on_activate(d, body)
            elif isinstance(body, Unstable):
                self._on_reproposed(d.sender, body)
            elif d.transitional:
                self._count("too_late")
            elif isinstance(body, StateReport):
                self._on_state(d.sender, body)
            elif isinstance(body, PlanReply):
                self._on_reply(d.sender, body)
            elif isinstance(body, Held):
                if self.phase is PrimaryPhase.ACTIVE:
                    self._add_holders(frozenset((d.sender.name,)))
            else:
                self._on_caught_up(d.sender)

    def _on_app(self, d: Deliver, payload: bytes) -> None:
        if self.phase is PrimaryPhase.ACTIVE and not d.transitional:
            self._events.append(Ordered(self.epoch, d.ring, d.seq, d.sender, payload))
        elif not (d.transitional and self._unstable.add(d, payload)):
            self._count("app_outside_primary")

    def _on_reproposed(self, sender: Member, unstable: Unstable) -> None:
        if self.plan is not None and sender == self.plan.donor:
            self._reproposed.append(unstable)
        else:
            self._count("again_unexpected")

    def _on_state(self, sender: Member, report: StateReport) -> None:
        if self.plan is not None or sender not in self.members:
            return
        self._reports[sender] = report
        if self._is_overtaken_by(report):
            self._is_current = False
        if len(self._reports) < len(self.members):
            return
        plan = make_plan(self.members, self._reports)
        if refusal := refuse(self.me, self._reports[self.me], plan):
            self.phase, self.reason = PrimaryPhase.INQUORATE, refusal
            self._events.append(NeverJoins(refusal))
        elif refusal := settings_refusal(self.me, self._reports, plan.voters):
            self.phase, self.reason = PrimaryPhase.INQUORATE, refusal
            self._events.append(NeverJoins(refusal, settings=True))
        elif plan.verdict in (PlanVerdict.WAIT, PlanVerdict.INQUORATE):
            self.phase, self.reason = PrimaryPhase.INQUORATE, plan.reason
            self._waits = self._waits or plan.verdict is PlanVerdict.INQUORATE
            self._events.append(Inquorate(plan.reason))
        else:
            self.apart = plan.apart or self.apart
            self._adopt(plan)

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        self.phase, self.reason = PrimaryPhase.CATCHING_UP, plan.reason
        if self.me in plan.caught_up or self._apply_unstable(plan):
            self._has_state = True
            if plan.donor == self.me:
                for unstable in self._unstable.items:
                    self._send(REPROPOSED, (unstable,))
            self._persist(plan, PROMISED)
            return
        assert plan.donor is not None
        assert plan.donor != self.me
        self._is_current = False
        self._send(BEHIND, (plan.epoch,))
        aside = self.me == plan.aside
        self._events.append(Transfer(plan.donor, plan.epoch, plan.position, plan.order, aside))

    def _apply_unstable(self, plan: Plan) -> bool:
        """Apply the unstable messages that the donor has applied, if they lead to its state."""
        if not self._unstable.items:
            return False
        count = self.app.reaches(self._unstable.bodies(), plan.order)
        if count <= 0:  # 0: nothing is missing, so the state differs in its outcomes
            self._count("undecided_do_not_fit")
            return False
        decided = self._unstable.take(count)
        if any(isinstance(unstable.item, Activation) for unstable in decided):
            self._replaced = False
        self._apply(plan, decided)
        return True

    def _apply(self, plan: Plan, decided: list[Unstable]) -> None:
        self._events.extend(unstable.event(plan.epoch) for unstable in decided)

    def _on_reply(self, sender: Member, reply: PlanReply) -> None:
        if self.plan is None or reply.epoch != self.plan.epoch:
            return
        if self.phase is not PrimaryPhase.CATCHING_UP:
            if reply.promised:
                self._on_caught_up(sender)
            return
        self._replies[sender] = reply.promised
        self._fresh[sender] = reply.fresh
        self._maybe_activate(self.plan)

    def _maybe_activate(self, plan: Plan) -> None:
        if plan.donor != self.me or self._activate_sent:
            return
        activation = activate(plan, self.members, self._reports, self._replies, self._fresh)
        if activation is not None:
            self._activate_sent = True
            self._send(ACTIVATE, (activation,))

    def _on_activate(self, d: Deliver, activation: Activation) -> None:
        if d.transitional:
            # Some members of the old view may have delivered it in time: here it is unstable.
            if (
                self.plan is not None
                and self._has_state
                and len(self._reproposed) == self.plan.unstable
            ):
                self._unstable.add_activation(d, activation, self._reproposed)
            return
        if self.plan is None or self.phase is not PrimaryPhase.CATCHING_UP:
            self._count("activate_unexpected")
            return
        self.phase, self.reason = PrimaryPhase.ACTIVE, self.plan.reason
        self._awaited = b""
        self.epoch, self.activation = activation.epoch, activation
        if self._has_state:
            self._replaced = False
            self._is_current = True
        self._waits = False
        caught_up = frozenset(m.name for m, promised in self._replies.items() if promised)
        arbitrators = frozenset(m.name for m, s in self._reports.items() if s.arbitrator)
        self.mark.activated(self.epoch, self.plan.voters, caught_up, arbitrators)
        if self._has_state:
            self._unstable.activated()
        self._apply(self.plan, self._reproposed)
        counts = self.me.name in caught_up
        self._events.append(Activated(d.ring, d.seq, d.sender, activation, counts))
        if self._has_state and not counts:
            self._send(CAUGHT_UP, (self.epoch,))
        self._add_holders(caught_up)
        self._update_mark()

    def _on_caught_up(self, sender: Member) -> None:
        if self.phase is PrimaryPhase.ACTIVE and sender.name not in self.mark.caught_up:
            self.mark.caught_up |= {sender.name}
            self._update_mark()
            if sender == self.me and self.plan is not None and self.mark.without_data:
                # An arbitrator may name this member once everything ordered so far is on its disk.
                plan = self.plan
                self._persist(plan, HELD)

    def _add_holders(self, names: frozenset[str]) -> None:
        """Tell an arbitrator's application which members have everything this epoch confirms."""
        holders = self.mark.add_holders(names)
        if self.me.name in self.mark.without_data:
            self._events.append(Holders(self.epoch, holders))

    def _update_mark(self) -> None:
        if self.phase is PrimaryPhase.ACTIVE and (mark := self.mark.advance()) is not None:
            self._events.append(DurableMark(mark))

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1
