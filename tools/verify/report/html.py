"""The report as one self-contained HTML page: no script, no font, nothing fetched from anywhere.

Pictures are inline SVG over one time axis: incarnations of members and their primaries, commands
applied, and how far each member lags behind the furthest.  All text from logs is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape

from broker.machine.move_log import Op
from tools.verify.findings import PROPERTIES, Finding
from tools.verify.report.result import Report
from tools.verify.report.timeline import SLICES, IncarnationTimeline, Slice, Timeline
from tools.verify.report.traffic import MoveCount, return_causes

WIDTH, LEFT, RIGHT = 960, 130, 16
LANE, CHART = 30, 120
BAR, CAUSE_LEFT = 26, 270
INCARNATIONS_MAX, MARKS_MAX, AROUND_MAX = 60, 50, 20
FINDINGS_MAX = 200
COLOURS = ("#1b6ca8", "#c2571a", "#3f7d20", "#7b3fa0", "#a8871b", "#1b8f8f", "#a81b5c")
STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  color: #1c2430; background: #fff; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { padding: .6rem 1rem; border-radius: .4rem; font-weight: 600; }
.good { background: #e2f2e0; color: #1d5216; } .bad { background: #fbe3e0; color: #84190d; }
.unsure { background: #fdf0d0; color: #6b4a00; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25rem .6rem;
  border-bottom: 1px solid #dde3ea; vertical-align: top; } td.n { text-align: right;
  font-variant-numeric: tabular-nums; } svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: #1c2430; } .axis { stroke: #b8c2cd; }
svg text.quiet { fill: #5a6673; } svg text.finding { fill: #84190d; }
pre { font-size: .8rem; margin: .3rem 0; white-space: pre-wrap; color: #5a6673; }
figure { margin: 0 0 1rem; break-inside: avoid; }
figcaption { color: #5a6673; font-size: .9rem; }
@page { margin: 15mm; }
@media print { body { margin: 0; padding: 0; max-width: none; font-size: 10pt; }
  h2 { break-after: avoid; } tr, li { break-inside: avoid; } thead { display: table-header-group; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def page(report: Report, title: str) -> str:
    """Return the whole page."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *_verdict(report),
        *_counts(report),
    ]
    timeline = report.timeline
    if timeline is not None and timeline.end_us > timeline.begin_us:
        parts += _pictures(timeline, report.findings)
    parts += _findings(report.findings)
    parts += _checks(report)
    if report.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes[:FINDINGS_MAX])
        parts.append(f"<h2>What is not known</h2><ul>{notes}</ul>")
        if len(report.notes) > FINDINGS_MAX:
            parts.append(
                f"<p>and {len(report.notes) - FINDINGS_MAX} more (--json has them all)</p>"
            )
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _verdict(report: Report) -> Iterator[str]:
    if report.consistent:
        said, *more = report.verdict()
        look = "unsure" if report.unseen else "good"
        yield f'<p class="verdict {look}">{escape(said[0].upper() + said[1:])}.</p>'
        yield from (f"<p>{escape(line[0].upper() + line[1:])}.</p>" for line in more)
    else:
        first = report.findings[0]
        yield (
            f'<p class="verdict bad">Not consistent: {_several(len(report.findings), "finding")}; '
            f"the first: {escape(str(first))}</p>"
        )


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _counts(report: Report) -> Iterator[str]:
    cells = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{count:,}</td></tr>'
        for name, count in asdict(report.counts).items()
    )
    yield "<h2>What was looked at</h2>"
    yield f"<table><tbody>{cells}</tbody></table>"
    if report.clients is not None:
        yield f"<p>{escape(str(report.clients))}</p>"


def _checks(report: Report) -> Iterator[str]:
    """Yield how much each check examined: one that saw nothing proves nothing."""
    if not report.checks:
        return
    cells = "".join(
        f"<tr><td>{escape(one.promise)}</td><td>{escape(one.check)}</td>"
        f'<td class="n">{one.rows:,}</td><td>{escape(one.of)}</td></tr>'
        for one in report.checks
    )
    yield "<h2>Over how much each check went</h2><table><thead><tr><th>promise</th><th>check</th>"
    yield f"<th>rows</th><th>of what</th></tr></thead><tbody>{cells}</tbody></table>"


def _findings(findings: list[Finding]) -> Iterator[str]:
    if not findings:
        return
    yield "<h2>Findings, the earliest first</h2><table><thead><tr><th>promise</th><th>member</th>"
    yield "<th>position</th><th>what</th></tr></thead><tbody>"
    for number, f in enumerate(findings[:FINDINGS_MAX]):
        around = "\n".join(f.around) if number < AROUND_MAX else ""
        who = f"{f.member} (incarnation {f.incarnation})" if f.member else "all"
        where = f"{f.position:,}" if f.position >= 0 else ""
        yield (
            f"<tr><td>{f.property}: {escape(PROPERTIES[f.property])}</td><td>{escape(who)}</td>"
            f'<td class="n">{where}</td><td>{escape(f.what)}'
            f"{f'<pre>{escape(around)}</pre>' if around else ''}</td></tr>"
        )
    yield "</tbody></table>"
    if len(findings) > FINDINGS_MAX:
        yield f"<p>and {len(findings) - FINDINGS_MAX} more (--json has them all)</p>"


