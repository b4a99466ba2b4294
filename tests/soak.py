"""Soak test: three brokers under mixed load are killed in turn; is anything lost or leaked?

    python -m tests.soak --minutes 60 [--seed N]

Real brokers serve publishers and a consumer, which record histories, and a client that mixes other
operations.  At random moments one member after the other is killed, stopped for a while or ended
cleanly, and started again; one, the *elder*, is only stopped until the last fifth of the run, so
that its process grows old.  Whenever all serve together, each is measured: memory, files, threads,
store, and bytes of log per position.  In the end every confirmed message must have been received,
the logs of members and clients must be consistent (qpid-cluster-verify), and the last quarter of
the samples must not exceed the second by more than `SLACK`; the first quarter is warm-up.
`tests.system.support.soak` injects far more kinds of faults, but measures nothing.

Exit status: 0 all held; 1 something did not (the logs are kept, and the last line says where); 2
the logs could not be judged.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pika.adapters.blocking_connection import BlockingChannel

from broker.durability.data_directory import LOG_DIR
from broker.exit_codes import Exit
from broker.options.addresses import Address
from tests.system.support.load_clients import PERSISTENT, TROUBLE, Load, Patience, connect
from tests.system.support.soak import CLIENTS, TOGETHER_S, check, missing
from tools.cli.signals import ended_by
from tools.client.management import ManagementError
from tools.demo.local_cluster import BrokerProcess, ClusterTrouble, LocalCluster

MEMBERS, ELDER = 3, 2
RATE, LARGE_BYTES = 60.0, 300_000
QUIET_S, STOPPED_S, DOWN_S = (1.0, 8.0), (0.2, 5.0), (0.0, 4.0)
BOUNDED = {"x-max-length": 50}
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
STREAM = {"x-queue-type": "stream", "x-max-length-bytes": 4_000_000}
SPARED_SHARE = 0.8  # of the run: how long the elder is only stopped
SAMPLES_MIN = 12  # with fewer, a quarter is too few to judge
SLACK: Mapping[str, tuple[float, float]] = {
    "memory": (1.25, 24 << 20),
    "files": (1.0, 8),
    "threads": (1.0, 3),
    "store": (1.25, 64 << 20),  # a checkpoint is due after this much log
    "log": (1.25, 16),  # bytes per position
}  # how far the last quarter may exceed the second: a factor, and an addend
Sample = dict[str, float]


def bytes_below(place: Path, without: str = "") -> int:
    """The disk space of the files below a directory, which may come and go meanwhile."""
    total = 0
    for folder, names, files in os.walk(place):
        names[:] = [name for name in names if name != without]
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
    return total


def sample_of(member: BrokerProcess) -> Sample:
    """Measure a serving member."""
    proc = Path(f"/proc/{member.pid}")
    resident = int((proc / "statm").read_text("ascii").split()[1])
    position = next(one.position for one in member.status().members if one.local)
    return {
        "memory": resident * os.sysconf("SC_PAGE_SIZE"),
        "files": len(os.listdir(proc / "fd")),
        "threads": len(os.listdir(proc / "task")),
        "store": bytes_below(member.data_dir, without=LOG_DIR),
        "log": bytes_below(member.data_dir / LOG_DIR) / max(1, position),
    }


def grown(samples: Sequence[Sample]) -> list[str]:
    """Sentences on what grows without bound in these samples of one member."""
    quarter, found = len(samples) // 4, []
    for what, (factor, more) in SLACK.items() if len(samples) >= SAMPLES_MIN else ():
        early = max(one[what] for one in samples[quarter : 2 * quarter])
        late = sorted(one[what] for one in samples[-quarter:])[quarter // 2]
        if late > early * factor + more:
            found.append(f"{what} grows, from {early:.0f} to {late:.0f}")
    return found


class Mixed(threading.Thread):
    """A client that mixes operations at whichever broker answers; its queues are bounded."""

    def __init__(self, brokers: Sequence[Address], seed: int) -> None:
        super().__init__(name="mixed work", daemon=True)
        self._brokers, self._chance = brokers, random.Random(seed)
        self._ending = threading.Event()
        self._works: tuple[Callable[[BlockingChannel], None], ...] = (
            self._large, self._stream, self._churn, self._transaction, self._reject, self._topics,
        )  # fmt: skip
        self.done: Counter[str] = Counter()

    def end(self) -> list[str]:
        """Stop the client; return what was wrong, in sentences."""
        self._ending.set()
        self.join(TOGETHER_S)
        return ["the client of mixed work does not end"] if self.is_alive() else []

    def run(self) -> None:
        while not self._ending.wait(0.05):
            with contextlib.suppress(*TROUBLE), connect(self._chance.choice(self._brokers)) as one:
                patience = Patience(one)
                for work in self._chance.sample(self._works, len(self._works)):
                    work(one.channel())
                    patience.answered()
                    self.done[work.__name__] += 1

    def _large(self, channel: BlockingChannel) -> None:
        channel.queue_declare("large", durable=True, arguments=BOUNDED)
        channel.basic_publish("", "large", self._chance.randbytes(LARGE_BYTES), PERSISTENT)
        channel.basic_get("large", auto_ack=True)

    def _stream(self, channel: BlockingChannel) -> None:
        channel.queue_declare("stream", durable=True, arguments=STREAM)
        for _ in range(20):
            channel.basic_publish("", "stream", self._chance.randbytes(2000), PERSISTENT)

    def _churn(self, channel: BlockingChannel) -> None:
        declared = channel.queue_declare("", exclusive=True, arguments={"x-message-ttl": 500})
        channel.basic_consume(queue := declared.method.queue, lambda *_: None)
        for _ in range(10):
            channel.basic_publish("", queue, b"x")

    def _transaction(self, channel: BlockingChannel) -> None:
        channel.queue_declare("committed", durable=True, arguments=BOUNDED)
        channel.tx_select()
        for number in range(4):
            channel.basic_publish("", "committed", b"%d" % number, PERSISTENT)
        channel.tx_rollback() if self._chance.random() < 0.3 else channel.tx_commit()

    def _reject(self, channel: BlockingChannel) -> None:
        channel.queue_declare("dead", durable=True, arguments=BOUNDED)
        channel.queue_declare("rejected", durable=True, arguments={**BOUNDED, **DEAD})
        channel.basic_publish("", "rejected", b"x", PERSISTENT)
        method, _, _ = channel.basic_get("rejected")
        if method is not None:
            channel.basic_reject(method.delivery_tag, requeue=self._chance.random() < 0.5)

    def _topics(self, channel: BlockingChannel) -> None:
        channel.exchange_declare("topics", "topic")
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "topics", "a.*.#")
        channel.basic_publish("topics", f"a.{self._chance.randrange(1000)}", b"x")


class Turns:
    """Faults for one member after the other."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self._cluster, self._chance = cluster, random.Random(seed)
        self.befell: Counter[str] = Counter()

    def round(self, number: int, *, spared: bool) -> None:
        """Inject one fault into the member whose turn it is, and undo it.  Raises
        ClusterTrouble."""
        chance, member = self._chance, self._cluster[number % MEMBERS]
        time.sleep(chance.uniform(*QUIET_S))
        for one in (one for one in self._cluster.members if not one.alive):
            raise ClusterTrouble(f"{one} ended by itself: {one.exit_code}\n{one.log_tail()}")
        evils = ["kill", "stop", "end in order"]
        what = "stop" if spared and number % MEMBERS == ELDER else chance.choice(evils)
        self.befell[what] += 1
        print(f"  {what} {member}", flush=True)
        if what == "stop":
            member.signal(signal.SIGSTOP)
            time.sleep(chance.uniform(*STOPPED_S))
            member.signal(signal.SIGCONT)
        elif what == "kill":
            member.kill()
        elif (code := member.terminate(TOGETHER_S)) != Exit.OK:
            raise ClusterTrouble(f"{member} ended with code {code}\n{member.log_tail()}")
        time.sleep(chance.uniform(*DOWN_S) if what != "stop" else 0.0)
        self._cluster.start(TOGETHER_S)


