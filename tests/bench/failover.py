"""How fast a ring of real processes changes its view, and whether it ever does without a reason.

    python -m tests.bench.failover                       # every scenario, a few runs each
    python -m tests.bench.failover --only kill --runs 50
    python -m tests.bench.failover --load                # the same with all cores burning
    python -m tests.bench.failover --load --watch 60     # no fault: count false suspicions
    python -m tests.bench.failover --only broker         # kill -9 of a broker to serving again
    python -m tests.bench.failover --only silence        # the same, as a publisher sees it
    python -m tests.bench.failover --load --brokers 60   # 1,000 msg/s: views, and the causes logged

Times are from the fault (the signal, the command to cut or to mend) to the moment at which the
*last* member concerned has the right view; all clocks are one (CLOCK_MONOTONIC).  In a partition
members drop all frames to the other side.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import uvloop

from broker.options.addresses import Address
from tests.bench.ring import free_addresses
from tools.client.amqp_client import AmqpConnection
from tools.demo.local_cluster import LocalCluster
from vsync.io.driver import Driver
from vsync.io.transport import ZmqTransport
from vsync.totem.config import RingConfig
from vsync.totem.events import Output, View
from vsync.totem.node import Node
from vsync.types import Member

WAIT_S = 20.0
REST_S = 0.3
SCENARIOS = ("kill", "stop", "pause", "partition", "broker", "silence")
PAUSE_S = 0.3
"""How long a member may be without processor time before the view changes."""
RATE = 1000
CAUSES = ("out of the view", "ran all the time", "this process came")
SUSPICIONS = ("suspect_gone", "token_lost", "suspected", "suspect_alive", "suspect_unproven")


# -- one member, in a process of its own ------------------------------------------------------


class CuttingTransport(ZmqTransport):
    """Drops frames to the other side of a partition."""

    cut: frozenset[str] = frozenset()

    def send(self, address: str, frame: bytes) -> bool:
        return address not in self.cut and super().send(address, frame)

    def broadcast(self, frame: bytes) -> int:
        return sum([self.send(address, frame) for address in self.peers])


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, (time.monotonic_ns(), *words))) + "\n")
    sys.stdout.flush()


async def member(name: str, incarnation: int, addresses: list[str]) -> None:
    """Print every view; obey lines of stdin: `cut ADDRESS,...`, `counters`, end of file."""
    mine = addresses[int(name[1:])]
    transport = CuttingTransport(mine, 2 * 32_768 + 4_096)
    node = Node(Member(name, incarnation, mine), "failover", RingConfig(), random.Random())

    def on_event(event: Output) -> None:
        if isinstance(event, View):
            say("view", ",".join(m.name for m in event.members))

    driver = Driver(node, transport, on_event)
    ended = asyncio.Event()

    def on_line() -> None:
        for line in os.read(0, 65_536).decode().splitlines() or ["end"]:
            word, _, rest = line.partition(" ")
            if word == "cut":
                transport.cut = frozenset(filter(None, rest.split(",")))
            elif word == "counters":
                say("counters", json.dumps(node.counters | driver.counters | transport.counters))
            else:
                ended.set()

    asyncio.get_running_loop().add_reader(0, on_line)
    driver.start(address for address in addresses if address != mine)
    say("started")
    driver.closed.add_done_callback(lambda _: ended.set())
    await ended.wait()
    driver.stop()
    await driver.closed  # raises the error that ended the member


# -- the ring as the parent sees it -----------------------------------------------------------


class Process:
    """One child process and its last report."""

    def __init__(self, name: str, addresses: list[str]) -> None:
        self.name, self.addresses = name, addresses
        self.incarnation = 0
        self.views = 0
        self.begin()

    def begin(self) -> None:
        """Start a new incarnation."""
        self.incarnation += 1
        self.view, self.view_at, self.started_at = "", 0, 0
        self.counters: dict[str, int] = {}
        self.child = subprocess.Popen(
            [
                sys.executable, "-m", "tests.bench.failover", "--member", self.name,
                "--incarnation", str(self.incarnation), "--addresses", ",".join(self.addresses),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, args=(self.child.stdout,), daemon=True)
        self.reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            at, word, *rest = line.decode().strip().split(" ", 2)
            if word == "view":
                self.view, self.view_at = rest[0], int(at)
                self.views += 1
            elif word == "started":
                self.started_at = int(at)
            elif word == "counters":
                self.counters = json.loads(rest[0])

    def tell(self, line: str) -> None:
        pipe = cast("IO[bytes]", self.child.stdin)
        pipe.write(line.encode() + b"\n")
        pipe.flush()

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        self.reader.join()


class Ring:
    """The child processes; every wait is bounded."""

    def __init__(self, size: int) -> None:
        self.addresses = free_addresses(size)
        self.all = [Process(f"m{n}", self.addresses) for n in range(size)]
        self.wait(self.all)

    def wait(self, *sides: list[Process], since: int = 0) -> float:
        """Wait until each side is one view of its members, installed after `since`; the seconds."""
        deadline = time.monotonic() + WAIT_S
        while True:
            wanted = [(p, ",".join(q.name for q in side)) for side in sides for p in side]
            if all(p.view == names and p.view_at > since for p, names in wanted):
                return (max(p.view_at for p, _ in wanted) - since) / 1e9
            if time.monotonic() > deadline:
                views = "; ".join(f"{p.name} sees {p.view}" for p in self.all)
                raise SystemExit(f"not within {WAIT_S:g} s: {views}")
            time.sleep(0.002)

    def but(self, one: Process) -> list[Process]:
        return [p for p in self.all if p is not one]

    def counters(self) -> dict[str, int]:
        for p in self.all:
            p.counters = {}
            p.tell("counters")
        deadline = time.monotonic() + WAIT_S
        while not all(p.counters for p in self.all) and time.monotonic() < deadline:
            time.sleep(0.01)
        return {k: sum(p.counters.get(k, 0) for p in self.all) for k in SUSPICIONS}

    def close(self) -> None:
        for p in self.all:
            p.end()


Times = defaultdict[str, list[float]]


def kill(ring: Ring, victim: Process, times: Times) -> None:
    since = time.monotonic_ns()
    victim.child.kill()
    times["kill -9 to new view"].append(ring.wait(ring.but(victim), since=since))
    victim.end()
    victim.begin()
    ring.wait(ring.all, since=since)
    last = max(p.view_at for p in ring.all)
    times["rejoin (start of the ring to merged view)"].append((last - victim.started_at) / 1e9)


def stop(ring: Ring, victim: Process, times: Times) -> None:
    since = time.monotonic_ns()
    victim.child.send_signal(signal.SIGSTOP)
    times["SIGSTOP to new view"].append(ring.wait(ring.but(victim), since=since))
    since = time.monotonic_ns()
    victim.child.send_signal(signal.SIGCONT)
    times["SIGCONT to merged view"].append(ring.wait(ring.all, since=since))


def pause(ring: Ring, victim: Process, times: Times) -> None:
    views = sum(p.views for p in ring.all)
    victim.child.send_signal(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    victim.child.send_signal(signal.SIGCONT)
    time.sleep(2.0)
    if sum(p.views for p in ring.all) != views:
        raise SystemExit(f"{victim.name} stood still for {PAUSE_S:g} s, and the view changed")
    times["stood still, the view stays"].append(PAUSE_S)


def partition(ring: Ring, victim: Process, times: Times) -> None:
    since = time.monotonic_ns()
    rest = ring.but(victim)
    mine = ring.addresses[ring.all.index(victim)]
    victim.tell("cut " + ",".join(a for a in ring.addresses if a != mine))
    for p in rest:
        p.tell(f"cut {mine}")
    times["partition to views on both sides"].append(ring.wait(rest, [victim], since=since))
    time.sleep(REST_S)
    since = time.monotonic_ns()
    for p in ring.all:
        p.tell("cut ")
    times["heal to merged view"].append(ring.wait(ring.all, since=since))


def broker(runs: int, times: Times) -> None:
    """Kill brokers of a real cluster; the survivors' logs show when they serve again."""
    with (
        tempfile.TemporaryDirectory(prefix="qpid-failover-") as folder,
        LocalCluster(Path(folder), 3, "failover") as cluster,
    ):
        cluster.start()
        for turn in range(runs):
            victim = cluster[turn % 3]
            rest = [m for m in cluster.members if m is not victim]
            time.sleep(1.0)
            before = [served(m.log_path) for m in rest]
            since = time.monotonic()
            victim.kill()
            while any(served(m.log_path) == b for m, b in zip(rest, before, strict=True)):
                if time.monotonic() - since > WAIT_S:
                    raise SystemExit(f"no new primary within {WAIT_S:g} s after {victim}")
                time.sleep(0.002)
            times["broker: kill -9 to serving again"].append(time.monotonic() - since)
            cluster.start()


