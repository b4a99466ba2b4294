"""Digest votes name the member that computed something else (G10)."""

from __future__ import annotations

from broker.consensus import DigestVote

GOOD = (1, b"c" * 16, 7)
BAD = (1, b"d" * 16, 8)


def test_a_majority_agrees_and_a_late_wrong_vote_is_divergent() -> None:
    vote = DigestVote(("a", "b", "c"), 10)
    assert vote.vote("a", 10, GOOD) is None
    verdict = vote.vote("b", 10, GOOD)
    assert verdict is not None
    assert not verdict.divergent
    late = vote.vote("c", 10, BAD)
    assert late is not None
    assert late.divergent == ("c",)


def test_the_minority_is_named_when_it_spoke_first() -> None:
    vote = DigestVote(("a", "b", "c"), 10)
    assert vote.vote("c", 10, BAD) is None
    assert vote.vote("a", 10, GOOD) is None
    verdict = vote.vote("b", 10, GOOD)
    assert verdict is not None
    assert verdict.divergent == ("c",)
    assert verdict.value == GOOD


def test_silence_is_not_agreement_and_no_majority_is_a_split() -> None:
    vote = DigestVote(("a", "b"), 10)
    assert vote.vote("a", 10, GOOD) is None
    verdict = vote.vote("b", 10, BAD)
    assert verdict is not None
    assert verdict.split
    assert verdict.value is None


def test_a_member_without_a_vote_is_judged_but_does_not_decide() -> None:
    vote = DigestVote(("a", "b", "c"), 10)
    assert vote.vote("x", 10, BAD) is None
    assert vote.vote("y", 10, BAD) is None
    assert vote.vote("a", 10, GOOD) is None
    verdict = vote.vote("b", 10, GOOD)
    assert verdict is not None
    assert set(verdict.divergent) == {"x", "y"}


def test_cuts_are_the_items_that_cross_a_multiple() -> None:
    vote = DigestVote(("a",), 10)
    assert [vote.is_cut(b, a) for b, a in ((0, 9), (9, 10), (9, 25), (10, 19))] == [
        False, True, True, False,
    ]  # fmt: skip
