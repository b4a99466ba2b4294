"""SIGHUP while a broker starts: log rotation does not wait for it."""

from __future__ import annotations

import asyncio
import signal

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
