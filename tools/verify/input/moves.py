# mypy: disable-error-code="import-untyped"
"""Moves of messages as numpy columns, one row a move: no move becomes a Python object.

What a move means is in docs/MEMBERLOG.md; a row of bytes is `format.moves.MOVE`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tools.verify.format.moves import CAUSE_SHIFT, FLAG, Op

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

ROW = np.dtype(
    [("what", "u1"), ("index", "<u2"), ("queue", "<u4"), ("seq", "<u8"), ("of", "<u4"),
     ("detail", "<u8")]
)  # fmt: skip
ORDINAL_BITS = 20  # of a time: position in the high bits, index in the batch in the low ones
ORDINAL_MAX = (1 << ORDINAL_BITS) - 1

OPS_OF_MESSAGES = (Op.ENQUEUED, Op.DELIVERED, Op.SETTLED, Op.RETURNED, Op.DROPPED)


class Moves:
    """Columns of equal length, in the order in which the machine made the moves."""

    __slots__ = ("cause", "detail", "flag", "of", "op", "ordinal", "position", "queue", "seq")

    def __init__(
        self, position: Ints, ordinal: Ints, op: Ints, flag: Bools, cause: Ints, queue: Ints,
        seq: Ints, of: Ints, detail: Ints,
    ) -> None:  # fmt: skip
        self.position, self.ordinal, self.op, self.flag = position, ordinal, op, flag
        self.cause, self.queue, self.seq, self.of = cause, queue, seq, of
        self.detail = detail  # signed: Spark has no unsigned numbers

    def __len__(self) -> int:
        return len(self.op)


NAMES = ("position", "ordinal", "op", "flag", "cause", "queue", "seq", "of", "detail")


def unpack(packed: list[bytes], firsts: list[int]) -> Moves:
    """Return the moves of batches, given the packed moves and the first position of each.

    A move whose index is outside of its batch gets the position that the index stands for.
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
    """Return the rows of all parts, one after the other."""
    if not parts:
        return unpack([], [])
    return Moves(*(np.concatenate([getattr(one, name) for one in parts]) for name in NAMES))
