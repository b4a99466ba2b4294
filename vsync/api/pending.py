"""Who waits for what: for the fate of something accepted, for room, or for anything to happen."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from vsync.cpg.events import Failed, GroupSent
from vsync.errors import ClusterClosed, NotDurable

Accepted = asyncio.Future[int]
"""Something accepted; its result is its position."""


class PendingAnswers:
    """The futures of one cluster."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, Accepted] = {}
        self._turns: deque[asyncio.Future[None]] = deque()  # who waits for room, in order
        self._asking = False  # somebody's turn has come and it has not asked yet
        self._changes: dict[asyncio.Future[None], None] = {}  # who waits for anything, in order

    def __len__(self) -> int:
        """How much was accepted and has no answer yet."""
        return len(self._open)

    def promise(self, ticket: int) -> Accepted:
        """The future of something accepted under `ticket`."""
        accepted = self._open[ticket] = self._loop.create_future()
        return accepted

    def answer(self, event: GroupSent | Failed) -> None:
        """Tell what became of it; who cancelled does not want to know."""
        accepted = self._open.pop(event.ticket, None)
        if accepted is None or accepted.done():
            return
        if isinstance(event, GroupSent):
            accepted.set_result(event.position)
        else:
            accepted.set_exception(NotDurable(event.reason))

    async def accepted(self, ask: Callable[[], Accepted | None]) -> int:
        """Ask until it is accepted, in turn with others who wait; then wait for the answer."""
        accepted = None if self._turns or self._asking else ask()
        enqueue = self._turns.append
        while accepted is None:
            turn: asyncio.Future[None] = self._loop.create_future()
            enqueue(turn)
            enqueue = self._turns.appendleft  # whoever asks in vain keeps its place
            try:
                await turn
                self._asking = False
                accepted = ask()
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._asking = False
                    self.room()  # it was my turn, and I do not want it, or may not
                raise
        self.room()
        return await accepted

    def room(self) -> None:
        """There is room: who has waited longest may ask; once accepted, the next one may.

        One at a time, or two that ask in vain would change places.
        """
        while self._turns and not self._asking:
            turn = self._turns.popleft()
            if not turn.done():
                self._asking = True
                turn.set_result(None)

    async def change(self) -> None:
        """Wait until something has happened."""
        change: asyncio.Future[None] = self._loop.create_future()
        self._changes[change] = None
        try:
            await change
        finally:
            self._changes.pop(change, None)

    def happened(self) -> None:
        """Something has."""
        for change in self._changes:
            if not change.done():
                change.set_result(None)

    def end(self, ended: ClusterClosed) -> None:
        """Nothing will happen any more: tell everybody who waits."""
        for accepted in self._open.values():
            if not accepted.done():
                accepted.set_exception(ended)
        for waiter in (*self._turns, *self._changes):
            if not waiter.done():
                waiter.set_exception(ended)
        self._open.clear()
        self._turns.clear()
