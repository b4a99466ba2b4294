"""Difference search: members compared range by range, and batch by batch only where they differ.

Members that applied the same have the same sums over the same range of positions, so nearly all is
compared without a row for each batch.  `total_order` compares batch by batch the ranges in which
sums or counts differ (a member that joined or left in the middle suffices), in which a batch was
applied outside of a primary, or for which another record states what state there was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.verify.checks.control_checks import ControlResult
from tools.verify.checks.total_order import (
    ANCHORS,
    applied_while_active,
    describe_differences,
    find_differences,
)
from tools.verify.findings import Finding
from tools.verify.input.rows import SPAN, SUMS, Row
from tools.verify.spark_session import computed_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_ANCHOR = f"kind in ({', '.join(str(int(kind)) for kind in ANCHORS)}) and last > 0"
_BY_SPAN = f"""
    with by_incarnation as (
        select
            coalesce(span, last div {SPAN}) as span,
            bit_xor(low) as low,
            bit_xor(high) as high,
            sum(batches) as batches,
            sum(if(kind = {SUMS}, last - position + 1, null)) as positions,
            bool_or(kind = {SUMS} and not active) as inactive,
            bool_or(kind != {SUMS}) as unknown
        from {{given}}
        where kind = {SUMS} or ({_ANCHOR} and not coalesce(flag, false))
        group by 1, member, incarnation
    )
    select
        span,
        bool_or(inactive or unknown) or coalesce(
            min(low) != max(low) or min(high) != max(high)
            or min(batches) != max(batches) or min(positions) != max(positions), false
        ) as differ,
        sum(batches) as batches,
        max(positions) as positions
    from by_incarnation
    group by span
"""


def compare_members(
    scan: DataFrame, control: ControlResult, begin: int, *, little: bool
) -> tuple[int, int, list[Finding]]:
    """Compare the batches of all members; return how many, of how many positions, and findings."""
    inactive, cutoffs = control.begin_inactive, control.cutoffs
    given = scan.withColumn("active", applied_while_active(inactive))
    # A row for some thousand positions: of a thousand million they are 250,000.
    spans = scan.sparkSession.sql(_BY_SPAN, given=given).collect()
    alike = [row for row in spans if not row.differ]
    batches, positions = sum(row.batches for row in alike), sum(row.positions for row in alike)
    if len(alike) == len(spans):
        return batches, positions, []
    left = records_of_spans(scan, [row.span for row in spans if row.differ])
    with computed_once(left, little=little) as records:
        differences = find_differences(records, inactive, cutoffs, begin)
        findings = describe_differences(records, differences, inactive, cutoffs)
    return batches + differences.batches, positions + differences.positions, findings


def records_of_spans(scan: DataFrame, numbers: list[int]) -> DataFrame:
    """Return the batches of these ranges of SPAN positions, and the other records about a state
    there, in the columns of the table "records".
    """
    import pyarrow as pa
    from pyspark.sql import functions as f

    from tools.verify.input.source import expand

    spans = scan.sparkSession.createDataFrame(pa.table({"span": pa.array(numbers, pa.int64())}))
    batches = expand(scan.filter(f"kind = {SUMS}").join(spans, "span", "left_semi"))
    anchors = scan.filter(_ANCHOR).withColumn("span", f.expr(f"last div {SPAN}"))
    there = anchors.join(spans, "span", "left_semi").select(*Row._fields)
    return batches.unionByName(there)
