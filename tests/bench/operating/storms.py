"""The cost of many connections and queues, and the effect of a large message on other clients.

    python -m tests.bench.operating.storms        # 10,000 connections, 100,000 queues, 200 MB
    python -m tests.bench.operating.storms --connections 3000 --queues 10000 --large 0
    python -m tests.bench.operating.storms --aiormq --queues 10000 --large 0

Prints JSON.  All connections are opened, a few at a time, over the three members: `connect_per_s`,
the median and the 99th percentile of the time until each is open, and `connection_kb`, the memory
of an idle one at its member.  `channels_s`: to open and close this many channels of one connection,
one after the other.  Then `--declarers` of the connections declare queues, each waiting for
declare-ok: `declare_per_s`, median and 99th percentile, and `queue_kb` at each member.  While all
idle, `probe_...` is how long a publish of another client, 100 a second, waits for its confirm.
Last, one message of `--large` MB goes to one member (`large_s`), and `beside_large_...` is the wait
of publishes at another one, 1,000 a second.  `views`: how often the membership changed meanwhile;
`collection_max_ms`: the longest full garbage collection of a member.  0 of anything leaves it out.
The generator is one process and shares the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import aiormq
import uvloop
from aiormq.abc import AbstractChannel, AbstractConnection

from broker.amqp.codec import encode_properties, split_frames
from tests.bench.million import resident
from tests.support.amqp_peer import method, methods_in, opening, publish
from tools.cli.signals import ended_by
from tools.client.management import Target
from tools.demo.local_cluster import HOST, LocalCluster

AT_ONCE = 64
"""The number of connections that are being opened at the same time."""
WAIT_S = 120.0
PROBE_S = 10.0
Figures = dict[str, float]


class Client:
    """A connection, and the replies to it, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Client:
        client = cls(*await asyncio.open_connection(HOST, port, limit=1 << 12))
        await client.call(opening(), "connection.open-ok")
        return client

    async def call(self, data: bytes, until: str) -> None:
        """Send, and read until a method of this name arrives."""
        self.writer.write(data)
        received = b""
        while True:
            more = await asyncio.wait_for(self._reader.read(1 << 16), WAIT_S)
            if not more:
                sys.exit(f"a connection was closed as it waited for {until}")
            received += more
            try:
                names = [one.method for one in methods_in(received)]
            except AssertionError:  # a frame is not whole yet
                continue
            if until in names:
                return
            if "connection.close" in names or "channel.close" in names:
                sys.exit(f"closed instead of {until}: {received!r}")

    async def acks(self, confirmed: Callable[[int, bool], None]) -> None:
        """Read confirms until cancelled."""
        received = bytearray()
        while True:
            received += await self._reader.read(1 << 16)
            frames, end = split_frames(bytes(received))
            whole, received = bytes(received[:end]), received[end:]
            for one in methods_in(whole) if frames else ():
                if one.method == "basic.ack":
                    number, multiple = one.args
                    confirmed(int(str(number)), bool(multiple))

    async def begin(self) -> None:
        """Open a channel on it."""
        await self.call(method(1, "channel.open"), "channel.open-ok")

    def abort(self) -> None:
        """Drop it without closing."""
        self.writer.transport.abort()

    async def declare(self, queue: str) -> None:
        data = method(1, "queue.declare", queue, False, True, False, False, False, {})
        await self.call(data, "queue.declare-ok")

    async def publisher(self) -> Client:
        """Open a channel with confirms on it."""
        await self.call(method(1, "channel.open"), "channel.open-ok")
        await self.call(method(1, "confirm.select", False), "confirm.select-ok")
        return self


