"""The count of calls in a turn of the ring: it counts something, and the same in each run."""

from __future__ import annotations

import pytest

from tests.bench.ringturns.__main__ import Calls, Codes, run, told

FEW = 12


@pytest.mark.parametrize("work", ["one", "slow"])
def test_counts_are_the_same_in_every_run(work: str) -> None:
    first, second, third, codes = Calls(), Calls(), Calls(), Codes()
    for turns in (first, second, third, codes):
        run(work, turns, 1, FEW)
    assert second.of == third.of  # the first one fills caches that outlive it
    assert first.digest == third.digest == codes.digest
    assert third.of.keys() == codes.of.keys()


def test_kinds_of_turns_are_told_apart() -> None:
    calls, codes = Calls(), Codes()
    for turns in (Calls(), calls, codes):
        run("one", turns, 2, FEW)
    assert {"submit > EARLY", "EARLY > REPORT REPORT", "commit > REPORT"} <= calls.of.keys()
    for kind in calls.of:  # Python 3.14 omits what a first turn does for the first time
        assert 0 < calls.typical(kind) < codes.typical(kind), kind
    assert "EARLY > REPORT REPORT" in told("one", {"calls": calls, "codes": codes})
