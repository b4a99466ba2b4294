"""A load generator of few microseconds a message: `python -m tests.bench.load --help`.

One thread, one poll over all connections.  Producers keep a window of unconfirmed messages full (or
follow a rate); consumers ack once a read.  Each message carries when it left and its number, so
that the generator measures latency and proves order: per producer, numbers rise by one.  There
are as many queues as pairs of a producer and a consumer.

Publisher confirms are taken in order: a broker that confirms singly and out of order is measured
a little too kindly.
"""

from __future__ import annotations

import json
import platform
import select
import struct
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterable
from itertools import chain

import click

from broker.amqp import codec
from broker.options import Address
from tools.amqp_client import CHANNEL, Connection, ConnectionLost, Login, Refused
from tools.options import ToolError, brokers, run_command
from vsync.types import record

STAMP = struct.Struct(">dIQ")  # when it left (monotonic), which producer, its number
TAG = struct.Struct(">QB")
BODY_BYTES_MIN = STAMP.size
RATE_POLL_MS, FULL_POLL_MS = 2, 50
"""With a rate, time alone may be the reason to send; without one, only an answer is."""
REFILL_SHARE = 8
"""A window is refilled when an eighth of it is free: single messages would cost a write each."""
SETTLE_SECONDS = 15.0
BACKLOG_MESSAGES = 5_000
PROPERTIES = {True: b"\x10\x00\x02", False: b"\x10\x00\x01"}


@record
class Load:
    """What to run."""

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

    def queue_name(self, place: int) -> str:
        """One queue a pair; producers and consumers beyond the pairs share."""
        return f"{self.queue}-{place % min(self.producers, self.consumers)}"


class Producer(Connection):
    """Keeps its window full, and knows when what was sent."""

    def __init__(self, load: Load, place: int) -> None:
        super().__init__(load.addresses[place % len(load.addresses)], Login())
        self.place = place
        self.sent = self.confirmed = 0
        self.latencies = array("d")
        self._batches: deque[tuple[int, float]] = deque()
        key = load.queue_name(place)
        self.declare_queue(key)
        self.select_confirms()
        body = bytes(load.body_bytes)
        whole = codec.publish_bytes(CHANNEL, "", key, PROPERTIES[load.persistent], body)
        self._prefix = whole[: len(whole) - load.body_bytes - 1]
        self._suffix = whole[len(self._prefix) + STAMP.size :]

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

    def settle(self, now: float) -> None:
        """Take the confirms that came."""
        for number, _, accepted in self.acks:
            if not accepted:
                raise ToolError(f"{self.broker} refused a message")
            self.confirmed = max(self.confirmed, number)
        self.acks.clear()
        while self._batches and self._batches[0][0] <= self.confirmed:
            self.latencies.append(now - self._batches.popleft()[1])


class Consumer(Connection):
    """Takes deliveries of our own messages, which all have one layout, without parsing them."""

    def __init__(self, load: Load, place: int) -> None:
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
        self.declare_queue(key)
        self.consume(key, load.prefetch)

    def take_frames(self, data: bytes) -> int:
        """Whole deliveries in strides; anything else goes the general way."""
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
            at += stride
        if tag:
            self.ack(tag)
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
            self.ack(delivery.tag)
        self.deliveries.clear()


