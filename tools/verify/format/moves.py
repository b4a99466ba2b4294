"""Numbers and bytes of moves, as in docs/MEMBERLOG.md, "Moves"."""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache

MOVE = struct.Struct("<BHIQIQ")  # what, index, queue, seq, of, detail
_ROW_BYTES = MOVE.size
FLAG = 0x80
CAUSE_SHIFT = 4
_SEQ, _OF, _DETAIL = 7, 15, 19  # bytes of a row before these fields


class Op(IntEnum):
    """Kinds of moves: the low four bits of what."""

    PUBLISHED = 1
    ENQUEUED = 2
    DELIVERED = 3
    SETTLED = 4
    RETURNED = 5
    DROPPED = 6
    PURGED = 7
    DECLARED = 8
    RECOVERED = 9
    REPEATED = 10
    READER = 11
    READ = 12
    READ_END = 13
    NOTED = 14


CAUSES: dict[int, tuple[str, ...]] = {
    Op.PUBLISHED: ("by a client", "by a transaction", "dead-lettered", "again, by its number",
                   "when its delay was over", "as a dead letter that waited"),
    Op.ENQUEUED: ("",),
    Op.DELIVERED: ("to a consumer", "to a get"),
    Op.SETTLED: ("acknowledged", "sent", "rejected", "of a deleted queue", "by a transaction",
                 "came back too often", "superseded by a newer one of its key"),
    Op.RETURNED: (
        "by a nack or reject", "by a recover", "as its channel closed", "as its member was lost",
        "by a transaction",
    ),
    Op.DROPPED: ("expired", "over the limit", "due", "sent on as a dead letter",
                 "replaced by a newer one of its key"),
    Op.PURGED: ("by a purge", "deleted", "by a cold start"),
    Op.DECLARED: ("", "for delayed messages", "for dead letters that wait"),
    Op.RECOVERED: ("by a cold start",),
    Op.REPEATED: ("its key is that of an earlier one",),
    Op.READER: ("",),
    Op.READ: ("",),
    Op.READ_END: ("acknowledged", "by a nack or reject", "by a recover", "as its channel closed",
                  "as its member was lost", "by a transaction", "of a deleted queue", "sent"),
    Op.NOTED: ("group", "deadline", "time", "refused to its grave", "bound", "unbound", "nowhere",
               "channel closed"),
}  # fmt: skip
"""The causes of each kind of move by number, in words."""
WHATS = frozenset(
    op | cause << CAUSE_SHIFT | flag
    for op, causes in CAUSES.items()
    for cause in range(len(causes))
    for flag in (0, FLAG)
)
"""What a move can be, but for PASSED, which `expand` replaces."""

PASSED = Op.ENQUEUED | 1 << CAUSE_SHIFT
WHATS_RECORDED = WHATS | {PASSED, PASSED | FLAG}
_OPS = bytes(
    0 if what not in WHATS_RECORDED else PASSED if what & ~FLAG == PASSED else what & 15
    for what in range(256)
)
"""By what: the op alone, but for PASSED; 0 for what there is not."""
_ENQUEUED = {PASSED: bytes([Op.ENQUEUED]), PASSED | FLAG: bytes([Op.ENQUEUED | FLAG])}
_DELIVERED = bytes([Op.DELIVERED])
AGAIN = 3  # cause of a PUBLISHED that names an earlier message, and makes none
FORGOTTEN = Op.PURGED | 2 << CAUSE_SHIFT


def count(rows: bytes) -> int:
    """Return how many moves rows stand for: a PASSED for two."""
    ops = ops_of(rows[::_ROW_BYTES])
    return len(ops) + ops.count(PASSED)


@lru_cache(512)  # batches are much alike: of few commands, or of many that do the same
def ops_of(whats: bytes) -> bytes:
    """Return the op of each row by what it is, PASSED where it stands for two.

    Raises ValueError for what is no move, and where such a message was not published before.
    """
    ops = whats.translate(_OPS)
    if 0 in ops:
        raise ValueError("a move of an unknown kind")
    at = ops.find(PASSED)
    if at >= 0 and ops.find(Op.PUBLISHED, 0, at) < 0:
        raise ValueError("a message passed a queue before any was published")
    return ops


def expand(rows: bytes) -> bytes:
    """Return the rows of a batch with an ENQUEUED and a DELIVERED for each PASSED.

    Raises ValueError as `ops_of` does.
    """
    ops = ops_of(rows[::_ROW_BYTES])
    at = ops.find(PASSED)
    if at < 0:
        return rows
    parts: list[bytes] = []
    copied = 0
    while at >= 0:
        begin, number = at * MOVE.size, ops.rfind(Op.PUBLISHED, 0, at) * MOVE.size + _SEQ
        parts += (
            rows[copied:begin], _ENQUEUED[rows[begin]], rows[begin + 1 : begin + _OF],
            rows[number : number + 4], rows[begin + _DETAIL : begin + MOVE.size], _DELIVERED,
        )  # fmt: skip
        copied = begin + 1
        at = ops.find(PASSED, at + 1)
    parts.append(rows[copied:])
    return b"".join(parts)
