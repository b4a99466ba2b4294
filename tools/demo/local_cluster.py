"""Real broker processes on this machine: started, watched, killed, and always cleaned up.

The demo, the system tests and the benchmarks all run clusters this way. Every broker is the real
command in its own process, on free loopback ports, with a data directory and a log file under one
root. The creator of a `LocalCluster` closes it.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from broker.options.addresses import Address
from tools.client.management import ClusterStatus, ManagementError, NotRunning, Target

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the range of outgoing connections, one of which could take the port of a killed broker."""
POLL_SECONDS = 0.05
LOG_TAIL_LINES = 15
ROOT = Path(__file__).resolve().parents[2]


SETPRIV = shutil.which("setpriv")
ENDS_WITH_US = [SETPRIV, "--pdeathsig", "KILL", "--"] if SETPRIV else []
"""A wrapper that kills a program as soon as the thread that started it is gone, however this
process ends. On a system without it brokers outlive a killed benchmark."""


class ClusterTrouble(Exception):
    """A broker did not do in time what was waited for; the text names it, and shows its log."""


def command(name: str) -> list[str]:
    """How to start one of our commands: the installed script, or its module in a source tree."""
    script = Path(sys.executable).parent / name
    if script.exists():
        return [str(script)]
    return [sys.executable, "-m", f"tools.commands.{name.replace('-', '_')}"]


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens now. All are held until all are found, so none comes twice."""
    held: list[socket.socket] = []
    try:
        for port in random.sample(PORTS, len(PORTS)):
            candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind((HOST, port))
            except OSError:
                candidate.close()
                continue
            held.append(candidate)
            if len(held) == count:
                return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
    raise ClusterTrouble(f"no {count} free ports from {PORTS.start} to {PORTS.stop} on {HOST}")


class BrokerProcess:
    """One broker: its addresses and files, which outlive its process, and its process, if any."""

    def __init__(self, label: str, root: Path, port: int, arguments: Sequence[str]) -> None:
        self.label = label
        self.address = Address(HOST, port)
        self.data_dir = root / label
        self.log_path = root / f"{label}.log"
        self.arguments = tuple(arguments)
        self.management: Address | None = None
        """The address of its management API, if it has one."""
        self._process: subprocess.Popen[bytes] | None = None

    def __str__(self) -> str:
        return self.label

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How its last process ended; None while it runs or before the first start."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        """The number of its running process."""
        assert self._process is not None
        return self._process.pid

    def program(self) -> list[str]:
        """Return the program that gets its arguments; tests start brokers in other surroundings."""
        return command("qpidd")

    def start(self) -> None:
        """Start the process and return at once; use the cluster's waits to see it serve. It ends
        with the calling thread, so that thread must not end before the cluster does."""
        assert not self.alive, f"{self.label} already runs"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*ENDS_WITH_US, *self.program(), *self.arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Do what a power cut does to a process: SIGKILL, no warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, for example SIGSTOP or SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def terminate(self, timeout_seconds: float = 60.0) -> int:
        """Ask it to stop cleanly, wait, and return its exit code.  It may write a checkpoint first,
        for half of that time."""
        assert self._process is not None
        self._process.terminate()
        return self.wait(timeout_seconds)

    def wait(self, timeout_seconds: float = 30.0) -> int:
        """Wait for the process to end by itself."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise ClusterTrouble(
                f"{self.label} did not stop in {timeout_seconds:g} s\n{self.log_tail()}"
            ) from None

    def status(self, timeout_seconds: float = 5.0) -> ClusterStatus:
        """Its own view of the cluster; ManagementError if it does not answer."""
        return Target(self.address, timeout_seconds=timeout_seconds).status()

    def log_tail(self, lines_max: int = LOG_TAIL_LINES) -> str:
        """The end of its log, indented, for messages about trouble."""
        try:
            lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return f"  ({self.label} has no log)"
        return "\n".join(f"  {self.label}| {line}" for line in lines[-lines_max:])


