"""Pictures of the report: inline SVG over one time axis, with the epochs as bands behind them.

They show members and their primaries, how far each member lags behind the furthest, messages per
second, and redeliveries by cause. Colours are classes of the page's style, so that one picture
works in light and dark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from typing import NamedTuple

from tools.verify.findings import Finding
from tools.verify.format.moves import CAUSES, Op
from tools.verify.report.markup import table, tag, text
from tools.verify.report.timeline import (
    SLICES,
    IncarnationTimeline,
    MoveCount,
    Span,
    Timeline,
)

WIDTH, LEFT, RIGHT = 960, 64, 26
PLOT = WIDTH - LEFT - RIGHT
HEAD, FOOT = 20, 38  # above a picture: epochs; below it: times, and the label of a finding
LANE, BAR_TOP, BAR_HEIGHT = 40, 18, 16
CHART = 120
NAME_MAX = 40  # characters of a member's name
BAND_MIN = 14.0  # pixels of a band of epochs; those that are shorter share one
LETTER = 7.5  # pixels, about
MARKS_MAX = 50
LINES = 9  # colours of lines in the style; further lines are dashed
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
    "start": "\u25b8", "snapshot": "\u25c6", "stop": "\u25a0", "end": "\u2715", "vote": "!",
}  # fmt: skip

Points = dict[int, int]
"""Points of a line: value by slice; where one is missing there is a gap."""


class Band(NamedTuple):
    """A time in one epoch, or in several that are too short to draw separately."""

    begin_us: int
    end_us: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"epoch {self.first}" if self.first == self.last else f"epochs {self.range}"

    @property
    def range(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}\u2013{self.last}"


def pictures(timeline: Timeline, findings: list[Finding]) -> Iterator[str]:
    """Yield all pictures with their headings."""
    frame = _Frame(timeline, findings)
    members = _by_member(timeline.incarnations)
    yield from frame.figure(
        "Members over time",
        _lanes(frame, members),
        len(members) * LANE,
        "Dark: in a primary. Pale: running, but in none. Nothing: no log of that time. "
        "&#9656; start, &#9670; state received, &#9632; stop, &#10005; the log just ends, "
        "! disputed vote. Bands behind: epochs.",
    )
    yield from frame.chart(
        "Positions behind the furthest member",
        lags(timeline),
        "A line has gaps where its member was in no primary.",
        {member: _away(timeline, incarnations) for member, incarnations in members.items()},
    )
    if timeline.move_counts:
        yield from frame.chart("Messages per second", _rates(timeline), "Moves in all queues.", {})
        yield from _redeliveries(timeline.move_counts)


class _Frame:
    """What all pictures share: time axis, epochs, findings."""

    def __init__(self, timeline: Timeline, findings: list[Finding]) -> None:
        self.timeline = timeline
        self._bands = epoch_bands(timeline)
        self._findings = _marks(timeline, findings)
        self._ticks = list(time_ticks(timeline.begin_us, timeline.end_us))

    def x(self, time_us: int) -> float:
        timeline = self.timeline
        share = (time_us - timeline.begin_us) / (timeline.end_us - timeline.begin_us)
        return LEFT + min(max(share, 0.0), 1.0) * PLOT

    def figure(self, name: str, drawn: Iterable[str], height: int, caption: str) -> Iterator[str]:
        """Yield a heading and a picture, its content moved below the line of epochs."""
        bands = (self._band(band, number % 2, height) for number, band in enumerate(self._bands))
        marks = (
            _mark(self.x(time), height, said, named=i == 0)
            for i, (time, said) in enumerate(self._findings)
        )
        ticks = (
            _line(self.x(time), height, self.x(time), height + 4)
            + _label(self.x(time), height + 17, label, "middle")
            for time, label in self._ticks
        )
        axis = _line(LEFT, height, WIDTH - RIGHT, height)
        picture = tag(
            "svg", *bands, *drawn, *marks, axis, *ticks, role="img", aria_label=name,
            viewBox=f"0 {-HEAD} {WIDTH} {height + HEAD + FOOT}",
        )  # fmt: skip
        yield tag("h2", name)
        yield tag(
            "figure",
            tag("div", picture, class_="scroll", role="region", aria_label=name, tabindex=0),
            tag("figcaption", caption),
        )

    def chart(
        self, name: str, lines: Mapping[str, Points], said: str, more: dict[str, str]
    ) -> Iterator[str]:
        """Yield a chart of lines, each with its greatest value in the legend."""
        tops = {key: max(points.values(), default=0) for key, points in lines.items()}
        top = max(tops.values(), default=0)
        legend = []
        for i, key in enumerate(lines):
            words = [f"{_short(key)}: at most {tops[key]:,}", more.get(key, "")]
            sample = tag("i", class_=_line_class(i))
            legend.append(tag("li", sample, text("span", ", ".join(filter(None, words)))))
        caption = said + tag("ul", *legend, class_="legend")
        yield from self.figure(name, [*_scale(top), *_polylines(lines, top)], CHART, caption)

    def _band(self, band: Band, odd: int, height: int) -> str:
        begin, end = self.x(band.begin_us), self.x(band.end_us)
        width = max(end - begin, 1.0)
        said = f"{band}: {_clock(band.begin_us)} to {_clock(band.end_us)}"
        drawn = _box(begin, -HEAD, width, height + HEAD, f"band b{odd}", said)
        for label in (str(band), band.range):
            if len(label) * LETTER + 4 < width:
                return drawn + _label(begin + 3, -6, label)
        return drawn


def _line(x1: float, y1: float, x2: float, y2: float, title: str = "", look: str = "axis") -> str:
    inside = text("title", title) if title else ""
    return tag("line", inside, class_=look, x1=x1, y1=y1, x2=x2, y2=y2)


def _label(x: float, y: float, said: str, anchor: str = "start", look: str = "quiet") -> str:
    return text("text", said, class_=look, x=x, y=y, text_anchor=anchor)


def _box(x: float, y: int, width: float, height: int, look: str, title: str) -> str:
    inside = text("title", title)
    return tag("rect", inside, class_=look, x=x, y=y, width=width, height=height)


def epoch_bands(timeline: Timeline) -> list[Band]:
    """Return the epochs as bands of time; neighbours too narrow to be distinguished are one band.

    An epoch ends where the next one begins at the latest; a time without a visible primary stays a
    gap.
    """
    times: dict[int, tuple[int, int]] = {}
    for one in timeline.incarnations:
        for span in one.spans:
            begin, end = times.get(span.epoch, (span.begin_us, span.end_us))
            times[span.epoch] = min(begin, span.begin_us), max(end, span.end_us)
    bands: list[Band] = []
    for epoch, (begin, end) in sorted(times.items()):
        if bands:
            begin = max(begin, bands[-1].begin_us)
            bands[-1] = bands[-1]._replace(end_us=min(bands[-1].end_us, begin))
        bands.append(Band(begin, max(begin, end), epoch, epoch))
    return _joined(bands, (timeline.end_us - timeline.begin_us) / PLOT * BAND_MIN)


def _joined(bands: Iterable[Band], least_us: float) -> list[Band]:
    """Return bands, in order; those narrower than this are merged with their neighbours."""
    drawn: list[Band] = []
    for band in bands:
        last = drawn[-1] if drawn else band
        end = max(last.end_us, band.end_us)
        narrow = last.end_us - last.begin_us < least_us and end - last.begin_us < 2 * least_us
        if drawn and (narrow or band.end_us <= last.end_us):
            drawn[-1] = last._replace(end_us=end, last=max(last.last, band.last))
        else:
            drawn.append(band)
    return drawn


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


def _mark(x: float, height: int, said: str, named: bool) -> str:
    """Draw the line of a finding; the first one with its label beside it."""
    line = _line(x, 0, x, height, f"a finding: {said}", "mark")
    if not named:
        return line
    side, anchor = (x + 4, "start") if x < WIDTH * 0.7 else (x - 4, "end")
    return line + _label(side, height + 33, _short(said), anchor, "finding")


# -- members ---------------------------------------------------------------------------------------


def _by_member(incarnations: list[IncarnationTimeline]) -> dict[str, list[IncarnationTimeline]]:
    members: dict[str, list[IncarnationTimeline]] = {}
    for one in sorted(incarnations, key=lambda one: (one.member, one.incarnation)):
        members.setdefault(one.member, []).append(one)
    return members


def _lanes(frame: _Frame, members: dict[str, list[IncarnationTimeline]]) -> Iterator[str]:
    """Yield a lane for each member: name above, below it one bar for each incarnation."""
    for number, (member, incarnations) in enumerate(members.items()):
        top, count = number * LANE, len(incarnations)
        words = [f"{count:,} incarnation{'s' * (count != 1)}", _away(frame.timeline, incarnations)]
        beside = text("tspan", ", ".join(filter(None, words)), class_="quiet", dx=8)
        yield tag("text", escape(_short(member)), beside, class_="name", x=LEFT, y=top + 13)
        y = top + BAR_TOP
        lives = [Span(one.begin_us, one.end_us, one.incarnation) for one in incarnations]
        yield from _bars(frame, lives, y, "idle", member)
        spans = [span for one in incarnations for span in one.spans]
        yield from _bars(frame, spans, y, "active", member)
        yield from _event_marks(frame, incarnations, y)


def _bars(frame: _Frame, spans: list[Span], y: int, look: str, member: str) -> Iterator[str]:
    pixel = (frame.timeline.end_us - frame.timeline.begin_us) / PLOT + 1
    bands = (Band(span.begin_us, span.end_us, span.epoch, span.epoch) for span in sorted(spans))
    for band in _joined(bands, pixel):
        x = frame.x(band.begin_us)
        width = max(frame.x(band.end_us) - x - 0.7, 1.0)  # a line of background between two
        said = str(band) if look == "active" else "in no primary"
        yield _box(x, y, width, BAR_HEIGHT, look, f"{member}: {said}")


def _away(timeline: Timeline, incarnations: list[IncarnationTimeline]) -> str:
    """Return the share of time that a member was in no primary; "" for less than a thousandth."""
    inside = sum(span.end_us - span.begin_us for one in incarnations for span in one.spans)
    share = 100 * (1 - inside / max(timeline.end_us - timeline.begin_us, 1))
    if share < 0.1:
        return ""
    return f"in no primary for {share:.1f} % of the time" if share < 99.95 else "never in a primary"


def _event_marks(frame: _Frame, incarnations: list[IncarnationTimeline], y: int) -> Iterator[str]:
    drawn: set[tuple[int, str]] = set()
    for one in incarnations:
        for time, what, said in one.events:
            x = frame.x(time)
            place = int(x / 4), what
            if place not in drawn:
                drawn.add(place)
                title = text("title", f"{one.member} (incarnation {one.incarnation}) {said}")
                mark = _EVENT_MARKS[what] + title
                yield tag("text", mark, class_="event", x=x, y=y + 12, text_anchor="middle")


# -- charts ----------------------------------------------------------------------------------------


def lags(timeline: Timeline) -> dict[str, Points]:
    """Return, by member, how far it was behind the furthest at the end of each slice of time.

    There is a point only if the member is in a primary then. Positions missed while it is away are
    no lag, and neither are those applied in the rest of a slice after it left. Without its own
    batch in a slice it stays where it was; an activation says where it begins.
    """
    reached: dict[tuple[str, int], int] = {}
    furthest: dict[int, int] = {}
    for number, member, position in timeline.slices:
        reached[member, number] = position
        furthest[number] = max(furthest.get(number, 0), position)
    found: dict[str, Points] = {}
    for member, incarnations in _by_member(timeline.incarnations).items():
        spans = sorted(span for one in incarnations for span in one.spans)
        for span in spans:
            place = member, timeline.slice_of(span.begin_us)
            reached[place] = max(reached.get(place, 0), span.position)
        present = _present(timeline, spans)
        position = highest = 0
        points = found[member] = Points()
        for number in range(SLICES):
            highest = max(highest, furthest.get(number, 0))
            position = reached.get((member, number), position)
            if number in present:
                points[number] = max(highest - position, 0)
    return found


def _present(timeline: Timeline, spans: list[Span]) -> set[int]:
    """Return the slices at whose end a member is in a primary; the last one ends with the logs."""
    present: set[int] = set()
    for span in spans:
        last = timeline.slice_of(span.end_us)
        present.update(range(timeline.slice_of(span.begin_us), last))
        if span.end_us >= timeline.end_us:
            present.add(last)
    return present


def _polylines(lines: Mapping[str, Points], top: int) -> Iterator[str]:
    step = PLOT / SLICES
    scale = (CHART - 8) / max(top, 1)
    for i, (key, of_line) in enumerate(lines.items()):
        for _, run in groupby(enumerate(of_line), key=lambda one: one[1] - one[0]):
            points = [
                (LEFT + (number + 0.5) * step, CHART - of_line[number] * scale) for _, number in run
            ]
            if len(points) == 1:
                (x, y), half = points[0], step / 2
                points = [(x - half, y), (x + half, y)]
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            yield tag("polyline", text("title", key), class_=_line_class(i), points=joined)


def _line_class(number: int) -> str:
    return f"line c{number % LINES}{' dashed' if number >= LINES else ''}"


def _scale(top: int) -> Iterator[str]:
    """Draw the height of a chart: its greatest value, and nothing at its foot."""
    yield _line(LEFT, 8, WIDTH - RIGHT, 8)
    said = f"{top:,.0f}" if top < 100_000 else f"{top / 1000:,.0f} k"
    yield _label(LEFT - 6, 12, said, "end")
    yield _label(LEFT - 6, CHART + 4, "0", "end")


def _rates(timeline: Timeline) -> dict[str, Points]:
    """Return messages per second, by kind of move and slice."""
    sums = {(name, number): 0 for name in _SHOWN.values() for number in range(SLICES)}
    for one in timeline.move_counts:
        if one.op in _SHOWN and 0 <= one.number < SLICES:
            sums[_SHOWN[one.op], one.number] += one.n
    a_second = 1e6 / timeline.slice_us
    return {
        name: {number: round(sums[name, number] * a_second) for number in range(SLICES)}
        for name in _SHOWN.values()
    }


def _redeliveries(move_counts: list[MoveCount]) -> Iterator[str]:
    """Yield bars: why messages were returned to their queues, and how many were redelivered."""
    counts: Counter[str] = Counter()
    for one in move_counts:
        if one.op == Op.RETURNED:
            counts[CAUSES[one.op][one.cause]] += one.n
    delivered = sum(one.n for one in move_counts if one.op == Op.DELIVERED)
    redelivered = sum(one.n for one in move_counts if one.op == Op.DELIVERED and one.flag)
    yield tag("h2", "Redeliveries by cause")
    if not counts:
        yield tag("p", f"No message went back to its queue; {delivered:,} were delivered.")
        return
    rows = []
    for cause, n in counts.most_common():
        bar = tag("div", class_="bar", style=f"width: {100 * n / max(counts.values()):.1f}%")
        rows.append([text("td", cause), tag("td", f"{n:,}", class_="n"), tag("td", bar)])
    yield table(["went back to its queue", "messages", ""], rows, "causes")
    yield tag(
        "p",
        f"Of {delivered:,} deliveries {redelivered:,} were of messages that had been delivered "
        "before.",
    )
