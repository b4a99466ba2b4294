# mypy: disable-error-code="import-untyped"
"""Sorting for the lifecycle check: the moves of each message together, in bins that fit in memory.

What is shuffled is a piece of a bin: numpy columns in one value, so that Spark handles no single
moves.  The moves of one queue are distributed by message over shares, so that a single queue is no
single bin; moves of a queue as a whole go into each of its shares, before those of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tools.verify.format.moves import CAUSE_SHIFT, FLAG, Op
from tools.verify.input.moves import OPS_OF_QUEUES, ORDINAL_BITS, ORDINAL_MAX, Ints, Moves

MOVES_IN_BIN = 1 << 19  # on average; sorting and checking one bin takes some 100 MB then
SHARES_MAX = 64  # of one queue
_WHOLE = -1  # in the column of places: a move of the whole queue, whose place is in `detail`
_COLUMNS = 7  # queue, share, place, time, what, of, detail; sorted by the first four


def bins_for(moves: int, least: int) -> int:
    """Return the number of bins for so many moves."""
    return max(least, -(-moves // MOVES_IN_BIN))


def split_into_bins(moves: Moves, bins: int) -> Iterator[tuple[int, bytes]]:
    """Yield a piece for each bin that any of the moves belongs to: the bin, and packed columns.

    PUBLISHED is left out: it is no move of a queue.
    """
    columns = _columns_of(moves, min(bins, SHARES_MAX))
    bin_ = _hashed(columns[0] * SHARES_MAX + columns[1], bins)
    order = np.argsort(bin_, kind="stable")
    ends = np.flatnonzero(np.diff(bin_[order])) + 1
    for rows in np.split(order, ends) if len(order) else ():
        yield int(bin_[rows[0]]), columns[:, rows].tobytes()


def arrange(pieces: Iterable[bytes]) -> tuple[Ints, Moves]:
    """Return shares and moves of the pieces of one bin, sorted for `LifecycleCheck`."""
    parts = [np.frombuffer(piece, np.int64).reshape(_COLUMNS, -1) for piece in pieces]
    columns = np.concatenate(parts or [np.empty((_COLUMNS, 0), np.int64)], axis=1)
    order = np.lexsort(columns[3::-1])
    queue, share, place, time, what, of, detail = columns[:, order]
    return share, Moves(
        time >> ORDINAL_BITS, time & ORDINAL_MAX, what & 15, (what & FLAG) != 0,
        (what & 0x70) >> CAUSE_SHIFT, queue, np.where(place == _WHOLE, detail, place), of, detail,
    )  # fmt: skip


def _columns_of(moves: Moves, shares: int) -> Ints:
    whole = np.isin(moves.op, OPS_OF_QUEUES)
    single = moves.take(~whole & (moves.op != Op.PUBLISHED))
    parts = [_columns(single, _hashed(single.seq, shares), single.seq, single.detail)]
    of_queues = moves.take(whole)
    for share in range(shares) if len(of_queues) else ():
        n = len(of_queues)
        parts.append(_columns(of_queues, np.full(n, share), np.full(n, _WHOLE), of_queues.seq))
    return np.concatenate(parts, axis=1)


def _columns(moves: Moves, share: Ints, place: Ints, detail: Ints) -> Ints:
    what = moves.op | (moves.cause << CAUSE_SHIFT) | np.where(moves.flag, FLAG, 0)
    columns: Sequence[Ints] = (moves.queue, share, place, moves.times(), what, moves.of, detail)
    return np.stack(columns)


def _hashed(numbers: Ints, into: int) -> Ints:
    mixed = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (mixed % np.uint64(into)).astype(np.int64)
