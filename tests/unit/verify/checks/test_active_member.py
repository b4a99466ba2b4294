"""The active member, by the order of commands: nobody takes the role while another holds it
(G25).
"""

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
    """The row of a segment: who took or gave up the role, and where epochs began."""
    began = [(position, epoch, "", False) for position, epoch in activations]
    ends = {"roles": roles, "activations": began, "runs": runs}
    return Row("", "a", 1, 1, 0, SEGMENT, text=json.dumps(ends))


def found(row: Row, *primaries: PrimaryView, cutoffs: dict[int, int] | None = None) -> list[str]:
    epochs = {one.epoch: one for one in primaries}
    checked = check_active_member([row, row._replace(member="b")], epochs, cutoffs or {})
    return [finding.what for finding in checked]


FIRST = primary(1, "a/1+", "b/2+", "c/3+")


def test_holders_in_succession_are_correct() -> None:
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
def test_a_takeover_from_a_live_holder_is_found(
    roles: tuple[tuple[int, int, bool, str], ...], says: str
) -> None:
    (what,) = found(segment(*roles), FIRST)
    assert what.startswith(says)


@pytest.mark.parametrize(
    ("second", "wrong"),
    [
        (primary(2, "b/2", "c/3"), False),  # the holder is gone
        (primary(2, "a/1+", "b/2", "c/3"), False),  # the holder received its state anew
        (primary(2, "a/7", "b/2", "c/3"), False),  # another incarnation of the same member
        (primary(2, "a/1", "b/2", "c/3", cold=True), False),  # all sessions ended
        (primary(2, "a/1", "b/2"), True),  # the holder is still there
    ],
)
def test_the_role_ends_with_the_session(second: PrimaryView, wrong: bool) -> None:
    row = segment((5, 1, True, "a"), (30, 2, True, "b"), activations=((1, 1), (20, 2)))
    assert bool(found(row, FIRST, second)) is wrong


@pytest.mark.parametrize(("second", "wrong"), [(("a/1", "c/3"), False), (("a/1", "b/2"), True)])
def test_the_role_is_that_of_the_promoted_one(second: tuple[str, ...], wrong: bool) -> None:
    """Not of the member that its primary names first."""
    row = segment((5, 1, True, "b"), (30, 2, True, "a"), activations=((1, 1), (20, 2)))
    assert bool(found(row, FIRST, primary(2, *second))) is wrong


def test_nothing_is_found_where_positions_are_in_no_log() -> None:
    two = (5, 1, True, "a"), (30, 1, True, "b")
    assert found(segment(*two), FIRST)
    assert found(segment(*two, runs=((1, 10, 1, 1), (20, 100, 1, 1))), FIRST) == []
    assert found(segment(*two, activations=((1, 1), (8, 2))), FIRST) == [], (
        "nothing tells whose epoch 2 is"
    )


def test_superseded_positions_do_not_count() -> None:
    """A pair of which both went on alone, or a lost end: G7 reports that."""
    row = segment((5, 1, True, "a"), (30, 2, True, "b"), activations=((1, 1), (20, 2)))
    second = primary(2, "b/2", "c/3", "a/1")
    assert found(row, FIRST, second)
    assert found(row, FIRST, second, cutoffs={1: 4}) == []
