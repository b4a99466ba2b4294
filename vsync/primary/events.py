"""What the primary layer says: to the other members in messages, to its application in events.

And what it asks of the application.  The closed vocabulary of `vsync.primary.component`; nothing
here decides anything.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

import msgpack

from vsync.primary.state_exchange import StateReport
from vsync.types import Member, RingId

APP, STATE, PROMISED, BEHIND, ACTIVATE, CAUGHT_UP, AGAIN, HELD = (bytes([n]) for n in range(1, 9))


class Activation(NamedTuple):
    """The content of an ACTIVATE: (name, incarnation, fresh) of each member of the view.

    A fresh member did not carry its state over: whatever clients it had are gone.  `cold` says
    that nobody carried live state over, the cluster comes back from its stores.  `keeps`: what is
    applied just before it may have changed the voters, which are then those of the state.
    """

    epoch: int
    members: tuple[tuple[str, int, bool], ...]
    cold: bool
    voters: tuple[str, ...]
    cluster_id: str
    keeps: bool = False


class Ordered(NamedTuple):
    """Apply this payload now; it is safe in an active primary view.

    `decided_by`: not 0 when it was undecided as its own view ended; the epoch that decided it.
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
    level: bool
    decided_by: int = 0


class Suspended(NamedTuple):
    """The view ended: say nothing, drop a transfer under way, wait for what comes next."""

    reason: str


class Inquorate(NamedTuple):
    """The present view may not go on."""

    reason: str


class PersistEpoch(NamedTuple):
    """Make this promise durable, after all that was applied, then call `epoch_persisted`."""

    epoch: int
    cluster_id: str
    voters: tuple[str, ...]


class Transfer(NamedTuple):
    """Get the state at position >= `base` from `donor`, then call `caught_up`.

    `order` is the order chain at the base; what is Ordered meanwhile comes after it.
    """

    donor: Member
    epoch: int
    base: int
    order: bytes


class NeverJoins(NamedTuple):
    """This member can never join what it sees; it must stop and say why."""

    reason: str


class DurableMark(NamedTuple):
    """A majority of the voters has made this position durable."""

    position: int


class Holders(NamedTuple):
    """To an arbitrator: make this record durable, then mark the epoch.  See `quorum.Record`."""

    epoch: int
    names: frozenset[str]


class Held(NamedTuple):
    """A member that caught up holds on disk all that was ordered until it counted as level."""

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
    """A message that was ordered in `ring` and delivered only as that view ended.

    Its donor says it again in the next primary view: there it is applied before the activation.
    """

    epoch: int  # of the view in which it was ordered; an activation's own
    ring: RingId
    seq: int
    sender: Member
    item: bytes | Activation

    def event(self, decided_by: int) -> Ordered | Activated:
        """Return the order to apply it, now that an epoch has decided it."""
        place = self.ring, self.seq, self.sender
        if isinstance(self.item, Activation):
            return Activated(*place, self.item, True, decided_by)
        return Ordered(self.epoch, *place, self.item, decided_by)


class Answer(NamedTuple):
    """A member's answer to a plan: it promises the epoch, or it is behind."""

    epoch: int
    promised: bool
    fresh: bool


class Replicated(Protocol):
    """What the layer asks of the application that it drives."""

    def state_report(self) -> StateReport:
        """Return what the state is worth now."""

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        """Return how many of `payloads`, applied in order, lead to the chain `order`; -1: none."""


class PrimaryPhase(Enum):
    """Where a member is between two primary views."""

    APART = "apart"
    EXCHANGE = "exchange"
    INQUORATE = "inquorate"
    LEVELLING = "levelling"
    ACTIVE = "active"


def decode(
    tag: bytes, payload: bytes
) -> tuple[RingId, StateReport | Activation | Answer | Unstable | Held | None]:
    """Return the view that a layer message belongs to and its body; None is CAUGHT_UP."""
    fields = msgpack.unpackb(payload[1:], use_list=False, strict_map_key=True)
    ring = RingId(*fields[0])
    if tag == STATE:
        return ring, StateReport(*fields[1])
    if tag == ACTIVATE:
        return ring, Activation(*fields[1])
    if tag == PROMISED:
        return ring, Answer(fields[1], True, bool(fields[2]))
    if tag == BEHIND:
        return ring, Answer(fields[1], False, True)
    if tag == CAUGHT_UP:
        return ring, None
    if tag == HELD:
        return ring, Held(fields[1])
    if tag == AGAIN:
        epoch, ring, seq, sender, item = fields[1]
        body = item if isinstance(item, bytes) else Activation(*item)
        return RingId(*fields[0]), Unstable(epoch, RingId(*ring), seq, Member(*sender), body)
    raise ValueError(tag)
