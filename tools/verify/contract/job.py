# mypy: disable-error-code="import-untyped"
"""The queue contract in Spark: rules of segments, then the lifecycle of each message.

Two jobs.  The first checks segments where they lie, some segments per task, without a shuffle.  The
second shuffles the moves of each message together, in bins, and checks each bin, sorted.  Neither
collects what grows with traffic, nor holds more than a segment, or a bin, in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.verify.checks.canonical_history import Gap, Stretch, gaps, plan
from tools.verify.checks.views_and_segments import PrimaryView
from tools.verify.contract.explain import ContextLine, describe_breaches, find_context
from tools.verify.contract.message_lifecycle import LifecycleCheck, QueueRecovery, check_recoveries
from tools.verify.contract.rules import Breach, first_by_rule
from tools.verify.contract.segment import SegmentResult, check_segment, moves_within
from tools.verify.contract.segment_rules import HighWater
from tools.verify.findings import Finding
from tools.verify.input.ranges_of_file import FileRange
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.segments import records_in
from tools.verify.input.tables import batch_of
from tools.verify.spark_session import computed_once, in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

    from tools.verify.spark_session import Batches

_GAPS_TOLD = 4
_LINES_MAX = 20_000  # some for each rule, file and message
_LINES = "which int, kind string, position bigint, ordinal bigint, text string"
FINDINGS_MAX = 200  # of one kind that the driver takes from the tasks

_RESULTS = (
    "kind string, name string, position bigint, ordinal bigint, queue bigint, seq bigint, "
    "channel bigint, since bigint, n bigint, more string"
)
_PIECES = "bin int, moves binary"


class SegmentTask(NamedTuple):
    """One segment to be checked."""

    file: str
    following: str  # the next segment of the incarnation, "" = none at hand
    ranges: list[FileRange]  # for which it is the source of the canonical history


@dataclass(slots=True)
class ContractResult:
    """What the checks of the contract found, and how much they examined."""

    breaches: list[tuple[Breach, int]] = field(default_factory=list)
    segments: int = 0
    moves: int = 0  # of all segments that were checked
    within: int = 0  # those of messages, in the canonical history
    checkpoints: int = 0
    replayed: int = 0  # moves
    blobs: int = 0
    compared: int = 0
    messages: int = 0
    examined: int = 0  # moves of messages, in the lifecycle check
    high_waters: int = 0
    recoveries: int = 0
    stretches: list[Stretch] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


def tasks_for(
    rows: Sequence[Row], stretches: Iterable[Stretch], *, everywhere: bool
) -> list[SegmentTask]:
    """Return the segments to check: sources of the canonical history, or `everywhere`, which finds
    what one member alone states of its queues.
    """
    segments = sorted(
        (row for row in rows if row.kind == SEGMENT),
        key=lambda row: (row.member, row.incarnation, row.segment),
    )
    next_of = {(row.member, row.incarnation, row.segment - 1): row.file for row in segments}
    of: dict[str, list[FileRange]] = {}
    for stretch in stretches:
        of.setdefault(stretch.file, []).append(stretch.file_range)
    return [
        SegmentTask(
            row.file, next_of.get((row.member, row.incarnation, row.segment), ""),
            of.get(row.file, []),
        )
        for row in segments
        if row.file in of or everywhere
    ]  # fmt: skip


def check_contract(
    spark: SparkSession,
    rows: Sequence[Row],
    primaries: dict[int, PrimaryView],
    *,
    everywhere: bool = False,
    little: bool = False,
) -> ContractResult:
    """Check the queue contract; `rows` are the control rows of all segments at hand.

    `everywhere`: in the logs of all members, not in one for each position.
    `little`: the segments are small, so the driver has the results of all of them.
    """
    found = ContractResult(stretches=plan(rows, primaries))
    found.gaps = gaps(found.stretches)
    tasks = tasks_for(rows, found.stretches, everywhere=everywhere)
    if not tasks:
        return found
    checked = in_tasks(spark, tasks, _check_segments, _RESULTS)
    with computed_once(checked, little=little) as results:
        _add_segment_results(results, found)
    _add_lifecycles(spark, tasks, found)
    found.segments = len(tasks)
    found.breaches = merge(found.breaches)
    return found


def explain(spark: SparkSession, found: ContractResult, rows: Sequence[Row]) -> list[Finding]:
    """Return the breaches as findings, with their context in the logs."""
    if not found.breaches:
        return []
    tasks = tasks_for(rows, found.stretches, everywhere=False)
    wanted = [breach for breach, _ in found.breaches]
    lines = in_tasks(spark, tasks, _FindContext(wanted), _LINES)
    context = lines.dropDuplicates().orderBy("which", "position").limit(_LINES_MAX).collect()
    return describe_breaches(found.breaches, [ContextLine(*row) for row in context], rows)


def limits(found: ContractResult) -> Iterator[str]:
    """Yield, for people, what of the contract could not be checked."""
    for gap in found.gaps[:_GAPS_TOLD]:
        yield (
            f"positions {gap.first} to {gap.last} are in no log at hand: "
            "what happened to messages there is not known"
        )
    if len(found.gaps) > _GAPS_TOLD:
        yield f"{len(found.gaps) - _GAPS_TOLD} more such gaps"


def merge(breaches: Iterable[tuple[Breach, int]]) -> list[tuple[Breach, int]]:
    """Return the first breach of each rule, with the number of all its breaches."""
    result = list(breaches)
    firsts = first_by_rule([breach for breach, _ in result])
    return [
        (breach, sum(n for other, n in result if other.rule == breach.rule)) for breach, _ in firsts
    ]


def _check_segments(tasks: Iterable[SegmentTask]) -> Batches:
    for task in tasks:
        following = records_in(task.following) if task.following else ()
        result = check_segment(records_in(task.file), following, task.ranges)
        yield batch_of(_rows_of(result), _RESULTS)


def _rows_of(result: SegmentResult) -> Iterator[tuple[Any, ...]]:
    for breach, n in result.breaches:
        yield ("breach", *breach[:-1], n, breach.more)
    for one in result.high_waters:
        yield ("reach", one.what, one.position, one.at, one.of, one.first, one.highest, 0, 1, "")
    for name in ("moves", "within", "checkpoints", "blobs", "replayed", "compared"):
        yield ("count", name, 0, 0, 0, 0, 0, 0, getattr(result, name), "")


def _add_segment_results(results: DataFrame, found: ContractResult) -> None:
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    breaches = results.filter(f.col("kind") == "breach")
    for row in breaches.orderBy("position").limit(FINDINGS_MAX).collect():
        found.breaches.append((_breach(row), row.n))
    for row in results.filter(f.col("kind") == "count").groupBy("name").agg(f.sum("n")).collect():
        setattr(found, row[0], row[1])
    high_waters = results.filter(f.col("kind") == "reach")
    before = Window.partitionBy("name", "queue").orderBy("position")
    taken = f.col("name") == "taken"
    # The high water of a queue never falls; that of a channel falls when it is reopened.
    highest = f.when(
        taken, f.max("channel").over(before.rowsBetween(Window.unboundedPreceding, -1))
    )
    reached = f.coalesce(highest.otherwise(f.lag("channel").over(before)), f.lit(-1))
    lower = (f.col("seq") <= reached) & (taken | (f.col("seq") != 1))
    compared = high_waters.withColumn("fallen", lower)
    found.high_waters = compared.count()
    for row in compared.filter("fallen").orderBy("ordinal").limit(FINDINGS_MAX).collect():
        high_water = HighWater(row.name, row.queue, row.position, row.seq, row.channel, row.ordinal)
        found.breaches.append((high_water.breach(), 1))


def _add_lifecycles(spark: SparkSession, tasks: list[SegmentTask], found: ContractResult) -> None:
    from pyspark.sql import functions as f

    from tools.verify.contract.sorting import bins_for

    missing = [gap.first << 20 for gap in found.gaps]
    sources = [task for task in tasks if task.ranges]
    if not sources:
        return
    bins = bins_for(found.within, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    pieces = in_tasks(spark, sources, _ShareOut(bins), _PIECES)
    result = (
        pieces.repartition(bins, "bin")
        .sortWithinPartitions("bin")
        .mapInArrow(_FollowMessages(missing), _RESULTS)
    )
    rows = result.groupBy("kind", "name", "queue", "position", "ordinal", "seq", "channel", "since",
                        "more").agg(f.sum("n").alias("n")).collect()  # fmt: skip
    recoveries: list[QueueRecovery] = []
    for row in rows:
        if row.kind == "breach":
            found.breaches.append((_breach(row), row.n))
        elif row.kind == "recovery":
            # Shares with equal figures are grouped into one row here; each counts.
            recoveries += [QueueRecovery(*json.loads(row.more))] * row.n
        else:
            setattr(found, row.name, row.n)
    found.recoveries = len({(one.queue, one.time) for one in recoveries})
    found.breaches += [(breach, 1) for breach in check_recoveries(recoveries)]


class _ShareOut:
    """Map task: distributes the moves of the canonical history over bins."""

    def __init__(self, bins: int) -> None:
        self._bins = bins

    def __call__(self, tasks: Iterable[SegmentTask]) -> Batches:
        from tools.verify.contract.sorting import split_into_bins

        for task in tasks:
            for moves in moves_within(records_in(task.file), task.ranges):
                yield batch_of(split_into_bins(moves, self._bins), _PIECES)


class _FindContext:
    """Map task: collects the context of breaches."""

    def __init__(self, wanted: list[Breach]) -> None:
        self._wanted = wanted

    def __call__(self, tasks: Iterable[SegmentTask]) -> Batches:
        for task in tasks:
            lines = find_context(records_in(task.file), task.ranges, self._wanted)
            yield batch_of(lines, _LINES)


class _FollowMessages:
    """Map task: checks the lifecycle of messages in sorted bins."""

    def __init__(self, missing: list[int]) -> None:
        self._missing = missing

    def __call__(self, batches: Batches) -> Batches:
        from tools.verify.contract.sorting import arrange

        lifecycles = LifecycleCheck(self._missing)
        pieces = (one for batch in batches for one in zip(*batch.to_pydict().values(), strict=True))
        for _, of_bin in groupby(pieces, key=itemgetter(0)):
            lifecycles.take(*arrange(piece for _, piece in of_bin))
        lifecycles.finish()
        rows: list[tuple[Any, ...]] = []
        for breach, n in first_by_rule(lifecycles.breaches):
            rows.append(("breach", *breach[:-1], n, breach.more))
        rows += [
            ("recovery", "", 0, 0, one.queue, 0, 0, 0, 1, json.dumps(one))
            for one in lifecycles.recoveries
        ]
        rows += [
            ("count", name, 0, 0, 0, 0, 0, 0, getattr(lifecycles, name), "")
            for name in ("messages", "examined")
        ]
        yield batch_of(rows, _RESULTS)


def _breach(row: SparkRow) -> Breach:
    return Breach(
        row.name, row.position, row.ordinal, row.queue, row.seq, row.channel, row.since, row.more
    )
