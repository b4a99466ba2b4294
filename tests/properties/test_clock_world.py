"""No message goes before its time, whatever holds up the ticks of clocks that run right (G17)."""

import pytest

from tests.properties.clock_world import ClockWorld

SECONDS = 12.0


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_nothing_goes_early(first: int) -> None:
    """G17."""
    expired = 0
    for seed in range(first, first + 20):
        world = ClockWorld(seed)
        assert not world.run(SECONDS), f"seed {seed}"
        expired += world.expired
    assert expired > 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_goes_early_in_many_more() -> None:
    """G17."""
    early = [seed for seed in range(1000, 1800) if ClockWorld(seed).run(SECONDS)]
    assert not early


SEEDS = {
    63: "what was read before the time came to stand was taken after it went on",
    153: "the first clock was placed late, and messages born by it, before others were read",
    4427: "and later than dates were believed",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_failed_once(seed: int) -> None:
    """G17: with the code of that day."""
    assert not ClockWorld(seed).run(SECONDS), SEEDS[seed]
