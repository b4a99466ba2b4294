"""Voter sets: the formula, checked against the cases operators know and its purpose (G7)."""

from __future__ import annotations

import random
from itertools import chain, combinations, product

import pytest

from vsync.errors import ConfigError
from vsync.quorum import reconfiguration as change
from vsync.quorum.voter_set import EpochRecord, Terms, VoterSet, majority, parse, voter_set


def subsets(names: tuple[str, ...]) -> list[frozenset[str]]:
    return [frozenset(one) for size in range(len(names) + 1) for one in combinations(names, size)]


@pytest.mark.parametrize(
    ("terms", "present", "quorate"),
    [
        ("a b c", "a b", True), ("a b c", "c", False), ("a b", "a", False), ("a", "a", True),
        ("a b c d", "a b", False), ("a b c d", "b c d", True), ("a b c d e", "c d e", True),
        ("a=3 b c", "a", True), ("a=3 b c", "b c", False), ("a=2 b c d", "a b", True),
        ("a b c @expected_votes=5", "a b", False), ("a b c @expected_votes=5", "a b c", True),
        ("a b @two_node", "b", True), ("a b @two_node @arbitrator=x", "b", False),
        ("a b @arbitrator=x", "b x", True), ("a b @arbitrator=x", "x", False),
        ("a b @arbitrator=x=3", "x", False), ("a b @arbitrator=x", "a b", True),
        ("a b c d @auto_tie_breaker=lowest", "a d", True),
        ("a b c d @auto_tie_breaker=lowest", "c d", False),
        ("a b c d @auto_tie_breaker=highest", "c d", True),
        ("a b c d @auto_tie_breaker=c+a", "b c", True),
        ("a b c d @auto_tie_breaker=c+a @away=c", "a b", True),
        ("a b c d e @auto_tie_breaker=lowest", "a b", False),  # corosync issue 74: both quorate
        ("a b c @last_man_standing=10000 @away=c", "a b", True),
        ("a b c @last_man_standing=10000 @away=c", "a c", False),
    ],
)  # fmt: skip
def test_known_cases(terms: str, present: str, quorate: bool) -> None:
    assert parse(tuple(terms.split())).quorate(present.split()) is quorate


def test_terms_round_trip() -> None:
    rule = "@expected_votes=9 @two_node @wait_for_all @auto_tie_breaker=b+a @last_man_standing=7"
    terms = ("a", "b=4", "@arbitrator=x=2", *rule.split(), "@away=b")
    assert voter_set(terms).terms == terms
    joint = parse((*terms, "->", "a", "c"))
    assert joint.changing
    assert [one.terms for one in joint.sets] == [terms, ("a", "c")]
    assert joint.names == ("a", "b", "x", "c")


@pytest.mark.parametrize(
    ("term", "words"),
    [
        ("@two-node", "no voter term"), ("a=0", "'0' in the voter term 'a=0'"),
        ("a=x", "is not a number from 1"), ("@arbitrator=", "cannot be a member's name"),
        ("@expected_votes", "is not a number"), ("=2", "cannot be a member's name"),
        ("@auto_tie_breaker=", "no voter term"), ("a b", "cannot be a member's name"),
        ("a\0=2", "cannot be a member's name"),
    ],
)  # fmt: skip
def test_an_unreadable_term_is_named(term: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse((term,))


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ("a b @two_node", r"\{a\} and \{b\}"),
        ("a b @two_node @wait_for_all", r"\{a\} and \{b\}"),
        ("a b c @two_node", "here are 3"),
        ("a b c d @expected_votes=3", r"\{a \+ b\} and \{c \+ d\}"),
        ("a b c @expected_votes=1", r"\{a\} and \{b \+ c\}"),
        ("a b c @expected_votes=9", "even all voters together"),
        ("a b @arbitrator=x=2 @expected_votes=1", r"\{a\} and \{b \+ x\}"),
        ("a b c @last_man_standing=1 @arbitrator=x", "exclude each other"),
        ("a b @auto_tie_breaker=c", "'c' is named in the rule"),
        ("@arbitrator=x", "nobody with data votes"),
    ],
)  # fmt: skip
def test_a_set_that_lets_two_groups_act_is_refused_with_both(terms: str, words: str) -> None:
    """G7: the error gives the reason, and the two groups as a counter-example."""
    with pytest.raises(ConfigError, match=words):
        change.checked(voter_set(tuple(terms.split())))


