"""Real broker cores in the simulator: a gate of fixed seeds (G5, G7 to G14), repetition, evidence.

`python -m tests.sim --stack broker --count N` runs more of them, `--stack oracle` more views.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.sim.broker.stack import BrokerStack
from tests.sim.run.campaign import Options, run_line, run_seed

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (3, 9, 25)  # CI's gate runs 1 to 50
ORACLE_SEEDS = (67, 1032, 1129)  # and hundreds of these
REPEATED_SEED = 21
LOGGED_SEEDS = (9, 14, 22)


@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_on_the_real_ring(seed: int) -> None:
    check(seed, Options(stack="broker"))


@pytest.mark.parametrize("seed", ORACLE_SEEDS)
def test_brokers_on_a_ring_that_keeps_changing_its_view(seed: int) -> None:
    """67 kills a primary layer that forgets that a state was replaced (B2)."""
    check(seed, Options(stack="oracle"))


def check(seed: int, options: Options) -> None:
    result = run_seed(seed, options)
    assert result.ok, "\n".join([run_line(result), *map(str, result.violations)])
    stack = result.world.stack
    assert isinstance(stack, BrokerStack)
    assert stack.judge.confirmed is not None, "a run that confirms nothing shows nothing"


def test_a_run_depends_neither_on_the_hash_seed_nor_on_log_writing(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable, "-m", "tests.sim", "--stack", "broker", "--seeds", str(REPEATED_SEED),
    ]  # fmt: skip
    traces: set[str] = set()
    for hash_seed, logs in (("1", []), ("2", ["--memberlog", str(tmp_path)])):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, *logs], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        traces.add(done.stdout.splitlines()[0].rpartition(" ")[2])
    assert len(traces) == 1
    assert list(tmp_path.glob("*.qml"))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", LOGGED_SEEDS)
def test_the_member_logs_of_a_run_are_consistent(seed: int, tmp_path: Path) -> None:
    """The member logs prove the same guarantees (G1, G2, G6 to G10, G14)."""
    pytest.importorskip("pyspark")
    from tools.commands import qpid_cluster_verify

    result = run_seed(seed, Options(stack="broker", memberlog=str(tmp_path)))
    assert result.ok
    said = CliRunner().invoke(
        qpid_cluster_verify.qpid_cluster_verify, ["--master", "local[2]", str(tmp_path)]
    )
    assert said.exit_code == 0, said.output
    assert re.search(r"^consistent.*: G1, G2, ", said.output, re.MULTILINE), said.output
