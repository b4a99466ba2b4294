"""Pairs: two voters and a vote no machine owns; who may go on alone, row by row (G28, G7).

The rows are those of the table in docs/decisions/0077-a-pair-has-a-vote-that-is-no-machines.md. The
members are real `Primary` objects over a toy log and disk. A view is a `Step` of the explorer,
which gives a member the vote if its peer is not alive, and checks in each view that no confirmed
command is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.explore.__main__ import PAIRS, explore, walk
from tests.sim.explore.world import Case, Step, World
from vsync.errors import ConfigError
from vsync.primary.events import ACTIVATE, APP, STATE, StateReport
from vsync.primary.state_exchange import PlanVerdict, make_plan, refuse
from vsync.quorum import reconfiguration as change
from vsync.quorum.voter_set import Terms, pair_terms, parse, voter_set
from vsync.types import Member

TOGETHER = ("a", "b", "@pair=b")
A_ALONE, B_ALONE = (*TOGETHER, "@away=b"), (*TOGETHER, "@away=a")
BOTH = Step(("a", "b"))


def world(*steps: Step) -> World:
    """Form a pair, apply the steps, and return the world."""
    made = World(PAIRS["pair"])
    made.take(BOTH)
    for step in steps:
        made.take(step)
    return made


def crash(*names: str, members: tuple[str, ...] = ("a", "b")) -> Step:
    """A view of `members`, at whose end `names` lose power."""
    return Step(members, crash=names)


def state(found: World, name: str) -> tuple[bool, tuple[str, ...]]:
    """Whether a member is in a primary view, and its voter set."""
    peer = found.peers[name]
    return peer.primary.active, peer.memory.voters


# -- the sets --------------------------------------------------------------------------------------


def test_together_both_are_needed_and_alone_the_one_that_went_on() -> None:
    assert parse(TOGETHER).quorate(("a", "b"))
    assert not any(parse(TOGETHER).quorate((name,)) for name in "ab")
    assert parse(A_ALONE).quorate(("a",))
    assert not parse(A_ALONE).quorate(("b",))
    joint = change.change_to(A_ALONE, TOGETHER)
    assert not any(parse(joint).quorate((name,)) for name in "ab")
    assert voter_set(A_ALONE).terms == A_ALONE == pair_terms("b", "ab", "b")


@pytest.mark.parametrize(
    "terms",
    [
        "a @pair=a", "a b c @pair=a", "a=2 b @pair=a", "a b @pair=a @arbitrator=x",
        "a b @pair=a @wait_for_all", "a b @pair=c", "a b @pair=a @expected_votes=1",
    ],
)  # fmt: skip
def test_an_invalid_pair_is_refused(terms: str) -> None:
    """G7."""
    with pytest.raises(ConfigError, match=r"a pair is two members|is named in the rule"):
        change.checked(voter_set(tuple(terms.split())))


def test_operators_cannot_change_the_voters_of_a_pair() -> None:
    attempts: tuple[Callable[[], Terms], ...] = (
        lambda: change.added(TOGETHER, "c"),
        lambda: change.removed(TOGETHER, "b"),
        lambda: change.replaced(TOGETHER, "b", "c"),
        lambda: change.with_votes(TOGETHER, "a", 2),
        lambda: change.with_expected(TOGETHER, 1),
    )
    for attempt in attempts:
        with pytest.raises(ConfigError, match="take the address of the one that it replaces"):
            attempt()


def test_the_terms_say_who_may_go_on_alone() -> None:
    """Also while its peer is being counted again; never a member that is away."""
    assert change.alone(TOGETHER, "a") == A_ALONE
    assert change.alone(A_ALONE, "a") == A_ALONE
    assert change.alone(A_ALONE, "b") == ()
    back = change.change_to(A_ALONE, TOGETHER)
    assert change.alone(back, "a") == A_ALONE
    assert change.alone(back, "b") == ()
    assert change.alone(TOGETHER, "c") == change.alone(("a", "b"), "a") == ()
    declared = change.declared_alone(A_ALONE, "b")
    assert declared == (*B_ALONE, "@declared")
    assert change.alone(declared, "b") == declared, "it holds after a restart too"
    assert change.alone(change.change_to(declared, TOGETHER), "b") == declared
    assert change.with_away(declared, ()) == TOGETHER
    assert change.declared_alone(("a", "b"), "b") == ()


# -- the rows --------------------------------------------------------------------------------------


def test_row_1_a_running_member_that_loses_its_peer_takes_the_vote() -> None:
    found = world(crash("b"), Step(("a",)))
    assert state(found, "a") == (True, A_ALONE)
    assert found.peers["a"].disk.voters == A_ALONE, "its disk does not record that it went on alone"


def test_row_2_without_the_vote_it_does_not_go_on() -> None:
    found = world()
    found.take(Step(("a",)))  # b is alive
    assert state(found, "a") == (False, TOGETHER)
    assert found.peers["a"].primary.lacks_its_peer


def test_row_3_a_member_that_went_on_alone_does_so_after_a_restart() -> None:
    found = world(crash("b"), crash("a", members=("a",)), Step(("a",)))
    assert state(found, "a") == (True, A_ALONE)


def test_row_4_a_restarted_member_waits_for_its_peer() -> None:
    """The peer may have gone on alone meanwhile, as it has here."""
    found = world(crash("b"), crash("a", members=("a",)), Step(("b",)))
    assert state(found, "b") == (False, TOGETHER)
    assert not found.peers["b"].primary.lacks_its_peer
    found.take(BOTH)
    assert found.peers["b"].primary.active
    assert state(found, "a") == (True, TOGETHER), "it counts again"


def test_row_5_it_waits_even_if_the_peer_did_nothing() -> None:
    """It cannot know that, so both are needed once."""
    found = world(crash("a", "b"), Step(("b",)))
    assert not found.peers["b"].primary.active
    found.take(BOTH)
    assert found.peers["b"].primary.active


def test_row_6_a_returned_member_that_counts_again_takes_over() -> None:
    found = world(crash("b"), Step(("a",)), crash("a"), Step(("b",)))
    assert state(found, "b") == (True, B_ALONE)


def test_row_7_a_returned_member_that_does_not_count_yet_waits() -> None:
    """The peer's disk records that it went on alone, so the peer would do so again."""
    found = world(crash("b"), Step(("a",)))
    found.take(Step(("a", "b"), ACTIVATE, ("a", "b"), crash=("a",)))
    found.take(Step(("b",)))
    assert not found.peers["b"].primary.active
    found.take(Step(("a",)))
    assert state(found, "a") == (True, A_ALONE)


