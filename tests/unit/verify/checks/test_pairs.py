"""One member of a pair that goes on alone chooses its own voters; that both did is a finding
(G28).
"""

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
        (A_ALONE, (*A_ALONE, "->", *PAIR), True),  # the other member was about to count again
        (B_ALONE, (*A_ALONE, "->", *PAIR), False),  # and could not know yet that it does
        (B_ALONE, A_ALONE, False), (PAIR, A_ALONE, False),
        (("a", "b", "@away=b"), ("a", "b"), False),  # not a pair
        (("a", "c", "@pair=b", "@away=c"), PAIR, False),
        ((*PAIR, "@away=a", "@away=b"), PAIR, False),
        ((*A_ALONE, "@declared"), PAIR, True),  # an operator declared the other one lost
        (("a", "b", "c", "@pair=b", "@away=b"), ("a", "b", "c", "@pair=b"), False),
        ((*A_ALONE, "->", *A_ALONE), PAIR, False),
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
    """A segment in which commands changed the voters at these positions."""
    return Row("", "a", 1, 1, 0, SEGMENT, text=json.dumps({"voters_at": positions}))


def test_both_members_going_on_alone_is_found() -> None:
    """Even in the same epoch, as neither knew of the other."""
    whole = [active("a", 1, PAIR), active("b", 1, PAIR)]
    ordered = [*whole, active("a", 2, A_ALONE), active("b", 3, A_ALONE), active("b", 5, B_ALONE)]
    assert list(check_pairs([*ordered, changed(4)])) == [], (
        "the other member counted again in epoch 3"
    )
    assert len(list(check_pairs([*ordered, changed(1, 6)]))) == 1
    by_turns = [
        *whole, active("a", 2, A_ALONE), active("a", 3, A_ALONE), active("a", 4, PAIR),
        active("b", 4, PAIR), active("b", 5, B_ALONE),
    ]  # fmt: skip
    assert list(check_pairs(by_turns)) == []
    both = [*whole, active("b", 2, B_ALONE), active("a", 2, A_ALONE), active("b", 3, B_ALONE)]
    found = list(check_pairs(both))
    assert {one.property for one in found} == {"G7"}
    assert len(found) == 1, "one finding, however the surviving history continues"
    assert "b went on alone in epoch 2, and a had gone on alone before" in found[0].what
    assert "exception 1 of G28" in found[0].what
    returned = active("b", 2, A_ALONE)._replace(incarnation=2)
    assert len(list(check_pairs([*both[:4], returned]))) == 1, "b takes the history of a"


def test_the_table_decides_who_counts_in_a_pair() -> None:
    assert not read_voters(PAIR).is_majority(["a"])
    assert read_voters(PAIR).is_majority(["a", "b"])
    assert read_voters(A_ALONE).is_majority(["a"])
    assert not read_voters(A_ALONE).is_majority(["b"])
