"""Notices that this process stood still, and finds the likely cause.

A member that stands still for longer than its lease silences all the others; after the token
timeout it is left out. A timer watches the loop: when it comes late, the process was doing
something else, or nothing. No file is read or written on the loop's thread, so a slow disk is no
cause, except for memory that was paged out and must be read back. The processor time that the
thread got meanwhile, and the number of such pages it waited for, separate three causes: its own
work, missing memory, and processors (or a whole machine) given to others.

Pure: all times are handed in, in seconds, and so are the counts.
"""

from __future__ import annotations

import resource

from broker.watchdogs.lateness import Lateness

WORK, MEMORY, PROCESSOR = (
    "a long piece of work", "memory was paged out", "no processor was given",
)  # fmt: skip
"""The causes; the last one also covers a process that was stopped by somebody."""
MS_PER_FAULT = 20
"""The cost of reading one page on a slow or busy disk."""
QUIET_S = 1.0
"""For this long after a sentence further pauses are only counted."""


class ProcessPauses:
    """Watches one loop, which is expected to call `look` every `every_s`."""

    def __init__(self, every_s: float, bound_s: float) -> None:
        """Only pauses beyond `bound_s` count."""
        self.counters = {"pauses": 0, "longest_ms": 0}
        self.late = Lateness()
        self._every_s, self._bound_s = every_s, bound_s
        self._last: tuple[float, float, int] | None = None
        self._silent_until = 0.0

    def look(self, now: float, worked: float, faults: int) -> str:
        """Take the time, and the loop's thread's processor time and major page faults since the
        start; return a sentence for the operator, or nothing."""
        last, self._last = self._last, (now, worked, faults)
        if last is None:
            return ""
        late = now - last[0] - self._every_s
        counters = self.counters
        if late < self._bound_s:
            return ""
        late_ms = round(1000 * late)
        counters["pauses"] += 1
        counters["longest_ms"] = max(counters["longest_ms"], late_ms)
        worked_ms, faulted = round(1000 * (worked - last[1])), faults - last[2]
        cause = _cause(late_ms, worked_ms, faulted)
        self.late.add(now, late, cause)
        if now < self._silent_until:
            return ""
        self._silent_until = now + QUIET_S
        return (
            f"{cause}: this process came {late_ms} ms late, having "
            f"worked for {worked_ms} ms and waited for {faulted} pages of its memory from the disk"
        )


def _cause(late_ms: int, worked_ms: int, faulted: int) -> str:
    if worked_ms * 2 > late_ms:
        return WORK
    if faulted * MS_PER_FAULT > late_ms:
        return MEMORY
    return PROCESSOR


def page_faults() -> int:
    """Return for how many pages this thread has waited for the disk."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
