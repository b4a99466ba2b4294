"""Running seeds: options, one line per run, the summary, and finding out what a failure takes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from tests.sim.broker_stack import BrokerStack
from tests.sim.cores import make_node
from tests.sim.groups import GroupStack
from tests.sim.oracle import Oracle
from tests.sim.plan import Plan, make_plan
from tests.sim.runner import Result, Runner
from tests.sim.stack import PlainStack, ReplicaStack, Stack
from tests.sim.trace import Trace
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
    stack: str = "replica"


def run_seed(seed: int, options: Options) -> Result:
    plan = make_plan(seed, options.without, options.only, primary=not options.ring_only)
    return run_plan(plan, options)


def _lighter(plan: Plan) -> Plan:
    """Brokers do more for each message: fewer of them leave time for more views."""
    return replace(
        plan,
        load_gap_s=max(plan.load_gap_s, 0.01),
        load_burst=min(plan.load_burst, 3),
        steps_max=min(plan.steps_max, 12000),
    )


def has_brokers(plan: Plan, options: Options) -> bool:
    """A mixed campaign has real brokers on the rings of every third seed."""
    mixed = options.stack == "mixed" and plan.seed % 3 == 0
    return plan.primary and (mixed or options.stack in ("broker", "oracle"))


def run_plan(plan: Plan, options: Options) -> Result:
    trace = Trace(options.keep_trace, options.frames)
    if has_brokers(plan, options):
        plan = _lighter(plan)
    if options.stack == "oracle":
        oracle = Oracle(plan)
        runner = Runner(plan, oracle.make_core, stack_of(plan, options), trace)
        oracle.world = runner.world
        return runner.run()
    return Runner(plan, make_node, stack_of(plan, options), trace).run()


def stack_of(plan: Plan, options: Options) -> Stack:
    """What stands on the rings."""
    if not plan.primary:
        return PlainStack()
    if options.stack == "groups":
        return GroupStack()
    if has_brokers(plan, options):
        return BrokerStack(None if options.memberlog is None else Path(options.memberlog))
    return ReplicaStack()


def run_line(result: Result) -> str:
    verdict = "ok  " if result.ok else "FAIL"
    return (
        f"{verdict} seed {result.plan.seed:<6} members {len(result.plan.names)}"
        f" events {result.steps:<6} messages {result.messages:<5} views {result.views:<4}"
        f"{result.above} settle {result.settle_s:5.2f} s  virtual {result.virtual_s:6.1f} s"
        f" wall {result.wall_s:5.2f} s  trace {result.trace.hash()}"
    )


def shrink(seed: int, options: Options) -> tuple[str, ...]:
    """Take faults away one by one while the seed still fails; what is left is needed."""
    needed = list(make_plan(seed, options.without, options.only).faults)
    for fault in list(needed):
        fewer = tuple(name for name in needed if name != fault)
        smaller = Options(only=fewer, ring_only=options.ring_only, stack=options.stack)
        if not run_seed(seed, smaller).ok:
            needed.remove(fault)
    return tuple(needed)


class Summary:
    """Totals of a campaign."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seeds = 0
        self.failed = 0
        self.steps = 0

    def add(self, ok: bool, steps: int) -> None:
        self.seeds += 1
        self.failed += not ok
        self.steps += steps

    def __str__(self) -> str:
        wall = time.perf_counter() - self.began
        return (
            f"{self.seeds} seeds, {self.failed} failed, {self.steps} events in {wall:.1f} s:"
            f" {self.steps / wall:.0f} events/s, {self.seeds / wall * 60:.0f} seeds/min"
        )
