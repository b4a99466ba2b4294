"""Voter changes: requested, ordered in two steps, and counting out absent voters (G7, G8)."""

from __future__ import annotations

import pytest

from broker.machine.commands import VOTERS, Voters
from broker.replication.voter_changes import ChangeRefused, VoterChanges
from tests.support.scripted_views import Bus
from vsync.quorum.voter_set import Terms
from vsync.totem.events import Marks


class Cluster:
    """Members on a scripted ring, each with its part in elections."""

    def __init__(self, names: str, size: int, requested: Terms = ()) -> None:
        self.bus, self.names, self.now = Bus(), names, 0.0
        for name in names.split():
            self.bus.start(name, size=size, requested=requested)
        self.bus.view(names)
        self.bus.run(names)
        self.voter_changes = {n: VoterChanges(self.bus.cores[n]) for n in names.split()}

    def change(self, names: str) -> None:
        self.names = names
        self.bus.change(names)

    def beat(self, seconds: float = 0.1) -> None:
        self.now += seconds
        for name in self.names.split():
            self.voter_changes[name].wake(self.now)
            self.bus.cores[name].flush()
        self.bus.run(self.names)

    def voters(self) -> Terms:
        found = {self.bus.cores[n].promise.voters for n in self.names.split()}
        assert found == {self.bus.cores[n].replica.machine.voters for n in self.names.split()}
        (terms,) = found
        return terms


def test_a_dead_voter_is_replaced_and_one_more_may_then_be_lost() -> None:
    """G8."""
    cluster = Cluster("a b c d", 3)
    assert cluster.voters() == ("a", "b", "c")
    cluster.change("a b d")
    assert cluster.voter_changes["b"].replace("c", "d") == ("a", "b", "d")
    cluster.bus.run(cluster.names)
    assert cluster.voters() == ("a", "b", "c", "->", "a", "b", "d")
    cluster.beat()
    assert cluster.voters() == ("a", "b", "d")
    cluster.change("b d")
    assert cluster.bus.cores["d"].serving


def test_a_change_waits_for_the_store_of_a_new_voter_it_needs() -> None:
    """G8: after a crash of all members that store would have no vote, and the change needs it."""
    cluster = Cluster("a b", 1)
    cluster.bus.shells["b"].store_counts = False
    cluster.bus.marks("a b")
    with pytest.raises(ChangeRefused, match="the store of b has no vote yet; try again"):
        cluster.voter_changes["a"].add("b")
    cluster.bus.shells["b"].store_counts = True
    cluster.bus.marks("a b")
    assert cluster.voter_changes["a"].add("b") == ("a", "b")


def test_a_change_ends_only_when_durable_at_old_and_new_voters() -> None:
    """G8: a new voter must have it on disk before it counts alone."""
    cluster = Cluster("a b c d", 3)
    cluster.voter_changes["a"].replace("c", "d")
    bus = cluster.bus
    while bus.queue:
        bus.deliver(cluster.names, *bus.queue.pop(0))
    position = bus.cores["a"].replica.history.position
    before = bus.shells["a"].released
    for name in "abcd":
        bus.give(name, Marks({"a": position, "b": position, "c": position, "d": position - 1}))
    cluster.voter_changes["a"].wake(1.0)
    assert not bus.queue
    assert bus.shells["a"].released < position
    assert bus.shells["a"].released >= before
    for name in "abcd":
        bus.give(name, Marks(dict.fromkeys("abcd", position)))
    assert bus.shells["a"].released == position
    cluster.voter_changes["b"].wake(1.0)
    assert not bus.queue, "only the first of the voters orders the second step"
    cluster.voter_changes["a"].wake(1.0)
    cluster.voter_changes["a"].wake(1.1)
    assert len(bus.queue) == 1
    bus.run(cluster.names)
    assert cluster.voters() == ("a", "b", "d")


def test_what_the_old_voters_made_durable_is_not_taken_for_granted() -> None:
    """G9: others are further than this member when it learns that the voters changed."""
    cluster = Cluster("a b c d", 3)
    bus = cluster.bus
    joint = ("a", "b", "c", "->", "b", "c", "d")
    bus.cores["a"].submit([Voters(VOTERS, ("a", "b", "c"), joint)])
    message = bus.queue.pop(0)
    position = bus.cores["a"].replica.history.position
    ahead = {"a": position + 1, "b": position + 1, "c": position + 1, "d": position}
    bus.give("a", Marks(ahead))  # a does not have the order itself yet
    assert bus.shells["a"].released == position
    bus.deliver(cluster.names, *message)
    assert bus.shells["a"].released == position
    bus.give("a", Marks({**ahead, "d": position + 1}))
    assert bus.shells["a"].released == position + 1


