"""A member on two networks: each frame goes over both, and the ring does not notice a lost copy."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest
import zmq

from tests.support.ring.scripted_transport import until
from vsync.io.driver import Driver
from vsync.io.peer_link import Link
from vsync.io.redundant_transport import RedundantTransport
from vsync.io.transport import TransportError
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, Output, View
from vsync.totem.node import Node
from vsync.types import Member

BYTES = 100_000
PATIENT = RingConfig(token_timeout_ms=60_000, consensus_timeout_ms=70_000, probe_ms=60)
"""The loss of a token is far away: a machine that is busy elsewhere changes no view."""
UP = b"up"


def met(condition: Callable[[], bool]) -> None:
    """Wait for the I/O threads; the time limit only turns a hang into a failure."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.001)


def received(transport: RedundantTransport, count: int) -> list[bytes]:
    """Receive until `count` frames have come.

    Frames of `up` are left out: one may still be on its way when the other link is up.
    """
    frames: list[bytes] = []

    def enough() -> bool:
        frames.extend(frame for frame in transport.receive(64) if frame != UP)
        return len(frames) >= count

    met(enough)
    return frames


def up(transport: RedundantTransport, links: int) -> None:
    """Wait until `count` links take frames."""
    met(lambda: transport.broadcast(UP) == links)


def test_every_frame_goes_over_both_links() -> None:
    a = RedundantTransport(["127.0.0.1:0", "127.0.0.2:0"], BYTES)
    b = RedundantTransport(["127.0.0.1:0", "127.0.0.2:0"], BYTES)
    try:
        assert [part.split(":")[0] for part in b.address.split(",")] == ["127.0.0.1", "127.0.0.2"]
        a.connect(b.address)
        up(a, 2)
        assert a.send(b.address, b"token")
        assert received(b, 2) == [b"token", b"token"]
    finally:
        a.close()
        b.close()


def test_a_member_known_by_one_address_gets_no_third_copy() -> None:
    """It is configured by its first address, and then announces itself with both."""
    a = RedundantTransport(["127.0.0.1:0"], BYTES)
    b = RedundantTransport(["127.0.0.1:0", "127.0.0.2:0"], BYTES)
    try:
        first = b.address.split(",")[0]
        a.connect(first)
        a.connect(b.address)
        assert sorted(a.peers) == sorted(b.address.split(","))
        a.forget(b.address)
        assert a.peers == (first,)
    finally:
        a.close()
        b.close()


def test_one_network_is_enough() -> None:
    """Nothing listens at the first address; frames arrive over the second."""
    a = RedundantTransport(["127.0.0.1:0"], BYTES)
    b = RedundantTransport(["127.0.0.2:0"], BYTES)
    try:
        address = f"127.0.0.3:1,{b.address}"
        a.connect(address)
        met(lambda: a.send(address, b"frame"))
        assert received(b, 1) == [b"frame"]
    finally:
        a.close()
        b.close()


def test_an_address_that_cannot_be_bound_is_named() -> None:
    with pytest.raises(TransportError, match=r"192\.0\.2\.1:1"):
        RedundantTransport(["127.0.0.1:0", "192.0.2.1:1"], BYTES)


class OneNetworkDown(RedundantTransport):
    """Loses every frame sent over one network."""

    network = "none"

    def _send(self, peer: Link, frame: bytes | zmq.Frame) -> bool:
        return not peer.address.startswith(self.network) and super()._send(peer, frame)


@pytest.mark.parametrize("network", ["127.0.0.1", "127.0.0.2"])
def test_losing_one_network_changes_no_view(network: str) -> None:
    async def main() -> None:
        transports = [OneNetworkDown(["127.0.0.1:0", "127.0.0.2:0"], BYTES) for _ in range(3)]
        addresses = [transport.address for transport in transports]
        views: list[View] = []
        delivered: list[bytes] = []

        def heard(event: Output) -> None:
            if isinstance(event, View):
                views.append(event)
            elif isinstance(event, Deliver):
                delivered.extend(event.payloads)

        drivers = []
        for number, transport in enumerate(transports):
            me = Member(f"m{number}", 1, transport.address)
            node = Node(me, "redundant", PATIENT, random.Random(number))
            drivers.append(Driver(node, transport, heard))
        for driver in drivers:  # found by the first address only
            driver.start(a.split(",")[0] for a in addresses)
        await until(lambda: [len(view.members) for view in views].count(3) == 3)
        # Each member has both links to both others: a link that never was up cannot be lost.
        await until(lambda: all(transport.broadcast(b"") == 4 for transport in transports))
        before = len(views)
        for transport in transports:
            transport.network = network
        for number in range(30):
            drivers[number % 3].submit(b"%d" % number)
            await until(lambda n=number: len(delivered) == 3 * (n + 1))  # type: ignore[misc]
        for driver in drivers:
            driver.stop()
        assert len(views) == before

    asyncio.run(main())


def test_a_link_is_down_only_while_the_other_one_is_up() -> None:
    """The links of a member that left are not reported: no operator needs to act on them."""
    a = RedundantTransport(["127.0.0.1:0"], BYTES)
    b = RedundantTransport(["127.0.0.1:0", "127.0.0.2:0"], BYTES)
    try:
        a.connect(b.address)
        first, second = (a._peers[link] for link in b.address.split(","))
        assert not a.links_down
        second.broken = True
        assert a.links_down == (second.address,)
        first.broken = True
        assert not a.links_down
    finally:
        a.close()
        b.close()
