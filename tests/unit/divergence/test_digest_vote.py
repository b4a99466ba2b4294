"""Digest votes name the member that computed another result (G10)."""

from __future__ import annotations

from broker.divergence.digest_vote import CUTS_KEPT, SILENT_CUTS, DigestVerdict, DigestVote

GOOD = (1, b"c" * 16, 7)
BAD = (1, b"d" * 16, 8)
VOTERS = ("a", "b", "c")


def votes(present: str = "a b c", fresh: str = "", voters: tuple[str, ...] = VOTERS) -> DigestVote:
    return DigestVote(voters, 10, tuple(present.split()), tuple(fresh.split()))


def only(verdicts: list[DigestVerdict]) -> DigestVerdict:
    assert len(verdicts) == 1
    return verdicts[0]


def test_a_majority_agrees_and_a_late_wrong_vote_is_divergent() -> None:
    vote = votes()
    assert not vote.vote("a", 10, GOOD)
    assert not only(vote.vote("b", 10, GOOD)).divergent
    assert only(vote.vote("c", 10, BAD)).divergent == ("c",)


def test_the_minority_is_named_when_it_voted_first() -> None:
    vote = votes()
    assert not vote.vote("c", 10, BAD)
    assert not vote.vote("a", 10, GOOD)
    verdict = only(vote.vote("b", 10, GOOD))
    assert verdict.divergent == ("c",)
    assert verdict.value == GOOD


def test_a_missing_vote_is_no_agreement_and_no_majority_is_a_split() -> None:
    vote = votes("a b", voters=("a", "b"))
    assert not vote.vote("a", 10, GOOD)
    verdict = only(vote.vote("b", 10, BAD))
    assert verdict.split
    assert verdict.value is None
    assert verdict.votes == {"a": GOOD, "b": BAD}


def test_two_that_disagree_while_the_third_is_down_split_at_once() -> None:
    """G10: nobody waits for a voter that is not in the view."""
    vote = votes("a b")
    assert not vote.vote("a", 10, GOOD)
    assert only(vote.vote("b", 10, BAD)).split
    assert vote.counters["split"] == 1


def test_a_silent_member_of_the_view_is_waited_for_a_bounded_time() -> None:
    vote = votes()
    for cut in range(SILENT_CUTS):
        assert not vote.vote("a", 10 + 10 * cut, GOOD)
        assert not vote.vote("b", 10 + 10 * cut, BAD)
    split = vote.vote("a", 10 + 10 * SILENT_CUTS, GOOD)
    assert [one.position for one in split if one.split] == [10]
    assert only([v for v in vote.vote("c", 10, GOOD) if v.position == 10]).divergent == ("b",)


def test_a_member_without_a_vote_is_judged_but_does_not_decide() -> None:
    vote = votes("a b c x y")
    assert not vote.vote("x", 10, BAD)
    assert not vote.vote("y", 10, BAD)
    assert not vote.vote("a", 10, GOOD)
    assert set(only(vote.vote("b", 10, GOOD)).divergent) == {"x", "y"}


def test_a_joiner_outvotes_nobody_until_a_majority_of_others_held_its_value() -> None:
    """G10: c's state comes from a. If c voted at once, a wrong a and its copy would expel b."""
    vote = votes(fresh="c")
    assert not vote.vote("a", 10, BAD)
    assert only(vote.vote("c", 10, BAD)).value == BAD  # nobody objects yet
    assert only(vote.vote("b", 10, GOOD)).split
    vote = votes(fresh="c")
    vote.vote("a", 10, GOOD)
    assert only(vote.vote("b", 10, GOOD)).value == GOOD
    assert "c" in vote.probation
    assert not vote.vote("c", 10, GOOD)
    assert not vote.probation
    vote.vote("a", 20, GOOD)
    assert only(vote.vote("c", 20, GOOD)).value == GOOD


def test_a_joiner_on_probation_is_judged() -> None:
    vote = votes(fresh="c")
    vote.vote("c", 10, BAD)
    vote.vote("a", 10, GOOD)
    assert only(vote.vote("b", 10, GOOD)).divergent == ("c",)


