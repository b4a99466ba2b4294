"""Member logs as frames of Spark: a table of their records, and one of sums over these.

A task reads one segment or several small ones; its rows leave as Arrow
batches, column by column, so that no row is pickled on its way to Spark.  Imported only where
pyarrow is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow

from tools.verify.findings import BadInput
from tools.verify.format.files import identity_of, open_segment
from tools.verify.format.pins import by_pins
from tools.verify.format.reader import LogError
from tools.verify.input.batch_summaries import BATCHES_KNOWN, BatchDecoder, expand_sums
from tools.verify.input.parse import parse_segment, scan_segment
from tools.verify.input.rows import FAULT, SCAN_SCHEMA, SCHEMA, Row, Sums
from tools.verify.input.segments import size_of
from tools.verify.input.tables import arrow_schema
from tools.verify.spark_session import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH = 4096
TASK_BYTES = 16 << 20  # about, of the segments that one task of Spark reads
SCHEMAS = {
    "records": SCHEMA,  # a row for each record
    "scan": SCAN_SCHEMA,  # the same without BATCH and CONFIRM, but with sums over ranges of batches
}


def read_table(spark: SparkSession, table: str, segments: list[Path]) -> DataFrame:
    """Return one of the tables SCHEMAS; segments are parsed in the tasks that read them."""
    files = [str(path) for path in segments]
    least = max(spark.sparkContext.defaultParallelism, sum(map(size_of, segments)) // TASK_BYTES)
    shares = min(least, len(files))
    read = by_pins(partial(_read, table=table))
    return in_tasks(spark, files, read, SCHEMAS[table], shares)


def read_here(table: str, segments: Iterable[Path]) -> pyarrow.Table:
    """Return one of the tables SCHEMAS, read in this process."""
    files = [str(path) for path in segments]
    return pyarrow.Table.from_batches(_read(files, table), arrow_schema(SCHEMAS[table]))


def _read(files: Iterable[str], table: str) -> Iterator[pyarrow.RecordBatch]:
    schema = arrow_schema(SCHEMAS[table])
    files = sorted(files, key=lambda file: identity_of(Path(file))[::-1])
    decoder = BatchDecoder(BATCHES_KNOWN if len(files) > 1 else 0)
    scan = partial(scan_segment, decoder=decoder)
    parse = parse_segment if table == "records" else scan
    yield from _batches((row for file in files for row in _parsed(file, parse)), schema)


def expand(files: Iterable[list[Sums]]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches of SUMS rows, given by file, as rows of the table "records"."""

    def rows() -> Iterator[Row]:
        for ranges in files:
            data = _bytes(ranges[0].file)
            for one in ranges:
                yield from expand_sums(data, one)

    yield from _batches(rows(), arrow_schema(SCHEMA))


def _parsed(file: str, parse: Callable[[bytes, str], Iterator[Row | Sums]]) -> Iterator[Row | Sums]:
    try:
        data = _bytes(file)
    except LogError as error:
        fault = Row(
            file, *identity_of(Path(file)), -1, FAULT, origin="LOG", text=str(error), position=-1
        )
        yield fault._replace(last=-1)
        return
    yield from parse(data, file)


def _bytes(path: str) -> bytes:
    try:
        return open_segment(Path(path))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def _batches(rows: Iterator[Row | Sums], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    while some := list(islice(rows, ROWS_PER_BATCH)):
        yield to_arrow(some, schema)


def to_arrow(rows: Sequence[Row | Sums], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Return an Arrow batch of rows; SUMS rows have columns of their own, and lack others."""
    columns: Iterable[Sequence[object]]
    if rows and len(schema) == len(Row._fields):
        columns = zip(*rows, strict=True)
    else:
        columns = [[getattr(row, name, None) for row in rows] for name in schema.names]
    arrays = [
        pyarrow.array(column, type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
