"""Primary views: which view may go on, from which state, and from which point in the order.

The layer sits between the ring (`node`) and a replicated application.  It knows neither sockets
nor clocks nor what the application replicates.  Per regular view:

1. *Exchange*: each member multicasts its `StateReport` (safe).  When the last one is delivered all
   members compute the same plan (`standing.make_plan`).
2. *Level*: members that stand where the donor stands are level.  A member of the donor's last
   view that merely had not learnt that its last messages were safe applies exactly those of them
   that the donor applied.  Any other member asks the donor for its state (`Transfer`).
3. *Again*: the donor multicasts anew what it holds undecided beyond its state, as a new Raft leader
   keeps its suffix: a member that is gone may have applied some of it.
4. *Promise*: a level member makes the epoch record durable (`PersistEpoch`, which also makes its
   state so far durable) and multicasts PROMISED.
5. *Activate*: with promises of a majority of the voters, and an answer of every member that might
   still be level, the donor multicasts ACTIVATE.  Delivered in the regular view it decides: what
   was said again is applied, then the activation, the first command of the epoch, at the same
   position everywhere.

What was delivered in a view that is not active, or undecided at others than the donor, is dropped
by all; its origin submits it again.  Nothing is applied that is not safe in a primary view, so no
member ever holds a suffix that its primary might not have ("apply on safe").

Only a member that is level counts for the durable mark.  An inquorate member orders nothing,
applies nothing and says nothing.
"""

from __future__ import annotations

import msgpack

from vsync.primary.activation import activate
from vsync.primary.durable_mark import PrimaryMark
from vsync.primary.events import (
    ACTIVATE,
    AGAIN,
    APP,
    BEHIND,
    CAUGHT_UP,
    HELD,
    PROMISED,
    STATE,
    Activated,
    Activation,
    Answer,
    DurableMark,
    Held,
    Holders,
    Inquorate,
    NeverJoins,
    Ordered,
    PersistEpoch,
    PrimaryEvent,
    PrimaryPhase,
    Replicated,
    Suspended,
    Transfer,
    Unstable,
    decode,
)
from vsync.primary.state_exchange import Plan, PlanVerdict, StateReport, make_plan, refuse
from vsync.primary.unstable import UnstableMessages
from vsync.quorum.voter_set import Terms
from vsync.totem.events import Deliver, Marks, Output, Transitional, View
from vsync.types import NO_RING, Member


