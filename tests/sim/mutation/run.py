"""Mutation runs: would the simulator notice?  `python -m tests.sim.mutation.run --run` and
`--table`.

Each mutant runs in its own process: the changed module replaces the real one before anything
imports it, then seeds run in order, cut short, until one fails.  A seed that also fails with the
real code does not count.  Results are appended line by line to a ledger, so a run can be stopped
and resumed at any time; `--table` makes docs/reference/mutants.md from it.

A mutant is *killed* (a seed fails), *hangs* (a seed does not end: noticed as well), *survives* (the
seeds or the time are used up), or is *equivalent*: it changes nothing that is promised, for the
reason given in `tests/sim/mutation/equivalents.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.commits import commit
from tests.sim.mutation.equivalents import EQUIVALENT
from tests.sim.mutation.operators import MODULES, ROOT, Mutant, generate_all, mutated, sample

LEDGER = ROOT / "tests" / "sim" / "mutation" / "mutants.jsonl"
SEED_CPU_S = 40.0  # a seed that takes longer hangs; the slowest correct one takes a tenth
STEPS_MIN, STEPS_MAX = 4000, 5000  # short runs: twice as many seeds in the same time
HAND = "by hand"
PRIMARY_MODULES = (
    "vsync.primary.state_exchange",
    "vsync.primary.component",
    "vsync.primary.unstable",
)


def stacks_for(module: str) -> tuple[str, ...]:
    """The stacks of successive seeds: those that show a bug of this module best."""
    if module in PRIMARY_MODULES:
        return ("replica", "oracle", "broker")
    return ("ring", "replica", "ring")


# -- one mutant, in its own process ---------------------------------------------------------------


class _Finder:
    """Finds the mutated module instead of the real one."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == self.module else None  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(
            compile(mutated(self.module, self.name), f"<mutant {self.name}>", "exec"), vars(module)
        )


def _try_seeds(
    module: str, name: str, only: str, first: int, last: int, seconds: float
) -> dict[str, Any]:
    """Run seeds against the mutant; return the seed that killed it, or how many it survived.

    Without a name the real code runs; with `only`, on that stack alone.
    """
    if module != HAND and name:
        sys.meta_path.insert(0, _Finder(module, name))
    with ExitStack() as stack:
        try:
            from tests.sim.run.campaign import collect_seldom, options_for, plan_of, run_plan

            collect_seldom()
            if module == HAND and name:
                from tests.sim.mutation.by_hand import broken

                stack.enter_context(broken(name))
        except Exception as error:  # the module does not even load
            return {"verdict": "killed", "seed": 0, "stack": "-", "rule": f"load {error!r}"[:60]}
        for seed in range(first, last + 1):
            kind = only or _stack_of(module, name, seed)
            options = replace(options_for(kind), cpu_s=SEED_CPU_S)
            plan = replace(plan_of(seed, options), steps_min=STEPS_MIN, steps_max=STEPS_MAX)
            verdict = _one_seed(lambda: run_plan(plan, options))  # noqa: B023
            if verdict is not None:
                return {**verdict, "seed": seed, "stack": kind}
            if time.process_time() > seconds:
                return {"verdict": "survived", "seed": seed}
    return {"verdict": "survived", "seed": last}


def _stack_of(module: str, name: str, seed: int) -> str:
    if module == HAND:
        from tests.sim.mutation.by_hand import PRIMARY_MUTANTS, RING_MUTANTS

        kinds: tuple[str, ...] = ("broker", "oracle", "broker")
        if any(mutant.__name__ == name for mutant in RING_MUTANTS):
            kinds = ("ring", "replica")
        elif any(mutant.__name__ == name for mutant in PRIMARY_MUTANTS):
            kinds = ("replica", "oracle")
    else:
        kinds = stacks_for(module)
    return kinds[seed % len(kinds)]


