"""Leases: a member left behind falls silent before the others act, by virtual clocks (G7)."""

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


def test_a_lease_counts_from_the_last_token_but_one() -> None:
    lease = Lease(LONGEST_MS)
    lease.token(R1, (A, B), 10.0, 1000)
    assert not lease.holds(R1, 10.0)  # the others may not have received the token yet
    lease.token(R1, (A, B), 10.5, 1000)
    assert lease.holds(R1, 10.9)
    assert not lease.holds(R1, 11.0)
    assert not lease.holds(R2, 10.9)
    assert not lease.holds(R1, 10.9, after=10.1)  # the process was stopped until then


def test_another_ring_has_another_lease() -> None:
    """An application that lags must not act on a view that its ring has left."""
    lease = Lease(LONGEST_MS)
    for now in (10.0, 10.1, 10.2):
        lease.token(R1, (A, B), now, 1000)
    lease.token(R2, (A,), 10.3, 1000)
    assert not lease.holds(R1, 10.3)
    assert lease.holds(R2, 99.0)  # alone, it shares its rights with nobody


def test_members_wait_only_for_leases_of_members_left_behind() -> None:
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


def test_a_new_incarnation_waits_for_the_leases_of_the_old_one() -> None:
    lease = Lease(LONGEST_MS)
    lease.start(5.0, 1000)
    lease.token(R1, (A, B), 5.1, 1000)
    assert lease.silent_at((A, B)) == pytest.approx(5 + 1 + SLACK)
    lease.token(R2, (A, B), 7.0, 1000)
    assert lease.silent_at((A, B)) == -math.inf


class Erratic(Tempo):
    """As representative it announces a different lease in each rotation."""

    def __init__(self, config: RingConfig, chance: random.Random) -> None:
        super().__init__(config)
        self._chance = chance

    def pace(self, token: Token, *, first: bool, idle: int = 0) -> Pace:
        self.keep(LONGEST_MS)
        self.lease_ms = self.busy_lease_ms = self._chance.choice((100, 300, 500, 900))
        return super().pace(token, first=first, idle=idle)


def test_a_member_acts_by_the_lesser_lease_and_waits_for_the_larger() -> None:
    lease = Lease(LONGEST_MS)
    for now, said_ms in ((10.0, 1000), (10.1, 1000), (10.2, 300)):
        lease.token(R1, (A, B, C), now, said_ms)
    assert lease.holds(R1, 10.39)
    assert not lease.holds(R1, 10.4)
    lease.token(R2, (A, B), 10.3, 0)
    assert lease.silent_at((A, B)) == pytest.approx(10.2 + 1 + SLACK)


def test_a_lease_is_limited_to_what_the_member_agreed_to() -> None:
    lease = Lease(LONGEST_MS)
    for now in (10.0, 10.1):
        lease.token(R1, (A, B), now, 1 << 31)
    assert lease.holds(R1, 11.9)
    assert not lease.holds(R1, 12.1)


def busy(net: Net, seconds: float) -> None:
    """Submit a message each millisecond, each from a random member."""
    end = net.now + seconds
    while net.now < end:
        net.submit(net.rng.choice("abc"), b"x")
        net.run(0.001)


def come_and_go(net: Net, chance: random.Random) -> None:
    """Start or stop the messages just now, so that the lease shortens or lengthens."""
    net.run(1.0)
    if chance.random() < 0.7:
        net.submit(chance.choice("abc"), b"x")
        net.run(chance.uniform(0.0, 0.0025))
    else:
        busy(net, 0.1)
        net.run(chance.uniform(0.0, 0.5))


