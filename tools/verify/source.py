"""The member log as a data source of Spark: `spark.read.format("memberlog").load(DIR)`.

A partition is one segment or several small ones; its rows leave as Arrow batches, column by column,
so that no row is pickled on its way to Spark.  Imported only where pyspark is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tools.verify.findings import BadInput
from tools.verify.parse import parse_segment
from tools.verify.rows import SCHEMA, Row
from tools.verify.segments import find_segments, share_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "memberlog"
ROWS_PER_BATCH = 4096


class MemberLogSource(DataSource):
    """Options: `path`, a segment, directory or glob; or `paths`, a JSON list of such."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns; docs/MEMBERLOG.md says what they are."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads them all, in parallel."""
        return MemberLogReader(self._places(), schema, int(self.options.get("tasks", "0")))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads only what is new in live logs; `path` and `paths` are directories.

        Option `settled`: JSON, by MEMBER.INCARNATION the last segment that is left out.
        """
        from tools.verify.stream import MemberLogStream

        settled = json.loads(self.options.get("settled", "{}"))
        return MemberLogStream(self._places(), schema, settled)

    def _places(self) -> list[str]:
        places = json.loads(self.options["paths"]) if "paths" in self.options else []
        if "path" in self.options:
            places.append(self.options["path"])
        return [str(place) for place in places]


class Share(InputPartition):
    """The segments of one task."""

    def __init__(self, segments: Sequence[str]) -> None:
        self.segments = list(segments)


class MemberLogReader(DataSourceReader):
    """Reads segments; each of its tasks knows only its own."""

    def __init__(self, places: list[str], schema: StructType, tasks: int) -> None:
        self._places = places
        self._schema = schema
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Return the shares; `tasks` are wished for where there are many small segments."""
        segments = find_segments(list(map(Path, self._places)))
        return [Share([str(path) for path in share]) for share in share_out(segments, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches."""
        assert isinstance(partition, Share)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        rows: list[Row] = []
        for path in partition.segments:
            for row in _parse_file(path):
                rows.append(row)
                if len(rows) == ROWS_PER_BATCH:
                    yield to_arrow(rows, schema)
                    rows = []
        if rows:
            yield to_arrow(rows, schema)


def read_records(spark: SparkSession, segments: list[Path]) -> DataFrame:
    """Return a row per record of the segments, parsed where they are read."""
    spark.dataSource.register(MemberLogSource)
    reader = spark.read.format(NAME).option("paths", json.dumps([str(path) for path in segments]))
    return reader.option("tasks", spark.sparkContext.defaultParallelism).load()


def _parse_file(path: str) -> Iterator[Row]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    return parse_segment(data, path)


def to_arrow(rows: list[Row], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Return rows as Arrow has them."""
    columns = zip(*rows, strict=True)
    arrays = [
        pyarrow.array(column, type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
