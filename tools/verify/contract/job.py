"""The queue contract in Spark: findings of single segments first, then the life of each message.

One job: a task reads a segment, answers the rules that need no other segment, and hands on the
moves; the moves of a message meet in a bin of the exchange, by queue and place. No task holds more
than a part of a segment, or a bin. Each rule yields its first breach and a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tools.verify.checks.canonical_history import Gap, Stretch, gaps, plan
from tools.verify.checks.views_and_segments import PrimaryView, covers, runs_of
from tools.verify.contract import arrivals, causes, explanation, lives, order, reasons, replay
from tools.verify.contract.rules import Breach, broken, first_of_each
from tools.verify.contract.segment import ALL_TIME, SCHEMAS, SegmentTask, Slices, read_segment
from tools.verify.findings import Finding
from tools.verify.input.ranges_of_file import FileRange
from tools.verify.input.rows import FAULT, SEGMENT, UNREADABLE, Row, ends_of
from tools.verify.input.segments import count_rows
from tools.verify.sql.exchange import BINS_HERE, ROWS_IN_BIN, Exchange, Step, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GAPS_TOLD = 4
_FEW_MOVES = 1 << 18  # more segments justify the time that Spark's tasks take to start

RULES = (
    causes.RULES
    | arrivals.RULES
    | order.RULES
    | order.RULES_OF_SESSIONS
    | lives.RULES
    | lives.RULES_OF_COLD_STARTS
    | replay.RULES
    | reasons.RULES
)
BY_MESSAGE = {
    **lives.LIVES,
    **order.ORDER_OF_STRETCHES,
    "breaches": first_of_each(f"""
        {broken(lives.RULES, since=lives.SINCE)}
        UNION ALL {broken(order.RULES_OF_STRETCHES, more=order.MORE_OF_STRETCHES)}"""),
}
TOGETHER = {
    **lives.COLD_STARTS,
    "firsts": first_of_each(f"""
        SELECT * FROM breaches
        UNION ALL {broken(lives.RULES_OF_COLD_STARTS, more=lives.MORE_OF_COLD_STARTS)}""")
    + " ORDER BY position, ordinal, rule",
    "sums": """
        SELECT name, CAST(SUM(n) AS BIGINT) AS n FROM counts GROUP BY name
        UNION ALL SELECT 'recoveries', COUNT(*) FROM recoveries""",
    "traffic_sums": """
        SELECT number, op, cause, flag, CAST(SUM(n) AS BIGINT) AS n
        FROM traffic GROUP BY number, op, cause, flag ORDER BY number, op, cause, flag""",
}


@dataclass(slots=True)
class ContractResult:
    """The findings of the contract's checks, and how much they examined."""

    breaches: list[Breach] = field(default_factory=list)
    segments: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # of items; `coverage` says of which
    stretches: list[Stretch] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    traffic: list[dict[str, Any]] = field(default_factory=list)  # rows of "traffic_sums"

    def add(self, found: Tables) -> None:
        """Add the results of the last step of the exchange."""
        self.breaches = [Breach(**row) for row in found["firsts"].to_pylist()]
        self.counts.update({row["name"]: row["n"] for row in found["sums"].to_pylist()})
        self.traffic = found["traffic_sums"].to_pylist()


def tasks_for(
    rows: Sequence[Row], stretches: Iterable[Stretch], *, everywhere: bool
) -> list[SegmentTask]:
    """Return the segments to check: sources of the canonical history, or `everywhere`, which finds
    faults that only one member's log shows about its queues."""
    segments = sorted(
        (row for row in rows if row.kind == SEGMENT),
        key=lambda row: (row.member, row.incarnation, row.segment),
    )
    damaged = {row.file for row in rows if row.kind in (FAULT, UNREADABLE)}
    next_of = {(row.member, row.incarnation, row.segment - 1): row.file for row in segments}
    of: dict[str, list[FileRange]] = {}
    for stretch in stretches:
        of.setdefault(stretch.file, []).append(stretch.file_range)
    return [
        SegmentTask(
            row.file, next_of.get((row.member, row.incarnation, row.segment), ""),
            of.get(row.file, []), row.file not in damaged and not ends_of(row).torn_tail,
        )
        for row in segments
        if row.file in of or everywhere
    ]  # fmt: skip


def bins_for(tasks: Iterable[SegmentTask]) -> int:
    """Return the number of bins for the moves of these segments; few: the driver reads them."""
    rows = count_rows(task.file for task in tasks)
    return max(-(-rows // ROWS_IN_BIN), BINS_HERE + 1) if rows > _FEW_MOVES else 1


def exchange_of_contract(bins: int) -> Exchange:
    """Return the steps: by message and by holder of a high water, then all together."""
    by_message = Step(
        {"moves": ("queue", "seq"), "queue_moves": None, "closings": None,
         "high_waters": ("who",)},
        BY_MESSAGE, ["breaches", "survivors", "counts"], {},
    )  # fmt: skip
    together = Step(
        {"breaches": (), "survivors": (), "counts": (), "queue_history": (), "traffic": ()},
        TOGETHER, ["firsts", "sums", "traffic_sums"], {},
    )  # fmt: skip
    schemas = SCHEMAS | {
        "firsts": SCHEMAS["breaches"],
        "sums": SCHEMAS["counts"],
        "traffic_sums": SCHEMAS["traffic"],
    }
    return Exchange(schemas, [by_message, together], bins)


def check_contract(
    spark: SparkSession | None,
    rows: Sequence[Row],
    primaries: dict[int, PrimaryView],
    *,
    everywhere: bool = False,
    slices: Slices = ALL_TIME,
) -> ContractResult:
    """Check the queue contract; `rows` are the control rows of all available segments.

    `spark`: None if there are few; then this process does everything. `everywhere`: in the logs of
    all members, not in one for each position. `slices`: of time, by which moves are counted.
    """
    found = ContractResult(stretches=plan(rows, primaries))
    found.gaps = gaps(found.stretches)
    tasks = tasks_for(rows, found.stretches, everywhere=everywhere)
    if tasks:
        read = partial(read_segment, gaps=[gap.last for gap in found.gaps], slices=slices)
        found.add(exchange_of_contract(bins_for(tasks)).run(spark, tasks, read))
        found.segments = len(tasks)
    return found


def explain(
    spark: SparkSession | None, found: ContractResult, rows: Sequence[Row]
) -> list[Finding]:
    if not found.breaches:
        return []
    tasks = tasks_for(rows, found.stretches, everywhere=False)
    read = partial(explanation.read_context, wanted=found.breaches)
    context = explanation.exchange_of_context(bins_for(tasks)).run(spark, tasks, read)
    return explanation.describe_breaches(found.breaches, RULES, context, rows)


def limits(found: ContractResult, settled: Iterable[Row] = ()) -> Iterator[str]:
    """Yield, for people, the parts of the contract that could not be checked; `settled`: rows of
    segments checked before."""
    runs = [run for _, run in runs_of(settled)]
    unknown = [gap for gap in found.gaps if not covers(runs, *gap)]
    for gap in unknown[:_GAPS_TOLD]:
        yield (
            f"positions {gap.first} to {gap.last} are in no log at hand: "
            "what happened to messages there is not known"
        )
    if len(unknown) > _GAPS_TOLD:
        yield f"{len(unknown) - _GAPS_TOLD} more such gaps"
