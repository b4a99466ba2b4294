"""Monitors the links to peers: reports breaks, and probes whether the peer's process is gone.

A broken connection is only a hint: a middlebox may have reset it, or the peer may have restarted.
So the address is *probed*, with a bare TCP connection that is dropped at once, until the link is
back or some attempts have failed. A live process keeps its listening socket, even when it is
stopped or its machine is loaded; so "connection refused" from a host that replies means that the
process is gone. `vsync.totem.membership.failure_detector` decides what follows from a break or a
probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PROBES_MAX: Final = 20
PROBE_EVERY_S: Final = 0.025
PROBE_TIMEOUT_S: Final = 0.1
"""Longer than the round trip of any network that a ring runs over."""

LinkHint = Callable[[str, bool], None]
"""Called with an address and whether it refused a connection; False: the link to it broke."""


class LinkMonitor:
    """Watches the links of one transport, on the loop's thread.

    `maintain` is called when a watched descriptor signals; the transport then reads the events,
    reports the state of each link (`update`), and calls `forget` before it closes one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        maintain: Callable[[], None],
        on_hint: LinkHint,
        counters: dict[str, int],
    ) -> None:
        self._loop, self._maintain, self._on_hint = loop, maintain, on_hint
        self._fds: dict[str, int] = {}
        self._breaks: dict[str, int] = {}  # of each link, as many as were reported
        self._probing: dict[str, asyncio.Task[None]] = {}
        self.counters = counters
        for name in ("links_broken", "knocks_refused", "knocks_answered", "knocks_silent"):
            counters.setdefault(name, 0)

    def watch(self, address: str, fd: int) -> None:
        """Watch `fd`, which signals the events of the link to `address`."""
        self.forget(address)
        self._fds[address] = fd
        self._loop.add_reader(fd, self._maintain)
        self._loop.call_soon(self._maintain)  # libzmq signals only events after a first look

    def forget(self, address: str) -> None:
        """Stop watching.  Idempotent."""
        self._breaks.pop(address, None)
        fd = self._fds.pop(address, None)
        if fd is not None:
            self._loop.remove_reader(fd)
        self._stop_probing(address)

    def close(self) -> None:
        """Forget all links."""
        for address in tuple(self._fds):
            self.forget(address)

    def update(self, address: str, broken: bool, breaks: int) -> None:
        """Take the state of a link: whether it is broken, and how often it broke. Idempotent.

        A break that was repaired before this call is reported too: the peer may be another
        incarnation now. A break after a repair is a new one.
        """
        if address not in self._fds:
            return
        fresh = breaks > self._breaks.get(address, 0)
        if fresh or not broken:
            self._stop_probing(address)
        if fresh:
            self._breaks[address] = breaks
            self.counters["links_broken"] += 1
            if broken:
                self._probing[address] = self._loop.create_task(self._probe(address))
            self._on_hint(address, False)

    def _stop_probing(self, address: str) -> None:
        task = self._probing.pop(address, None)
        if task is not None:
            task.cancel()

    async def _probe(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        for _ in range(PROBES_MAX):
            outcome = await probe(host.strip("[]"), int(port))
            self.counters[outcome] += 1
            if outcome == "knocks_refused":
                self._on_hint(address, True)
            await asyncio.sleep(PROBE_EVERY_S)


async def probe(host: str, port: int) -> str:
    """Connect and close; return the counter of the result."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return "knocks_refused"
    except (OSError, TimeoutError):
        return "knocks_silent"
    writer.close()
    return "knocks_answered"
