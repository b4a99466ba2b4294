"""G1, G2, G14: members with the same sums over the same range of positions applied the same there.

So nearly everything is compared range by range, without a row for each batch. `total_order`
compares batch by batch the ranges in which sums or counts differ (a member that joined or left in
the middle suffices), in which a batch was applied outside a primary, or for which another record
states a state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from tools.verify.checks.control_checks import ControlResult
from tools.verify.checks.total_order import (
    ANCHORS,
    begun_inactive,
    check_names,
    compare_batches,
)
from tools.verify.findings import Finding
from tools.verify.format.pins import by_pins
from tools.verify.input.rows import SCHEMA, SPAN, SUMS, Row, Sums
from tools.verify.spark_session import in_tasks
from tools.verify.sql.kept import Here, InSpark, Kept, computed_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

HERE_BYTES = 16 << 20  # bytes of logs whose batches this process compares one by one

_ANCHOR = f"kind IN ({', '.join(str(int(kind)) for kind in ANCHORS)}) AND last > 0"
_SPAN = f"last >> {SPAN.bit_length() - 1}"
_BY_SPAN = f"""
    SELECT span, BOOL_OR(inactive OR unknown) OR COALESCE(
            MIN(low) <> MAX(low) OR MIN(high) <> MAX(high)
            OR MIN(batches) <> MAX(batches) OR MIN(positions) <> MAX(positions), FALSE
        ) AS differ,
        CAST(SUM(batches) AS BIGINT) AS batches, CAST(MAX(positions) AS BIGINT) AS positions
    FROM (
        SELECT span, BIT_XOR(low) AS low, BIT_XOR(high) AS high, SUM(batches) AS batches,
            SUM(CASE WHEN kind = {SUMS} THEN last - position + 1 END) AS positions,
            BOOL_OR(kind = {SUMS} AND NOT COALESCE(flag, begun IS NULL)) AS inactive,
            BOOL_OR(kind <> {SUMS}) AS unknown
        FROM (
            SELECT member, incarnation, kind, COALESCE(span, {_SPAN}) AS span, low, high, batches,
                position, last, flag, begun
            FROM kept LEFT JOIN begun_inactive USING (file)
            WHERE kind = {SUMS} OR {_ANCHOR} AND NOT COALESCE(flag, FALSE)
        ) AS summed GROUP BY span, member, incarnation
    ) AS by_incarnation
    GROUP BY span"""
_SUMS_THERE = f"""
    SELECT {", ".join(Sums._fields)} FROM kept SEMI JOIN spans USING (span)
    WHERE kind = {SUMS} ORDER BY file, begins"""
_STATES_THERE = f"""
    SELECT {", ".join(Row._fields)} FROM kept SEMI JOIN spans ON spans.span = {_SPAN}
    WHERE {_ANCHOR}"""


def compare_members(
    spark: SparkSession | None, scan: Kept, control: ControlResult, begin: int
) -> tuple[int, int, list[Finding]]:
    """Compare batches and names of queues; return how many batches, of how many positions, and
    findings.
    """
    from tools.verify.input.tables import table_of

    inactive, cutoffs = control.begin_inactive, control.cutoffs
    # A row for some thousand positions: of a thousand million they are 250,000.
    spans = scan.ask(_BY_SPAN, begun_inactive=begun_inactive(inactive)).to_pylist()
    alike = [row for row in spans if not row["differ"]]
    batches, positions = (
        sum(row["batches"] for row in alike),
        sum(row["positions"] for row in alike),
    )
    if len(alike) == len(spans):
        return batches, positions, check_names(scan)
    left = table_of(((row["span"],) for row in spans if row["differ"]), "span bigint")
    sums, states = scan.ask(_SUMS_THERE, spans=left), scan.ask(_STATES_THERE, spans=left)
    with _records(spark, sums, states) as records:
        found = compare_batches(records, inactive, cutoffs, begin)
    return batches + found[0], positions + found[1], found[2] + check_names(scan)


@contextmanager
def _records(spark: SparkSession | None, sums: pa.Table, states: pa.Table) -> Iterator[Kept]:
    """Yield the batches of these SUMS rows, and these rows, in the columns of "records"."""
    import pyarrow as pa

    from tools.verify.input.source import expand
    from tools.verify.input.tables import arrow_schema

    rows = [Sums(**fields) for fields in sums.to_pylist()]
    files = [list(of_file) for _, of_file in groupby(rows, key=lambda one: one.file)]
    schema = arrow_schema(SCHEMA)
    states = states.cast(schema)
    if spark is None or sum(one.ends - one.begins for one in rows) <= HERE_BYTES:
        yield Here(pa.concat_tables([states, pa.Table.from_batches(expand(files), schema)]))
        return
    frame = in_tasks(spark, files, by_pins(expand), SCHEMA)
    both = frame.unionByName(spark.createDataFrame(states, SCHEMA))
    with computed_once(InSpark(both)) as kept:
        yield kept
