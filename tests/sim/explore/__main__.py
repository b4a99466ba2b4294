"""Every way in which views may form, break and form again, up to a bound, for each voter set.

    python -m tests.sim.explore [--case NAME] [--layers N] [--closely N] [--states N]
    [--walks N]

There are three ways.  *Layers* (`exhaust`): a member is reduced to what matters for votes, and
every state within this many steps is examined; complete to the depth reported, limited only by time
and memory (5 voters to depth 3 take half a minute, to depth 4 hours).  *All steps* and *walks*
drive the real `Primary`, a message at a time; they examine fewer states, and abstract less.

Unlike the seeded simulator all steps are *all* choices from each state found: which members form
the next view, how far that view gets (states exchanged, epochs promised, activated at some, a
command applied at some, all of it durable), whose disk is slow, who loses power, whose disk is
lost.  Equal states are examined once.  The members are the real `Primary` over the real votes; the
ring is its definition (a message delivered in the regular configuration by any member was received
by all).  What must hold: an epoch has one view, successive epochs share a voter (G7), and whatever
any member confirmed is in every later primary (G8).
"""

from __future__ import annotations

import argparse
import pickle
import random
import sys
import time
from collections import deque
from typing import NamedTuple

from tests.sim.explore.abstract_state import COMMAND, PARTIAL
from tests.sim.explore.exhaustive import Broken, Search
from tests.sim.explore.world import Case, Step, World

CASES = {
    "three": Case(("a", "b", "c")),
    "two": Case(("a", "b")),
    "arbitrated": Case(("a", "b", "@arbitrator=x")),
    "two_node": Case(("a", "b", "@two_node", "@arbitrator=x")),
    "arbitrated-three": Case(("a", "b", "c", "@arbitrator=x")),
    "arbitrated-heavy": Case(("a=2", "b", "c", "@arbitrator=x=2")),
    "tie": Case(("a", "b", "c", "d", "@auto_tie_breaker=lowest")),
    "tie-two": Case(("a", "b", "@auto_tie_breaker=highest")),
    "weighted": Case(("a=3", "b", "c", "d")),
    "expected": Case(("a", "b", "c", "@expected_votes=4")),
    "wait_for_all": Case(("a", "b", "c", "@wait_for_all")),
    "five": Case(("a", "b", "c", "d", "e")),
    "six": Case(("a", "b", "c", "d", "e", "f", "@auto_tie_breaker=lowest")),
    "seven": Case(("a", "b", "c", "d", "e", "f", "g")),
    "seven-weighted": Case(("a=3", "b=2", "c=2", "d", "e", "f", "g", "@arbitrator=x")),
    "arbitrated-four": Case(("a", "b", "c", "d", "@arbitrator=x")),
    "arbitrated-tie": Case(("a", "b", "c", "@arbitrator=x", "@auto_tie_breaker=b")),
    "arbitrated-expected": Case(("a", "b", "c", "@arbitrator=x", "@expected_votes=5")),
    "two_node-wait": Case(("a", "b", "@two_node", "@arbitrator=x", "@wait_for_all")),
    "tie-weighted": Case(("a=2", "b", "c", "@auto_tie_breaker=lowest")),
    "replaced": Case(("a", "b", "c"), ("a", "b", "d"), ("d",)),
    "replaced-five": Case(("a", "b", "c", "d", "e"), ("a", "b", "c", "d", "f"), ("f",)),
    "moved": Case(("a",), ("b",), ("b",)),
    "removed": Case(("a", "b", "c"), ("a", "b")),
    "added": Case(("a", "b"), ("a", "b", "c"), ("c",)),
    "replaced-arbitrated": Case(("a", "b", "@arbitrator=x"), ("a", "c", "@arbitrator=x"), ("c",)),
    "removed-arbitrated": Case(("a", "b", "@arbitrator=x"), ("a", "@arbitrator=x")),
    "removed-arbitrated-three": Case(("a", "b", "c", "@arbitrator=x"), ("a", "b", "@arbitrator=x")),
    "added-arbitrated": Case(("a", "@arbitrator=x"), ("a", "b", "@arbitrator=x"), ("b",)),
    "arbitrator-added": Case(("a", "b"), ("a", "b", "@arbitrator=x"), ("x",)),
    "standing": Case(
        ("a", "b", "c", "d", "@last_man_standing=1"),
        ("a", "b", "c", "d", "@last_man_standing=1", "@away=d"),
    ),
    "standing-tie": Case(
        ("a", "b", "@last_man_standing=1", "@auto_tie_breaker=lowest"),
        ("a", "b", "@last_man_standing=1", "@auto_tie_breaker=lowest", "@away=b"),
    ),
}
PAIRS = {"pair": Case(("a", "b", "@pair=b"))}
"""Cases not among the layers: there a member's choices depend on whether it was restarted."""


