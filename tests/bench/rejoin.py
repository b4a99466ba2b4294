"""How long a member that comes back needs, and what publishers feel of it.

Three brokers; one is killed, so many messages are published without it, and it is started again.
Meanwhile a publisher of another member publishes at a steady rate and waits for each confirm.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import click
import pika

from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.demo.local_cluster import (
    HOST,
    BrokerProcess,
    ClusterTrouble,
    LocalCluster,
    ended_by_sigterm,
)

QUEUE = "rejoin"
BODY = bytes(256)
STEADY_S = 0.01


class Steady(threading.Thread):
    """A publisher that waits for each confirm, and notes the longest silence."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.worst_s = 0.0
        self._port, self._over = port, threading.Event()

    def run(self) -> None:
        with pika.BlockingConnection(pika.ConnectionParameters(port=self._port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self._over.is_set():
                begun = time.monotonic()
                channel.basic_publish("", QUEUE, BODY, pika.BasicProperties(delivery_mode=2))
                self.worst_s = max(self.worst_s, time.monotonic() - begun)
                time.sleep(STEADY_S)

    def end(self) -> None:
        self._over.set()
        self.join()


def fill(port: int, messages: int) -> None:
    """Publish so many, confirmed at the end of each thousand by a transaction."""
    with pika.BlockingConnection(pika.ConnectionParameters(port=port)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.tx_select()
        for number in range(1, messages + 1):
            channel.basic_publish("", QUEUE, BODY, pika.BasicProperties(delivery_mode=2))
            if number % 1000 == 0 or number == messages:
                channel.tx_commit()


def wait_listening(member: BrokerProcess) -> None:
    """Wait until the process has recovered its own store, and begins to join the ring."""
    while member.alive:
        with contextlib.suppress(OSError), socket.create_connection((HOST, member.address.port)):
            return
        time.sleep(0.01)


def measure(cluster: LocalCluster, behind: int, *, wiped: bool) -> dict[str, object]:
    """Kill the third member, leave it behind, and bring it back."""
    first, _, third = cluster.members
    third.kill()
    cluster.wait_active(cluster.members[:2])
    if wiped:
        shutil.rmtree(third.data_dir)
    else:
        fill(first.address.port, behind)
    steady = Steady(first.address.port)
    steady.start()
    time.sleep(1.0)
    quiet_s, steady.worst_s = steady.worst_s, 0.0
    begun = time.monotonic()
    third.start()
    wait_listening(third)
    listening_s = time.monotonic() - begun
    cluster.wait_active()
    ready_s = time.monotonic() - begun - listening_s
    steady.end()
    return {
        "behind": "all" if wiped else behind,
        "start_to_listening_s": round(listening_s, 2),
        "listening_to_active_s": round(ready_s, 2),
        "worst_confirm_before_ms": round(quiet_s * 1000),
        "worst_confirm_meanwhile_ms": round(steady.worst_s * 1000),
    }


@click.command(name="rejoin", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--behind", multiple=True, type=int, default=(10, 1000, 100_000))
@click.option("--messages", default=100_000, help="In the queue before an empty member joins.")
def bench(behind: tuple[int, ...], messages: int) -> None:
    """Start three brokers and measure each, then an empty member that joins."""
    with tempfile.TemporaryDirectory(prefix="qpid-rejoin-") as folder, ended_by_sigterm():
        try:
            with LocalCluster(Path(folder), 3, "rejoin", log_level="warning") as cluster:
                cluster.start()
                fill(cluster.members[0].address.port, messages)
                for count in behind:
                    print(json.dumps(measure(cluster, count, wiped=False)), flush=True)
                print(json.dumps(measure(cluster, 0, wiped=True)), flush=True)
        except ClusterTrouble as trouble:
            raise ToolError(str(trouble)) from None


if __name__ == "__main__":
    run_command(bench)
