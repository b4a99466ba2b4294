"""Random exploration of splits, merges and restarts for each voter set; mistakes put in are found.

The everyday run is a sample; `slow` (or `python -m tests.sim.explore`) is the campaign.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

from tests.sim.explore.__main__ import CASES, explore, walk
from tests.sim.explore.exhaustive import Broken
from tests.sim.explore.world import Case, Step, World
from vsync.primary.component import Primary
from vsync.primary.events import HELD, PrimaryPhase
from vsync.quorum import reconfiguration, voter_set
from vsync.quorum.voter_set import Electorate, EpochRecord, Terms, VoterSet


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", CASES)
def test_never_two_primaries_and_no_confirmed_command_is_forgotten(name: str) -> None:
    """G7, G8: a sample for each accepted voter set."""
    reports = [walk(CASES[name], seed, depth=30) for seed in range(2)]
    assert any(report.confirmed for report in reports)


def test_a_promise_that_is_durable_late_does_not_make_a_holder() -> None:
    """G8: b's disk keeps its promise after a and x confirmed commands that b's disk lacks.

    Then a and b lose power. The arbitrator must not let b go on without a.
    """
    world = World(CASES["arbitrated"])
    everybody = ("a", "b", "x")
    world.take(Step(everybody, crash=("b",)))
    world.take(Step(("a", "x")))
    world.take(Step(everybody, lags=("b",), crash=("a", "b")))
    assert world.confirmed_position > len(world.peers["b"].disk.entries)
    assert world.peers["x"].disk.holders == ("a",)
    world.take(Step(("b", "x")))
    assert not world.peers["b"].primary.active
    world.take(Step(everybody))
    assert world.peers["b"].primary.active


def test_an_arbitrator_votes_with_the_last_holder_even_while_it_is_removed() -> None:
    """L4: none of the new voters was a holder, and nobody ever went on."""
    world = World(CASES["removed-arbitrated"])
    everybody = ("a", "b", "x")
    world.take(Step(everybody))
    world.take(Step(("b", "x")))
    world.take(Step(everybody, lags=("a",), change=True, crash=everybody))
    assert "->" in world.peers["b"].disk.voters
    assert world.peers["x"].disk.holders == ("b",)
    world.take(Step(("a", "x")))
    assert not world.peers["a"].primary.active
    world.take(Step(everybody))
    assert world.peers["a"].primary.active
    assert world.peers["b"].primary.active


@pytest.mark.slow
@pytest.mark.turns(8)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_every_step_from_every_state_up_to_a_bound(name: str) -> None:
    """G7, G8: the campaign."""
    report = explore(CASES[name], states_max=200)
    print(f"{name}: {report}")
    for seed in range(20):
        walk(CASES[name], seed, depth=80)


Mistake = Callable[[ExitStack], Case]


def unfenced_pair(patches: ExitStack) -> Case:
    """two_node is accepted without a tie breaker."""
    patches.enter_context(patch.object(VoterSet, "flaw", lambda _self: ""))
    return Case(("a", "b", "@two_node"))


def expected_too_low(patches: ExitStack) -> Case:
    """The quorum is counted from fewer votes than exist."""
    patches.enter_context(patch.object(VoterSet, "flaw", lambda _self: ""))
    return Case(("a", "b", "c", "d", "@expected_votes=3"))


def either_half(patches: ExitStack) -> Case:
    """Both halves win a tie."""

    def half(self: VoterSet, names: Collection[str]) -> bool:
        return 2 * self.votes_of(names) >= self.total

    patches.enter_context(patch.object(VoterSet, "quorate", half))
    return CASES["tie"]


def believing_arbitrator(patches: ExitStack) -> Case:
    """The arbitrator votes with any member."""

    def all_of_them(
        _self: Electorate, epochs: Mapping[str, int], records: Mapping[str, EpochRecord]
    ) -> frozenset[str]:
        return frozenset({*epochs, *records})

    patches.enter_context(patch.object(Electorate, "credible", all_of_them))
    return CASES["arbitrated"]


def arbitrator_counts_as_disk(patches: ExitStack) -> Case:
    """One disk and the arbitrator make durable what another caught-up voter lacks."""
    durable = VoterSet.durable

    def early(
        self: VoterSet, marks: Mapping[str, int], caught_up: Collection[str], epoch: int
    ) -> int:
        best = max((marks.get(name, 0) for name in self.counted if name in caught_up), default=0)
        if self.arbitrator in caught_up and marks.get(self.arbitrator, 0) >= epoch:
            return best
        return durable(self, marks, caught_up, epoch)

    patches.enter_context(patch.object(VoterSet, "durable", early))
    return CASES["arbitrated"]


def record_comes_later(patches: ExitStack) -> Case:
    """The arbitrator's vote counts before its record of the epoch is on disk."""
    durable = VoterSet.durable

    def now(
        self: VoterSet, marks: Mapping[str, int], caught_up: Collection[str], _epoch: int
    ) -> int:
        return durable(self, marks, caught_up, 0)

    patches.enter_context(patch.object(VoterSet, "durable", now))
    return CASES["arbitrated"]


