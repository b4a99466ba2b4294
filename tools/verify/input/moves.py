# mypy: disable-error-code="import-untyped"
"""Moves of messages as columns: numpy arrays, a row a move, so that no move becomes an object.

What a move means is in docs/MEMBERLOG.md; the bytes are those of broker/machine/move_log.py.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from broker.machine.move_log import CAUSE_SHIFT, FLAG, Op

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

ROW = np.dtype(
    [("what", "u1"), ("index", "<u2"), ("queue", "<u4"), ("seq", "<u8"), ("of", "<u4"),
     ("detail", "<u8")]
)  # fmt: skip
ORDINAL_BITS = 20  # of a time: position above, place in the batch below
ORDINAL_MAX = (1 << ORDINAL_BITS) - 1
RANK_SHIFT = 54  # in the number of a message in a priority queue, above it: its rank

OPS_OF_MESSAGES = (Op.ENQUEUED, Op.DELIVERED, Op.SETTLED, Op.RETURNED, Op.DROPPED)
OPS_OF_QUEUES = (Op.PURGED, Op.DECLARED, Op.RECOVERED)


class Moves:
    """Columns of equal length, in the order in which the machine moved."""

    __slots__ = ("cause", "detail", "flag", "of", "op", "ordinal", "position", "queue", "seq")

    def __init__(
        self, position: Ints, ordinal: Ints, op: Ints, flag: Bools, cause: Ints, queue: Ints,
        seq: Ints, of: Ints, detail: Ints,
    ) -> None:  # fmt: skip
        self.position, self.ordinal, self.op, self.flag = position, ordinal, op, flag
        self.cause, self.queue, self.seq, self.of = cause, queue, seq, of
        self.detail = detail  # signed, as Spark has it

    def __len__(self) -> int:
        return len(self.op)

    def take(self, which: Ints | Bools | slice) -> Moves:
        """Return some of the rows."""
        return Moves(*(getattr(self, name)[which] for name in NAMES))

    def times(self) -> Ints:
        """Return when each was: a number that ascends with the order of moves."""
        return (self.position << ORDINAL_BITS) | np.minimum(self.ordinal, ORDINAL_MAX)


NAMES = ("position", "ordinal", "op", "flag", "cause", "queue", "seq", "of", "detail")


def position_of(time: int) -> int:
    """Return the position of a time."""
    return time >> ORDINAL_BITS


def unpack(packed: list[bytes], firsts: list[int]) -> Moves:
    """Return the moves of batches, given those of each and its first position.

    A move whose index is not in its batch gets the position where it would be.
    """
    counts = np.array([len(one) // ROW.itemsize for one in packed], np.int64)
    rows = np.frombuffer(b"".join(packed), ROW)
    begins = np.cumsum(counts) - counts
    first = np.repeat(np.array(firsts, np.int64), counts)
    what = rows["what"].astype(np.int64)
    index = rows["index"].astype(np.int64)
    return Moves(
        first + ((index - first) & 0xFFFF),
        np.arange(len(rows), dtype=np.int64) - np.repeat(begins, counts),
        what & 15,
        (what & FLAG) != 0,
        (what & 0x70) >> CAUSE_SHIFT,
        rows["queue"].astype(np.int64),
        rows["seq"].astype(np.int64),
        rows["of"].astype(np.int64),
        rows["detail"].view("<i8") if rows["detail"].flags.c_contiguous
        else np.ascontiguousarray(rows["detail"]).view("<i8"),
    )  # fmt: skip


def join(parts: list[Moves]) -> Moves:
    """Return the rows of all of them."""
    if not parts:
        return unpack([], [])
    return Moves(*(np.concatenate([getattr(one, name) for one in parts]) for name in NAMES))
