"""The simulator's gate: a fixed set of seeds, and the same run under another hash seed.

Broad campaigns run outside (`python -m tests.sim --gate 400`, `--soak`); what they find becomes a
named seed in `tests/scenarios/test_sim_seeds.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.run.campaign import Options, run_seed

ROOT = Path(__file__).parents[2]
# A few of the fixed seeds, to show the day's mistakes; CI's gate runs all, and many more.
RING_SEEDS = range(1, 4)  # CI's gate runs hundreds
PRIMARY_SEEDS = range(21, 24)


@pytest.mark.parametrize("seed", RING_SEEDS)
def test_rings(seed: int) -> None:
    """G1 to G6 and liveness of the ring alone."""
    result = run_seed(seed, Options(ring_only=True))
    assert [str(v) for v in result.violations] == [], f"python -m tests.sim --seed {seed}"


@pytest.mark.parametrize("seed", PRIMARY_SEEDS)
def test_primary_views(seed: int) -> None:
    """G1 to G8, with the primary layer over a replicated log."""
    result = run_seed(seed, Options())
    assert [str(v) for v in result.violations] == [], f"python -m tests.sim --seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3])
def test_one_seed_is_one_run_in_every_process(seed: int) -> None:
    """Nothing in core or simulator depends on the order of a hash table.

    The everyday proof is that of the broker's stack, which includes this one.
    """
    lines = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim", "--seeds", str(seed)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        line = next(text for text in done.stdout.splitlines() if f"seed {seed} " in text)
        lines.add(line.rsplit("trace ", 1)[1])
    assert len(lines) == 1