class LocalCluster:
    """Some members of one cluster, configured to find each other, not started yet."""

    def __init__(
        self,
        root: Path,
        size: int = 3,
        name: str = "local",
        *,
        voters: int | None = None,
        stores: bool = True,
        beacons: bool = False,
        log_level: str = "info",
        arbitrator: bool = False,
        management: bool = False,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        ports = free_ports((2 + management) * size + arbitrator)
        apis = [str(ports.pop()) for _ in range(size)] if management else ["off"] * size
        rings = [f"{HOST}:{port}" for port in ports[size:]]
        self.name = name
        self.members: list[BrokerProcess] = []
        self.arbitrator: BrokerProcess | None = None
        """A process that only votes; it has no client port, so it cannot be asked."""
        for index, port in enumerate(ports[:size]):
            label = f"broker-{index + 1}"
            options = {
                "cluster-name": name,
                "cluster-size": str(voters or size),
                "cluster-bind": rings[index],
                "cluster-nodes": ",".join(rings),
                "port": str(port),
                "interface": HOST,
                "management-port": apis[index],
                "log-level": log_level,
            }
            if arbitrator:
                options["cluster-arbitrator"] = rings[-1]
            options.update(extra or {})
            if beacons:
                del options["cluster-nodes"]
            options |= {"data-dir": str(root / label)} if stores else {"no-data-dir": "yes"}
            arguments = [part for key, value in options.items() for part in (f"--{key}", value)]
            self.members.append(BrokerProcess(label, root, port, arguments))
            if management:
                self.members[-1].management = Address(HOST, int(apis[index]))
        if arbitrator:
            arguments = [
                *self.members[0].arguments, "--cluster-bind", rings[-1],
                "--data-dir", str(root / "arbitrator"),
            ]  # fmt: skip
            self.arbitrator = BrokerProcess("arbitrator", root, 0, arguments)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getitem__(self, index: int) -> BrokerProcess:
        """The member by its place, from 0."""
        return self.members[index]

    def brokers(self, first: int = 0) -> str:
        """All client addresses in the form of the tools, beginning with the member at `first`."""
        turned = self.members[first:] + self.members[:first]
        return ",".join(str(member.address) for member in turned)

    def start(self, timeout_seconds: float = 60.0) -> None:
        """Start every member that is not running, and wait until all serve together."""
        self.launch()
        self.wait_active(timeout_seconds=timeout_seconds)

    def launch(self) -> None:
        """Start every member that is not running, without waiting."""
        if self.arbitrator is not None and not self.arbitrator.alive:
            self.arbitrator.start()
        for member in self.members:
            if not member.alive:
                member.start()

    def late(
        self, members: Sequence[BrokerProcess] | None = None
    ) -> tuple[BrokerProcess, str] | None:
        """The first of `members` (default: all) that does not serve with exactly these.

        Returns it and its answer. Raises ClusterTrouble when the process of one has ended.
        """
        expected = self.members if members is None else members
        return _first_that_does_not_serve(expected, len(expected))

    def wait_active(
        self, members: Sequence[BrokerProcess] | None = None, timeout_seconds: float = 60.0
    ) -> None:
        """Wait until each of `members` (default: all running ones) sees exactly these, all ACTIVE.

        All of them must say so in one round of questions, and be in one epoch. Asking one after the
        other would not do: the first one asked may still report the view before.
        """
        expected = [one for one in self.members if one.alive] if members is None else list(members)
        deadline = time.monotonic() + timeout_seconds
        count = len(expected) + (self.arbitrator is not None and self.arbitrator.alive)
        while found := _first_that_does_not_serve(expected, count):
            late, seen = found
            if time.monotonic() > deadline:
                raise ClusterTrouble(
                    f"{late} does not serve with {count} members after "
                    f"{timeout_seconds:g} s: {seen}\n{late.log_tail()}"
                )
            time.sleep(POLL_SECONDS)

    def wait_stopped(self, timeout_seconds: float = 60.0) -> list[int]:
        """Wait until every member has ended by itself; return their exit codes."""
        deadline = time.monotonic() + timeout_seconds
        return [one.wait(max(0.1, deadline - time.monotonic())) for one in self.members]

    def close(self) -> None:
        """Kill every process still running. Safe to call twice."""
        for member in (*self.members, self.arbitrator):
            if member is not None and member.alive:
                member.kill()


def _first_that_does_not_serve(
    expected: Sequence[BrokerProcess], count: int
) -> tuple[BrokerProcess, str] | None:
    """Ask each once; return the first that is not in one view with all others, and its answer."""
    for one in expected:
        if not one.alive:
            raise ClusterTrouble(f"{one} ended with code {one.exit_code}\n{one.log_tail()}")
    first: object = None
    for member in expected:
        try:
            status = member.status()
        except NotRunning:
            return member, "it does not answer yet"
        except ManagementError as problem:
            return member, str(problem)
        active = sum(one.state == "ACTIVE" for one in status.members)
        if status.status != "ACTIVE" or not active == status.size == count:
            return member, f"it says {status.status}, {active} active{_how_far(status)}"
        epoch = status.raw.get("epoch")
        if member is expected[0]:
            first = epoch
        elif epoch != first:
            return member, f"it is in epoch {epoch}, and {expected[0]} in {first}"
    return None


def _how_far(status: ClusterStatus) -> str:
    """How much of the state a joining member has."""
    own = next((one for one in status.members if one.local), None)
    if own is None or status.status == "ACTIVE":
        return ""
    share = "" if own.received_percent is None else f", {own.received_percent:g} % received"
    return f", at position {own.position}{share}"
