"""The cost of statistics, and of long lists over HTTP, for a running cluster.

    python -m tests.bench.operating.live statistics    # at 10,000 messages a second
    python -m tests.bench.operating.live token         # while 100,000 queues are listed

`statistics`: two stand-alone brokers, one of which counts and samples nothing, take the same load
in turns; prints the processor time of both per message, and the medians of the rounds.  `token`:
three brokers, 200 messages a second, and a client that lists all queues of one of them again and
again; prints the time of token rotations at that member with and without it.  The lines are JSON.
Compare ratios: the machine may be shared.
"""

from __future__ import annotations

import base64
import json
import signal
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import click

from tests.bench.cluster import cpu_seconds
from tests.bench.load import run_load
from tests.bench.operating.joining import Steady
from tests.bench.support.load_clients import Load
from tests.commits import commit
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.cli.signals import ended_by
from tools.demo.local_cluster import BrokerProcess, ClusterTrouble, LocalCluster

WAIT_S = 600.0
WARMUP_S = 1.0
DEFINED = 2_000
"""The number of queues per request, so that a request ends within its time limit."""


class Measured(BrokerProcess):
    """A broker that records rotations, with or without statistics."""

    keeps_statistics = True

    def program(self) -> list[str]:
        without = [] if self.keeps_statistics else ["--no-statistics"]
        module = "tests.bench.support.measured_broker"
        return [sys.executable, "-m", module, *without, str(self.rotations_path)]

    @property
    def rotations_path(self) -> Path:
        return self.data_dir.with_suffix(".rotations")

    def rotations(self) -> list[float]:
        """Return the milliseconds of those since the last call, the shortest first."""
        self.rotations_path.unlink(missing_ok=True)
        self.signal(signal.SIGUSR2)
        deadline = time.monotonic() + WAIT_S
        while not self.rotations_path.exists() and time.monotonic() < deadline and self.alive:
            time.sleep(0.01)
        found = array("d")
        found.frombytes(self.rotations_path.read_bytes())
        return sorted(seconds * 1000 for seconds in found)


class Uncounted(Measured):
    keeps_statistics = False


@contextmanager
def running(size: int, kind: type[Measured], *, management: bool = False) -> Iterator[LocalCluster]:
    """A cluster of such brokers."""
    with tempfile.TemporaryDirectory(prefix="live-") as folder:
        cluster = LocalCluster(
            Path(folder), size, "live", log_level="warning", management=management
        )
        with cluster:
            made = []
            for one in cluster.members:
                made.append(kind(one.label, Path(folder), one.address.port, one.arguments))
                made[-1].management = one.management
            cluster.members[:] = made
            cluster.start(WAIT_S)
            yield cluster


def cost_us(cluster: LocalCluster, rate: float, seconds: float) -> tuple[float, float]:
    """Run the load; return the broker's processor time per message, and the messages a second."""
    load = Load(
        addresses=tuple(member.address for member in cluster.members), producers=4, consumers=4,
        window=1000, prefetch=1000, body_bytes=256, persistent=False, rate=rate, backlog=0,
        seconds=seconds, warmup_seconds=WARMUP_S, queue="live",
    )  # fmt: skip
    pids = [member.pid for member in cluster.members]
    began = cpu_seconds(pids)
    report = run_load(load)
    spent = cpu_seconds(pids) - began
    reached = float(str(report["messages_per_s"]))
    return 1e6 * spent / ((seconds + WARMUP_S) * reached), reached


def say(**found: object) -> None:
    print(json.dumps(found), flush=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """The cost of operating a running cluster."""


@bench.command("statistics")
@click.option("--rate", default=10_000.0)
@click.option("--rounds", default=9)
@click.option("--seconds", default=5.0)
def of_statistics(rate: float, rounds: int, seconds: float) -> None:
    """Statistics of a broker, on and off, in turns."""
    taken: dict[str, list[float]] = {"on": [], "off": []}
    with ended_by(signal.SIGTERM), running(1, Measured) as on, running(1, Uncounted) as off:
        for number in range(rounds):
            turn = [("on", on), ("off", off)]
            rates = {}
            for name, cluster in turn if number % 2 else turn[::-1]:
                took, rates[name] = cost_us(cluster, rate, seconds)
                taken[name].append(took)
            say(round=number, us={n: round(t[-1], 1) for n, t in taken.items()}, rate=rates)
    ratios = [one / other for one, other in zip(taken["on"], taken["off"], strict=True)]
    say(
        commit=commit(), rate=rate,
        us_a_message={name: round(statistics.median(all_), 1) for name, all_ in taken.items()},
        ratio=round(statistics.median(ratios), 3),
        ratios=[round(ratio, 3) for ratio in sorted(ratios)],
    )  # fmt: skip


def ask(member: BrokerProcess, path: str, body: object = None) -> float:
    """Send a request, and read the whole reply; return the duration."""
    token = base64.b64encode(b"guest:guest").decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://{member.management}/api/{path}", data, headers)
    began = time.monotonic()
    with urlopen(request, timeout=WAIT_S) as got:
        while got.read(1 << 16):
            pass
    return time.monotonic() - began


def define(member: BrokerProcess, numbers: range) -> None:
    """Declare queues."""
    one = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    ask(member, "definitions", {"queues": [{**one, "name": f"queue-{n}"} for n in numbers]})


def shown(rotations: list[float]) -> dict[str, float]:
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {name: round(rotations[int(len(rotations) * q)], 3) for name, q in at.items()}
    return {**found, "max": round(rotations[-1], 2), "rotations": len(rotations)}


@bench.command("token")
@click.option("--queues", default=100_000)
@click.option("--rounds", default=9)
def of_lists(queues: int, rounds: int) -> None:
    """The token's rotations while all queues are listed."""
    try:
        with ended_by(signal.SIGTERM), running(3, Measured, management=True) as cluster:
            first = cluster.members[0]
            assert isinstance(first, Measured)
            for start in range(0, queues, DEFINED):
                define(first, range(start, min(start + DEFINED, queues)))
            steady = Steady(cluster.members[1])
            steady.start()
            added: dict[str, list[float]] = {"p50": [], "p99": [], "p999": []}
            for number in range(rounds):
                first.rotations()
                took = ask(first, "queues?columns=name,messages")
                listed = shown(first.rotations())
                time.sleep(took)
                rest = shown(first.rotations())
                for name, values in added.items():
                    values.append(listed[name] - rest[name])
                say(round=number, s=round(took, 2), listed_ms=listed, rest_ms=rest)
            steady.end()
    except ClusterTrouble as trouble:
        raise ToolError(str(trouble)) from None
    middle = {name: round(statistics.median(values), 3) for name, values in added.items()}
    say(commit=commit(), queues=queues, added_ms=middle)


if __name__ == "__main__":
    run_command(bench)
