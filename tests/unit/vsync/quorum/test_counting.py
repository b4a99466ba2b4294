"""The votes of a view's members: whose voter set applies, and who makes a first start."""

from __future__ import annotations

import pytest

from vsync.quorum.counting import Voter, contradiction, count_votes, voters_of_first_start
from vsync.quorum.voter_set import Terms
from vsync.types import Member

WITH_ARBITRATOR = ("a", "b", "@arbitrator=c")
PAIR = ("a", "b", "@pair=a")


def voter(
    voters: Terms = (), epoch: int = 0, *, arbitrator: bool = False, asks: Terms = (),
    holders: str = "", vote: bool = False,
) -> Voter:  # fmt: skip
    """One member's facts."""
    return Voter(arbitrator, epoch, 0, voters, tuple(holders), asks, waits=False, vote=vote)


def of(**voters: Voter) -> dict[Member, Voter]:
    return {Member(name, 1, name): one for name, one in voters.items()}


def test_an_arbitrator_alone_is_no_quorum() -> None:
    record = voter(WITH_ARBITRATOR, 3, arbitrator=True, holders="ab")
    count = count_votes(of(c=record))
    assert (count.voters, count.quorate) == (WITH_ARBITRATOR, False)


def test_the_newest_state_says_who_votes_whatever_an_arbitrators_record_says() -> None:
    """The record is of the voters at the activation; a state has the changes since."""
    record = voter(WITH_ARBITRATOR, 3, arbitrator=True, holders="ab")
    old, new = voter(WITH_ARBITRATOR, 2), voter(("a", "b"), 3)
    assert count_votes(of(a=old, b=new, c=record._replace(epoch=4))).voters == ("a", "b")


@pytest.mark.parametrize(
    ("terms", "vote", "alone"),
    [
        (PAIR, True, True),
        (PAIR, False, False),
        ((*PAIR, "@away=b"), False, True),  # it did so before
        (("a", "b"), True, False),
    ],
)
def test_one_of_a_pair_goes_on_alone(terms: Terms, *, vote: bool, alone: bool) -> None:
    count = count_votes(of(a=voter(terms, 3, vote=vote)))
    assert (count.alone, count.quorate) == (alone, alone)
    both = count_votes(of(a=voter(terms, 3, vote=vote), b=voter(PAIR[:2], 2)))
    assert not both.alone


@pytest.mark.parametrize(
    ("here", "why"),
    [
        ({"a": {}, "b": {}, "c": {"arbitrator": True}}, ""),
        ({"a": {}, "c": {"arbitrator": True}}, "1 of 2 members"),
        ({"a": {}, "b": {"asks": ()}, "c": {"arbitrator": True}}, "disagree: a asks for "),
        ({"a": {}, "b": {}}, "the arbitrator c is missing"),
        ({"a": {}, "b": {}, "c": {}}, "the arbitrator c is missing"),
        ({"a": {}, "b": {}, "d": {"arbitrator": True}}, "the arbitrator c is missing"),
    ],
)
def test_who_makes_a_first_start(here: dict[str, dict[str, bool]], why: str) -> None:
    asks = ("@arbitrator=c",)
    members = of(**{name: voter(**{"asks": asks, **one}) for name, one in here.items()})  # type: ignore[arg-type]
    terms, said = voters_of_first_start(members, 2)
    assert terms == (() if why else WITH_ARBITRATOR)
    assert why in said


@pytest.mark.parametrize(
    ("name", "one", "terms", "why"),
    [
        ("a", voter(asks=("@two_node",)), PAIR[:2], "the cluster's voter set was made with"),
        ("a", voter(arbitrator=True), WITH_ARBITRATOR, "started as an arbitrator, for the cluster"),
        ("c", voter(), WITH_ARBITRATOR, "started as a member with data, for the cluster"),
        ("c", voter(asks=("@pair=a",)), PAIR, "are a and b, and c is none of them"),
        ("c", voter(), ("a", "b"), ""),  # it joins, and does not vote
        ("c", voter(asks=("@pair=a",)), (), ""),  # no cluster is known
    ],
)
def test_members_that_contradict_their_cluster(
    name: str, one: Voter, terms: Terms, why: str
) -> None:
    said = contradiction(name, one, terms)
    assert (why in said) if why else not said, said
