"""What the primary layer says: to the other members in messages, to its application in events.

The closed vocabulary of `vsync.primary`; nothing here decides anything.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from vsync.standing import Standing
from vsync.types import Member, RingId

APP, STATE, PROMISED, BEHIND, ACTIVATE, CAUGHT_UP = (bytes([n]) for n in range(1, 7))


class Activation(NamedTuple):
    """The content of an ACTIVATE: (name, incarnation, fresh) of each member of the view.

    A fresh member did not carry its state over: whatever clients it had are gone.  `cold` says
    that nobody carried live state over, the cluster comes back from its stores.
    """

    epoch: int
    base: int
    members: tuple[tuple[str, int, bool], ...]
    cold: bool
    voters: tuple[str, ...]
    cluster_id: str


class Ordered(NamedTuple):
    """Apply this payload now; it is safe in an active primary view."""

    epoch: int
    ring: RingId
    seq: int
    sender: Member
    payload: bytes


class Activated(NamedTuple):
    """Apply the activation as the next position; the view `ring` is primary from here."""

    ring: RingId
    seq: int
    sender: Member
    activation: Activation
    level: bool


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


class Refused(NamedTuple):
    """This member can never join what it sees; it must stop and say why."""

    reason: str


class DurableMark(NamedTuple):
    """A majority of the voters has made this position durable."""

    position: int


PrimaryEvent = (
    Ordered | Activated | Suspended | Inquorate | PersistEpoch | Transfer | Refused | DurableMark
)


class Answer(NamedTuple):
    """A member's answer to a plan: it promises the epoch, or it is behind."""

    epoch: int
    promised: bool
    fresh: bool


def decode(tag: bytes, payload: bytes) -> tuple[RingId, Standing | Activation | Answer | None]:
    """Return the view that a layer message belongs to and its body; None is CAUGHT_UP."""
    fields = msgpack.unpackb(payload[1:], use_list=False, strict_map_key=True)
    ring = RingId(*fields[0])
    if tag == STATE:
        return ring, Standing(*fields[1])
    if tag == ACTIVATE:
        return ring, Activation(*fields[1])
    if tag == PROMISED:
        return ring, Answer(fields[1], True, bool(fields[2]))
    if tag == BEHIND:
        return ring, Answer(fields[1], False, True)
    if tag == CAUGHT_UP:
        return ring, None
    raise ValueError(tag)