def left_behind(seed: int, lease: str) -> tuple[float, float]:
    """The last moment at which a member left behind may act, and the first at which another member
    may.

    Members are stopped and wake up late, frames are lost, and the split comes at a random moment.
    """
    chance = random.Random(seed)
    net = Net("abc", seed=seed)
    if lease == "erratic":
        for node in net.nodes.values():
            node.membership.tokens.tempo = Erratic(net.config, chance)
    net.settle("abc")
    ring = net.nodes["c"].ring
    if lease == "paced":
        come_and_go(net, chance)
    else:
        net.run(chance.uniform(0.0, 0.3))
    noisy = chance.random() < 0.5
    net.drop = lambda _from, _to, _frame: noisy and chance.random() < 0.02
    stopped = chance.random() < 0.5
    if stopped:
        net.paused["c"] = []
    else:
        net.split("ab", "c")
    for name in "ab":  # as if its host reset the connections: the fastest exclusion
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


@pytest.mark.turns(20)
@pytest.mark.parametrize("lease", ["steady", "erratic", "paced"])
@pytest.mark.parametrize("seed", range(25))
def test_the_lease_of_a_member_left_behind_ends_before_the_others_act(
    seed: int, lease: str
) -> None:
    """G7, even while the token announces a different lease in each rotation."""
    left_at, act_at = left_behind(seed, lease)
    assert left_at < act_at


@pytest.mark.parametrize("lease", ["erratic", "paced"])
@pytest.mark.parametrize("mutant", ["waits_for_the_shorter_lease", "acts_for_the_longer_lease"])
def test_acting_by_the_lesser_and_waiting_for_the_larger_is_needed(mutant: str, lease: str) -> None:
    with broken(mutant):
        found = (left_behind(seed, lease) for seed in range(60))
        assert any(left_at >= act_at for left_at, act_at in found)


@pytest.mark.parametrize("dead", "abc")
def test_the_others_wait_less_while_messages_flow(dead: str) -> None:
    net = Net("abc")
    net.settle("abc")
    busy(net, 0.3)
    died_at = net.now
    net.crash(dead, noticed=True)
    net.settle("abc".replace(dead, ""))
    # One of them may have kept the token since its last message, and pass it on then.
    latest = 0.121 + net.config.keep_ms / 1000
    for node in net.nodes.values():
        assert 0.09 < node.lease.silent_at(node.members) - died_at < latest


def idle_leases(pause_s: float) -> bool:
    """Whether all members may always act while messages stop and start again."""
    net = Net("abc")
    net.settle("abc")
    net.run(0.2)
    held = True
    for _ in range(3):
        busy(net, 0.1)
        end = net.now + pause_s
        while net.now < end:
            net.run(0.001)
            held = held and all(n.lease.holds(n.ring, net.now) for n in net.nodes.values())
    return held


@pytest.mark.parametrize("pause_s", [0.1, 0.35, 1.0])
def test_a_ring_becomes_idle_within_its_lease(pause_s: float) -> None:
    assert idle_leases(pause_s)


@pytest.mark.parametrize("mutant", ["holds_before_it_says_so", "says_one_lease_at_any_pace"])
def test_the_longer_lease_is_needed_before_the_token_is_held(mutant: str) -> None:
    with broken(mutant):
        assert not idle_leases(1.0)


def test_a_slow_busy_ring_has_a_longer_lease() -> None:
    """It is known before messages flow: the idle ring's rotation time without the hold
    is remembered."""
    tempo = Tempo(RingConfig())
    for step in range(200):
        tempo.rotation(0.065 + 0.05, now=0.1 * step, held=True)
    assert tempo.busy_lease_ms == pytest.approx(150, abs=5)
    assert tempo.lease_ms == pytest.approx(345, abs=5)


def test_a_hold_does_not_lengthen_a_busy_lease() -> None:
    tempo = Tempo(RingConfig())
    for step in range(200):
        tempo.rotation(0.07, now=0.1 * step, held=True)
    assert tempo.busy_lease_ms == RingConfig().busy_lease_ms == 100


@pytest.mark.parametrize(
    ("settings", "busy_ms"),
    [
        ({}, 100),
        ({"token_timeout_ms": 1200, "hold_ms": 130}, 200),
        ({"keep_ms": 65, "rest_ms": 60}, 200),
    ],
)
def test_a_busy_rings_lease_is_three_of_its_rests(settings: dict[str, int], busy_ms: int) -> None:
    assert RingConfig(**settings).busy_lease_ms == busy_ms