class AiormqClient:
    """The same with the library aiormq, with all its additional work."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._channel: AbstractChannel | None = None

    @classmethod
    async def open(cls, port: int) -> AiormqClient:
        return cls(await aiormq.connect(f"amqp://guest:guest@{HOST}:{port}/"))

    async def begin(self) -> None:
        """Open a channel on it."""
        self._channel = await self._connection.channel(publisher_confirms=False)

    async def declare(self, queue: str) -> None:
        assert self._channel is not None
        await self._channel.queue_declare(queue, durable=True)

    def abort(self) -> None:
        """The broker ends it."""


AnyClient: TypeAlias = Client | AiormqClient


async def timed(work: Awaitable[object], took: list[float]) -> None:
    began = time.perf_counter()
    await work
    took.append(time.perf_counter() - began)


async def in_parallel(works: Iterable[Callable[[], Awaitable[None]]], at_once: int) -> float:
    """Seconds for all, this many at a time."""
    left = iter(works)

    async def one_after_the_other() -> None:
        for work in left:
            await work()

    began = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return time.perf_counter() - began


def spread(name: str, took: list[float]) -> Figures:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(took)
    return {
        f"{name}_p50_ms": statistics.median(ordered) * 1e3,
        f"{name}_p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3,
    }


def memory(cluster: LocalCluster) -> int:
    """KiB of all members."""
    return sum(resident(member.pid) for member in cluster.members) << 10


async def connect(
    cluster: LocalCluster, count: int, kind: type[AnyClient]
) -> tuple[list[AnyClient], Figures]:
    clients: list[AnyClient] = []
    took: list[float] = []

    async def one(number: int) -> None:
        clients.append(await kind.open(cluster[number % len(cluster.members)].address.port))

    before = memory(cluster)
    works = [lambda n=n: timed(one(n), took) for n in range(count)]
    seconds = await in_parallel(works, AT_ONCE)
    await asyncio.sleep(2.0)
    each = (memory(cluster) - before) / count
    return clients, {
        "connect_per_s": count / seconds, **spread("connect", took), "connection_kb": each
    }  # fmt: skip


async def channels(cluster: LocalCluster, count: int) -> Figures:
    """Open and close channels, one after the other."""
    client = await Client.open(cluster[0].address.port)
    began = time.perf_counter()
    for _ in range(count):
        await client.call(method(1, "channel.open"), "channel.open-ok")
        await client.call(method(1, "channel.close", 200, "", 0, 0), "channel.close-ok")
    return {"channels_s": time.perf_counter() - began}


async def declare(cluster: LocalCluster, clients: list[AnyClient], count: int) -> Figures:
    took: list[float] = []
    numbers = iter(range(count))
    before = memory(cluster)

    async def declarer(client: AnyClient) -> None:
        await client.begin()
        for number in numbers:
            await timed(client.declare(f"storm-{number}"), took)

    began = time.perf_counter()
    await asyncio.gather(*(declarer(client) for client in clients))
    seconds = time.perf_counter() - began
    each = (memory(cluster) - before) / count / len(cluster.members)
    return {"declare_per_s": count / seconds, **spread("declare", took), "queue_kb": each}


class Probe:
    """Publishes at a rate, without waiting for confirms, and measures how long each waited."""

    def __init__(self, client: Client, rate: int) -> None:
        self._client, self._rate = client, rate
        self._due: dict[int, float] = {}  # by number, unconfirmed
        self.took: list[float] = []

    @classmethod
    async def at(cls, port: int, rate: int) -> Probe:
        client = await (await Client.open(port)).publisher()
        await client.declare("probed")
        return cls(client, rate)

    async def run(self, until: Callable[[], bool]) -> list[float]:
        """Seconds of each, from when it was due."""
        reader = asyncio.ensure_future(self._client.acks(self._confirmed))
        due = time.perf_counter()
        number = 0
        while not until():
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            number += 1
            self._due[number] = due
            self._client.writer.write(publish(1, "", "probed", bytes(256)))
        deadline = time.perf_counter() + WAIT_S
        while self._due and time.perf_counter() < deadline:
            await asyncio.wait({reader}, timeout=0.01)
        reader.cancel()
        return self.took

    def _confirmed(self, number: int, multiple: bool) -> None:
        now = time.perf_counter()
        first = min(self._due) if multiple else number
        self.took += (now - self._due.pop(one) for one in range(first, number + 1))


async def large(cluster: LocalCluster, megabytes: int) -> Figures:
    client = await (await Client.open(cluster[0].address.port)).publisher()
    await client.declare("large")
    body = bytes(megabytes * 1_000_000)
    data = publish(1, "", "large", body, encode_properties({"delivery_mode": 2}))
    probe = await Probe.at(cluster[1].address.port, 1000)
    began = time.perf_counter()
    sent = asyncio.ensure_future(client.call(data, "basic.ack"))
    beside = await probe.run(sent.done)
    await sent
    return {"large_s": time.perf_counter() - began, **spread("beside_large", beside)}


def of_all(cluster: LocalCluster, name: str) -> list[int]:
    """A counter at each member."""
    counted = []
    for member in cluster.members:
        counters = Target(member.address).ask(op="counters")["counters"]
        assert isinstance(counters, dict)
        counted.append(int(str(counters[name])))
    return counted


def views(cluster: LocalCluster) -> int:
    """How often members installed a membership, summed."""
    return sum(of_all(cluster, "ring.phase_operational"))


async def storms(cluster: LocalCluster, given: argparse.Namespace) -> Figures:
    before = views(cluster)
    kind: type[AnyClient] = AiormqClient if given.aiormq else Client
    clients: list[AnyClient] = []
    figures: Figures = {}
    if given.connections:
        clients, figures = await connect(cluster, given.connections, kind)
    if given.channels:
        figures |= await channels(cluster, given.channels)
    if given.queues:
        declarers = clients[: given.declarers]
        while len(declarers) < given.declarers:
            declarers.append(await kind.open(cluster[len(declarers) % 3].address.port))
        figures |= await declare(cluster, declarers, given.queues)
    end = time.perf_counter() + PROBE_S
    probe = await Probe.at(cluster[0].address.port, 100)
    figures |= spread("probe", await probe.run(lambda: time.perf_counter() > end))
    if given.large:
        figures |= await large(cluster, given.large)
    figures["views"] = views(cluster) - before
    figures["collection_max_ms"] = max(of_all(cluster, "collector.longest_ms"))
    for client in clients:
        client.abort()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--aiormq", action="store_true", help="use clients of this library")
    parser.add_argument("--channels", type=int, default=1_000)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--declarers", type=int, default=20)
    parser.add_argument("--large", type=int, default=200, help="MB of the large message; 0: none")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(soft, min(hard, given.connections + 1000)), hard)
    )
    extra = {"max-message-size": f"{max(128, given.large + 1)}MiB"}
    with (
        ended_by(signal.SIGTERM),
        tempfile.TemporaryDirectory(prefix="storms-") as root,
        LocalCluster(Path(root), 3, "storms", extra=extra) as cluster,
    ):
        cluster.start()
        figures = uvloop.run(storms(cluster, given))
    sys.stdout.write(json.dumps({name: round(value, 2) for name, value in figures.items()}) + "\n")


if __name__ == "__main__":
    main()