# -- pictures --------------------------------------------------------------------------------------


def _pictures(timeline: Timeline, findings: list[Finding]) -> Iterator[str]:
    marks = _marks(timeline, findings)
    incarnations = _latest(timeline.incarnations)
    yield "<h2>Members over time</h2>"
    left_out = len(timeline.incarnations) - len(incarnations)
    yield _figure(
        _lanes(timeline, incarnations),
        len(incarnations) * LANE,
        timeline,
        marks,
        (f"{left_out} earlier incarnations are not drawn. " if left_out else "")
        + "Dark: in a primary view, with its epoch. Pale: outside of one. "
        "&#9656; start, &#9670; state received, &#9632; stop, &#10005; the log just ends.",
    )
    yield "<h2>Commands applied per second</h2>"
    most = _throughput(timeline)
    yield _figure(
        _bars(most), CHART, timeline, marks, f"At most {max(most.values()):,.0f} a second."
    )
    if timeline.move_counts:
        rates = _rates(timeline)
        best = max((n for line in rates.values() for n in line.values()), default=0)
        yield "<h2>Messages per second</h2>"
        yield _figure(
            _lines(rates, best), CHART, timeline, marks, f"At most {best:,}. {_legend(rates)}"
        )
        yield from _redeliveries(timeline.move_counts)
    yield "<h2>Positions behind the furthest member</h2>"
    lags = _lags(timeline.slices)
    worst = max((lag for line in lags.values() for lag in line.values()), default=0)
    yield _figure(
        _lines(lags, worst), CHART, timeline, marks, f"At most {worst:,}. {_legend(lags)}"
    )


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
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="#c0271a" '
        f'stroke-width="1.5" stroke-dasharray="4 3"><title>a finding: {escape(text)}</title></line>'
    )
    if not named:
        return line
    side, anchor = (x + 4, "start") if x < WIDTH * 0.7 else (x - 4, "end")
    return line + (
        f'<text class="finding" x="{side:.1f}" y="{height + 16}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _figure(
    drawn: Iterable[str],
    height: int,
    timeline: Timeline,
    marks: list[tuple[int, str]],
    caption: str,
) -> str:
    begin, end = (_clock(t) for t in (timeline.begin_us, timeline.end_us))
    lines = "".join(
        _mark(_x(timeline, time), height, text, named=i == 0)
        for i, (time, text) in enumerate(marks)
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height + 38}" role="img">{"".join(drawn)}{lines}'
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height}" y2="{height}"/>'
        f'<text class="quiet" x="{LEFT}" y="{height + 32}">{begin}</text>'
        f'<text class="quiet" x="{WIDTH - RIGHT}" y="{height + 32}" text-anchor="end">{end}</text>'
        f"</svg><figcaption>{caption}</figcaption></figure>"
    )