class Primary:
    """One member's part in deciding on primary views.  Sans-I/O: outputs in, events out."""

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
        self._states: dict[Member, StateReport] = {}
        self._answers: dict[Member, bool] = {}  # promised (True) or behind (False)
        self._fresh: dict[Member, bool] = {}
        self.mark = PrimaryMark()
        self._waits = True  # wait_for_all: not in a quorum yet, or not any more
        self._replaced = False  # the state is another's, and no activation has said so yet
        self._levelled = False
        self._activate_sent = False
        self._undecided = UnstableMessages()
        self._again: list[Unstable] = []  # by the donor of this view's plan, to be applied first
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

    def epoch_persisted(self, epoch: int) -> None:
        """The promise asked for by `PersistEpoch` is durable."""
        if (
            self.phase is PrimaryPhase.LEVELLING
            and self.plan is not None
            and self.plan.epoch == epoch
        ):
            self._say(PROMISED, (epoch, self._replaced))
        elif self.phase is PrimaryPhase.ACTIVE and epoch == self.epoch:
            self._say(HELD, (epoch,))

    def activation_applied(self, position: int) -> None:
        """Hear that the activation of this view is in the state, at `position` or before."""
        self.mark.applied(position)
        self._update_mark()

    def voters_changed(self, voters: Terms) -> None:
        """Hear that from the position on that was applied last these vote."""
        if self.phase is PrimaryPhase.ACTIVE and self.mark.changed(voters):
            self._update_mark()

    def durable(self) -> int:
        """Return the position that is durable for good, by the voters of what was applied."""
        return self.mark.reached

    def state_replaced(self) -> None:
        """The state in memory is the one that `Transfer` asked for (not yet durable, perhaps)."""
        self._undecided.replaced()

    def caught_up(self) -> None:
        """What `state_replaced` told of is complete, durable and verified."""
        if self.plan is None or self._levelled:
            return
        self._levelled = True
        self._undecided.complete = self.phase is PrimaryPhase.ACTIVE
        if self.epoch != self.plan.epoch:
            # Until an activation ends the old session this outlasts the view: what clients were
            # told came from another state than this one.
            self._replaced = True
        if self.phase is PrimaryPhase.LEVELLING:
            plan = self.plan
            self._events.append(PersistEpoch(plan.epoch, plan.cluster_id, plan.voters))
        elif self.phase is PrimaryPhase.ACTIVE:
            self._say(CAUGHT_UP, (self.epoch,))

    def state_report_changed(self) -> None:
        """Tell the view again, for instance because patience ran out."""
        if self.phase in (PrimaryPhase.EXCHANGE, PrimaryPhase.INQUORATE):
            self._tell_standing()

    # -- what goes out ---------------------------------------------------------------------------

    def take(self) -> list[PrimaryEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def take_outgoing(self) -> list[bytes]:
        """Return payloads to multicast with guarantee SAFE; put back what the ring refused."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def put_back(self, payloads: list[bytes]) -> None:
        """Keep payloads that the ring had no room for; they go out first the next time."""
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
    def level(self) -> bool:
        """Whether this member has the primary's state and counts."""
        return self.phase is PrimaryPhase.ACTIVE and self.me.name in self.mark.level

    def durable_everywhere(self) -> int:
        """Return the position that every level member of the view has made durable."""
        return self.mark.everywhere()

    def marks(self) -> dict[str, int]:
        """Return each view member's durable mark as the ring last told it, by name."""
        return dict(self.mark.marks)

    def labels(self) -> dict[str, str]:
        """Return what each member of the view said its label is, by name."""
        return {m.name: s.label for m, s in self._states.items()}

    @property
    def level_names(self) -> frozenset[str]:
        """The names of the members that have the primary's state."""
        return self.mark.level

    # -- views -----------------------------------------------------------------------------------

    def _on_transitional(self) -> None:
        if self.phase is PrimaryPhase.ACTIVE:
            self._undecided.view_ends(self.epoch, applies=self._levelled)
        if self.phase is not PrimaryPhase.APART:
            self._events.append(Suspended("the view is changing"))
        self.phase, self.reason = PrimaryPhase.APART, "the view is changing"

    def _on_view(self, view: View) -> None:
        self.phase, self.reason = PrimaryPhase.EXCHANGE, "exchanging states"
        self.ring, self.members = view.ring, view.members
        self.plan = None
        self._states = {}
        self._answers, self._fresh = {}, {}
        self.mark.view_begins()
        self._levelled = self._activate_sent = False
        self._undecided.view_ended()
        self._again = []
        self._outgoing = []
        self._tell_standing()

    def _tell_standing(self) -> None:
        state_report, mine = self.app.state_report(), self._undecided
        reach = mine.reach(state_report.state_epoch)
        state_report = state_report._replace(
            reach=reach, complete=mine.complete, unstable=len(mine), waits=self._waits
        )
        self._say(STATE, (state_report,))

    def _say(self, tag: bytes, fields: tuple[object, ...]) -> None:
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
                self._on_again(d.sender, body)
            elif d.transitional:
                self._count("too_late")
            elif isinstance(body, StateReport):
                self._on_state(d.sender, body)
            elif isinstance(body, Answer):
                self._on_answer(d.sender, body)
            elif isinstance(body, Held):
                if self.phase is PrimaryPhase.ACTIVE:
                    self._hold(frozenset((d.sender.name,)))
            else:
                self._on_caught_up(d.sender)

    def _on_app(self, d: Deliver, payload: bytes) -> None:
        if self.phase is PrimaryPhase.ACTIVE and not d.transitional:
            self._events.append(Ordered(self.epoch, d.ring, d.seq, d.sender, payload))
        elif not (d.transitional and self._undecided.take(d, payload)):
            self._count("app_outside_primary")

    def _on_again(self, sender: Member, unstable: Unstable) -> None:
        if self.plan is not None and sender == self.plan.donor:
            self._again.append(unstable)
        else:
            self._count("again_unexpected")

    def _on_state(self, sender: Member, state_report: StateReport) -> None:
        if self.plan is not None or sender not in self.members:
            return
        self._states[sender] = state_report
        if len(self._states) < len(self.members):
            return
        plan = make_plan(self.members, self._states)
        if refusal := refuse(self.me, self._states[self.me], plan):
            self.phase, self.reason = PrimaryPhase.INQUORATE, refusal
            self._events.append(NeverJoins(refusal))
        elif plan.verdict in (PlanVerdict.WAIT, PlanVerdict.INQUORATE):
            self.phase, self.reason = PrimaryPhase.INQUORATE, plan.reason
            self._waits = self._waits or plan.verdict is PlanVerdict.INQUORATE
            self._events.append(Inquorate(plan.reason))
        else:
            self._adopt(plan)

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        self.phase, self.reason = PrimaryPhase.LEVELLING, plan.reason
        if self.me in plan.level or self._apply_undecided(plan):
            self._levelled = True
            if plan.donor == self.me:
                for unstable in self._undecided.items:
                    self._say(AGAIN, (unstable,))
            self._events.append(PersistEpoch(plan.epoch, plan.cluster_id, plan.voters))
            return
        assert plan.donor is not None
        assert plan.donor != self.me
        self._say(BEHIND, (plan.epoch,))
        self._events.append(Transfer(plan.donor, plan.epoch, plan.position, plan.order))

    def _apply_undecided(self, plan: Plan) -> bool:
        """Apply those undecided messages that the donor has applied, if they lead to its state."""
        if not self._undecided.items:
            return False
        count = self.app.reaches(self._undecided.bodies(), plan.order)
        if count <= 0:  # 0: nothing is missing, so the state differs in its outcomes
            self._count("undecided_do_not_fit")
            return False
        decided = self._undecided.decided(count)
        if any(isinstance(unstable.item, Activation) for unstable in decided):
            self._replaced = False
        self._apply(plan, decided)
        return True

    def _apply(self, plan: Plan, decided: list[Unstable]) -> None:
        self._events.extend(unstable.event(plan.epoch) for unstable in decided)

    def _on_answer(self, sender: Member, answer: Answer) -> None:
        if self.plan is None or answer.epoch != self.plan.epoch:
            return
        if self.phase is not PrimaryPhase.LEVELLING:
            if answer.promised:
                self._on_caught_up(sender)
            return
        self._answers[sender] = answer.promised
        self._fresh[sender] = answer.fresh
        self._maybe_activate(self.plan)

    def _maybe_activate(self, plan: Plan) -> None:
        if plan.donor != self.me or self._activate_sent:
            return
        activation = activate(plan, self.members, self._states, self._answers, self._fresh)
        if activation is not None:
            self._activate_sent = True
            self._say(ACTIVATE, (activation,))

    def _on_activate(self, d: Deliver, activation: Activation) -> None:
        if d.transitional:
            # Some members of the old view may have seen it in time: it is undecided for us.
            if self.plan is not None and self._levelled and len(self._again) == self.plan.unstable:
                self._undecided.take_activation(d, activation, self._again)
            return
        if self.plan is None or self.phase is not PrimaryPhase.LEVELLING:
            self._count("activate_unexpected")
            return
        self.phase, self.reason = PrimaryPhase.ACTIVE, self.plan.reason
        self.epoch, self.activation = activation.epoch, activation
        self._replaced = False
        self._waits = False
        level = frozenset(m.name for m, promised in self._answers.items() if promised)
        arbitrators = frozenset(m.name for m, s in self._states.items() if s.arbitrator)
        self.mark.activated(self.epoch, self.plan.voters, level, arbitrators)
        if self._levelled:
            self._undecided.activated()
        self._apply(self.plan, self._again)
        self._events.append(Activated(d.ring, d.seq, d.sender, activation, self.me.name in level))
        if self._levelled and self.me.name not in level:
            self._say(CAUGHT_UP, (self.epoch,))
        self._hold(level)
        self._update_mark()

    def _on_caught_up(self, sender: Member) -> None:
        if self.phase is PrimaryPhase.ACTIVE and sender.name not in self.mark.level:
            self.mark.level |= {sender.name}
            self._update_mark()
            if sender == self.me and self.plan is not None and self.mark.without_data:
                # An arbitrator may name this member once it has on disk what was ordered till now.
                plan = self.plan
                self._events.append(PersistEpoch(plan.epoch, plan.cluster_id, plan.voters))

    def _hold(self, names: frozenset[str]) -> None:
        """Tell the application of an arbitrator who holds all that this epoch confirms."""
        holders = self.mark.hold(names)
        if self.me.name in self.mark.without_data:
            self._events.append(Holders(self.epoch, holders))

    def _update_mark(self) -> None:
        if self.phase is PrimaryPhase.ACTIVE and (mark := self.mark.news()) is not None:
            self._events.append(DurableMark(mark))

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1
