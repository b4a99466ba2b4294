"""G8, G9: what was confirmed is in every later epoch, and was a publish of this member's clients.

Across segments and members: looked up in Spark, and only where something is suspect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.verify.checks.views_and_segments import IncarnationId
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind, unpack_positions
from tools.verify.input.rows import ACCEPTED, UNPAIRED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql import Row as SparkRow

FINDINGS_MAX = 20


def check_unpaired(records: DataFrame, begins: dict[IncarnationId, int]) -> list[Finding]:
    """G9: a confirm names an accepted publish of this incarnation that was applied before.

    `begins` has the first position of incarnations that were not read from their beginning: what
    was published before it cannot be looked up.
    """
    from pyspark.sql import functions as f

    given = records.filter(f.col("kind") == UNPAIRED).select(
        "member", "incarnation", "segment", f.explode("positions").alias("confirmed")
    )
    accepted = records.filter(f.col("kind") == ACCEPTED).select(
        f.col("member").alias("m"),
        f.col("incarnation").alias("i"),
        f.col("segment").alias("s"),
        f.explode("positions").alias("p"),
    )
    pair = (f.col("member") == f.col("m")) & (f.col("incarnation") == f.col("i"))
    pair = pair & (f.col("confirmed") == f.col("p")) & (f.col("s") < f.col("segment"))
    unknown = f.lit(False)
    for (member, incarnation), begin in begins.items():
        of = (f.col("member") == member) & (f.col("incarnation") == incarnation)
        unknown = unknown | (of & (f.col("confirmed") < begin))
    unfounded = given.filter(~unknown).join(accepted, pair, "left_anti")
    rows = unfounded.orderBy("confirmed").limit(FINDINGS_MAX).collect()
    what = "confirmed, but this member applied no accepted publish of its own there before"
    return [Finding("G9", row.member, row.incarnation, row.confirmed, what) for row in rows]


def check_gaps(records: Callable[[], DataFrame], findings: list[Finding]) -> list[Finding]:
    """G8: of positions that a member lacks, which were confirmed by any member.

    `records` are read only if a position is missing: a table costs a Python process, and a second,
    before its first row.
    """
    from pyspark.sql import functions as f

    gaps = [found for found in findings if "missing" in found.what and found.property == "G1"]
    if not gaps:
        return []
    packed = (
        records().filter(f.col("kind") == int(RecordKind.CONFIRM)).select("member", "kinds").rdd
    )
    lost: list[Finding] = []
    for gap in gaps[:FINDINGS_MAX]:
        inside = packed.flatMap(_ConfirmedWithin(gap.position, gap.until))
        for position, by in inside.takeOrdered(1):
            what = f"the publish that {by} confirmed is not applied here"
            lost.append(Finding("G8", gap.member, gap.incarnation, position, what))
    return lost


class _ConfirmedWithin:
    """Filter in Spark's workers: the confirmed positions within an interval, out of packed ones."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last

    def __call__(self, row: SparkRow) -> list[tuple[int, str]]:
        """Return (position, member) for each."""
        positions = unpack_positions(bytes(row.kinds))
        return [(p, row.member) for p in positions if self._first <= p <= self._last]
