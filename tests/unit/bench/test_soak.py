"""What the soak counts as growth: it must find a leak, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak import SAMPLES_MIN, SLACK, Sample, bytes_below, grown

CALM: Sample = {"memory": 80e6, "files": 42.0, "threads": 17.0, "store": 150e6, "log": 115.0}


def samples(count: int) -> list[Sample]:
    """A process that warms up and then goes up and down."""
    chance = random.Random(1)
    return [
        {
            what: value * min(1.0, 0.7 + number / count) * chance.uniform(0.95, 1.0)
            for what, value in CALM.items()
        }
        for number in range(count)
    ]


def test_warming_up_and_going_up_and_down_is_no_growth() -> None:
    assert not grown(samples(60))


@pytest.mark.parametrize("what", SLACK)
def test_each_thing_that_keeps_growing_is_named(what: str) -> None:
    leaking = samples(60)
    for number, one in enumerate(leaking):
        one[what] *= 1 + number / 15
    (found,) = grown(leaking)
    assert found.startswith(f"{what} grows")


def test_one_peak_is_no_growth() -> None:
    peak = samples(60)
    peak[-1]["memory"] *= 5
    assert not grown(peak)


def test_a_few_samples_say_nothing() -> None:
    assert not grown([{**CALM, "memory": 1e6 * 9**n} for n in range(SAMPLES_MIN - 1)])


def test_directories_left_out_are_not_counted(tmp_path: Path) -> None:
    for name in ("store", "memberlog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 10_000)
    whole = bytes_below(tmp_path)
    assert whole == 2 * bytes_below(tmp_path, without="memberlog") >= 20_000
