# mypy: disable-error-code="import-untyped"
"""Moves of messages as numpy columns, one row a move: no move becomes a Python object.

What a move means is in docs/MEMBERLOG.md; a row of bytes is `format.moves.MOVE`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tools.verify.format.moves import CAUSE_SHIFT, FLAG, Op

Ints: TypeAlias = NDArray[np.int64]

ROW = np.dtype(
    [("what", "u1"), ("index", "<u2"), ("queue", "<u4"), ("seq", "<u8"), ("of", "<u4"),
     ("detail", "<u8")]
)  # fmt: skip
ORDINAL_BITS = 20  # of a time: position in the high bits, index in the batch in the low ones
ORDINAL_MAX = (1 << ORDINAL_BITS) - 1

OPS_OF_MESSAGES = (Op.ENQUEUED, Op.DELIVERED, Op.SETTLED, Op.RETURNED, Op.DROPPED)


def unpack(packed: list[bytes], firsts: list[int]) -> dict[str, NDArray[Any]]:
    """Return the moves of batches as columns, in the order in which the machine made them.

    `firsts` are the first positions of the batches.  A move whose index is outside of its batch
    gets the position that the index stands for.
    """
    counts = np.array([len(one) // ROW.itemsize for one in packed], np.int64)
    rows = np.frombuffer(b"".join(packed), ROW)
    begins = np.cumsum(counts) - counts
    first = np.repeat(np.array(firsts, np.int64), counts)
    what = rows["what"].astype(np.int64)
    index = rows["index"].astype(np.int64)
    return {
        "position": first + ((index - first) & 0xFFFF),
        "ordinal": np.arange(len(rows), dtype=np.int64) - np.repeat(begins, counts),
        "op": what & 15,
        "flag": (what & FLAG) != 0,
        "cause": (what & 0x70) >> CAUSE_SHIFT,
        "queue": rows["queue"].astype(np.int64),
        "seq": rows["seq"].astype(np.int64),
        "of": rows["of"].astype(np.int64),
        "detail": np.ascontiguousarray(rows["detail"]).view("<i8"),  # Spark has no unsigned numbers
    }
