"""No message expires early, whatever delays the ticks of clocks that are right or have their own
rates (G17)."""

from collections.abc import Sequence

import pytest

from broker.machine.schedule import NEVER_US
from broker.machine.state import State
from tests.properties.models.clock_swarm import Habits, RatedWorld, SwarmWorld
from tests.properties.models.clock_world import ClockWorld

SECONDS = 12.0
LATE_S = 2.0


@pytest.mark.parametrize("kind", [ClockWorld, SwarmWorld, RatedWorld])
def test_nothing_expires_early(kind: type[ClockWorld]) -> None:
    """G17."""
    expired = 0
    for seed in range(20):
        world = kind(seed)
        assert not world.run(SECONDS), f"seed {seed}"
        expired += world.expired
    assert expired > 20


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [ClockWorld, SwarmWorld, RatedWorld])
def test_nothing_expires_early_in_many_more_histories(kind: type[ClockWorld]) -> None:
    """G17."""
    worlds = {seed: kind(seed) for seed in range(1000, 1400)}
    assert not [seed for seed, world in worlds.items() if world.run(SECONDS)]
    assert sum(world.expired for world in worlds.values()) > 4000


def test_nothing_expires_very_late_without_faults() -> None:
    """G17: what a clock may claim, one tick, and the delay with which this world applies it."""
    for seed in range(12):
        world = ClockWorld(seed, faulty=False)
        assert not world.run(SECONDS), f"seed {seed}"
        assert world.latest_s < LATE_S, f"seed {seed}"
        assert world.expired, f"seed {seed}"


def test_one_wrong_clock_makes_nothing_very_late() -> None:
    """G17: it holds the others' time back no more than it drives it on."""
    habits = Habits(leases=True, takes=False, cold=False, wrong=True, votes="equal")
    for seed in range(6):
        world = SwarmWorld(seed, habits, faulty=False)
        assert not world.run(SECONDS), f"seed {seed}"
        assert world.latest_s < LATE_S, f"seed {seed}"


def _no_horizon(_state: State, _applied: int, _until: int) -> int:
    return NEVER_US


@pytest.mark.parametrize(
    ("of", "where", "seeds"),
    [
        ("the machine takes every claim", "broker.machine.clock.cluster_time", (74, *range(40))),
        ("a member never sets its clock back", "broker.timers.ticker", range(40)),
    ],
)
def test_a_bug_of_the_clocks_is_found(
    of: str, where: str, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G17: with this bug something expires early."""
    monkeypatch.setattr(f"{where}.first_horizon", _no_horizon)
    assert any(SwarmWorld(seed).run(SECONDS) for seed in seeds), of
