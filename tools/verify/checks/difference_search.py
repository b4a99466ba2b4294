"""Difference search: members compared range by range, and batch by batch only where they differ.

Members that applied the same have the same sums over the same range of positions, so nearly all is
compared without a row for each batch.  `total_order` compares batch by batch the ranges in which
sums or counts differ (a member that joined or left in the middle suffices), in which a batch was
applied outside of a primary, or for which another record states what state there was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.verify.checks.total_order import ANCHORS, applied_while_active
from tools.verify.input.rows import SPAN, SUMS, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class DifferenceSearch:
    """How much was compared by sums alone, and the records to compare one by one."""

    spans: int  # ranges of SPAN positions that were compared
    remaining: int  # how many of them are left
    batches: int  # in ranges that are not left
    positions: int  # in ranges that are not left
    records: DataFrame | None  # of those left, in the columns of the table "records"


def search_differences(scan: DataFrame, begin_inactive: list[str]) -> DifferenceSearch:
    """Compare the sums of all members.

    `begin_inactive` are the segments at whose beginning the member was in no primary.
    """
    from pyspark.sql import functions as f

    from tools.verify.input.source import expand

    sums = scan.filter(f.col("kind") == SUMS)
    inactive = ~applied_while_active(begin_inactive)
    by_incarnation = sums.groupBy("span", "member", "incarnation").agg(
        f.bit_xor("low").alias("low"),
        f.bit_xor("high").alias("high"),
        f.sum("batches").alias("batches"),
        f.sum(f.col("last") - f.col("position") + 1).alias("positions"),
        f.max(inactive).alias("inactive"),
    )
    differ = f.max("inactive")
    for name in ("low", "high", "batches", "positions"):
        differ = differ | (f.min(name) != f.max(name))
    by_span = by_incarnation.groupBy("span").agg(
        differ.alias("differ"),
        f.sum("batches").alias("batches"),
        f.max("positions").alias("positions"),
    )
    anchor = f.col("kind").isin([int(kind) for kind in ANCHORS]) & (f.col("last") > 0)
    anchors = scan.filter(anchor).withColumn("span", f.expr(f"last div {SPAN}"))
    unknown = anchors.filter(~f.coalesce(f.col("flag"), f.lit(False)))
    compared = by_span.join(
        unknown.select("span", f.lit(True).alias("odd")).distinct(), "span", "full_outer"
    ).withColumn("left", f.coalesce("differ", f.lit(False)) | f.coalesce("odd", f.lit(False)))
    compared = compared.persist()
    row = compared.agg(
        f.count("differ"),
        f.count(f.when(f.col("left"), 1)),
        f.sum(f.when(~f.col("left"), f.col("batches"))),
        f.sum(f.when(~f.col("left"), f.col("positions"))),
    ).collect()[0]
    records: DataFrame | None = None
    if row[1]:
        left = compared.filter("left").select("span")
        batches = expand(sums.join(left, "span", "left_semi"))
        records_there = anchors.join(left, "span", "left_semi").select(*Row._fields)
        records = batches.unionByName(records_there)
    return DifferenceSearch(row[0], row[1], row[2] or 0, row[3] or 0, records)
