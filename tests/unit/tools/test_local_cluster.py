"""Brokers started by tests, benchmarks and the demo."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tools.demo.local_cluster import ENDS_WITH_US

STARTS = """
import pathlib, sys, time
from tools.demo.local_cluster import BrokerProcess

class Sleeper(BrokerProcess):
    def program(self):
        return ["sleep"]

sleeper = Sleeper("sleeper", pathlib.Path(sys.argv[1]), 0, ["600"])
sleeper.start()
while pathlib.Path(f"/proc/{sleeper.pid}/comm").read_text() != "sleep\\n":
    time.sleep(0.01)
print(sleeper.pid, flush=True)
sys.stdin.read()
"""
LONG_MS = 30_000


@pytest.mark.skipif(not ENDS_WITH_US, reason="there is no setpriv here")
def test_a_broker_ends_with_its_starter_however_that_ends(tmp_path: Path) -> None:
    """A killed benchmark leaves no broker behind."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        broker = os.pidfd_open(int(starter.stdout.readline()))
        try:
            ended = select.poll()
            ended.register(broker, select.POLLIN)
            assert not ended.poll(0)
            starter.kill()  # its `with` and `finally` do not run
            assert ended.poll(LONG_MS), "the broker still runs"
        finally:
            os.close(broker)
