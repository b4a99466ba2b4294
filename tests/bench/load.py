"""A load generator with few microseconds per message: `python -m tests.bench.load --help`.

One thread, one poll over all connections.  Producers keep a window of unconfirmed messages full (or
follow a rate); consumers ack once per read.  Each message carries its send time and its number, so
that the generator measures latency and proves order: per producer, numbers rise by one.  There are
as many queues as pairs of a producer and a consumer, or as producers if none consumes.

Publisher confirms are taken in order, so a broker that confirms singly and out of order is measured
slightly too favourably.
"""

from __future__ import annotations

import json
import platform
import select
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from itertools import chain

import click

from broker.memberlog.client_history import ClientHistory, Session
from tests.bench.support.load_clients import BODY_BYTES_MIN, Consumer, Load, Producer
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.client import history as histories
from tools.client.amqp_client import AmqpConnection, BrokerRefused, ConnectionLost
from tools.client.broker_url import brokers

RATE_POLL_MS, FULL_POLL_MS = 2, 50
"""With a rate, time alone may be the reason to send; without one, only a confirm is."""
REFILL_SHARE = 8
"""A window is refilled when an eighth of it is free: single messages would cost a write each."""
SETTLE_SECONDS = 15.0
BACKLOG_MESSAGES = 5_000


class Run:
    """One measurement over open connections."""

    def __init__(self, load: Load, history: ClientHistory | None = None) -> None:
        self.load = load
        self._history = history
        self.consumers = [
            Consumer(load, place, self._session(place)) for place in range(load.consumers)
        ]
        self.producers = [
            Producer(load, place, self._session(place)) for place in range(load.producers)
        ]
        self._all: dict[int, AmqpConnection] = {
            one.fileno(): one for one in (*self.consumers, *self.producers)
        }
        self._poll = select.poll()
        self._writing: set[int] = set()
        for descriptor in self._all:
            self._poll.register(descriptor, select.POLLIN)

    def measure(self, used: Callable[[], dict[str, float]] = dict) -> dict[str, object]:
        """Warm up, measure, let everything arrive, and report.

        `used` returns rising counts, such as processor time; their increase meanwhile is part of
        the report.
        """
        load = self.load
        began = time.monotonic()
        self._drive(began, began + load.warmup_seconds)
        self._forget()
        before = used()
        received, start, cpu = self._received(), time.monotonic(), time.process_time()
        self._drive(began, start + load.seconds)
        seconds, cpu = time.monotonic() - start, time.process_time() - cpu
        messages = self._received() - received
        after = used()
        e2e = merged(one.latencies for one in self.consumers)
        confirms = merged(one.latencies for one in self.producers)
        missing = self._finish()
        return {
            "producers": load.producers,
            "consumers": load.consumers,
            "queues": load.queues,
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
            **{name: count - before[name] for name, count in after.items()},
        }

    def close(self) -> None:
        """Delete the queues and disconnect."""
        for consumer in self.consumers:
            consumer.drop()
        for place in range(self.load.queues):
            args = (self.load.queue_name(place), False, False, False)
            self.producers[0].call("queue.delete", args, "queue.delete-ok")
        for producer in self.producers:
            producer.close()

    def _session(self, place: int) -> Session | None:
        """The history of one connection, if one is kept."""
        if self._history is None:
            return None
        return self._history.session(self.load.queue_name(place))

    def _drive(self, began: float, until: float) -> None:
        while (now := time.monotonic()) < until:
            self._fill(now, began)
            self._turn()

    def _fill(self, now: float, began: float) -> None:
        load = self.load
        sent = sum(one.sent for one in self.producers)
        # Saturation is input and output together; without a bound it is the backlog.
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
        if self._history is not None:
            self._history.flush()  # before any message in it is sent
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

    def _send(self, descriptor: int, connection: AmqpConnection) -> None:
        connection.send_now()
        if bool(connection.out) != (descriptor in self._writing):
            if connection.out:
                self._writing.add(descriptor)
                self._poll.modify(descriptor, select.POLLIN | select.POLLOUT)
            else:
                self._writing.discard(descriptor)
                self._poll.modify(descriptor, select.POLLIN)

    def _received(self) -> int:
        """How many arrived; without consumers, how many were confirmed."""
        if not self.consumers:
            return sum(one.confirmed for one in self.producers)
        return sum(one.received for one in self.consumers)

    def _forget(self) -> None:
        for consumer in self.consumers:
            del consumer.latencies[:]
        for producer in self.producers:
            del producer.latencies[:]

    def _finish(self) -> int:
        """Stop sending and let everything arrive; return how many never did."""
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


def run_load(
    load: Load,
    history: str | None = None,
    used: Callable[[], dict[str, float]] = dict,
) -> dict[str, object]:
    """Run one load and clean up; its clients' histories go to the directory `history`."""
    try:
        with histories.client_history(history, "load") as kept:
            run = Run(load, kept)
            report = run.measure(used)
            run.close()
    except (ConnectionLost, BrokerRefused) as problem:
        raise ToolError(str(problem)) from None
    return report


def sentence(report: dict[str, object]) -> str:
    """One line per run."""
    return (
        "{producers}/{consumers} window {window} prefetch {prefetch} {body_bytes} B: "
        "{messages_per_s} messages/s, confirm {confirm_ms}, end to end {end_to_end_ms}, "
        "generator {generator_cpu_us_per_message} CPU-us a message, missing {missing}, "
        "out of order {out_of_order}".format(**report)
    )


@click.command(name="load", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-b", "--broker", default="localhost:5672", help="Brokers; clients are spread over them."
)
@click.option("--producers", default=1, type=click.IntRange(1, 64))
@click.option("--consumers", default=1, type=click.IntRange(0, 64), help="0 = only publish.")
@click.option(
    "--window", default=100, type=click.IntRange(1), help="Unconfirmed messages per producer."
)
@click.option("--prefetch", default=100, type=click.IntRange(1, 65_535))
@click.option("--size", default=256, type=click.IntRange(BODY_BYTES_MIN, 4_194_304), help="Bytes.")
@click.option("--persistent/--transient", default=True)
@click.option("--rate", default=0.0, help="Messages/s of all producers; 0 = no limit.")
@click.option(
    "--backlog",
    default=BACKLOG_MESSAGES,
    help="Producers wait while this many messages are sent and not received; 0 = no bound.",
)
@click.option("--seconds", default=10.0)
@click.option("--warmup", default=2.0)
@click.option("--queue", default="load", help="Queues are NAME-0, NAME-1 ...; deleted at the end.")
@click.option("--history", metavar="DIR", help=histories.HELP)
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
    history: str | None,
    as_json: bool,
) -> None:
    """Load a cluster and report throughput, latency, and the generator's own cost."""
    report = run_load(
        Load(
            addresses=tuple(one.address for one in brokers(broker)),
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
        ),
        history,
    )
    print(json.dumps(report) if as_json else sentence(report))


if __name__ == "__main__":
    run_command(main)
