"""SIGHUP while a broker starts: log rotation does not wait for it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import uvloop

from broker.service.hang_up import hold_hang_ups, on_hang_up


def test_a_signal_before_there_is_a_handler_waits_for_it() -> None:
    async def story() -> None:
        held, later = asyncio.Event(), asyncio.Event()
        hold_hang_ups()
        signal.raise_signal(signal.SIGHUP)  # would end this process
        loop = asyncio.get_running_loop()
        on_hang_up(loop, held.set)
        await held.wait()
        on_hang_up(loop, later.set)
        signal.raise_signal(signal.SIGHUP)
        await later.wait()

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(story(), 60.0))


HANGS_UP_AT_AN_IMPORT = """
import signal, sys

class Importer:
    def find_spec(self, name, *_):
        if name in ("asyncio", "click", "broker.options.broker"):
            signal.raise_signal(signal.SIGHUP)

sys.meta_path.insert(0, Importer())
sys.argv = ["qpidd", "--version"]
from tools.start import main
main()
"""


def test_a_signal_while_the_program_is_read_ends_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGS_UP_AT_AN_IMPORT], capture_output=True, timeout=100, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.startswith(b"qpidd")
