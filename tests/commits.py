"""The commit that runs, and what is drawn by it: other cases at each commit, which can be named."""

from __future__ import annotations

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def commit() -> str:
    """The commit that runs, or an empty string outside of a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


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