def _x(timeline: Timeline, time_us: int) -> float:
    share = (time_us - timeline.begin_us) / (timeline.end_us - timeline.begin_us)
    return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def _clock(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _latest(incarnations: list[IncarnationTimeline]) -> list[IncarnationTimeline]:
    """Return the incarnations that are drawn: the last ones."""
    last = sorted(incarnations, key=lambda one: one.end_us)[-INCARNATIONS_MAX:]
    kept = {(one.member, one.incarnation) for one in last}
    return [one for one in incarnations if (one.member, one.incarnation) in kept]


def _lanes(timeline: Timeline, incarnations: list[IncarnationTimeline]) -> Iterator[str]:
    for number, one in enumerate(incarnations):
        top = number * LANE + 5
        name = escape(f"{one.member} (incarnation {one.incarnation})")
        yield f'<text x="0" y="{top + 14}">{name}</text>'
        yield _box(timeline, one.begin_us, one.end_us, top, "#dfe5ec", f"{name}: in no primary")
        for begin, end, text in _merged_spans(timeline, one):
            yield _box(timeline, begin, end, top, "#3f7d20", f"{name}: {text}")
        yield from _event_marks(timeline, one, top)


def _merged_spans(timeline: Timeline, one: IncarnationTimeline) -> Iterator[tuple[int, int, str]]:
    """Yield spans, with those less than a pixel apart merged."""
    pixel = (timeline.end_us - timeline.begin_us) // (WIDTH - LEFT - RIGHT) + 1
    begin = end = -1
    first = last = 0
    for span in one.spans:
        if begin >= 0 and span.end_us - begin > pixel:
            yield begin, end, _epochs(first, last)
            begin = -1
        if begin < 0:
            begin, first = span.begin_us, span.epoch
        end, last = span.end_us, span.epoch
    if begin >= 0:
        yield begin, end, _epochs(first, last)


def _epochs(first: int, last: int) -> str:
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def _box(timeline: Timeline, begin: int, end: int, top: int, colour: str, text: str) -> str:
    x = _x(timeline, begin)
    width = max(_x(timeline, end) - x, 1.0)
    return (
        f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="20" fill="{colour}">'
        f"<title>{text}</title></rect>"
    )


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


def _event_marks(timeline: Timeline, one: IncarnationTimeline, top: int) -> Iterator[str]:
    drawn: set[tuple[int, str]] = set()
    for time, what, text in one.events:
        place = int(_x(timeline, time)), what
        if what in _EVENT_MARKS and place not in drawn:
            drawn.add(place)
            yield (
                f'<text x="{_x(timeline, time):.1f}" y="{top + 15}" text-anchor="middle">'
                f"{_EVENT_MARKS[what]}<title>{escape(text)}</title></text>"
            )


def _throughput(timeline: Timeline) -> dict[int, float]:
    """Return commands per second by slice, of the busiest member."""
    most: dict[int, float] = {0: 0.0}
    for number, _, commands, _ in timeline.slices:
        most[number] = max(most.get(number, 0.0), commands * 1e6 / timeline.slice_us)
    return most


def _rates(timeline: Timeline) -> dict[str, dict[int, int]]:
    """Return messages per second, by kind of move and slice."""
    sums: dict[str, dict[int, int]] = {name: {} for name in _SHOWN.values()}
    for one in timeline.move_counts:
        if one.op in _SHOWN and 0 <= one.number <= SLICES:
            line = sums[_SHOWN[one.op]]
            line[one.number] = line.get(one.number, 0) + one.n
    a_second = 1e6 / timeline.slice_us
    return {
        name: {number: round(line.get(number, 0) * a_second) for number in range(SLICES + 1)}
        for name, line in sums.items()
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
    most = max(counts.values())
    room = WIDTH - CAUSE_LEFT - 90
    drawn = "".join(
        f'<text x="0" y="{i * BAR + 16}">{escape(cause)}</text>'
        f'<rect x="{CAUSE_LEFT}" y="{i * BAR + 3}" width="{max(n / most * room, 1):.1f}" '
        f'height="18" fill="{COLOURS[1]}"/>'
        f'<text x="{CAUSE_LEFT + max(n / most * room, 1) + 6:.1f}" y="{i * BAR + 16}">{n:,}</text>'
        for i, (cause, n) in enumerate(counts.items())
    )
    yield (
        f'<figure><svg viewBox="0 0 {WIDTH} {len(counts) * BAR + 6}" role="img">{drawn}</svg>'
        f"<figcaption>Messages that went back to their queues, by why. Of {delivered:,} "
        f"deliveries {redelivered:,} were of messages that had been delivered before.</figcaption>"
        "</figure>"
    )


def _bars(most: dict[int, float]) -> Iterator[str]:
    top = max(most.values()) or 1.0
    step = (WIDTH - LEFT - RIGHT) / (SLICES + 1)
    for number, rate in most.items():
        height = rate / top * (CHART - 12)
        yield (
            f'<rect x="{LEFT + number * step:.1f}" y="{CHART - height:.1f}" '
            f'width="{step - 0.6:.1f}" height="{height:.1f}" fill="{COLOURS[0]}">'
            f"<title>{rate:,.0f} a second</title></rect>"
        )


def _lags(slices: list[Slice]) -> dict[str, dict[int, int]]:
    """Return, by member and slice, how far it was behind the furthest position."""
    lags: dict[str, dict[int, int]] = {}
    furthest, by_number = 0, {number: 0 for number, *_ in slices}
    for number, _, _, position in slices:
        by_number[number] = max(by_number[number], position)
    for number, highest in by_number.items():
        furthest = max(furthest, highest)
        by_number[number] = furthest
    for number, member, _, position in slices:
        lags.setdefault(member, {})[number] = max(by_number[number] - position, 0)
    return dict(sorted(lags.items()))


def _lines(lags: dict[str, dict[int, int]], worst: int) -> Iterator[str]:
    step = (WIDTH - LEFT - RIGHT) / (SLICES + 1)
    for colour, (member, line) in zip(_cycle(), lags.items(), strict=False):
        scale = (CHART - 16) / max(worst, 1)
        points = " ".join(
            f"{LEFT + (number + 0.5) * step:.1f},{CHART - 4 - lag * scale:.1f}"
            for number, lag in sorted(line.items())
        )
        yield (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{escape(member)}</title></polyline>"
        )


def _legend(lags: dict[str, dict[int, int]]) -> str:
    return " ".join(
        f'<span style="color:{colour}">&#9632; {escape(member)}</span>'
        for colour, member in zip(_cycle(), lags, strict=False)
    )


def _cycle() -> Iterator[str]:
    while True:
        yield from COLOURS
