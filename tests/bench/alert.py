"""How soon `qpid-cluster-verify --follow` reports a fault in live logs, and the cost of following.

    python -m tests.bench.alert [--messages-per-second 1000,100] [--lies 5] [--idle-seconds 20]

Three members' logs are written with the members' own log writer: publishes and acknowledgements,
MESSAGES of each per batch, at a steady rate; the follower is a separate process with `--json`.  At
random moments a fault is written into one member's log, once:

    confirm  a publish is confirmed that is above the durable mark it names (G9)
    chain    the chain after a batch is another one (G14)
    twice    a message is delivered once more than at the others (G14)

For each rate, as JSON: seconds from when the fault's bytes are in the file to when its line could
be read, p50 and max, by kind; `lag_s`, the age of the newest verified position when its line came;
`lag_positions` and `unread_bytes`, the figures in the line itself; `start_s`, from the start of the
process to its first look; CPU of the follower, all its processes, as a share of one core: with the
traffic, and with none.  Exit status 1 if a fault is not reported, or anything else is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from threading import Thread
from typing import IO, Any, NamedTuple

from tests.bench.support.livelogs import FAULTS, Members
from tests.bench.support.verifylogs import COMMANDS, MEMBERS, MESSAGES
from tools.demo.local_cluster import ROOT
from tools.verify.live.progress import KEPT

TURN_S = 0.02  # between writes, as of a member's loop under light load
PAUSE_S = 3.0  # between faults, at most
REPORTED_S = 120.0  # a fault not reported by then is missed
TICKS = os.sysconf("SC_CLK_TCK")
SESSION = 3  # among the fields of /proc/PID/stat after the name
CPU = slice(11, 13)  # user and system time


class Fault(NamedTuple):
    """A fault: the finding that must be reported, and when its bytes were in the file."""

    kind: str
    promise: str
    member: str
    position: int
    at: float

    def matches(self, document: dict[str, Any]) -> bool:
        """Whether a finding is of this fault: the chain of the next batch depends on it, too."""
        who = self.promise, self.member
        near = range(self.position, self.position + 2 * len(COMMANDS))
        return (document["property"], document["member"]) == who and document["position"] in near


class Follower:
    """The command, in its own session so that its processes can be told apart from others."""

    def __init__(self, directory: Path) -> None:
        words = [sys.executable, "-m", "tools.commands.qpid_cluster_verify", "--follow", "--json"]
        self._process = subprocess.Popen(
            [*words, str(directory)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.lines: SimpleQueue[tuple[float, dict[str, Any]]] = SimpleQueue()
        self._used: dict[str, float] = {}  # by process
        self._reader = Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self.lines.put((time.monotonic(), json.loads(line)))

    def cpu(self) -> float:
        """Return the seconds of CPU of all its processes so far, of ended ones when last seen."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended
            if int(fields[SESSION]) == self._process.pid:
                self._used[stat.parent.name] = sum(map(int, fields[CPU])) / TICKS
        return sum(self._used.values())

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()