def soak(root: Path, seed: int, seconds: float) -> list[str]:
    """Run rounds for this time; return what did not hold, in sentences.  Logs are below `root`."""
    trouble: list[str] = []
    with LocalCluster(root, MEMBERS, "soak", extra={"backups-keep-days": "0"}) as cluster:
        brokers = [one.address for one in cluster.members]
        load = Load(brokers, seed, publishers=2, rate=RATE, histories=root / CLIENTS)
        mixed, turns = Mixed(brokers, seed), Turns(cluster, seed)
        samples: dict[str, list[Sample]] = {one.label: [] for one in cluster.members}
        elder, number = cluster[ELDER].label, 0
        try:
            cluster.start(TOGETHER_S)
            load.start()
            mixed.start()
            began = time.monotonic()
            while (passed := time.monotonic() - began) < seconds:
                turns.round(number, spared=(spared := passed < SPARED_SHARE * seconds))
                number += 1
                for member in cluster.members if spared else ():
                    with contextlib.suppress(ManagementError):  # a view change was in progress
                        samples[member.label].append(sample_of(member))
                last = {what: int(n) for one in samples[elder][-1:] for what, n in one.items()}
                print(f"round {number}, {len(load.confirmed)} confirmed, the elder: {last}")
            trouble += mixed.end() + load.stop()
            trouble += missing(cluster, load, root / CLIENTS)
            for member in cluster.members:
                member.terminate(TOGETHER_S)
        except (ClusterTrouble, *TROUBLE) as problem:
            trouble.append(f"in round {number}: {type(problem).__name__}: {problem}")
    for label, of_member in samples.items():
        trouble += [f"{label}: {what}" for what in grown(of_member)]
    print(f"{number} rounds: {dict(turns.befell)}; {dict(mixed.done)}")
    return trouble if load.confirmed else [*trouble, "no message was confirmed"]


def main() -> int:
    """Run the command line."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults and their times")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    with ended_by(signal.SIGTERM):
        trouble = soak(root, arguments.seed, 60.0 * arguments.minutes)
    verdict = check(root)
    for what in trouble:
        print(f"trouble: {what}")
    if trouble or verdict:
        print(f"verdict: NOT held (the check ended with {verdict}); the logs are in {root}")
        return 1 if trouble or verdict == 1 else 2
    shutil.rmtree(root)
    print(f"verdict: held (seed {arguments.seed}, {arguments.minutes:g} minutes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
