"""Moves of messages over time, counted by kind and by slice of time.

For pictures, not for the verdict.  Each position is counted once, in the file that is its source in
the canonical history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tools.verify.checks.canonical_history import plan
from tools.verify.checks.views_and_segments import primaries
from tools.verify.format.moves import CAUSE_SHIFT, FLAG, MOVE, Op
from tools.verify.format.records import Batch, Record
from tools.verify.input.ranges_of_file import FileRange, RangeCursor
from tools.verify.input.rows import Row
from tools.verify.input.segments import records_in
from tools.verify.input.tables import batch_of
from tools.verify.spark_session import in_tasks

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

_SCHEMA = "number int, what int, n bigint"
_CAUSES: dict[tuple[int, int], str] = {
    (Op.RETURNED, 0): "requeued by its consumer (nack, reject)",
    (Op.RETURNED, 1): "taken back (recover)",
    (Op.RETURNED, 2): "its channel or connection closed",
    (Op.RETURNED, 3): "its member was lost",
    (Op.RETURNED, 4): "requeued in a transaction",
}


class MoveCount(NamedTuple):
    """Number of moves of a kind in one slice of time; `what` as in a row of moves."""

    number: int
    what: int
    n: int

    @property
    def op(self) -> int:
        """Return the kind without its cause."""
        return self.what & ((1 << CAUSE_SHIFT) - 1)

    @property
    def cause(self) -> str:
        """Return why a message was returned to its queue, "" for other moves."""
        return _CAUSES.get((self.op, (self.what & ~FLAG) >> CAUSE_SHIFT), "")

    @property
    def redelivered(self) -> bool:
        """Whether a message was delivered that had been delivered before."""
        return self.op == Op.DELIVERED and bool(self.what & FLAG)


def return_causes(move_counts: Iterable[MoveCount]) -> dict[str, int]:
    """Return how many messages were returned, by cause, the most frequent first."""
    sums: Counter[str] = Counter()
    for one in move_counts:
        if one.cause:
            sums[one.cause] += one.n
    return dict(sums.most_common())


def count_moves(
    spark: SparkSession, rows: list[Row], begin_us: int, slice_us: int
) -> list[MoveCount]:
    """Count the moves of the canonical history of `rows`, in Spark's tasks."""
    from pyspark.sql import functions as f

    of: dict[str, list[FileRange]] = {}
    for stretch in plan(rows, primaries(rows)):
        of.setdefault(stretch.file, []).append(stretch.file_range)
    if not of:
        return []
    work = partial(_count, begin_us=begin_us, slice_us=slice_us)
    counted = in_tasks(spark, list(of.items()), work, _SCHEMA)
    sums = counted.groupBy("number", "what").agg(f.sum("n").alias("n")).collect()
    return sorted(MoveCount(row.number, row.what, row.n) for row in sums)


def _count(
    files: Iterable[tuple[str, list[FileRange]]], begin_us: int, slice_us: int
) -> Iterator[pyarrow.RecordBatch]:
    """Count the moves of segments; what cannot be read, or was archived meanwhile, has none."""
    sums: Counter[tuple[int, int]] = Counter()
    for file, ranges in files:
        with suppress(OSError):
            sums += sums_of(records_in(file), ranges, begin_us, slice_us)
    yield batch_of(((*key, n) for key, n in sums.items()), _SCHEMA)


def sums_of(
    records: Iterable[Record], ranges: Iterable[FileRange], begin_us: int, slice_us: int
) -> Counter[tuple[int, int]]:
    """Return how many moves of each kind the batches in the ranges made, by slice of time."""
    sums: Counter[tuple[int, int]] = Counter()
    waiting: dict[int, bytearray] = {}
    cursor = RangeCursor(ranges)
    for record in records:
        cursor.advance(record)
        if isinstance(record, Batch) and record.moves and cursor.covers(record.first_position):
            number = max(record.time_us - begin_us, 0) // slice_us
            waiting.setdefault(number, bytearray()).extend(record.moves[:: MOVE.size])
    for number, whats in waiting.items():
        for what, count in Counter(whats).items():
            sums[number, what] += count
    return sums
