"""The futures of one cluster's pending calls: for a result, for room, or for the next event."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from vsync.cpg.events import Failed, GroupSent
from vsync.errors import ClusterClosed, NotDurable

Accepted = asyncio.Future[int]
"""The future of an accepted call; its result is the position."""


class PendingCalls:
    """The pending calls of one cluster."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, Accepted] = {}
        self._turns: deque[asyncio.Future[None]] = deque()  # waiters for room, in order
        self._asking = False  # a waiter was woken and has not asked yet
        self._changes: dict[asyncio.Future[None], None] = {}  # waiters for the next event, in order

    def __len__(self) -> int:
        """Number of accepted calls without a result."""
        return len(self._open)

    def add(self, ticket: int) -> Accepted:
        """Return a future for the call that was accepted under `ticket`."""
        accepted = self._open[ticket] = self._loop.create_future()
        return accepted

    def resolve(self, event: GroupSent | Failed) -> None:
        """Complete the future of this ticket, unless it was cancelled."""
        accepted = self._open.pop(event.ticket, None)
        if accepted is None or accepted.done():
            return
        if isinstance(event, GroupSent):
            accepted.set_result(event.position)
        else:
            accepted.set_exception(NotDurable(event.reason))

    async def submit(self, ask: Callable[[], Accepted | None]) -> int:
        """Call `ask`, in turn with other waiters, until accepted; then wait for the result."""
        accepted = None if self._turns or self._asking else ask()
        enqueue = self._turns.append
        while accepted is None:
            turn: asyncio.Future[None] = self._loop.create_future()
            enqueue(turn)
            enqueue = self._turns.appendleft  # a waiter that is not accepted keeps its place
            try:
                await turn
                self._asking = False
                accepted = ask()
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._asking = False
                    self.wake_next()  # its turn had come, but it was cancelled or refused
                raise
        self.wake_next()
        return await accepted

    def wake_next(self) -> None:
        """Wake the longest waiter: there may be room. Once it is accepted, wake the next one.

        One at a time, because two that are not accepted would change places.
        """
        while self._turns and not self._asking:
            turn = self._turns.popleft()
            if not turn.done():
                self._asking = True
                turn.set_result(None)

    async def next_change(self) -> None:
        """Wait for the next event."""
        change: asyncio.Future[None] = self._loop.create_future()
        self._changes[change] = None
        try:
            await change
        finally:
            self._changes.pop(change, None)

    def notify(self) -> None:
        """Wake all waiters for the next event."""
        for change in self._changes:
            if not change.done():
                change.set_result(None)

    def fail_all(self, ended: ClusterClosed) -> None:
        """Fail every waiter: the cluster is closed."""
        for accepted in self._open.values():
            if not accepted.done():
                accepted.set_exception(ended)
        for waiter in (*self._turns, *self._changes):
            if not waiter.done():
                waiter.set_exception(ended)
        self._open.clear()
        self._turns.clear()
