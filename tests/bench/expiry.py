"""The lateness of expiring messages on a cluster of three: G17.

    python -m tests.bench.expiry                  # one message now and then
    python -m tests.bench.expiry --rate 200       # and under load
    python -m tests.bench.expiry --rate 200 --others 2000

Messages die into a queue that is consumed at another member than the one they are published at; the
lateness is the time from a publish to that delivery minus the time to live, on one clock.
`--others` publishes and consumes this many other messages a second.  Prints milliseconds.
"""

from __future__ import annotations

import signal
import struct
import tempfile
import threading
import time
from pathlib import Path

import click
import pika
from pika.adapters.blocking_connection import BlockingChannel

from broker.options.addresses import Address
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.cli.signals import ended_by
from tools.demo.local_cluster import ClusterTrouble, LocalCluster

STAMP = struct.Struct("<d")
BURST_S = 0.01


def channel_at(address: Address) -> BlockingChannel:
    where = pika.ConnectionParameters(address.host, address.port, heartbeat=0)
    return pika.BlockingConnection(where).channel()


def publish(address: Address, queue: str, rate: float, until: float) -> None:
    """Publish in bursts when several are due within a hundredth of a second."""
    channel, sent, began = channel_at(address), 0, time.monotonic()
    while (now := time.monotonic()) < until:
        while sent < (now - began) * rate:
            channel.basic_publish("", queue, STAMP.pack(time.monotonic()))
            sent += 1
        channel.connection.process_data_events(0)
        time.sleep(max(BURST_S, min(1.0, 0.5 / rate)))


def consume(address: Address, queue: str, until: float, seen: list[float]) -> None:
    channel = channel_at(address)
    for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=0.2):
        if method is not None:
            seen.append(time.monotonic() - STAMP.unpack(body)[0])
        if time.monotonic() > until:
            return


def measure(
    addresses: list[Address], rate: float, others: float, ttl_ms: int, seconds: float
) -> None:
    """Run the clients and print their measurements."""
    channel = channel_at(addresses[0])
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("other", durable=True)
    dying = {
        "x-message-ttl": ttl_ms,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    channel.queue_declare("mortal", durable=True, arguments=dying)
    until = time.monotonic() + seconds
    ages: list[float] = []
    calls = [
        threading.Thread(target=publish, args=(addresses[0], "mortal", rate, until)),
        threading.Thread(
            target=consume, args=(addresses[1], "dead", until + ttl_ms / 1e3 + 1.0, ages)
        ),
    ]
    if others:
        calls += [
            threading.Thread(target=publish, args=(addresses[2], "other", others, until)),
            threading.Thread(target=consume, args=(addresses[1], "other", until, [])),
        ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    late = sorted((age - ttl_ms / 1e3) * 1e3 for age in ages)
    if not late:
        raise ToolError("no message expired: give it more --seconds")
    shown = [late[int(len(late) * part)] for part in (0.0, 0.5, 0.9, 0.99)]
    print(
        f"{len(late)} messages of {ttl_ms} ms at {rate:g}/s beside {others:g}/s went late by"
        f" min {shown[0]:.1f}, p50 {shown[1]:.1f}, p90 {shown[2]:.1f}, p99 {shown[3]:.1f},"
        f" max {late[-1]:.1f} ms"
    )


@click.command(name="expiry", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rate", default=0.5, help="Messages a second that expire.")
@click.option("--others", default=0.0, help="Other messages a second.")
@click.option("--ttl-ms", default=1000, help="Time to live of the expiring messages.")
@click.option("--seconds", default=20.0, help="Seconds of publishing.")
def expiry(rate: float, others: float, ttl_ms: int, seconds: float) -> None:
    """Start three brokers, measure, and stop them."""
    with tempfile.TemporaryDirectory(prefix="qpid-bench-") as folder, ended_by(signal.SIGTERM):
        try:
            with LocalCluster(Path(folder), 3, "expiry", log_level="warning") as cluster:
                cluster.start()
                addresses = [member.address for member in cluster.members]
                measure(addresses, rate, others, ttl_ms, seconds)
        except ClusterTrouble as trouble:
            raise ToolError(str(trouble)) from None


if __name__ == "__main__":
    run_command(expiry)
