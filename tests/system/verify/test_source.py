"""The logs as Spark tables, for the check and for users' own queries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.verify.support.recorded_history import plain_history
from tests.system.verify.support.spark_session import shared_session
from tools.verify.input.segments import find_segments

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_each_table_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.verify.input.source import SCHEMAS, read_table

    monkeypatch.setattr(os, "fsync", lambda _: None)
    plain_history().write_all(tmp_path)
    segments = find_segments([tmp_path])
    for table in SCHEMAS:
        read = read_table(shared_session(), table, segments)
        read.createOrReplaceTempView(table)
    ask = shared_session().sql
    sums = ask("select sum(batches) as n from scan").collect()[0].n
    assert sums == ask("select count(*) as n from records where kind = 6").collect()[0].n > 0


@pytest.mark.parametrize("schema", ["SCHEMA", "SCAN_SCHEMA"])
def test_no_rows_are_a_batch_as_well(schema: str) -> None:
    """A live log may have grown by records that are not compared: this once ended --follow."""
    from tools.verify.input import rows
    from tools.verify.input.source import to_arrow
    from tools.verify.input.tables import arrow_schema

    batch = to_arrow([], arrow_schema(getattr(rows, schema)))
    assert batch.num_rows == 0
    assert batch.num_columns == len(batch.schema.names)
