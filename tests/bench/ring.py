"""The speed of the ring: real processes on loopback, over pyzmq, with the order checked.

    python -m tests.bench.ring --members 3 --size 64 --seconds 5  # flood
    python -m tests.bench.ring --compare size ahead               # 64 B, 1 KiB, 8 KiB; on and off
    python -m tests.bench.ring --compare members                  # 3, 5 and 9 members
    python -m tests.bench.ring --size 8192 --compare curve        # without and with encryption
    python -m tests.bench.ring --idle                             # CPU of a held token
    python -m tests.bench.latency                                 # latency of a message

Each member submits as fast as the ring takes it (or at a given rate) and counts its deliveries.  A
rolling hash over the delivered frames is recorded at fixed places of the order; members must agree
at all places that they both recorded, else the run fails.  On a machine with fewer cores than
members, judge by CPU time per message rather than by the rate.

`--compare` runs all combinations in turn, several times over, and shows the medians: on a shared
machine only the ratios are meaningful.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from tests.bench.support.ring_member import Result, write_keys
from vsync.totem.config import RingConfig

DEFAULTS = RingConfig()
AXES: dict[str, tuple[int | str, ...]] = {
    "size": (64, 1024, 8192),
    "ahead": (DEFAULTS.accelerated_frames, 0),
    "members": (3, 5, 9),
    "guarantee": ("agreed", "safe"),
    "curve": (0, 1),
    "frame": (8192, 16384, 32768, 65536),
}


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for one in sockets:
        one.close()
    return [f"127.0.0.1:{port}" for port in ports]


def disagreements(results: list[Result]) -> list[str]:
    """The places of the order where two members recorded different hashes."""
    first = results[0]["checks"]
    return [
        f"{place}: {first[place]:08x} at {results[0]['name']}, {value:08x} at {other['name']}"
        for other in results[1:]
        for place, value in other["checks"].items()
        if first.get(place, value) != value
    ]


@contextlib.contextmanager
def keys(options: argparse.Namespace, names: list[str]) -> Iterator[str]:
    """A directory with the members' keys, or an empty name for unencrypted links."""
    if not options.curve:
        yield ""
        return
    with tempfile.TemporaryDirectory() as directory:
        write_keys(Path(directory), names)
        yield directory


def measure(options: argparse.Namespace) -> list[Result]:
    """One run.  Raises SystemExit if a member fails, or if two disagree about the order."""
    names = [f"m{n}" for n in range(options.members)]
    addresses = ",".join(free_addresses(options.members))
    results: list[Result] = []
    with keys(options, names) as directory:
        children = []
        for name in names:
            told = {**vars(options), "member": name, "addresses": addresses, "keys": directory}
            command = [sys.executable, "-m", "tests.bench.support.ring_member", json.dumps(told)]
            children.append(subprocess.Popen(command, stdout=subprocess.PIPE))
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
    if odd := disagreements(results):
        raise SystemExit("members disagree:\n" + "\n".join(odd[:10]))
    return results


def rate(results: list[Result]) -> float:
    """Messages a second at the slowest member."""
    return min(r["delivered"] / r["seconds"] for r in results)


def cost(results: list[Result]) -> float:
    """CPU microseconds of one member per message, on average."""
    return statistics.mean(r["cpu_us_per_message"] for r in results)


def about(options: argparse.Namespace) -> str:
    mode = "idle" if options.idle else f"rate {options.rate:.0f}" if options.rate else "flood"
    wire = "CURVE" if options.curve else "in clear"
    ahead = f"{options.ahead} frames behind the token" if options.ahead else "plain ring"
    load = os.getloadavg()[0]
    return (
        f"{options.members} members, {options.size} B, {options.guarantee}, {mode}, {wire}, {ahead}"
        f"\n{options.loop}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {load:.1f}"
    )


