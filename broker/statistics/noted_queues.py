"""Queues that deserve attention: how many there are, and the worst few of them.

They are noted in the sweep over all queues (broker/statistics/sampler.py), so a hundred thousand
queues cost one comparison each.
"""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import NamedTuple

from broker.machine.state import Queue, ready_count

NAMED_MAX = 5
"""The number of queues that are named."""


class NotedQueue(NamedTuple):
    """One noted queue."""

    messages: int
    """The count for which it is noted."""
    number: int
    """Smaller for older queues, and unique."""
    vhost: str
    name: str
    grew: int = 0
    """By how many messages it grew in the last minute."""


class Few:
    """The longest few of many."""

    def __init__(self) -> None:
        self.count = 0
        self._heap: list[NotedQueue] = []

    def add(self, queue: NotedQueue) -> None:
        """Add a queue."""
        self.count += 1
        if len(self._heap) < NAMED_MAX:
            heappush(self._heap, queue)
        else:
            heappushpop(self._heap, queue)

    def longest(self) -> list[NotedQueue]:
        """Return the queues to name, the longest first."""
        return sorted(self._heap, reverse=True)


class NotedQueues:
    """The noted queues of one sweep."""

    def __init__(self) -> None:
        self.untaken, self.stuck, self.letters = Few(), Few(), Few()

    def look(self, queue: Queue, ready: int, moved: float, grew: int, *, known: bool) -> None:
        """`moved`: messages delivered or acknowledged per second, over a minute; `known`: that
        minute was observed."""
        vhost, name = queue.vhost.name, queue.name
        if queue.letters is not None and (dead := ready_count(queue.letters)):
            self.letters.add(NotedQueue(dead, -queue.number, vhost, name))
        if not ready or queue.stream is not None:
            return
        browsers = queue.readers.count if queue.readers is not None else 0
        if len(queue.consumers) <= browsers:
            self.untaken.add(NotedQueue(ready, -queue.number, vhost, name, max(grew, 0)))
        elif queue.unacked and known and not moved:
            self.stuck.add(NotedQueue(queue.unacked, -queue.number, vhost, name))
