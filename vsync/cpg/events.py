"""The vocabulary of process groups: events for group members, and payloads on the ring.

A participant of a group is a *ring member*: one incarnation of one process. No daemon is shared by
several processes, so there are no process numbers beside the member.

On the wire a group payload is

    u8 kind | u32 ring seq of the view it was sent in, low bits | u8 length of name | name | data

The low bits of the ring's sequence number are enough to tell whether a payload was ordered in the
view in which it was sent, because the rings that one sender installs have rising numbers.
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
"""The longest head in front of the data of a group payload."""

_HEAD = Struct("<BIB")  # kind, ring seq, length of the group's name
_LIST = Struct("<BIQ8sI")  # kind, ring seq, position, history, groups
_ENTRY = Struct("<IB")  # rank, length of the group's name
_RING_BITS = 0xFFFFFFFF
POSITION_MAX: Final = 1 << 62


class Level(IntEnum):
    """The condition that must hold before `mcast` returns.

    AGREED: delivered here, in the total order. SAFE: also, every member of the ring has received
    it. DURABLE: also, a majority of the group's members have reported it on disk.
    """

    AGREED = 1
    SAFE = 2
    DURABLE = 3

    @property
    def guarantee(self) -> Guarantee:
        """The ring's guarantee that this level needs."""
        return Guarantee.AGREED if self is Level.AGREED else Guarantee.SAFE


AGREED: Final = Level.AGREED
SAFE: Final = Level.SAFE
DURABLE: Final = Level.DURABLE


class Cause(Enum):
    """Why a member joined or left a group view."""

    JOIN = "join"  # the member asked to join
    LEAVE = "leave"  # the member asked to join
    NODEDOWN = "node down"  # it is no longer in the ring, or was away and missed messages
    NODEUP = "node up"  # its ring merged with this one, and it was in the group there
    PROCDOWN = "process down"  # its process ended, and a new incarnation of the same name is here


class GroupMessage(NamedTuple):
    """A message of a joined group, at its place in the order."""

    group: str
    sender: Member
    payload: bytes
    position: int
    level: Level  # AGREED or SAFE; a message sent with DURABLE is shown as SAFE
    transitional: bool  # the ring was closing: only members that moved along are known to have it


class GroupView(NamedTuple):
    """The new membership of a joined group; `left` may contain this member itself.

    `members` are in order of seniority, oldest first, the same at every member. When two sides
    merge, the side with more members of the group comes first; of two equal sides, the one that has
    the lowest member. So the first member has always seen the most.
    """

    group: str
    members: tuple[Member, ...]
    joined: tuple[tuple[Member, Cause], ...]
    left: tuple[tuple[Member, Cause], ...]
    position: int


class GroupSent(NamedTuple):
    """The payload accepted under `ticket` has reached its level."""

    ticket: int
    position: int


class Failed(NamedTuple):
    """The payload accepted under `ticket` was ordered, but can no longer reach its level."""

    ticket: int
    position: int
    reason: str


class Synced(NamedTuple):
    """All members of `ring` know each other's groups; messages follow."""

    ring: RingId
    members: tuple[Member, ...]
    position: int


GroupEvent = GroupMessage | GroupView | GroupSent | Failed | Synced


class GroupKind(IntEnum):
    """Kind of a group payload; its first byte."""

    JOIN = 1
    LEAVE = 2
    DATA = 3
    LIST = 4


KINDS = {int(k): k for k in GroupKind}


def group_name(group: str) -> bytes:
    """Encode a group's name. Raises GroupError if it is empty or too long."""
    if not isinstance(group, str):
        raise TypeError(f"a group's name is a str, and this is a {type(group).__name__}")
    name = group.encode()
    if not 0 < len(name) <= GROUP_NAME_BYTES_MAX:
        raise GroupError(
            f"a group's name has 1 to {GROUP_NAME_BYTES_MAX} bytes of UTF-8, this has {len(name)}"
        )
    return name


def pack_head(kind: GroupKind, ring: RingId, name: bytes) -> bytes:
    """Encode the head of a payload."""
    return _HEAD.pack(kind, ring.seq & _RING_BITS, len(name)) + name


def read_head(payload: bytes) -> tuple[int, int, int]:
    """Return (kind, low bits of the ring's seq, offset of the data) of any payload but a list."""
    try:
        kind, ring, size = _HEAD.unpack_from(payload)
    except struct_error as err:
        raise FrameError("group_short") from err
    end = _HEAD.size + size
    if not size or end > len(payload):
        raise FrameError("group_short")
    return kind, ring, end


def read_name(payload: bytes, end: int) -> str:
    """Decode the group's name, which ends at `end`."""
    try:
        return payload[_HEAD.size : end].decode()
    except UnicodeDecodeError as err:
        raise FrameError("group_text") from err


def of_ring(ring: int, found: RingId) -> bool:
    """Whether a payload with these low bits was sent in this ring."""
    return ring == found.seq & _RING_BITS


class GroupList(NamedTuple):
    """A member's groups, sent at the barrier after a view change."""

    ring: int
    position: int
    history: bytes  # 8; equal for members that delivered the same since their last barrier
    groups: tuple[tuple[str, int], ...]  # name, and the sender's rank in its order of seniority


def pack_list(
    ring: RingId, position: int, history: bytes, groups: Iterable[tuple[str, int]]
) -> bytes:
    """Encode this member's groups."""
    entries = list(groups)
    parts = [_LIST.pack(GroupKind.LIST, ring.seq & _RING_BITS, position, history, len(entries))]
    for group, rank in entries:
        name = group_name(group)
        parts += [_ENTRY.pack(rank, len(name)), name]
    return b"".join(parts)


def read_list(payload: bytes) -> GroupList:
    """Decode a list. Raises FrameError if it is malformed."""
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
        raise FrameError("group_number")  # too large to count on from there
    return GroupList(ring, position, history, tuple(groups))


def history(synced: RingId, following: RingId) -> bytes:
    """Return a digest of the two rings between which a member delivered since its last barrier.

    Members that installed both rings, one after the other, delivered the same (G2).
    """
    return hashlib.blake2b(repr((*synced, *following)).encode(), digest_size=8).digest()