def test_row_8_a_member_that_saw_a_newer_state_is_not_current() -> None:
    """b was cut off but alive while a went on alone; b has heard of that and lacks the
    new state."""
    found = world()
    del found.rings["b"]  # its link is cut; it takes no vote, as no step asks it to
    found.take(Step(("a",)))
    assert state(found, "a") == (True, A_ALONE)
    found.take(Step(("a", "b"), ACTIVATE, ("a", "b"), slow=("b",), crash=("a",)))
    found.take(Step(("b",)))
    assert not found.peers["b"].primary.lacks_its_peer
    assert not found.peers["b"].primary.active


@pytest.mark.parametrize("seen_by", [("b",), ("a", "b")])
def test_row_8_a_member_that_saw_only_a_report_is_not_current_either(
    seen_by: tuple[str, ...],
) -> None:
    """The view breaks before it decides anything."""
    found = world()
    del found.rings["b"]
    found.take(Step(("a",)))
    found.take(Step(("a", "b"), STATE, seen_by))
    found.take(Step(("b",)))
    assert not found.peers["b"].primary.lacks_its_peer


@pytest.mark.parametrize("kept", ["a", "b"])
def test_row_11_the_declared_history_is_kept(kept: str) -> None:
    """a went on alone and broke; b was declared and went on; then a returns with its disk."""
    found = Witness(Case(("a", "b", f"@pair={kept}")))
    found.take(BOTH)
    found.take(crash("b"))
    found.take(crash("a", members=("a",)))
    b = found.peers["b"]
    b.restart()
    found.take(Step(("b",)))
    assert not b.primary.active
    del found.rings["b"]
    b.disk = b.disk._replace(voters=change.declared_alone(b.disk.voters, "b"))
    b.restart()
    for _ in range(3):
        found.take(Step(("b",)))
    assert b.primary.active
    history, length = b.memory.order, len(b.memory.entries)
    found.take(BOTH)
    ends = {name: found.peers[name].memory for name in "ab"}
    assert ends["a"].order == ends["b"].order
    assert ends["b"].order_at(length) == history
    assert ends["a"].voters == ("a", "b", f"@pair={kept}"), "a declaration is left"
    assert "the history of b is kept" in found.peers["a"].primary.apart


def test_row_9_the_member_with_a_state_continues_beside_a_lost_disk() -> None:
    found = world(crash("b"), Step(("a",)))
    found.take(Step(("a", "b"), crash=("b",), wipe="b"))
    found.take(BOTH)
    assert state(found, "a") == (True, TOGETHER)
    assert state(found, "b") == (True, TOGETHER)


class Witness(World):
    """A world where both go on alone, so it checks none of what must then fail."""

    def activated(self, *_: object) -> None: ...
    def confirmed(self, *_: object) -> None: ...


