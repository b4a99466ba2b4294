"""The benchmark of the ring runs, and its processes deliver in the same order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_three_processes_flood_the_ring_and_agree_on_the_order() -> None:
    command = [sys.executable, "-m", "tests.bench.ring", "--seconds", "0.3", "--json"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    members = json.loads(done.stdout)["members"]
    assert len(members) == 3
    assert all(member["delivered"] > 0 for member in members)
