"""The log as Spark DataFrames: one row per record, then each life's batches in their context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from broker.memberlog.records import SUFFIX, Kind
from tools.verify.findings import BadInput
from tools.verify.parse import SCHEMA, parse_segment

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
    """Parse all segments, one task each; nothing of them passes through this process."""
    paths = [str(path) for path in segments]
    rows = spark.sparkContext.parallelize(paths, len(paths)).flatMap(_parse_file)
    return spark.createDataFrame(rows, SCHEMA, verifySchema=False)


def _parse_file(path: str) -> Iterator[tuple[object, ...]]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    # Plain tuples: Spark's side knows no classes of ours.
    yield from map(tuple, parse_segment(data, path))


def in_context(records: DataFrame) -> DataFrame:
    """Add to batches and what frames them where the life stood just before.

    stood: last position before this record, null at the beginning of what is known
    primary_epoch, primary_ring: of the last ACTIVE, also after an INACTIVE
    active: whether no INACTIVE came after it
    unknown: there is damage between what set `stood` and this record
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    kinds = [Kind.START, Kind.ACTIVE, Kind.INACTIVE, Kind.BATCH, Kind.CONFIRM, Kind.SNAPSHOT]
    framed = records.filter(f.col("kind").isin(*map(int, kinds)) | f.col("torn"))
    up_to_here = Window.partitionBy("member", "incarnation").orderBy("lsn")
    before = up_to_here.rowsBetween(Window.unboundedPreceding, -1)
    is_active = f.col("kind") == int(Kind.ACTIVE)
    framed = framed.withColumn("tears", f.sum(f.col("torn").cast("int")).over(up_to_here))
    return (
        framed.withColumn("stood", f.last("last", ignorenulls=True).over(before))
        .withColumn("primary_epoch", f.last(f.when(is_active, f.col("epoch")), True).over(before))
        .withColumn("primary_ring", f.last(f.when(is_active, f.col("ring_seq")), True).over(before))
        .withColumn(
            "active",
            f.coalesce(
                f.last(
                    f.when(is_active, True).when(
                        f.col("kind").isin(int(Kind.INACTIVE), int(Kind.START)), False
                    ),
                    True,
                ).over(before),
                f.lit(False),
            ),
        )
        .withColumn(
            "unknown",
            f.col("tears")
            > f.coalesce(
                f.last(f.when(f.col("last").isNotNull(), f.col("tears")), True).over(before),
                f.lit(0),
            ),
        )
    )
