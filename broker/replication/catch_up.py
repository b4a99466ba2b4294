"""What is ordered while this member is brought to the state of the primary: kept, and bounded.

The member is led along the primary's history, from outside, until it *meets* what is kept: its
order chain is the one that the first kept item follows, or that of a later place among them.  From
then on the kept items are applied like any others, the oldest first, while new ones join at the
end.  Before, they are given up beyond a bound: the way from outside leads to what follows them.
"""

from __future__ import annotations

from collections import deque

from broker.replication.chain import History, item_hash, next_order
from vsync.primary.events import Activated, Activation, Ordered, Transfer

HELD_BYTES_MAX = 128 << 20
"""Of ordered items, before the member meets them."""


class CatchUp:
    """One wait for the state, from the order to reach it until the member is level."""

    def __init__(self, transfer: Transfer, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.donor, self.epoch, self.base = transfer.donor, transfer.epoch, transfer.base
        self.met = False
        self.on_history = False  # the donor has said that this member's state lies on its history
        self.moved = False  # the state is not the one any more that this member's clients knew
        self.recorded = False  # the member log has been told that the tail follows
        self.counters = {"given_up": 0, "held_bytes_worst": 0}
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._order = transfer.order  # of the place in the history that the next item follows
        self._held: deque[Ordered | Activated] = deque()
        self._places: dict[bytes, int] = {self._order: 0}  # how many held items lead there
        self._past: list[Activated] = []  # activations that lie before what is held

    def is_behind_all(self, history: History) -> bool:
        """Whether this point of the primary's history holds all that was ever confirmed.

        The base of the plan does, and what the donor holds unstable beyond it was confirmed by
        nobody: a mark is seen when all members of its view have delivered what it covers.
        Decision: docs/decisions/0021-rejoin-by-the-tail.md.
        """
        return history.epoch >= self.epoch or history.position >= self.base

    def hold(self, event: Ordered | Activated) -> None:
        """Keep what comes behind the base."""
        self._held.append(event)
        self._held_bytes += _size(event)
        self.counters["held_bytes_worst"] = max(self.counters["held_bytes_worst"], self._held_bytes)
        if self.met:
            return
        self._order = next_order(self._order, item_hash(body_of(event)))
        self._places[self._order] = len(self._held)
        if self._held_bytes > self._held_bytes_max:
            self.counters["given_up"] += 1
            self._drop(len(self._held))
            self._places = {self._order: 0}

    def meet(self, history: History) -> list[Activated] | None:
        """Begin to hand out what is held if `history` is a place among it.

        Returns the activations that lie before, which the state holds; None: not there yet.
        """
        assert not self.met
        count = self._places.get(history.order)
        if count is None:
            return None
        self._drop(count)
        self.met = True
        self._places.clear()
        return self._past

    def _drop(self, count: int) -> None:
        for _ in range(count):
            event = self._held.popleft()
            self._held_bytes -= _size(event)
            if isinstance(event, Activated):
                self._past.append(event)

    @property
    def level(self) -> bool:
        """Whether everything that was held has been handed out."""
        return self.met and not self._held

    def take(self) -> Ordered | Activated:
        """Return the oldest item that is held, to be applied now."""
        assert self.met
        event = self._held.popleft()
        self._held_bytes -= _size(event)
        return event


def body_of(event: Ordered | Activated) -> bytes | Activation:
    """Return what an item carries."""
    return event.activation if isinstance(event, Activated) else event.payload


def _size(event: Ordered | Activated) -> int:
    return 0 if isinstance(event, Activated) else len(event.payload)
