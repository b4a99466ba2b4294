"""Who is the active member, by the order: nobody takes the role while another one has it (G25)."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numpy")

from tools.verify.checks.views_and_segments import PrimaryView
from tools.verify.checks.voter_changes import check_active_member, promotions
from tools.verify.input.rows import SEGMENT, Row

RUNS = ((1, 100, 1, 1),)


def primary(epoch: int, *members: str, cold: bool = False) -> PrimaryView:
    return PrimaryView(epoch, epoch, "a", 1, b"", members, ("a", "b", "c"), cold)


def segment(
    *roles: tuple[int, int, bool, str],
    activations: tuple[tuple[int, int], ...] = ((1, 1),),
    runs: tuple[tuple[int, int, int, int], ...] = RUNS,
) -> Row:
    """Of a member's log: who took the role, or gave it up, and where epochs began."""
    began = [(position, epoch, "", False) for position, epoch in activations]
    ends = {"roles": roles, "activations": began, "runs": runs}
    return Row("", "a", 1, 1, 0, SEGMENT, text=json.dumps(ends))


def found(row: Row, *primaries: PrimaryView, cutoffs: dict[int, int] | None = None) -> list[str]:
    epochs = {one.epoch: one for one in primaries}
    checked = check_active_member([row, row._replace(member="b")], epochs, cutoffs or {})
    return [finding.what for finding in checked]


FIRST = primary(1, "a/1+", "b/2+", "c/3+")


def test_one_after_the_other_is_right() -> None:
    row = segment((5, 1, True, "a"), (9, 1, False, "a"), (10, 1, True, "b"))
    assert found(row, FIRST) == []
    assert promotions([row, row]) == {5, 10}


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        (((5, 1, True, "a"), (9, 1, True, "b")), "b was promoted while a was active, since pos"),
        (((5, 1, True, "a"), (9, 1, False, "b")), "b gave up the role, which a had"),
        (((5, 1, True, "a"), (6, 1, False, "a"), (9, 1, False, "a")), "a gave up the role, which"),
    ],
)
def test_what_the_holder_does_not_allow_is_found(
    roles: tuple[tuple[int, int, bool, str], ...], says: str
) -> None:
    (what,) = found(segment(*roles), FIRST)
    assert what.startswith(says)


@pytest.mark.parametrize(
    ("second", "wrong"),
    [
        (primary(2, "b/2", "c/3"), False),  # it is gone
        (primary(2, "a/1+", "b/2", "c/3"), False),  # it received its state anew
        (primary(2, "a/7", "b/2", "c/3"), False),  # it is another one of its name
        (primary(2, "a/1", "b/2", "c/3", cold=True), False),  # all sessions ended
        (primary(2, "a/1", "b/2"), True),  # it is still there, and has it
    ],
)
def test_the_role_ends_with_the_session(second: PrimaryView, wrong: bool) -> None:
    row = segment((5, 1, True, "a"), (30, 2, True, "b"), activations=((1, 1), (20, 2)))
    assert bool(found(row, FIRST, second)) is wrong


def test_what_is_in_no_log_is_not_known() -> None:
    two = (5, 1, True, "a"), (30, 1, True, "b")
    assert found(segment(*two), FIRST)
    assert found(segment(*two, runs=((1, 10, 1, 1), (20, 100, 1, 1))), FIRST) == []
    assert found(segment(*two, activations=((1, 1), (8, 2))), FIRST) == [], "whose epoch 2 is"


def test_what_a_later_primary_superseded_is_not_of_the_history() -> None:
    """A pair of which both went on alone, or an end that was lost: G7 tells of that."""
    row = segment((5, 1, True, "a"), (30, 2, True, "b"), activations=((1, 1), (20, 2)))
    second = primary(2, "b/2", "c/3", "a/1")
    assert found(row, FIRST, second)
    assert found(row, FIRST, second, cutoffs={1: 4}) == []
