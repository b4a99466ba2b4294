"""Run a three-member cluster under load through kills, stops and partitions, then judge it.

    python -m tests.system.support.soak --minutes 30 [--seed N]

Real brokers, joined through a seeded relay (tests/system/support/tcp_relay.py), serve publishers
and a consumer, which write down what they do.  Every few seconds something befalls the brokers, for
a while; then all is healed, dead members are started again, and all three must serve together
within a generous time.  In the end, every message whose publish was confirmed must have been
received, and qpid-cluster-verify must find the members' logs consistent, and in them all that
clients were told. Prints what it does, and the verdict in the last line.

Exit status: 0 all held; 1 something did not (the logs are kept, and the line says where); 2 the
logs could not be judged.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pika.exceptions

from broker.exit_codes import Exit
from tests.system.support.load_clients import Load, take_the_rest
from tests.system.support.tcp_relay import RelayedCluster
from tools.demo.local_cluster import BrokerProcess, ClusterTrouble, command, ended_by_sigterm

MEMBERS = 3
TOGETHER_S = 120.0
"""How long the members may take to serve together again: far more than they need."""
QUIET_S = (0.2, 2.0)
ILL_S = (0.2, 5.0)
SLOW_S = 0.05
CONFUSED = 0.1
"""This share of the frames comes twice, or behind later ones."""
GOOD_REASONS = (Exit.DISK,)
"""What a member may end with by itself here: a slow disk is the machine's affair."""
CLIENTS = "clients"
"""Where the histories of clients are, below the logs of the cluster."""
TWICE = 0.3
"""How often a second evil comes upon the first."""


class Hardship:
    """What can happen to a cluster, drawn from a seed."""

    def __init__(self, cluster: RelayedCluster, seed: int) -> None:
        self._cluster = cluster
        self._relay = cluster.relay
        self._chance = random.Random(seed)
        self._stopped: list[BrokerProcess] = []
        self._ended: set[str] = set()
        """Who was ended by us, by label: who else is dead has ended by itself."""
        self.befell: Counter[str] = Counter()
        self.evils: dict[str, Callable[[int], None]] = {
            "kill": self._kill,
            "kill all": self._kill_all,
            "terminate": self._terminate,
            "stop": self._stop,
            "isolate": self._relay.isolate,
            "one way": self._one_way,
            "sever": self._relay.sever,
            "slow": lambda member: self._relay.slow(member, SLOW_S),
            "confuse": lambda member: self._relay.confuse(member, CONFUSED),
        }

    def round(self) -> None:
        """One or two evils, a while of them, and the way back.  Raises ClusterTrouble."""
        chance = self._chance
        time.sleep(chance.uniform(*QUIET_S))
        for _ in range(1 + (chance.random() < TWICE)):
            name = chance.choice(list(self.evils))
            member = chance.randrange(MEMBERS)
            print(f"  {name} {self._cluster[member]}", flush=True)
            self.befell[name] += 1
            self.evils[name](member)
            time.sleep(chance.uniform(*ILL_S))
        self.heal()

    def heal(self) -> None:
        """Undo all, start who is dead, and wait until all serve together."""
        self._relay.heal()
        for member in self._stopped:
            if member.alive:
                member.signal(signal.SIGCONT)
        self._stopped.clear()
        for member in self._cluster.members:
            if not member.alive and member.label not in self._ended:
                print(f"  {member} ended by itself, exit code {member.exit_code}", flush=True)
                self.befell[f"ended with code {member.exit_code}"] += 1
                if member.exit_code not in GOOD_REASONS:
                    text = f"{member} ended with code {member.exit_code}\n{member.log_tail()}"
                    raise ClusterTrouble(text)
        self._ended.clear()
        self._cluster.start(TOGETHER_S)
        for place in self._cluster.members:
            for aside in place.data_dir.glob("_cluster.bak.*"):
                shutil.rmtree(aside, ignore_errors=True)  # a long run would fill the disk

    def _kill(self, member: int) -> None:
        if self._cluster[member].alive:
            self._cluster[member].kill()
            self._ended.add(self._cluster[member].label)

    def _kill_all(self, member: int) -> None:
        for place in range(MEMBERS):
            self._kill((member + place) % MEMBERS)

    def _terminate(self, member: int) -> None:
        broker = self._cluster[member]
        if not broker.alive or broker in self._stopped:
            return  # who is stopped cannot hear it
        code = broker.terminate(TOGETHER_S)
        self._ended.add(broker.label)
        if code != Exit.OK:
            text = f"{broker} answered SIGTERM with exit code {code}\n{broker.log_tail()}"
            raise ClusterTrouble(text)

    def _stop(self, member: int) -> None:
        broker = self._cluster[member]
        if broker.alive:
            broker.signal(signal.SIGSTOP)
            self._stopped.append(broker)

    def _one_way(self, member: int) -> None:
        self._relay.hold(member, (member + self._chance.choice((1, 2))) % MEMBERS)


