"""Holds back what acknowledges a change until the position of the change is released.

A position is released when it is durable at a majority of the voters, by the primary layer's mark.
Everything that writes to clients asks here, so that nothing is acknowledged that the loss of one
member could take back (docs/GUARANTEES.md, G9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from broker.machine.effects import Confirm, Effect, Reply

T = TypeVar("T")


class DurableGate(Generic[T]):
    """The released position, and what waits for later ones in the order of positions."""

    def __init__(self) -> None:
        self.released = 0
        self._waiting: deque[tuple[int, T]] = deque()

    def is_open(self, position: int) -> bool:
        """Whether what acknowledges `position` may be written; 0: it acknowledges nothing."""
        return position <= self.released

    def hold(self, position: int, what: T) -> None:
        """Keep `what` until `position` is released.  Positions never go down."""
        self._waiting.append((position, what))

    def release(self, position: int) -> bool:
        """Open the gate up to `position`; False when it was open that far."""
        if position <= self.released:
            return False
        self.released = position
        return True

    def take(self) -> Iterator[tuple[int, T]]:
        """Yield, once, what waited for positions that are released."""
        waiting, released = self._waiting, self.released
        while waiting and waiting[0][0] <= released:
            yield waiting.popleft()

    def clear(self) -> None:
        """Forget what waits; what was released stays released."""
        self._waiting.clear()

    def begin_anew(self) -> None:
        """Forget what was released as well: positions are of another history from here on."""
        self.clear()
        self.released = 0


def acknowledges_durable(effect: Effect) -> bool:
    """Whether an effect confirms a change to its client, and has to wait for the gate.

    Confirms of transient messages wait as well: what was only applied here could be lost with this
    member, and a confirm that the loss of one member takes back is none.
    """
    return isinstance(effect, Confirm) or (isinstance(effect, Reply) and effect.durable)
