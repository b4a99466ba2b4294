"""Exhaustive exploration of each voter set, layer by layer; mistakes put into the rules are found.

The everyday run takes a layer or two; `slow` goes as deep as a minute allows, and `python -m
tests.sim.explore` goes further.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from tests.sim.explore import abstract_view
from tests.sim.explore.__main__ import CASES
from tests.sim.explore.abstract_state import ACTIVATION, COMMAND, PARTIAL, Log, Part, dark
from tests.sim.explore.exhaustive import Broken, Search, State
from tests.sim.explore.world import Case
from tests.unit.vsync.quorum import test_voter_sets_explored as known
from vsync.primary import state_exchange
from vsync.primary.events import StateReport
from vsync.primary.state_exchange import Plan, make_plan
from vsync.quorum import voter_set
from vsync.quorum.voter_set import Electorate
from vsync.types import Member

SMALL = ("two", "three", "two_node", "tie-two", "moved", "removed")
DEEP = dict.fromkeys(SMALL, ((COMMAND, 2), (ACTIVATION, 3)))
MANY_STATES = ("seven-weighted", "replaced-five")


@pytest.mark.parametrize("name", CASES)
def test_every_step_from_the_first_states(name: str) -> None:
    """G7, G8: a cluster that starts and one that runs, for each accepted voter set."""
    search = Search(CASES[name], ACTIVATION)
    assert search.run(1).states > 10
    assert any(state.confirmed for state in search.came)


@pytest.mark.slow
@pytest.mark.turns(8)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_every_state_up_to_a_depth(name: str) -> None:
    """G7, G8. The figures are in docs/reference/bench-simulator.md."""
    many = name in MANY_STATES
    plain = (ACTIVATION, 1 if many else 2), (COMMAND if many else PARTIAL, 1)
    for closely, depth in DEEP.get(name, plain):
        done = Search(CASES[name], closely).run(depth)
        print(f"{name}, looked at with closeness {closely}: {done}")
        assert done.ended or done.depth == depth


def from_a_donor_that_holds_a_command_unstable(confirmed: Log) -> Search:
    """Two disks have the command that the donor holds unstable, and one of the two lost power."""
    search = Search(CASES["three"], COMMAND, lost_disks=False)
    serving = Part(filled=True, log=((1, 0, 0),), promised=1, complete=True, ran=True)
    applied = serving._replace(log=((1, 0, 0), (1, 1, 0)))
    members = serving._replace(unstable=((1, 1, 0),)), applied, dark(applied, waits=False)
    state = State((tuple(sorted(map(search.model.number, members))),), confirmed, 1)
    with patch.object(search, "starts", lambda: [state]):
        search.run(2)
    return search


def test_what_a_donor_holds_unstable_must_not_be_confirmed() -> None:
    """G8: it may be given up although a majority of the disks has it (the donor's state
    replaces a store, and the donor dies before the activation). So no mark may come early:
    see `test_marks.py`."""
    assert len(from_a_donor_that_holds_a_command_unstable(((1, 0, 0),)).came) > 1000
    with pytest.raises(Broken, match="G8: epoch 3 is entered without what was confirmed"):
        from_a_donor_that_holds_a_command_unstable(((1, 0, 0), (1, 1, 0)))


FIVE = CASES["five"]
Mistake = tuple[Callable[[ExitStack], object], Case, int, int]


def lowest_promise(patches: ExitStack) -> None:
    """The epoch follows the smallest promise present."""

    def plan(members: tuple[Member, ...], state_reports: dict[Member, StateReport]) -> Plan:
        found = make_plan(members, state_reports)
        ours = [state_reports[m].promised_epoch for m in members if state_reports[m].filled]
        return found._replace(epoch=1 + min(ours)) if ours else found

    patches.enter_context(patch.object(abstract_view, "make_plan", plan))


def position_first(patches: ExitStack) -> None:
    """The longest log wins, whatever its epoch."""

    def worth(
        member: Member, _ours: list[Member], state_reports: dict[Member, StateReport]
    ) -> tuple[int, bool, int]:
        one = state_reports[member]
        return one.position, one.complete, one.reach

    patches.enter_context(patch.object(state_exchange, "_worth", worth))


def small_formation(patches: ExitStack) -> None:
    """One vote fewer forms a view; durability is counted as before."""
    real = voter_set.VoterSet.quorate

    def fewer(self: voter_set.VoterSet, names: Collection[str]) -> bool:
        more = [name for name in self.names if name not in names][:1]
        return bool(names) and real(self, {*names, *more})

    def plan(members: tuple[Member, ...], state_reports: dict[Member, StateReport]) -> Plan:
        with patch.object(voter_set.VoterSet, "quorate", fewer):
            return make_plan(members, state_reports)

    patches.enter_context(patch.object(abstract_view, "make_plan", plan))
    patches.enter_context(patch.object(abstract_view, "activate", lambda *_: "now"))


def without_promises(patches: ExitStack) -> None:
    """The activation is sent as soon as one member has promised."""

    def now(_plan: object, _members: object, _states: object, answers: dict[Member, bool],
            _fresh: object) -> bool | None:  # fmt: skip
        return any(answers.values()) or None

    patches.enter_context(patch.object(abstract_view, "activate", now))


def formed_by_the_new_voters_alone(patches: ExitStack) -> None:
    """During a change the new voters alone form views."""

    def new_alone(self: Electorate, names: Collection[str]) -> bool:
        return bool(self.sets) and self.sets[-1].quorate(names)

    patches.enter_context(patch.object(Electorate, "quorate", new_alone))


def change_counted_by_the_old_voters_alone(patches: ExitStack) -> None:
    """During a change the old voters alone make a confirmed command durable."""

    def old_alone(
        self: Electorate, marks: dict[str, int], caught_up: Collection[str], epoch: int
    ) -> int:
        return self.sets[0].durable(marks, caught_up, epoch) if self.sets else 0

    patches.enter_context(patch.object(Electorate, "durable", old_alone))


QUICK: list[Mistake] = [
    (lowest_promise, FIVE, ACTIVATION, 3),
    (small_formation, FIVE, ACTIVATION, 3),
    (without_promises, CASES["three"], ACTIVATION, 3),
    (known.change_before_it_is_durable, CASES["moved"], COMMAND, 4),
    (known.believing_arbitrator, CASES["arbitrated"], ACTIVATION, 3),
    (known.arbitrator_counts_as_disk, CASES["arbitrated"], ACTIVATION, 3),
    (known.record_comes_later, CASES["arbitrated"], ACTIVATION, 3),
    (known.lower_quorum, FIVE, ACTIVATION, 3),
    (known.either_half, CASES["tie"], ACTIVATION, 3),
    (known.unfenced_pair, Case(("a", "b", "@two_node")), ACTIVATION, 3),
    (known.expected_too_low, Case(("a", "b", "c", "d", "@expected_votes=3")), ACTIVATION, 3),
]
LONG: list[Mistake] = [
    (position_first, CASES["three"], ACTIVATION, 4),
    (formed_by_the_new_voters_alone, CASES["moved"], COMMAND, 4),
    (change_counted_by_the_old_voters_alone, CASES["moved"], COMMAND, 4),
    (known.change_in_one_step, CASES["moved"], COMMAND, 4),
    (known.lower_quorum, CASES["seven"], ACTIVATION, 3),
    (known.either_half, CASES["six"], ACTIVATION, 3),
    (known.believing_arbitrator, CASES["arbitrated-four"], ACTIVATION, 3),
]
SLOW = [pytest.mark.slow, pytest.mark.turns(3)]
MISTAKES = [
    *(pytest.param(*one, id=one[0].__name__) for one in QUICK),
    *(pytest.param(*one, id=one[0].__name__, marks=SLOW) for one in LONG),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mistake", "case", "closely", "depth"), MISTAKES)
def test_a_mistake_in_the_rules_is_found(
    mistake: Callable[[ExitStack], object], case: Case, closely: int, depth: int
) -> None:
    """G7, G8: with the shortest way to it."""
    with ExitStack() as patches:
        mistake(patches)
        with pytest.raises(Broken, match=r"(?s)G[78]: .*confirmed"):
            Search(case, closely).run(depth)
