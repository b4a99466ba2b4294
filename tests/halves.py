"""Runs the everyday tests, or the slow ones, in two processes at once.

`python -m tests.halves slow` takes options of pytest after the name.  The half of the rings has the
tests that depend on a ring's timing, such as views that change when a token is late; it mostly
waits.  The other half has the tests that compute, and others until both take equally long; it is
one process, so a core is left for the rings.  Each half runs its tests in pytest's order.  The
output of the half of the rings is printed after the other's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from tools.cli.signals import ended_by

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"


class Kind(NamedTuple):
    """A kind of tests: its marker expression, and which folders are in the half of the rings."""

    marked: str
    rings: tuple[str, ...]
    but: tuple[str, ...] = ()
    """Folders of these that are in the other half nevertheless."""


KINDS = {
    "everyday": Kind(
        "not slow and not spark and not lies", ("system", "properties", "scenarios", "unit/verify"),
        ("unit/verify/checks",),
    ),
    "slow": Kind(
        "slow", ("system",),
        ("system/dashboard", "system/pages", "system/sharing", "system/verify"),
    ),
}  # fmt: skip
NO_TEST_WAS_SELECTED = 5
LEAVE_SECONDS = 20
"""The time that interrupted halves get to stop the brokers that they started."""


class Half:
    """One pytest process with its own ports (`tests/conftest.py`)."""

    def __init__(self, number: int, arguments: list[str], said: IO[bytes] | None) -> None:
        self.name = ("rings", "others")[number]
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=ROOT, env={**os.environ, "TEST_HALF": str(number)},
            stdout=said, stderr=said and subprocess.STDOUT,
            process_group=0,  # a signal to this process group would end both at once
        )  # fmt: skip

    def interrupt(self) -> None:
        """Interrupt it as Ctrl-C does, so that it stops its brokers and names the running test."""
        seconds = time.monotonic() - self._began
        print(f"== half {self.name}: interrupted after {seconds:.0f} s", flush=True)
        self.process.send_signal(signal.SIGINT)


def stop(halves: list[Half]) -> None:
    """End the halves that still run."""
    deadline = time.monotonic() + LEAVE_SECONDS
    running = [half for half in halves if half.process.poll() is None]
    for half in running:
        half.interrupt()
    for half in running:
        try:
            half.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            half.process.kill()
            half.process.wait()


def places(folder: Path, without: set[Path]) -> Iterator[Path]:
    """Yield a folder, or if parts of it are excluded, the parts that are not."""
    if folder in without:
        return
    if not any(folder in one.parents for one in without):
        yield folder
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and inner.name != "__pycache__":
            yield from places(inner, without)
        elif inner.match("test_*.py") and inner not in without:
            yield inner


def split(kind: Kind) -> tuple[list[Path], list[Path]]:
    """Return the places of each half."""
    but = {TESTS / one for one in kind.but}
    rings = [place for one in kind.rings for place in places(TESTS / one, but)]
    return rings, list(places(TESTS, {*rings}))


def main() -> None:
    name, *given = sys.argv[1:] or [""]
    if name not in KINDS:
        sys.exit(f"usage: python -m tests.halves {'|'.join(KINDS)} [OPTION OF PYTEST]...")
    arguments = ["-m", KINDS[name].marked, *given]
    rings, others = [[str(place) for place in half] for half in split(KINDS[name])]
    with ended_by(signal.SIGTERM), tempfile.TemporaryFile() as said:
        halves = [
            Half(0, ["-p", "no:cacheprovider", *arguments, *rings], said),
            Half(1, [*arguments, *others], None),
        ]
        try:
            codes = {half.process.wait() for half in halves[::-1]}
        finally:
            stop(halves)
            print("== half rings:", flush=True)
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
    bad = codes - {0, NO_TEST_WAS_SELECTED}
    sys.exit(max(bad, key=abs) if bad else min(codes))


if __name__ == "__main__":
    main()
