"""Live member logs as a streaming source of Spark: what is new, a task for each life.

Offsets are bytes of whole records, see `offsets`; they are planned beside the driver, and the bytes
between two of them are read and parsed in tasks.  Imported only where pyspark is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from tools.verify.input.offsets import LogPart, Offsets, Settled, advance, parts, read_part
from tools.verify.input.parse import parse_segment
from tools.verify.input.source import to_arrow

OFFSETS = "lives"


class NewBytes(InputPartition):
    """What one task reads."""

    def __init__(self, part: LogPart) -> None:
        self.part = part


class MemberLogStream(DataSourceStreamReader):
    """Reads what was written since the last look."""

    def __init__(self, places: list[str], schema: StructType, settled: Settled) -> None:
        self._places = [Path(place) for place in places]
        self._settled = settled
        self._schema = schema

    def initialOffset(self) -> dict[str, Any]:
        """Begin at the beginning of all logs, but for what is settled."""
        return {OFFSETS: {}}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where whole records end now; `offsets` bounds how much that is by itself."""
        return {OFFSETS: advance(cast("Offsets", start[OFFSETS]), self._places, self._settled)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each life that has something new."""
        return [NewBytes(part) for part in parts(start[OFFSETS], end[OFFSETS])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches."""
        assert isinstance(partition, NewBytes)
        found = read_part(partition.part)
        rows = [] if found is None else list(parse_segment(*found))
        if rows:
            yield to_arrow(rows, to_arrow_schema(self._schema, timezone="UTC"))
