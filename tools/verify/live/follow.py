"""Follows the logs of live members: a stream of what is new, checked by micro-batch.

Structured Streaming reads the new bytes of each incarnation in tasks of their own.  Each
micro-batch adds them to the rows that are held, compares all positions that every live member has
reached, as the full check does, and releases those positions but the last few.  So what is held
grows with the distance between members, not with time; Spark holds it, and spills it to disk.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, cast

from tools.verify.checks import total_order, views_and_segments
from tools.verify.findings import BadInput, Finding
from tools.verify.format.records import SUFFIX, RecordKind
from tools.verify.input.offsets import Offsets, Settled, segments_by_incarnation, settled_in
from tools.verify.input.rows import Row
from tools.verify.input.segments import size_of
from tools.verify.live.progress import KEPT, ClusterProgress, LogProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVERY_SECONDS = 1  # between micro-batches, when there is something new
FEW = 100_000  # records that one task compares faster than several after a shuffle
STOP_SECONDS = 30.0  # for the micro-batch that is under way
STARTS = 20
NOT_STARTED = "failed to connect back"
"""Spark gives the process that plans a stream 10 s to start, which a busy machine may exceed."""


@dataclass(slots=True)
class FollowResult:
    """What one micro-batch found."""

    progress: LogProgress
    findings: list[Finding] = field(default_factory=list)
    records: int = 0  # in all micro-batches
    unread_bytes: int = 0  # in the files after what was read, at the end of this micro-batch

    def as_document(self) -> dict[str, object]:
        """Return how far all members are, as plain values for JSON."""
        p = self.progress
        return {
            "event": "lag",
            "newest": p.newest,
            "verified": p.verified,
            "unverified": p.unverified,
            "records": self.records,
            "unread_bytes": self.unread_bytes,
            "members": [lag._asdict() for lag in p.lags],
            "absent": p.absent,
        }


class Follower:
    """Checks micro-batches; Spark calls `take_batch` with what is new, one after the other."""

    def __init__(self, places: list[Path], saved: list[Row]) -> None:
        self._places = places
        self.settled = settled_in(saved)
        self.offsets = Path()  # where Spark records the offsets of each micro-batch
        self._held: DataFrame | None = None
        self._last: FollowResult | None = None
        self._lock = Lock()  # the stream checks in a thread of its own
        self.cluster = ClusterProgress()
        self.cluster.take(row for row in saved if row.kind in views_and_segments.CONTROL_KINDS)
        self._forgotten = self.cluster.verified()  # positions up to here are no longer held
        self.failure: Exception | None = None
        self.began = False  # a stream without a micro-batch yet may be started again
        self.results: SimpleQueue[FollowResult] = SimpleQueue()

    def take_batch(self, new: DataFrame, number: int) -> None:
        """Check what is new together with what is held."""
        self.began = True
        new.persist()
        try:
            with self._lock:
                result = self._check(new)
                result.unread_bytes = unread(self._read_by(number), self._places, self.settled)
                self.results.put(result)
                self._last = result
        except Exception as error:
            self.failure = error
            raise
        finally:
            new.unpersist()

    def settle(self) -> Iterator[FollowResult]:
        """Yield the findings that waited to be confirmed by a second check, if there are any."""
        with self._lock:
            found = self.cluster.check()
            if found and self._last is not None:
                yield replace(self._last, findings=found)

    def _read_by(self, number: int) -> Offsets:
        """Return the offsets of a micro-batch: its file's last line; Spark's own come first."""
        from tools.verify.input.source import OFFSETS

        noted = (self.offsets / str(number)).read_text(encoding="utf-8").splitlines()[-1]
        return cast("Offsets", json.loads(noted)[OFFSETS])

    def _check(self, new: DataFrame) -> FollowResult:
        from pyspark.sql import functions as f

        cluster, before = self.cluster, self.cluster.records
        kinds = [int(kind) for kind in views_and_segments.CONTROL_KINDS]
        cluster.take(Row(*row) for row in new.filter(f.col("kind").isin(kinds)).collect())
        found = cluster.check()
        if found and self._last is not None:  # reported at once; nothing more is verified yet
            self.results.put(replace(self._last, findings=found))
            found = []
        compared = [int(kind) for kind in (RecordKind.BATCH, *total_order.ANCHORS)]
        rows = new.filter(f.col("kind").isin(compared))
        if self._held is not None:
            rows = self._held.unionByName(rows)
        progress = cluster.progress()
        held = (progress.newest - self._forgotten) * len(progress.lags)  # at most
        if cluster.records - before + held < FEW:
            rows = rows.coalesce(1)  # spares a shuffle
        reached = progress.verified
        found += cluster.new_differences(self._differences(rows.filter(f.col("last") <= reached)))
        self._forgotten = max(self._forgotten, reached - KEPT)
        # A local checkpoint: without lineage, which would grow with each micro-batch.
        kept = rows.filter(f.col("last") > self._forgotten).coalesce(2).localCheckpoint()
        if self._held is not None:
            self._held.unpersist()
        self._held = kept
        return FollowResult(progress, found, cluster.records)

    def _differences(self, rows: DataFrame) -> list[Finding]:
        cluster = self.cluster
        inactive, cutoffs = cluster.begin_inactive, cluster.cutoffs()
        begin = max(cluster.begin(), self._forgotten + 1)
        differences = total_order.find_differences(rows, inactive, cutoffs, begin)
        return total_order.describe_differences(rows, differences, inactive, cutoffs)


def follow(
    spark: SparkSession,
    places: list[Path],
    scratch: Path,
    stopped: Callable[[], bool],
    saved: list[Row] | None = None,
) -> Iterator[FollowResult]:
    """Yield a result whenever there was something new, until `stopped`.

    `saved` are the rows of a saved checkpoint, whose segments are left out.  Raises `BadInput` for
    what is no log, or of several clusters.
    """
    from tools.verify.input.source import NAME, MemberLogSource

    for place in places:
        if not place.is_dir():
            raise BadInput(f"{place} is not a directory: name the members' log directories")
    spark.dataSource.register(MemberLogSource)
    places = [place.resolve() for place in places]
    follower = Follower(places, saved or [])
    reader = spark.readStream.format(NAME)
    reader = reader.option("paths", json.dumps([str(place) for place in places]))
    stream = reader.option("settled", json.dumps(follower.settled)).load()
    for attempt in range(STARTS):
        kept = scratch / f"stream{attempt}"
        follower.offsets = kept / "offsets"
        writer = stream.writeStream.foreachBatch(follower.take_batch)
        writer = writer.option("checkpointLocation", kept.as_uri())
        query = writer.trigger(processingTime=f"{EVERY_SECONDS} seconds").start()
        try:
            yield from _results(follower, query, stopped)
            ended = None if query.isActive else _reason(follower, query)
        finally:
            _stop(query)
        if ended is None:
            break
        if follower.began or NOT_STARTED not in str(ended) or attempt == STARTS - 1:
            raise ended
    while not follower.results.empty():
        yield follower.results.get()


def unread(read: Offsets, places: list[Path], settled: Settled) -> int:
    """Return how many bytes there are in the files of all incarnations beyond what was read."""
    left = 0
    for key, segments in segments_by_incarnation(places).items():
        where = read.get(key)
        reached = settled.get(Path(key).name, -1) if where is None else where["segment"]
        for number, path in segments.items():
            if number > reached:
                left += size_of(path)
            elif where is not None and number == reached and path.suffix == SUFFIX:
                left += max(size_of(path) - where["bytes"], 0)
    return left


def _results(
    follower: Follower, query: StreamingQuery, stopped: Callable[[], bool]
) -> Iterator[FollowResult]:
    """Yield results until `stopped`, or until the stream ends by itself."""
    quiet = time.monotonic()
    while query.isActive and not stopped():
        try:
            yield follower.results.get(timeout=0.2)
            quiet = time.monotonic()
        except Empty:
            if query.status["isTriggerActive"]:
                quiet = time.monotonic()
            elif time.monotonic() - quiet > 2 * EVERY_SECONDS:
                # Nothing more was written: what waits for a second check can have it.
                yield from follower.settle()


def _stop(query: StreamingQuery) -> None:
    """Stop between two micro-batches: Spark reports an interrupted one as an error."""
    until = time.monotonic() + STOP_SECONDS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        time.sleep(0.05)
    query.stop()


def _reason(follower: Follower, query: StreamingQuery) -> Exception:
    """Return why the stream ended by itself."""
    if follower.failure is not None:
        return follower.failure
    reason = str(query.exception())
    found = re.search(r"BadInput: (.+)", reason)
    return BadInput(found[1]) if found else RuntimeError(reason)
