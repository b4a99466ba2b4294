"""What is ordered while this member waits for another's state: kept, and bounded.

The state that comes holds the first of these items already, or none; the rest is applied behind it.
A member that waits long under load would hold any amount of items, so beyond a bound they are given
up for a newer copy, which holds them.
"""

from __future__ import annotations

from broker.replication.chain import History, item_hash, next_order, steps_to
from vsync.primary.events import Activated, Activation, Ordered, Transfer

HELD_BYTES_MAX = 128 << 20
"""Of ordered items; a copy that takes longer to come than these is asked for anew."""


class CatchUp:
    """One wait for a state, from the order to fetch it until it is installed."""

    def __init__(self, transfer: Transfer, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.donor, self.base = transfer.donor, transfer.base
        self._order = transfer.order  # of the place in the history that the items follow
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._items: list[Ordered | Activated] = []
        self._given_up: list[Ordered | Activated] = []  # activations: still to be reported

    def hold(self, event: Ordered | Activated) -> bool:
        """Keep what comes behind the base.  False: everything was given up, fetch a newer state."""
        self._items.append(event)
        self._held_bytes += 0 if isinstance(event, Activated) else len(event.payload)
        if self._held_bytes <= self._held_bytes_max:
            return True
        for held in self._items:
            self._order = next_order(self._order, item_hash(_body(held)))
            if isinstance(held, Activated):
                self._given_up.append(held)
        self._items, self._held_bytes = [], 0
        return False

    def fits(self, history: History) -> bool:
        """Whether the ordered items follow the point in the history that a state has reached."""
        return self._known(history) >= 0

    def split(
        self, history: History
    ) -> tuple[list[Ordered | Activated], list[Ordered | Activated]]:
        """Return the items that a state which `fits` holds already, and those that follow."""
        known = self._known(history)
        assert known >= 0
        return self._given_up + self._items[:known], self._items[known:]

    def _known(self, history: History) -> int:
        return steps_to([_body(event) for event in self._items], self._order, history.order)


def _body(event: Ordered | Activated) -> bytes | Activation:
    return event.activation if isinstance(event, Activated) else event.payload
