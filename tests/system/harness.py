"""Clusters of real brokers for system tests: fixtures over `tools.local_cluster`.

Data and logs live in the test's temporary directory; a failing test finds the logs' ends in its
message.  Every process is gone when the fixture is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.local_cluster import LocalCluster

START_SECONDS = 30.0


@contextmanager
def running_cluster(
    root: Path, size: int = 3, name: str = "test", *, stores: bool = True, log_level: str = "info"
) -> Iterator[LocalCluster]:
    """A started cluster; its brokers' logs are printed when the block fails."""
    with LocalCluster(root, size, name, stores=stores, log_level=log_level) as cluster:
        try:
            cluster.start(START_SECONDS)
            yield cluster
        except BaseException:
            for member in cluster.members:
                print(f"--- {member} (exit code {member.exit_code})\n{member.log_tail()}")
            raise


def wait_until(true_now: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll for something that a real process does in its own time."""
    deadline = time.monotonic() + seconds
    while not true_now():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.02)
