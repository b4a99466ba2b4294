"""The logs as one Spark DataFrame: a row per record, parsed where the segment is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from broker.memberlog.records import SUFFIX
from tools.verify.findings import BadInput
from tools.verify.parse import parse_segment
from tools.verify.rows import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def find_segments(places: list[Path]) -> list[Path]:
    """Return all segments at or below the places, each once."""
    found: set[Path] = set()
    for place in places:
        if not place.exists():
            raise BadInput(f"{place} does not exist")
        files = [place] if place.is_file() else place.rglob(f"*{SUFFIX}")
        found.update(file.resolve() for file in files)
    if not found:
        listed = ", ".join(map(str, places))
        raise BadInput(f"there is no member log (*{SUFFIX}) in {listed}")
    return sorted(found)


def read_records(spark: SparkSession, segments: list[Path]) -> DataFrame:
    """Parse all segments, a task for each or a few small ones; no record passes through here."""
    paths = [str(path) for path in segments]
    tasks = min(len(paths), max(spark.sparkContext.defaultParallelism, _tasks(segments)))
    rows = spark.sparkContext.parallelize(paths, tasks).flatMap(_parse_file)
    return spark.createDataFrame(rows, SCHEMA, verifySchema=False)


def _tasks(segments: list[Path]) -> int:
    """Return how many tasks of some 16 MiB the segments make."""
    return sum(path.stat().st_size for path in segments) // (16 << 20)


def _parse_file(path: str) -> Iterator[tuple[object, ...]]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    # Plain tuples: Spark's side knows no classes of ours.
    yield from map(tuple, parse_segment(data, path))
