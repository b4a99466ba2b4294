"""Run clusters under load through kills, partitions and sick disks, then judge them.

    python -m tests.system.support.soak --minutes 30 [--seed N]

Half of the time three members with data, then two and an arbitrator; with `--only` one arrangement,
of which there are larger ones.  Real brokers, joined through a seeded relay
(tests/system/support/tcp_relay.py), serve publishers and a consumer, which record histories.
Every few seconds a fault is injected for a while; then all is healed, dead members are
restarted, and all must serve together within a generous time.  In the end every confirmed message
must have been received, and qpid-cluster-verify must find the members' logs consistent with each
other and with the clients' histories.  Prints each step, and the verdict in the last line.

Disks are filled, frozen, broken and mended where this process may mount file systems; else it says
that it may not.

Exit status: 0 all held; 1 something did not (the logs are kept, and the last line says where); 2
the logs could not be judged.
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
from collections.abc import Callable, Sequence
from pathlib import Path

from broker.durability.data_directory import LOG_DIR
from broker.exit_codes import Exit
from tests.system.support import small_disks
from tests.system.support.burners import burning
from tests.system.support.load_clients import TROUBLE, Load, take_the_rest
from tests.system.support.small_disks import SmallDisk
from tests.system.support.tcp_relay import RelayedCluster
from tools.cli.signals import ended_by
from tools.demo.local_cluster import BrokerProcess, ClusterTrouble, LocalCluster, command

MEMBERS = {
    "three": 3, "two and an arbitrator": 2, "five": 5, "four and an arbitrator": 4, "seven": 7,
}  # fmt: skip
"""Members with data, by arrangement."""
USUAL = ("three", "two and an arbitrator")
"""The arrangements that one run takes in turns."""
DISK_MIB = 512
TOGETHER_S = 120.0
"""How long the members may take to serve together again: far longer than they need."""
QUIET_S = (0.2, 2.0)
ILL_S = (0.2, 5.0)
SLOW_S = 0.05
CONFUSED = 0.1
"""The share of frames that are repeated, or overtaken by later ones."""
GOOD_REASONS = (Exit.LATE_DISK, Exit.FULL, Exit.IO_ERROR)
"""Exit codes with which a member may end by itself here: for a slow, full or broken disk."""
CLIENTS = "clients"
"""The directory of clients' histories, below the logs of the cluster."""
BURNERS = 4
STORM = 4
"""How often a member is killed and restarted in a storm of rejoins."""
TWICE = 0.3
"""The share of rounds with a second fault during the first."""


class Hardship:
    """The faults of a cluster, drawn from a seed."""

    def __init__(self, cluster: RelayedCluster, disks: Sequence[SmallDisk], seed: int) -> None:
        self._cluster, self._disks = cluster, disks
        self._size = len(cluster.members)
        self._relay = cluster.relay
        self._chance = random.Random(seed)
        self._stopped: list[BrokerProcess] = []
        self._broken: set[int] = set()  # members whose disks became read-only
        self._ended: set[str] = set()
        """The members that we ended, by label: any other dead member has ended by itself."""
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
            "starve": lambda _: self._starve(),
            "rejoin": self._rejoin,
        }
        if disks:
            everywhere = range(self._size)
            self.evils["freeze"] = lambda member: self._to_disks(SmallDisk.freeze, [member])
            self.evils["freeze all"] = lambda _: self._to_disks(SmallDisk.freeze, everywhere)
            self.evils["fill"] = lambda member: self._to_disks(SmallDisk.fill, [member])
            self.evils["fill all"] = lambda _: self._to_disks(SmallDisk.fill, everywhere)
            self.evils["break"] = self._break
        if cluster.arbitrator is not None:
            self.evils["kill arbitrator"] = lambda _: self._kill_arbitrator()

    def round(self) -> None:
        """Inject one or two faults, wait, and heal.  Raises ClusterTrouble."""
        chance = self._chance
        time.sleep(chance.uniform(*QUIET_S))
        for _ in range(1 + (chance.random() < TWICE)):
            name = chance.choice(list(self.evils))
            member = chance.randrange(self._size)
            print(f"  {name} {self._cluster[member]}", flush=True)
            self.befell[name] += 1
            self.evils[name](member)
            time.sleep(chance.uniform(*ILL_S))
        self.heal()

    def heal(self) -> None:
        """Undo all faults, restart dead members, and wait until all serve together."""
        self._relay.heal()
        for disk in self._disks:
            disk.thaw()
        for member in self._cluster.members:
            if member.label in self._ended and member.alive:
                member.kill()  # it was killed already, but may still be ending
        for member in self._stopped:
            if member.alive:
                member.signal(signal.SIGCONT)
        self._stopped.clear()
        for number in self._broken:
            self._kill(number)  # if it did not end by itself
            self._disks[number].mend()
        self._broken.clear()
        for disk in self._disks:
            disk.relieve()
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
        broker = self._cluster[member]
        if not broker.alive:
            return
        self._ended.add(broker.label)
        if self._disks and self._disks[member].frozen:
            broker.signal(signal.SIGKILL)  # a thread that waits for the disk outlives this: `heal`
        else:
            broker.kill()

    def _kill_all(self, member: int) -> None:
        for place in range(self._size):
            self._kill((member + place) % self._size)

    def _terminate(self, member: int) -> None:
        broker = self._cluster[member]
        ill = self._disks and not (self._takes(member) and self._disks[member].free_bytes())
        if not broker.alive or broker in self._stopped or ill:
            return  # a stopped member cannot handle it, one without a disk cannot stop cleanly
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
        self._relay.hold(member, (member + self._chance.randrange(1, self._size)) % self._size)

    def _starve(self) -> None:
        with burning(BURNERS):
            time.sleep(self._chance.uniform(*ILL_S))

    def _rejoin(self, member: int) -> None:
        """Kill a member and restart it, often enough to hit every stage of its join."""
        broker = self._cluster[member]
        for _ in range(STORM):
            self._kill(member)
            if not broker.alive:
                broker.start()
                self._ended.discard(broker.label)
            time.sleep(self._chance.uniform(0.1, 2.0))

    def _to_disks(self, befalls: Callable[[SmallDisk], None], members: Sequence[int]) -> None:
        for member in members:
            if self._takes(member):
                befalls(self._disks[member])

    def _break(self, member: int) -> None:
        """Let the disk refuse all writes, as ext4 does after an error of the device."""
        if self._takes(member):
            self._disks[member].become_read_only()
            self._broken.add(member)

    def _takes(self, member: int) -> bool:
        """Whether the disk of a member answers, and can be written."""
        return not self._disks[member].frozen and member not in self._broken

    def _kill_arbitrator(self) -> None:
        arbitrator = self._cluster.arbitrator
        if arbitrator is not None and arbitrator.alive:
            arbitrator.kill()


