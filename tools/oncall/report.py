"""How findings are shown: paragraphs for people, objects for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby

from tools.cli.answers import Json, Object, items
from tools.oncall.answers import LEVELS, Answers

WIDTH_MIN, WIDTH_MAX = 40, 100


def text(found: Answers, width: int) -> str:
    """All findings, what is not known, then a line that counts them."""
    width = max(WIDTH_MIN, min(width, WIDTH_MAX))
    return "\n\n".join([*(_paragraph(rows, width) for rows in _rows(found)), summary(found)])


def document(found: Answers) -> Object:
    """The same for a program."""
    best = found.best
    silent: list[Json] = [
        {"broker": str(one.address), "problem": str(one.problem)} for one in found.silent
    ]
    return {
        "cluster": best.get("cluster"), "status": best.get("status"),
        "findings": [*found.findings()], "unknown": [*found.unknown()], "silent": silent,
    }  # fmt: skip


def summary(found: Answers) -> str:
    """The number of findings of each level; if there are none, what was checked and is well."""
    listed = found.findings()
    told = []
    for level in LEVELS:
        count = sum(one.get("severity") == level for one in listed)
        told += [f"{count} {level}{'s' * (count > 1 and level != LEVELS[0])}"] * (count > 0)
    if found.silent:
        told.append(f"{len(found.silent)} did not answer")
    best = found.best
    said = ", ".join(told) or "nothing needs looking after"
    return (
        f"{best.get('cluster') or 'this broker'} is {best.get('status')}, "
        f"{best.get('members_here')} of {best.get('members')} members here: {said}"
    )


def _rows(found: Answers) -> Iterator[list[tuple[str, str]]]:
    for advice, alike in groupby(found.findings(), _advice):  # the same of several members: once
        yield [*(_head(found, one) for one in alike), *advice]
    for silent in found.silent:
        yield [("SILENT:", str(silent.problem))]
    for unknown in found.unknown():
        yield [("UNKNOWN:", unknown)]


def _head(found: Answers, one: Object) -> tuple[str, str]:
    since, seen_by = one.get("since_ms"), items(one.get("seen_by"))
    what = str(one.get("what"))
    if isinstance(since, int | float) and since:
        what += f", since {datetime.fromtimestamp(since / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if len(seen_by) < len(found.heard):
        what += f" (seen by {', '.join(map(str, seen_by))} only)"
    return f"{str(one.get('severity')).upper()}:", what


def _advice(one: Object) -> list[tuple[str, str]]:
    names = (("so:", "follows"), ("do:", "do"), ("see:", "see"))
    return [(label, str(one.get(name))) for label, name in names]


def _paragraph(rows: list[tuple[str, str]], width: int) -> str:
    return "\n".join(
        textwrap.fill(
            said, width, initial_indent=f"{label:<9} ", subsequent_indent=" " * 10,
            break_long_words=False, break_on_hyphens=False,
        )
        for label, said in rows if said
    )  # fmt: skip
