"""A group as one of its members holds it: send to it, iterate over it."""

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

Told = GroupMessage | GroupView
"""What a group tells."""

EVENT_BYTES: Final = 256
"""What an event counts for beside its payload."""


class Home(Protocol):
    """What a group needs of its cluster."""

    me: Member

    def accept(self, call: Callable[[Groups], int | None]) -> Accepted | None: ...
    def wait_for_room(self, ask: Callable[[], Accepted | None]) -> Awaitable[int]: ...
    def durable(self, position: int) -> None: ...
    def unread(self, more: int) -> None: ...
    def raise_if_failed(self) -> None: ...


class Group:
    """A group of mine.  `async for` over it tells what happens, in order; one task may do so.

    The iteration ends after my own leave and when the cluster was closed here; it raises
    `ClusterClosed` when this member failed.
    """

    def __init__(self, home: Home, name: str, on_event: Callable[[Told], None] | None) -> None:
        self.name = name
        self.members: tuple[Member, ...] = ()
        self._home = home
        self._on_event = on_event
        self._events: deque[Told] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._over = False

    @property
    def me(self) -> Member:
        """This member."""
        return self._home.me

    async def mcast(self, payload: bytes, level: Level = Level.SAFE) -> int:
        """Send to the group, myself included; waits for room.  Returns the message's position.

        Raises `NotDurable` or `ClusterClosed` for what was accepted, `GroupError` or
        `PayloadTooLarge` for what was not.  Cancelled, the message may be ordered all the same.
        """
        return await self._home.wait_for_room(lambda: self.try_mcast(payload, level))

    def try_mcast(self, payload: bytes, level: Level = Level.SAFE) -> Accepted | None:
        """The same without waiting.  None: there is no room now, and nothing was accepted.

        The future is the only word on what becomes of the message.
        """
        return self._home.accept(lambda groups: groups.mcast(self.name, payload, level))

    async def leave(self) -> int:
        """Leave, behind all that I sent before.  My own leave is the last event."""
        return await self._home.wait_for_room(self.try_leave)

    def try_leave(self) -> Accepted | None:
        """The same without waiting."""
        return self._home.accept(lambda groups: groups.leave(self.name))

    def durable(self, position: int) -> None:
        """Everything up to `position`, of all my groups, is on this member's disk.

        That is what the DURABLE messages of the others wait for; it travels with the next token.
        """
        self._home.durable(position)

    def __aiter__(self) -> AsyncIterator[Told]:
        return self

    async def __anext__(self) -> Told:
        if self._on_event is not None:
            raise GroupError(f"the events of group {self.name!r} go to a callback")
        if self._reader is not None:
            raise GroupError(f"another task is reading group {self.name!r}")
        while not self._events:
            if self._over:
                self._home.raise_if_failed()
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        event = self._events.popleft()
        if not self._over:
            self._home.unread(-_size(event))
        return event

    # -- the cluster's side ----------------------------------------------------------------------

    def tell(self, event: Told) -> None:
        """Something happened."""
        if isinstance(event, GroupView):
            self.members = event.members
        if self._on_event is not None:
            self._on_event(event)
            return
        self._events.append(event)
        self._home.unread(_size(event))
        self._wake()

    def end(self) -> None:
        """Nothing more will happen; what is unread may stay so."""
        self._over = True
        self._home.unread(-sum(map(_size, self._events)))
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _size(event: Told) -> int:
    return EVENT_BYTES + (len(event.payload) if isinstance(event, GroupMessage) else 0)