def suffer(root: Path, arrangement: str, seed: int, seconds: float) -> list[str]:
    """Run rounds for this time; return what did not hold, in sentences.  Logs are below `root`."""
    trouble: list[str] = []
    size = MEMBERS[arrangement]
    cluster = RelayedCluster(
        root, size, "hardship", seed=seed, arbitrator="arbitrator" in arrangement
    )
    places = [] if small_disks.why_not() else [one.data_dir for one in cluster.members]
    with small_disks.mounted(places, DISK_MIB) as disks, cluster:
        brokers = [one.address for one in cluster.members]
        load = Load(brokers, seed, publishers=2, rate=200.0, histories=root / CLIENTS)
        hardship = Hardship(cluster, disks, seed)
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
            trouble += missing(cluster, load, root / CLIENTS)
            for member in cluster.members:
                member.terminate(TOGETHER_S)
        except (ClusterTrouble, *TROUBLE) as problem:
            trouble.append(f"in round {rounds}: {type(problem).__name__}: {problem}")
        finally:
            cluster.close()
            for place in places:  # their file systems are removed
                shutil.copytree(place / LOG_DIR, root / "logs" / place.name)
        befell = ", ".join(f"{name} {count}" for name, count in sorted(hardship.befell.items()))
        print(
            f"{arrangement}: {rounds} rounds: {befell}; {len(load.confirmed)} messages confirmed, "
            f"{len(load.received)} received, {load.reconnects} reconnects, "
            f"{cluster.relay.moved_bytes} bytes between members"
        )
    if not load.confirmed:
        trouble.append("no message was confirmed, so nothing was shown")
    return trouble


def missing(cluster: LocalCluster, load: Load, histories: Path) -> list[str]:
    """Take the remaining messages; return the confirmed ones that never arrived."""
    take_the_rest(cluster[0].address, histories, load.received)
    lost = sorted(load.confirmed - load.received)
    if not lost:
        return []
    return [f"{len(lost)} confirmed messages never arrived, the first is number {lost[0]}"]


def check(root: Path) -> int:
    """Run qpid-cluster-verify over all logs of members and clients; return its exit status."""
    return subprocess.run([*command("qpid-cluster-verify"), str(root)], check=False).returncode


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults and their victims")
    parser.add_argument("--only", choices=MEMBERS, help="one arrangement of members")
    parser.add_argument("--keep", action="store_true", help="keep the logs in any case")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="hardship-"))
    if lacking := small_disks.why_not():
        print(f"disks are neither filled nor frozen: {lacking}")
    trouble: list[str] = []
    verdict = 0
    with ended_by(signal.SIGTERM):
        names = (arguments.only,) if arguments.only else USUAL
        for name in names:
            place = root / name.replace(" ", "-")
            seconds = 60.0 * arguments.minutes / len(names)
            trouble += [f"{name}: {what}" for what in suffer(place, name, arguments.seed, seconds)]
            verdict = max(verdict, check(place))
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
