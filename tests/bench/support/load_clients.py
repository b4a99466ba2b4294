"""The clients of the load generator: a producer that keeps a window full, a consumer that acks once
per read, both with few steps per message.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections import deque

from broker.amqp import codec
from broker.amqp.fields import Value
from broker.memberlog.client_history import Session
from broker.options.addresses import Address
from tools.cli.failures import ToolError
from tools.client.amqp_client import CHANNEL, AmqpConnection, Login
from vsync.types import record

STAMP = struct.Struct(">dIQ")  # when it was sent (monotonic), its producer, its number
TAG = struct.Struct(">QB")
BODY_BYTES_MIN = STAMP.size
BODY_FRAME_HEAD = codec.FRAME_HEAD.size
ONE_FRAME_BYTES = codec.FRAME_MAX_BYTES - codec.FRAME_OVERHEAD_BYTES
PROPERTIES = {True: b"\x10\x00\x02", False: b"\x10\x00\x01"}


@record
class Load:
    """The load to run."""

    addresses: tuple[Address, ...]
    producers: int
    consumers: int
    window: int
    prefetch: int
    body_bytes: int
    persistent: bool
    rate: float
    backlog: int
    seconds: float
    warmup_seconds: float
    queue: str
    queue_type: str = ""
    """RabbitMQ's type of the queues; the broker's default if none is named."""

    @property
    def queues(self) -> int:
        """One queue per pair of a producer and a consumer; one per producer if none consumes."""
        return min(self.producers, self.consumers) or self.producers

    def queue_name(self, place: int) -> str:
        """Producers and consumers beyond the pairs share queues."""
        return f"{self.queue}-{place % self.queues}"

    @property
    def queue_arguments(self) -> dict[str, Value]:
        return {"x-queue-type": self.queue_type} if self.queue_type else {}


class Producer(AmqpConnection):
    """Keeps its window full, and knows the time of each send."""

    def __init__(self, load: Load, place: int, session: Session | None) -> None:
        super().__init__(load.addresses[place % len(load.addresses)], Login())
        self.place = place
        self._session = session
        self.sent = self.confirmed = 0
        self.latencies = array("d")
        self._batches: deque[tuple[int, float]] = deque()
        key = load.queue_name(place)
        self.declare_queue(key, load.queue_arguments)
        self.select_confirms()
        properties = PROPERTIES[load.persistent]
        self._padding = bytes(load.body_bytes - STAMP.size)
        whole, head = bytearray(), bytearray()
        codec.append_publish(whole, CHANNEL, "", key, properties, bytes(load.body_bytes))
        codec.append_publish(head, CHANNEL, "", key, properties, b"")
        stamp_at = len(head) + BODY_FRAME_HEAD
        self._prefix = bytes(whole[:stamp_at])
        self._suffix = bytes(whole[stamp_at + STAMP.size :])

    def fill(self, count: int, now: float) -> None:
        """Append `count` messages."""
        prefix, suffix, pack, place = self._prefix, self._suffix, STAMP.pack, self.place
        first = self.sent + 1
        self.sent += count
        self.out += b"".join(
            [
                part
                for number in range(first, first + count)
                for part in (prefix, pack(now, place, number), suffix)
            ]
        )
        self._batches.append((self.sent, now))
        if self._session is not None:
            for number in range(first, first + count):
                self._session.published(number, pack(now, place, number) + self._padding)

    def settle(self, now: float) -> None:
        """Take the confirms that arrived."""
        for number, multiple, accepted in self.acks:
            if not accepted:
                raise ToolError(f"{self.broker} refused a message")
            if self._session is not None:
                self._session.confirmed(number, multiple=multiple)
            self.confirmed = max(self.confirmed, number)
        self.acks.clear()
        while self._batches and self._batches[0][0] <= self.confirmed:
            self.latencies.append(now - self._batches.popleft()[1])


class Consumer(AmqpConnection):
    """Takes deliveries of our own messages, which all have one layout, without parsing them."""

    def __init__(self, load: Load, place: int, session: Session | None) -> None:
        self._session = session
        self._body_bytes = load.body_bytes
        self.received = 0
        self.disorder = 0
        self.redelivered = 0
        self.latencies = array("d")
        self._numbers: dict[int, int] = {}
        key = load.queue_name(place)
        out = bytearray()
        codec.append_deliver(
            out,
            CHANNEL,
            b"\x01c",
            1,
            False,
            b"\x00" + bytes((len(key),)) + key.encode(),
            PROPERTIES[load.persistent],
            bytes(load.body_bytes),
            codec.FRAME_MAX_BYTES,
        )
        self._stride = len(out)
        self._head = bytes(out[:13])  # frame, method, consumer tag: the same for every delivery
        self._stamp_at = len(out) - 1 - load.body_bytes
        self._body_head = bytes(out[self._stamp_at - 7 : self._stamp_at])
        # Only now: the base class reads frames, through us, while it opens the connection.
        super().__init__(load.addresses[(place + 1) % len(load.addresses)], Login())
        self.declare_queue(key, load.queue_arguments)
        self.consume(key, load.prefetch)

    def take_frames(self, data: bytes) -> int:
        """Take whole deliveries in strides; anything else is parsed the general way."""
        if self._body_bytes > ONE_FRAME_BYTES:
            used = super().take_frames(data)
            self._take_parsed(time.monotonic())
            return used
        at, size = 0, len(data)
        stride, head, stamp_at = self._stride, self._head, self._stamp_at
        body_head = self._body_head
        unpack, unpack_tag = STAMP.unpack_from, TAG.unpack_from
        numbers, latency = self._numbers, self.latencies.append
        now = time.monotonic()
        tag = 0
        while size - at >= stride and data[at : at + 13] == head:
            if data[at + stamp_at - 7 : at + stamp_at] != body_head:
                break
            tag, redelivered = unpack_tag(data, at + 13)
            left, producer, number = unpack(data, at + stamp_at)
            latency(now - left)
            if number != numbers.get(producer, number - 1) + 1:
                self.disorder += 1
            numbers[producer] = number
            if redelivered:
                self.redelivered += 1
            self.received += 1
            if self._session is not None:
                body = data[at + stamp_at : at + stamp_at + self._body_bytes]
                self._session.received(tag, body, redelivered=bool(redelivered))
            at += stride
        if tag:
            self._ack(tag)
        if at < size and (size - at >= stride or not head.startswith(data[at : at + 13])):
            used = super().take_frames(data[at:])
            self._take_parsed(now)
            return at + used
        return at

    def _take_parsed(self, now: float) -> None:
        for delivery in self.deliveries:
            left, producer, number = STAMP.unpack_from(delivery.body)
            self.latencies.append(now - left)
            if number != self._numbers.get(producer, number - 1) + 1:
                self.disorder += 1
            self._numbers[producer] = number
            self.redelivered += delivery.redelivered
            self.received += 1
            if self._session is not None:
                tag, redelivered, body = delivery.tag, delivery.redelivered, delivery.body
                self._session.received(tag, body, redelivered=redelivered)
            self._ack(delivery.tag)
        self.deliveries.clear()

    def _ack(self, tag: int) -> None:
        self.ack(tag)
        if self._session is not None:
            self._session.acked(tag, multiple=True)
