"""A joined group: sends messages to it and iterates over its events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol

from vsync.api.pending import Accepted
from vsync.cpg.events import GroupMessage, GroupView, Level
from vsync.cpg.groups import Groups
from vsync.errors import GroupError
from vsync.types import Member

Received = GroupMessage | GroupView
"""An event that a group's iteration yields."""

EVENT_BYTES: Final = 256
"""Counted for each unread event in addition to its payload."""


class GroupOwner(Protocol):
    """The interface that a group needs from its cluster."""

    @property
    def me(self) -> Member: ...

    def accept(self, call: Callable[[Groups], int | None]) -> Accepted | None: ...
    def wait_for_room(self, ask: Callable[[], Accepted | None]) -> Awaitable[int]: ...
    def durable(self, position: int) -> None: ...
    def unread(self, more: int) -> None: ...
    def raise_if_failed(self) -> None: ...


class Group:
    """A joined group. `async for` over it yields its events, in order; only one task may iterate.

    The iteration ends after this member's own leave, or when the cluster is closed here; it raises
    `ClusterClosed` when this member failed.
    """

    def __init__(
        self, owner: GroupOwner, name: str, on_event: Callable[[Received], None] | None
    ) -> None:
        self.name = name
        self.members: tuple[Member, ...] = ()
        self._owner = owner
        self._on_event = on_event
        self._events: deque[Received] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._over = False

    @property
    def me(self) -> Member:
        """This member."""
        return self._owner.me

    async def mcast(self, payload: bytes, level: Level = Level.SAFE) -> int:
        """Send to the group, this member included; waits for room. Returns the position.

        Raises `NotDurable` or `ClusterClosed` for an accepted message, `GroupError` or
        `PayloadTooLarge` for a refused one. If cancelled, the message may still be ordered.
        """
        return await self._owner.wait_for_room(lambda: self.try_mcast(payload, level))

    def try_mcast(self, payload: bytes, level: Level = Level.SAFE) -> Accepted | None:
        """Send without waiting. None: there is no room now, and nothing was accepted.

        Only the future reports the result.
        """
        return self._owner.accept(lambda groups: groups.mcast(self.name, payload, level))

    async def leave(self) -> int:
        """Leave, after everything sent before. This member's own leave is the last event."""
        return await self._owner.wait_for_room(self.try_leave)

    def try_leave(self) -> Accepted | None:
        """Leave without waiting."""
        return self._owner.accept(lambda groups: groups.leave(self.name))

    def durable(self, position: int) -> None:
        """Say that everything up to `position`, of all joined groups, is on this member's disk.

        The DURABLE messages of the other members wait for this; it is sent with the next token.
        """
        self._owner.durable(position)

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        if self._on_event is not None:
            raise GroupError(f"the events of group {self.name!r} go to a callback")
        if self._reader is not None:
            raise GroupError(f"another task is reading group {self.name!r}")
        while not self._events:
            if self._over:
                self._owner.raise_if_failed()
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        event = self._events.popleft()
        if not self._over:
            self._owner.unread(-_size(event))
        return event

    # -- called by the cluster -------------------------------------------------------------------

    def deliver(self, event: Received) -> None:
        """Hand an event to the reader or the callback."""
        if isinstance(event, GroupView):
            self.members = event.members
        if self._on_event is not None:
            self._on_event(event)
            return
        self._events.append(event)
        self._owner.unread(_size(event))
        self._wake()

    def end(self) -> None:
        """Say that no event follows; unread events need not be read."""
        self._over = True
        self._owner.unread(-sum(map(_size, self._events)))
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _size(event: Received) -> int:
    return EVENT_BYTES + (len(event.payload) if isinstance(event, GroupMessage) else 0)
