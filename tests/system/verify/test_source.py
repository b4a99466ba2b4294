"""The format as a data source of Spark: the tables that anybody may read, and the check reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.memberlog.client_history import ClientHistory
from tests.system.verify.support.recorded_history import plain_history
from tests.system.verify.support.spark_session import shared_session
from tools.verify.input.segments import find_segments

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_the_tables_are_those_of_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.verify.input.source import NAME, SCHEMAS, MemberLogSource, read_table

    monkeypatch.setattr(os, "fsync", lambda _: None)
    plain_history().write_all(tmp_path)
    client = ClientHistory(tmp_path, "spout-1@host", 1, lambda: 1)
    client.session("q").published(1, b"body")
    client.close()
    spark = shared_session()
    spark.dataSource.register(MemberLogSource)
    for table in SCHEMAS:
        read = spark.read.format(NAME).option("table", table).load(str(tmp_path))
        rows = sorted(map(str, read.collect()))
        assert rows == sorted(
            map(str, read_table(spark, table, find_segments([tmp_path])).collect())
        )
        assert rows
