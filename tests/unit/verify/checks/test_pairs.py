"""One of a pair that goes on alone chooses its voters itself; that both did is a finding (G28)."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numpy")

from tools.verify.checks.voter_changes import _goes_on_alone, check_pairs
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.voters import read_voters

PAIR = ("a", "b", "@pair=b")
A_ALONE, B_ALONE = (*PAIR, "@away=b"), (*PAIR, "@away=a")


@pytest.mark.parametrize(
    ("voters", "before", "may"),
    [
        (A_ALONE, PAIR, True), (B_ALONE, PAIR, True),
        (A_ALONE, (*A_ALONE, "->", *PAIR), True),  # the other one was about to count again
        (B_ALONE, (*A_ALONE, "->", *PAIR), False),  # and could not know yet that it was
        (B_ALONE, A_ALONE, False), (PAIR, A_ALONE, False),
        (("a", "b", "@away=b"), ("a", "b"), False),  # no pair
        (("a", "c", "@pair=b", "@away=c"), PAIR, False),
        ((*PAIR, "@away=a", "@away=b"), PAIR, False),
    ],
)  # fmt: skip
def test_which_voters_one_of_a_pair_may_choose(
    voters: tuple[str, ...], before: tuple[str, ...], may: bool
) -> None:
    """G7: no other set without a command."""
    assert _goes_on_alone(voters, before) is may


def active(member: str, epoch: int, voters: tuple[str, ...]) -> Row:
    kind = RecordKind.ACTIVE
    return Row("", member, 1, 1, epoch, kind, epoch=epoch, position=epoch, voters=list(voters))


def changed(*positions: int) -> Row:
    """A segment in which the voters changed there, by commands."""
    return Row("", "a", 1, 1, 0, SEGMENT, text=json.dumps({"voters_at": positions}))


def test_that_both_went_on_alone_is_found() -> None:
    """Also in the same epoch, as neither knew of the other."""
    whole = [active("a", 1, PAIR), active("b", 1, PAIR)]
    ordered = [*whole, active("a", 2, A_ALONE), active("b", 3, A_ALONE), active("b", 5, B_ALONE)]
    assert list(check_pairs([*ordered, changed(4)])) == [], "it counted again in epoch 3"
    assert len(list(check_pairs([*ordered, changed(1, 6)]))) == 1
    by_turns = [
        *whole, active("a", 2, A_ALONE), active("a", 3, A_ALONE), active("a", 4, PAIR),
        active("b", 4, PAIR), active("b", 5, B_ALONE),
    ]  # fmt: skip
    assert list(check_pairs(by_turns)) == []
    both = [*whole, active("b", 2, B_ALONE), active("a", 2, A_ALONE), active("b", 3, B_ALONE)]
    found = list(check_pairs(both))
    assert {one.property for one in found} == {"G7"}
    assert len(found) == 1, "once, however the one that is kept goes on"
    assert "b went on alone in epoch 2, and a had gone on alone before" in found[0].what
    assert "exception 1 of G28" in found[0].what


def test_a_pair_is_counted_by_the_table() -> None:
    assert not read_voters(PAIR).is_majority(["a"])
    assert read_voters(PAIR).is_majority(["a", "b"])
    assert read_voters(A_ALONE).is_majority(["a"])
    assert not read_voters(A_ALONE).is_majority(["b"])
