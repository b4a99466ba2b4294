"""Messages and events of the primary layer: the closed vocabulary of `vsync.primary.component`.

Messages go to the other members over the ring, and events go to the application. `Replicated` is
the interface that the application must provide.
"""

from __future__ import annotations

from enum import Enum
from itertools import islice
from typing import NamedTuple, Protocol

import msgpack

from vsync.quorum.counting import Voter
from vsync.quorum.voter_set import Terms
from vsync.types import Member, RingId

APP, STATE, PROMISED, BEHIND, ACTIVATE, CAUGHT_UP, REPROPOSED, HELD = (
    bytes([n]) for n in range(1, 9)
)
"""First byte of each ring payload: the kind of the message."""


class StateReport(NamedTuple):
    """What one member has, sent to all members of a new view.

    - `filled`: the store is usable; false for an empty, joining or inconsistent one, which has no
      vote.
    - `live`: the state in memory was active in this incarnation's last primary view. `ran`: this
      incarnation has been active at all.
    - `patient`: wait a moment for more members before a first start or a restart.
    - `chain` is a hash of history with its outcomes, `order` one of the ordered bytes only, so that
      a member that lacks the last messages can tell whether its unstable ones fit.
    - `label` is the application's, for people (where its clients connect, for example).
    - `requested`: the voter set options of this member's operator.
    - `arbitrator`: this member has no state; its epoch is that of its record, and `holders` are the
      names in that record.
    - `waits`: wait_for_all applies, because this member is not in a quorum yet, or no longer.
    - `version`: of the payloads in force in the state (0: none yet). The member reads and executes
      `version_min` to `version_max` (0: it reads none and fits any).
    - `settings`: (name, value, whether it must be equal) for the settings of each member's
      operator.
    - `transient`: the state is in memory only.
    - `shutdown_id`: the id under which this store was marked clean, if it was, by the shutdown of
      all members or by an operator.
    - `vote`: this member holds the third vote of its pair.

    The primary layer fills in `reach`, `complete` and `unstable`: the highest epoch that the state
    or an unstable message belongs to; whether state and unstable messages together are everything
    that any member applied in that epoch's view; and how many unstable messages there are.
    """

    filled: bool
    live: bool
    ran: bool
    patient: bool
    cluster_id: str
    proposal: str
    voters: Terms
    size: int
    promised_epoch: int
    state_epoch: int
    position: int
    chain: bytes
    order: bytes
    label: str
    reach: int = 0
    complete: bool = False
    unstable: int = 0
    requested: Terms = ()
    arbitrator: bool = False
    holders: tuple[str, ...] = ()
    waits: bool = False
    version: int = 0
    version_min: int = 0
    version_max: int = 0
    settings: tuple[tuple[str, str, bool], ...] = ()
    transient: bool = False
    shutdown_id: str = ""
    vote: bool = False
    took_nothing: bool = False
    """For one of a pair that continued alone: no client has seen anything done since."""

    def voter(self) -> Voter:
        """Return the part of the report that counting votes needs."""
        return Voter(
            self.arbitrator, self.state_epoch, self.position, self.voters, self.holders,
            self.requested, self.waits, self.vote,
        )  # fmt: skip


class Activation(NamedTuple):
    """The first command of an epoch; `members` are (name, incarnation, fresh) of the view.

    `fresh`: the member did not carry its state over, so its clients are disconnected. `cold`: no
    member carried live state over, and the cluster restarts from its stores. `keeps`: unstable
    messages are applied just before the activation and may change the voters; then the voters in
    the state count, not `voters`. `version`: that of the payloads in force, unless the state names
    one.
    """

    epoch: int
    members: tuple[tuple[str, int, bool], ...]
    cold: bool
    voters: Terms
    cluster_id: str
    keeps: bool = False
    version: int = 0


class Ordered(NamedTuple):
    """Apply this payload now: it is safe in an active primary view.

    `decided_by`: the epoch that decided it, if it was unstable at the end of its own view; else 0.
    """

    epoch: int
    ring: RingId
    seq: int
    sender: Member
    payload: bytes
    decided_by: int = 0


class Activated(NamedTuple):
    """Apply the activation as the next position; the view `ring` is primary from here."""

    ring: RingId
    seq: int
    sender: Member
    activation: Activation
    caught_up: bool
    decided_by: int = 0


