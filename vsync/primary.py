"""Primary views: which view may go on, from which state, and from which point in the order.

The layer sits between the ring (`node`) and a replicated application.  It knows neither sockets
nor clocks nor what the application replicates.  Per regular view:

1. *Exchange*: each member multicasts its `Standing` (safe).  When the last one is delivered all
   members compute the same plan (`standing.make_plan`).
2. *Level*: members that stand where the donor stands are level.  A member of the donor's last
   view that merely had not learnt that its last messages were safe applies exactly those of them
   that the donor applied.  Any other member asks the donor for its state (`Transfer`).
3. *Promise*: a level member makes the epoch record durable (`PersistEpoch`, which also makes its
   state at the base durable) and multicasts PROMISED.
4. *Activate*: with promises of a majority of the voters, and an answer of every member that might
   still be level, the donor multicasts ACTIVATE.  Delivered in the regular view it is the first
   command of the epoch, at the same position everywhere.

What was delivered in a view that is not active, or in a transitional configuration and not applied
by any member of the next primary, is dropped by all; its origin submits it again.  So no member
ever holds a suffix that its primary might not have ("apply on safe").

Only a member that is level counts for the durable mark.  An inquorate member orders nothing,
applies nothing and says nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

import msgpack

from vsync.events import Deliver, Marks, Output, Transitional, View
from vsync.primary_events import (
    ACTIVATE,
    APP,
    BEHIND,
    CAUGHT_UP,
    PROMISED,
    STATE,
    Activated,
    Activation,
    Answer,
    DurableMark,
    Inquorate,
    Ordered,
    PersistEpoch,
    PrimaryEvent,
    Refused,
    Suspended,
    Transfer,
    decode,
)
from vsync.standing import Plan, Standing, Verdict, durable_mark, majority, make_plan
from vsync.types import NO_RING, Member, RingId


class Replicated(Protocol):
    """What the layer asks of the application that it drives."""

    def standing(self) -> Standing:
        """Return what the state is worth now."""

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        """Return how many of `payloads`, applied in order, lead to the chain `order`; -1: none."""


class Phase(Enum):
    """Where a member is between two primary views."""

    APART = "apart"
    EXCHANGE = "exchange"
    INQUORATE = "inquorate"
    LEVELLING = "levelling"
    ACTIVE = "active"


class _Pending(NamedTuple):
    ring: RingId
    seq: int
    sender: Member
    item: bytes | Activation


class Primary:
    """One member's part in deciding on primary views.  Sans-I/O: outputs in, events out."""

    def __init__(self, me: Member, app: Replicated) -> None:
        self.me = me
        self.app = app
        self.phase = Phase.APART
        self.reason = "no view yet"
        self.ring = NO_RING
        self.members: tuple[Member, ...] = ()
        self.plan: Plan | None = None
        self.epoch = 0
        self.activation: Activation | None = None
        self.counters: dict[str, int] = {}
        self._states: dict[Member, Standing] = {}
        self._answers: dict[Member, bool] = {}  # promised (True) or behind (False)
        self._fresh: dict[Member, bool] = {}
        self._level: frozenset[str] = frozenset()
        self._marks: dict[str, int] = {}
        self._mark = 0
        self._replaced = False  # the state is another's, and no activation has said so yet
        self._levelled = False
        self._activate_sent = False
        self._pending: list[_Pending] = []
        self._collect = False
        self._events: list[PrimaryEvent] = []
        self._outgoing: list[bytes] = []

    # -- what comes in ---------------------------------------------------------------------------

    def on_output(self, output: Output) -> None:
        """Take one output of the node, in order."""
        if isinstance(output, Deliver):
            self._on_deliver(output)
        elif isinstance(output, Marks):
            self._marks = output.marks
            self._update_mark()
        elif isinstance(output, View):
            self._on_view(output)
        elif isinstance(output, Transitional):
            self._on_transitional()

    def epoch_persisted(self, epoch: int) -> None:
        """The promise asked for by `PersistEpoch` is durable."""
        if self.phase is Phase.LEVELLING and self.plan is not None and self.plan.epoch == epoch:
            self._say(PROMISED, (epoch, self._replaced))

    def caught_up(self) -> None:
        """The transfer asked for by `Transfer` is complete, durable and verified."""
        if self.plan is None or self._levelled:
            return
        self._levelled = True
        if self.epoch != self.plan.epoch:
            # Until an activation ends the old session this outlasts the view: what clients were
            # told came from another state than this one.
            self._replaced = True
        if self.phase is Phase.LEVELLING:
            plan = self.plan
            self._events.append(PersistEpoch(plan.epoch, plan.cluster_id, plan.voters))
        elif self.phase is Phase.ACTIVE:
            self._say(CAUGHT_UP, (self.epoch,))

    def standing_changed(self) -> None:
        """Tell the view again, for instance because patience ran out."""
        if self.phase in (Phase.EXCHANGE, Phase.INQUORATE):
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
        return self.phase is Phase.ACTIVE

    @property
    def level(self) -> bool:
        """Whether this member has the primary's state and counts."""
        return self.phase is Phase.ACTIVE and self.me.name in self._level

    def durable_everywhere(self) -> int:
        """Return the position that every level member of the view has made durable."""
        return min((self._marks.get(name, 0) for name in self._level), default=0)

    def marks(self) -> dict[str, int]:
        """Return each view member's durable mark as the ring last told it, by name."""
        return dict(self._marks)

    def labels(self) -> dict[str, str]:
        """Return what each member of the view said its label is, by name."""
        return {m.name: s.label for m, s in self._states.items()}

    @property
    def level_names(self) -> frozenset[str]:
        """The names of the members that have the primary's state."""
        return self._level

    # -- views -----------------------------------------------------------------------------------

    def _on_transitional(self) -> None:
        self._collect = self.phase is Phase.ACTIVE and self.me.name in self._level
        if self.phase is not Phase.APART:
            self._events.append(Suspended("the view is changing"))
        self.phase, self.reason = Phase.APART, "the view is changing"

    def _on_view(self, view: View) -> None:
        self.phase, self.reason = Phase.EXCHANGE, "exchanging states"
        self.ring, self.members = view.ring, view.members
        self.plan = None
        self._states = {}
        self._answers, self._fresh = {}, {}
        self._level = frozenset()
        self._marks = {}
        self._levelled = self._activate_sent = False
        self._collect = False
        self._outgoing = []
        self._tell_standing()

    def _tell_standing(self) -> None:
        standing = self.app.standing()
        self._say(STATE, (standing,))

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
            elif d.transitional:
                self._count("too_late")
            elif isinstance(body, Standing):
                self._on_state(d.sender, body)
            elif isinstance(body, Answer):
                self._on_answer(d.sender, body)
            else:
                self._on_caught_up(d.sender)

    def _on_app(self, d: Deliver, payload: bytes) -> None:
        if self.phase is Phase.ACTIVE and not d.transitional:
            self._events.append(Ordered(self.epoch, d.ring, d.seq, d.sender, payload))
        elif d.transitional and self._collect:
            self._pending.append(_Pending(d.ring, d.seq, d.sender, payload))
        else:
            self._count("app_outside_primary")

    def _on_state(self, sender: Member, standing: Standing) -> None:
        if self.plan is not None or sender not in self.members:
            return
        self._states[sender] = standing
        if len(self._states) < len(self.members):
            return
        plan = make_plan(self.members, self._states)
        if self.me in plan.foreign:
            own = self._states[self.me].cluster_id
            self.phase, self.reason = Phase.INQUORATE, "store of another cluster"
            self._events.append(
                Refused(
                    f"this store belongs to cluster {own}, the members here to {plan.cluster_id}"
                )
            )
        elif plan.verdict in (Verdict.WAIT, Verdict.INQUORATE):
            self.phase, self.reason = Phase.INQUORATE, plan.reason
            self._events.append(Inquorate(plan.reason))
        else:
            self._adopt(plan)

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        self.phase, self.reason = Phase.LEVELLING, plan.reason
        reached = self._apply_pending(plan)
        self._pending = []
        if self.me in plan.level or reached:
            self._levelled = True
            self._events.append(PersistEpoch(plan.epoch, plan.cluster_id, plan.voters))
            return
        assert plan.donor is not None
        assert plan.donor != self.me
        self._say(BEHIND, (plan.epoch,))
        self._events.append(Transfer(plan.donor, plan.epoch, plan.position, plan.order))

    def _apply_pending(self, plan: Plan) -> bool:
        """Apply those undecided messages that the donor has applied, if they lead to its state."""
        if self.me in plan.level or not self._pending:
            return False
        count = self.app.reaches([p.item for p in self._pending], plan.order)
        if count <= 0:  # 0: nothing is missing, so the state differs in its outcomes
            self._count("pending_do_not_fit")
            return False
        for p in self._pending[:count]:
            if isinstance(p.item, Activation):
                event: PrimaryEvent = Activated(p.ring, p.seq, p.sender, p.item, True)
                self.epoch = p.item.epoch
                self._replaced = False
            else:
                event = Ordered(self.epoch, p.ring, p.seq, p.sender, p.item)
            self._events.append(event)
        return True

    def _on_answer(self, sender: Member, answer: Answer) -> None:
        if self.plan is None or answer.epoch != self.plan.epoch:
            return
        if self.phase is not Phase.LEVELLING:
            if answer.promised:
                self._on_caught_up(sender)
            return
        self._answers[sender] = answer.promised
        self._fresh[sender] = answer.fresh
        self._maybe_activate(self.plan)

    def _maybe_activate(self, plan: Plan) -> None:
        if plan.donor != self.me or self._activate_sent:
            return
        promised = {m.name for m, yes in self._answers.items() if yes}
        if len([v for v in plan.voters if v in promised]) < majority(len(plan.voters)):
            return
        # Whoever may be level without a transfer is waited for, so that a slow disk does not cost
        # a member its clients; it answers within one fsync or leaves the view.
        awaited = [m for m, s in self._states.items() if s.ran or m in plan.level]
        if any(m not in self._answers and m not in plan.foreign for m in awaited):
            return
        self._activate_sent = True
        members = tuple((m.name, m.incarnation, self._fresh.get(m, True)) for m in self.members)
        carried = any(
            self._states[m].live and not self._fresh[m] for m, yes in self._answers.items() if yes
        )
        self._say(
            ACTIVATE,
            (
                Activation(
                    plan.epoch, plan.position, members, not carried, plan.voters, plan.cluster_id
                ),
            ),
        )

    def _on_activate(self, d: Deliver, activation: Activation) -> None:
        if d.transitional:
            # Some members of the old view may have seen it in time: it is undecided for us.
            if self.plan is not None and self._levelled:
                self._collect = True
                self._pending.append(_Pending(d.ring, d.seq, d.sender, activation))
            return
        if self.plan is None or self.phase is not Phase.LEVELLING:
            self._count("activate_unexpected")
            return
        self.phase, self.reason = Phase.ACTIVE, self.plan.reason
        self.epoch, self.activation = activation.epoch, activation
        self._replaced = False
        self._level = frozenset(m.name for m, promised in self._answers.items() if promised)
        self._mark = 0
        self._events.append(
            Activated(d.ring, d.seq, d.sender, activation, self.me.name in self._level)
        )
        if self._levelled and self.me.name not in self._level:
            self._say(CAUGHT_UP, (self.epoch,))
        self._update_mark()

    def _on_caught_up(self, sender: Member) -> None:
        if self.phase is Phase.ACTIVE:
            self._level |= {sender.name}
            self._update_mark()

    def _update_mark(self) -> None:
        if self.phase is not Phase.ACTIVE or self.activation is None:
            return
        mark = durable_mark(self._marks, self.activation.voters, self._level)
        # Before the activation itself is durable on a majority, an older epoch's suffix could
        # still win a later election: nothing below it may be confirmed in this epoch (Raft 5.4.2).
        if mark > self._mark and mark > self.activation.base:
            self._mark = mark
            self._events.append(DurableMark(mark))

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1
