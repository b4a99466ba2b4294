"""The throughput of a federation link over a slow network: 200 ms round trip, 1 % segment loss.

    python -m tests.bench.operating.wan
    python -m tests.bench.operating.wan --round-trip-ms 20 --loss 0

Two clusters on this machine, and a relay between them that holds each piece for half a round trip.
A lost segment delays all behind it by another round trip, as in TCP until the segment is resent.
That a sender slows down after a loss is not modelled: links over such networks use a congestion
control that does not (BBR).  Prints messages a second, from the middle of the run, whether all
arrived, once and in order, and the processor time of each side.
"""

from __future__ import annotations

import asyncio
import random
import signal
import struct
import tempfile
import threading
import time
from pathlib import Path

import click

from broker.amqp.fields import Value
from tests.bench.cluster import cpu_seconds
from tests.system.links.support import processes
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.cli.signals import ended_by
from tools.client.amqp_client import AmqpConnection
from tools.client.credentials import Credentials
from tools.client.http_api import Api, ApiError, Object, parse_api
from tools.demo.local_cluster import HOST, BrokerProcess, ClusterTrouble, LocalCluster

SEGMENT_BYTES, PIECE_BYTES = 1448, 16 * 1024
NUMBER = struct.Struct(">I")
PERSISTENT = b"\x10\x00\x02"
NAME = "wan"
BEGIN, END = 0.2, 0.9
"""The measurement runs between these shares of the messages."""
PATIENCE_S = 300.0