class Suspended(NamedTuple):
    """The view ended: stop replying to clients, drop any transfer, wait for the next view."""

    reason: str


class Inquorate(NamedTuple):
    """The current view has no quorum."""

    reason: str


class PersistEpoch(NamedTuple):
    """Make this promise durable, after everything applied so far, then call `persisted(request)`.

    Requests are numbered, so that the completion of one is never taken for that of another.
    """

    epoch: int
    cluster_id: str
    voters: Terms
    request: int


class Transfer(NamedTuple):
    """Fetch the state at position >= `base` from `donor`, then call `caught_up`.

    `order` is the order chain at the base; messages Ordered meanwhile follow it. `aside`: this
    member's own state is of the side of a pair that is not kept. It must first make durable that it
    has no vote, or it could continue by that vote once more.
    """

    donor: Member
    epoch: int
    base: int
    order: bytes
    aside: bool = False


class NeverJoins(NamedTuple):
    """This member can never join the members it sees; it must stop and report the reason.

    `settings`: because of its operator's settings.
    """

    reason: str
    settings: bool = False


class DurableMark(NamedTuple):
    """A quorum of the voters has made this position durable."""

    position: int


class Holders(NamedTuple):
    """For an arbitrator: make this `EpochRecord` durable, then set the mark to the epoch."""

    epoch: int
    names: frozenset[str]


class Held(NamedTuple):
    """A late member has on disk everything that was ordered before it was counted as caught up."""

    epoch: int


PrimaryEvent = (
    Ordered
    | Activated
    | Suspended
    | Inquorate
    | PersistEpoch
    | Transfer
    | NeverJoins
    | DurableMark
    | Holders
)


class Unstable(NamedTuple):
    """A message of `ring` that was not known to be safe when that view ended.

    The donor re-proposes it in the next view, where it is applied just before the activation.
    """

    epoch: int  # of the view in which it was ordered; an activation's own
    ring: RingId
    seq: int
    sender: Member
    item: bytes | Activation

    def event(self, decided_by: int) -> Ordered | Activated:
        """Return the event that applies it, decided by this epoch."""
        place = self.ring, self.seq, self.sender
        if isinstance(self.item, Activation):
            return Activated(*place, self.item, True, decided_by)
        return Ordered(self.epoch, *place, self.item, decided_by)


class PlanReply(NamedTuple):
    """A member's reply to a plan: it promises the epoch, or must fetch the state first."""

    epoch: int
    promised: bool
    fresh: bool


class Replicated(Protocol):
    """The interface that the layer needs from the application it drives."""

    def state_report(self) -> StateReport:
        """Return the report on the current state."""

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        """Return how many of `payloads`, applied in order, yield the chain `order`; -1: none."""


class PrimaryPhase(Enum):
    """Where a member is on its way to a primary view."""

    APART = "apart"
    EXCHANGE = "exchange"
    INQUORATE = "inquorate"
    CATCHING_UP = "levelling"  # the value is part of status and trace formats
    ACTIVE = "active"


def decode(
    tag: bytes, payload: bytes
) -> tuple[RingId, StateReport | Activation | PlanReply | Unstable | Held | None]:
    """Return the view that a message belongs to, and its body; None for CAUGHT_UP.

    A report of a later release may have more fields; this release ignores them.
    """
    fields = msgpack.unpackb(payload[1:], use_list=False, strict_map_key=True)
    ring = RingId(*fields[0])
    if tag == STATE:
        return ring, StateReport(*islice(fields[1], len(StateReport._fields)))
    if tag == ACTIVATE:
        return ring, Activation(*fields[1])
    if tag == PROMISED:
        return ring, PlanReply(fields[1], True, bool(fields[2]))
    if tag == BEHIND:
        return ring, PlanReply(fields[1], False, True)
    if tag == CAUGHT_UP:
        return ring, None
    if tag == HELD:
        return ring, Held(fields[1])
    if tag == REPROPOSED:
        epoch, ring, seq, sender, item = fields[1]
        body = item if isinstance(item, bytes) else Activation(*item)
        return RingId(*fields[0]), Unstable(epoch, RingId(*ring), seq, Member(*sender), body)
    raise ValueError(tag)