@pytest.mark.parametrize("kept", ["a", "b"])
@pytest.mark.parametrize("restarted", [(), ("a",), ("b",), ("a", "b")])
@pytest.mark.parametrize("longer", ["a", "b"])
def test_row_10_if_both_went_on_alone_one_history_is_kept(
    kept: str, restarted: tuple[str, ...], longer: str
) -> None:
    """Exception 1 of G28: the pair's rule decides, whichever is longer, and nothing is mixed."""
    found = Witness(Case(("a", "b", f"@pair={kept}")))
    found.take(BOTH)
    for name, other in (("a", "b"), ("b", "a"), (longer, "")):
        ring = found.rings.pop(other, None)
        found.take(Step((name,)))
        if ring is not None:
            found.rings[other] = ring
    sides = {name: found.peers[name].memory for name in "ab"}
    assert all(found.peers[name].primary.active for name in "ab")
    for name in restarted:
        found.rings.pop(name, None)
        found.peers[name].restart()
    found.take(BOTH)
    ends = {name: found.peers[name].memory for name in "ab"}
    assert ends["a"].order == ends["b"].order
    assert ends["a"].order_at(len(sides[kept].entries)) == sides[kept].order
    assert ends["a"].voters == ("a", "b", f"@pair={kept}")
    for peer in found.peers.values():
        assert f"the history of {kept} is kept" in peer.primary.apart


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kept", ["a", "b"])
def test_row_10_the_member_set_aside_does_not_go_on_by_its_record(
    kept: str, restarted: bool
) -> None:
    """G28: the link breaks before the kept member's state has arrived; the kept member does
    go on."""
    found = Witness(Case(("a", "b", f"@pair={kept}")))
    found.take(BOTH)
    for name, other in (("a", "b"), ("b", "a")):
        ring = found.rings.pop(other, None)
        found.take(Step((name,)))
        if ring is not None:
            found.rings[other] = ring
    aside = "b" if kept == "a" else "a"
    found.take(Step(("a", "b"), ACTIVATE, ("a", "b"), slow=(aside,)))
    assert not found.peers[aside].disk.filled, (
        "its disk must record this before it fetches anything"
    )
    for name in (aside, kept):
        if restarted:
            found.rings.pop(name, None)
            found.peers[name].restart()
        found.take(Step((name,)))
    assert not found.peers[aside].primary.active
    assert found.peers[kept].primary.active
    found.take(BOTH)
    ends = {name: found.peers[name].memory for name in "ab"}
    assert ends["a"].order == ends["b"].order


def _side(name: str, *, took_nothing: bool) -> StateReport:
    """The report of a member of the pair `TOGETHER` that went on alone."""
    voters = A_ALONE if name == "a" else B_ALONE
    return StateReport(
        True, True, True, False, "c1", "p", voters, 2, 3, 3, 9, name.encode() * 16,
        name.encode() * 16, "", took_nothing=took_nothing,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("idle", "kept", "said"),
    [("", "b", True), ("a", "b", False), ("b", "a", False), ("ab", "b", False)],
)  # fmt: skip
def test_a_member_that_took_nothing_from_clients_is_no_side(
    idle: str, kept: str, said: bool
) -> None:
    """G28: then nothing is given up, and nothing is reported."""
    members = {name: Member(name, 1, f"{name}:1") for name in "ab"}
    reports = {members[name]: _side(name, took_nothing=name in idle) for name in "ab"}
    plan = make_plan(tuple(members.values()), reports)
    assert plan.donor == members[kept]
    assert plan.aside == members["a" if kept == "b" else "b"]
    assert bool(plan.apart) is said


def test_a_third_broker_cannot_join_a_pair() -> None:
    """A running member refuses it and says what to do; three that start together do not form."""
    a, b, c = (Member(name, 1, f"{name}:1") for name in "abc")
    reports = {a: _side("a", took_nothing=False)._replace(voters=TOGETHER)}
    reports[b] = reports[a]
    reports[c] = StateReport(
        False, False, False, False, "", "p", (), 2, 0, 0, 0, bytes(16), bytes(16), "",
        requested=("@pair=b",),
    )  # fmt: skip
    plan = make_plan((a, b, c), reports)
    assert refuse(c, reports[c], plan) == (
        "the members of this pair are a and b, and c is none of them: a new machine takes the "
        "address of the one that it replaces (--cluster-bind)"
    )
    assert refuse(a, reports[a], plan) == refuse(b, reports[b], plan) == ""
    first = make_plan((a, b, c), dict.fromkeys((a, b, c), reports[c]))
    assert first.verdict is PlanVerdict.WAIT
    assert first.reason == "a pair has two members, and here are a, b, c: stop one of them"


def test_a_pair_through_everything_that_may_happen_to_one_member() -> None:
    """G7, G8, G28: while at most one member takes the vote. A sample (`python -m
    tests.sim.explore`)."""
    assert explore(PAIRS["pair"], states_max=400).confirmed
    reports = [walk(PAIRS["pair"], seed, depth=60) for seed in range(40)]
    assert max(report.epochs for report in reports) > 15


def test_a_pair_orders_nothing_with_an_old_vote() -> None:
    """The vote is for one view; which view comes next is not known when it is taken."""
    found = world(crash("b"))
    found.take(Step(("a",), APP, ()))
    primary = found.peers["a"].primary
    assert primary.active
    assert primary._vote
    found.take(BOTH)
    primary.take_vote()
    assert not primary._vote
