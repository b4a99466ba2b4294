"""Broken links over real sockets: what the transport reports, and how the ring reacts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable

import zmq

from tests.support.ring.scripted_transport import until
from vsync.io.driver import Driver
from vsync.io.link_monitor import LinkMonitor, probe
from vsync.io.peer_link import Link
from vsync.io.security import Anonymous
from vsync.io.transport import ZmqTransport
from vsync.totem.config import RingConfig
from vsync.totem.events import Output, View
from vsync.totem.node import Node
from vsync.types import Member

Hints = list[tuple[str, bool]]


class Relay:
    """Relays bytes to a port until `hang_up`; keeps listening, like a middlebox."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = ""
        self.open: list[asyncio.StreamWriter] = []

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection("127.0.0.1", self.port)
        self.open += [writer, out]
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(_pump(reader, out), _pump(there, writer))

    def hang_up(self) -> None:
        for writer in self.open:
            writer.transport.abort()
        self.open.clear()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


def watched(story: Callable[[ZmqTransport, ZmqTransport, Hints], Awaitable[None]]) -> None:
    """Run a story with two transports and the hints of the first one."""

    async def main() -> None:
        a, b = ZmqTransport("127.0.0.1:0", 1_000), ZmqTransport("127.0.0.1:0", 1_000)
        hints: Hints = []
        loop = asyncio.get_running_loop()
        a.watch(loop, lambda: a.maintain(loop.time()), lambda *hint: hints.append(hint))
        try:
            await story(a, b, hints)
        finally:
            a.close()
            b.close()

    asyncio.run(main())


def test_a_stopped_peer_is_broken_and_then_refused() -> None:
    async def story(a: ZmqTransport, b: ZmqTransport, hints: Hints) -> None:
        await until(lambda: a.send(b.address, b"x"))
        b.close()
        await until(lambda: len(hints) >= 3)
        assert hints[:3] == [(b.address, False), (b.address, True), (b.address, True)]
        assert a.counters["links_broken"] == 1
        assert a.counters["knocks_refused"] >= 2

    watched(story)


def test_a_reset_connection_to_a_running_peer_is_never_refused() -> None:
    async def story(a: ZmqTransport, b: ZmqTransport, hints: Hints) -> None:
        relay = Relay(int(b.address.rpartition(":")[2]))
        server = await relay.start()
        try:

            async def up(turn: int) -> None:
                # The frame must arrive: a dying pipe accepts frames until it is looked at.
                frame = b"%d" % turn
                await until(lambda: a.send(relay.address, frame) and frame in b.receive(64))

            for turn in range(3):
                await up(turn)
                relay.hang_up()
                await until(lambda: len(hints) > turn)  # noqa: B023
            await up(3)
            assert {refused for _, refused in hints} == {False}
            assert a.counters["knocks_refused"] == 0
        finally:
            server.close()
            relay.hang_up()

    watched(story)


def test_every_break_is_reported_even_between_two_reads() -> None:
    """A loaded process reads events late: it may find up and broken, or broken and up, together."""

    async def main() -> None:
        hints: Hints = []
        counters: dict[str, int] = {}
        loop = asyncio.get_running_loop()
        door, other = socket.socketpair()
        monitor = LinkMonitor(loop, lambda: None, lambda *hint: hints.append(hint), counters)
        with door, other, socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            monitor.watch(address, door.fileno())
            for broken, breaks in ((False, 0), (True, 1), (True, 1), (True, 2), (False, 3)):
                monitor.update(address, broken, breaks)
            assert hints == [(address, False)] * 3
            assert counters["links_broken"] == 3
            monitor.forget(address)
            monitor.update(address, True, 4)
            assert len(hints) == 3

    asyncio.run(main())


def test_two_breaks_between_two_reads_count_as_two() -> None:
    async def main() -> None:
        b = ZmqTransport("127.0.0.1:0", 1_000)
        relay = Relay(int(b.address.rpartition(":")[2]))
        server = await relay.start()
        with zmq.Context[zmq.Socket[bytes]]() as context:
            link = Link(context, relay.address, Anonymous())
            link.push.setsockopt(zmq.IMMEDIATE, 1)
            link.push.setsockopt(zmq.RECONNECT_IVL, 20)
            link.dial()
            try:
                for _ in range(2):
                    await until(lambda: bool(link.push.poll(0, zmq.POLLOUT)))
                    relay.hang_up()
                    await until(lambda: not link.push.poll(0, zmq.POLLOUT))
                assert not link.broken
                link.maintain(0.0)
                assert link.breaks == 2
            finally:
                link.close(0)
                server.close()
                relay.hang_up()
                b.close()

    asyncio.run(main())


def test_a_forgotten_peer_gives_no_hints() -> None:
    async def story(a: ZmqTransport, b: ZmqTransport, hints: Hints) -> None:
        await until(lambda: a.send(b.address, b"x"))
        a.forget(b.address)
        b.close()
        for _ in range(5):
            await asyncio.sleep(0.01)
            a.maintain(0.0)
        assert hints == []

    watched(story)


def test_a_host_that_does_not_answer_is_silent_and_a_listener_answers() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            port = full.getsockname()[1]
            assert await probe("127.0.0.1", port) == "knocks_answered"
            # A listener with a full accept queue neither accepts nor refuses.
            held = [await _connect(port) for _ in range(4)]
            assert await probe("127.0.0.1", port) == "knocks_silent"
            for one in held:
                one.close()

    async def _connect(port: int) -> socket.socket:
        one = socket.socket()
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            one.connect(("127.0.0.1", port))
        await asyncio.sleep(0.01)
        return one

    asyncio.run(main())


def test_a_ring_drops_a_killed_member_without_missing_the_token() -> None:
    """The token timeout is far away, so only the broken links can cause the change."""

    async def main() -> None:
        transports = {name: ZmqTransport("127.0.0.1:0", 70_000) for name in "abc"}
        config = RingConfig(token_timeout_ms=60_000, consensus_timeout_ms=70_000, probe_ms=60)
        seen: dict[str, str] = {}
        nodes: dict[str, Node] = {}
        drivers: dict[str, Driver] = {}
        for name, transport in transports.items():
            member = Member(name, 1, transport.address)
            nodes[name] = node = Node(member, "test", config, random.Random(name))

            def on_event(event: Output, name: str = name) -> None:
                if isinstance(event, View):
                    seen[name] = "".join(m.name for m in event.members)

            drivers[name] = Driver(node, transport, on_event)
            drivers[name].start(t.address for t in transports.values() if t is not transport)
        await until(lambda: list(seen.values()) == ["abc"] * 3)
        # Wait until all links are up: one that never was up cannot break.
        await until(lambda: all(t.send(o.address, b"") for t in transports.values()
                                for o in transports.values() if o is not t))  # fmt: skip
        drivers["b"].stop()
        await until(lambda: seen["a"] == seen["c"] == "ac")
        assert nodes["a"].counters["suspect_gone"] + nodes["c"].counters["suspect_gone"] > 0
        assert nodes["a"].counters["token_lost"] + nodes["c"].counters["token_lost"] == 0
        for driver in drivers.values():
            driver.stop()

    asyncio.run(main())