def test_the_check_agrees_with_a_search_of_all_pairs_of_subsets() -> None:
    """G7: an accepted set has no two disjoint quorate subsets; a refused set has the two shown."""
    chance, refused = random.Random(7), 0
    options: list[list[Terms]] = [
        [(), ("@expected_votes=3",), ("@expected_votes=5",)],
        [(), ("@two_node",)],
        [(), ("@auto_tie_breaker=lowest",), ("@auto_tie_breaker=b",)],
        [(), ("@arbitrator=x",), ("@arbitrator=x=2",)],
    ]
    for size, chosen in product(range(2, 6), product(*options)):
        names = tuple(f"{name}={chance.choice((1, 1, 2, 3))}" for name in "abcde"[:size])
        one = voter_set((*names, *chain.from_iterable(chosen)))
        quorate = [part for part in subsets(one.names) if one.quorate(part)]
        apart = any(not left & right for left in quorate for right in quorate)
        flaw = one.flaw()
        if not flaw:
            assert quorate, one.terms
            assert not apart, one.terms
        refused += "two groups" in flaw
        assert apart or "two groups" not in flaw, one.terms
    assert refused > 20


def test_seven_members_and_an_arbitrator_are_checked_exactly() -> None:
    """G7."""
    one = voter_set(("a=2", "b", "c", "d", "e", "f", "g=3", "@arbitrator=x=2"))
    quorate = [part for part in subsets(one.names) if one.quorate(part)]
    assert not one.flaw()
    assert all(left & right for left in quorate for right in quorate)


def durable(terms: str, marks: dict[str, int], caught_up: str, epoch: int = 0) -> int:
    return parse(tuple(terms.split())).durable(marks, frozenset(caught_up.split()), epoch)


def test_what_a_quorate_set_of_caught_up_voters_has_is_durable() -> None:
    """G9."""
    assert durable("a b c", {"a": 10, "b": 7, "c": 3}, "a b c") == 7
    assert durable("a b c", {"a": 10, "d": 9}, "a b c d") == 0
    assert durable("a b c", {"a": 10, "b": 99, "c": 3}, "a c") == 3
    assert durable("a=3 b c", {"a": 10, "b": 12, "c": 12}, "a b c") == 10
    ties = "a b c d @auto_tie_breaker=lowest"
    assert durable(ties, {"a": 5, "b": 9, "c": 9, "d": 2}, "a b c d") == 5
    assert durable(ties, {"b": 9, "c": 9}, "a b c d") == 0
    assert durable("a b", {"a": 9, "b": 0}, "a b") == 0
    assert [majority(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_an_arbitrator_adds_durability_only_beside_all_caught_up_voters() -> None:
    """G8: it may later form a view with any of them."""
    marks = {"a": 10, "b": 4, "x": 3}
    assert durable("a b @arbitrator=x", marks, "a b x", epoch=3) == 4
    assert durable("a b @arbitrator=x", marks, "a x", epoch=3) == 10
    assert durable("a b @arbitrator=x", marks, "a x", epoch=4) == 0  # its record is older
    assert durable("a b @arbitrator=x", marks, "a", epoch=3) == 0


def test_an_arbitrator_forms_only_with_a_holder_of_the_last_epoch() -> None:
    """G8: a member that was away must not form a view with a voter that has no data."""
    one = parse(("a", "b", "@arbitrator=x"))
    record = {"x": EpochRecord(5, frozenset("a"))}
    assert not one.quorate(one.credible({"b": 4}, record))
    assert not one.quorate(one.credible({"b": 5}, record))  # present, but not yet a holder
    assert one.quorate(one.credible({"a": 5}, record))
    assert one.quorate(one.credible({"a": 4}, record))  # it held the base, and nothing followed
    assert one.quorate(one.credible({"b": 6}, record))
    assert one.quorate(one.credible({"a": 4, "b": 4}, record))
    assert not one.quorate(one.credible({"c": 6}, record))


def test_during_a_change_both_sets_must_agree() -> None:
    """G7, G8: whatever crashes during the change."""
    joint = parse(("a", "b", "c", "->", "a", "b", "d"))
    assert joint.quorate(frozenset("ab"))
    assert not joint.quorate(frozenset("bc"))
    assert joint.quorate(frozenset("bcd"))
    assert joint.durable({"a": 9, "b": 8, "c": 2}, frozenset("abc"), 0) == 2
    assert joint.durable({"a": 9, "b": 8, "c": 9, "d": 7}, frozenset("abcd"), 0) == 7


def test_every_quorum_of_a_change_overlaps_those_before_and_after() -> None:
    """G7: a set quorate during the change overlaps every set quorate before it, and every
    one after."""
    names = ("a", "b", "c", "d")
    old = ("a", "b", "c", "@auto_tie_breaker=a")
    for new in (
        change.added(old, "d"), change.removed(old, "b"), change.replaced(old, "c", "d"),
        change.with_votes(old, "b", 3), change.with_expected(old, 3),
    ):  # fmt: skip
        during = parse(change.change_to(old, new))
        parts = subsets(names)
        for left, right in product(parts, parts):
            if during.quorate(left) and (parse(old).quorate(right) or parse(new).quorate(right)):
                assert left & right, (new, left, right)
        assert change.finished((*during.sets[0].terms, "->", *new)) == new


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda t: change.added(t, "b"), "b votes already"),
        (lambda t: change.removed(t, "z"), "z does not vote; the voters are a, b, c, x"),
        (lambda t: change.replaced(t, "a", "b"), "b votes already; remove a instead"),
        (lambda t: change.replaced(t, "x", "d"), "x is an arbitrator and d holds data"),
        (lambda t: change.replaced(t, "a", "d", arbitrator=True), "a holds data and d is an arb"),
        (lambda t: change.added(t, "y", arbitrator=True), "x is the arbitrator already"),
        (lambda t: change.with_expected(t, 1), "two groups could act apart"),
        (lambda t: change.change_to((*t, "->", "a"), t), "another change"),
        (lambda t: change.removed((*t, "->", "a"), "a"), "another change"),
        (lambda t: change.change_to(t, t), "change nothing"),
    ],
)  # fmt: skip
def test_an_impossible_change_is_refused_in_one_sentence(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=words):
        make(("a", "b", "c", "@arbitrator=x"))


