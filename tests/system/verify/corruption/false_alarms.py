"""Run the check over the logs of simulated clusters under faults: there must be no finding.

    python -m tests.system.verify.corruption.false_alarms --seeds 1-1000 [--stack oracle]
    [--jobs N] [--keep DIR] [--ledger FILE]

Each seed's brokers write their member logs, and their clients histories, which are checked as
`qpid-cluster-verify` checks small logs.  A seed whose simulation fails does not count, nor does a
pair in which both members continued alone, as two histories are no false alarm.  Prints the
findings, and the numbers of clusters, incarnations, records, ... checked.  With `--ledger` each
seed leaves a line of JSON: seeds with a line are not run again, and count in the sums.  With
`--fresh N` the seeds follow from the day of the commit.  Exit status 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.commits import day
from tests.sim.pairs.stack import PairStack
from tests.sim.run.campaign import Options, collect_seldom, run_seed
from tests.sim.run.gate import fresh_start
from tools.verify.findings import BadInput
from tools.verify.job import verify

EVERY_S = 60.0
"""How often the sums are printed during a long run."""
APART = "both went on alone"
TOLD = 4
"""The most findings of a cluster that are printed."""
Seed = tuple[str, int]


@dataclass(frozen=True)
class Outcome:
    """The check's result for one cluster: a line of the ledger."""

    stack: str
    seed: int
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    unjudged: str = ""  # why it does not count

    def print(self) -> None:
        """Print findings and other irregularities."""
        name = f"seed {self.seed} of {self.stack}"
        if self.unjudged:
            print(f"{name}: {self.unjudged}", flush=True)
        elif self.findings:
            print(f"{name}: {len(self.findings)} findings")
            for finding in self.findings[:TOLD]:
                print(f"    {finding}", flush=True)


class Sums:
    """The sums of all checked clusters, in all and of this run."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.seen, self.now = wanted, 0, 0
        self.totals: Counter[str] = Counter(clusters=0, alarms=0)
        self.unjudged: Counter[str] = Counter()
        self._began = self._told = time.monotonic()

    def add(self, outcome: Outcome, *, now: bool) -> None:
        """Add a result; `now`: of this run."""
        self.seen += 1
        self.now += now
        if outcome.unjudged:
            self.unjudged[outcome.unjudged.partition(":")[0]] += 1
            return
        self.totals.update(outcome.counts)
        self.totals["clusters"] += 1
        self.totals["alarms"] += bool(outcome.findings)

    def print(self) -> None:
        """Print the sums, and the expected remaining time."""
        took = time.monotonic() - self._began
        left = took / max(1, self.now) * (self.wanted - self.seen)
        counted = ", ".join(f"{count:,} {name}" for name, count in self.totals.items())
        without = "".join(f"; {count} not judged: {why}" for why, count in self.unjudged.items())
        to_go = f", {left:.0f} s to go" if left else ""
        print(f"{counted}{without} ({self.now} in {took:.0f} s{to_go})", flush=True)

    def print_seldom(self) -> None:
        """Print the sums if it is time."""
        if time.monotonic() - self._told >= EVERY_S:
            self._told = time.monotonic()
            self.print()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="1-20", help="A-B, both included")
    parser.add_argument("--fresh", type=int, help="this many seeds, by the day of the commit")
    parser.add_argument("--stack", choices=("broker", "oracle", "pair"), default="broker")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with its own clusters")
    parser.add_argument("--keep", type=Path, help="keep the logs of alarms in this directory")
    parser.add_argument("--ledger", type=Path, help="results so far; a run resumes from them")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if options.fresh is not None:
        seeds = range(fresh_start(day()), fresh_start(day()) + options.fresh)
        print(f"fresh seeds from {seeds.start} (day {day()})")
    known = {} if options.ledger is None else read_ledger(options.ledger)
    before = [known[options.stack, seed] for seed in seeds if (options.stack, seed) in known]
    sums = Sums(len(seeds))
    for outcome in before:
        outcome.print()
        sums.add(outcome, now=False)
    wanted = [seed for seed in seeds if (options.stack, seed) not in known]
    for outcome in judged(wanted, options.stack, options.jobs, options.keep):
        outcome.print()
        if options.ledger is not None:
            append(options.ledger, outcome)
        sums.add(outcome, now=True)
        sums.print_seldom()
    sums.print()
    return 1 if sums.totals["alarms"] else 0


def judged(seeds: Sequence[int], stack: str, jobs: int, keep: Path | None) -> Iterator[Outcome]:
    """Yield the check's result for each cluster, in any order."""
    if seeds:
        one = partial(judge, stack=stack, keep=keep)
        with get_context("spawn").Pool(jobs, collect_seldom) as pool:
            yield from pool.imap_unordered(one, seeds)


def read_ledger(path: Path) -> dict[Seed, Outcome]:
    """Return the lines of a ledger; its last line may be cut off."""
    known: dict[Seed, Outcome] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            outcome = Outcome(**json.loads(line))
        except ValueError:
            continue
        known[outcome.stack, outcome.seed] = outcome
    return known


def append(path: Path, outcome: Outcome) -> None:
    """Add a line to a ledger."""
    with path.open("a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(asdict(outcome)) + "\n")


def judge(seed: int, stack: str, keep: Path | None) -> Outcome:
    """Simulate a cluster and check its logs."""
    gc.collect()  # the clusters before
    with tempfile.TemporaryDirectory(prefix="false-alarms-") as scratch:
        logs = Path(scratch)
        result = run_seed(seed, Options(stack=stack, memberlog=scratch))
        above = result.world.stack
        if not result.ok:
            return Outcome(stack, seed, unjudged="the simulation itself failed")
        apart = isinstance(above, PairStack) and went_apart(above)
        try:
            report = verify(None, [logs])
        except BadInput as error:
            _keep(logs, keep, seed)
            return Outcome(stack, seed, unjudged=f"no verdict: {error}")
        if apart:
            told = any(one.property == "G7" for one in report.findings)
            return Outcome(stack, seed, unjudged=APART if told else f"{APART}, and no G7 says so")
        if report.findings:
            _keep(logs, keep, seed)
        c = report.counts
        counts = {
            "incarnations": c.lives, "records": c.records, "positions": c.positions,
            "publishes": c.publishes, "confirms": c.confirms,
        }  # fmt: skip
        if report.clients is not None:
            of = report.clients.counts
            counts |= {
                "histories": of.clients, "confirmed": of.confirmed, "refused": of.refused,
                "received": of.received,
            }  # fmt: skip
        return Outcome(stack, seed, counts, list(map(str, report.findings)))


def went_apart(stack: PairStack) -> bool:
    """Whether one of a pair took the vote and its history was given up: there are two histories."""
    sides = stack.judge.sides
    return any(one.owner and one.given_up and not one.declared for one in sides)


def _keep(logs: Path, keep: Path | None, seed: int) -> None:
    if keep is not None:
        shutil.copytree(logs, keep / str(seed), dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
