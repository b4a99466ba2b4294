"""Bodies of the membership frames (join, merge, commit): msgpack, with every shape checked.

Each change of the ring needs only a few of them; `codec` handles the other frames.
"""

from __future__ import annotations

from functools import lru_cache

import msgpack

from vsync.errors import FrameError
from vsync.types import Member, RingId
from vsync.wire.messages import CommitEntry, CommitToken, Join, Merge

MEMBERS_MAX = 128
U64 = (1 << 64) - 1
RING_SEQ_MAX = 1 << 62  # no cluster reaches it; a forged larger one would leave no next number


def join_body(join: Join) -> bytes:
    packed = [
        [list(m) for m in join.proc],
        [list(m) for m in join.failed],
        join.ring_seq,
        join.leaving,
        [list(m) for m in join.reception],
    ]
    return bytes(msgpack.packb(packed))


def merge_body(merge: Merge) -> bytes:
    """The bytes behind the ring block."""
    packed = [[list(m) for m in merge.members], [list(m) for m in merge.reception]]
    return bytes(msgpack.packb(packed))


def commit_body(commit: CommitToken) -> bytes:
    """The bytes behind the ring block."""
    entries = [
        None
        if e is None
        else [list(e.old_ring), e.aru, e.high, e.safe, e.mark, [list(m) for m in e.obliged]]
        for e in commit.entries
    ]
    return bytes(msgpack.packb([[list(m) for m in commit.members], commit.hop, entries]))


@lru_cache(256)  # the same few recur
def read_join(packed: bytes) -> Join:
    proc, failed, ring_seq, leaving, reception = _list(_unpack(packed), 5)
    if type(leaving) is not bool or _number(ring_seq) > RING_SEQ_MAX:
        raise FrameError("control_shape")
    proc_members, failed_members = _members(proc), _members(failed)
    if not leaving and not set(failed_members) <= set(proc_members):
        raise FrameError("join_failed")
    return Join(proc_members, failed_members, _number(ring_seq), leaving, _members(reception))


@lru_cache(256)
def read_merge(ring: RingId, packed: bytes) -> Merge:
    members, reception = _list(_unpack(packed), 2)
    return Merge(ring, _members(members), _members(reception))


def read_commit(ring: RingId, packed: bytes) -> CommitToken:
    members_raw, hop, entries_raw = _list(_unpack(packed), 3)
    members = _members(members_raw)
    entries = tuple(_entry(v) for v in _list(entries_raw, len(members)))
    if not members or list(members) != sorted(set(members)):
        raise FrameError("commit_members")
    if ring.rep != members[0].name or ring.rep_incarnation != members[0].incarnation:
        raise FrameError("commit_rep")
    return CommitToken(ring, members, _number(hop), entries)


def _unpack(packed: bytes) -> object:
    try:
        found: object = msgpack.unpackb(
            packed,
            raw=False,
            max_str_len=255,
            max_bin_len=0,
            max_array_len=MEMBERS_MAX,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as err:
        raise FrameError("control_msgpack", type(err).__name__) from err
    return found


def _list(value: object, size: int | None = None) -> list[object]:
    if not isinstance(value, list) or (size is not None and len(value) != size):
        raise FrameError("control_shape")
    return value


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= U64:
        raise FrameError("control_number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise FrameError("control_text")
    return value


def _member(value: object) -> Member:
    name, incarnation, address = _list(value, 3)
    found = Member(_text(name), _number(incarnation), _text(address))
    if not found.name or not found.name.isprintable():
        raise FrameError("control_name")
    return found


def _members(value: object) -> tuple[Member, ...]:
    return tuple(_member(v) for v in _list(value))


def _ring(value: object) -> RingId:
    seq, rep, incarnation = _list(value, 3)
    return RingId(_number(seq), _text(rep), _number(incarnation))


def _entry(value: object) -> CommitEntry | None:
    if value is None:
        return None
    ring, aru, high, safe, mark, obliged = _list(value, 6)
    entry = CommitEntry(
        _ring(ring), _number(aru), _number(high), _number(safe), _number(mark), _members(obliged)
    )
    if not entry.safe <= entry.aru <= entry.high:
        raise FrameError("commit_order")
    return entry
