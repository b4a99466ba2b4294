"""The cost of a million waiting messages per member: stop, restart, and memory before and after.

    python -m tests.bench.million                        # a million of 256 bytes
    python -m tests.bench.million --messages 100000
    python -m tests.bench.million --members 1 --page-memory 0 --drain

Prints JSON: seconds of a clean stop of all (`stop_s`: from the command to the end of the last
process), of the restart (`start_s`: until all serve together), and of one killed member to be
ACTIVE again (`rejoin_s`); `start_cpu_s` and `rejoin_cpu_s` are the process's CPU time for that,
which other load on the machine disturbs less.  Resident memory is that of the largest member, in
MiB: `rss_idle` before the first message, `rss_full` with all of them, `rss_restarted`, and
`rss_empty` eight seconds after the purge or the drain; `pages_full` and `pages_empty` are the sizes
of the first member's pages on disk.  `purge_s` is the client's wait for purge-ok, `gap_s` the
longest time meanwhile without a confirm to a publisher of another queue.  With `--drain` one
consumer takes all (`drain_per_s`, and `drain_cpu_us` of the first member per message).  Compare
ratios on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from broker.amqp.fields import Value
from tools.cli.signals import ended_by
from tools.client.amqp_client import AmqpConnection, ConnectionLost, Login
from tools.client.management import Target
from tools.demo.local_cluster import LocalCluster

PERSISTENT = b"\x10\x00\x02"
PREFETCH, ACK_EVERY = 1000, 100
TICKS = os.sysconf("SC_CLK_TCK")
WAIT_S = 600.0
SETTLE_S = 8.0
WINDOW = 20_000


def rss(cluster: LocalCluster) -> int:
    """Resident memory of the largest member, in MiB."""
    return max(resident(member.pid) for member in cluster.members if member.alive)


def resident(pid: int) -> int:
    """Resident memory of one process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) >> 10
    return 0


def fill(cluster: LocalCluster, messages: int, body_bytes: int, queue: str = "million") -> None:
    """Publish until this many are confirmed; on a loaded machine a member may leave meanwhile."""
    body = bytes(body_bytes)
    left = messages
    while left:
        connection = AmqpConnection(cluster[0].address, Login(timeout_seconds=WAIT_S))
        number = 0
        try:
            connection.declare_queue(queue)
            connection.select_confirms()
            for number in range(1, left + 1):
                connection.publish("", queue, PERSISTENT, body)
                if number % 256 == 0 or number == left:
                    await_confirms(connection, number - WINDOW if number < left else number)
            left = 0
        except ConnectionLost:
            left -= min(left, max(0, number - WINDOW))
            cluster.wait_active(timeout_seconds=WAIT_S)
        finally:
            connection.drop()


def await_confirms(connection: AmqpConnection, number: int) -> None:
    """Pump until the publish of this number is confirmed."""
    connection.pump(0)
    while (connection.acks[-1].number if connection.acks else 0) < number:
        connection.pump(0.05)
    del connection.acks[:-1]


def purge(cluster: LocalCluster) -> tuple[float, float]:
    """The duration of the purge, and the longest gap between another client's confirms."""
    connection = AmqpConnection(cluster[0].address, Login(timeout_seconds=WAIT_S))
    other = AmqpConnection(cluster[-1].address, Login(timeout_seconds=WAIT_S))
    other.declare_queue("other")
    other.select_confirms()
    began = time.monotonic()
    connection.call("queue.purge", ("million", False), "queue.purge-ok")
    took = time.monotonic() - began
    gap, last = 0.0, began
    while last < began + 2.0:
        await_confirms(other, other.publish("", "other", PERSISTENT, b"x"))
        now = time.monotonic()
        gap, last = max(gap, now - last), now
    return took, gap


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def receive(
    cluster: LocalCluster,
    queue: str,
    messages: int,
    readers: int = 1,
    begin: dict[str, Value] | None = None,
) -> tuple[int, int]:
    """Messages a second, and peak memory meanwhile; `begin`: arguments of the consumers."""
    connections = [
        AmqpConnection(cluster[0].address, Login(timeout_seconds=WAIT_S)) for _ in range(readers)
    ]
    began, most = time.monotonic(), 0
    for one in connections:
        one.consume(queue, PREFETCH, arguments=begin or {})
    left = dict.fromkeys(connections, messages)
    while left:
        for one in list(left):
            one.pump(0.0 if len(left) > 1 else 0.05)
            before = left[one] // ACK_EVERY
            left[one] -= len(one.deliveries)
            if one.deliveries and (left[one] // ACK_EVERY != before or not left[one]):
                one.ack(one.deliveries[-1].tag)
            one.deliveries.clear()
            if not left[one]:
                del left[one]
        most = max(most, resident(cluster[0].pid))
    rate = messages * readers / (time.monotonic() - began)
    for one in connections:
        one.close()
    return int(rate), most


def pages_mib(cluster: LocalCluster) -> int:
    """The size of the first member's pages on disk."""
    counters = Target(cluster[0].address).ask(op="counters")["counters"]
    assert isinstance(counters, dict)
    held = counters["pages.disk_bytes"]
    assert isinstance(held, int)
    return held >> 20


def measure(
    root: Path, messages: int, body_bytes: int, members: int, page_memory: str, *, drains: bool
) -> dict[str, float]:
    """One run, in order."""
    figures: dict[str, float] = {"messages": messages}
    extra = {"page-memory": page_memory} if page_memory else {}
    with LocalCluster(root, members, "million", extra=extra) as cluster:
        cluster.start()
        figures["rss_idle"] = rss(cluster)
        began = time.monotonic()
        fill(cluster, messages, body_bytes)
        figures["fill_s"] = time.monotonic() - began
        figures["rss_full"] = rss(cluster)
        began = time.monotonic()
        Target(cluster[0].address).ask(op="shutdown")
        cluster.wait_stopped(WAIT_S)
        figures["stop_s"] = time.monotonic() - began
        began = time.monotonic()
        cluster.start(WAIT_S)
        figures["start_s"] = time.monotonic() - began
        figures["start_cpu_s"] = max(processor_s(member.pid) for member in cluster.members)
        figures["rss_restarted"] = rss(cluster)
        cluster[-1].kill()
        time.sleep(1.0)
        began = time.monotonic()
        cluster.start(WAIT_S)
        figures["rejoin_s"] = time.monotonic() - began
        figures["rejoin_cpu_s"] = processor_s(cluster[-1].pid)
        figures["rss_rejoined"] = rss(cluster)
        figures["pages_full"] = pages_mib(cluster)
        if drains:
            used = processor_s(cluster[0].pid)
            figures["drain_per_s"], figures["rss_draining"] = receive(cluster, "million", messages)
            used = processor_s(cluster[0].pid) - used
            figures["drain_cpu_us"] = used * 1e6 / messages
        else:
            figures["purge_s"], figures["gap_s"] = purge(cluster)
        time.sleep(SETTLE_S)
        figures["rss_empty"] = rss(cluster)
        figures["pages_empty"] = pages_mib(cluster)
        Target(cluster[0].address).ask(op="shutdown")
        cluster.wait_stopped(WAIT_S)
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument(
        "--page-memory", default="", help="page memory of the members, if not the default"
    )
    parser.add_argument(
        "--drain", action="store_true", help="drain the queue instead of purging it"
    )
    given = parser.parse_args()
    with ended_by(signal.SIGTERM), tempfile.TemporaryDirectory(prefix="million-") as root:
        figures = measure(
            Path(root), given.messages, given.body_bytes, given.members, given.page_memory,
            drains=given.drain,
        )  # fmt: skip
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
