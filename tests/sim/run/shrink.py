"""Finds the smallest scenario that still breaks the same promise, as a file that replays it.

Delta debugging over a seed's choices: faults, members, length of the chaos, single episodes and
strikes, the load.  Leaving one part out changes no other, because each draws from its own tape;
where something does shift, the run either still breaks the promise or the step is undone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from tests.sim.run.campaign import Options, options_for, plan_of, run_plan
from tests.sim.run.plan import Plan
from tests.sim.run.runner import Result
from vsync.types import record

T = TypeVar("T")


@record
class Scenario:
    """A seed and the parts of it that are kept; None means all."""

    seed: int
    stack: str
    faults: tuple[str, ...]
    members: int
    episodes: tuple[int, ...] | None = None
    strikes: tuple[int, ...] | None = None
    chaos_s: float | None = None
    loaded: bool = True

    def plan(self) -> Plan:
        plan = plan_of(self.seed, replace(options_for(self.stack), only=self.faults))
        plan = replace(
            plan,
            names=plan.names[: self.members],
            episodes=self.episodes,
            strikes=self.strikes,
            loaded=self.loaded,
        )
        if self.chaos_s is not None:
            plan = replace(plan, chaos_s=self.chaos_s, steps_min=0)
        return plan

    def run(self, keep_trace: bool = False) -> Result:
        options: Options = replace(options_for(self.stack), keep_trace=keep_trace)
        return run_plan(self.plan(), options)


def read(path: Path) -> Scenario:
    """Read a scenario from a file made by `write`.  Raises ValueError that names the wrong
    field."""
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    known = Scenario.__dataclass_fields__
    wrong = sorted(fields.keys() - known.keys())
    if wrong:
        raise ValueError(
            f"{path}: a scenario has no field {', '.join(wrong)}; see tests/sim/run/shrink"
        )
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Scenario(**lists)


def write(scenario: Scenario, path: Path) -> None:
    path.write_text(json.dumps(asdict(scenario), indent=1) + "\n", encoding="utf-8")


def ddmin(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of `items` that still fails and from which no single item can be removed (ddmin)."""
    kept = list(items)
    if fails([]):
        return []
    parts = 2
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        for chunk in chunks:
            rest = [item for item in kept if item not in chunk]
            if fails(rest):
                kept, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(kept):
                break
            parts = min(len(kept), 2 * parts)
    return kept


class Shrinker:
    """Tries ever smaller scenarios while there is time."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self.end = time.monotonic() + seconds
        self.say = say
        self.tried = 0
        self.rule = ""

    def fails(self, scenario: Scenario) -> bool:
        """Whether it breaks the promise that the whole seed broke; False when time is up."""
        if time.monotonic() > self.end:
            return False
        self.tried += 1
        return any(found.rule == self.rule for found in scenario.run().violations)

    def shrink(self, seed: int, stack: str) -> Scenario | None:
        """Shrink the seed; None if it does not fail at all."""
        plan = plan_of(seed, options_for(stack))
        best = Scenario(seed, stack, plan.faults, len(plan.names))
        whole = best.run()
        if whole.ok:
            return None
        self.rule = whole.violations[0].rule
        self.say(f"the whole seed: {whole.violations[0]}")
        best = self._faults(best)
        best = self._members(best)
        best = self._time(best, whole)
        best = self._episodes(best)
        quiet = replace(best, loaded=False)
        if self.fails(quiet):
            best = quiet
        best = self._faults(best)
        self.say(f"{self.tried} runs tried")
        return best

    def _faults(self, best: Scenario) -> Scenario:
        kept = ddmin(best.faults, lambda f: self.fails(replace(best, faults=tuple(f))))
        self.say(f"faults: {','.join(kept) or 'none'}")
        return replace(best, faults=tuple(kept))

    def _members(self, best: Scenario) -> Scenario:
        for count in range(1, best.members):
            fewer = replace(best, members=count)
            if self.fails(fewer):
                best = fewer
                break
        self.say(f"members: {best.members}")
        return best

    def _time(self, best: Scenario, whole: Result) -> Scenario:
        """Halve the chaos while it fails, then add quarters of what was too short."""
        length = whole.virtual_s
        low = 0.0
        for _ in range(10):
            middle = (low + length) / 2
            shorter = replace(best, chaos_s=middle)
            if self.fails(shorter):
                best, length = shorter, middle
            else:
                low = middle
        self.say(f"chaos: {length:.2f} s of {whole.virtual_s:.2f} s")
        return best

    def _episodes(self, best: Scenario) -> Scenario:
        world = best.run().world
        episodes, strikes = range(world.episodes), range(world.strikes)
        kept = ddmin(episodes, lambda e: self.fails(replace(best, episodes=tuple(e))))
        best = self._if(replace(best, episodes=tuple(kept)), best)
        kept = ddmin(strikes, lambda s: self.fails(replace(best, strikes=tuple(s))))
        best = self._if(replace(best, strikes=tuple(kept)), best)
        self.say(f"episodes: {best.episodes} strikes: {best.strikes}")
        return best

    def _if(self, smaller: Scenario, best: Scenario) -> Scenario:
        return smaller if self.fails(smaller) else best
