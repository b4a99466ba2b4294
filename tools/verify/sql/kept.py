"""Rows of which several questions are asked: in this process, or kept by Spark where they are many.

A question is a SELECT over the table `kept`, in SQL that both DuckDB and Spark know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tools.verify.sql.statements import answer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

TAKEN_BYTES = 64 << 20  # of rows that are held here


class Kept(Protocol):
    """Rows that are kept."""

    def ask(self, select: str, **given: pa.Table) -> pa.Table:
        """Return the rows that a SELECT makes of `kept` and of the tables given."""


class Here(NamedTuple):
    """Rows in this process: no question needs Java, a plan or a shuffle of Spark."""

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


@contextmanager
def computed_once(frame: DataFrame, *, little: bool) -> Iterator[Kept]:
    """Yield the rows of a frame: here where they are few, else in Spark."""
    from pyspark import StorageLevel

    if little and (taken := _taken(frame)) is not None:
        yield Here(taken)
        return
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield InSpark(kept)
    finally:
        kept.unpersist()


def _taken(frame: DataFrame) -> pa.Table | None:
    """Return all rows of a frame; None where they are too many to be here.

    Few bytes of logs can be many rows: each segment names all queues, which compresses well.
    """
    try:
        rows = frame.toArrow()
    except Exception as error:  # Py4JJavaError, with Spark's reason among its lines
        if "spark.driver.maxResultSize" not in str(error):
            raise
        return None
    return rows if rows.nbytes <= TAKEN_BYTES else None
