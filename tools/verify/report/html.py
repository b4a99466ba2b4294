"""The report as one self-contained HTML page: no script, no font, nothing fetched from anywhere.

First the verdict, and beside it on what each promise was examined; then pictures, findings, and
how much each check went over.  All text from logs is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from html import escape

from tools.verify.findings import PROPERTIES, Finding
from tools.verify.report.pictures import LINES, pictures
from tools.verify.report.result import Report

AROUND_MAX = 20
FINDINGS_MAX = 200
LIGHT = (
    "#1b6ca8", "#c2571a", "#3f7d20", "#7b3fa0", "#94740f", "#137c7c", "#a81b5c", "#5a6673",
    "#7a4a2b",
)  # fmt: skip
DARK = (
    "#6db3e8", "#f0935a", "#86c95f", "#c296e4", "#e0c04f", "#5fcaca", "#f07aad", "#b5bcc6",
    "#d0a27f",
)  # fmt: skip
assert len(LIGHT) == len(DARK) == LINES


def _lines(colours: tuple[str, ...]) -> str:
    return " ".join(f"--c{i}: {colour};" for i, colour in enumerate(colours))


STYLE = (
    ":root { color-scheme: light dark; --page: #fff; --ink: #1c2430; --quiet: #5a6673; "
    "--rule: #dde3ea; --axis: #b8c2cd; --idle: #cdd5de; --active: #3f7d20; --band0: #f2f6fa; "
    "--band1: #e4ecf4; --good: #e2f2e0; --good-ink: #1d5216; --bad: #fbe3e0; --bad-ink: #84190d; "
    "--unsure: #fdf0d0; --unsure-ink: #6b4a00; " + _lines(LIGHT) + " }\n"
    "@media (prefers-color-scheme: dark) { :root { --page: #14181e; --ink: #e3e8ee; "
    "--quiet: #a3adb9; --rule: #313a45; --axis: #4d5865; --idle: #465260; --active: #6fae4b; "
    "--band0: #1a2029; --band1: #232c38; --good: #1d3a1c; --good-ink: #c4ecbd; --bad: #4a1c17; "
    "--bad-ink: #ffc9c1; --unsure: #443410; --unsure-ink: #ffe2a0; "
    + _lines(DARK)
    + " } }\n"
    + "".join(f".c{i} {{ --line: var(--c{i}); }}\n" for i in range(LINES))
    + """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  color: var(--ink); background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin-bottom: .6rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.result { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 2fr); gap: 1.5rem;
  align-items: start; }
.verdict { margin: 0 0 1rem; padding: .6rem 1rem; border-radius: .4rem; font-weight: 600; }
.good { background: var(--good); color: var(--good-ink); }
.bad { background: var(--bad); color: var(--bad-ink); }
.unsure { background: var(--unsure); color: var(--unsure-ink); }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left;
  padding: .2rem .6rem; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
.promises { font-size: .9rem; } .promises td:nth-child(2) { white-space: nowrap; }
.quiet, figcaption, pre { color: var(--quiet); }
.scroll { overflow-x: auto; } .scroll svg { min-width: 44rem; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); } svg .name { font-weight: 600; }
svg .quiet { fill: var(--quiet); font-weight: 400; } svg .finding { fill: var(--bad-ink); }
svg .event { paint-order: stroke; stroke: var(--page); stroke-width: 3px; }
.axis { stroke: var(--axis); } .idle { fill: var(--idle); } .active { fill: var(--active); }
.b0 { fill: var(--band0); } .b1 { fill: var(--band1); }
.rate { fill: var(--c0); } .cause { fill: var(--c1); }
.mark { stroke: var(--c6); stroke-width: 1.5; stroke-dasharray: 4 3; }
polyline.line { fill: none; stroke: var(--line); stroke-width: 2; }
polyline.dashed { stroke-dasharray: 6 3; }
.legend { list-style: none; padding: 0; margin: .2rem 0; display: flex; flex-wrap: wrap;
  gap: .1rem 1.2rem; }
