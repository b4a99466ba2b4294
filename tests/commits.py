"""The commit that runs, and what is drawn by its day: other cases each day, which can be named.

Drawn by the commit itself, what passed would be no evidence for the next commit, were that only a
word in a document.
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
    """The commit that runs, or an empty string outside of a repository."""
    return _git("rev-parse", "--short=12", "HEAD")


@cache
def day() -> str:
    """The day on which the commit that runs was made, as 20261128; outside of a repository today.

    Its author's day, by the author's clock: to rebase a commit changes nothing.
    """
    return (
        _git("log", "-1", "--format=%ad", "--date=format:%Y%m%d") or f"{datetime.now(UTC):%Y%m%d}"
    )


def drawn(names: Iterable[str], count: int, by: str) -> set[str]:
    """Return so many of these names, which follow from `by`; each is as likely as any other."""

    def number(name: str) -> bytes:
        return hashlib.sha256(f"{by} {name}".encode()).digest()

    return {*sorted(names, key=number)[:count]}


def waiting(counts: Mapping[str, int], by: str) -> set[str]:
    """Return the cases, each with how many of its test may run, that are not drawn."""
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for case in counts:
        tests[case.partition("[")[0]].append(case)
    return {*counts}.difference(*(drawn(cases, counts[cases[0]], by) for cases in tests.values()))
