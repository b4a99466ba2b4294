"""G8, G9: what was confirmed is in every later epoch, and was a publish of this member's clients.

Across segments and members: looked up in Spark, and only where something is suspect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.verify.checks.views_and_segments import IncarnationId
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import ACCEPTED, UNPAIRED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

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

    `records` are read only if a position is missing, and once for all gaps: nothing else needs each
    single confirm.
    """
    from pyspark.sql import functions as f

    gaps = [found for found in findings if "missing" in found.what and found.property == "G1"]
    gaps = gaps[:FINDINGS_MAX]
    if not gaps:
        return []
    table = records()
    confirmed = table.filter(f.col("kind") == int(RecordKind.CONFIRM)).select(
        f.col("member").alias("by"), f.explode("positions").alias("position")
    )
    bounds = table.sparkSession.createDataFrame(
        [(number, gap.position, gap.until) for number, gap in enumerate(gaps)],
        "gap int, begin bigint, until bigint",
    )
    lost = (
        confirmed.join(f.broadcast(bounds), f.expr("position between begin and until"))
        .groupBy("gap")
        .agg(f.min(f.struct("position", "by")).alias("first"))
        .orderBy("gap")
        .collect()
    )
    return [
        Finding(
            "G8", gaps[row.gap].member, gaps[row.gap].incarnation, row.first.position,
            f"the publish that {row.first.by} confirmed is not applied here",
        )
        for row in lost
    ]  # fmt: skip
