"""The cost of an idle ring, and the latency of the first message after idling.

    python -m tests.bench.idle                    # three members: CPU, then single submissions
    python -m tests.bench.idle --brokers          # three idle brokers: CPU
    python -m tests.bench.idle --shots 0          # CPU only

CPU is the sum of user and system time of the members' processes, in percent of one core.  A shot is
one submission after 50 ms to 1 s of silence, timed from `submit` to its own delivery, at members in
turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, cast

import uvloop

from tests.bench.cluster import cpu_seconds
from tests.bench.ring import free_addresses
from tests.bench.support.ring_member import percentiles
from tools.demo.local_cluster import LocalCluster
from vsync.io.driver import Driver
from vsync.io.transport import ZmqTransport
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, Output, View
from vsync.totem.node import Node
from vsync.types import Guarantee, Member

SILENCE_S = (0.05, 1.0)
SETTLE_S = 2.0


async def member(name: str, addresses: list[str]) -> None:
    """Print `ready` when all are there; answer each line of stdin (a guarantee) with
    nanoseconds."""
    mine = addresses[int(name[1:])]
    transport = ZmqTransport(mine, 2 * 32_768 + 4_096)
    node = Node(Member(name, 1, mine), "idle", RingConfig(), random.Random())
    sent = 0
    ended = asyncio.Event()

    def say(text: object) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def on_event(event: Output) -> None:
        if isinstance(event, View) and len(event.members) == len(addresses):
            say("ready")
        elif isinstance(event, Deliver) and event.sender.name == name:
            say(time.monotonic_ns() - sent)

    driver = Driver(node, transport, on_event)

    def on_line() -> None:
        nonlocal sent
        lines = os.read(0, 65_536).decode().split()
        if not lines:
            ended.set()
        for word in lines:
            if word == "counters":
                say(json.dumps(node.counters | driver.counters | transport.counters))
                continue
            sent = time.monotonic_ns()
            assert driver.submit(b"shot", Guarantee[word])

    asyncio.get_running_loop().add_reader(0, on_line)
    driver.start(address for address in addresses if address != mine)
    driver.closed.add_done_callback(lambda _: ended.set())
    await ended.wait()
    driver.stop()
    await driver.closed


class Members:
    """The child processes, asked one at a time."""

    def __init__(self, size: int) -> None:
        addresses = free_addresses(size)
        self.children = [
            subprocess.Popen(
                [
                    sys.executable, "-m", "tests.bench.idle", "--member", f"m{n}",
                    "--addresses", ",".join(addresses),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for n in range(size)
        ]  # fmt: skip
        for child in self.children:
            assert self.read(child) == "ready"

    def read(self, child: subprocess.Popen[bytes]) -> str:
        line = cast("IO[bytes]", child.stdout).readline().decode().strip()
        if not line:
            raise SystemExit(f"a member ended with status {child.wait()}")
        return line

    def ask(self, index: int, word: str) -> str:
        child = self.children[index]
        pipe = cast("IO[bytes]", child.stdin)
        pipe.write(word.encode() + b"\n")
        pipe.flush()
        return self.read(child)

    def cpu_percent(self, seconds: float) -> list[float]:
        return cpu_percent([child.pid for child in self.children], seconds)

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


def cpu_percent(pids: list[int], seconds: float) -> list[float]:
    """Percent of one core, for each process."""
    before = [cpu_seconds([pid]) for pid in pids]
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return [100 * (cpu_seconds([p]) - b) / took for p, b in zip(pids, before, strict=True)]


def told(what: str, percents: list[float]) -> str:
    each = ", ".join(f"{p:.2f}" for p in percents)
    return f"{what}: {sum(percents):.2f} % of a core together ({each})"


def ring(options: argparse.Namespace) -> None:
    members = Members(options.members)
    try:
        time.sleep(SETTLE_S)
        print(told(f"{options.members} idle members", members.cpu_percent(options.seconds)))
        for level in ("AGREED", "SAFE") if options.shots else ():
            latencies: list[int] = []
            for number in range(options.shots):
                time.sleep(random.uniform(*SILENCE_S))
                latencies.append(int(members.ask(number % options.members, level)))
            figures = percentiles(latencies)
            text = ", ".join(f"{name} {micros / 1000:.2f} ms" for name, micros in figures.items())
            print(f"first message after idling, {level.lower()}, {options.shots} shots: {text}")
        if options.counters:
            for index in range(options.members):
                print(members.ask(index, "counters"))
    finally:
        members.close()


def brokers(options: argparse.Namespace) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="qpid-idle-") as folder,
        LocalCluster(Path(folder), options.members, "idle", log_level="warning") as cluster,
    ):
        cluster.start()
        time.sleep(SETTLE_S)
        pids = [one.pid for one in cluster.members]
        print(told(f"{options.members} idle brokers", cpu_percent(pids, options.seconds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of CPU measurement")
    parser.add_argument(
        "--shots", type=int, default=200, help="number of single submissions per level"
    )
    parser.add_argument("--brokers", action="store_true", help="measure whole brokers, CPU only")
    parser.add_argument("--counters", action="store_true", help="print the members' counters")
    parser.add_argument("--member", default="", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(member(options.member, options.addresses.split(",")))
        return
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before")
    if options.brokers:
        brokers(options)
    else:
        ring(options)


if __name__ == "__main__":
    main()
