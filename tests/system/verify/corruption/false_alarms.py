"""Run the check over the logs of simulated clusters under faults: there must be no finding.

    python -m tests.system.verify.corruption.false_alarms --seeds 1-1000 [--stack oracle]
    [--jobs N] [--spark] [--keep DIR]

Each seed's brokers write their member logs.  They are checked in this process by everything that
needs no Spark; with --spark by the full check, in one session for all of them.  A seed whose
simulation fails does not count.  Prints the findings, and the number of clusters, incarnations,
records, publishes and confirms; without Spark also of positions that the queue contract examined,
and of those without a source.  Exit status 1 when there was a finding.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from tests.sim.run.campaign import Options, run_seed
from tests.system.verify.support.checks_without_spark import all_findings, rows_in
from tools.verify.checks.canonical_history import gaps, plan
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.findings import BadInput, Finding

Check = Callable[[Path], tuple[Counter[str], list[Finding]]]
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
    parser.add_argument("--spark", action="store_true", help="the whole check, not only without")
    parser.add_argument("--keep", type=Path, help="keep the logs of alarms in this directory")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    totals: Counter[str] = Counter(clusters=0, alarms=0)
    began = time.monotonic()
    with _outcomes(seeds, options) as outcomes:
        for number, outcome in enumerate(outcomes, 1):
            outcome.print()
            totals.update(outcome.counts)
            totals["clusters"] += not outcome.unjudged
            totals["alarms"] += bool(outcome.findings)
            if number % EVERY == 0:
                _summary(totals, began)
    _summary(totals, began)
    return 1 if totals["alarms"] else 0


@contextmanager
def _outcomes(seeds: range, options: argparse.Namespace) -> Iterator[Iterable[Outcome]]:
    stack, keep = options.stack, options.keep
    if options.spark:
        with _with_spark() as check:
            yield map(partial(judge, check=check, stack=stack, keep=keep), seeds)
        return
    with get_context("spawn").Pool(options.jobs) as pool:
        one = partial(judge, check=check_without_spark, stack=stack, keep=keep)
        yield pool.imap_unordered(one, seeds)


def judge(seed: int, check: Check, stack: str, keep: Path | None) -> Outcome:
    """Simulate a cluster and check its logs."""
    with tempfile.TemporaryDirectory(prefix="false-alarms-") as scratch:
        logs = Path(scratch)
        if not run_seed(seed, Options(stack=stack, memberlog=scratch)).ok:
            return Outcome(seed, Counter(), [], "the simulation itself failed")
        try:
            counts, findings = check(logs)
        except BadInput as error:
            return Outcome(seed, Counter(), [], f"no verdict: {error}")
        if findings and keep is not None:
            shutil.copytree(logs, keep / str(seed), dirs_exist_ok=True)
        return Outcome(seed, counts, findings)


def check_without_spark(logs: Path) -> tuple[Counter[str], list[Finding]]:
    """Check by everything that needs no Spark."""
    rows = rows_in(sorted(logs.rglob("*.qml")))
    control = check_control_rows(rows)
    counts: Counter[str] = Counter(incarnations=len(control.incarnations))
    for one in control.incarnations:
        counts.update(records=one.records, publishes=one.publishes, confirms=one.confirms)
    stretches = plan(rows, control.epochs)
    counts["positions"] = sum(one.last - one.first + 1 for one in stretches)
    counts["unwitnessed"] = sum(one.last - one.first + 1 for one in gaps(stretches))
    return counts, all_findings(rows, control)


@contextmanager
def _with_spark() -> Iterator[Check]:
    from tools.verify.job import verify
    from tools.verify.spark_session import spark_session

    with spark_session("local[2]", verbose=False, little=True) as spark:

        def check(logs: Path) -> tuple[Counter[str], list[Finding]]:
            report = verify(spark, [logs])
            c = report.counts
            counts: Counter[str] = Counter(
                incarnations=c.lives,
                records=c.records,
                publishes=c.publishes,
                confirms=c.confirms,
            )
            return counts, report.findings

        yield check


def _summary(totals: Counter[str], began: float) -> None:
    counted = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"{counted} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