i.line { display: inline-block; width: 1.4rem; border-top: 3px solid var(--line);
  vertical-align: middle; margin-right: .4rem; } i.dashed { border-top-style: dashed; }
pre { font-size: .8rem; margin: .3rem 0; white-space: pre-wrap; }
figure { margin: 0 0 1rem; break-inside: avoid; } figcaption { font-size: .9rem; }
@media (max-width: 45rem) { .result { grid-template-columns: minmax(0, 1fr); gap: 0; } }
@page { margin: 15mm; }
@media print { body { margin: 0; padding: 0; max-width: none; font-size: 10pt; }
  h2 { break-after: avoid; } tr, li { break-inside: avoid; } thead { display: table-header-group; }
  .scroll svg { min-width: 0; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
)


def page(report: Report, title: str) -> str:
    """Return the whole page."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *_result(report),
    ]
    if report.findings:
        parts += _findings(report.findings)
    timeline = report.timeline
    if timeline is not None and timeline.end_us > timeline.begin_us:
        parts += pictures(timeline, report.findings)
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


def _result(report: Report) -> Iterator[str]:
    """Yield the verdict, and beside it each promise with what it was examined on."""
    yield '<div class="result"><div>'
    if report.consistent:
        look, said = "good", "Consistent: what is marked \u2713 holds in these logs."
        if report.unseen or not report.held:
            look, said = (
                "unsure",
                "Consistent as far as looked: only what is marked \u2713 was seen.",
            )
    else:
        look = "bad"
        number = len(report.findings)
        said = f"Not consistent: {number:,} finding{'s' * (number != 1)}; the first: "
        said += str(report.findings[0])
    yield f'<p class="verdict {look}">{escape(said)}</p>'
    counts = asdict(report.counts)
    counts["incarnations"] = counts.pop("lives")
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    yield f'<p class="quiet">Read: {shown}.</p>'
    if report.clients is not None:
        yield f'<p class="quiet">{escape(str(report.clients))}</p>'
    yield '</div><table class="promises"><thead><tr><th scope="col">promise</th>'
    yield '<th scope="col">result</th><th scope="col">examined on</th></tr></thead><tbody>'
    broken = Counter(one.property for one in report.findings)
    holes: dict[str, list[str]] = {}
    for one in report.unseen:
        for promise in one.promise.split():
            holes.setdefault(promise, []).append(f"{one.check}: no {one.of}")
    for name, title in PROPERTIES.items():
        on = [report.held[name]] if name in report.held else []
        if broken[name]:
            look, mark = "bad", f"\u2717 {broken[name]:,} finding{'s' * (broken[name] != 1)}"
        elif name in holes:
            look, mark = "unsure", "! not all seen"
        elif on:
            look, mark = "good", "\u2713 holds"
        else:
            look, mark, on = "quiet", "\u2013", ["nothing to see of it in these logs"]
        said = "; ".join(on + holes.get(name, []))
        yield (
            f"<tr><td>{name}: {escape(title)}</td>"
            f'<td class="{look}">{mark}</td><td>{escape(said)}</td></tr>'
        )
    yield "</tbody></table></div>"


def _checks(report: Report) -> Iterator[str]:
    """Yield how much each check examined: one that saw nothing proves nothing."""
    if not report.checks:
        return
    cells = "".join(
        f"<tr><td>{escape(one.promise)}</td><td>{escape(one.check)}</td>"
        f'<td class="n">{one.rows:,}</td><td>{escape(one.of)}</td></tr>'
        for one in report.checks
    )
    yield "<h2>Over how much each check went</h2><table><thead><tr>"
    yield '<th scope="col">promise</th><th scope="col">check</th><th scope="col">rows</th>'
    yield f'<th scope="col">of what</th></tr></thead><tbody>{cells}</tbody></table>'


def _findings(findings: list[Finding]) -> Iterator[str]:
    yield "<h2>Findings, the earliest first</h2><table><thead><tr>"
    yield '<th scope="col">promise</th><th scope="col">member</th><th scope="col">position</th>'
    yield '<th scope="col">what</th></tr></thead><tbody>'
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
