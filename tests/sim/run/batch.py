"""Runs seeds in their own process: `python -m tests.sim.run.batch STACK:SEED ...` prints JSON
lines.

The parent chooses PYTHONHASHSEED, so every batch runs with another order of its hash tables, and a
run that depends on it differs when it is repeated.  A batch that crashes is a finding, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from tests.sim.run.campaign import (
    Outcome,
    collect_seldom,
    command_for,
    options_for,
    outcome_of,
    run_seed,
)

ROOT = Path(__file__).resolve().parents[3]
BATCH_SEEDS = 20
SEED_LIMIT_S = 120.0  # wall-clock time, the mean of a batch on a busy machine: a longer one hangs


class Job(NamedTuple):
    stack: str
    seed: int

    def __str__(self) -> str:
        return f"{self.stack}:{self.seed}"


def run_batch(jobs: Sequence[Job], hash_seed: int, python: str = sys.executable) -> list[Outcome]:
    """Run the jobs in a fresh process of this interpreter, under this hash seed."""
    command = [python, "-m", "tests.sim.run.batch", *map(str, jobs)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
            timeout=SEED_LIMIT_S * len(jobs),
        )  # fmt: skip
        printed, reason = done.stdout, f"exit {done.returncode}: {done.stderr.strip()[-300:]}"
    except subprocess.TimeoutExpired as late:
        printed = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        reason = "no end"
    found = [Outcome(*json.loads(line)) for line in printed.splitlines() if line.endswith("]")]
    for job in jobs[len(found) :][:1]:  # the one that it was running
        line = f"FAIL seed {job.seed} on {job.stack}: the process had {reason}"
        found.append(
            Outcome(job.stack, job.seed, False, False, 0, 0, 0.0, "", line, [reason], {}, [])
        )
    return found


def run_batches(
    jobs: Iterable[Job], processes: int, first_hash: int, python: str = sys.executable
) -> Iterator[Outcome]:
    """Run all jobs in batches of a few seeds, some batches at a time; return results in job
    order."""
    todo = list(jobs)
    batches = [todo[i : i + BATCH_SEEDS] for i in range(0, len(todo), BATCH_SEEDS)]
    with ThreadPoolExecutor(processes) as pool:
        numbers = range(first_hash, first_hash + len(batches))
        for outcomes in pool.map(run_batch, batches, numbers, repeat(python)):
            yield from outcomes


def differences(first: Iterable[Outcome], again: Iterable[Outcome]) -> list[str]:
    """The runs of `again` whose trace differs from the first time, in sentences."""
    known = {(o.stack, o.seed): o.trace for o in first}
    return [
        f"{command_for(o.stack, o.seed)}: trace {known[o.stack, o.seed]}, then {o.trace}"
        for o in again
        if known[o.stack, o.seed] != o.trace
    ]


def main(raw: list[str]) -> int:
    for text in raw:
        stack, _, seed = text.partition(":")
        outcome = outcome_of(stack, run_seed(int(seed), options_for(stack)))
        print(json.dumps(outcome), flush=True)
    return 0


if __name__ == "__main__":
    collect_seldom()
    sys.exit(main(sys.argv[1:]))
