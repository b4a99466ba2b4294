"""The cost of a long list over HTTP for the ring: how long the loop is not free for the token.

    python -m tests.bench.operating.management      # 100,000 queues, listed in several ways
    python -m tests.bench.operating.management --queues 10000

One process holds the queues and the API on a loop on which, as a token would, a probe requests its
turn again and again.  A gap is the work of the loop's thread between two of its turns, in processor
time, so that other programs on the machine do not count: at rest, and while a client in its own
process reads a list.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import json
import multiprocessing
import time
from types import SimpleNamespace
from typing import cast
from urllib.request import Request, urlopen

import uvloop

from broker.access.backends import Login
from broker.machine.commands import Table
from broker.machine.handlers.definitions import define_first
from broker.machine.machine import Machine
from broker.machine.queueing.declaration import create_queue
from broker.management.access import Logins
from broker.management.call import Broker
from broker.management.server import ManagementServer
from broker.statistics.statistics import Statistics

WAYS = {
    "all": "queues",
    "columns": "queues?columns=name,messages",
    "page": "queues?page=3&page_size=100",
    "filter": "queues?page=1&page_size=500&use_regex=true&name=^q.*7$",
    "sorted": "queues?sort=messages_ready&sort_reverse=true",
    "definitions": "definitions",
}
REST_S = 2.0


def machine_of(queues: int) -> Machine:
    """A machine with this many empty queues."""
    machine = Machine("a")
    if not machine.vhosts:
        define_first(machine)
    vhost = machine.vhosts["/"]
    for number in range(queues):
        arguments: Table = {"x-max-length": number} if number % 3 else {}
        create_queue(machine, vhost, f"q{number}", True, False, None, arguments)
    machine.moves.clear()
    machine.declared.clear()
    gc.collect()  # as at a member that has run for long: all of this is old
    return machine


def broker_of(machine: Machine) -> Broker:
    """The parts of a member that lists look at."""
    controller = SimpleNamespace(
        replica=SimpleNamespace(machine=machine), serving=True, halted="",
        me=SimpleNamespace(name="a"),
        primary=SimpleNamespace(
            caught_up_names=frozenset({"a"}), mark=SimpleNamespace(without_data=frozenset())
        ),
    )  # fmt: skip
    found = SimpleNamespace(controller=controller, clients=None, operations=None, cluster="bench",
                            listeners=(), name="a", machine=machine,
                            demand_serving=lambda: None)  # fmt: skip
    found.statistics = Statistics(controller, cast("object", None), lambda: 0)  # type: ignore[arg-type]
    return cast("Broker", found)


def read(port: int, path: str) -> tuple[float, int]:
    """Read a list in another process; return the duration, and its bytes."""
    token = base64.b64encode(b"guest:guest").decode()
    request = Request(
        f"http://127.0.0.1:{port}/api/{path}", headers={"Authorization": f"Basic {token}"}
    )
    began = time.perf_counter()
    with urlopen(request, timeout=600) as reply:
        size = len(reply.read())
    return time.perf_counter() - began, size


class Probe:
    """Takes a turn of the loop again and again; keeps the gaps."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.on = True
        self._own = False  # the gap is this probe's own work

    async def run(self) -> None:
        last = time.thread_time()
        while self.on:
            await asyncio.sleep(0)
            now = time.thread_time()
            if not self._own:
                self.gaps.append(now - last)
            self._own = False
            last = now

    def take(self) -> dict[str, float]:
        """Milliseconds of the gaps by count, and the longest."""
        gaps, self.gaps, self._own = sorted(self.gaps), [], True
        over = sum(1 for gap in gaps if gap > 0.001)
        return {
            "p99_ms": round(gaps[int(len(gaps) * 0.99)] * 1000, 3),
            "p9999_ms": round(gaps[int(len(gaps) * 0.9999)] * 1000, 3),
            "max_ms": round(gaps[-1] * 1000, 3),
            "over_1ms": over,
            "turns": len(gaps),
        }


async def measure(queues: int) -> None:
    server = ManagementServer()
    port = await server.connections.listen("127.0.0.1", 0)

    async def check(_user: str, _password: str, _address: str) -> Login:
        return Login("internal", ("administrator",))

    await server.serve(broker_of(machine_of(queues)), Logins(check, lambda: 0))
    probe = Probe()
    running = asyncio.create_task(probe.run())
    loop = asyncio.get_running_loop()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        await loop.run_in_executor(None, pool.apply, time.sleep, (0.1,))
        probe.take()
        await asyncio.sleep(REST_S)
        print(json.dumps({"way": "rest", **probe.take()}))
        for way, path in WAYS.items():
            seconds, size = await loop.run_in_executor(None, pool.apply, read, (port, path))
            shown = {"way": way, "queues": queues, "s": round(seconds, 2), "bytes": size}
            print(json.dumps({**shown, **probe.take()}), flush=True)
    probe.on = False
    await running
    await server.connections.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=100_000)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(options.queues))


if __name__ == "__main__":
    main()
