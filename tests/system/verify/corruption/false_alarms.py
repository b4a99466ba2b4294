"""Run the check over the logs of simulated clusters under faults: there must be no finding.

    python -m tests.system.verify.corruption.false_alarms --seeds 1-1000 [--stack oracle] [--spark]
    [--keep DIR]

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.sim.run.campaign import Options, run_seed
from tests.system.verify.support.checks_without_spark import contract_findings, rows_in
from tools.verify.checks.canonical_history import gaps, plan
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.findings import BadInput, Finding

Check = Callable[[Path], tuple[Counter[str], list[Finding]]]
EVERY = 50
"""So many seeds after which the sums are printed, for who looks in on a long run."""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="1-20", help="A-B, both included")
    parser.add_argument("--stack", choices=("broker", "oracle"), default="oracle")
    parser.add_argument("--spark", action="store_true", help="the whole check, not only without")
    parser.add_argument("--keep", type=Path, help="keep the logs of alarms in this directory")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    totals: Counter[str] = Counter(clusters=0, alarms=0)
    began = time.monotonic()
    with _with_spark() if arguments.spark else _without_spark() as check:
        for seed in range(int(first), int(last or first) + 1):
            with tempfile.TemporaryDirectory(prefix="false-alarms-") as scratch:
                logs = Path(scratch)
                result = run_seed(seed, Options(stack=arguments.stack, memberlog=str(logs)))
                if not result.ok:
                    print(f"seed {seed}: the simulation itself failed", flush=True)
                    continue
                try:
                    counts, findings = check(logs)
                except BadInput as error:
                    print(f"seed {seed}: no verdict: {error}", flush=True)
                    continue
                totals.update(counts)
                totals["clusters"] += 1
                if findings:
                    totals["alarms"] += 1
                    _print(seed, findings)
                    if arguments.keep is not None:
                        shutil.copytree(logs, arguments.keep / str(seed), dirs_exist_ok=True)
            if seed % EVERY == 0:
                _summary(totals, began)
    _summary(totals, began)
    return 1 if totals["alarms"] else 0


@contextmanager
def _without_spark() -> Iterator[Check]:
    def check(logs: Path) -> tuple[Counter[str], list[Finding]]:
        rows = rows_in(sorted(logs.rglob("*.qml")))
        control = check_control_rows(rows)
        counts: Counter[str] = Counter(incarnations=len(control.incarnations))
        for one in control.incarnations:
            counts.update(records=one.records, publishes=one.publishes, confirms=one.confirms)
        stretches = plan(rows, control.epochs)
        counts["positions"] = sum(one.last - one.first + 1 for one in stretches)
        counts["unwitnessed"] = sum(one.last - one.first + 1 for one in gaps(stretches))
        return counts, control.findings + contract_findings(rows, control.epochs)

    yield check


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


def _print(seed: int, findings: list[Finding]) -> None:
    print(f"seed {seed}: {len(findings)} findings")
    for finding in findings[:4]:
        print(f"    {finding}", flush=True)


def _summary(totals: Counter[str], began: float) -> None:
    counted = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"{counted} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
