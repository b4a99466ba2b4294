"""Campaigns over many stacks: the gate of continuous integration, and the soak with its ledger.

Both take fixed seeds, the same every time, or fresh ones: the gate those of the commit's day, the
soak those of the commit, so they differ and yet can be named.  A fifth of the gate's seeds runs
twice, in other processes with other hash seeds, by another interpreter if one is named, and must
leave the same trace, as members of one cluster may run different ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from tests.commits import commit, day
from tests.sim.run.batch import ROOT, Job, differences, run_batches
from tests.sim.run.campaign import Outcome, Summary, command_for
from tests.sim.run.coverage import lines as coverage_lines

FIXED = {"ring": 60, "replica": 120, "broker": 50, "oracle": 60, "groups": 10, "pair": 40}
FRESH_TURN = ("replica", "oracle", "ring", "broker", "replica", "pair")
FRESH_FROM = 1_000_000  # below are the fixed seeds, and those that people name
REPEATED_EVERY = 5
GATE_SEEDS = 500
ROUND_SEEDS = 40


def sources() -> str:
    """A digest of all files that a run depends on, to notice an edit meanwhile."""
    digest = hashlib.sha256()
    for folder in ("vsync", "broker", "store", "tests/sim"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def fresh_start(what: str) -> int:
    """The first fresh seed of a commit or a day; both begin with a hexadecimal number."""
    return FRESH_FROM + int(what[:8], 16) * 1000


def fixed_jobs(part: float) -> list[Job]:
    """The fixed seeds of every stack; `part` of them for a smaller gate."""
    return [
        Job(stack, seed)
        for stack, number in FIXED.items()
        for seed in range(1, 1 + max(1, int(number * part)))
    ]


def tell(outcome: Outcome, verbose: bool) -> None:
    if verbose or not outcome.ok:
        print(f"{outcome.line}  [{outcome.stack}]", flush=True)
    for violation in outcome.violations:
        print(f"  {violation}")
    if not outcome.ok:
        print(f"  again: {command_for(outcome.stack, outcome.seed)}", flush=True)


def gate(seeds: int, processes: int, verbose: bool, coverage: bool, again_by: str) -> int:
    """Run fixed seeds, fresh ones until enough count, and every fifth again; 0 if all is well."""
    start = fresh_start(day())
    print(f"fresh seeds from {start} (day {day()})", flush=True)
    before = sources()
    summary, outcomes = Summary(), list[Outcome]()
    fresh = (Job(FRESH_TURN[n % len(FRESH_TURN)], start + n) for n in count())
    jobs = fixed_jobs(min(1.0, seeds / GATE_SEEDS))
    hash_seed = 1
    while True:
        for outcome in run_batches(jobs, processes, hash_seed):
            tell(outcome, verbose)
            summary.add(outcome)
            outcomes.append(outcome)
        if summary.counted >= seeds or summary.seeds >= 2 * seeds:
            break
        hash_seed += len(jobs)
        missing = seeds - summary.counted
        jobs = [next(fresh) for _ in range(max(missing, min(ROUND_SEEDS, seeds)))]
    print(summary, flush=True)
    if coverage:
        print("\n".join(coverage_lines(summary.pairs)))
    twice = [Job(o.stack, o.seed) for o in outcomes[::REPEATED_EVERY] if o.trace]
    again = list(run_batches(twice, processes, 100_000, again_by))
    different = differences(outcomes, again)
    where = "" if again_by == sys.executable else f" by {again_by}"
    print(f"{len(again)} of them again under other hash seeds{where}: {len(different)} differ")
    if different:
        print("\n".join(different))
        if sources() != before:
            print("the sources were edited during this run: run it again before you believe that")
    return 1 if summary.failed or different else 0


def soak(hours: float, processes: int, ledger: Path, first: int | None) -> int:
    """Run fresh seeds of all stacks until the time is over, with a ledger line for each round."""
    end = time.monotonic() + hours * 3600
    what = commit()
    start = fresh_start(what or day()) if first is None else first
    whole = Summary()
    number = start
    while time.monotonic() < end:
        jobs = [
            Job(FRESH_TURN[n % len(FRESH_TURN)], n) for n in range(number, number + ROUND_SEEDS)
        ]
        summary = Summary()
        for outcome in run_batches(jobs, processes, number % 2**31):
            tell(outcome, False)
            summary.add(outcome)
            whole.add(outcome)
        _write_line(ledger, what, number, number + ROUND_SEEDS - 1, summary)
        number += ROUND_SEEDS
        print(f"{number - start} seeds: {whole}", flush=True)
    print("\n".join(coverage_lines(whole.pairs)))
    return 1 if whole.failed else 0


def _write_line(ledger: Path, what: str, first: int, last: int, summary: Summary) -> None:
    """Append one JSON object as a line; lines never change, so many machines may share a file."""
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": what,
        "machine_cores": os.cpu_count(),
        "stacks": sorted(set(FRESH_TURN)),
        "seeds": [first, last],
        "counted": summary.counted,
        "events": summary.steps,
        "view_changes": summary.changes,
        "seconds": round(summary.wall_s, 1),
        "faults": dict(sorted(summary.faults.items())),
        "failures": [
            {"command": command_for(o.stack, o.seed), "violations": o.violations[:3]}
            for o in summary.failed
        ],
    }
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, sort_keys=True) + "\n")
