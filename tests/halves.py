"""Runs pytest in two processes at once: one has the tests that start clusters, which mostly wait.

`python -m tests.halves -m "not slow"` takes options of pytest.  The order of the tests within
each half is that of one pytest.  What the first half prints comes behind the other's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from tools.cli.signals import ended_by

ROOT = Path(__file__).resolve().parents[1]
FIRST = ("tests/system", "tests/properties", "tests/scenarios", "tests/unit/verify")
"""The clusters' half, and what makes both halves take about as long; the other has all else."""
NO_TEST_WAS_SELECTED = 5
LEAVE_SECONDS = 30
"""So long may an interrupted half take to stop the brokers that it started."""


def start(number: int, arguments: list[str], said: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """Start one half; its ports are its own (`tests/conftest.py`)."""
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT, env={**os.environ, "TEST_HALF": str(number)},
        stdout=said, stderr=said and subprocess.STDOUT,
    )  # fmt: skip


def stop(half: subprocess.Popen[bytes]) -> None:
    """End a half as Ctrl-C does, so that it stops its brokers."""
    half.send_signal(signal.SIGINT)
    try:
        half.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        half.kill()
        half.wait()


def main() -> None:
    given = sys.argv[1:]
    with ended_by(signal.SIGTERM), tempfile.TemporaryFile() as said:
        halves = [
            start(0, ["-p", "no:cacheprovider", *given, *FIRST], said),
            start(1, [*given, *(f"--ignore={folder}" for folder in FIRST)], None),
        ]
        try:
            codes = {half.wait() for half in halves[::-1]}
        finally:
            for half in halves:
                if half.poll() is None:
                    stop(half)
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
    bad = codes - {0, NO_TEST_WAS_SELECTED}
    sys.exit(max(bad, key=abs) if bad else min(codes))


if __name__ == "__main__":
    main()
