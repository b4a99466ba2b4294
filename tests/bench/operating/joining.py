"""The cost of a join, or a return, for the other members: pauses, silence, seconds, memory.

    python -m tests.bench.operating.joining               # up to a million, about ten minutes
    python -m tests.bench.operating.joining --messages 10000 --behind 10

Three brokers; two hold this many messages, the third joins them with an empty directory.  Meanwhile
a publisher at each of the two publishes 200 messages a second.  Then the third is killed, this many
messages are published without it, and it returns.

Prints a line of JSON for each: `start_s` until the process listens, `join_s` from there until all
are ACTIVE; `silent_ms`, for each publisher the longest time without a confirm, before (`before_ms`)
and meanwhile; and for each member its `rss_mib` before and after, and at most (`rss_top_mib`),
`late_ms`, the loop's worst delay, and the `longest` and `hardest` steps (see
`tests.bench.support.timed_broker`).  Compare ratios on one machine.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import click

from tests.bench.million import PERSISTENT, fill, resident
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.cli.signals import ended_by
from tools.client.amqp_client import AmqpConnection, ConnectionLost, Login
from tools.demo.local_cluster import (
    HOST,
    BrokerProcess,
    ClusterTrouble,
    LocalCluster,
)

RATE_S = 0.005
QUIET_S = 3.0
WAIT_S = 600.0
STEPS_SHOWN = 4


class Timed(BrokerProcess):
    """A broker whose loop is timed."""

    @property
    def report_path(self) -> Path:
        return self.data_dir.with_suffix(".steps")

    def program(self) -> list[str]:
        return [sys.executable, "-m", "tests.bench.support.timed_broker", str(self.report_path)]

    def steps(self) -> dict[str, list[object]]:
        """Return the measurements since the last call."""
        self.report_path.unlink(missing_ok=True)
        self.signal(signal.SIGUSR2)
        deadline = time.monotonic() + WAIT_S
        while not self.report_path.exists() and time.monotonic() < deadline and self.alive:
            time.sleep(0.01)
        found: dict[str, list[object]] = json.loads(self.report_path.read_text(encoding="ascii"))
        return found


class Steady(threading.Thread):
    """A publisher at a steady rate that records the longest time without a confirm."""

    def __init__(self, member: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self.worst_s, self.lost = 0.0, 0
        self._member, self._over = member, threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self._publish()
            except ConnectionLost:
                self.lost += 1

    def _publish(self) -> None:
        connection = AmqpConnection(self._member.address, Login(timeout_seconds=WAIT_S))
        try:
            connection.declare_queue("steady")
            connection.select_confirms()
            body = bytes(256)
            number = confirmed = 0
            due = last = time.monotonic()
            while not self._over.is_set():
                now = time.monotonic()
                if now >= due:
                    due = max(due + RATE_S, now - RATE_S)
                    number = connection.publish("", "steady", PERSISTENT, body)
                connection.pump(max(0.0, min(due - now, RATE_S)))
                if connection.acks:
                    now = time.monotonic()
                    if confirmed < number:
                        self.worst_s = max(self.worst_s, now - last)
                    confirmed, last = connection.acks[-1].number, now
                    connection.acks.clear()
        finally:
            connection.drop()

    def take_ms(self) -> int:
        """Return the longest silence since the last call."""
        worst_s, self.worst_s = self.worst_s, 0.0
        return round(worst_s * 1000)

    def end(self) -> None:
        self._over.set()
        self.join()


class Memory(threading.Thread):
    """Samples the members' memory for its peak."""

    def __init__(self, members: list[Timed]) -> None:
        super().__init__(daemon=True)
        self.top = {member.label: 0 for member in members}
        self._members, self._over = members, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.25):
            for member in self._members:
                with contextlib.suppress(OSError):
                    size = resident(member.pid)
                    self.top[member.label] = max(self.top[member.label], size)

    def end(self) -> None:
        self._over.set()
        self.join()


def wait_listening(member: BrokerProcess) -> None:
    """Wait until the process has recovered its own store, and begins to join the ring."""
    while member.alive:
        with contextlib.suppress(OSError), socket.create_connection((HOST, member.address.port)):
            return
        time.sleep(0.01)


def measure(cluster: LocalCluster, behind: int | None) -> dict[str, object]:
    """Kill the third member, leave it behind (None: with nothing), and bring it back."""
    members = [member for member in cluster.members if isinstance(member, Timed)]
    third = members[2]
    if third.alive:
        third.kill()
    cluster.wait_active(cluster.members[:2], WAIT_S)
    if behind is None:
        shutil.rmtree(third.data_dir, ignore_errors=True)
    else:
        fill(cluster, behind, 256, "rejoin")
    before = {member.label: resident(member.pid) for member in members[:2]}
    steady = [Steady(member) for member in members[:2]]
    for publisher in steady:
        publisher.start()
    time.sleep(QUIET_S)
    quiet = [publisher.take_ms() for publisher in steady]
    for member in members[:2]:
        member.steps()
    memory = Memory(members)
    memory.start()
    began = time.monotonic()
    third.start()
    wait_listening(third)
    start_s = time.monotonic() - began
    cluster.wait_active(timeout_seconds=WAIT_S)
    join_s = time.monotonic() - began - start_s
    time.sleep(1.0)  # the work that a join leaves behind
    silent = [publisher.take_ms() for publisher in steady]
    found = {member.label: member.steps() for member in members}
    memory.end()
    for publisher in steady:
        publisher.end()
    return {
        "behind": "all" if behind is None else behind,
        "start_s": round(start_s, 2),
        "join_s": round(join_s, 2),
        "before_ms": quiet,
        "silent_ms": silent,
        "lost": sum(publisher.lost for publisher in steady),
        "members": {
            member.label: {
                "rss_mib": [before.get(member.label, 0), resident(member.pid)],
                "rss_top_mib": memory.top[member.label],
                "late_ms": found[member.label]["late_ms"][:STEPS_SHOWN],
                "longest": found[member.label]["longest"][:STEPS_SHOWN],
                "hardest": found[member.label]["hardest"][:STEPS_SHOWN],
                "collections": found[member.label]["collections"][:STEPS_SHOWN],
            }
            for member in members
        },
    }


def say(cluster: LocalCluster, held: int, behind: int | None) -> None:
    """Measure, and print."""
    print(json.dumps({"messages": held, **measure(cluster, behind)}, indent=1), flush=True)


@click.command(name="joining", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", multiple=True, type=int, default=(10_000, 100_000, 1_000_000))
@click.option("--behind", multiple=True, type=int, default=(10, 1000, 100_000))
def bench(messages: tuple[int, ...], behind: tuple[int, ...]) -> None:
    """Start two brokers, and let a third join and return."""
    with tempfile.TemporaryDirectory(prefix="joining-") as folder, ended_by(signal.SIGTERM):
        try:
            with LocalCluster(Path(folder), 3, "joining", log_level="warning") as cluster:
                cluster.members[:] = [
                    Timed(one.label, Path(folder), one.address.port, one.arguments)
                    for one in cluster.members
                ]
                cluster.start()
                held = 0
                for count in sorted(messages):
                    fill(cluster, count - held, 256)
                    held = count
                    say(cluster, held, None)
                for missed in behind:
                    say(cluster, held, missed)
        except ClusterTrouble as trouble:
            raise ToolError(str(trouble)) from None


if __name__ == "__main__":
    run_command(bench)
