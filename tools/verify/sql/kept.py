"""Rows for several questions: held in this process, or by Spark if there are many.

A question is a SELECT over the table `kept`, in SQL that both DuckDB and Spark understand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tools.verify.sql.statements import answer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TAKEN_ROWS, TAKEN_BYTES = 1 << 18, 64 << 20  # that are held here


class Kept(Protocol):
    """Rows that are kept."""

    def ask(self, select: str, **given: pa.Table) -> pa.Table:
        """Return the rows of a SELECT over `kept` and the given tables."""


class Here(NamedTuple):
    """Rows in this process: no question needs Java, or a plan or shuffle of Spark."""

    rows: pa.Table

    def ask(self, select: str, **given: pa.Table) -> pa.Table:
        """DuckDB answers."""
        return answer({"asked": select}, {"kept": self.rows, **given}, ["asked"])["asked"]


class InSpark(NamedTuple):
    """Rows that Spark holds, and spills to disk."""

    frame: DataFrame

    def ask(self, select: str, **given: pa.Table) -> pa.Table:
        """Spark answers."""
        spark = self.frame.sparkSession
        for name, table in given.items():
            spark.createDataFrame(table).createOrReplaceTempView(name)
        self.frame.createOrReplaceTempView("kept")
        return spark.sql(select).toArrow()


def read_kept(spark: SparkSession | None, table: str, segments: list[Path]) -> Kept:
    """Return a table of segments for one question: read here if there is no Spark."""
    from tools.verify.input.source import read_here, read_table

    if spark is None:
        return Here(read_here(table, segments))
    return InSpark(read_table(spark, table, segments))


@contextmanager
def computed_once(kept: Kept) -> Iterator[Kept]:
    """Yield rows for several questions: here if they are few, otherwise kept by Spark."""
    if isinstance(kept, Here):
        yield kept
        return
    from pyspark import StorageLevel

    assert isinstance(kept, InSpark)
    held = kept.frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        taken = _taken(held) if held.count() <= TAKEN_ROWS else None
        yield InSpark(held) if taken is None else Here(taken)
    finally:
        held.unpersist()


def _taken(frame: DataFrame) -> pa.Table | None:
    """Return all rows of a frame; None if they are too large to hold here."""
    try:
        rows = frame.toArrow()
    except Exception as error:  # Py4JJavaError, with Spark's reason among its lines
        if "spark.driver.maxResultSize" not in str(error):
            raise
        return None
    return rows if rows.nbytes <= TAKEN_BYTES else None