class SlowLink:
    """A relay to one address, in its own thread."""

    def __init__(self, host: str, port: int, round_trip_s: float, loss: float) -> None:
        self._target, self._half_s, self._loss = (host, port), round_trip_s / 2, loss
        self._chance = random.Random(1)
        self.lost = 0
        self._loop = asyncio.new_event_loop()
        started: threading.Event = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, onward = await asyncio.open_connection(*self._target)
        await asyncio.gather(
            self._carry(reader, onward), self._carry(behind, writer), return_exceptions=True
        )

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Deliver each piece when its time has come, and not before the one ahead of it."""
        arrives, pieces = 0.0, list[tuple[float, bytes]]()
        more = asyncio.Event()

        async def deliver() -> None:
            while True:
                while not pieces:
                    more.clear()
                    await more.wait()
                at, piece = pieces.pop(0)
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                if not piece:
                    writer.close()
                    return
                writer.write(piece)
                await writer.drain()

        task = asyncio.create_task(deliver())
        while True:
            piece = await reader.read(PIECE_BYTES)
            segments = -(-len(piece) // SEGMENT_BYTES)
            lost = sum(self._chance.random() < self._loss for _ in range(segments))
            self.lost += lost
            late = 2 * self._half_s if lost else 0.0
            arrives = max(arrives, time.monotonic() + self._half_s + late)
            pieces.append((arrives, piece))
            more.set()
            if not piece:
                return await task


def fill(member: BrokerProcess, count: int, size: int) -> None:
    """Publish to the exchange, persistent and confirmed."""
    connection = AmqpConnection(member.address)
    connection.select_confirms()
    confirmed = 0
    for number in range(count):
        body = NUMBER.pack(number).ljust(size, b".")
        connection.publish(NAME, "", PERSISTENT, body)
        while connection.congested or number - confirmed > 2000:
            connection.pump(1.0)
            confirmed = max((one.number for one in connection.acks), default=confirmed)
            connection.acks.clear()
    while confirmed < count:
        connection.pump(1.0)
        confirmed = max((one.number for one in connection.acks), default=confirmed)
        connection.acks.clear()
    connection.close()


def arrived(api: Api) -> int:
    """The number of messages here; -1 while a view changes, as on a busy machine."""
    try:
        found = api.fields("queues", "/", NAME).get("messages", 0)
    except ApiError:
        return -1
    return found if isinstance(found, int) else 0


def link_up(near: BrokerProcess, relay: SlowLink, prefetch: int | None) -> Api:
    """Bind a queue here and federate the exchange."""
    api = parse_api(str(near.management), 30.0, Credentials())
    connection = AmqpConnection(near.address)
    made: tuple[Value, ...] = (NAME, "fanout", False, True, False, False, False, {})
    connection.call("exchange.declare", made, "exchange.declare-ok")
    connection.declare_queue(NAME)
    connection.call("queue.bind", (NAME, NAME, "", False, {}), "queue.bind-ok")
    connection.close()
    value: Object = {"uri": f"amqp://guest:guest@{HOST}:{relay.port}"}
    if prefetch is not None:
        value["prefetch-count"] = prefetch
    api.put("parameters", "federation-upstream", "/", "far", body={"value": value})
    api.put("policies", "/", NAME, body={
        "pattern": f"^{NAME}$", "apply-to": "exchanges",
        "definition": {"federation-upstream": "far"},
    })  # fmt: skip
    deadline = time.monotonic() + PATIENCE_S
    while not any(row.get("status") == "running" for row in api.rows("federation-links")):
        if time.monotonic() > deadline:
            raise ToolError(f"the link does not run: {api.rows('federation-links')}")
        time.sleep(0.2)
    return api


def in_order(near: BrokerProcess, count: int) -> bool:
    """Take all out again; whether they are all there, in order."""
    connection = AmqpConnection(near.address)
    connection.consume(NAME, 0, no_ack=True)
    found: list[int] = []
    while len(found) < count:
        connection.pump(5.0)
        found += [NUMBER.unpack_from(one.body)[0] for one in connection.deliveries]
        connection.deliveries.clear()
    connection.close()
    return found == list(range(count))


def run(
    root: Path, members: int, count: int, size: int, round_trip_s: float, loss: float,
    prefetch: int | None,
) -> None:  # fmt: skip
    with (
        LocalCluster(root / "near", members, "near", management=True) as near,
        LocalCluster(root / "far", 1, "far", management=True) as far,
    ):
        near.start(60.0)
        far.start(60.0)
        relay = SlowLink(*far[0].address, round_trip_s, loss)
        api = link_up(near[0], relay, prefetch)
        parts = {"a member that takes": near[0].pid, "that gives": far[0].pid,
                 "the link": processes(near)[0]}  # fmt: skip
        before = {name: cpu_seconds([pid]) for name, pid in parts.items()}
        filling = threading.Thread(target=fill, args=(far[0], count, size))
        filling.start()
        marks: dict[float, tuple[float, int]] = {}
        deadline = time.monotonic() + PATIENCE_S
        while (here := arrived(api)) < count:
            for mark in (BEGIN, END):
                if here >= mark * count:
                    marks.setdefault(mark, (time.monotonic(), here))
            if time.monotonic() > deadline:
                raise ToolError(f"{here} of {count} came")
            time.sleep(0.05)
        now = time.monotonic(), here
        (begun, first), (ended, last) = (marks.get(mark, now) for mark in (BEGIN, END))
        filling.join()
        spent = {name: cpu_seconds([pid]) - before[name] for name, pid in parts.items()}
        time.sleep(1.0)
        if arrived(api) != count:
            raise ToolError(f"{arrived(api)} in place of {count} came")
        print("processor, us a message: " + ", ".join(
            f"{name} {seconds * 1e6 / count:.0f}" for name, seconds in spent.items()
        ))  # fmt: skip
        print(
            f"{(last - first) / (ended - begun):,.0f} messages/s of {size} B over "
            f"{round_trip_s * 1000:.0f} ms with {loss:.1%} lost ({relay.lost} segments), "
            f"{members} and 1 members, {count:,} messages, "
            f"{'once and in order' if in_order(near[0], count) else 'NOT IN ORDER'}"
        )


@click.command(name="wan")
@click.option("--members", default=1, show_default=True, help="Members of the downstream cluster.")
@click.option("--messages", "count", default=50_000, show_default=True)
@click.option("--size", default=256, show_default=True, help="Bytes per body.")
@click.option("--round-trip-ms", default=200.0, show_default=True)
@click.option("--loss", default=0.01, show_default=True, help="Share of lost segments.")
@click.option("--prefetch", type=int, help="Default: that of upstreams.")
def main(
    members: int, count: int, size: int, round_trip_ms: float, loss: float, prefetch: int | None
) -> None:
    """Measure a federation link over a slow network."""
    with ended_by(signal.SIGTERM), tempfile.TemporaryDirectory() as root:
        try:
            run(Path(root), members, count, size, round_trip_ms / 1000, loss, prefetch)
        except ClusterTrouble as trouble:
            raise ToolError(str(trouble)) from None


if __name__ == "__main__":
    run_command(main)