def table(options: argparse.Namespace, results: list[Result]) -> str:
    lines = [
        about(options),
        f"{'member':8}{'msg/s':>10}{'MB/s':>8}{'frames/s':>10}{'msg/frame':>10}{'cpu us/msg':>12}"
        f"{'cpu %':>7}{'turn us':>9}{'p50 us':>9}{'p99 us':>9}{'max us':>9}{'lost':>6}"
        f"{'resent':>7}{'views':>6}",
    ]
    for r in results:
        counters, latency = r["counters"], r["latency_us"]
        each = r["delivered"] / r["seconds"]
        lines.append(
            f"{r['name']:8}{each:>10.0f}{each * options.size / 1e6:>8.1f}"
            f"{r['frames'] / r['seconds']:>10.0f}{r['delivered'] / max(1, r['frames']):>10.1f}"
            f"{r['cpu_us_per_message']:>12.2f}{r['cpu_percent']:>7.1f}{r['rotation_us']:>9.0f}"
            f"{latency.get('p50', 0):>9.0f}{latency.get('p99', 0):>9.0f}"
            f"{latency.get('max', 0):>9.0f}{counters.get('sends_lost', 0):>6}"
            f"{counters.get('retransmitted', 0):>7}{r['views']:>6}"
        )
    return "\n".join(lines)


def compare(options: argparse.Namespace) -> None:
    """Run all combinations of the axes in turn; print medians, and ratios to the first."""
    axes = options.compare
    combinations = list(itertools.product(*(AXES[axis] for axis in axes)))
    runs: dict[tuple[int | str, ...], list[list[Result]]] = {c: [] for c in combinations}
    for _ in range(options.rounds):
        for combination in combinations:
            chosen = argparse.Namespace(**vars(options))
            for axis, value in zip(axes, combination, strict=True):
                setattr(chosen, axis, value)
            runs[combination].append(measure(chosen))
    head = "".join(f"{axis:>10}" for axis in axes)
    sys.stdout.write(
        f"{about(options)}\nmedians of {options.rounds}; all members agree on the order\n"
        f"{head}{'msg/s':>12}{'MB/s':>8}{'cpu us/msg':>12}{'turn us':>9}{'of first':>9}\n"
    )
    first = 0.0
    for combination, found in runs.items():
        size = combination[axes.index("size")] if "size" in axes else options.size
        each = statistics.median(map(rate, found))
        first = first or each
        turn = statistics.median(r["rotation_us"] for results in found for r in results)
        sys.stdout.write(
            "".join(f"{value:>10}" for value in combination)
            + f"{each:>12.0f}{each * int(size) / 1e6:>8.1f}"
            f"{statistics.median(map(cost, found)):>12.2f}{turn:>9.0f}{each / first:>9.2f}\n"
        )


def parser(title: str) -> argparse.ArgumentParser:
    """The options of a run, for every bench of the ring."""
    made = argparse.ArgumentParser(description=title)
    made.add_argument("--members", type=int, default=3)
    made.add_argument("--size", type=int, default=64, help="bytes per payload, at least 8")
    made.add_argument("--seconds", type=float, default=5.0)
    made.add_argument("--guarantee", choices=["agreed", "safe"], default="agreed")
    made.add_argument("--rate", type=float, default=0, help="submissions per second and member")
    made.add_argument("--idle", action="store_true", help="submit nothing, show the CPU used")
    made.add_argument("--curve", action="store_true", help="encrypted connections")
    made.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    made.add_argument("--frame", type=int, default=DEFAULTS.frame_bytes_max)
    made.add_argument("--window", type=int, default=DEFAULTS.window_frames)
    made.add_argument("--personal", type=int, default=DEFAULTS.personal_frames)
    made.add_argument("--ahead", type=int, default=DEFAULTS.accelerated_frames)
    made.add_argument("--lead", type=int, default=DEFAULTS.lead_frames)
    made.add_argument("--hold-after", type=int, default=DEFAULTS.idle_visits_before_hold)
    made.add_argument("--json", action="store_true")
    made.add_argument("--counters", action="store_true", help="print the counters as well")
    made.add_argument("--trace", default="", help="trace the members into FILE.member")
    made.add_argument("--profile", default="", help="write cProfile data to FILE.member")
    made.add_argument("--rounds", type=int, default=3, help="rounds of a comparison")
    return made


def main() -> None:
    made = parser(__doc__.partition("\n")[0])
    made.add_argument("--compare", nargs="+", choices=AXES, metavar="AXIS", help=", ".join(AXES))
    options = made.parse_args()
    if options.compare:
        compare(options)
        return
    results = measure(options)
    if options.json:
        sys.stdout.write(json.dumps({"options": vars(options), "members": results}) + "\n")
        return
    sys.stdout.write(table(options, results) + "\n")
    if options.counters:
        for r in results:
            sys.stdout.write(f"{r['name']} {r['counters']}\n")
    common = len(set.intersection(*(set(r["checks"]) for r in results)))
    sys.stdout.write(f"order: {common} places compared, none disagrees\n")


if __name__ == "__main__":
    main()
