"""A toy cluster for client tests: real AMQP on loopback, one dictionary of queues behind it.

Several listeners share the queues, as members of a cluster do, and any of them can be killed with
its connections.  It stands in for brokers only where clients are tested: it knows one channel per
connection, the default exchange, and no durability.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import cast

from broker.amqp import codec
from broker.amqp.connection import ServerConnection
from broker.amqp.events import (
    Called,
    ChannelCloseRequested,
    ChannelOpened,
    CloseRequested,
    Event,
    OpenRequested,
    Published,
)
from broker.amqp.fields import Value, encode_short_string
from broker.amqp.handshake import Limits, ServerIdentity
from vsync.types import record

HOST = "127.0.0.1"


@record
class Stored:
    """One message in a queue."""

    properties: bytes
    body: bytes
    redelivered: bool = False


class Link(asyncio.Protocol):
    """One client connection to one member."""

    def __init__(self, cluster: ToyCluster, place: int) -> None:
        self.cluster, self.place = cluster, place
        self.amqp = ServerConnection(
            lambda one: one.user if one.password != "wrong" else "",
            Limits(),
            cluster.identity,
            time.monotonic(),
        )
        self.queue = ""
        self.prefetch = 0
        self.no_ack = False
        self.unacked: dict[int, Stored] = {}
        self.next_tag = 1
        self.confirms = False
        self.publishes = self.confirmed = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.cluster.links.append(self)

    def data_received(self, data: bytes) -> None:
        for event in self.amqp.receive(data, time.monotonic()):
            self.on_event(event)
            if self not in self.cluster.links:
                return
        silent = self.place in self.cluster.silent
        if self.confirms and self.confirmed < self.publishes and not silent:
            self.confirmed = self.publishes
            codec.append_ack(self.amqp.out, 1, self.confirmed, True)
        self.cluster.dispatch()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.cluster.links:
            self.cluster.links.remove(self)
        self.give_back()
        self.cluster.dispatch()

    def give_back(self) -> None:
        """Return unacknowledged messages to their places, flagged."""
        if self.queue:
            waiting = self.cluster.queues[self.queue]
            for message in reversed(self.unacked.values()):
                message.redelivered = True  # type: ignore[misc]
                waiting.appendleft(message)
        self.unacked.clear()
        self.queue = ""

    def flush(self) -> None:
        """Send the collected output of the connection."""
        out = self.amqp.take_output()
        if out and self.transport is not None:
            self.transport.write(bytes(out))
        if self.amqp.has_ended and self.transport is not None:
            self.transport.close()

    def on_event(self, event: Event) -> None:
        match event:
            case OpenRequested():
                self.amqp.accept_open()
                if self.cluster.alarm:
                    codec.append_method(
                        self.amqp.out, 0, "connection.blocked", (self.cluster.alarm,)
                    )
            case ChannelOpened(channel=channel):
                self.amqp.send(channel, "channel.open-ok")
            case Published():
                self.on_publish(event)
            case Called(channel=channel, method=method, args=args):
                self.on_call(channel, method, args)
            case ChannelCloseRequested(channel=channel):
                self.amqp.channel_close_ok(channel)
            case CloseRequested():
                self.give_back()
                self.amqp.close_ok()
            case _:
                pass

    def on_publish(self, event: Published) -> None:
        self.publishes += 1
        self.cluster.published += 1
        waiting = self.cluster.queues.get(event.key)
        if waiting is not None:
            waiting.append(Stored(event.properties, event.body))
        elif event.flags & 1:
            out = self.amqp.out
            args = (312, "NO_ROUTE", event.exchange, event.key)
            codec.append_method(out, event.channel, "basic.return", args)
            codec.append_content(out, event.channel, event.properties, event.body, 131072)
        if self.cluster.published == self.cluster.kill_at:
            self.cluster.kill(self.place)  # stored, but the publisher will not hear of it
        elif self.publishes in self.cluster.nack:
            codec.append_nack(self.amqp.out, event.channel, self.publishes, False, False)
            self.confirmed = max(self.confirmed, self.publishes)

    def on_call(self, channel: int, method: str, args: tuple[Value, ...]) -> None:
        self.cluster.calls.append((method, args))
        match method:
            case "queue.declare":
                name, passive = str(args[0]), args[1]
                if passive and name not in self.cluster.queues:
                    text = f"NOT_FOUND - no queue '{name}'"
                    self.amqp.close_channel(channel, 404, text, 50, 10)
                    return
                waiting = self.cluster.queues.setdefault(name, deque())
                self.amqp.send(channel, "queue.declare-ok", (name, len(waiting), 0))
            case "queue.delete":
                waiting = self.cluster.queues.pop(str(args[0]), deque())
                for link in self.cluster.links:
                    if link.queue == args[0]:
                        link.queue = ""
                self.amqp.send(channel, "queue.delete-ok", (len(waiting),))
            case "confirm.select":
                self.confirms = True
                self.amqp.send(channel, "confirm.select-ok")
            case "basic.qos":
                self.prefetch = cast("int", args[1])
                self.amqp.send(channel, "basic.qos-ok")
            case "basic.consume":
                name = str(args[0])
                if name not in self.cluster.queues:
                    text = f"NOT_FOUND - no queue '{name}'"
                    self.amqp.close_channel(channel, 404, text, 60, 20)
                    return
                self.queue, self.no_ack = name, bool(args[3])
                self.amqp.send(channel, "basic.consume-ok", (args[1],))
            case "basic.ack":
                upto, multiple = cast("int", args[0]), bool(args[1])
                self.cluster.acks += 1
                for tag in [t for t in self.unacked if t == upto or (multiple and t < upto)]:
                    del self.unacked[tag]
            case _:
                pass


class ToyCluster:
    """`size` members; use as a context manager.  Fields set the faults before clients connect."""

    def __init__(self, size: int = 1) -> None:
        self.queues: dict[str, deque[Stored]] = {}
        self.links: list[Link] = []
        self.published = 0
        self.acks = 0
        self.calls: list[tuple[str, tuple[Value, ...]]] = []
        """The methods that clients called, with their arguments."""
        self.kill_at = 0
        """The member that takes this publish (counted over all) dies with it."""
        self.nack: set[int] = set()
        self.silent: set[int] = set()
        """Members that confirm nothing, as those of a minority."""
        self.alarm = ""
        """The reason of a block, told to each client that opens its connection."""
        self.identity = ServerIdentity(cluster="toys", cluster_id="c0ffee")
        self.addresses: list[str] = []
        self._size = size
        self._servers: dict[int, asyncio.Server] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> ToyCluster:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def brokers(self) -> str:
        """All addresses, as tools take them."""
        return ",".join(self.addresses)

    def do(self, action: Callable[[], None]) -> None:
        """Run something in the cluster's thread and wait for it."""

        async def run() -> None:
            action()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def unblock(self) -> None:
        """End the alarm, and tell every client."""
        self.alarm = ""
        for link in self.links:
            codec.append_method(link.amqp.out, 0, "connection.unblocked")
            link.flush()

    def kill(self, place: int) -> None:
        """Kill a member: its listener and its connections are gone at once."""
        server = self._servers.pop(place, None)
        if server is not None:
            server.close()
        for link in [link for link in self.links if link.place == place]:
            self.links.remove(link)
            if link.transport is not None:
                link.transport.abort()

    def dispatch(self) -> None:
        """Hand waiting messages to consumers with credit."""
        for link in list(self.links):
            if not link.queue:
                continue
            waiting = self.queues[link.queue]
            while waiting and (not link.prefetch or len(link.unacked) < link.prefetch):
                message = waiting.popleft()
                tag, link.next_tag = link.next_tag, link.next_tag + 1
                if not link.no_ack:
                    link.unacked[tag] = message
                address = b"\x00" + encode_short_string(link.queue)
                codec.append_deliver(
                    link.amqp.out,
                    1,
                    b"\x01c",
                    tag,
                    message.redelivered,
                    address,
                    message.properties,
                    message.body,
                    131072,
                )
            link.flush()

    async def _listen(self) -> None:
        for place in range(self._size):
            server = await self._loop.create_server(partial(Link, self, place), HOST, 0)
            self._servers[place] = server
            self.addresses.append(f"{HOST}:{server.sockets[0].getsockname()[1]}")

    async def _stop(self) -> None:
        for place in range(self._size):
            self.kill(place)
        await asyncio.sleep(0)
