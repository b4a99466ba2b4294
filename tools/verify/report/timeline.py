"""Timeline of the logs: incarnations, their primaries, and positions over time.

For pictures, not for the verdict. Control records have no time of their own: they get that of the
batch before them in their incarnation, as its origin stamped it, or of the segment's header. Spark
aggregates data that grows with traffic into a fixed number of slices of time. Moves of messages are
counted by kind while the queue contract reads the source of each position, so each counts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tools.verify.checks.views_and_segments import (
    IncarnationId,
    incarnation_in,
    records_by_incarnation,
)
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import SUMS, Row
from tools.verify.sql.kept import Kept

SLICES = 120


class Span(NamedTuple):
    """A time in one primary view, in microseconds since 1970."""

    begin_us: int
    end_us: int
    epoch: int
    position: int = 0  # the position before the activation, or of a state received earlier


class Event(NamedTuple):
    """Event of an incarnation: "start", "snapshot", "stop", "end" or "vote"."""

    time_us: int
    what: str
    text: str


@dataclass(slots=True)
class IncarnationTimeline:
    """Timeline of one incarnation of a member."""

    member: str
    incarnation: int
    begin_us: int
    end_us: int
    spans: list[Span] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class Slice(NamedTuple):
    """The last position that one member applied in one slice of time."""

    number: int
    member: str
    position: int


class MoveCount(NamedTuple):
    """Number of moves of a kind in one slice of time."""

    number: int
    op: int
    cause: int
    flag: bool
    n: int


@dataclass(slots=True)
class Timeline:
    """Timeline of all members. Slices are of equal length; a missing one had no batch."""

    begin_us: int
    end_us: int
    incarnations: list[IncarnationTimeline]
    slices: list[Slice]
    move_counts: list[MoveCount] = field(default_factory=list)  # moves of messages, by slice

    @property
    def slice_us(self) -> int:
        return max((self.end_us - self.begin_us) // SLICES + 1, 1)

    def slice_of(self, time_us: int) -> int:
        """Return the number of the slice that a time is in."""
        return min(max(time_us - self.begin_us, 0) // self.slice_us, SLICES - 1)

    def count_moves(self, counted: Iterable[dict[str, Any]]) -> None:
        self.move_counts = [MoveCount(**one) for one in counted]

    def time_of(self, position: int) -> int | None:
        """Return approximately when a position was first applied."""
        reached = [s.number for s in self.slices if s.position >= position]
        return self.begin_us + min(reached) * self.slice_us if reached else None


def build_timeline(scan: Kept, rows: list[Row]) -> Timeline:
    """Return the timeline of the table "scan"; `rows` are its control rows."""
    ends = _ends(rows)
    incarnations = [
        _timeline_of(key, records, *ends.get(key, (0, 0)))
        for key, records in records_by_incarnation(rows)
    ]
    times = [time for one in incarnations for time in (one.begin_us, one.end_us) if time > 0]
    timeline = Timeline(min(times, default=0), max(times, default=0), incarnations, [])
    timeline.slices = _slices(scan, timeline)
    return timeline


def _ends(rows: list[Row]) -> dict[IncarnationId, tuple[int, int]]:
    """Return, by incarnation, the first and last time of its batches and control records."""
    ends: dict[IncarnationId, tuple[int, int]] = {}
    for row in rows:
        if row.time_us:
            one, time = incarnation_in(row), row.time_us
            begin, end = ends.get(one, (time, time))
            ends[one] = min(begin, time), max(end, time)
    return ends


def _timeline_of(
    incarnation: IncarnationId, records: list[Row], begin: int, end: int
) -> IncarnationTimeline:
    one = IncarnationTimeline(*incarnation, begin, end)
    primary: Span | None = None  # that it is in
    stopped, received = False, 0
    for row in records:
        time = row.time_us or begin
        if primary and row.kind in (RecordKind.ACTIVE, RecordKind.INACTIVE, RecordKind.STOP):
            one.spans.append(primary._replace(end_us=time))
            primary = None
        what = text = ""
        match row.kind:
            case RecordKind.START:
                what, text = "start", f"starts at position {row.position}"
            case RecordKind.ACTIVE:
                primary = Span(time, end, row.epoch or 0, row.position or received)
            case RecordKind.SNAPSHOT:
                received = row.position or 0
                what, text = "snapshot", f"takes the state at position {received} from {row.text}"
            case RecordKind.VOTE if row.text != "agreed":
                what, text = "vote", f"vote about position {row.position}: {row.text}"
            case RecordKind.STOP:
                stopped = True
                what, text = "stop", row.text or "stops"
            case _:
                pass
        if what:
            one.events.append(Event(time, what, text))
    if primary:
        one.spans.append(primary)
    if not stopped:
        one.events.append(Event(end, "end", "the log ends without a stop"))
    return one


def _slices(scan: Kept, timeline: Timeline) -> list[Slice]:
    rows = scan.ask(f"""
        SELECT number, member, MAX(last) AS position FROM (
            SELECT CAST(FLOOR((time_us - {timeline.begin_us}) / {timeline.slice_us}) AS INT)
                AS number, member, last
            FROM kept WHERE kind = {SUMS} AND time_us >= {timeline.begin_us}
        ) AS sliced WHERE number < {SLICES} GROUP BY number, member""")
    return sorted(Slice(**row) for row in rows.to_pylist())
