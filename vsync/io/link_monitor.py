"""A link broke: does anybody listen behind it?

A broken connection is a hint and no more: a middlebox may have reset it, or the peer restarted.  So
the address is *knocked* at, with a bare TCP connection that is dropped at once, until the link is
back or some tries are over.  A living process keeps its listening socket, even when it is stopped
or its machine is loaded; so "connection refused" from a host that answers says that the process is
gone.  What follows from either is decided in the core (`vsync.totem.membership.failure_detector`),
never here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

KNOCKS_MAX: Final = 20
KNOCK_EVERY_S: Final = 0.025
KNOCK_TIMEOUT_S: Final = 0.1
"""Longer than any round trip that a ring would be run over."""

Told = Callable[[str, bool], None]
"""Gets an address and whether it refused a connection; False: the link to it broke."""


class LinkMonitor:
    """Belongs to the loop's thread.

    `tend` is called when a watched descriptor signals; whoever reads the events then says what
    became of each link (`seen`), and says `forget` before it closes one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tend: Callable[[], None],
        told: Told,
        counters: dict[str, int],
    ) -> None:
        self._loop, self._tend, self._told = loop, tend, told
        self._fds: dict[str, int] = {}
        self._breaks: dict[str, int] = {}  # of each link, as many as were told
        self._knocking: dict[str, asyncio.Task[None]] = {}
        self.counters = counters
        for name in ("links_broken", "knocks_refused", "knocks_answered", "knocks_silent"):
            counters.setdefault(name, 0)

    def watch(self, address: str, fd: int) -> None:
        """The events of the link to `address` are signalled by `fd` from now on."""
        self.forget(address)
        self._fds[address] = fd
        self._loop.add_reader(fd, self._tend)
        self._loop.call_soon(self._tend)  # libzmq signals only what comes after a first look

    def forget(self, address: str) -> None:
        """Watch no more.  Idempotent."""
        self._breaks.pop(address, None)
        fd = self._fds.pop(address, None)
        if fd is not None:
            self._loop.remove_reader(fd)
        self._rest(address)

    def close(self) -> None:
        """Forget all."""
        for address in tuple(self._fds):
            self.forget(address)

    def seen(self, address: str, broken: bool, breaks: int) -> None:
        """The link is broken, or it is not, and so often it broke; said as often as one likes.

        A break that was mended before anybody looked is told, too: behind it may be another life,
        and a break of a link that came back in between is not the one that was told before.
        """
        if address not in self._fds:
            return
        fresh = breaks > self._breaks.get(address, 0)
        if fresh or not broken:
            self._rest(address)
        if fresh:
            self._breaks[address] = breaks
            self.counters["links_broken"] += 1
            if broken:
                self._knocking[address] = self._loop.create_task(self._knock_on(address))
            self._told(address, False)

    def _rest(self, address: str) -> None:
        task = self._knocking.pop(address, None)
        if task is not None:
            task.cancel()

    async def _knock_on(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        for _ in range(KNOCKS_MAX):
            outcome = await knock(host.strip("[]"), int(port))
            self.counters[outcome] += 1
            if outcome == "knocks_refused":
                self._told(address, True)
            await asyncio.sleep(KNOCK_EVERY_S)


async def knock(host: str, port: int) -> str:
    """Connect and hang up; the counter of what came of it."""
    try:
        async with asyncio.timeout(KNOCK_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return "knocks_refused"
    except (OSError, TimeoutError):
        return "knocks_silent"
    writer.close()
    return "knocks_answered"
