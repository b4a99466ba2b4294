"""The lease: who is left behind is silent before the others act, by virtual clocks (G7)."""

from __future__ import annotations

import math
import random

import pytest

from tests.support.ring.virtual_network import Net
from vsync.totem.ordering.lease import SLACK, Lease
from vsync.totem.phases import Phase
from vsync.types import Member, RingId

A, B, C = (Member(n, 1, f"{n}:1") for n in "abc")
R1, R2 = RingId(1, "a", 1), RingId(2, "a", 1)


def test_it_counts_from_the_last_token_but_one() -> None:
    lease = Lease(1.0)
    lease.token(R1, (A, B), 10.0)
    assert not lease.holds(R1, 10.0)  # the others may not have had the token yet
    lease.token(R1, (A, B), 10.5)
    assert lease.holds(R1, 10.9)
    assert not lease.holds(R1, 11.0)
    assert not lease.holds(R2, 10.9)
    assert not lease.holds(R1, 10.9, after=10.1)  # the process was stopped until then


def test_another_ring_is_another_lease() -> None:
    """An application that is behind must not act on a view that its ring has left."""
    lease = Lease(1.0)
    for now in (10.0, 10.1, 10.2):
        lease.token(R1, (A, B), now)
    lease.token(R2, (A,), 10.3)
    assert not lease.holds(R1, 10.3)
    assert lease.holds(R2, 99.0)  # alone it shares what it may do with nobody


def test_members_wait_only_for_leases_of_those_that_did_not_come_along() -> None:
    lease = Lease(1.0)
    lease.start(0.0)
    for now in (10.0, 10.1, 10.2):
        lease.token(R1, (A, B, C), now)
    lease.token(R2, (A, B), 10.3)
    assert lease.silent_at((A, B)) == pytest.approx(10.2 + 1 + SLACK)
    assert lease.silent_at((A, B, C)) == -math.inf
    assert (
        lease.silent_at((A, B, Member("c", 2, "c:1"))) > 10.2
    )  # another incarnation is another member


def test_a_new_incarnation_waits_for_the_rings_of_the_former_one() -> None:
    lease = Lease(1.0)
    lease.start(5.0)
    lease.token(R1, (A, B), 5.1)
    assert lease.silent_at((A, B)) == pytest.approx(5 + 1 + SLACK)
    lease.token(R2, (A, B), 7.0)
    assert lease.silent_at((A, B)) == -math.inf


@pytest.mark.parametrize("seed", range(25))
def test_the_lease_of_a_member_left_behind_ends_before_the_others_may_act(seed: int) -> None:
    """G7: the lease of a member left behind ends before the others' wait does, though members
    are stopped and wake up late, frames are lost, and the split comes at any moment."""
    chance = random.Random(seed)
    net = Net("abc", seed=seed)
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
    left_at = -math.inf  # the last moment at which c would have spoken
    act_at = math.inf  # the first at which a or b would
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
    assert left_at < act_at
