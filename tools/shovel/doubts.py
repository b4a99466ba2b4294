"""Messages to send without a number, because the destination has answered their numbers for good.

A number that was nacked, returned or given to another message gets that answer again. A number
older than the destination remembers is refused for ever, and so are all before it.
Decision: docs/decisions/0069-a-shovel-numbers-messages-by-their-places.md.
"""

from __future__ import annotations

from collections.abc import Mapping


class Doubts:
    """The doubtful places of queues: all up to one of them, and some above it."""

    def __init__(self, up_to: Mapping[str, int]) -> None:
        self._up_to = dict(up_to)
        self._above: dict[str, set[int]] = {}

    def has(self, queue_id: str, place: int) -> bool:
        """Whether this message is sent without a number."""
        above = self._above.get(queue_id)
        is_above = above is not None and place in above
        return is_above or place <= self._up_to.get(queue_id, -1)

    def add(self, queue_id: str, place: int) -> None:
        """Its number was answered."""
        if not self.has(queue_id, place):
            self._above.setdefault(queue_id, set()).add(place)

    def add_all_up_to(self, queue_id: str, place: int) -> None:
        """All of these numbers are too old."""
        self._up_to[queue_id] = max(place, self._up_to.get(queue_id, -1))

    def settle(self, queue_id: str, place: int) -> None:
        """The message was taken without a number: it does not come again."""
        above = self._above.get(queue_id)
        if above is not None:
            above.discard(place)

    def row(self) -> dict[str, int]:
        """The information for another attempt: up to which place of each queue."""
        highest = {name: max(above) for name, above in self._above.items() if above}
        return {
            name: max(self._up_to.get(name, -1), highest.get(name, -1))
            for name in (*self._up_to, *(one for one in highest if one not in self._up_to))
        }
