"""The votes formula, against the cases that operators know and against its purpose."""

from __future__ import annotations

from itertools import combinations

import pytest

from vsync.errors import ConfigError
from vsync.quorum import Vote, decide, majority, with_expected


def votes(count: int, expected: int) -> list[Vote]:
    return [Vote(f"n{i}", 1, expected) for i in range(count)]


@pytest.mark.parametrize(
    ("present", "expected", "quorum", "quorate"),
    [(3, 3, 2, True), (2, 3, 2, True), (1, 3, 2, False), (2, 4, 3, False), (2, 2, 2, True),
     (1, 2, 2, False), (1, 1, 1, True), (3, 5, 3, True), (5, 3, 3, True)],
)  # fmt: skip
def test_known_cases(present: int, expected: int, quorum: int, quorate: bool) -> None:
    found = decide(votes(present, expected))
    assert (found.quorum, found.quorate) == (quorum, quorate)


def test_two_disjoint_parts_are_never_both_quorate() -> None:
    for size in range(1, 8):
        weights = [1 + i % 3 for i in range(size)]
        total = sum(weights)
        everybody = [Vote(f"n{i}", w, total) for i, w in enumerate(weights)]
        for count in range(size + 1):
            for part in combinations(everybody, count):
                rest = [m for m in everybody if m not in part]
                assert not (part and decide(part).quorate and rest and decide(rest).quorate)


def test_two_nodes_may_part_but_three_may_not() -> None:
    assert decide(votes(1, 2), two_node=True).quorate
    assert not decide(votes(2, 4), two_node=False).quorate
    assert decide(votes(3, 3), two_node=True).quorum == majority(3)


def test_a_device_votes_and_counts_as_a_node() -> None:
    assert decide(votes(1, 3), device_votes=1).quorate
    assert decide(votes(2, 3), device_votes=1, two_node=True).two_node is False


def test_expected_rises_by_itself_and_falls_by_the_operator() -> None:
    five = decide(votes(5, 3))
    assert five.expected == 5
    three = decide(votes(3, 3), before=five)
    assert (three.expected, three.quorate) == (5, True)
    two = decide(votes(2, 3), before=three)
    assert not two.quorate
    assert with_expected(two, 3).quorate
    with pytest.raises(ConfigError):
        with_expected(three, 2)
    with pytest.raises(ConfigError):
        with_expected(three, 6)


def test_the_quorum_may_be_kept_from_falling() -> None:
    five = decide(votes(5, 5))
    assert decide(votes(2, 3), before=five, allow_decrease=False).quorum == 3


def test_nonsense_is_refused_and_the_rest_reads_well() -> None:
    with pytest.raises(ConfigError):
        Vote("a", -1, 3)
    assert decide(votes(2, 3)).describe() == ("quorate: 2 of 3 votes from 2 members, quorum 2")
    assert "two nodes" in decide(votes(1, 2), two_node=True).describe()
