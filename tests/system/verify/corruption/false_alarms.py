"""Run the check over the logs of simulated clusters under faults: there must be no finding.

    python -m tests.system.verify.corruption.false_alarms --seeds 1-1000 [--stack oracle]
    [--jobs N] [--keep DIR]

Each seed's brokers write their member logs, which are checked as `qpid-cluster-verify` checks logs
that are few.  A seed whose simulation fails does not count.  Prints the findings, and the number of
clusters, incarnations, records, positions, publishes and confirms.  Exit status 1 when there was a
finding.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from tests.sim.run.campaign import Options, run_seed
from tools.verify.findings import BadInput, Finding
from tools.verify.job import verify

EVERY = 50
"""So many seeds after which the sums are printed, for who looks in on a long run."""


class Outcome(NamedTuple):
    """What the check said of one cluster."""

    seed: int
    counts: Counter[str]
    findings: list[Finding]
    unjudged: str = ""  # why it does not count

    def print(self) -> None:
        """Print what is not as it should be."""
        if self.unjudged:
            print(f"seed {self.seed}: {self.unjudged}", flush=True)
        elif self.findings:
            print(f"seed {self.seed}: {len(self.findings)} findings")
            for finding in self.findings[:4]:
                print(f"    {finding}", flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="1-20", help="A-B, both included")
    parser.add_argument("--stack", choices=("broker", "oracle"), default="oracle")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with its own clusters")
    parser.add_argument("--keep", type=Path, help="keep the logs of alarms in this directory")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    totals: Counter[str] = Counter(clusters=0, alarms=0)
    began = time.monotonic()
    one = partial(judge, stack=options.stack, keep=options.keep)
    with get_context("spawn").Pool(options.jobs) as pool:
        for number, outcome in enumerate(pool.imap_unordered(one, seeds), 1):
            outcome.print()
            totals.update(outcome.counts)
            totals["clusters"] += not outcome.unjudged
            totals["alarms"] += bool(outcome.findings)
            if number % EVERY == 0:
                _summary(totals, began)
    _summary(totals, began)
    return 1 if totals["alarms"] else 0


def judge(seed: int, stack: str, keep: Path | None) -> Outcome:
    """Simulate a cluster and check its logs."""
    with tempfile.TemporaryDirectory(prefix="false-alarms-") as scratch:
        logs = Path(scratch)
        if not run_seed(seed, Options(stack=stack, memberlog=scratch)).ok:
            return Outcome(seed, Counter(), [], "the simulation itself failed")
        try:
            report = verify(None, [logs])
        except BadInput as error:
            return Outcome(seed, Counter(), [], f"no verdict: {error}")
        if report.findings and keep is not None:
            shutil.copytree(logs, keep / str(seed), dirs_exist_ok=True)
        c = report.counts
        counts = Counter(
            incarnations=c.lives, records=c.records, positions=c.positions,
            publishes=c.publishes, confirms=c.confirms,
        )  # fmt: skip
        return Outcome(seed, counts, report.findings)


def _summary(totals: Counter[str], began: float) -> None:
    counted = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"{counted} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
