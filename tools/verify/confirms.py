"""G8 and G9 where a single segment could not tell: run only when there is something to look up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.memberlog.records import Kind
from tools.verify.findings import Finding
from tools.verify.rows import UNPAIRED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FINDINGS_MAX = 20


def check_unpaired(records: DataFrame) -> list[Finding]:
    """G9: a confirm names an accepted publish of this life that was applied before."""
    from pyspark.sql import functions as f

    given = records.filter(f.col("kind") == UNPAIRED).select(
        "member", "incarnation", "lsn", f.explode("positions").alias("confirmed")
    )
    accepted = records.filter(f.col("kind") == int(Kind.BATCH)).select(
        f.col("member").alias("m"),
        f.col("incarnation").alias("i"),
        f.col("lsn").alias("applied_lsn"),
        f.explode("positions").alias("p"),
    )
    pair = (f.col("member") == f.col("m")) & (f.col("incarnation") == f.col("i"))
    pair = pair & (f.col("confirmed") == f.col("p")) & (f.col("applied_lsn") < f.col("lsn"))
    rows = (
        given.join(accepted, pair, "left_anti").orderBy("confirmed").limit(FINDINGS_MAX).collect()
    )
    what = "confirmed, but this member applied no accepted publish of its own there before"
    return [Finding("G9", row.member, row.incarnation, row.confirmed, what) for row in rows]


def check_gaps(records: DataFrame, findings: list[Finding]) -> list[Finding]:
    """G8: what a member lacks, was it confirmed by anyone?"""
    from pyspark.sql import functions as f

    gaps = [found for found in findings if "missing" in found.what and found.property == "G1"]
    if not gaps:
        return []
    confirmed = records.filter(f.col("kind") == int(Kind.CONFIRM)).select(
        f.col("member").alias("by"), f.explode("positions").alias("confirmed")
    )
    lost: list[Finding] = []
    for gap in gaps[:FINDINGS_MAX]:
        inside = confirmed.filter(f.col("confirmed").between(gap.position, gap.until))
        for row in inside.orderBy("confirmed").limit(1).collect():
            what = f"the publish that {row.by} confirmed is not applied here"
            lost.append(Finding("G8", gap.member, gap.incarnation, row.confirmed, what))
    return lost
