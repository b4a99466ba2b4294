"""Follows the logs of live members: looks at new records again and again, and checks them.

At each look the new bytes of the incarnations are parsed and added to the rows held. All positions
that every live member has reached are compared, as in the full check; all but the last few of them
are then released. So the data held grows with the distance between members, not with time; it is
little enough for this process, and needs no Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tools.verify.checks import total_order, views_and_segments
from tools.verify.findings import BadInput, Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.offsets import LiveLogs
from tools.verify.input.rows import SCHEMA, Row
from tools.verify.live import bygone
from tools.verify.live.progress import KEPT, ClusterProgress, LogProgress
from tools.verify.sql.kept import Here

if TYPE_CHECKING:
    import pyarrow

EVERY_SECONDS = 1.0  # between the beginnings of two looks, when there is something new
STOP_SECONDS = 0.1  # in which a stop is noticed between two looks
QUIET_LOOKS = 3  # looks without anything new, until findings that wait are reported
COMPARED = (RecordKind.BATCH, *total_order.ANCHORS)


@dataclass(slots=True)
class FollowResult:
    """The result of one look."""

    progress: LogProgress
    findings: list[Finding] = field(default_factory=list)
    records: int = 0  # in all looks
    unread_bytes: int = 0  # in the files after what was read, at the end of this look

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
            "unknown": p.unknown,
        }


class Follower:
    """Reads new parts of live logs, and checks them together with the rows held."""

    def __init__(self, places: list[Path], saved: list[Row]) -> None:
        self._logs = LiveLogs(places, saved)
        self._held: pyarrow.Table | None = None
        self._last: FollowResult | None = None
        self._cluster = ClusterProgress()
        self._cluster.take(row for row in saved if row.kind in views_and_segments.CONTROL_KINDS)
        self._forgotten = self._cluster.verified  # positions up to here are no longer held
        self._quiet = 0  # looks without anything new

    def look(self) -> Iterator[FollowResult]:
        """Yield the findings in records written since the last look; nothing if there are none."""
        import pyarrow

        from tools.verify.input.source import to_arrow
        from tools.verify.input.tables import arrow_schema

        control: list[Row] = []
        compared: list[pyarrow.RecordBatch] = []
        for rows in self._logs.advance():
            control += (row for row in rows if row.kind in views_and_segments.CONTROL_KINDS)
            some = [row for row in rows if row.kind in COMPARED]
            compared.append(to_arrow(some, arrow_schema(SCHEMA)))
        if compared:
            self._quiet = 0
            yield from self._check(control, pyarrow.Table.from_batches(compared))
            return
        self._quiet += 1
        if self._quiet != QUIET_LOOKS or self._last is None:
            return
        # Nothing more was written: findings that wait for a second check can have it.
        if found := self._cluster.check():
            yield replace(self._last, findings=found)

    def _check(self, control: list[Row], compared: pyarrow.Table) -> Iterator[FollowResult]:
        import pyarrow
        from pyarrow.compute import field as column

        cluster = self._cluster
        cluster.take(control)
        bygone.forget(self._logs.read, cluster.first_epoch, cluster.gone)
        found = cluster.check()
        if found and self._last is not None:  # reported at once; nothing more is verified yet
            yield replace(self._last, findings=found)
            found = []
        if self._held is not None:
            compared = pyarrow.concat_tables([self._held, compared])
        progress = cluster.progress()
        reached = progress.verified
        verified = Here(compared.filter(column("last") <= reached))
        begin = max(cluster.begin(), self._forgotten + 1)
        inactive, cutoffs = cluster.begin_inactive, cluster.cutoffs
        compared_here = total_order.compare_batches(verified, inactive, cutoffs, begin)
        found += cluster.new_differences(compared_here[2])
        self._forgotten = max(self._forgotten, reached - KEPT)
        self._held = compared.filter(column("last") > self._forgotten).combine_chunks()
        self._last = FollowResult(progress, found, cluster.records, self._logs.unread())
        yield self._last


def follow(
    places: list[Path], stopped: Callable[[], bool], saved: list[Row] | None = None
) -> Iterator[FollowResult]:
    """Yield a result whenever there was something new, until `stopped`.

    `saved` are the rows of a saved checkpoint, whose segments are left out. Raises `BadInput` for
    files that are not logs, or of several clusters.
    """
    for place in places:
        if not place.is_dir():
            raise BadInput(f"{place} is not a directory: name the members' log directories")
    follower = Follower([place.resolve() for place in places], saved or [])
    while not stopped():
        until = time.monotonic() + EVERY_SECONDS
        yield from follower.look()
        while not stopped() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, STOP_SECONDS))
