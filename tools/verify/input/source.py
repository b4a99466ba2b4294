"""Member logs as a data source of Spark: `spark.read.format("memberlog").load(DIR)`.

A partition is one segment or several small ones; its rows leave as Arrow batches, column by column,
so that no row is pickled on its way to Spark.  Imported only where pyspark is.

Live logs are a streaming source, a partition for each incarnation.  Its offsets are bytes of whole
records, see `offsets`; they are planned beside the driver, and the bytes between two of them are
read and parsed in tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from tools.verify.findings import BadInput
from tools.verify.format.files import open_segment
from tools.verify.format.reader import LogError
from tools.verify.input.batch_summaries import expand_sums
from tools.verify.input.offsets import LogPart, Offsets, Settled, advance, read_part, unread_parts
from tools.verify.input.parse import parse_segment, scan_segment
from tools.verify.input.rows import FAULT, SCAN_SCHEMA, SCHEMA, Row, Sums
from tools.verify.input.segments import find_segments, owner_by_name, read_bytes, share_out
from tools.verify.input.tables import (
    CLIENTS_SCHEMA,
    MOVES_SCHEMA,
    arrow_schema,
    clients_of,
    moves_of,
)
from tools.verify.spark_session import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "memberlog"
OFFSETS = "lives"
ROWS_PER_BATCH = 4096
SCHEMAS = {
    "records": SCHEMA,  # a row for each record
    "scan": SCAN_SCHEMA,  # the same without BATCH and CONFIRM, but with sums over ranges of batches
    "moves": MOVES_SCHEMA,  # a row for each thing that a batch did to a message or a queue
    "clients": CLIENTS_SCHEMA,  # a row for each thing that a client did, in a client's log
}


class MemberLogSource(DataSource):
    """Data source over member logs and client histories.

    Options: `path`, a segment, directory or glob; or `paths`, a JSON list of such; `table`, one of
    SCHEMAS; `tasks`, how many are requested.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns, as documented in docs/MEMBERLOG.md."""
        table = self._table()
        if table not in SCHEMAS:
            raise BadInput(f"there is no table {table}, but {', '.join(SCHEMAS)}")
        return SCHEMAS[table]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all segments, in parallel."""
        tasks = int(self.options.get("tasks", "0"))
        return MemberLogReader(self._places(), self._table(), tasks)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of what is new in live logs; `path` and `paths` are directories.

        Option `settled`: JSON, by MEMBER.INCARNATION the last segment that is left out.
        """
        settled = json.loads(self.options.get("settled", "{}"))
        return MemberLogStream(self._places(), settled)

    def _table(self) -> str:
        return str(self.options.get("table", "records"))

    def _places(self) -> list[str]:
        places = json.loads(self.options.get("paths", "[]"))
        if "path" in self.options:
            places.append(self.options["path"])
        return [str(place) for place in places]


class SegmentShare(InputPartition):
    """The segments of one task."""

    def __init__(self, segments: Sequence[str]) -> None:
        self.segments = list(segments)


class MemberLogReader(DataSourceReader):
    """Batch reader; each of its tasks reads only the segments of its own share."""

    def __init__(self, places: list[str], table: str, tasks: int) -> None:
        self._places = places
        self._table = table
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Return the shares, at least `tasks` of them where there are many small segments."""
        segments = find_segments(list(map(Path, self._places)))
        return [
            SegmentShare([str(path) for path in share])
            for share in share_out(segments, self._tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches."""
        assert isinstance(partition, SegmentShare)
        yield from _read(partition.segments, self._table)


class NewBytes(InputPartition):
    """New bytes of one incarnation, for one task."""

    def __init__(self, part: LogPart) -> None:
        self.part = part


class MemberLogStream(DataSourceStreamReader):
    """Streaming reader: what was written since the last micro-batch."""

    def __init__(self, places: list[str], settled: Settled) -> None:
        self._places = [Path(place) for place in places]
        self._settled = settled

    def initialOffset(self) -> dict[str, Any]:
        """Begin at the beginning of all logs; settled segments are skipped."""
        return {OFFSETS: {}}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where whole records end now; `advance` bounds the size of a micro-batch."""
        return {OFFSETS: advance(cast("Offsets", start[OFFSETS]), self._places, self._settled)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each incarnation that has something new."""
        return [NewBytes(part) for part in unread_parts(start[OFFSETS], end[OFFSETS])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches."""
        assert isinstance(partition, NewBytes)
        found = read_part(partition.part)
        rows = [] if found is None else list(parse_segment(*found))
        if rows:
            yield to_arrow(rows, arrow_schema(SCHEMA))


def read_table(spark: SparkSession, table: str, segments: list[Path]) -> DataFrame:
    """Return one of the tables SCHEMAS; segments are parsed in the tasks that read them."""
    shares = share_out(segments, spark.sparkContext.defaultParallelism)
    files = [[str(path) for path in share] for share in shares]
    return in_tasks(spark, files, partial(_read_shares, table=table), SCHEMAS[table], len(files))


def read_records(spark: SparkSession, segments: list[Path]) -> DataFrame:
    """Return a row per record of the segments."""
    return read_table(spark, "records", segments)


def _read_shares(shares: Iterable[list[str]], table: str) -> Iterator[pyarrow.RecordBatch]:
    for files in shares:
        yield from _read(files, table)


def _read(files: list[str], table: str) -> Iterator[pyarrow.RecordBatch]:
    schema = arrow_schema(SCHEMAS[table])
    if table in ("records", "scan"):
        parse = parse_segment if table == "records" else scan_segment
        yield from _batches((row for file in files for row in _parsed(file, parse)), schema)
        return
    read = moves_of if table == "moves" else clients_of
    for file in files:
        yield from read(read_bytes(Path(file)), file, schema)


def expand(sums: DataFrame) -> DataFrame:
    """Return the batches of SUMS rows of the table "scan", as rows of the table "records"."""
    ranges = sums.select(*Sums._fields)
    # A file is unpacked once by the task that needs parts of it.
    ranges = ranges.repartition("file").sortWithinPartitions("file", "begins")
    return ranges.mapInArrow(_expand, SCHEMA)


def _expand(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    wanted = (Sums(**fields) for batch in batches for fields in batch.to_pylist())

    def rows() -> Iterator[Row]:
        for file, ranges in groupby(wanted, key=lambda one: one.file):
            data = _bytes(file)
            for one in ranges:
                yield from expand_sums(data, one)

    yield from _batches(rows(), arrow_schema(SCHEMA))


def _parsed(file: str, parse: Callable[[bytes, str], Iterator[Row | Sums]]) -> Iterator[Row | Sums]:
    try:
        data = _bytes(file)
    except LogError as error:
        fault = Row(
            file, *owner_by_name(file), -1, FAULT, origin="LOG", text=str(error), position=-1
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
    if len(schema) == len(Row._fields):
        columns = zip(*rows, strict=True)
    else:
        columns = [[getattr(row, name, None) for row in rows] for name in schema.names]
    arrays = [
        pyarrow.array(column, type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