def test_an_arbitrator_is_added_and_removed_like_any_voter() -> None:
    plain: Terms = ("a", "b")
    three = change.added(plain, "x", arbitrator=True)
    assert three == ("a", "b", "@arbitrator=x")
    assert change.replaced(three, "x", "y", arbitrator=True) == ("a", "b", "@arbitrator=y")
    assert change.removed(three, "x") == plain
    assert change.with_votes(three, "x", 1) == three


def test_last_man_standing_shrinks_while_a_quorum_remains() -> None:
    terms: Terms = ("a", "b", "c", "d", "@last_man_standing=10000")
    smaller = change.with_away(terms, ["d"])
    assert parse(smaller).quorate(["a", "b"])
    assert not parse(smaller).quorate(["a", "d"])
    assert change.with_away(smaller, []) == terms
    assert change.removed(smaller, "d") == ("a", "b", "c", "@last_man_standing=10000")


def wish(**given: object) -> Terms:
    plain: dict[str, object] = {
        "votes": {}, "arbitrator": "", "expected": 0, "two_node": False, "wait_for_all": False,
        "tie_breaker": (), "last_man_standing_ms": 0,
    }  # fmt: skip
    return change.requested_terms(**{**plain, **given})  # type: ignore[arg-type]


def test_a_first_start_takes_the_members_present_and_their_options() -> None:
    asked = wish(votes={"a": 2}, arbitrator="x", wait_for_all=True)
    assert asked == ("a=2", "@arbitrator=x", "@wait_for_all")
    terms = change.first_voters("abc", asked)
    assert terms == ("a=2", "b", "c", "@arbitrator=x", "@wait_for_all")
    with pytest.raises(ConfigError, match="votes are set for a, but here are b, c"):
        change.first_voters("bc", asked)
    change.check_requested(3, asked)
    with pytest.raises(ConfigError, match=r"\{member 1\} and \{member 2\}"):
        change.check_requested(2, wish(two_node=True))
    with pytest.raises(ConfigError, match="only 1 vote"):
        change.check_requested(1, wish(votes={"a": 2, "b": 2}))
    assert change.first_voters("abc", wish()) == ("a", "b", "c")


def test_options_that_contradict_the_cluster_are_named_with_its_own() -> None:
    given: Terms = ("a=2", "b", "@auto_tie_breaker=lowest", "@away=b")
    assert not change.mismatch(wish(tie_breaker=("lowest",), votes={"a": 2, "z": 5}), given)
    assert "--cluster-auto-tie-breaker=lowest" in change.mismatch(wish(), given)
    assert "none of the quorum options" in change.mismatch(wish(), given)
    votes = change.mismatch(wish(tie_breaker=("lowest",), votes={"a": 3}), given)
    assert votes == ("this member was started with 3 votes for a, the cluster's voter set has 2")


def test_a_set_describes_who_is_missing() -> None:
    assert parse(("a", "b", "c")).describe(["a"]) == "1 of 3 voters here, 2 needed; missing: b, c"
    weighted = parse(("a=2", "b", "c")).describe(["b", "c"])
    assert weighted == "2 of 3 voters here with 2 of 4 votes, 3 votes needed; missing: a"
    assert "to come" in parse(("a", "->", "a", "b")).describe(["a"])
    assert VoterSet({}).flaw() == "nobody with data votes"
