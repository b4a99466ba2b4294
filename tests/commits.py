"""The commit under test, and draws that depend on its day, so that each day runs other cases.

Were cases drawn by the commit itself, a passed case would be no evidence for the next commit, even
if that only changed a word in a document.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


@cache
def commit() -> str:
    """The commit under test, or an empty string outside a repository."""
    return _git("rev-parse", "--short=12", "HEAD")


@cache
def day() -> str:
    """The day of the commit under test, as 20261128; outside a repository today.

    It is the author's day, by the author's clock, so a rebase does not change it.
    """
    return (
        _git("log", "-1", "--format=%ad", "--date=format:%Y%m%d") or f"{datetime.now(UTC):%Y%m%d}"
    )


def drawn(names: Iterable[str], count: int, by: str) -> set[str]:
    """Return this many of the names, drawn by `by`; each is equally likely."""

    def number(name: str) -> bytes:
        return hashlib.sha256(f"{by} {name}".encode()).digest()

    return {*sorted(names, key=number)[:count]}


def waiting(counts: Mapping[str, int], by: str) -> set[str]:
    """Return the cases that are not drawn; each comes with how many of its test may run."""
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for case in counts:
        tests[case.partition("[")[0]].append(case)
    return {*counts}.difference(*(drawn(cases, counts[cases[0]], by) for cases in tests.values()))
