"""Links broken in one or both directions: views form, stay and heal (G4, L1, L3).

The tests walk through all patterns of broken links among three and four members. `EXPLORE_STRIDE` 1
explores all of them; the larger everyday value thins them out.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

import pytest

from tests.support.ring.virtual_network import Net
from vsync.totem.config import RingConfig
from vsync.totem.events import Note
from vsync.totem.membership.connectivity import Connectivity, largest_clique
from vsync.totem.membership.gather import BRIEF_JOINS
from vsync.totem.phases import Phase
from vsync.types import Guarantee, Member

STRIDE = int(os.environ.get("EXPLORE_STRIDE", "71"))
CONFIG = RingConfig(
    token_timeout_ms=200, join_timeout_ms=20, merge_interval_ms=50, lonely_wait_ms=50, hold_ms=20
)
SETTLE_S = 4 * (CONFIG.token_timeout(4) + CONFIG.consensus_timeout(4))
"""Token and consensus, and what follows from it, until views form for the last time."""
STAY_S = 3.0
A, B, C, D, E = (Member(n, 1, f"{n}:1") for n in "abcde")

Pairs = Iterable[tuple[str, str]]


def both_ways(pairs: Pairs) -> set[tuple[str, str]]:
    return {pair for a, b in pairs for pair in ((a, b), (b, a))}


def subsets(pairs: list[tuple[str, str]]) -> list[tuple[tuple[str, str], ...]]:
    return [
        some for size in range(1, len(pairs) + 1) for some in itertools.combinations(pairs, size)
    ]


def views(net: Net) -> dict[str, str]:
    """The view of each member, as a string of sorted names."""
    return {n: "".join(m.name for m in node.members) for n, node in net.nodes.items()}


def assert_views_stay(net: Net, whole: str) -> dict[str, str]:
    """Members agree on their views, whose members are all linked, and no view changes."""
    assert all(node.phase is Phase.OPERATIONAL for node in net.nodes.values()), net.describe()
    seen = views(net)
    before = {n: len(net.views(n)) for n in net.nodes}
    for name, view in seen.items():
        assert all(seen[other] == view for other in view), (name, seen)
        assert len({net.nodes[other].ring for other in view}) == 1
        if view != whole:  # an old view may outlive a broken link; no new one has it
            assert not {(a, b) for a in view for b in view} & net.cut, (seen, net.cut)
    net.run(STAY_S)
    assert views(net) == seen, (seen, views(net), net.cut)
    assert {n: len(net.views(n)) for n in net.nodes} == before, (net.cut, net.describe())
    return seen


def story(names: str, cut: set[tuple[str, str]]) -> dict[str, str]:
    """Cut links; see views form, stay and carry messages; mend; see one view again.

    An idle ring may not need a broken link; the first messages discover it.
    """
    net = Net(names, config=CONFIG)
    net.settle(names)
    net.cut = cut
    net.run(0.1)
    for name in names:
        assert net.submit(name, b"first " + name.encode())
    net.run(SETTLE_S)
    seen = assert_views_stay(net, names)
    for name in names:
        assert net.submit(name, name.encode())
    net.run(1.0)
    assert views(net) == seen
    for name, view in seen.items():
        assert set(view.encode()) <= {p[0] for p in net.payloads(name) if len(p) == 1}, (
            name,
            seen,
            cut,
        )
    net.cut = set()
    net.settle(names, within=2.0)
    assert_views_stay(net, names)
    return seen


# -- two-way cuts -----------------------------------------------------------------------------


@pytest.mark.parametrize("cut", subsets(list(itertools.combinations("abc", 2))))
def test_every_pattern_of_cut_pairs_of_three(cut: Pairs) -> None:
    story("abc", both_ways(cut))


@pytest.mark.slow
def test_every_single_pattern_of_cut_pairs_of_four_and_of_one_way_cuts_of_three() -> None:
    for cut in subsets(list(itertools.combinations("abcd", 2))):
        story("abcd", both_ways(cut))
    for cut in subsets(list(itertools.permutations("abc", 2))):
        story("abc", set(cut))


def test_patterns_of_cut_pairs_of_four() -> None:
    for cut in subsets(list(itertools.combinations("abcd", 2)))[:: max(1, STRIDE // 3)]:
        story("abcd", both_ways(cut))


def test_patterns_of_one_way_cuts_of_three() -> None:
    for cut in subsets(list(itertools.permutations("abc", 2)))[:: max(1, STRIDE // 5)]:
        story("abc", set(cut))


def test_one_way_cuts_of_four() -> None:
    for cut in subsets(list(itertools.permutations("abcd", 2)))[:: 20 * STRIDE]:
        story("abcd", set(cut))


def test_an_unlinked_pair_and_a_third_linked_to_both_settle() -> None:
    seen = story("abc", both_ways([("a", "b")]))
    assert sorted(seen.values(), key=len) in (["a", "bc", "bc"], ["b", "ac", "ac"])


def test_a_chain_of_five_makes_pairs() -> None:
    chain = {("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")}
    broken = [p for p in itertools.combinations("abcde", 2) if p not in chain]
    assert sorted(map(len, set(story("abcde", both_ways(broken)).values()))) == [1, 2, 2]


def test_a_star_of_five_keeps_one_pair() -> None:
    broken = itertools.combinations("bcde", 2)
    assert sorted(map(len, set(story("abcde", both_ways(broken)).values()))) == [1, 1, 1, 2]


@pytest.mark.parametrize("left", ["ab", "abc"])
def test_one_link_broken_across_a_healing_partition_costs_one_member(left: str) -> None:
    """The halves cannot merge whole; the largest clique is better than either, and it stays."""
    right = "abcde".replace(left, "")
    net = Net("abcde", config=CONFIG)
    net.settle("abcde")
    net.split(left, right)
    net.settle(left, right)
    net.cut = both_ways([("b", "d")])
    net.run(SETTLE_S)
    assert max(len(v) for v in assert_views_stay(net, "").values()) == 4


def test_a_new_ring_is_a_clique_from_the_start() -> None:
    """Even if the token's path does not need the broken link."""
    net = Net("", config=CONFIG)
    net.cut = both_ways([("b", "d")])
    for name in "abcd":
        net.boot(name)
    net.run(SETTLE_S)
    assert max(len(v) for v in assert_views_stay(net, "").values()) == 3


