"""Members with real sockets in one process, with keys or without."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from pathlib import Path

from tools.demo.local_cluster import HOST, free_ports
from vsync.io.driver import Driver
from vsync.io.keys import Allowed, KeyPair, make_pair, public_text
from vsync.io.security import Curve, Security
from vsync.io.transport import ZmqTransport
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, Direct, Output, View
from vsync.totem.node import Node
from vsync.types import Member

CONFIG = RingConfig(
    token_timeout_ms=5_000, probe_ms=50, hold_ms=20, join_timeout_ms=20, merge_interval_ms=50
)
"""A long token timeout, so that a busy machine changes no view."""
QUICK = RingConfig(token_timeout_ms=500, hold_ms=20, join_timeout_ms=20, merge_interval_ms=50)
"""A short one, where a test waits for that loss."""
ANYWHERE = "127.0.0.1:0"


async def until(condition: Callable[[], bool]) -> None:
    """Bounded, so that a hang becomes a failure; asserts nothing about time."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the conditions are the product's own state
            await asyncio.sleep(0.005)


class KeyDirectory:
    """The directory with public keys, as an operator keeps it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def allow(self, pair: KeyPair) -> Path:
        path = self.folder / f"{pair.public[:8].encode().hex()}.key"
        path.write_text(public_text(pair))
        return path

    def curve(self, pair: KeyPair) -> Curve:
        return Curve(pair, Allowed(self.folder, lambda _: None, lambda _: None))


class Process:
    """One process of a member, by default named by its address, with all its deliveries."""

    def __init__(
        self,
        address: str,
        security: Security | None,
        peers: Iterable[str] = (),
        incarnation: int = 1,
        name: str = "",
        config: RingConfig = CONFIG,
    ) -> None:
        self.transport = ZmqTransport(address, 3 * config.frame_bytes_max, security=security)
        self.address = self.transport.address
        self.me = Member(name or self.address, incarnation, self.address)
        self.members: tuple[Member, ...] = ()
        self.views = 0
        self.delivered: list[bytes] = []
        self.datagrams: list[bytes] = []
        self.node = Node(self.me, "test", config, random.Random(incarnation))
        self.driver = Driver(self.node, self.transport, self.on_event)
        self.driver.start(peers)

    def on_event(self, event: Output) -> None:
        if isinstance(event, View):
            self.members = event.members
            self.views += 1
        elif isinstance(event, Deliver):
            self.delivered += event.payloads
        elif isinstance(event, Direct):
            self.datagrams.append(event.payload)

    def stop(self) -> None:
        self.driver.stop()
        if error := self.driver.closed.exception():
            raise error


def together(*processes: Process) -> Callable[[], bool]:
    wanted = tuple(sorted(process.me for process in processes))
    return lambda: all(process.members == wanted for process in processes)


def free_addresses(count: int) -> list[str]:
    """Addresses that were free a moment ago, as keys are made for addresses."""
    return [f"{HOST}:{port}" for port in free_ports(count)]


def keys_for(addresses: Iterable[str]) -> list[KeyPair]:
    return [make_pair(address) for address in addresses]
