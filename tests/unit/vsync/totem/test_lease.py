"""The lease: who is left behind is silent before the others act, by virtual clocks (G7)."""

from __future__ import annotations

import math
import random

import pytest

from tests.sim.mutation.by_hand import broken
from tests.support.ring.virtual_network import Net
from vsync.totem.config import RingConfig
from vsync.totem.ordering.lease import SLACK, Lease
from vsync.totem.ordering.tempo import Tempo
from vsync.totem.phases import Phase
from vsync.types import Member, RingId
from vsync.wire.messages import Pace, Token

A, B, C = (Member(n, 1, f"{n}:1") for n in "abc")
LONGEST_MS = 2000
R1, R2 = RingId(1, "a", 1), RingId(2, "a", 1)


def test_it_counts_from_the_last_token_but_one() -> None:
    lease = Lease(LONGEST_MS)
    lease.token(R1, (A, B), 10.0, 1000)
    assert not lease.holds(R1, 10.0)  # the others may not have had the token yet
    lease.token(R1, (A, B), 10.5, 1000)
    assert lease.holds(R1, 10.9)
    assert not lease.holds(R1, 11.0)
    assert not lease.holds(R2, 10.9)
    assert not lease.holds(R1, 10.9, after=10.1)  # the process was stopped until then


def test_another_ring_is_another_lease() -> None:
    """An application that is behind must not act on a view that its ring has left."""
    lease = Lease(LONGEST_MS)
    for now in (10.0, 10.1, 10.2):
        lease.token(R1, (A, B), now, 1000)
    lease.token(R2, (A,), 10.3, 1000)
    assert not lease.holds(R1, 10.3)
    assert lease.holds(R2, 99.0)  # alone it shares what it may do with nobody


def test_members_wait_only_for_leases_of_those_that_did_not_come_along() -> None:
    lease = Lease(LONGEST_MS)
    lease.start(0.0, 1000)
    for now in (10.0, 10.1, 10.2):
        lease.token(R1, (A, B, C), now, 1000)
    lease.token(R2, (A, B), 10.3, 1000)
    assert lease.silent_at((A, B)) == pytest.approx(10.2 + 1 + SLACK)
    assert lease.silent_at((A, B, C)) == -math.inf
    assert (
        lease.silent_at((A, B, Member("c", 2, "c:1"))) > 10.2
    )  # another incarnation is another member


def test_a_new_incarnation_waits_for_the_rings_of_the_former_one() -> None:
    lease = Lease(LONGEST_MS)
    lease.start(5.0, 1000)
    lease.token(R1, (A, B), 5.1, 1000)
    assert lease.silent_at((A, B)) == pytest.approx(5 + 1 + SLACK)
    lease.token(R2, (A, B), 7.0, 1000)
    assert lease.silent_at((A, B)) == -math.inf


class Erratic(Tempo):
    """As representative it wants another lease with each rotation."""

    def __init__(self, config: RingConfig, chance: random.Random) -> None:
        super().__init__(config)
        self._chance = chance

    def pace(self, token: Token, *, first: bool) -> Pace:
        self.keep(LONGEST_MS)
        self.lease_ms = self._chance.choice((200, 300, 500, 900))
        return super().pace(token, first=first)


def test_it_is_as_long_as_the_lesser_of_two_tokens_says_and_others_wait_for_the_larger() -> None:
    lease = Lease(LONGEST_MS)
    for now, said_ms in ((10.0, 1000), (10.1, 1000), (10.2, 300)):
        lease.token(R1, (A, B, C), now, said_ms)
    assert lease.holds(R1, 10.39)
    assert not lease.holds(R1, 10.4)
    lease.token(R2, (A, B), 10.3, 0)
    assert lease.silent_at((A, B)) == pytest.approx(10.2 + 1 + SLACK)


def test_more_than_a_member_agrees_to_is_believed_of_no_token() -> None:
    lease = Lease(LONGEST_MS)
    for now in (10.0, 10.1):
        lease.token(R1, (A, B), now, 1 << 31)
    assert lease.holds(R1, 11.9)
    assert not lease.holds(R1, 12.1)


def left_behind(seed: int, *, changing: bool) -> tuple[float, float]:
    """The last moment at which a member left behind would have spoken, and the first at which
    another one would: members are stopped and wake up late, frames are lost, and the split comes at
    any moment."""
    chance = random.Random(seed)
    net = Net("abc", seed=seed)
    if changing:
        for node in net.nodes.values():
            node.membership.tokens.tempo = Erratic(net.config, chance)
    net.settle("abc")
    ring = net.nodes["c"].ring
    net.run(chance.uniform(0.0, 0.3))
    noisy = chance.random() < 0.5
    net.drop = lambda _from, _to, _frame: noisy and chance.random() < 0.02
    stopped = chance.random() < 0.5
    if stopped:
        net.paused["c"] = []
    else:
        net.split("ab", "c")
    for name in "ab":  # as after a reset by a host on which nobody listens: the fastest exclusion
        net.suspect(name, net.nodes["c"].me.address, True)
    left_at = -math.inf
    act_at = math.inf
    wakes_at = net.now + chance.uniform(0.0, 1.5)
    end = net.now + 4.0
    while net.now < end:
        net.run(0.005)
        net.now = max(net.now, min(end, net.now + 0.001))
        if stopped and net.now >= wakes_at:
            stopped = False
            net.split("ab", "c")
            backlog = net.paused.pop("c")
            for number, frame in enumerate(backlog):
                net.push(net.now + number * 1e-6, "c", frame)
        if "c" not in net.paused and net.nodes["c"].lease.holds(ring, net.now):
            left_at = net.now
        for name in "ab":
            node = net.nodes[name]
            alone = node.phase is Phase.OPERATIONAL and len(node.members) == 2
            if alone and net.now >= node.lease.silent_at(node.members):
                act_at = min(act_at, net.now)
    assert act_at < math.inf, "they never went on"
    return left_at, act_at


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_the_lease_of_a_member_left_behind_ends_before_the_others_may_act(
    seed: int, changing: bool
) -> None:
    """G7, also while the token says another lease with each rotation."""
    left_at, act_at = left_behind(seed, changing=changing)
    assert left_at < act_at


@pytest.mark.parametrize("mutant", ["waits_for_the_shorter_lease", "acts_for_the_longer_lease"])
def test_the_order_of_lesser_and_larger_is_needed(mutant: str) -> None:
    with broken(mutant):
        found = (left_behind(seed, changing=True) for seed in range(60))
        assert any(left_at >= act_at for left_at, act_at in found)