def test_a_broken_link_is_not_waited_for_as_long_as_a_silent_member() -> None:
    net = Net("abc")
    net.settle("abc")
    net.cut = both_ways([("a", "b")])
    brief = (BRIEF_JOINS + 2) * net.config.join_timeout_ms / 1000
    net.run(
        net.config.hearing_ms / 1000 + brief,
        lambda: net.settled("ac") or net.settled("bc"),
    )


# -- members that only receive or only send ---------------------------------------------------


def of(names: str, name: str, incoming: bool) -> set[tuple[str, str]]:
    return {(o, name) if incoming else (name, o) for o in names.replace(name, "")}


@pytest.mark.parametrize("incoming", [True, False])
@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("name", "abc")
def test_a_member_that_only_sends_or_receives_stays_excluded(
    name: str, incoming: bool, busy: bool
) -> None:
    net = Net("abc")
    net.settle("abc")
    net.run(0.3)
    others = "abc".replace(name, "")
    net.cut = of("abc", name, incoming)
    began, bound = net.now, net.config.token_timeout(3) + net.config.consensus_timeout(3)

    def out() -> bool:
        if busy:
            net.submit(others[0], b"x", Guarantee.AGREED)
        return net.settled(others)

    net.run(bound + 0.1, out)
    assert net.now - began <= bound + 0.1
    net.run(bound)
    changes = [len(net.views(n)) for n in others]
    net.run(10.0)
    assert [len(net.views(n)) for n in others] == changes
    net.cut = set()
    net.settle("abc", within=2.0)


@pytest.mark.parametrize("name", "abc")
def test_a_member_that_gets_tokens_but_no_data_is_failed_by_the_others(name: str) -> None:
    net = Net("abc")
    net.settle("abc")
    others = "abc".replace(name, "")
    net.drop = lambda _s, to, frame: to == name and frame[1] == 2
    net.submit(others[0], b"x")
    began = net.now
    net.run(2.0, lambda: all(len(net.nodes[n].members) == 2 for n in others))
    assert net.now - began < 2 * net.config.receive_failure_ms / 1000 + 0.5


# -- who is let in ----------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [{("a", "d"), ("d", "a")}, {("a", "d")}, {("d", "a")}])
def test_a_newcomer_that_reaches_only_some_waits_and_disturbs_nobody(
    cut: set[tuple[str, str]],
) -> None:
    net = Net("abc", config=CONFIG)
    net.settle("abc")
    before = [len(net.views(n)) for n in "abc"]
    net.cut = cut
    net.boot("d")
    net.run(10.0)
    assert [len(net.views(n)) for n in "abc"] == before
    assert views(net)["d"] == "d"
    net.cut = set()
    net.settle("abcd", within=2.0)