class Report(NamedTuple):
    """The states examined.  The last fields show that something happened at all."""

    states: int
    steps: int
    depth: int  # all states within this many steps were examined
    seconds: float
    epochs: int = 0  # the most in one run
    confirmed: int = 0  # the highest position

    def __str__(self) -> str:
        return (
            f"{self.states} states, {self.steps} steps, complete to depth {self.depth}, "
            f"epochs up to {self.epochs}, confirmed up to {self.confirmed}, {self.seconds:.1f} s"
        )


def _try(world: World, step: Step) -> None:
    try:
        world.take(step)
    except AssertionError as wrong:
        way = "\n".join(f"  {number}. {one}" for number, one in enumerate(world.path, 1))
        raise Broken(f"{wrong}\n{way}") from wrong


def explore(case: Case, states_max: int, depth_max: int = 99) -> Report:
    """Examine all next steps of each state, the nearest first, until `states_max` are found."""
    started = time.perf_counter()
    first = World(case)
    queue = deque([(0, pickle.dumps(first))])
    seen, taken, complete, epochs, confirmed = {hash(first.key())}, 0, 0, 0, 0
    while queue and len(seen) < states_max:
        depth, packed = queue.popleft()
        complete = depth
        if depth >= depth_max:
            break
        for step in World.steps(pickle.loads(packed)):
            world = pickle.loads(packed)
            _try(world, step)
            taken += 1
            epochs = max(epochs, len(world.epochs))
            confirmed = max(confirmed, world.confirmed_position)
            key = hash(world.key())
            if key not in seen:
                seen.add(key)
                queue.append((depth + 1, pickle.dumps(world)))
            if len(seen) >= states_max:
                break
    seconds = time.perf_counter() - started
    return Report(len(seen), taken, complete, seconds, epochs, confirmed)


def walk(case: Case, seed: int, depth: int) -> Report:
    """One long way through the states, drawn from a seed."""
    started, chance = time.perf_counter(), random.Random(seed)
    world, seen = World(case), set[int]()
    for _ in range(depth):
        (step,) = world.steps(chance)
        _try(world, step)
        seen.add(hash(world.key()))
    seconds = time.perf_counter() - started
    return Report(len(seen), depth, 0, seconds, len(world.epochs), world.confirmed_position)


def main(arguments: list[str]) -> int:
    """Run the command line."""
    all_cases = {**CASES, **PAIRS}
    parser = argparse.ArgumentParser(prog="python -m tests.sim.explore", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--case", action="append", choices=all_cases, help="default: all")
    parser.add_argument("--layers", type=int, default=3, help="the depth; default 3, 0 for none")
    parser.add_argument(
        "--closely", type=int, choices=range(PARTIAL + 1), default=COMMAND,
        help="0: activations only; 1: with a command or a change of the voters in each view; "
        "2: with messages that only some received; default 1",
    )  # fmt: skip
    parser.add_argument(
        "--states", type=int, default=2000, help="states of each case; default 2000"
    )
    parser.add_argument("--walks", type=int, default=50, help="walks of each case; default 50")
    parser.add_argument("--depth", type=int, default=60, help="the depth of a walk; default 60")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first walk")
    parser.add_argument("--list", action="store_true", help="only print the cases")
    given = parser.parse_args(arguments)
    for name in given.case or all_cases:
        case = all_cases[name]
        print(f"{name:20} {' '.join(case.terms)}", *(("->", *case.change) if case.change else ()))
        if given.list:
            continue
        try:
            if given.layers and name in CASES:
                print(f"{'':20} layers: {Search(case, given.closely).run(given.layers)}")
            print(f"{'':20} all steps: {explore(case, given.states)}", flush=True)
            walks = [walk(case, given.seed + n, given.depth) for n in range(given.walks)]
        except Broken as broken:
            print(f"BROKEN {broken}")
            return 1
        states, steps = sum(w.states for w in walks), sum(w.steps for w in walks)
        epochs, confirmed = max(w.epochs for w in walks), max(w.confirmed for w in walks)
        print(
            f"{'':20} {len(walks)} walks: {states} states, {steps} steps, "
            f"epochs up to {epochs}, confirmed up to {confirmed}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
