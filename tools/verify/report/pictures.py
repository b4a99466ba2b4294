"""Pictures of the report: inline SVG over one time axis, with the epochs as bands behind them.

Members and their primaries, commands and messages per second, how far each member lags behind the
furthest, and redeliveries by cause.  Colours are classes of the page's style, so that the same
picture is right in light and dark.  All text from logs is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from tools.verify.findings import Finding
from tools.verify.format.moves import Op
from tools.verify.report.timeline import SLICES, IncarnationTimeline, Span, Timeline
from tools.verify.report.traffic import MoveCount, return_causes

WIDTH, LEFT, RIGHT = 960, 64, 26
PLOT = WIDTH - LEFT - RIGHT
HEAD, FOOT = 20, 38  # above a picture: epochs; below it: times, and the label of a finding
LANE, BAR_TOP, BAR_HEIGHT = 40, 18, 16
CHART = 120
CAUSE, CAUSE_LEFT = 26, 270
NAME_MAX = 40  # characters of a member's name
BAND_MIN = 14.0  # pixels of a band; epochs that are shorter share one
LETTER = 7.5  # pixels, about
MARKS_MAX = 50
LINES = 9  # colours of lines; what comes after them is dashed
TICKS_MAX = 7
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_STEPS_S = (
    1, 2, 5, 10, 15, 30, _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE,
    30 * _MINUTE, _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY,
    14 * _DAY, 30 * _DAY, 90 * _DAY, 365 * _DAY, 3650 * _DAY,
)  # fmt: skip
_SHOWN: dict[int, str] = {
    Op.PUBLISHED: "published", Op.DELIVERED: "delivered", Op.SETTLED: "settled",
}  # fmt: skip
_EVENT_MARKS = {
    "start": "\u25b8",
    "snapshot": "\u25c6",
    "stop": "\u25a0",
    "end": "\u2715",
    "vote": "!",
}

Runs = list[list[tuple[int, int]]]
"""Points (slice, value) of a line; a new run where there is a gap."""


class Band(NamedTuple):
    """A time in one epoch, or in several that are too short to be drawn apart."""

    begin_us: int
    end_us: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"epoch {self.first}" if self.first == self.last else f"epochs {self.range}"

    @property
    def range(self) -> str:
        """Return the numbers alone."""
        return str(self.first) if self.first == self.last else f"{self.first}\u2013{self.last}"


def pictures(timeline: Timeline, findings: list[Finding]) -> Iterator[str]:
    """Yield all pictures with their headings."""
    frame = _Frame(timeline, findings)
    members = _by_member(timeline.incarnations)
    yield "<h2>Members over time</h2>"
    yield frame.figure(
        "Members over time",
        _lanes(frame, members),
        len(members) * LANE,
        "Dark: in a primary. Pale: running, but in none. Nothing: no log of that time. "
        "&#9656; start, &#9670; state received, &#9632; stop, &#10005; the log just ends, "
        "! disputed vote. Bands behind: epochs.",
    )
    yield "<h2>Positions behind the furthest member</h2>"
    lags = lag_runs(timeline)
    yield frame.chart(
        "Positions behind the furthest member",
        lags,
        "A line has gaps where its member was in no primary.",
        {member: _away(timeline, incarnations) for member, incarnations in members.items()},
    )
    yield "<h2>Commands applied per second</h2>"
    yield _throughput(frame)
    if timeline.move_counts:
        yield "<h2>Messages per second</h2>"
        yield frame.chart("Messages per second", _rates(timeline), "Moves in all queues.", {})
        yield from _redeliveries(timeline.move_counts)


class _Frame:
    """What all pictures share: time axis, epochs, findings."""

    def __init__(self, timeline: Timeline, findings: list[Finding]) -> None:
        self.timeline = timeline
        self._bands = epoch_bands(timeline)
        self._findings = _marks(timeline, findings)
        self._ticks = list(time_ticks(timeline.begin_us, timeline.end_us))

    def x(self, time_us: int) -> float:
        """Return where a time is, in pixels."""
        return x_of(self.timeline, time_us)

    def figure(self, name: str, drawn: Iterable[str], height: int, caption: str) -> str:
        """Return a picture, its content moved below the line of epochs."""
        bands = "".join(self._band(band, number % 2, height) for number, band in self._bands)
        marks = "".join(
            _mark(self.x(time), height, text, named=i == 0)
            for i, (time, text) in enumerate(self._findings)
        )
        ticks = "".join(
            f'<line class="axis" x1="{self.x(time):.1f}" x2="{self.x(time):.1f}" y1="{height}" '
            f'y2="{height + 4}"/><text class="quiet" x="{self.x(time):.1f}" y="{height + 17}" '
            f'text-anchor="middle">{escape(label)}</text>'
            for time, label in self._ticks
        )
        return (
            f'<figure><div class="scroll" role="region" aria-label="{name}" tabindex="0">'
            f'<svg viewBox="0 {-HEAD} {WIDTH} {height + HEAD + FOOT}" role="img" '
            f'aria-label="{name}">{bands}{"".join(drawn)}{marks}'
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height}" y2="{height}"/>'
            f"{ticks}</svg></div><figcaption>{caption}</figcaption></figure>"
        )

    def chart(self, name: str, lines: Mapping[str, Runs], said: str, more: dict[str, str]) -> str:
        """Return a chart of lines, each with its greatest value in the legend."""
        tops = {
            key: max((v for run in runs for _, v in run), default=0) for key, runs in lines.items()
        }
        top = max(tops.values(), default=0)
        legend = "".join(
            f'<li><i class="{_line_class(i)}"></i>{escape(_short(key))}: at most {tops[key]:,}'
            f"{f', {more[key]}' if more.get(key) else ''}</li>"
            for i, key in enumerate(lines)
        )
        drawn = [_scale(top), *_polylines(lines, top)]
        return self.figure(name, drawn, CHART, f'{said}<ul class="legend">{legend}</ul>')

    def _band(self, band: Band, odd: int, height: int) -> str:
        begin, end = self.x(band.begin_us), self.x(band.end_us)
        width = max(end - begin, 1.0)
        label = next(
            (text for text in (str(band), band.range) if len(text) * LETTER + 4 < width), ""
        )
        return (
            f'<rect class="band b{odd}" x="{begin:.1f}" y="{-HEAD}" width="{width:.1f}" '
            f'height="{height + HEAD}"><title>{band}: {_clock(band.begin_us)} to '
            f"{_clock(band.end_us)}</title></rect>"
            + (f'<text class="quiet" x="{begin + 3:.1f}" y="-6">{label}</text>' if label else "")
        )


def x_of(timeline: Timeline, time_us: int) -> float:
    """Return where a time is in the pictures, in pixels."""
    share = (time_us - timeline.begin_us) / (timeline.end_us - timeline.begin_us)
    return LEFT + min(max(share, 0.0), 1.0) * PLOT


def epoch_bands(timeline: Timeline) -> list[tuple[int, Band]]:
    """Return the epochs as bands of time, each with its number in the row of bands.

    An epoch ends where the next one begins at the latest.  Neighbours that are too narrow to be
    told apart are one band; a time without a primary that can be seen stays a gap.
    """
    times: dict[int, tuple[int, int]] = {}
    for one in timeline.incarnations:
        for span in one.spans:
            begin, end = times.get(span.epoch, (span.begin_us, span.end_us))
            times[span.epoch] = min(begin, span.begin_us), max(end, span.end_us)
    least = (timeline.end_us - timeline.begin_us) / PLOT * BAND_MIN
    bands: list[Band] = []
    for epoch, (begin, end) in sorted(times.items()):
        begin = max(begin, bands[-1].begin_us if bands else begin)
        if bands:
            bands[-1] = bands[-1]._replace(end_us=min(bands[-1].end_us, begin))
        bands.append(Band(begin, max(begin, end), epoch, epoch))
    drawn: list[Band] = []
    for band in bands:
        last = drawn[-1] if drawn else None
        if (
            last is not None
            and last.end_us - last.begin_us < least
            and band.end_us - last.begin_us < 2 * least
        ):
            drawn[-1] = last._replace(end_us=band.end_us, last=band.last)
        else:
            drawn.append(band)
    return list(enumerate(drawn))


def time_ticks(begin_us: int, end_us: int) -> Iterator[tuple[int, str]]:
    """Yield round times of UTC and their labels, at most `TICKS_MAX` and the date at the first."""
    seconds = (end_us - begin_us) / 1e6
    step = next((s for s in _STEPS_S if seconds / s <= TICKS_MAX), _STEPS_S[-1])
    form = "%H:%M:%S" if step < _MINUTE else "%H:%M" if step < _DAY else "%d %b"
    first = -(-begin_us // (step * 1_000_000)) * step
    day = ""
    for second in range(first, end_us // 1_000_000 + 1, step):
        at = datetime.fromtimestamp(second, UTC)
        label = at.strftime(form)
        if step < _DAY and (date := at.strftime("%d %b")) != day:
            label, day = f"{date} {label}", date
        elif step >= _DAY and (year := at.strftime("%Y")) != day:
            label, day = f"{label} {year}", year
        yield second * 1_000_000, label


def _clock(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _short(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 1]}\u2026"


# -- findings --------------------------------------------------------------------------------------


def _marks(timeline: Timeline, findings: list[Finding]) -> list[tuple[int, str]]:
    """Return time and label of the findings, one for each time."""
    named: dict[int, str] = {}
    for f in findings:
        time = timeline.time_of(f.position) if f.position >= 0 else None
        if time is not None:
            named.setdefault(time, f"{f.property} at position {f.position:,} {f.member}".rstrip())
    return sorted(named.items())[:MARKS_MAX]


def _mark(x: float, height: int, text: str, named: bool) -> str:
    """Draw the line of a finding; the first one with its label beside it."""
    line = (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}">'
        f"<title>a finding: {escape(text)}</title></line>"
    )
    if not named:
        return line
    side, anchor = (x + 4, "start") if x < WIDTH * 0.7 else (x - 4, "end")
    return line + (
        f'<text class="finding" x="{side:.1f}" y="{height + 33}" text-anchor="{anchor}">'
        f"{escape(_short(text))}</text>"
    )


# -- members ---------------------------------------------------------------------------------------


def _by_member(incarnations: list[IncarnationTimeline]) -> dict[str, list[IncarnationTimeline]]:
    members: dict[str, list[IncarnationTimeline]] = {}
    for one in sorted(incarnations, key=lambda one: (one.member, one.incarnation)):
        members.setdefault(one.member, []).append(one)
    return members


def _lanes(frame: _Frame, members: dict[str, list[IncarnationTimeline]]) -> Iterator[str]:
    """Yield a lane for each member: name above, below it one bar for each incarnation."""
    for number, (member, incarnations) in enumerate(members.items()):
        top = number * LANE
        count = len(incarnations)
        said = [f"{count:,} incarnation{'s' * (count != 1)}", _away(frame.timeline, incarnations)]
        yield (
            f'<text class="name" x="{LEFT}" y="{top + 13}">{escape(_short(member))}'
            f'<tspan class="quiet" dx="8">{", ".join(filter(None, said))}</tspan></text>'
        )
        y = top + BAR_TOP
        lives = [Span(one.begin_us, one.end_us, one.incarnation) for one in incarnations]
        for band in _merged(frame.timeline, lives):
            yield _box(frame, band, y, "idle", f"{escape(member)}: in no primary")
        spans = [span for one in incarnations for span in one.spans]
        for band in _merged(frame.timeline, spans):
            yield _box(frame, band, y, "active", f"{escape(member)}: {band}")
        yield from _event_marks(frame, incarnations, y)


def _away(timeline: Timeline, incarnations: list[IncarnationTimeline]) -> str:
    """Return how much of the time a member was in no primary, "" for less than one in thousand."""
    inside = sum(span.end_us - span.begin_us for one in incarnations for span in one.spans)
    share = 100 * (1 - inside / max(timeline.end_us - timeline.begin_us, 1))
    if share < 0.1:
        return ""
    return f"in no primary for {share:.1f} % of the time" if share < 99.95 else "never in a primary"


def _merged(timeline: Timeline, spans: list[Span]) -> Iterator[Band]:
    """Yield spans, with those less than a pixel apart that share one merged."""
    pixel = (timeline.end_us - timeline.begin_us) // PLOT + 1
    band: Band | None = None
    for span in sorted(spans):
        if band is not None and (
            span.end_us <= band.end_us
            or (span.begin_us - band.end_us < pixel and span.end_us - band.begin_us <= 2 * pixel)
        ):
            end = max(band.end_us, span.end_us)
            band = band._replace(end_us=end, last=max(band.last, span.epoch))
            continue
        if band is not None:
            yield band
        band = Band(span.begin_us, span.end_us, span.epoch, span.epoch)
    if band is not None:
        yield band


def _box(frame: _Frame, band: Band, y: int, look: str, title: str) -> str:
    x = frame.x(band.begin_us)
    width = max(frame.x(band.end_us) - x - 0.7, 1.0)  # a line of background between two
    return (
        f'<rect class="{look}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}">'
        f"<title>{title}</title></rect>"
    )


def _event_marks(frame: _Frame, incarnations: list[IncarnationTimeline], y: int) -> Iterator[str]:
    drawn: set[tuple[int, str]] = set()
    for one in incarnations:
        for time, what, text in one.events:
            place = int(frame.x(time) / 4), what
            if what in _EVENT_MARKS and place not in drawn:
                drawn.add(place)
                yield (
                    f'<text class="event" x="{frame.x(time):.1f}" y="{y + 12}" '
                    f'text-anchor="middle">{_EVENT_MARKS[what]}<title>'
                    f"{escape(f'{one.member} (incarnation {one.incarnation}) {text}')}"
                    "</title></text>"
                )


# -- charts ----------------------------------------------------------------------------------------


def lag_runs(timeline: Timeline) -> dict[str, Runs]:
    """Return, by member, how far it was behind the furthest at the end of each slice of time.

    There is a point only where the member is in a primary then: what it misses while it is away is
    no lag, and what was applied in the rest of a slice after it left is none either.  Without a
    batch of its own in a slice it stays where it was; an activation says where it begins.
    """
    reached: dict[tuple[str, int], int] = {}
    furthest: dict[int, int] = {}
    for number, member, _, position in timeline.slices:
        reached[member, number] = position
        furthest[number] = max(furthest.get(number, 0), position)
    lags: dict[str, Runs] = {}
    for member, incarnations in _by_member(timeline.incarnations).items():
        spans = sorted(span for one in incarnations for span in one.spans)
        for span in spans:
            place = member, timeline.slice_of(span.begin_us)
            reached[place] = max(reached.get(place, 0), span.position)
        present = _present(timeline, spans)
        position = highest = 0
        runs: Runs = []
        for number in range(SLICES):
            highest = max(highest, furthest.get(number, 0))
            position = reached.get((member, number), position)
            if number not in present:
                continue
            point = number, max(highest - position, 0)
            if runs and runs[-1][-1][0] == number - 1:
                runs[-1].append(point)
            else:
                runs.append([point])
        lags[member] = runs
    return lags


def _present(timeline: Timeline, spans: list[Span]) -> set[int]:
    """Return the slices at whose end a member is in a primary; the last one ends with the logs."""
    present: set[int] = set()
    for span in spans:
        last = timeline.slice_of(span.end_us)
        present.update(range(timeline.slice_of(span.begin_us), last))
        if span.end_us >= timeline.end_us:
            present.add(last)
    return present


def _polylines(lines: Mapping[str, Runs], top: int) -> Iterator[str]:
    step = PLOT / SLICES
    scale = (CHART - 8) / max(top, 1)
    for i, (key, runs) in enumerate(lines.items()):
        for run in runs:
            points = [
                (LEFT + (number + 0.5) * step, CHART - value * scale) for number, value in run
            ]
            if len(points) == 1:
                (x, y), half = points[0], step / 2
                points = [(x - half, y), (x + half, y)]
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            yield (
                f'<polyline class="{_line_class(i)}" points="{joined}">'
                f"<title>{escape(key)}</title></polyline>"
            )


def _line_class(number: int) -> str:
    return f"line c{number % LINES}{' dashed' if number >= LINES else ''}"


def _scale(top: float) -> str:
    """Draw the height of a chart: its greatest value, and nothing at its foot."""
    said = f"{top:,.0f}" if top < 100_000 else f"{top / 1000:,.0f} k"
    return (
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="8" y2="8"/>'
        f'<text class="quiet" x="{LEFT - 6}" y="12" text-anchor="end">{said}</text>'
        f'<text class="quiet" x="{LEFT - 6}" y="{CHART + 4}" text-anchor="end">0</text>'
    )


def _throughput(frame: _Frame) -> str:
    """Return bars: commands per second by slice, of the busiest member."""
    timeline = frame.timeline
    most: dict[int, float] = {}
    for number, _, commands, _ in timeline.slices:
        most[number] = max(most.get(number, 0.0), commands * 1e6 / timeline.slice_us)
    top = max(most.values(), default=0.0)
    step = PLOT / SLICES
    drawn = [_scale(top)]
    for number, rate in most.items():
        height = rate / max(top, 1e-9) * (CHART - 8)
        drawn.append(
            f'<rect class="rate" x="{LEFT + number * step:.1f}" y="{CHART - height:.1f}" '
            f'width="{step - 0.6:.1f}" height="{height:.1f}">'
            f"<title>{rate:,.0f} a second</title></rect>"
        )
    said = f"At most {top:,.0f} a second, each slice of {_length(timeline.slice_us)}."
    return frame.figure("Commands applied per second", drawn, CHART, said)


def _length(us: int) -> str:
    seconds = us / 1e6
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def _rates(timeline: Timeline) -> dict[str, Runs]:
    """Return messages per second, by kind of move and slice."""
    sums = {(name, number): 0 for name in _SHOWN.values() for number in range(SLICES)}
    for one in timeline.move_counts:
        if one.op in _SHOWN and 0 <= one.number < SLICES:
            sums[_SHOWN[one.op], one.number] += one.n
    a_second = 1e6 / timeline.slice_us
    return {
        name: [[(number, round(sums[name, number] * a_second)) for number in range(SLICES)]]
        for name in _SHOWN.values()
    }


def _redeliveries(move_counts: list[MoveCount]) -> Iterator[str]:
    """Yield bars: why messages were returned to their queues, and how many were redelivered."""
    counts = return_causes(move_counts)
    delivered = sum(one.n for one in move_counts if one.op == Op.DELIVERED)
    redelivered = sum(one.n for one in move_counts if one.redelivered)
    yield "<h2>Redeliveries by cause</h2>"
    if not counts:
        yield f"<p>No message went back to its queue; {delivered:,} were delivered.</p>"
        return
    scale = (WIDTH - CAUSE_LEFT - 110) / max(counts.values())
    drawn = "".join(
        f'<text x="0" y="{i * CAUSE + 16}">{escape(cause)}</text>'
        f'<rect class="cause" x="{CAUSE_LEFT}" y="{i * CAUSE + 3}" '
        f'width="{max(n * scale, 1):.1f}" height="18"/>'
        f'<text x="{CAUSE_LEFT + n * scale + 6:.1f}" y="{i * CAUSE + 16}">{n:,}</text>'
        for i, (cause, n) in enumerate(counts.items())
    )
    name = "Redeliveries by cause"
    yield (
        f'<figure><div class="scroll" role="region" aria-label="{name}" tabindex="0">'
        f'<svg viewBox="0 0 {WIDTH} {len(counts) * CAUSE + 6}" role="img" aria-label="{name}">'
        f"{drawn}</svg></div><figcaption>Messages that went back to their queues, by why. Of "
        f"{delivered:,} deliveries {redelivered:,} were of messages that had been delivered "
        "before.</figcaption></figure>"
    )