def test_the_view_may_change_during_a_change_of_voters() -> None:
    """G7: the next primary continues it, under both sets."""
    cluster = Cluster("a b c d", 3)
    cluster.voter_changes["a"].replace("c", "d")
    cluster.bus.run(cluster.names)
    cluster.change("b c")
    assert not cluster.bus.cores["b"].serving, "two of the old voters, one of the new"
    assert "to come" in cluster.bus.cores["b"].primary.reason
    cluster.bus.transitional("a")
    cluster.bus.transitional("b c")
    cluster.names = "a b c"
    cluster.bus.view("a b c")
    cluster.bus.run("a b c")
    assert cluster.bus.cores["a"].serving
    cluster.beat()
    assert cluster.voters() == ("a", "b", "d")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda e: e.add("z"), "start it first"),
        (lambda e: e.add("b"), "votes already"),
        (lambda e: e.remove("d"), "d does not vote"),
        (lambda e: e.expected(1), "two groups could act apart"),
        (lambda e: e.expected(9), "even all voters together"),
        (lambda e: e.votes("c", 9), "it could not take effect"),
    ],
)
def test_a_forbidden_change_is_refused_with_the_reason(ask: object, words: str) -> None:
    """G7: nothing is ordered."""
    cluster = Cluster("a b c d", 3)
    cluster.change("a b d")
    assert callable(ask)
    with pytest.raises(ChangeRefused, match=words):
        ask(cluster.voter_changes["a"])
    assert not cluster.bus.queue


def test_a_second_change_waits_for_the_first() -> None:
    cluster = Cluster("a b c d", 3)
    cluster.voter_changes["a"].add("d")
    cluster.bus.run(cluster.names)
    with pytest.raises(ChangeRefused, match="under way"):
        cluster.voter_changes["b"].remove("a")


def test_last_man_standing_recounts_after_each_window() -> None:
    """Four, then three, then two members go on; one alone does not without a tie breaker."""
    cluster = Cluster("a b c d", 4, ("@last_man_standing=10000",))
    cluster.change("a b c")
    cluster.beat(9.0)
    cluster.beat(9.0)
    assert "@away=d" not in cluster.voters()
    cluster.beat(2.0)
    cluster.beat()
    assert cluster.voters() == ("a", "b", "c", "d", "@last_man_standing=10000", "@away=d")
    cluster.change("a b")
    assert cluster.bus.cores["a"].serving, "two of the three that count"
    for _ in range(4):
        cluster.beat(11.0)
    assert cluster.voters()[-2:] == ("@away=c", "@away=d")
    cluster.change("a")
    assert not cluster.bus.cores["a"].serving


def test_a_voter_that_returns_counts_again() -> None:
    cluster = Cluster("a b c", 3, ("@last_man_standing=1000",))
    cluster.change("a b")
    cluster.beat()
    cluster.beat(2.0)
    cluster.beat()
    assert cluster.voters()[-1] == "@away=c"
    cluster.bus.transitional("a b")
    cluster.bus.transitional("c")
    cluster.names = "a b c"
    cluster.bus.view("a b c")
    cluster.bus.run("a b c")
    cluster.beat()
    cluster.beat()
    assert cluster.voters() == ("a", "b", "c", "@last_man_standing=1000")


def test_members_of_a_first_start_that_disagree_are_told() -> None:
    bus = Bus()
    bus.start("a", size=2, requested=("@wait_for_all",))
    bus.start("b", size=2)
    bus.view("a b")
    bus.run("a b")
    assert "disagree: b asks for a plain majority" in bus.cores["a"].primary.reason
    assert "a asks for @wait_for_all" in bus.cores["b"].primary.reason


def test_a_newcomer_with_another_rule_is_refused_and_the_others_go_on() -> None:
    cluster = Cluster("a b c", 3)
    cluster.bus.start("d", requested=("@auto_tie_breaker=lowest",))
    cluster.bus.transitional("a b c")
    cluster.bus.view("a b c d")
    cluster.bus.run("a b c d")
    stopped = cluster.bus.shells["d"].stopped
    assert stopped is not None
    assert "--cluster-auto-tie-breaker=lowest" in stopped[1]
    assert cluster.bus.cores["a"].serving


def test_wait_for_all_waits_at_the_start_and_after_the_quorum_was_lost() -> None:
    cluster = Cluster("a b c", 3, ("@wait_for_all",))
    cluster.change("a b")
    assert cluster.bus.cores["a"].serving, "a quorum that was there goes on"
    cluster.change("a")
    cluster.bus.transitional("b")
    cluster.bus.view("b")
    cluster.bus.run("b")
    cluster.bus.transitional("a")
    cluster.bus.transitional("b")
    cluster.bus.view("a b")
    cluster.bus.run("a b")
    assert not cluster.bus.cores["a"].serving
    assert "waiting for all voters" in cluster.bus.cores["a"].primary.reason