class Publisher(threading.Thread):
    """Publishes at a rate through one broker, and keeps the longest time without a confirm."""

    def __init__(self, broker: Address, rate: int) -> None:
        super().__init__(daemon=True)
        self._rate = rate
        self.confirmed = 0
        self.silent_s = 0.0
        self.ended = False
        self._connection = AmqpConnection(broker)
        self._connection.declare_queue("failover")
        self._connection.select_confirms()
        self.heard_at = time.monotonic()

    def run(self) -> None:
        sent, began = 0, time.monotonic()
        while not self.ended:
            due = int((time.monotonic() - began) * self._rate)
            while sent < due and sent - self.confirmed < self._rate:
                sent = self._connection.publish("", "failover", b"\0\0", b"x" * 100)
            self._connection.pump(0.005)
            if self._connection.acks:
                self.confirmed = max(ack.number for ack in self._connection.acks)
                self._connection.acks.clear()
                now = time.monotonic()
                self.silent_s, self.heard_at = max(self.silent_s, now - self.heard_at), now

    def end(self) -> None:
        self.ended = True
        self.join()
        self.silent_s = max(self.silent_s, time.monotonic() - self.heard_at)
        self._connection.drop()


def silence(runs: int, times: Times) -> None:
    """Kill brokers of a real cluster while a client publishes through another one."""
    with (
        tempfile.TemporaryDirectory(prefix="qpid-failover-") as folder,
        LocalCluster(Path(folder), 3, "failover") as cluster,
    ):
        cluster.start()
        for turn in range(runs):
            publisher = Publisher(cluster[0].address, RATE)
            publisher.start()
            time.sleep(2.0)
            before, publisher.silent_s = publisher.silent_s, 0.0
            cluster[1 + turn % 2].kill()
            time.sleep(3.0)
            publisher.end()
            times["publisher silent, before any fault"].append(before)
            times["publisher silent, broker killed"].append(publisher.silent_s)
            cluster.start()


