"""Messages to send without a number, because the destination has answered their numbers for good.

A number that was nacked, returned or given to another message gets that answer again. A number
older than the destination remembers is refused for ever, and so are all before it.
Decision: docs/decisions/0069-a-shovel-numbers-messages-by-their-places.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TOLD_MAX = 2000
"""Single places told to another attempt; of more, the lowest stand for all before them, too."""


class Doubts:
    """The doubtful places of queues: all up to one of them, and some above it."""

    def __init__(self, given: Mapping[str, Sequence[int]]) -> None:
        """`given`: the `row` of an earlier attempt."""
        self._up_to = {name: places[0] for name, places in given.items()}
        self._above = {name: set(places[1:]) for name, places in given.items()}

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

    def row(self) -> dict[str, list[int]]:
        """The information for another attempt: up to which place of each queue (-1: none), and
        which above it."""
        found: dict[str, list[int]] = {}
        room = TOLD_MAX
        for name in (*self._up_to, *(one for one in self._above if one not in self._up_to)):
            last = self._up_to.get(name, -1)
            above = sorted(one for one in self._above.get(name, ()) if one > last)
            if len(above) > room:
                last = above[-room - 1]
                above = above[len(above) - room :]
            room -= len(above)
            if above or last >= 0:
                found[name] = [last, *above]
        return found
