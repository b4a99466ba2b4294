"""Late events of the last ten minutes: how often, how long, since when, and for what cause.

Pure: all times are handed in, in seconds.
"""

from __future__ import annotations

from collections import deque

from vsync.types import record

WINDOW_S = 600.0


@record
class Recent:
    """A sum over the window; without events everything is 0."""

    times: int = 0
    sum_s: float = 0.0
    longest_s: float = 0.0
    since_s: float = 0.0
    """How long ago the first of them was."""
    by_cause_s: dict[str, float] | None = None

    def of(self, cause: str) -> float:
        """How many of the seconds had this cause."""
        return (self.by_cause_s or {}).get(cause, 0.0)


class Lateness:
    """Remembers each late event."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float, str]] = deque()

    def add(self, at: float, late_s: float, cause: str = "") -> None:
        """Something is late, or took this much longer, as noticed now."""
        self._late.append((at, late_s, cause))
        self._forget(at)

    def recent(self, now: float) -> Recent:
        """Return the sum."""
        self._forget(now)
        if not self._late:
            return Recent()
        causes: dict[str, float] = {}
        for _, late_s, cause in self._late:
            causes[cause] = causes.get(cause, 0.0) + late_s
        longest = max(late_s for _, late_s, _ in self._late)
        since_s = now - self._late[0][0]
        return Recent(len(self._late), sum(causes.values()), longest, since_s, causes)

    def _forget(self, now: float) -> None:
        while self._late and now - self._late[0][0] > WINDOW_S:
            self._late.popleft()