def _one_seed(run: Callable[[], Any]) -> dict[str, Any] | None:
    """Run one seed: None when it passes, else its finding."""
    try:
        result = run()
    except Exception as error:  # the simulator itself failed: noticed as well
        return {"verdict": "killed", "rule": f"error {type(error).__name__}"}
    if result.ok:
        return None
    if not result.ended:
        return {"verdict": "hangs", "rule": f"no end after {SEED_CPU_S:.0f} s of CPU"}
    first = result.violations[0]
    what = first.text.split("(")[0] if first.rule == "crash" else ""
    return {"verdict": "killed", "rule": f"{first.promise}/{first.rule} {what}".strip()[:60]}


# -- the campaign ---------------------------------------------------------------------------------


def _child(
    module: str, name: str, only: str, first: int, last: int, seconds: float
) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.sim.mutation.run", "--one", module, name, only]
    command += ["--seed-min", str(first), "--seeds-max", str(last), "--budget", str(seconds)]
    limit = 20 * (seconds + SEED_CPU_S)  # of wall clock: the machine may have much else to do
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"verdict": "hangs", "rule": f"no end after {limit:.0f} s", "seed": 0, "stack": "-"}
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        tail = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return {"verdict": "killed", "rule": f"died: {tail}"[:60], "seed": 0, "stack": "-"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


class Baseline:
    """Which killing seeds also fail without a mutant; each is run once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], bool] = {}

    def passes(self, module: str, found: dict[str, Any]) -> bool:
        seed, kind = int(found["seed"]), str(found["stack"])
        if seed == 0:
            seed, kind = 1, "ring"  # it did not load, or died: does the real code?
        key = (kind, seed)
        if key not in self._known:
            self._known[key] = _child(module, "", kind, seed, seed, 60.0)["verdict"] == "survived"
        return self._known[key]


def run_mutant(
    mutant: Mutant, seeds_max: int, seconds: float, baseline: Baseline, first: int = 1
) -> dict[str, Any]:
    """Run seeds from `first` on until one kills that the real code passes, or none is left."""
    began = time.monotonic()
    skipped: list[int] = []
    while True:
        found = _child(mutant.module, mutant.name, "", first, seeds_max, seconds)
        if found["verdict"] == "survived" or baseline.passes(mutant.module, found):
            break
        skipped.append(found["seed"])
        first = found["seed"] + 1
    found["seconds"] = round(time.monotonic() - began, 1)
    if skipped:
        found["not_counted"] = skipped
    return {**mutant._asdict(), **found}


def by_hand() -> list[Mutant]:
    from tests.sim.mutation.by_hand import MUTANTS

    return [
        Mutant(name, HAND, "", 0, HAND, " ".join((make.__doc__ or "").split()), "")
        for name, make in sorted(MUTANTS.items())
    ]


def read_ledger(path: Path = LEDGER) -> dict[str, dict[str, Any]]:
    """The last result of each mutant; if it survived twice, that of the longer run."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    known: dict[str, dict[str, Any]] = {}
    for record in map(json.loads, filter(None, lines)):
        before = known.get(record["name"])
        outlived = before is not None and before["verdict"] == record["verdict"] == "survived"
        if before is None or not outlived or record["seed"] > before["seed"]:
            known[record["name"]] = record
    return known


def _wanted(arguments: argparse.Namespace) -> Iterator[Mutant]:
    """The mutants still to be run: without a result, or, when asked for, survivors of fewer
    seeds."""
    known = read_ledger(arguments.ledger)
    generated = [m for m in generate_all() if arguments.module in (None, m.module)]
    chosen = [] if arguments.generated_only else by_hand()
    chosen += sample(generated, arguments.sample)
    for mutant in chosen:
        if mutant.name in EQUIVALENT:
            continue
        record = known.get(mutant.name)
        survivor = record is not None and record["verdict"] == "survived"
        more = survivor and int(record["seed"]) < arguments.seeds_max if record else True
        noticed = record is not None and record["verdict"] in ("killed", "hangs")
        if record is None:
            wanted = not arguments.killed
        else:
            wanted = (arguments.survivors and more) or (arguments.killed and noticed)
        if wanted:
            yield mutant


def run(arguments: argparse.Namespace) -> int:
    todo, known = list(_wanted(arguments)), read_ledger(arguments.ledger)
    print(f"{len(todo)} mutants to run, {arguments.jobs} at a time")
    baseline = Baseline()
    end = time.monotonic() + arguments.minutes * 60 if arguments.minutes else None

    def work(mutant: Mutant) -> dict[str, Any] | None:
        if end is not None and time.monotonic() > end:
            return None
        before = known.get(mutant.name, {})
        # A survivor continues behind the seeds that it has survived.
        first = before["seed"] + 1 if before.get("verdict") == "survived" else 1
        found = run_mutant(mutant, arguments.seeds_max, arguments.budget, baseline, first)
        return {**found, "commit": commit()}

    counts: dict[str, int] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for record in pool.map(work, todo):
            if record is None:
                continue
            with arguments.ledger.open("a", encoding="utf-8") as ledger:
                ledger.write(json.dumps(record, sort_keys=True) + "\n")
            counts[record["verdict"]] = counts.get(record["verdict"], 0) + 1
            where = f"{record['module']}:{record['function']}:{record['line']}"
            what = f"{record['operator']}: {record['before']} -> {record['after']}"
            print(f"{record['verdict']:<9} {record['seed']:>4} {record.get('rule', ''):<28}"
                  f" {record['name']} {where} {what}", flush=True)  # fmt: skip
    print(" ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items())))
    return 0


def list_mutants(arguments: argparse.Namespace) -> int:
    known = read_ledger(arguments.ledger)
    generated = [m for m in generate_all() if arguments.module in (None, m.module)]
    for m in sample(generated, arguments.sample):
        verdict = known.get(m.name, {}).get("verdict", "-")
        print(f"{m.name} {verdict:<9} {m.module}:{m.function}:{m.line} {m.operator}:"
              f" {m.before} -> {m.after}")  # fmt: skip
    print(f"{len(generated)} mutants can be generated from {len(MODULES)} modules")
    return 0


def parse(raw: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutation.run", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="list the mutants and their results")
    what.add_argument("--generate", action="store_true", help="the same as --list")
    what.add_argument("--run", action="store_true", help="run mutants that have no result yet")
    what.add_argument("--table", action="store_true", help="write docs/reference/mutants.md")
    what.add_argument(
        "--one",
        nargs=3,
        metavar=("MODULE", "NAME", "STACK"),
        help="run one mutant, in this process",
    )
    parser.add_argument("--sample", type=int, default=10**6, help="generated mutants at most")
    parser.add_argument("--module", default=None, help="run mutants of this module only")
    parser.add_argument(
        "--generated-only", action="store_true", help="leave out the mutants by hand"
    )
    parser.add_argument(
        "--survivors", action="store_true", help="run survivors again, with further seeds"
    )
    parser.add_argument("--killed", action="store_true", help="run killed mutants again")
    parser.add_argument("--seed-min", type=int, default=1, help="the first seed of --one")
    parser.add_argument("--seeds-max", type=int, default=1000, help="seeds per mutant at most")
    parser.add_argument("--budget", type=float, default=120.0, help="processor seconds per mutant")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="start no mutant after this time"
    )
    parser.add_argument("--jobs", type=int, default=1, help="parallel processes")
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="the file of results")
    return parser.parse_args(raw)


def main(raw: list[str]) -> int:
    arguments = parse(raw)
    if arguments.one:
        module, name, only = arguments.one
        last, seconds = arguments.seeds_max, arguments.budget
        print(json.dumps(_try_seeds(module, name, only, arguments.seed_min, last, seconds)))
        return 0
    if arguments.run:
        return run(arguments)
    if arguments.table:
        from tests.sim.mutation.report import write_table

        return write_table(read_ledger(arguments.ledger))
    return list_mutants(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
