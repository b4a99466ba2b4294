"""Run three members at a steady rate on a machine whose processors are all busy.

    python -m tests.system.support.stress --minutes 60 [--rate 1000]

One process for each processor does nothing but count, at the brokers' own priority, while a load
generator publishes and consumes.  Every change of a member's view after the clients began is
printed with the cause in its log; then the members' logs are checked.

Exit status: 0 no view changed and the logs are consistent; 1 views changed (read the causes: a
change with a true cause is no defect) or the logs are not consistent; 2 there was nothing to judge.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.system.support.burners import burning
from tools.cli.signals import ended_by
from tools.demo.local_cluster import BrokerProcess, ClusterTrouble, LocalCluster, command

CAUSES = (" view ", "out of the view", "ran all the time", "gives up", "this process came")
"""Parts of the log lines about views, and about a process without processor time."""
CLIENTS = 3
"""The number of producers, and of consumers."""
BODY_BYTES = 256


def lines(member: BrokerProcess) -> list[str]:
    """All lines of this member's log so far."""
    return member.log_path.read_text("utf-8", errors="replace").splitlines()


def load(cluster: LocalCluster, rate: float, seconds: float) -> dict[str, object]:
    """Publish and consume at `rate` messages a second; return the generator's measurements.

    Raises `ClusterTrouble` if a client lost its broker.
    """
    ran = subprocess.run(
        [
            sys.executable, "-m", "tests.bench.load", "--broker", cluster.brokers(),
            "--producers", str(CLIENTS), "--consumers", str(CLIENTS), "--size", str(BODY_BYTES),
            "--rate", str(rate), "--seconds", str(seconds), "--queue", "stress", "--json",
        ],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if ran.returncode:
        raise ClusterTrouble(f"the load generator ended with {ran.returncode}: {ran.stderr}")
    measured: dict[str, object] = json.loads(ran.stdout)
    return measured


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second, in total")
    parser.add_argument("--burners", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="stress-"))
    trouble: list[str] = []
    with ended_by(signal.SIGTERM), LocalCluster(root) as cluster:
        cluster.start()
        before = [len(lines(member)) for member in cluster.members]
        try:
            with burning(arguments.burners):
                measured = load(cluster, arguments.rate, 60.0 * arguments.minutes)
            print(json.dumps(measured))
        except ClusterTrouble as problem:
            trouble.append(str(problem))
        for member, seen in zip(cluster.members, before, strict=True):
            said = [line for line in lines(member)[seen:] if any(one in line for one in CAUSES)]
            if any(" view " in line for line in said):
                trouble.append(f"{member.label} changed its view")
            for line in said:
                print(f"{member.label}: {line}")
        for member in cluster.members:
            if member.alive:
                member.terminate()
    verdict = subprocess.run([*command("qpid-cluster-verify"), str(root)], check=False).returncode
    if verdict == 0 and not trouble:
        shutil.rmtree(root)
        print(f"verdict: no view changed in {arguments.minutes:g} minutes")
        return 0
    for what in trouble:
        print(f"trouble: {what}")
    print(f"verdict: qpid-cluster-verify ended with {verdict}; the logs are in {root}")
    return 1 if trouble or verdict == 1 else 2


if __name__ == "__main__":
    sys.exit(main())
