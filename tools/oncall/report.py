"""How findings are shown: paragraphs for people, objects for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from tools.client.http_api import Object
from tools.oncall.answers import Answers, members
from tools.oncall.findings import CRITICAL, LEVELS, NOTICE, Finding

MANUAL = "docs/operations"
WIDTH_MIN, WIDTH_MAX = 40, 100
WIDTH_PLACE = 50
"""A place in the manual is no longer, so that one line has it at 60 columns."""


def text(found: Answers, listed: Sequence[Finding], width: int) -> str:
    """All of them, then a line that counts them."""
    width = max(WIDTH_MIN, min(width, WIDTH_MAX))
    return "\n\n".join([*(_paragraph(one, width) for one in listed), summary(found, listed)])


def document(found: Answers, listed: Sequence[Finding]) -> Object:
    """The same for a program."""
    return {
        "cluster": found.cluster.get("cluster"), "status": found.cluster.get("status"),
        "findings": [
            {**asdict(one), "chapter": f"{MANUAL}/{one.chapter}"} for one in listed
        ],
    }  # fmt: skip


def summary(found: Answers, listed: Sequence[Finding]) -> str:
    """How many of each level; of none, what was looked at and is well."""
    told = []
    for level in LEVELS:
        count = sum(one.level == level for one in listed)
        told += [f"{count} {level}{'s' if count > 1 and level != CRITICAL else ''}"] * (count > 0)
    every = members(found.cluster)
    here = sum(one.get("state") != "DOWN" for one in every)
    name, status = found.cluster.get("cluster") or "this broker", found.cluster.get("status")
    said = ", ".join(told) or "nothing needs looking after"
    return f"{name} is {status}, {here} of {len(every)} members here: {said}"


def grave(listed: Sequence[Finding]) -> bool:
    """Whether somebody has to act."""
    return any(one.level != NOTICE for one in listed)


def _paragraph(one: Finding, width: int) -> str:
    rows = [(f"{one.level.upper()}:", one.what), ("so:", one.follows), ("do:", one.do),
            ("see:", f"{MANUAL}/{one.chapter}")]  # fmt: skip
    return "\n".join(
        textwrap.fill(
            said, width, initial_indent=f"{label:<9} ", subsequent_indent=" " * 10,
            break_long_words=False, break_on_hyphens=False,
        )
        for label, said in rows if said
    )  # fmt: skip