def test_a_newcomer_that_reaches_all_joins_at_once() -> None:
    net = Net("abc")
    net.settle("abc")
    net.run(0.77)
    net.boot("d")
    net.settle("abcd", within=0.1)


def test_flapping_links_cost_a_bounded_share_of_time() -> None:
    net = Net("abc", config=CONFIG)
    net.settle("abc")
    up = 0
    for turn in range(200):
        net.cut = both_ways([("a", "b")]) if turn % 8 < 4 else set()
        net.run(0.1)
        up += any(
            node.phase is Phase.OPERATIONAL and len(node.members) > 1 for node in net.nodes.values()
        )
    assert up > 100
    net.cut = set()
    net.settle("abc", within=SETTLE_S)


# -- the leaf ---------------------------------------------------------------------------------


def on_frame(
    connectivity: Connectivity, rows: dict[Member, tuple[Member, ...]], sizes: dict[Member, int]
) -> None:
    for member, reception in rows.items():
        connectivity.on_frame(member, 0.0)
        connectivity.on_report(member, reception, sizes.get(member, 1), 0.0)


def test_a_link_needs_reports_from_both_ends() -> None:
    connectivity = Connectivity(A, 1.0)
    on_frame(connectivity, {B: (A, C), C: (B,)}, {})
    assert list(connectivity.linked(0.5)) == [B]
    assert connectivity.reception(0.5) == (B, C)
    assert connectivity.reception(1.1) == ()
    assert not connectivity.linked(1.1)
    assert connectivity.complete((A, B), 0.5)
    assert not connectivity.complete((A, B, C), 0.5)
    assert connectivity.all_received((A, B, C), 0.5)
    assert not connectivity.all_received((A, D), 0.5)


def test_a_view_is_given_up_only_for_a_larger_one() -> None:
    connectivity = Connectivity(A, 1.0)
    on_frame(connectivity, {B: (A, C, D), C: (A, B, D), D: (A, B, C)}, {B: 1, C: 2, D: 2})
    assert connectivity.gain(1, 64, (), 0.0) == (A, B, C, D)
    assert connectivity.gain(4, 64, (), 0.0) == ()
    assert connectivity.gain(1, 64, (C, D), 0.0) == (A, B)
    assert connectivity.gain(2, 2, (), 0.0) == ()
    on_frame(connectivity, {B: (A,), C: (A, D), D: (A, C)}, {B: 1, C: 4, D: 4})
    assert connectivity.gain(1, 64, (), 0.0) == (A, B)
    assert connectivity.gain(2, 64, (), 0.0) == ()


def test_the_largest_clique_is_found_and_the_first_of_equals() -> None:
    links = {frozenset(p) for p in ((B, C), (C, D), (D, E), (C, E))}
    found = largest_clique(A, [B, C, D, E], lambda a, b: frozenset((a, b)) in links)
    assert found == (A, C, D, E)
    assert largest_clique(A, [E, D], lambda _a, _b: False) == (A, D)
    many = [Member(f"m{i:02}", 1, "") for i in range(64)]
    rivals = largest_clique(A, many, lambda a, b: int(a.name[1:]) // 2 != int(b.name[1:]) // 2)
    assert len(rivals) == 33  # and it terminates


def test_a_newer_incarnation_replaces_the_older_in_bounded_memory() -> None:
    connectivity = Connectivity(A, 1.0)
    assert connectivity.on_frame(B, 0.0)
    assert not connectivity.on_frame(B, 0.5)
    assert connectivity.on_frame(B, 2.0)
    young = B._replace(incarnation=2)
    assert connectivity.on_frame(young, 2.1)
    assert connectivity.reception(2.1) == (young,)
    for i in range(1000):
        connectivity.on_frame(Member(f"m{i}", 1, ""), 3.0)
    assert len(connectivity.reception(3.0)) <= 256


def test_the_trace_shows_failed_members_and_merges() -> None:
    net = Net("abc", config=CONFIG)
    net.settle("abc")
    net.cut = both_ways([("a", "b")])
    net.run(SETTLE_S)
    net.cut = set()
    net.settle("abc")
    notes = [o.code for n in "abc" for o in net.seen[n] if isinstance(o, Note)]
    assert "failed" in notes
    assert "meet" in notes or net.count("phase_gather") > 3
    assert net.count("clique_chosen") > 0
