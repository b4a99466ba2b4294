"""The only random source of a simulated run.

Every choice is drawn from a `Tape`, and every tape descends from the run's one seed by name, so a
run is a function of (commit, seed, options).  With separate named tapes one part's choices do not
depend on how much another part draws: taking one fault out of a failing seed disturbs the rest as
little as possible.  Strings seed `random.Random` through SHA-512, never through `hash()`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import log
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """A named stream of choices."""

    def __init__(self, seed: int, name: str = "run") -> None:
        self.seed = seed
        self.name = name
        self.random = random.Random(f"{seed}/{name}")
        self._bits = self.random.getrandbits

    def fork(self, name: str) -> Tape:
        """Another stream of the same seed, independent of how much this one was used."""
        return Tape(self.seed, f"{self.name}/{name}")

    def chance(self, probability: float) -> bool:
        """True with this probability; draws nothing if the answer is certain."""
        return probability > 0.0 and self.random.random() < probability

    def between(self, low: float, high: float) -> float:
        """A uniform real number of the interval."""
        return low + (high - low) * self.random.random()

    def number(self, low: int, high: int) -> int:
        """A uniform integer of the closed interval."""
        return low + self._below(high - low + 1)

    def gap(self, mean: float) -> float:
        """A waiting time with this mean (exponential, cut at eight times the mean)."""
        return min(-log(1.0 - self.random.random()) / (1.0 / mean), 8.0 * mean)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, uniformly."""
        return items[self._below(len(items))]

    def some(self, items: Sequence[T], low: int, high: int) -> list[T]:
        """Between `low` and `high` distinct items, in the order of `items`."""
        count = min(len(items), self.number(low, high))
        chosen = sorted(self.random.sample(range(len(items)), count))
        return [items[i] for i in chosen]

    def _below(self, count: int) -> int:
        """One of 0 to `count` - 1, uniformly, with the draws of `randrange` in a third of its
        time."""
        if count < 1:
            raise ValueError("nothing to choose from")
        size = count.bit_length()
        found = self._bits(size)
        while found >= count:
            found = self._bits(size)
        return found
