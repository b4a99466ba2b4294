"""Decides what a follower can forget: views long past, and the incarnations and epochs before them.

Pure. The rest reads like logs that begin with the first view still held, so no check misses the
forgotten part; only contradictions to older history go unseen, and are left to the full check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tools.verify.checks.views_and_segments import records_by_incarnation
from tools.verify.format.records import RecordKind
from tools.verify.input.offsets import Offsets
from tools.verify.input.rows import SEGMENT, EpochSums, Row, SegmentEnds, ends_of, in_json

VIEWS_KEPT = 128
"""The least number of views held; at most twice as many are."""


class Horizon(NamedTuple):
    """The oldest view that is held, and its epoch, or the first one after it."""

    ring: int
    epoch: int


def horizon_of(rows: Iterable[Row], known: Horizon | None) -> Horizon | None:
    """Return the point before which records of views can be dropped; `known`: the point before
    which they already are."""
    views, active = set(), []
    for row in rows:
        if _is_view(row):
            views.add(row.ring_seq or 0)
        elif row.kind == RecordKind.ACTIVE:
            active.append((row.ring_seq or 0, row.epoch or 0))
    if len(views) <= 2 * VIEWS_KEPT:
        return known
    ring = sorted(views)[-VIEWS_KEPT]
    newest = max((epoch for _, epoch in active), default=0)
    return Horizon(ring, min((epoch for at, epoch in active if at >= ring), default=newest + 1))


def recent_rows(rows: list[Row], horizon: Horizon) -> list[Row]:
    """Return the control rows that are not behind the horizon."""
    found = [row for row in rows if row.kind >= SEGMENT]
    for _, records in records_by_incarnation(rows):
        found += _recent_records(records, horizon)
    return found


def _recent_records(records: list[Row], horizon: Horizon) -> Iterator[Row]:
    """Yield an incarnation's START, and its records from the view on that it was in there."""
    views = [at for at, row in enumerate(records) if _is_view(row)]
    later = (at for at in views if (records[at].ring_seq or 0) >= horizon.ring)
    begin = next(later, max(views, default=0))
    for at, row in enumerate(records):
        gone = row.kind == RecordKind.ACTIVE and (row.epoch or 0) < horizon.epoch
        if row.kind == RecordKind.START or (at >= begin and not gone):
            yield row


def first_held_epoch(segments: Iterable[Row], horizon: Horizon, position: int) -> int:
    """Return the first epoch that decided anything beyond a position, or of the horizon."""
    held = (
        epoch
        for row in segments
        for epoch, sums in ends_of(row).epochs.items()
        if sums.last > position
    )
    return min([horizon.epoch, *held])


def without_epochs_before(row: Row, epoch: int) -> Row:
    """Return a SEGMENT row without earlier epochs, see `forget_epochs`."""
    ends = ends_of(row)
    return row._replace(text=in_json(ends)) if forget_epochs(ends, epoch) else row


def forget(logs: Offsets, epoch: int, gone: Mapping[str, int]) -> None:
    """Reduce earlier epochs as below where logs are read on, and drop everything of incarnations
    that are gone, by member."""
    for log in logs.values():
        if log.parser is not None:
            member, incarnation = log.parser.incarnation
            forget_epochs(log.parser.ends, epoch)
            if incarnation <= gone.get(member, -1):
                log.parser = None


def forget_epochs(ends: SegmentEnds, epoch: int) -> bool:
    """Keep only the end of each earlier epoch, not its beginning; return whether there was anything
    more."""
    gone = {of: sums for of, sums in ends.epochs.items() if of < epoch}
    if len(gone) <= 1 and all(sums.first < 0 for sums in gone.values()):
        return False
    far = EpochSums()
    for sums in gone.values():
        far.add(sums)
    far.first = -1
    kept = {of: sums for of, sums in ends.epochs.items() if of not in gone}
    since = min((sums.first for sums in kept.values() if sums.first >= 0), default=0)
    ends.epochs = {max(gone): far, **kept}
    ends.runs = [run for run in ends.runs if run.decided >= epoch]
    ends.voters_at = [at for at in ends.voters_at if at >= since]
    ends.activations = [one for one in ends.activations if one.epoch >= epoch]
    ends.roles = [one for one in ends.roles if one.epoch >= epoch]
    ends.origins = {of: origins for of, origins in ends.origins.items() if of >= epoch}
    return True


def _is_view(row: Row) -> bool:
    return row.kind == RecordKind.VIEW and bool(row.flag)
