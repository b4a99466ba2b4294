"""The vocabulary of process groups: what a group member is told, and what goes over the ring.

A participant of a group is a *member of the ring*: one process, one life of it.  There is no daemon
that several processes share, hence no process numbers beside the member.

On the wire a group payload is

    u8 kind | u32 ring seq of the view it was sent in, low bits | u8 length of name | name | data

The sequence number of the ring is enough to tell whether a payload was ordered in the view that it
was sent in: the rings that one sender installs have rising numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import Enum, IntEnum
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from vsync.errors import FrameError, GroupError
from vsync.types import Guarantee, Member, RingId

GROUP_NAME_BYTES_MAX = 128
HEAD_BYTES_MAX = 6 + GROUP_NAME_BYTES_MAX
"""What a group payload may carry in front of its data."""

_HEAD = Struct("<BIB")  # kind, ring seq, length of the group's name
_LIST = Struct("<BIQ8sI")  # kind, ring seq, position, history, groups
_ENTRY = Struct("<IB")  # rank, length of the group's name
_RING_BITS = 0xFFFFFFFF
POSITION_MAX: Final = 1 << 62


class Level(IntEnum):
    """How much must be true before `mcast` is answered.

    AGREED: it was delivered here, in the one order.  SAFE: and every member of the ring holds it.
    DURABLE: and a majority of the group's members said that it is on their disks.
    """

    AGREED = 1
    SAFE = 2
    DURABLE = 3

    @property
    def guarantee(self) -> Guarantee:
        """What the ring has to promise for this level."""
        return Guarantee.AGREED if self is Level.AGREED else Guarantee.SAFE


AGREED: Final = Level.AGREED
SAFE: Final = Level.SAFE
DURABLE: Final = Level.DURABLE


class Cause(Enum):
    """Why a member is in the list now, or is not any more."""

    JOIN = "join"  # it asked to
    LEAVE = "leave"  # it asked to
    NODEDOWN = "node down"  # it is not in the ring any more, or was away and missed messages
    NODEUP = "node up"  # its ring merged with mine, and it was in the group there
    PROCDOWN = "process down"  # its process ended and a new life of the same name is here


class GroupMessage(NamedTuple):
    """A message of a group of mine, at its place of the order."""

    group: str
    sender: Member
    payload: bytes
    position: int
    level: Level  # AGREED or SAFE; who sends with DURABLE waits for longer, the others see SAFE
    transitional: bool  # the ring was closing: only who came along is known to have it


class GroupView(NamedTuple):
    """The new list of a group of mine; who left is not in it, and who left may be myself.

    `members` are in order of seniority, the same everywhere: who joined first is first.  When two
    sides merge, those of the side with more members of the group come first, and of equal sides
    those of the one with the lowest member.  So the first one always has seen the most.
    """

    group: str
    members: tuple[Member, ...]
    joined: tuple[tuple[Member, Cause], ...]
    left: tuple[tuple[Member, Cause], ...]
    position: int


class GroupSent(NamedTuple):
    """What was accepted under `ticket` has reached the level that was asked for."""

    ticket: int
    position: int


class Failed(NamedTuple):
    """What was accepted under `ticket` was ordered, but cannot reach its level any more."""

    ticket: int
    position: int
    reason: str


class Synced(NamedTuple):
    """All members of `ring` know each other's groups; from here on messages flow."""

    ring: RingId
    members: tuple[Member, ...]
    position: int


GroupEvent = GroupMessage | GroupView | GroupSent | Failed | Synced


class GroupKind(IntEnum):
    """What a group payload is."""

    JOIN = 1
    LEAVE = 2
    DATA = 3
    LIST = 4


KINDS = {int(k): k for k in GroupKind}


def group_name(group: str) -> bytes:
    """The name as it travels.  Raises GroupError for one that cannot."""
    name = group.encode()
    if not 0 < len(name) <= GROUP_NAME_BYTES_MAX:
        raise GroupError(
            f"a group's name has 1 to {GROUP_NAME_BYTES_MAX} bytes of UTF-8, this has {len(name)}"
        )
    return name


def pack_head(kind: GroupKind, ring: RingId, name: bytes) -> bytes:
    """What stands in front of a payload's data."""
    return _HEAD.pack(kind, ring.seq & _RING_BITS, len(name)) + name


def read_head(payload: bytes) -> tuple[int, int, int]:
    """(kind, low bits of the ring's seq, where the data begin) of any payload but a list."""
    try:
        kind, ring, size = _HEAD.unpack_from(payload)
    except struct_error as err:
        raise FrameError("group_short") from err
    end = _HEAD.size + size
    if not size or end > len(payload):
        raise FrameError("group_short")
    return kind, ring, end


def read_name(payload: bytes, end: int) -> str:
    """The group's name, in front of `end`."""
    try:
        return payload[_HEAD.size : end].decode()
    except UnicodeDecodeError as err:
        raise FrameError("group_text") from err


def of_ring(ring: int, found: RingId) -> bool:
    """Was a payload with these low bits sent in this ring?"""
    return ring == found.seq & _RING_BITS


class Listed(NamedTuple):
    """What a member tells after a view change: what it has behind it, and its groups."""

    ring: int
    position: int
    history: bytes  # 8; equal for those who delivered the same up to their last barrier
    groups: tuple[tuple[str, int], ...]  # name, and my place in its order of seniority


def pack_list(
    ring: RingId, position: int, history: bytes, groups: Iterable[tuple[str, int]]
) -> bytes:
    """The list of my groups."""
    entries = list(groups)
    parts = [_LIST.pack(GroupKind.LIST, ring.seq & _RING_BITS, position, history, len(entries))]
    for group, rank in entries:
        name = group_name(group)
        parts += [_ENTRY.pack(rank, len(name)), name]
    return b"".join(parts)


def read_list(payload: bytes) -> Listed:
    """Read a list; anything odd is a FrameError."""
    groups = []
    try:
        _, ring, position, history, count = _LIST.unpack_from(payload)
        at = _LIST.size
        for _ in range(count):
            rank, size = _ENTRY.unpack_from(payload, at)
            at += _ENTRY.size + size
            if not size or at > len(payload):
                raise FrameError("group_short")
            groups.append((payload[at - size : at].decode(), rank))
    except struct_error as err:
        raise FrameError("group_short") from err
    except UnicodeDecodeError as err:
        raise FrameError("group_text") from err
    if at != len(payload):
        raise FrameError("group_trailing")
    if position > POSITION_MAX:
        raise FrameError("group_number")  # nobody could count on from there
    return Listed(ring, position, history, tuple(groups))


def history(synced: RingId, following: RingId) -> bytes:
    """The name of what was delivered by those who went from one barrier's ring to the next ring.

    Members that installed both rings, one after the other, moved together (G2).
    """
    return hashlib.blake2b(repr((*synced, *following)).encode(), digest_size=8).digest()