class Run:
    """One measurement over open connections."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.consumers = [Consumer(load, place) for place in range(load.consumers)]
        self.producers = [Producer(load, place) for place in range(load.producers)]
        self._all: dict[int, Connection] = {
            one.fileno(): one for one in (*self.consumers, *self.producers)
        }
        self._poll = select.poll()
        self._writing: set[int] = set()
        for descriptor in self._all:
            self._poll.register(descriptor, select.POLLIN)

    def measure(self) -> dict[str, object]:
        """Warm up, measure, let everything arrive, and report."""
        load = self.load
        began = time.monotonic()
        self._drive(began, began + load.warmup_seconds)
        self._forget()
        received, start, cpu = self._received(), time.monotonic(), time.process_time()
        self._drive(began, start + load.seconds)
        seconds, cpu = time.monotonic() - start, time.process_time() - cpu
        messages = self._received() - received
        e2e = merged(one.latencies for one in self.consumers)
        confirms = merged(one.latencies for one in self.producers)
        missing = self._finish()
        return {
            "producers": load.producers,
            "consumers": load.consumers,
            "queues": min(load.producers, load.consumers),
            "window": load.window,
            "prefetch": load.prefetch,
            "body_bytes": load.body_bytes,
            "persistent": load.persistent,
            "rate": load.rate,
            "backlog": load.backlog,
            "seconds": round(seconds, 2),
            "messages": messages,
            "messages_per_s": round(messages / seconds, 1),
            "confirm_ms": quantiles(confirms),
            "end_to_end_ms": quantiles(e2e),
            "generator_cpu_us_per_message": round(cpu / messages * 1e6, 2) if messages else None,
            "total_messages": self._received(),
            "missing": missing,
            "out_of_order": sum(one.disorder for one in self.consumers),
            "redelivered": sum(one.redelivered for one in self.consumers),
            "python": platform.python_version(),
        }

    def close(self) -> None:
        """Take the queues away and say goodbye."""
        for consumer in self.consumers:
            consumer.drop()
        for place in range(min(self.load.producers, self.load.consumers)):
            args = (self.load.queue_name(place), False, False, False)
            self.producers[0].call("queue.delete", args, "queue.delete-ok")
        for producer in self.producers:
            producer.close()

    def _drive(self, began: float, until: float) -> None:
        while (now := time.monotonic()) < until:
            self._fill(now, began)
            self._turn()

    def _fill(self, now: float, began: float) -> None:
        load = self.load
        sent = sum(one.sent for one in self.producers)
        # Saturation is what goes in and comes out; without a bound it is what piles up.
        allowed = load.backlog - (sent - self._received()) if load.backlog else sys.maxsize
        if load.rate:
            allowed = min(allowed, int((now - began) * load.rate) - sent)
        share = max(0, allowed) // len(self.producers) + 1 if allowed > 0 else 0
        for producer in self.producers:
            room = load.window - (producer.sent - producer.confirmed)
            if producer.blocked or not share or room * REFILL_SHARE < load.window:
                continue
            producer.fill(min(room, share), now)

    def _turn(self) -> None:
        for descriptor, connection in self._all.items():
            if connection.out and descriptor not in self._writing:
                self._send(descriptor, connection)
        for descriptor, event in self._poll.poll(RATE_POLL_MS if self.load.rate else FULL_POLL_MS):
            connection = self._all[descriptor]
            if event & select.POLLOUT:
                self._send(descriptor, connection)
            if event & ~select.POLLOUT:
                connection.receive_now()
                if isinstance(connection, Producer):
                    connection.settle(time.monotonic())

    def _send(self, descriptor: int, connection: Connection) -> None:
        connection.send_now()
        if bool(connection.out) != (descriptor in self._writing):
            if connection.out:
                self._writing.add(descriptor)
                self._poll.modify(descriptor, select.POLLIN | select.POLLOUT)
            else:
                self._writing.discard(descriptor)
                self._poll.modify(descriptor, select.POLLIN)

    def _received(self) -> int:
        return sum(one.received for one in self.consumers)

    def _forget(self) -> None:
        for consumer in self.consumers:
            del consumer.latencies[:]
        for producer in self.producers:
            del producer.latencies[:]

    def _finish(self) -> int:
        """Stop sending and let everything arrive; how many never did."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            sent = sum(one.sent for one in self.producers)
            confirmed = sum(one.confirmed for one in self.producers)
            if self._received() >= sent == confirmed:
                break
            self._turn()
        return sum(one.sent for one in self.producers) - self._received()


def merged(parts: Iterable[array[float]]) -> list[float]:
    """All latencies, sorted."""
    return sorted(chain.from_iterable(parts))


def quantiles(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum, in milliseconds."""
    if not values:
        return {}
    return {
        "p50": round(values[len(values) // 2] * 1000, 2),
        "p99": round(values[min(len(values) - 1, len(values) * 99 // 100)] * 1000, 2),
        "max": round(values[-1] * 1000, 2),
    }


def run_load(load: Load) -> dict[str, object]:
    """Run one load and clean up."""
    try:
        run = Run(load)
        report = run.measure()
        run.close()
    except (ConnectionLost, Refused) as problem:
        raise ToolError(str(problem)) from None
    return report


def sentence(report: dict[str, object]) -> str:
    """One line a run."""
    return (
        "{producers}/{consumers} window {window} prefetch {prefetch} {body_bytes} B: "
        "{messages_per_s} messages/s, confirm {confirm_ms}, end to end {end_to_end_ms}, "
        "generator {generator_cpu_us_per_message} CPU-us a message, missing {missing}, "
        "out of order {out_of_order}".format(**report)
    )


@click.command(name="load", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-b", "--broker", default="localhost:5672", help="Brokers; clients spread over them.")
@click.option("--producers", default=1, type=click.IntRange(1, 64))
@click.option("--consumers", default=1, type=click.IntRange(1, 64))
@click.option("--window", default=100, type=click.IntRange(1), help="Unconfirmed a producer.")
@click.option("--prefetch", default=100, type=click.IntRange(1, 65_535))
@click.option("--size", default=256, type=click.IntRange(BODY_BYTES_MIN, 100_000), help="Bytes.")
@click.option("--persistent/--transient", default=True)
@click.option("--rate", default=0.0, help="Messages/s over all producers; 0 = as many as go.")
@click.option(
    "--backlog",
    default=BACKLOG_MESSAGES,
    help="Producers wait while so many messages are sent but not received; 0 = no bound.",
)
@click.option("--seconds", default=10.0)
@click.option("--warmup", default=2.0)
@click.option("--queue", default="load", help="Queues are NAME-0, NAME-1 ...; deleted at the end.")
@click.option("--json", "as_json", is_flag=True)
def main(
    broker: str,
    producers: int,
    consumers: int,
    window: int,
    prefetch: int,
    size: int,
    persistent: bool,
    rate: float,
    backlog: int,
    seconds: float,
    warmup: float,
    queue: str,
    as_json: bool,
) -> None:
    """Load a cluster and report throughput, latency, and what the generator itself costs."""
    report = run_load(
        Load(
            addresses=brokers(broker),
            producers=producers,
            consumers=consumers,
            window=window,
            prefetch=prefetch,
            body_bytes=size,
            persistent=persistent,
            rate=rate,
            backlog=backlog,
            seconds=seconds,
            warmup_seconds=warmup,
            queue=queue,
        )
    )
    print(json.dumps(report) if as_json else sentence(report))


if __name__ == "__main__":
    run_command(main)
