"""How long no client is served when the serving broker is lost, in each mode.

    python -m tests.bench.operating.takeovers                  # every mode, kill -9 and SIGSTOP
    python -m tests.bench.operating.takeovers --only hac,files --runs 20
    python -m tests.bench.operating.takeovers --load           # the same with all cores burning

At every broker there is a client that goes to no other, publishes every few milliseconds and waits
for its confirms; where it is refused it retries.  A figure is the longest time after the signal
without a confirm to any of them.  That is the view of a client with the list of all brokers, but
for its own patience with a silent one.  `active-active` has one client, at another member than the
lost one.  Each turn has its own brokers: one is killed and returns, and then one is stopped, so
that no ring is more patient because of an earlier fault.  PostgreSQL is left out where it is not
installed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.bench.failover import burning, row
from tests.system.pairs.pair_cluster import pair
from tests.system.pairs.test_faults_of_each import serving
from tests.system.sharing.test_shared_store import Sharing
from tests.system.support.clusters import wait_until
from tests.system.support.postgresql import programs, running
from tools.client.amqp_client import AmqpConnection, BrokerRefused, ConnectionLost, Login
from tools.demo.local_cluster import BrokerProcess, LocalCluster

PACE_S, RETRY_S = 0.004, 0.02
LOGIN = Login(timeout_seconds=3.0)
STEADY = 100
"""This many confirms show that messages flow."""
RESTS_S = (0.5, 1.0)
WAIT_S = 90.0
FAULTS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
Back = Callable[[BrokerProcess], None]
Mode = Callable[[Path], "contextlib.AbstractContextManager[tuple[Sequence[BrokerProcess], Back]]"]


class Client(threading.Thread):
    """Publishes at one broker, and records the time of each confirm."""

    def __init__(self, broker: BrokerProcess, told: list[tuple[float, BrokerProcess]]) -> None:
        super().__init__(daemon=True)
        self._broker, self._told = broker, told
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(RETRY_S):
            with contextlib.suppress(ConnectionLost, BrokerRefused, OSError):
                self._publish()

    def _publish(self) -> None:
        connection = AmqpConnection(self._broker.address, LOGIN)
        try:
            connection.declare_queue("takeovers")
            connection.select_confirms()
            while not self.ended.is_set():
                connection.publish("", "takeovers", b"\x10\x00\x02", b"x" * 100)
                connection.pump(PACE_S)
                while not connection.acks and not self.ended.is_set():
                    connection.pump(PACE_S)
                connection.acks.clear()
                self._told.append((time.monotonic(), self._broker))
                time.sleep(PACE_S)
        finally:
            connection.drop()


def silence(told: Sequence[tuple[float, BrokerProcess]], since: float) -> float:
    """The longest time without a confirm to any client, among those that ended after `since`."""
    times = sorted(at for at, _ in told)
    gaps = [now - before for before, now in itertools.pairwise(times) if now > since]
    return max(gaps)


def flows(told: Sequence[object]) -> None:
    """Wait until more messages are confirmed."""
    goal = len(told) + STEADY
    wait_until(lambda: len(told) >= goal, WAIT_S, f"{STEADY} confirms more")


def lost(brokers: Sequence[BrokerProcess], fault: str, *, one: bool) -> tuple[float, BrokerProcess]:
    """Lose one broker; return how long no client was served, and the broker.

    `one`: a client at the first broker, and another one is lost; otherwise the last to serve is.
    """
    told: list[tuple[float, BrokerProcess]] = []
    clients = [Client(broker, told) for broker in brokers][: 1 if one else None]
    for client in clients:
        client.start()
    try:
        flows(told)
        time.sleep(random.uniform(*RESTS_S))  # in step with no timer
        victim = brokers[-1] if one else told[-1][1]
        since, seen = time.monotonic(), len(told)
        victim.signal(FAULTS[fault])
        wait_until(
            lambda: sum(who is not victim for _, who in told[seen:]) >= STEADY,
            WAIT_S, "another one to serve",
        )  # fmt: skip
        return silence(told, since), victim
    finally:
        for client in clients:
            client.ended.set()


@contextlib.contextmanager
def cluster(root: Path, **extra: str) -> Iterator[tuple[Sequence[BrokerProcess], Back]]:
    """Three members."""
    options = {name.replace("_", "-"): text for name, text in extra.items()}
    with LocalCluster(root, 3, "takeovers", extra=options) as made:
        made.start()
        yield made.members, lambda victim: comes_back(victim, made.wait_active)


@contextlib.contextmanager
def of_two(root: Path, mode: str) -> Iterator[tuple[Sequence[BrokerProcess], Back]]:
    """A pair."""
    with pair(root, mode) as made:
        made.start()
        serving(made)
        yield made.members, lambda victim: comes_back(victim, lambda: serving(made))


@contextlib.contextmanager
def shared(root: Path, lock: str) -> Iterator[tuple[Sequence[BrokerProcess], Back]]:
    """Two brokers over one store."""
    with contextlib.ExitStack() as stack:
        url = f"sqlite://{root}/lease.db"
        if lock == "postgresql" and (found := programs()) is not None:
            url = stack.enter_context(running(found)).url()
        sharing = Sharing(root, 2, *(() if lock == "files" else ("--shared-store-lock", url)))
        stack.callback(sharing.close)
        sharing.start()

        def back(victim: BrokerProcess) -> None:
            victim.wait()
            begun = victim.log_path.stat().st_size
            victim.start()
            wait_until(
                lambda: b" waits: " in victim.log_path.read_bytes()[begun:], WAIT_S, "it to wait"
            )

        yield sharing.brokers, back


def comes_back(victim: BrokerProcess, whole: Callable[[], object]) -> None:
    """Restart it, and wait for all."""
    victim.wait()
    victim.start()
    whole()


MODES: dict[str, Mode] = {
    "active-active": cluster,
    "active-passive": lambda root: cluster(root, ha_cluster="yes"),
    "waiting for backups": lambda root: cluster(root, ha_cluster="yes", ha_backup_timeout="10"),
    "hac": lambda root: of_two(root, "hac"),
    "master-slave": lambda root: of_two(root, "master-slave"),
    "files": lambda root: shared(root, "files"),
    "sqlite": lambda root: shared(root, "sqlite"),
    "postgresql": lambda root: shared(root, "postgresql"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="runs of each fault in each mode")
    parser.add_argument("--only", default="", help=f"some of {','.join(MODES)}")
    parser.add_argument("--load", action="store_true", help="burn every core meanwhile")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(MODES)
    if unknown := set(chosen) - MODES.keys():
        parser.error(f"--only: there is no mode {', '.join(sorted(unknown))}")
    times: defaultdict[str, list[float]] = defaultdict(list)
    with burning((os.cpu_count() or 1) if options.load else 0):
        for name in chosen:
            if name == "postgresql" and programs() is None:
                print("postgresql: not installed", file=sys.stderr)
                continue
            for _ in range(options.runs):
                with (
                    tempfile.TemporaryDirectory(prefix="qpid-takeovers-") as root,
                    MODES[name](Path(root)) as (brokers, back),
                ):
                    for fault in FAULTS:
                        found, victim = lost(brokers, fault, one=name == "active-active")
                        times[f"{name}: {fault}"].append(found)
                        if fault == "kill -9":
                            back(victim)
    print(f"milliseconds without a confirm, load {os.getloadavg()[0]:.1f}")
    print(f"{'':45}{'runs':>5}{'p50':>9}{'p95':>9}{'max':>9}")
    for name, seconds in times.items():
        print(row(name, seconds))


if __name__ == "__main__":
    main()
