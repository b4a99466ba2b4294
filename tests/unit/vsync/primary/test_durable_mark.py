"""What a primary view may confirm: nothing before its own activation is durable (G8, G9)."""

from __future__ import annotations

import pytest

from vsync.primary.durable_mark import PrimaryMark

VOTERS = ("a", "b", "c")


def mark_of(**marks: int) -> PrimaryMark:
    """The mark of an activated view in which all have the state."""
    mark = PrimaryMark()
    mark.view_begins()
    mark.marks = marks
    mark.activated(3, VOTERS, frozenset(VOTERS), frozenset())
    return mark


def test_nothing_is_durable_before_the_activation_is_applied() -> None:
    mark = mark_of(a=9, b=9, c=9)
    assert mark.advance() is None
    assert mark.reported == 0


def test_older_messages_are_confirmed_only_with_the_activation() -> None:
    """Raft 5.4.2: until then the end of an older epoch, held by fewer, may still be preferred."""
    mark = mark_of(a=10, b=9, c=0)
    mark.activation_applied(10)
    assert mark.advance() is None
    mark.marks = {"a": 10, "b": 10, "c": 0}
    assert mark.advance() == mark.reported == 10


def test_each_advance_is_reported_once() -> None:
    mark = mark_of(a=10, b=10, c=0)
    mark.activation_applied(10)
    assert mark.advance() == 10
    assert mark.advance() is None
    mark.marks = {"a": 12, "b": 11, "c": 0}
    assert mark.advance() == 11


@pytest.mark.parametrize("has_state", [True, False])
def test_a_member_without_the_state_does_not_count(*, has_state: bool) -> None:
    mark = mark_of(a=10, b=10, c=0)
    mark.caught_up = frozenset(("a", "b", "c") if has_state else ("a", "c"))
    mark.activation_applied(10)
    assert (mark.advance() == 10) == has_state


def test_a_new_view_starts_at_zero() -> None:
    mark = mark_of(a=10, b=10, c=10)
    mark.activation_applied(10)
    assert mark.advance() == 10
    mark.view_begins()
    assert (mark.reported, mark.marks) == (0, {})
    mark.marks = {"a": 10, "b": 10, "c": 10}
    mark.activated(4, VOTERS, frozenset(VOTERS), frozenset())
    assert mark.advance() is None, "that activation was the former view's"


def test_other_voters_void_what_was_reported() -> None:
    """G8: a quorum of the former ones is none of theirs."""
    mark = mark_of(a=10, b=10, c=0)
    mark.activation_applied(10)
    assert mark.advance() == 10
    assert not mark.voters_changed(VOTERS)
    assert mark.reported == 10
    assert mark.voters_changed(("a", "c"))
    assert mark.reported == 0
    assert mark.advance() is None
    mark.marks = {"a": 10, "b": 10, "c": 11}
    assert mark.advance() == 10


def test_an_arbitrator_holds_no_data() -> None:
    """Its mark is an epoch."""
    mark = mark_of(a=10, b=9, c=3)
    mark.activated(3, VOTERS, frozenset(VOTERS), frozenset("c"))
    assert mark.everywhere() == 9
    assert mark.add_holders(frozenset("a")) == {"a"}
    assert mark.add_holders(frozenset("bc")) == {"a", "b"}
    mark.view_begins()
    assert mark.everywhere() == 0
    assert mark.add_holders(frozenset("b")) == {"b"}