class Run:
    """One follower of three members at one rate."""

    def __init__(self, directory: Path, messages_per_second: float, chance: random.Random) -> None:
        self._chance = chance
        self._per_second = messages_per_second / MESSAGES  # batches
        self._members = Members(directory)
        self._due, self._turned = 0.0, time.monotonic()
        self._faults: list[Fault] = []
        self._reported_s: dict[Fault, float] = {}
        self._ages: list[float] = []
        self._shown: list[int] = []
        self._unread: list[int] = []
        self._others: list[dict[str, Any]] = []
        self._follower = Follower(directory)

    def result(self, lies: int, idle_seconds: float) -> dict[str, object]:
        """Run the whole measurement."""
        try:
            began = time.monotonic()
            while not self._ages:
                self._turn(self._per_second)
            start = time.monotonic() - began
            self._pause(10.0)  # Java has run each path once
            self._ages.clear()
            self._shown.clear()
            self._unread.clear()
            began, cpu = time.monotonic(), self._follower.cpu()
            for kind in self._chance.sample(FAULTS * lies, len(FAULTS) * lies):
                # Positions near a fault are compared again, and not reported again.
                near = KEPT / max(self._per_second * len(COMMANDS), 1)
                self._pause(min(near, 10.0) + self._chance.uniform(0, PAUSE_S))
                self._inject(kind)
            busy = (self._follower.cpu() - cpu) / (time.monotonic() - began)
            ages, shown, unread = self._ages.copy(), self._shown.copy(), self._unread.copy()
            self._pause(5.0, 0.0)
            began, cpu = time.monotonic(), self._follower.cpu()
            self._pause(idle_seconds, 0.0)
            idle = (self._follower.cpu() - cpu) / (time.monotonic() - began)
        finally:
            self._follower.stop()
        return {
            "messages_per_second": self._per_second * MESSAGES,
            "told_s": {
                kind: _spread([s for fault, s in self._reported_s.items() if fault.kind == kind])
                for kind in FAULTS
            },
            "lies": len(self._faults),
            "told": len(self._reported_s),
            "told_besides": self._others,
            "lag_s": _spread(ages),
            "lag_positions": _spread([float(positions) for positions in shown]),
            "unread_bytes": _spread([float(size) for size in unread]),
            "looks": len(ages),
            "start_s": round(start, 2),
            "cpu": round(busy, 3),
            "cpu_idle": round(idle, 3),
        }

    def _pause(self, seconds: float, per_second: float | None = None) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._turn(self._per_second if per_second is None else per_second)

    def _inject(self, kind: str) -> None:
        """Write a fault, and continue until it is reported."""
        document = self._members.step(kind, self._chance.choice(MEMBERS))
        fault = Fault(kind, *document, self._members.flush())
        self._faults.append(fault)
        while fault not in self._reported_s and time.monotonic() < fault.at + REPORTED_S:
            self._turn(self._per_second)

    def _turn(self, per_second: float) -> None:
        """Write due records, and read the reports."""
        now = time.monotonic()
        self._due += (now - self._turned) * per_second
        self._turned = now
        while self._due >= 1:
            self._members.step()
            self._due -= 1
        self._members.flush()
        wait = TURN_S
        while True:
            try:
                at, document = self._follower.lines.get(timeout=wait)
            except Empty:
                return
            wait = 0.0
            self._take(at, document)

    def _take(self, at: float, document: dict[str, Any]) -> None:
        if document.get("event") == "lag" and document["verified"] >= 0:
            self._follower.cpu()  # of processes that may end before it is asked for
            self._ages.append(self._members.age(document["verified"], at))
            self._shown.append(document["unverified"])
            self._unread.append(document["unread_bytes"])
        elif document.get("event") == "finding":
            lies = [fault for fault in self._faults if fault.matches(document)]
            for fault in lies:
                self._reported_s.setdefault(fault, at - fault.at)
            if not lies:
                self._others.append(document)
        elif "error" in document:
            raise SystemExit(f"the follower failed: {document['error']}")


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"p50": round(median(values), 2), "max": round(max(values), 2), "n": len(values)}


def main() -> int:
    """Run the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages-per-second", default="1000", help="rates, separated by commas")
    parser.add_argument("--lies", type=int, default=5, help="faults of each kind, at each rate")
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the faults; 0 = from the clock"
    )
    options = parser.parse_args()
    seed = options.seed or time.time_ns() % 1_000_000
    chance = random.Random(seed)
    results = []
    for rate in map(float, options.messages_per_second.split(",")):
        with tempfile.TemporaryDirectory(prefix="bench-alert-") as scratch:
            results.append(
                Run(Path(scratch), rate, chance).result(options.lies, options.idle_seconds)
            )
    figures = {"python": platform.python_version(), "load": os.getloadavg()[0], "seed": seed}
    print(json.dumps(figures | {"rates": results}, indent=1))
    return (
        0 if all(one["told"] == one["lies"] and not one["told_besides"] for one in results) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
