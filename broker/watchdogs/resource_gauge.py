"""Reads free disk and memory of this process, on a thread of its own.

A file system that hangs holds its reader, and must not hold the loop. Memory is counted against
the control group of the process where that allows less than the machine has.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from broker.watchdogs.resource_alarms import Reading
from store.errors import StoreError

PERIOD_S = 0.2
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GROUP_ROOT = Path("/sys/fs/cgroup")


class ResourceGauge:
    """Keeps the last reading; None before the first."""

    def __init__(
        self, directory: Path, reusable: Callable[[], int], tend: Callable[[int], None]
    ) -> None:
        """`reusable` returns the bytes of the store's file that hold nothing; `tend` is called with
        the free space, to keep the reserve."""
        self.reading: Reading | None = None
        self._directory, self._reusable, self._tend = directory, reusable, tend
        self._memory = memory_allowed()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resource-gauge", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Read no more; does not wait for a file system that hangs."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            # A store may be switched or closed at this moment, or its file system be in trouble.
            with contextlib.suppress(OSError, StoreError):
                self._look()
            self._over.wait(PERIOD_S)

    def _look(self) -> None:
        found = os.statvfs(self._directory)
        free = found.f_bavail * found.f_frsize
        # Pages that lie scattered cannot hold what is large: half of them count.
        room = free + self._reusable() // 2
        disk = found.f_blocks * found.f_frsize
        self.reading = Reading(room, disk, memory_used(), self._memory)
        self._tend(free)


def memory_used() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * _PAGE_BYTES


def memory_allowed(group_root: Path = _GROUP_ROOT, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that this process may hold: of the machine, or of the smallest group that it is in."""
    found = [os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES]
    try:
        lines = own.read_text("utf-8").splitlines()
    except OSError:
        return found[0]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        root = group_root / controllers
        group = root / path.strip("/")
        for place in (group, *group.parents):
            if root in (place, *place.parents):
                found += _limit_of(place / name)
    return min(found)


def _limit_of(path: Path) -> list[int]:
    try:
        text = path.read_text("ascii").strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []
