"""Rows that several queries share: in the driver where they are few, else kept by Spark."""

from __future__ import annotations

from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from tools.verify import spark_session
from tools.verify.spark_session import computed_once

pytestmark = pytest.mark.spark


class Frame:
    """What is asked of a frame, and of the session that made it."""

    schema = "n bigint"

    def __init__(self, rows: object) -> None:
        self.rows = rows
        self.did: list[str] = []
        self.sparkSession = self

    def toArrow(self) -> object:
        if isinstance(self.rows, Exception):
            raise self.rows
        return self.rows

    def createDataFrame(self, rows: object, schema: str) -> Frame:
        assert (rows, schema) == (self.rows, self.schema)
        self.did.append("taken")
        return self

    def coalesce(self, partitions: int) -> Frame:
        assert partitions == 1
        return self

    def persist(self, _level: object) -> Frame:
        self.did.append("kept")
        return self

    def unpersist(self) -> None:
        self.did.append("let go")


def did(rows: object, *, little: bool = True) -> list[str]:
    """Return what is done with a frame of these rows."""
    frame = Frame(rows)
    with computed_once(cast("Any", frame), little=little) as given:
        assert cast("object", given) is frame
    return frame.did


def test_the_driver_takes_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"n": [1, 2, 3]})
    assert did(rows) == ["taken"]
    assert did(rows, little=False) == ["kept", "let go"]
    monkeypatch.setattr(spark_session, "TAKEN_BYTES", 3 * 8 - 1)
    assert did(rows) == ["kept", "let go"]


def test_more_rows_than_spark_lets_a_driver_take() -> None:
    """Few bytes of logs may be so many: the check of many queues ended without a verdict."""
    too_many = RuntimeError("5.3 MiB is bigger than spark.driver.maxResultSize (2.0 MiB)")
    assert did(too_many) == ["kept", "let go"]


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="another"):
        did(RuntimeError("another"))