def holder_too_early(patches: ExitStack) -> Case:
    """The arbitrator names a member as soon as it has caught up, whatever its disk has."""
    caught_up = Primary._on_caught_up

    def at_once(self: Primary, sender: object) -> None:
        caught_up(self, sender)  # type: ignore[arg-type]
        self._add_holders(frozenset((str(sender),)))

    patches.enter_context(patch.object(Primary, "_on_caught_up", at_once))
    return CASES["arbitrated"]


def late_promise_is_a_holder(patches: ExitStack) -> Case:
    """A promise that is durable after the activation counts for all commands ordered since.

    This lost two of 264 messages for which clients held confirmations, with all disks intact.
    """
    persisted = Primary.persisted

    def any_completion(self: Primary, request: int) -> None:
        if self.phase is PrimaryPhase.ACTIVE:
            self._send(HELD, (self.epoch,))
        persisted(self, request)

    patches.enter_context(patch.object(Primary, "persisted", any_completion))
    return CASES["arbitrated"]


def change_in_one_step(patches: ExitStack) -> Case:
    """The new voters decide alone from the moment the change is ordered."""

    def at_once(_terms: Terms, new: Terms) -> Terms:
        return new

    patches.enter_context(patch.object(reconfiguration, "change_to", at_once))
    return CASES["moved"]


def change_before_it_is_durable(patches: ExitStack) -> Case:
    """During a change the new voters alone make a confirmed command durable."""

    def new_alone(
        self: Electorate, marks: Mapping[str, int], caught_up: Collection[str], epoch: int
    ) -> int:
        return self.sets[-1].durable(marks, caught_up, epoch) if self.sets else 0

    patches.enter_context(patch.object(Electorate, "durable", new_alone))
    return CASES["moved"]


def lower_quorum(patches: ExitStack) -> Case:
    """One vote fewer is enough."""
    patches.enter_context(patch.object(VoterSet, "flaw", lambda _self: ""))
    patches.enter_context(patch.object(voter_set, "majority", lambda votes: max(1, votes // 2)))
    return CASES["five"]


MISTAKES: list[Mistake] = [
    unfenced_pair, expected_too_low, either_half, believing_arbitrator, arbitrator_counts_as_disk,
    record_comes_later, holder_too_early, late_promise_is_a_holder, change_in_one_step,
    change_before_it_is_durable, lower_quorum,
]  # fmt: skip
SEEDS = [1, 3, 5, 21, 22, 29, 92, *range(400)]
"""Those that find them today come first; should they miss, the rest has its turn."""


@contextmanager
def made(mistake: Mistake) -> Iterator[Case]:
    with ExitStack() as patches:
        yield mistake(patches)


@pytest.mark.turns(4)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_about_votes_is_found(mistake: Mistake) -> None:
    """G7, G8: the exploration finds it."""
    with made(mistake) as case, pytest.raises(Broken, match=r"G[78]"):
        search(case)


def search(case: Case) -> None:
    """Follow long random paths until one of them fails."""
    for seed in SEEDS:
        walk(case, seed, depth=60)
