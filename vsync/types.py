"""Value types of the ring: members, ring ids, delivery guarantees.

A *member* is one incarnation of one process; a *ring* is one regular configuration, identified by a
sequence number and the representative that formed it (Totem).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A slots dataclass that the type checker treats as read-only.

    A truly frozen dataclass costs four times as much to build; the checker enforces the same rule
    at no run-time cost.
    """
    return dataclass(slots=True)(cls)


class Member(NamedTuple):
    """One incarnation of a process: its stable name, its incarnation, its ring socket's address."""

    name: str
    incarnation: int
    address: str

    def __str__(self) -> str:
        return self.name


class RingId(NamedTuple):
    """Identity of a ring.  `seq` alone orders; the representative's incarnation makes it unique."""

    seq: int
    rep: str
    rep_incarnation: int

    def __str__(self) -> str:
        return f"{self.seq}.{self.rep}"


NO_RING = RingId(0, "", 0)


class Guarantee(IntEnum):
    """The condition under which a message may be delivered.

    AGREED: everything ordered before it was delivered. SAFE: also, every member of the
    configuration is known to have received it.
    """

    AGREED = 1
    SAFE = 2
