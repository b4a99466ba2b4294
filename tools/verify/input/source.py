"""Member logs as frames of Spark: a table of their records, and one of sums over these.

A task reads one segment or several small ones; its rows leave as Arrow
batches, column by column, so that no row is pickled on its way to Spark.  Imported only where
pyarrow is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop, heapreplace
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
LOGS_AT_ONCE = 3  # read side by side; a segment of each is held
SCHEMAS = {
    "records": SCHEMA,  # a row for each record
    "scan": SCAN_SCHEMA,  # the same without BATCH and CONFIRM, but with sums over ranges of batches
}


def read_table(spark: SparkSession, table: str, segments: list[Path]) -> DataFrame:
    """Return one of the tables SCHEMAS; segments are parsed in the tasks that read them."""
    files = [str(path) for path in segments]
    at_once = spark.sparkContext.defaultParallelism
    tasks = shares_of(files, at_once, max(at_once, sum(map(size_of, segments)) // TASK_BYTES))
    read = by_pins(partial(_read, table=table))
    return in_tasks(spark, tasks, read, SCHEMAS[table], len(tasks))


def read_here(table: str, segments: Iterable[Path]) -> pyarrow.Table:
    """Return one of the tables SCHEMAS, read in this process."""
    files = [str(path) for path in segments]
    return pyarrow.Table.from_batches(_read([files], table), arrow_schema(SCHEMAS[table]))


def shares_of(files: Sequence[str], least: int, most: int) -> list[list[str]]:
    """Divide files into at most `most` shares.

    A share has about the same stretch of the log of each member, so that batches which the logs
    have in common are decoded once, unless that makes fewer than `least` shares.
    """
    logs = _by_member(files)
    longest = max(map(len, logs), default=0)
    if longest < least:
        count = min(most, len(files))
        return [list(files[share::count]) for share in range(count)]
    count = min(most, longest)
    return [
        [file for log in logs for file in log[len(log) * i // count : len(log) * (i + 1) // count]]
        for i in range(count)
    ]


def _by_member(files: Iterable[str]) -> list[list[str]]:
    """Return the segments of each member, in the order in which it wrote them."""
    logs: dict[str, list[str]] = defaultdict(list)
    for identity, file in sorted((identity_of(Path(file)), file) for file in files):
        logs[identity[0]].append(file)
    return list(logs.values())


def _read(shares: Iterable[Sequence[str]], table: str) -> Iterator[pyarrow.RecordBatch]:
    schema = arrow_schema(SCHEMAS[table])
    rows = _records if table == "records" else _scanned
    for files in shares:
        yield from _batches(rows(files), schema)


def _records(files: Sequence[str]) -> Iterator[Row | Sums]:
    for file in files:
        yield from _parsed(file, parse_segment)


def _scanned(files: Sequence[str]) -> Iterator[Row | Sums]:
    logs = _by_member(files)
    for at in range(0, len(logs), LOGS_AT_ONCE):
        some = logs[at : at + LOGS_AT_ONCE]
        scan = partial(scan_segment, decoder=BatchDecoder(BATCHES_KNOWN if some[1:] else 0))
        yield from side_by_side(
            [(row for file in log for row in _parsed(file, scan)) for log in some]
        )


def side_by_side(logs: Iterable[Iterator[Row | Sums]]) -> Iterator[Row | Sums]:
    """Yield the rows of several logs, always the next one of the log at the lowest position.

    So a batch is read in all logs at nearly the same time, and few batches have to be known.
    """
    behind = [(-1, number, log) for number, log in enumerate(logs)]  # a heap
    while behind:
        position, number, log = behind[0]
        row = next(log, None)
        if row is None:
            heappop(behind)
            continue
        heapreplace(behind, (max(position, row.last or -1), number, log))
        yield row


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
