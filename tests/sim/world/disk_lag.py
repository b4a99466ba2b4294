"""How far a simulated disk is behind."""

from __future__ import annotations

from collections import deque

from store.commit_thread import CommitLag


class SimLag:
    """What was handed to a simulated disk and is not on it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, int]] = deque()
        self._bytes = 0

    def submitted(self, now: float, size: int) -> None:
        self._waiting.append((now, size))
        self._bytes += size

    def landed(self, entries: int) -> None:
        for _ in range(entries):
            self._bytes -= self._waiting.popleft()[1]

    def lag(self) -> CommitLag:
        waiting = self._waiting
        return CommitLag(len(waiting), self._bytes, waiting[0][0] if waiting else 0.0)
