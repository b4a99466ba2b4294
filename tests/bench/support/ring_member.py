"""One measured member of a ring: it submits, counts deliveries, hashes the order.

`tests.bench.ring` starts these as separate processes; each prints its result as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import random
import signal
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import TypedDict, cast

from vsync.io.keys import Allowed, file_stem, make_pair, public_text, read_secret, secret_text
from vsync.io.security import Anonymous, Curve
from vsync.io.traced_driver import TracedDriver, Tracer
from vsync.io.transport import ZmqTransport
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, Output, View
from vsync.totem.node import Node
from vsync.types import Guarantee, Member

CHECK_EVERY_FRAMES = 32
FLOOD_SLICE = 256
FORM_SECONDS = 20.0
DRAIN_SECONDS = 20.0
SOON_S = 0.00001  # a time that has passed: an alarm in no time would be none


def write_keys(directory: Path, names: list[str]) -> None:
    """Write keys for these members, and the allow list of all of them."""
    (directory / "allow").mkdir()
    for name in names:
        pair = make_pair(name)
        secret = directory / f"{file_stem(name, 1)}.secret"
        secret.write_text(secret_text(pair))
        secret.chmod(0o600)
        (directory / "allow" / f"{file_stem(name, 1)}.key").write_text(public_text(pair))


def curve(keys: str, name: str) -> Curve:
    """The mechanism of one member, from the files of `write_keys`."""
    directory = Path(keys)
    own = read_secret(directory / f"{file_stem(name, 1)}.secret")

    def warn(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    return Curve(own, Allowed(directory / "allow", warn, warn))


class Result(TypedDict):
    """The report of one member at its end."""

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
    rotation_us: float
    counters: dict[str, int]


class Load:
    """One member's side: submits, counts, hashes."""

    def __init__(self, options: argparse.Namespace, name: str, addresses: list[str]) -> None:
        self.options = options
        self.guarantee = Guarantee[options.guarantee.upper()]
        self.payload = bytes(max(0, options.size - 8))
        index = int(name[1:])
        security = curve(options.keys, name) if options.keys else Anonymous()
        transport = ZmqTransport(
            addresses[index], 2 * max(options.frame, 32_768) + 4_096, security=security
        )
        config = RingConfig(
            frame_bytes_max=options.frame,
            window_frames=options.window,
            personal_frames=options.personal,
            accelerated_frames=options.ahead,
            lead_frames=options.lead,
            idle_visits_before_hold=options.hold_after,
        )
        node = Node(Member(name, 1, transport.address), "bench", config, random.Random(index))
        path = Path(f"{options.trace}.{name}") if options.trace else None
        tracer = Tracer(node, "bench", path, asyncio.get_running_loop())
        tracer.switch(path is not None)
        self.driver = TracedDriver(node, transport, self.on_event, tracer)
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
        base, hop = self.delivered, self.hop()
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
        rotations = (self.hop() - hop) / self.options.members
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
            rotation_us=1e6 * seconds / max(1.0, rotations),
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

    def hop(self) -> int:
        """How often the token was passed on in this ring."""
        return self.node.membership.current.hop if self.node.membership.current is not None else 0

    async def pace(self) -> None:
        """Submit at random times, as messages reach a member; the kernel's alarm sets them.  Those
        due while the loop is at work are submitted after that, and timed from there.

        The loop's own timers would not do.  A loop counts in whole milliseconds, and checks its
        timers when something has woken it, mostly the token: nine messages of ten would come just
        behind the token, and wait for it a whole rotation each.
        """
        loop = asyncio.get_running_loop()
        step = 1 / self.options.rate
        due = time.monotonic() + step
        end = due + self.options.seconds

        def one() -> None:
            nonlocal due
            stamp = struct.pack("<q", time.monotonic_ns())
            if self.driver.submit(stamp + self.payload, self.guarantee):
                self.submitted += 1
            else:
                self.refused += 1
            due += step * random.uniform(0.5, 1.5)  # not in step with the others
            if due < end:
                signal.setitimer(signal.ITIMER_REAL, max(due - time.monotonic(), SOON_S))

        loop.add_signal_handler(signal.SIGALRM, one)
        signal.setitimer(signal.ITIMER_REAL, step)
        try:
            await asyncio.sleep(self.options.seconds)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            loop.remove_signal_handler(signal.SIGALRM)

    async def drain(self) -> None:
        """Wait until nothing is delivered for a while: then every member should have everything."""
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
            await load.driver.closed  # raises the error that ended the member
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


if __name__ == "__main__":
    member(argparse.Namespace(**json.loads(sys.argv[1])))
