"""How fast the ring is: real processes on loopback, over pyzmq, with the order checked.

    python -m tests.bench.ring --members 3 --size 64 --seconds 5            # flood
    python -m tests.bench.ring --rate 500 --guarantee safe                  # latency
    python -m tests.bench.ring --idle                                       # CPU of a held token

Each member submits as fast as the ring takes it (or at the pace asked for) and counts what is
delivered to it.  A rolling hash over the delivered frames is noted at fixed places of the order;
members must agree wherever they noted the same place, else the run fails.  On a machine with fewer
cores than members judge by CPU time per message rather than by the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import platform
import random
import socket
import struct
import subprocess
import sys
import time
import zlib
from typing import IO, TypedDict, cast

from vsync.config import RingConfig
from vsync.driver import Driver
from vsync.events import Deliver, Output, View
from vsync.node import Node
from vsync.transport import ZmqTransport
from vsync.types import Guarantee, Member

DEFAULTS = RingConfig()
CHECK_EVERY_FRAMES = 32
FLOOD_SLICE = 256
FORM_SECONDS = 20.0
DRAIN_SECONDS = 20.0


class Result(TypedDict):
    """What one member reports at its end."""

    name: str
    seconds: float
    delivered: int
    frames: int
    submitted: int
    refused: int
    cpu_us_per_message: float
    cpu_percent: float
    latency_us: dict[str, float]
    checks: dict[str, int]
    views: int
    counters: dict[str, int]


class Load:
    """One member's side: submits, counts, hashes."""

    def __init__(self, options: argparse.Namespace, name: str, addresses: list[str]) -> None:
        self.options = options
        self.guarantee = Guarantee[options.guarantee.upper()]
        self.payload = bytes(max(0, options.size - 8))
        index = int(name[1:])
        transport = ZmqTransport(addresses[index], 2 * 32_768 + 4_096)
        config = RingConfig(
            frame_bytes_max=options.frame,
            window_frames=options.window,
            personal_frames=options.personal,
            accelerated_frames=options.ahead,
            idle_visits_before_hold=options.hold_after,
        )
        node = Node(Member(name, 1, transport.address), "bench", config, random.Random(index))
        self.driver = Driver(node, transport, self.on_event)
        self.driver.start(address for address in addresses if address != transport.address)
        self.node = node
        self.name = name
        self.members = 0
        self.views = 0
        self.delivered = self.frames = self.submitted = self.refused = 0
        self.hash = 0
        self.checks: dict[str, int] = {}
        self.latencies_ns: list[int] = []
        self.flooding = self.pouring = False
        self.changed = asyncio.Event()

    def on_event(self, event: Output) -> None:
        if isinstance(event, Deliver):
            payloads = event.payloads
            self.delivered += len(payloads)
            self.frames += 1
            self.hash = zlib.crc32(b"".join(payloads), self.hash)
            if event.seq % CHECK_EVERY_FRAMES == 0:
                self.checks[f"{event.ring}/{event.seq}"] = self.hash
            if self.options.rate and event.sender.name == self.name:
                now = time.monotonic_ns()
                self.latencies_ns += [now - struct.unpack_from("<q", p)[0] for p in payloads]
            if self.flooding:
                self.pour()
        elif isinstance(event, View):
            self.members = len(event.members)
            self.views += 1
            self.changed.set()

    def flood(self) -> None:
        """Fill the queue a slice at a time: the load must not keep the token waiting."""
        self.pouring = False
        if not self.flooding:
            return
        submit, guarantee, tail = self.driver.submit, self.guarantee, self.payload
        pack = struct.Struct("<q").pack
        for number in range(self.submitted, self.submitted + FLOOD_SLICE):
            if not submit(pack(number) + tail, guarantee):
                self.refused += 1
                self.submitted = number
                return  # the next delivery tries again
        self.submitted += FLOOD_SLICE
        self.pour()

    def pour(self) -> None:
        if not self.pouring:
            self.pouring = True
            asyncio.get_running_loop().call_soon(self.flood)

    async def run(self) -> Result:
        async with asyncio.timeout(FORM_SECONDS):
            while self.members < self.options.members:
                self.changed.clear()
                await self.changed.wait()
        await asyncio.sleep(0.3)
        began, cpu = time.perf_counter(), time.process_time()
        base = self.delivered
        if self.options.idle:
            await asyncio.sleep(self.options.seconds)
        elif self.options.rate:
            await self.pace()
        else:
            self.flooding = True
            self.flood()
            await asyncio.sleep(self.options.seconds)
            self.flooding = False
        seconds = time.perf_counter() - began
        spent = time.process_time() - cpu
        delivered = self.delivered - base
        await self.drain()
        return Result(
            name=self.name,
            seconds=seconds,
            delivered=delivered,
            frames=self.frames,
            submitted=self.submitted,
            refused=self.refused,
            cpu_us_per_message=1e6 * spent / max(1, delivered),
            cpu_percent=100 * spent / seconds,
            latency_us=percentiles(self.latencies_ns),
            checks=self.checks,
            views=self.views,
            counters={
                k: v
                for counters in (
                    self.node.counters,
                    self.driver.counters,
                    self.driver.transport.counters,
                )
                for k, v in counters.items()
                if v
            },
        )

    async def pace(self) -> None:
        loop = asyncio.get_running_loop()
        end, step = loop.time() + self.options.seconds, 1 / self.options.rate
        due = loop.time()
        while due < end:
            await asyncio.sleep(max(0.0, due - loop.time()))
            stamp = struct.pack("<q", time.monotonic_ns())
            if self.driver.submit(stamp + self.payload, self.guarantee):
                self.submitted += 1
            else:
                self.refused += 1
            due += step * random.uniform(0.5, 1.5)  # not in step with the others

    async def drain(self) -> None:
        """Until nothing was delivered for a while: then every member should have everything."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                before = -1
                while before != self.delivered:
                    before = self.delivered
                    await asyncio.sleep(0.7)
        self.checks["end"] = self.hash
        self.checks["total"] = self.delivered


def percentiles(latencies_ns: list[int]) -> dict[str, float]:
    ordered = sorted(latencies_ns)
    if not ordered:
        return {}
    places = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}
    return {
        k: ordered[min(len(ordered) - 1, int(len(ordered) * v))] / 1e3 for k, v in places.items()
    }


def member(options: argparse.Namespace) -> None:
    """The child: one member, one line of JSON on stdout."""

    async def main() -> Result:
        load = Load(options, options.member, options.addresses.split(","))
        running = asyncio.ensure_future(load.run())
        load.driver.closed.add_done_callback(lambda _: running.cancel())
        try:
            result = await running
        except asyncio.CancelledError:
            await load.driver.closed  # raises what ended the member
            raise
        load.driver.stop(linger_ms=100)
        return result

    profile = cProfile.Profile() if options.profile else None
    with asyncio.Runner(loop_factory=loop_factory(options.loop)) as runner:
        result = profile.runcall(runner.run, main()) if profile else runner.run(main())
    if profile is not None:
        profile.dump_stats(f"{options.profile}.{options.member}")
    json.dump(result, sys.stdout)


def loop_factory(name: str) -> type[asyncio.SelectorEventLoop] | None:
    if name == "asyncio":
        return None
    import uvloop

    return cast("type[asyncio.SelectorEventLoop]", uvloop.new_event_loop)


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for one in sockets:
        one.close()
    return [f"127.0.0.1:{port}" for port in ports]


def disagreements(results: list[Result]) -> list[str]:
    """The places of the order where two members noted different hashes."""
    first = results[0]["checks"]
    return [
        f"{place}: {first[place]:08x} at {results[0]['name']}, {value:08x} at {other['name']}"
        for other in results[1:]
        for place, value in other["checks"].items()
        if first.get(place, value) != value
    ]


def measure(options: argparse.Namespace) -> list[Result]:
    addresses = ",".join(free_addresses(options.members))
    command = [sys.executable, "-m", "tests.bench.ring", *sys.argv[1:], "--addresses", addresses]
    children = [
        subprocess.Popen([*command, "--member", f"m{n}"], stdout=subprocess.PIPE)
        for n in range(options.members)
    ]
    results: list[Result] = []
    try:
        for child in children:
            text = cast("IO[bytes]", child.stdout).read()
            if child.wait() or not text:
                raise SystemExit(f"a member failed with status {child.returncode}")
            results.append(json.loads(text))
    finally:
        for child in children:
            child.kill()
            child.wait()
    return results


def table(options: argparse.Namespace, results: list[Result]) -> str:
    mode = "idle" if options.idle else f"rate {options.rate}" if options.rate else "flood"
    lines = [
        f"{options.members} members, {options.size} B, {options.guarantee}, {mode}, "
        f"{options.loop}, Python {platform.python_version()}, {os.cpu_count()} cores",
        f"{'member':8}{'msg/s':>10}{'frames/s':>10}{'msg/frame':>10}{'cpu us/msg':>12}"
        f"{'cpu %':>7}{'p50 us':>9}{'p99 us':>9}{'max us':>9}{'lost':>6}{'resent':>7}{'views':>6}",
    ]
    for r in results:
        counters, latency = r["counters"], r["latency_us"]
        lines.append(
            f"{r['name']:8}{r['delivered'] / r['seconds']:>10.0f}"
            f"{r['frames'] / r['seconds']:>10.0f}{r['delivered'] / max(1, r['frames']):>10.1f}"
            f"{r['cpu_us_per_message']:>12.2f}{r['cpu_percent']:>7.1f}"
            f"{latency.get('p50', 0):>9.0f}{latency.get('p99', 0):>9.0f}"
            f"{latency.get('max', 0):>9.0f}{counters.get('sends_lost', 0):>6}"
            f"{counters.get('retransmitted', 0):>7}{r['views']:>6}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--size", type=int, default=64, help="bytes of a payload, at least 8")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--guarantee", choices=["agreed", "safe"], default="agreed")
    parser.add_argument("--rate", type=int, default=0, help="submissions a second and member")
    parser.add_argument("--idle", action="store_true", help="submit nothing, show the CPU used")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--frame", type=int, default=DEFAULTS.frame_bytes_max)
    parser.add_argument("--window", type=int, default=DEFAULTS.window_frames)
    parser.add_argument("--personal", type=int, default=DEFAULTS.personal_frames)
    parser.add_argument("--ahead", type=int, default=DEFAULTS.accelerated_frames)
    parser.add_argument("--hold-after", type=int, default=DEFAULTS.idle_visits_before_hold)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--counters", action="store_true", help="print the counters as well")
    parser.add_argument("--profile", default="", help="write cProfile data to FILE.member")
    parser.add_argument("--member", default="", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        member(options)
        return
    results = measure(options)
    odd = disagreements(results)
    if options.json:
        sys.stdout.write(json.dumps({"options": vars(options), "members": results}) + "\n")
    else:
        sys.stdout.write(table(options, results) + "\n")
        if options.counters:
            for r in results:
                sys.stdout.write(f"{r['name']} {r['counters']}\n")
        common = len(set.intersection(*(set(r["checks"]) for r in results)))
        sys.stdout.write(f"order: {common} places compared, {len(odd)} disagree\n")
    if odd:
        raise SystemExit("members disagree:\n" + "\n".join(odd[:10]))


if __name__ == "__main__":
    main()