def test_agreement_of_all_needs_no_probation_but_an_objection_reopens_it() -> None:
    vote = votes(fresh="b c")
    vote.vote("b", 10, BAD)
    assert only(vote.vote("c", 10, BAD)).value == BAD
    assert only(vote.vote("a", 10, GOOD)).split
    vote = votes("a b", fresh="b")
    vote.vote("a", 10, GOOD)
    assert only(vote.vote("b", 10, GOOD)).value == GOOD
    assert "b" in vote.probation  # there was no majority of voters other than b


def test_a_majority_off_probation_makes_an_agreement_firm() -> None:
    vote = votes(fresh="b")
    vote.vote("b", 10, GOOD)
    assert only(vote.vote("a", 10, GOOD)).value == GOOD
    assert not vote.vote("c", 10, GOOD)
    assert not vote.probation
    assert only(vote.vote("c", 10, BAD)).divergent == ("c",)


def test_votes_count_by_weight() -> None:
    """G10: as in the quorum; b and c together do not have more than half."""
    vote = votes("a b c d", voters=("a=3", "b", "c", "d"))
    assert not vote.vote("b", 10, BAD)
    assert not vote.vote("c", 10, BAD)
    assert not vote.vote("a", 10, GOOD)
    assert set(only(vote.vote("d", 10, GOOD)).divergent) == {"b", "c"}
    vote = votes("a b c d", voters=("a=3", "b", "c", "d"))
    for name in "bcd":
        assert not vote.vote(name, 10, BAD)
    assert only(vote.vote("a", 10, GOOD)).split


def test_a_tie_breaker_decides_who_continues_and_not_who_is_right() -> None:
    """G10"""
    vote = votes("a b", voters=("a", "b", "@auto_tie_breaker=lowest"))
    assert not vote.vote("a", 10, BAD)
    assert only(vote.vote("b", 10, GOOD)).split


def test_an_arbitrator_does_not_vote_on_digests() -> None:
    """G10: two members with data decide about each other by re-execution, with an arbitrator
    or without."""
    terms = ("a", "b", "@two_node", "@arbitrator=x")
    vote = votes("a b x", voters=terms)
    assert not vote.vote("a", 10, GOOD), "b is here and has not voted"
    assert only(vote.vote("b", 10, BAD)).split
    vote = votes("a b x", voters=terms)
    vote.vote("a", 10, GOOD)
    assert only(vote.vote("b", 10, GOOD)).value == GOOD


def test_the_last_member_beside_an_arbitrator_agrees_with_itself() -> None:
    """G10: so it has an agreed point to re-execute its store from; it outvotes nobody."""
    terms = ("a", "b", "@arbitrator=x")
    assert only(votes("a x", voters=terms).vote("a", 10, GOOD)).value == GOOD
    assert not votes("a", voters=terms).vote("a", 10, GOOD)
    vote = votes("a x", voters=terms)
    vote.vote("a", 10, GOOD)
    assert only(vote.vote("b", 10, BAD)).split, "one member's agreement is not firm"


def test_during_a_change_both_sets_must_agree() -> None:
    """G10"""
    vote = votes("a b c d", voters=("a", "b", "c", "->", "b", "c", "d"))
    assert not vote.vote("a", 10, GOOD)
    assert not vote.vote("b", 10, GOOD), "a majority of the old set only"
    assert only(vote.vote("c", 10, GOOD)).value == GOOD


def test_memory_of_votes_is_bounded() -> None:
    vote = votes()
    for cut in range(3 * CUTS_KEPT):
        vote.vote("a", 10 * cut, GOOD)
    assert vote.counters["undecided"] == 2 * CUTS_KEPT
    assert len(vote._votes) == CUTS_KEPT


def test_cuts_are_the_items_that_cross_a_multiple() -> None:
    vote = votes()
    assert [vote.is_cut(b, a) for b, a in ((0, 9), (9, 10), (9, 25), (10, 19))] == [
        False, True, True, False,
    ]  # fmt: skip
