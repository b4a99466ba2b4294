"""Small value types of the ring: who, which ring, how sure.

This module knows no protocol.  Names are Totem's: a *member* is one life of one process, a *ring*
is one regular configuration, identified by a sequence number and the representative that formed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A slots dataclass that the type checker treats as read-only.

    A really frozen dataclass costs four times as much to build; the checker enforces the same rule
    for nothing at run time.
    """
    return dataclass(slots=True)(cls)


class Member(NamedTuple):
    """One life of one member: its stable name, its boot incarnation, its ring socket's address."""

    name: str
    incarnation: int
    address: str

    def __str__(self) -> str:
        return self.name


class RingId(NamedTuple):
    """Identity of a ring.  Only `seq` orders; the representative's life makes it unique."""

    seq: int
    rep: str
    rep_incarnation: int

    def __str__(self) -> str:
        return f"{self.seq}.{self.rep}"


NO_RING = RingId(0, "", 0)


class Guarantee(IntEnum):
    """How much must be known before a message may be delivered.

    AGREED: everything ordered before it was delivered.  SAFE: in addition, every member of the
    configuration is known to hold it.
    """

    AGREED = 1
    SAFE = 2
