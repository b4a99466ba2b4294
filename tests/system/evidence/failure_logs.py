"""Adds the ends of the processes' logs to the report of a failed test.

Brokers log into their own files, which are not in the output of a test run.  So every process that
a test starts through `BrokerProcess` is recorded here, and the report of a failed test gets a
section for each, and one on the machine: whether it gave its processors to others tells whether the
cluster or the machine is at fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.demo.local_cluster import BrokerProcess

LINES = 100
"""The most lines of each log, its last ones."""
CPU_TIMES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
STAT = Path("/proc/stat")


class Evidence:
    """The processes started by the tests that may matter to the present test."""

    def __init__(self) -> None:
        self._started: dict[Path, BrokerProcess] = {}
        self._cpu = cpu_times()

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Record every start from now on."""
        start = BrokerProcess.start

        def noted(process: BrokerProcess) -> None:
            self._started[process.log_path] = process
            start(process)

        patch.setattr(BrokerProcess, "start", noted)

    def test_begins(self) -> None:
        """Forget dead processes, which belonged to an earlier test."""
        self._started = {path: one for path, one in self._started.items() if one.alive}
        self._cpu = cpu_times()

    def sections(self) -> Iterator[tuple[str, str]]:
        """Yield (title, text) for each process, and for the machine."""
        for path, process in self._started.items():
            state = "alive" if process.alive else f"exit code {process.exit_code}"
            yield f"log of {process} ({state}), {path}", process.log_tail(LINES)
        if self._started:
            yield "machine since the test began", machine(self._cpu, cpu_times())


def cpu_times() -> list[int]:
    """Return the ticks of all processors together by `CPU_TIMES`; empty where unknown."""
    try:
        first = STAT.read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return []
    return [int(ticks) for ticks in first.split()[1 : 1 + len(CPU_TIMES)]]


def machine(before: list[int], after: list[int]) -> str:
    """Describe the use of the processors' time; "steal" is what the host gave to others."""
    spent = [late - early for early, late in zip(before, after, strict=True)]
    total = sum(spent)
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    if not total:
        return f"load {load}"
    shares = (
        f"{name} {100 * ticks / total:.0f} %"
        for name, ticks in zip(CPU_TIMES, spent, strict=False)
        if ticks
    )
    return f"load {load}; processors: {', '.join(shares)}"
