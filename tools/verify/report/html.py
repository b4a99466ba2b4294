"""The report as one self-contained HTML page: no script, no font, nothing fetched from anywhere.

The verdict comes first, and beside it how much was examined for each promise; then pictures,
findings, and how much each check covered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from pathlib import Path

from tools.verify.findings import PROPERTIES, Finding
from tools.verify.report.markup import table, tag, text
from tools.verify.report.pictures import pictures
from tools.verify.report.result import Report

AROUND_MAX = 20
LISTED_MAX = 200  # findings, and notes
STYLE = Path(__file__).with_name("style.css")


def page(report: Report, title: str) -> str:
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        text("title", title),
        tag("style", STYLE.read_text(encoding="utf-8")),
        "</head><body>",
        text("h1", title),
        tag("div", tag("div", *_verdict(report)), _promises(report), class_="result"),
    ]
    if report.findings:
        parts += _findings(report.findings)
    timeline = report.timeline
    if timeline is not None and timeline.end_us > timeline.begin_us:
        parts += pictures(timeline, report.findings)
    if report.checks:
        parts += [tag("h2", "Over how much each check went"), _checks(report)]
    if report.notes:
        notes = "".join(text("li", note) for note in report.notes[:LISTED_MAX])
        parts += [tag("h2", "What is not known"), tag("ul", notes), _rest(len(report.notes))]
    return "\n".join([*parts, "</body></html>\n"])


def _rest(number: int) -> str:
    more = number - LISTED_MAX
    return tag("p", f"and {more} more (--json has them all)") if more > 0 else ""


def _verdict(report: Report) -> Iterator[str]:
    look, said = "good", "Consistent: what is marked \u2713 holds in these logs."
    if not report.consistent:
        number = len(report.findings)
        said = f"Not consistent: {_findings_said(number)}; the first: {report.findings[0]}"
        look = "bad"
    elif report.unseen or not report.held:
        look, said = "unsure", "Consistent as far as looked: only what is marked \u2713 was seen."
    yield text("p", said, class_=f"verdict {look}")
    counts = asdict(report.counts)
    counts["incarnations"] = counts.pop("lives")
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    yield tag("p", f"Read: {shown}.", class_="quiet")
    if report.clients is not None:
        yield text("p", str(report.clients), class_="quiet")


def _promises(report: Report) -> str:
    """Return each promise with the amount examined for it."""
    broken = Counter(one.property for one in report.findings)
    holes: dict[str, list[str]] = {}
    for one in report.unseen:
        for promise in one.promise.split():
            holes.setdefault(promise, []).append(f"{one.check}: no {one.of}")
    rows = []
    for name, title in PROPERTIES.items():
        on = [report.held[name]] if name in report.held else []
        if broken[name]:
            look, mark = "bad", f"\u2717 {_findings_said(broken[name])}"
        elif name in holes:
            look, mark = "unsure", "! not all seen"
        elif on:
            look, mark = "good", "\u2713 holds"
        else:
            look, mark, on = "quiet", "\u2013", ["nothing to see of it in these logs"]
        examined = "; ".join(on + holes.get(name, []))
        rows.append(
            [text("td", f"{name}: {title}"), text("td", mark, class_=look), text("td", examined)]
        )
    return table(["promise", "result", "examined on"], rows, "promises")


def _findings_said(number: int) -> str:
    return f"{number:,} finding{'s' * (number != 1)}"


def _checks(report: Report) -> str:
    """Return how much each check examined: one that saw nothing proves nothing."""
    rows = [
        [text("td", one.promise), text("td", one.check), tag("td", f"{one.rows:,}", class_="n"),
         text("td", one.of)]
        for one in report.checks
    ]  # fmt: skip
    return table(["promise", "check", "rows", "of what"], rows)


def _findings(findings: list[Finding]) -> Iterator[str]:
    rows = []
    for number, f in enumerate(findings[:LISTED_MAX]):
        around = "\n".join(f.around) if number < AROUND_MAX else ""
        who = f"{f.member} (incarnation {f.incarnation})" if f.member else "all"
        where = f"{f.position:,}" if f.position >= 0 else ""
        what = escape(f.what) + (text("pre", around) if around else "")
        title = f"{f.property}: {PROPERTIES[f.property]}"
        rows.append(
            [text("td", title), text("td", who), tag("td", where, class_="n"), tag("td", what)]
        )
    yield tag("h2", "Findings, the earliest first")
    yield table(["promise", "member", "position", "what"], rows)
    yield _rest(len(findings))
