"""The process of an attempt, with a program of the test's in place of a shovel's."""

from __future__ import annotations

import asyncio
import gc
import sys
from types import SimpleNamespace
from typing import cast

from broker.frontend.connections import Connections
from broker.machine.commands import Table
from broker.machine.version import SHOVELS
from broker.shovels.of_member import Controller, shovels_of

VALUE: Table = {
    "src-uri": "amqp://a", "src-queue": "a", "dest-uri": "amqp://b", "dest-queue": "b",
}  # fmt: skip
ENDS_LATE = """
import json, os, sys, time
given = json.loads(sys.stdin.readline())
os.write(1, json.dumps({"event": "ended", "why": "read " + given["name"]}).encode() + b"\\n")
time.sleep(0.3)
"""


def test_an_attempt_that_has_told_its_end_is_kept_until_its_process_is_gone() -> None:
    """It was collected, with a traceback in the log, and its process was not waited for."""
    faults: list[object] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        machine = SimpleNamespace(
            version=SHOVELS, defined=1, sessions={"a": None},
            definitions={"parameter": {("/", "shovel/s"): {"value": VALUE}}},
        )  # fmt: skip
        controller = SimpleNamespace(
            me=SimpleNamespace(name="a"), replica=SimpleNamespace(machine=machine), serving=True,
            primary=SimpleNamespace(members=()),
        )  # fmt: skip
        gateway = SimpleNamespace(identity=SimpleNamespace(takes_numbers=True))
        shovels = shovels_of(
            (sys.executable, "-c", ENDS_LATE), cast("Controller", controller),
            cast("Connections", SimpleNamespace(gateway=gateway)), lambda *_: asyncio.sleep(0),
            "near", lambda *_: None, loop,
        )  # fmt: skip
        shovels.wake(1.0)
        async with asyncio.timeout(30):
            while shovels.rows()[0]["state"] != "terminated":  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
        assert shovels.rows()[0]["reason"] == "read s"
        gc.collect()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(others) == 1, "its process is still waited for"
        await asyncio.wait_for(next(iter(others)), 20)
        shovels.close()

    asyncio.run(run())
    assert not faults