def watch_brokers(seconds: float) -> None:
    """Brokers under load without faults: every view is printed with the cause in the log."""
    with (
        tempfile.TemporaryDirectory(prefix="qpid-failover-") as folder,
        LocalCluster(Path(folder), 3, "failover") as cluster,
    ):
        cluster.start()
        time.sleep(1.0)
        begun = [member.log_path.stat().st_size for member in cluster.members]
        publishers = [Publisher(member.address, RATE // 2) for member in cluster.members[:2]]
        for publisher in publishers:
            publisher.start()
        time.sleep(seconds)
        for publisher in publishers:
            publisher.end()
        logs = [
            member.log_path.read_bytes()[start:].decode().splitlines()
            for member, start in zip(cluster.members, begun, strict=True)
        ]
    views = [line for log in logs for line in log if ") view " in line]
    causes = [line for log in logs for line in log if any(word in line for word in CAUSES)]
    silent = max(publisher.silent_s for publisher in publishers)
    done = sum(publisher.confirmed for publisher in publishers)
    print(
        f"{seconds:g} s: {len(views)} views, {done} confirmed,"
        f" longest silence {1000 * silent:.0f} ms"
    )
    for line in (*views, *causes):
        print("   ", line)


def served(log: Path) -> int:
    """How often this broker has logged that it serves."""
    return log.read_bytes().count(b"serving in ")


# -- the measurement --------------------------------------------------------------------------


@contextlib.contextmanager
def burning(cores: int) -> Iterator[None]:
    """Keep this many cores busy."""
    fires = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for fire in fires:
            fire.kill()
            fire.wait()


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def row(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    figures = [percentile(ordered, 0.5), percentile(ordered, 0.95), ordered[-1]]
    return f"{name:45}{len(ordered):>5}" + "".join(f"{1000 * f:>9.0f}" for f in figures)


def measure(options: argparse.Namespace, times: Times) -> None:
    chosen = options.only.split(",") if options.only else list(SCENARIOS)
    on_ring: dict[str, Callable[[Ring, Process, Times], None]] = {
        "kill": kill, "stop": stop, "pause": pause, "partition": partition,
    }  # fmt: skip
    for name in chosen:
        if name == "broker":
            broker(options.runs, times)
            continue
        if name == "silence":
            silence(options.runs, times)
            continue
        ring = Ring(options.members)
        try:
            for turn in range(options.runs):
                time.sleep(REST_S + random.uniform(0, 0.2))  # not in step with any timer
                on_ring[name](ring, ring.all[turn % options.members], times)
        finally:
            ring.close()


def watch(options: argparse.Namespace) -> None:
    """Inject no fault: every suspicion is false."""
    ring = Ring(options.members)
    try:
        time.sleep(REST_S)
        before, views = ring.counters(), sum(p.views for p in ring.all)
        time.sleep(options.watch)
        after = ring.counters()
        changed = sum(p.views for p in ring.all) - views
    finally:
        ring.close()
    told = ", ".join(f"{k} {after[k] - before[k]}" for k in SUSPICIONS)
    print(f"{options.watch:g} s without a fault: {changed} views, {told}")
    if changed:
        raise SystemExit("a member was suspected falsely")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="runs of each scenario")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--only", default="", help=f"some of {','.join(SCENARIOS)}")
    parser.add_argument("--load", action="store_true", help="burn every core meanwhile")
    parser.add_argument(
        "--watch", type=float, default=0.0, help="watch for this many seconds without a fault"
    )
    parser.add_argument(
        "--brokers", type=float, default=0.0, help="the same with brokers under load"
    )
    parser.add_argument("--member", default="", help=argparse.SUPPRESS)
    parser.add_argument("--incarnation", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(filter(None, options.only.split(","))) - set(SCENARIOS)
    if unknown:
        parser.error(f"--only: there is no scenario {', '.join(sorted(unknown))}")
    if options.member:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(member(options.member, options.incarnation, options.addresses.split(",")))
        return
    cores = os.cpu_count() or 1
    times: Times = defaultdict(list)
    with burning(cores if options.load else 0):
        if options.brokers:
            watch_brokers(options.brokers)
        elif options.watch:
            watch(options)
        else:
            measure(options, times)
    if times:
        loaded = f", {cores} cores burning" if options.load else ""
        print(f"{options.members} members{loaded}; milliseconds, load {os.getloadavg()[0]:.1f}")
        print(f"{'':45}{'runs':>5}{'p50':>9}{'p95':>9}{'max':>9}")
        for name, seconds in times.items():
            print(row(name, seconds))


if __name__ == "__main__":
    main()
