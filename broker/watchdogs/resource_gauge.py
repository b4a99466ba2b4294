"""Reads free disk, the store's sizes and memory of this process, on its own thread.

A hanging file system holds its reader, and must not hold the loop. Memory is measured against the
control group of the process where that allows less than the machine has.

Only memory that holds something counts. The interpreter allocates objects of up to 512 bytes in
arenas of a megabyte, and frees an arena only when nothing is left in it. After a million small
messages were purged, one old number in each arena keeps nearly all of them; the next messages reuse
the space. Only the interpreter knows how much that is: it says so in a report for developers.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from broker.watchdogs.resource_alarms import Reading
from store.errors import StoreError
from store.files.space import Reserve
from store.lmdb_store import LmdbStore

PERIOD_S = 0.2
QUIET_PERIOD_S = 1.0
"""The period when nothing was committed since the last look: everything that fills disk and memory
goes to the store."""
LOOKS_PER_REPORT = 10
"""The interpreter's report, and the amount that a start would read, take most of a look. They are
requested once in this many looks, and earlier when the process has grown or shrunk."""
FAILED_LOOKS = 25
"""From so many failed looks in a row on, at least five seconds, people are told."""
GROWTH_BYTES = 8 << 20
"""By this much."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GROUP_ROOT = Path("/sys/fs/cgroup")
_ARENAS = re.compile(rb"^\d+ arenas \* \d+ bytes/arena += +([\d,]+)$", re.MULTILINE)
_IN_USE = re.compile(rb"^# bytes in allocated blocks += +([\d,]+)$", re.MULTILINE)


class ResourceGauge:
    """Keeps the last reading; None before the first.

    `failure` says why there was none lately: alarms about disk and memory stay as they were.
    """

    def __init__(self, store: Callable[[], LmdbStore], reserve: Reserve) -> None:
        """Measures the file system of `reserve`, and keeps the reserve while there is room."""
        self.reading: Reading | None = None
        self.failure = ""
        self.bytes_to_start = 0
        """The amount that a start would read from the store: about the size of a checkpoint."""
        self._store, self._reserve = store, reserve
        self._memory = memory_allowed()
        self._own = self._idle = 0  # the process's own memory at the last report, and the idle part
        self._looks = 0  # since then
        self._failed = 0  # looks in a row
        self._position = -1  # of the store at the last look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resource-gauge", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading; does not wait for a hanging file system."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self._over.wait(self.attempt())

    def attempt(self) -> float:
        """Look, and return how long the next look may wait."""
        try:
            self.look()
            pause_s = self.pause_s()
        except (OSError, StoreError) as error:  # a moment's, if a store is being switched or closed
            self._failed += 1
            if self._failed >= FAILED_LOOKS:
                self.failure = str(error)
            return PERIOD_S
        self._failed, self.failure = 0, ""
        return pause_s

    def pause_s(self) -> float:
        """How long the next look may wait. Called once per look."""
        before, self._position = self._position, self._store().meta.position
        return PERIOD_S if self._position != before else QUIET_PERIOD_S

    def look(self) -> None:
        """Read now, and keep the reserve while there is room."""
        found = os.statvfs(self._reserve.path.parent)
        free = found.f_bavail * found.f_frsize
        # Scattered pages cannot hold large objects: half of them count.
        store = self._store()
        room = free + store.reusable_bytes() // 2
        disk = found.f_blocks * found.f_frsize
        self._reserve.tend(free)
        owed = 0 if self._reserve.held else self._reserve.bytes
        own = own_bytes()
        if self._looks % LOOKS_PER_REPORT == 0 or abs(own - self._own) > GROWTH_BYTES:
            self.bytes_to_start = sum(store.bytes_to_start())
            self._own, self._idle, self._looks = own, idle_bytes(), 0
        self._looks += 1
        self.reading = Reading(room, disk, max(0, own - self._idle), self._memory, owed)


def own_bytes() -> int:
    """Bytes of this process's memory. Pages of files do not count, because the system takes those
    of the store back when it needs them."""
    _, resident, of_files, *_ = map(int, Path("/proc/self/statm").read_text("ascii").split())
    return (resident - of_files) * _PAGE_BYTES


def idle_bytes() -> int:
    """Return the bytes of arenas without an object; 0 if the interpreter does not say.

    They do not count as used; otherwise drained small messages would block publishers until a
    restart.
    """
    return idle_in(_report())


def idle_in(report: bytes) -> int:
    """The same, from a report written before."""
    arenas, in_use = _ARENAS.search(report), _IN_USE.search(report)
    if arenas is None or in_use is None:
        return 0  # another allocator (PYTHONMALLOC), or a report in another form
    return max(0, _number(arenas[1]) - _number(in_use[1]))


def _number(digits: bytes) -> int:
    return int(digits.replace(b",", b""))


def _report() -> bytes:
    libc = ctypes.CDLL(None)
    write = getattr(ctypes.pythonapi, "_PyObject_DebugMallocStats", None)
    into = getattr(libc, "open_memstream", None)
    if write is None or into is None:
        return b""
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    into.restype = ctypes.c_void_p
    stream = into(ctypes.byref(text), ctypes.byref(size))
    if not stream:
        return b""
    write(ctypes.c_void_p(stream))
    libc.fclose(ctypes.c_void_p(stream))
    report = ctypes.string_at(text, size.value)
    libc.free(text)
    return report


def memory_allowed(group_root: Path = _GROUP_ROOT, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that this process may hold: the machine's, or those of the smallest of its groups."""
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