def suffer(root: Path, seed: int, seconds: float) -> list[str]:
    """Run rounds for so long; what did not hold, in sentences.  The logs are under `root`."""
    trouble: list[str] = []
    with RelayedCluster(root, MEMBERS, "hardship", seed=seed) as cluster:
        brokers = [one.address for one in cluster.members]
        load = Load(brokers, seed, publishers=2, rate=200.0, histories=root / CLIENTS)
        hardship = Hardship(cluster, seed)
        rounds = 0
        try:
            cluster.start(TOGETHER_S)
            load.start()
            began = time.monotonic()
            try:
                while time.monotonic() - began < seconds:
                    rounds += 1
                    print(f"round {rounds}, {len(load.confirmed)} confirmed", flush=True)
                    hardship.round()
            finally:
                trouble += load.stop()
            trouble += _missing(cluster, load, root / CLIENTS)
            for member in cluster.members:
                member.terminate(TOGETHER_S)
        except (ClusterTrouble, pika.exceptions.AMQPError) as problem:
            trouble.append(f"in round {rounds}: {type(problem).__name__}: {problem}")
        befell = ", ".join(f"{name} {count}" for name, count in sorted(hardship.befell.items()))
        print(
            f"{rounds} rounds: {befell}; {len(load.confirmed)} messages confirmed, "
            f"{len(load.received)} received, {load.reconnects} reconnects, "
            f"{cluster.relay.moved_bytes} bytes between members"
        )
    if not load.confirmed:
        trouble.append("no message was confirmed, so nothing was shown")
    return trouble


def _missing(cluster: RelayedCluster, load: Load, histories: Path) -> list[str]:
    """Take what is left in the queue; what was confirmed and never came."""
    take_the_rest(cluster[0].address, histories, load.received)
    lost = sorted(load.confirmed - load.received)
    if not lost:
        return []
    return [f"{len(lost)} confirmed messages never came, the first is number {lost[0]}"]


def check(root: Path) -> int:
    """Run qpid-cluster-verify over the logs of all members and clients; its exit status."""
    return subprocess.run([*command("qpid-cluster-verify"), str(root)], check=False).returncode


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1, help="draws what happens, and to whom")
    parser.add_argument("--keep", action="store_true", help="keep the logs in any case")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="hardship-"))
    with ended_by_sigterm():
        trouble = suffer(root, arguments.seed, 60.0 * arguments.minutes)
    verdict = check(root)
    if verdict == 0 and not trouble:
        if not arguments.keep:
            shutil.rmtree(root)
        print(f"verdict: held (seed {arguments.seed}, {arguments.minutes:g} minutes)")
        return 0
    for what in trouble:
        print(f"trouble: {what}")
    if verdict:
        print(f"trouble: qpid-cluster-verify ended with {verdict}")
    print(f"verdict: NOT held (seed {arguments.seed}); the logs are in {root}")
    return 1 if trouble or verdict == 1 else 2


if __name__ == "__main__":
    sys.exit(main())
