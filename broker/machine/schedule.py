"""When to look at queues, the earliest first: a heap with one valid time per queue.

A queue is looked at too early rather than too late. Its time is not moved back when the message for
which it was set leaves: the look finds nothing due, and sets the next time. So a queue whose
messages come and go costs nothing here, and a tick costs as much as is due, not as much as waits.

The times are part of the state and of the snapshot: one tick looks at a limited number of queues,
and all members must look at the same ones.
"""

from heapq import heapify, heappop, heappush

NEVER_US = 1 << 62
_SUPERSEDED_MAX = 1_024


class Schedule:
    """Queues by the time at which to look at them."""

    __slots__ = ("_heap", "times")

    def __init__(self) -> None:
        self.times: dict[int, int] = {}  # by queue number
        self._heap: list[tuple[int, int]] = []  # includes superseded entries

    def note(self, number: int, at_us: int) -> None:
        """Look at the queue at this time, or earlier if that was noted before."""
        if at_us >= self.times.get(number, NEVER_US):
            return
        self.times[number] = at_us
        heappush(self._heap, (at_us, number))
        if len(self._heap) > 2 * len(self.times) + _SUPERSEDED_MAX:
            self._heap = [(at, one) for one, at in self.times.items()]
            heapify(self._heap)

    def forget(self, number: int) -> None:
        """The queue is gone."""
        self.times.pop(number, None)

    @property
    def next_us(self) -> int:
        """The earliest valid time."""
        heap = self._heap
        while heap and self.times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER_US

    def take(self, now_us: int) -> int | None:
        """Remove and return the first queue whose time has come, by time and then by number."""
        if self.next_us > now_us:
            return None
        _, number = heappop(self._heap)
        del self.times[number]
        return number
