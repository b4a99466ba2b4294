"""Real nodes, drivers and sockets in one process: forming, losing, regaining members."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from vsync.config import RingConfig
from vsync.driver import Driver
from vsync.events import Deliver, Direct, Output, View
from vsync.node import Node
from vsync.transport import ZmqTransport
from vsync.types import Guarantee, Member

CONFIG = RingConfig(token_timeout_ms=500, hold_ms=20, join_timeout_ms=20, merge_interval_ms=50)


async def until(condition: Callable[[], bool]) -> None:
    """Bounded, so that a hang becomes a failure; asserts nothing about time."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the conditions are the product's own state
            await asyncio.sleep(0.005)


class Life:
    """One life of one member, with all it was told."""

    def __init__(
        self, name: str, incarnation: int = 1, address: str = "127.0.0.1:0", *, peers: Iterable[str]
    ) -> None:
        transport = ZmqTransport(address, 3 * CONFIG.frame_bytes_max)
        self.me = Member(name, incarnation, transport.address)
        self.address = transport.address
        self.members: tuple[Member, ...] = ()
        self.delivered: list[bytes] = []
        self.datagrams: list[bytes] = []
        node = Node(self.me, "test", CONFIG, random.Random(incarnation))
        self.driver = Driver(node, transport, self.on_event)
        self.driver.start(peers)

    def on_event(self, event: Output) -> None:
        if isinstance(event, View):
            self.members = event.members
        elif isinstance(event, Deliver):
            self.delivered += event.payloads
        elif isinstance(event, Direct):
            self.datagrams.append(event.payload)


def together(*lives: Life) -> Callable[[], bool]:
    wanted = tuple(sorted(life.me for life in lives))
    return lambda: all(life.members == wanted for life in lives)


def test_members_form_a_ring_lose_one_and_take_its_next_life() -> None:
    async def main() -> None:
        a = Life("a", peers=())
        b = Life("b", peers=[a.address])
        c = Life("c", peers=[a.address, b.address])
        for life in (a, b):
            for other in (a, b, c):
                life.driver.add_peer(other.address)
        await until(together(a, b, c))

        for number in range(100):
            for life in (a, b, c):
                assert life.driver.submit(f"{life.me} {number}".encode())
        big = bytes(300_000)
        assert b.driver.submit(big, Guarantee.AGREED)
        a.driver.send_direct(c.me, b"psst")
        await until(lambda: all(len(life.delivered) == 301 for life in (a, b, c)))
        assert a.delivered == b.delivered == c.delivered
        assert big in c.delivered
        await until(lambda: c.datagrams == [b"psst"])

        c.driver.stop()  # without a farewell: a crash
        await until(together(a, b))
        again = Life("c", 2, c.address, peers=[a.address])
        await until(together(a, b, again))
        assert again.driver.submit(b"back")
        await until(lambda: all(life.delivered[-1:] == [b"back"] for life in (a, b, again)))

        again.driver.leave()
        await until(together(a, b))
        for life in (a, b, again):
            life.driver.stop(linger_ms=50)
            assert life.driver.closed.exception() is None
            assert not life.driver.counters["edges_missed"]

    asyncio.run(main())


def test_one_known_address_is_enough() -> None:
    """The seed knows nobody, the others know only the seed: each learns of all from the ring."""

    async def main() -> None:
        seed = Life("a", peers=())
        others = [Life(name, peers=[seed.address]) for name in "bc"]
        await until(together(seed, *others))
        for life in (seed, *others):
            life.driver.stop()

    asyncio.run(main())
