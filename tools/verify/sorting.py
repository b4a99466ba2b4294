# mypy: disable-error-code="import-untyped"
"""Moves as the columns that bring the moves of each message together when they are sorted.

The moves of one queue are shared out by message, so that a single queue is no single task; moves of
a queue as a whole go into each of its shares, before those of messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker.machine.tape import CAUSE_SHIFT, FLAG, Op
from tools.verify.moves import OPS_OF_QUEUES, ORDINAL_BITS, ORDINAL_MAX, Ints, Moves, join

WHOLE = -1  # in the column of places: of the queue as a whole, whose place is in `detail`


def columns_of(moves: Moves, shares: int) -> list[Ints]:
    """Return queue, share, place, time, what, of, detail; sorted by the first four they are what
    `fates` takes.  What was published is not among them: it is no move of a queue.
    """
    whole = np.isin(moves.op, OPS_OF_QUEUES)
    single = moves.take(~whole & (moves.op != Op.PUBLISHED))
    parts = [_columns(single, _share(single.seq, shares), single.seq, single.detail)]
    of_queues = moves.take(whole)
    for share in range(shares) if len(of_queues) else ():
        n = len(of_queues)
        parts.append(_columns(of_queues, np.full(n, share), np.full(n, WHOLE), of_queues.seq))
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _columns(moves: Moves, share: Ints, place: Ints, detail: Ints) -> list[Ints]:
    what = moves.op | (moves.cause << CAUSE_SHIFT) | np.where(moves.flag, FLAG, 0)
    return [moves.queue, share, place, moves.times(), what, moves.of, detail]


def _share(seq: Ints, shares: int) -> Ints:
    mixed = (seq.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (mixed % np.uint64(shares)).astype(np.int64)


def moves_of(columns: Sequence[Ints]) -> tuple[Ints, Moves]:
    """Return the shares and the moves of sorted columns."""
    queue, share, place, time, what, of, detail = (one.astype(np.int64) for one in columns)
    return share, Moves(
        time >> ORDINAL_BITS, time & ORDINAL_MAX, what & 15, (what & FLAG) != 0,
        (what & 0x70) >> CAUSE_SHIFT, queue, np.where(place == WHOLE, detail, place), of, detail,
    )  # fmt: skip


def sort(moves: Moves) -> tuple[Ints, Moves]:
    """Return all moves sorted in this process, in a single share of each queue."""
    columns = columns_of(join([moves]), 1)
    order = np.lexsort(columns[3::-1])
    return moves_of([column[order] for column in columns])
