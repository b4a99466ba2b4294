"""Running seeds: options, one line per run, and the summary of many."""

from __future__ import annotations

import gc
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.sim.broker.stack import BrokerStack
from tests.sim.pairs.stack import PairStack, pair_plan
from tests.sim.run.plan import Plan, make_plan
from tests.sim.run.runner import SEED_CPU_S, Result, Runner
from tests.sim.stacks.groups import GroupStack
from tests.sim.stacks.oracle import Oracle
from tests.sim.stacks.stack import PlainStack, ReplicaStack, Stack
from tests.sim.world.cores import make_node
from tests.sim.world.trace import Trace
from tests.sim.world.world import NO_FAULTS
from vsync.types import record


@record
class Options:
    """How to run a seed; nothing here changes what the seed draws."""

    without: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    ring_only: bool = False
    keep_trace: bool = False
    frames: bool = False
    memberlog: str | None = None
    ringtrace: str | None = None
    stack: str = "replica"
    cpu_s: float = SEED_CPU_S


STACKS = ("ring", "replica", "broker", "oracle", "groups", "pair")
"""The stacks of layers above the ring, by the names that campaigns use."""


def collect_seldom() -> None:
    """Collect cycles a seventieth as often, in a process that only runs seeds.

    A run keeps its whole history, which the collector would traverse again and again: an eighth of
    the time.  The remains of a finished run, some ten megabytes, are still collected.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def options_for(stack: str) -> Options:
    """The options of a run on this stack.  Raises ValueError if there is no such stack."""
    if stack not in (*STACKS, "mixed"):
        raise ValueError(f"no stack is called {stack!r}; there are {', '.join(STACKS)} and mixed")
    return Options(ring_only=True) if stack == "ring" else Options(stack=stack)


def plan_of(seed: int, options: Options) -> Plan:
    return make_plan(seed, options.without, options.only, primary=not options.ring_only)


def run_seed(seed: int, options: Options) -> Result:
    return run_plan(plan_of(seed, options), options)


def command_for(stack: str, seed: int) -> str:
    """The command with which a person replays a run."""
    return f"python -m tests.sim --stack {stack} --seed {seed}"


def _lighter(plan: Plan) -> Plan:
    """A load for brokers, which do more for each message: fewer messages leave time for more
    views."""
    return replace(
        plan,
        load_gap_s=max(plan.load_gap_s, 0.01),
        load_burst=min(plan.load_burst, 3),
        steps_max=min(plan.steps_max, 12000),
    )


def has_brokers(plan: Plan, options: Options) -> bool:
    """Whether the rings of a mixed campaign's seed have real brokers: every third does."""
    mixed = options.stack == "mixed" and plan.seed % 3 == 0
    return plan.primary and (mixed or options.stack in ("broker", "oracle", "pair"))


def run_plan(plan: Plan, options: Options) -> Result:
    trace = Trace(options.keep_trace, options.frames)
    if has_brokers(plan, options):
        plan = _lighter(plan)
    if options.stack == "pair":
        plan = pair_plan(plan)
    if options.stack == "oracle":
        oracle = Oracle(plan)
        runner = Runner(plan, oracle.make_core, stack_of(plan, options), trace, options.cpu_s)
        oracle.world = runner.world
        return runner.run()
    runner = Runner(plan, make_node, stack_of(plan, options), trace, options.cpu_s)
    if options.ringtrace is not None:
        runner.world.ringtrace = Path(options.ringtrace)
        runner.world.ringtrace.mkdir(parents=True, exist_ok=True)
    return runner.run()


def stack_of(plan: Plan, options: Options) -> Stack:
    """The layers above the rings."""
    if not plan.primary:
        return PlainStack()
    if options.stack == "groups":
        return GroupStack()
    if has_brokers(plan, options):
        kind = PairStack if options.stack == "pair" else BrokerStack
        return kind(None if options.memberlog is None else Path(options.memberlog))
    return ReplicaStack()


def run_line(result: Result) -> str:
    verdict = "ok  " if result.ok else "FAIL"
    return (
        f"{verdict} seed {result.plan.seed:<6} members {len(result.plan.names)}"
        f" events {result.steps:<6} messages {result.messages:<5} views {result.views:<4}"
        f"{result.above} settle {result.settle_s:5.2f} s  virtual {result.virtual_s:6.1f} s"
        f" wall {result.wall_s:5.2f} s  trace {result.trace.hash()}"
    )


class Outcome(NamedTuple):
    """The results of a run that a campaign keeps; plain values that can pass between processes."""

    stack: str
    seed: int
    ok: bool
    counted: bool
    steps: int
    changes: int
    wall_s: float
    trace: str
    line: str
    violations: list[str]
    faults: dict[str, int]
    pairs: list[tuple[str, str, int]]


def outcome_of(stack: str, result: Result) -> Outcome:
    return Outcome(
        stack,
        result.plan.seed,
        result.ok,
        result.counted,
        result.steps,
        result.world.history.changes(),
        result.wall_s,
        result.trace.hash() if result.ended else "",
        run_line(result),
        [str(violation) for violation in result.violations],
        dict(result.faults),
        [(fault, stage, count) for (fault, stage), count in result.world.pairs.items()],
    )


class Summary:
    """Totals of a campaign."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seeds = 0
        self.counted = 0
        self.steps = 0
        self.changes = 0
        self.failed: list[Outcome] = []
        self.faults: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.counted += outcome.counted
        self.steps += outcome.steps
        self.changes += outcome.changes
        self.faults.update(outcome.faults)
        for fault, stage, count in outcome.pairs:
            self.pairs[fault, stage] += count
        if not outcome.ok:
            self.failed.append(outcome)

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self.began

    def __str__(self) -> str:
        wall = self.wall_s
        return (
            f"{self.seeds} seeds ({self.counted} counted), {len(self.failed)} failed,"
            f" {self.steps} events, {self.changes} view changes,"
            f" {len(self.faults.keys() - NO_FAULTS)} kinds of fault in {wall:.1f} s:"
            f" {self.steps / wall:.0f} events/s, {self.seeds / wall * 60:.0f} seeds/min"
        )
