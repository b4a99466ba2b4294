"""Processes that use up the processors, as on a machine that is too small.

with burning(4): ...
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

BURN = "while True: pass"


@contextlib.contextmanager
def burning(processes: int) -> Iterator[None]:
    """Run this many processes that never rest, at the brokers' own priority."""
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(processes)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
