"""Returns freed memory to the system, in steps too small to notice.

After a purge, a drain or a state transfer hundreds of megabytes are free but stay with the process:
the C library keeps gaps between pieces in use (`malloc_trim` returns them). Returning a gigabyte at
once takes a third of a second on a loaded machine, and every thread that allocates meanwhile waits.
So purged content is freed in slices, each returned before the next; other freed memory is returned
now and then, less often while that yields nothing. Soon after work is over everything is returned.
All threads share one heap (`share_one_heap`); otherwise each would have one with its own holes.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from broker.watchdogs.resource_gauge import own_bytes

SLICE_MESSAGES = 2_048
"""Messages freed in one turn of the loop: less than a millisecond."""
TRIM_MESSAGES = 16_384
"""Messages freed between two trims: a trim then takes a few milliseconds of processor time."""
TRIM_S_MIN, TRIM_S_MAX = 5.0, 600.0
"""Time from one trim to the next, while they yield something and while they do not."""
YIELD_BYTES_MIN = 8 << 20
TRIM_S_LONG = 0.02
"""A trim that takes this much processor time found small pieces: the next one can wait."""
REST_S, REST_SHARE = 10.0, 0.2
"""The loop rests when it has used no more than this share of a processor for this long."""
_M_ARENA_MAX = -8


class Purged(Protocol):
    """The machine, whose purged messages are freed."""

    @property
    def discarded(self) -> Sequence[object]:
        """Content to be freed."""

    def free(self, count: int) -> int:
        """Free up to this many messages; return how many."""


class FreedMemory:
    """Frees purged messages, and returns freed memory. `wake` is called with the loop's time."""

    def __init__(
        self,
        trim: Callable[[], object] | None = None,
        resident: Callable[[], int] | None = None,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._trim = trim or _libc_trim()
        self._resident, self._start = resident or own_bytes, start or _on_a_thread
        self._freed = 0  # messages since the last trim
        self._trimming = False
        self._pace_s, self._due = TRIM_S_MIN, 0.0
        self._looked = 0.0, 0.0  # time, and the loop's processor time by then
        self._busy_at: float | None = 0.0  # None: it has rested since, and that was noticed
        self.counters = {"trims": 0, "trimmed_bytes": 0, "freed_messages": 0}

    def slice(self, machine: Purged) -> bool:
        """Free a slice of the purged messages; True while there is more to do."""
        if not machine.discarded or self._trimming:
            return False  # the end of the trim is noticed at the next beat
        freed = machine.free(SLICE_MESSAGES)
        self.counters["freed_messages"] += freed
        self._freed += freed
        if self._freed >= TRIM_MESSAGES or not machine.discarded:
            self._freed = 0
            self._begin()
        return not self._trimming

    def soon(self) -> None:
        """Much was freed elsewhere, for example by a transfer."""
        self._pace_s, self._due = TRIM_S_MIN, 0.0

    def wake(self, now: float, worked_s: float) -> None:
        """Return freed memory, if it is time. `worked_s`: the processor time used so far by the
        loop's thread."""
        (looked, worked_before), self._looked = self._looked, (now, worked_s)
        if worked_s - worked_before > REST_SHARE * (now - looked):
            self._busy_at = now
        elif self._busy_at is not None and now - self._busy_at >= REST_S:
            self._busy_at = None
            self.soon()
        if now >= self._due and not self._trimming:
            self._due = now + self._pace_s
            self._begin()

    def _begin(self) -> None:
        if self._trim is not None:
            self._trimming = True
            try:
                self._start(self._run)
            except RuntimeError:  # no thread was available; the next trim may have one
                self._trimming = False

    def _run(self) -> None:
        """On a thread; the interpreter's lock is released meanwhile."""
        try:
            self._measured_trim()
        except OSError:  # no file could be opened to measure it
            pass
        finally:
            self._trimming = False

    def _measured_trim(self) -> None:
        assert self._trim is not None
        before, began = self._resident(), time.thread_time()
        self._trim()
        took_s = time.thread_time() - began
        yielded = max(0, before - self._resident())
        self.counters["trims"] += 1
        self.counters["trimmed_bytes"] += yielded
        is_worth_it = yielded >= YIELD_BYTES_MIN and took_s < TRIM_S_LONG
        self._pace_s = TRIM_S_MIN if is_worth_it else min(2 * self._pace_s, TRIM_S_MAX)


def share_one_heap() -> None:
    """From here on no thread gets its own heap from the C library, if the library supports that.
    Call it before there are threads; those of a broker allocate little except under one lock."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        tell(_M_ARENA_MAX, 1)


def _libc_trim() -> Callable[[], object] | None:
    """Return the C library's `malloc_trim`, if it has one."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: trim(0)) if trim is not None else None


def _on_a_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="memory-trim", daemon=True).start()
