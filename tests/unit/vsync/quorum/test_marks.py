"""Durable positions: one rule for a broker's voters and for a group's members."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from tests.support.ring.virtual_network import Net
from vsync.cpg.durability import Durability
from vsync.cpg.events import GroupSent
from vsync.quorum.durable_position import durable_up_to
from vsync.quorum.voter_set import EXACT_MAX, JUDGED_MAX, parse
from vsync.totem.events import Deliver, Marks
from vsync.types import Guarantee, Member
from vsync.wire.messages import FrameKind


def test_durable_is_the_position_some_sufficient_set_has_reached() -> None:
    marks = {"a": 9, "b": 7, "c": 3}
    assert [durable_up_to(marks, lambda s, n=n: len(s) >= n) for n in (1, 2, 3, 4)] == [9, 7, 3, 0]  # type: ignore[misc]
    assert durable_up_to(marks, lambda s: "c" in s) == 3
    assert durable_up_to({}, lambda s: True) == 0


def test_it_equals_a_search_of_all_subsets() -> None:
    """With votes, and with members that do not count."""
    for seed in range(200):
        rng = random.Random(seed)
        names = "abcde"[: rng.randrange(1, 6)]
        voters = parse(tuple(f"{n}={rng.randrange(1, 4)}" for n in names))
        marks = {n: rng.randrange(6) for n in names}
        caught_up = frozenset(n for n in names if rng.random() < 0.8)
        best = 0
        for size in range(1, len(names) + 1):
            for some in combinations(names, size):
                if set(some) <= caught_up and all(one.quorate(set(some)) for one in voters.sets):
                    best = max(best, min(marks[n] for n in some))
        assert voters.durable(marks, caught_up, 0) == best, (seed, marks, caught_up)


def test_with_many_voters_not_every_subset_is_cached() -> None:
    """With the most voters allowed, a hundred thousand subsets reach a position first, in turn."""
    rng = random.Random(1)
    names = tuple(f"m{number}" for number in range(EXACT_MAX))
    voters, marks = parse(names), dict.fromkeys(names, 0)
    for position in range(2 * JUDGED_MAX):
        marks[rng.choice(names)] = position
        tenth = sorted(marks.values(), reverse=True)[EXACT_MAX // 2]
        assert voters.durable(marks, names, 0) == tenth
    assert len(voters.latest.judged) <= JUDGED_MAX


def test_broker_and_group_agree_where_both_apply() -> None:
    names = ("a", "b", "c")
    members = tuple(Member(n, 1, f"{n}:1") for n in names)
    for seed in range(50):
        rng = random.Random(seed)
        marks = {n: rng.randrange(20) for n in names}
        group = Durability()
        for position in range(1, 20):
            group.add(position, position, "g", members)
        told = [e.position for e in group.on_marks(marks) if isinstance(e, GroupSent)]
        durable = parse(names).durable(marks, frozenset(names), 0)
        assert told == list(range(1, durable + 1))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_members_know_what_is_durable_without_any_message(size: int) -> None:
    """The marks ride on the token: only tokens and WAKE frames are sent for them."""
    names = "abcde"[:size]
    net = Net(names)
    net.settle(names)
    net.run(0.5)
    kinds: set[int] = set()
    net.drop = lambda _s, _t, f: bool(kinds.add(f[1]))  # type: ignore[func-returns-value]
    for position, name in enumerate(names, start=10):
        net.nodes[name].set_mark(position, net.now)
        net.flush(name)
    want = 10 + size - (size // 2 + 1)

    def durable(name: str) -> int:
        shown = [o for o in net.seen[name] if isinstance(o, Marks)]
        return durable_up_to(shown[-1].marks, lambda s: 2 * len(s) > size)

    net.run(0.01, lambda: all(durable(n) == want for n in names))
    assert kinds <= {1, 5, 6}  # TOKEN, MERGE, WAKE


class InstantDisks(Net):
    """Every member has its deliveries on disk at once: no mark can be earlier."""

    def __init__(self, names: str, seed: int) -> None:
        self.delivered = dict.fromkeys(names, 0)
        self.looked_at = 0
        super().__init__(names, seed)

    def flush(self, name: str) -> None:
        """Count the node's deliveries, and set its mark."""
        known = len(self.seen[name])
        super().flush(name)
        for output in self.seen[name][known:]:
            if isinstance(output, Deliver):
                self.delivered[name] += len(output.payloads)
            elif isinstance(output, Marks):
                highest = max(output.marks.values())
                assert min(self.delivered.values()) >= highest, (name, output, self.delivered)
                self.looked_at += highest > 0
        if self.nodes[name].mark != self.delivered[name]:
            self.nodes[name].set_mark(self.delivered[name], self.now)
            self.flush(name)


@pytest.mark.parametrize("seed", range(8))
def test_a_mark_is_sent_only_once_all_have_delivered_what_it_covers(seed: int) -> None:
    """G8: so a message confirmed elsewhere is never unstable at a member of the surviving view.

    The primary layer prefers a state with its undecided messages to a state from a disk, and would
    give up what only the disk has. A mark that came faster than the token would therefore let it
    forget confirmed commands (`tests.sim.explore.exhaustive` finds how).
    """
    names = "abcde"[: 2 + seed % 4]
    net = InstantDisks(names, seed)
    net.settle(names)
    loss = random.Random(seed)
    net.drop = lambda _from, _to, frame: frame[1] == FrameKind.DATA and loss.random() < 0.1
    for number in range(60):
        name = names[number % len(names)]
        if net.nodes[name].submit(b"%d" % number, net.now, Guarantee.SAFE):
            net.flush(name)
        net.run(loss.choice((0.0, 0.0005, 0.01)))
    net.drop = lambda _from, _to, _frame: False
    net.run(2.0, lambda: set(net.delivered.values()) == {60})
    assert set(net.delivered.values()) == {60}
    assert net.looked_at > 20
