"""Notices that this process stood still, and finds the likely cause.

A member that stands still for longer than its lease silences all the others, and for longer than
the token timeout it is left out.  The loop is looked at from a timer: when that comes late, the
process was doing something else, or nothing.  How much processor time the loop's thread got
meanwhile, and how long it was in writes of the member log, separates three causes: its own work,
a disk that makes writers wait, and processors (or a whole machine) given to somebody else.

Pure: all times are handed in, in seconds.
"""

from __future__ import annotations

QUIET_S = 1.0
"""For so long after a sentence the next pauses are only counted."""


class ProcessPauses:
    """Judges one loop, which is expected to call `look` every `every_s`."""

    def __init__(self, every_s: float, bound_s: float) -> None:
        """Only pauses beyond `bound_s` count."""
        self.counters = {"pauses": 0, "longest_ms": 0, "longest_log_write_ms": 0}
        self._every_s, self._bound_s = every_s, bound_s
        self._last: tuple[float, float, float] | None = None
        self._silent_until = 0.0

    def look(self, now: float, worked: float, wrote: float) -> str:
        """Take the time, and the loop's thread's processor time and time in writes of the member
        log since the start; return a sentence for the operator, or nothing."""
        last, self._last = self._last, (now, worked, wrote)
        if last is None:
            return ""
        late = now - last[0] - self._every_s
        counters, wrote_ms = self.counters, round(1000 * (wrote - last[2]))
        counters["longest_log_write_ms"] = max(counters["longest_log_write_ms"], wrote_ms)
        if late < self._bound_s:
            return ""
        late_ms = round(1000 * late)
        counters["pauses"] += 1
        counters["longest_ms"] = max(counters["longest_ms"], late_ms)
        if now < self._silent_until:
            return ""
        self._silent_until = now + QUIET_S
        worked_ms = round(1000 * (worked - last[1]))
        return (
            f"{_cause(late_ms, worked_ms, wrote_ms)}: this process came {late_ms} ms late, having "
            f"worked for {worked_ms} ms and waited {wrote_ms} ms for its member log to be written"
        )


def _cause(late_ms: int, worked_ms: int, wrote_ms: int) -> str:
    if wrote_ms * 2 > late_ms:
        return "the disk is slow"
    if worked_ms * 2 > late_ms:
        return "a long piece of work"
    return "no processor was given"
