"""Numbers and bytes of moves, as in docs/MEMBERLOG.md, "Moves"."""

from __future__ import annotations

import struct
from enum import IntEnum

MOVE = struct.Struct("<BHIQIQ")  # what, index, queue, seq, of, detail
MARK_MASK = 0xFFFF_FFFF  # of a number of which only the low half is recorded
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


_CAUSES = {
    Op.PUBLISHED: 4, Op.ENQUEUED: 1, Op.DELIVERED: 2, Op.SETTLED: 6, Op.RETURNED: 5, Op.DROPPED: 2,
    Op.PURGED: 3, Op.DECLARED: 1, Op.RECOVERED: 1,
}  # fmt: skip
WHATS = frozenset(
    op | cause << CAUSE_SHIFT | flag
    for op, causes in _CAUSES.items()
    for cause in range(causes)
    for flag in (0, FLAG)
)
"""What a move can be, but for PASSED, which `expand` replaces."""

PASSED = Op.ENQUEUED | 1 << CAUSE_SHIFT
DEAD_LETTERED = Op.PUBLISHED | 2 << CAUSE_SHIFT
AGAIN = Op.PUBLISHED | 3 << CAUSE_SHIFT
REJECTED = Op.SETTLED | 2 << CAUSE_SHIFT
LAPSED = Op.SETTLED | 3 << CAUSE_SHIFT
CLOSED = Op.RETURNED | 2 << CAUSE_SHIFT
MEMBER_LOST = Op.RETURNED | 3 << CAUSE_SHIFT
QUEUE_DELETED = Op.PURGED | 1 << CAUSE_SHIFT
FORGOTTEN = Op.PURGED | 2 << CAUSE_SHIFT


def expand(rows: bytes) -> bytes:
    """Return the rows of a batch with an ENQUEUED and a DELIVERED for each PASSED.

    Raises ValueError where such a message was not published in this batch.
    """
    whats = rows[:: MOVE.size]
    if PASSED not in whats and PASSED | FLAG not in whats:
        return rows
    expanded = bytearray()
    copied, number = 0, b""
    for i, what in enumerate(whats):
        begin = i * MOVE.size
        if what & 15 == Op.PUBLISHED:
            number = rows[begin + _SEQ : begin + _SEQ + 4]
        if what & ~FLAG != PASSED:
            continue
        if not number:
            raise ValueError("a message passed a queue before any was published")
        expanded += rows[copied:begin]
        expanded.append(Op.ENQUEUED | (what & FLAG))
        expanded += rows[begin + 1 : begin + _OF] + number
        expanded += rows[begin + _DETAIL : begin + MOVE.size]
        expanded.append(Op.DELIVERED)
        copied = begin + 1
    return bytes(expanded + rows[copied:])
