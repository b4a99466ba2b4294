"""ARCHITECTURE.md follows a publish, a view change and a join through the code, as they run.

One member of a real cluster runs in this process, and each function that it calls is recorded.  The
functions of each table must have been called in the table's order.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.architecture import Step, paths
from tests.support.amqp_peer import method, publish
from tests.system.support.traced_member import Client, Recorder, member_of, serves
from tools.demo.local_cluster import LocalCluster

pytestmark = pytest.mark.system

PUBLISHES = 20
FILES_OPENED, FILES_ENTERED = 20, 81
"""The files in which the table follows a publish, and all that it calls from the client's bytes to
the confirm.  The latter has grown by eighteen: the member log's and the store's logic are apart
from their threads' files, links can be doubled, the token carries a lease, commands have a weight,
permissions are asked, confirms are timed, sockets have limits and TLS, applying asks whether it may
need a page (two), small commits go to a journal, and members report to the keeper of the token."""


class Traces(NamedTuple):
    """The functions that the member called, by event."""

    join: list[Step]
    publishes: list[list[Step]]
    view_change: list[Step]

    def of(self, what: str) -> list[list[Step]]:
        """The records that belong to a table of ARCHITECTURE.md."""
        runs = {"a publish": self.publishes, "a view change": [self.view_change]}
        return runs.get(what, [self.join])


async def observe(cluster: LocalCluster) -> Traces:
    """The first member restarts empty, serves publishes, and loses another member."""
    recorder = Recorder()
    with recorder.installed():
        recorder.on = True
        async with member_of(cluster):
            await serves(cluster, 3)
            join = recorder.take()
            recorder.on = False
            recorder.leaves_out_beats = True
            publishes = []
            async with Client.publishing(cluster[0].address.port) as client:
                for _ in range(PUBLISHES):
                    await asyncio.sleep(0.03)  # nothing else is under way
                    recorder.take()
                    data = publish(1, "", "q")
                    recorder.on = True
                    await client.call(data, "basic.ack")
                    recorder.on = False
                    publishes.append(recorder.take())
            recorder.leaves_out_beats = False
            recorder.on = True
            cluster[2].kill()
            await serves(cluster, 2)
            recorder.on = False
            return Traces(join, publishes, recorder.take())


async def declare(port: int) -> None:
    """Declare a durable queue with a message, so that the joiner has something to fetch."""
    async with Client.publishing(port) as client:
        durable = method(1, "queue.declare", "q", False, True, False, False, False, {})
        await client.call(durable, "queue.declare-ok")
        await client.call(publish(1, "", "q"), "basic.ack")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), 3, "paths") as cluster:
        cluster.start()
        asyncio.run(declare(cluster[0].address.port))
        cluster[0].kill()
        shutil.rmtree(cluster[0].data_dir)
        return asyncio.run(observe(cluster))


def first_missing(steps: Sequence[Step], calls: Sequence[Step]) -> Step | None:
    """The first step that was not called behind all before it."""
    rest = iter(calls)
    return next((step for step in steps if step not in rest), None)


@pytest.mark.parametrize("what", paths())
def test_the_functions_of_the_table_are_called_in_its_order(what: str, traces: Traces) -> None:
    # On a slow machine the log's thread may write a publish only after it is durable.
    missing = [first_missing(paths()[what], calls) for calls in traces.of(what)]
    assert None in missing, f"{what}: {missing[-1]} was not called after the ones before it"


def test_a_wrong_order_is_noticed() -> None:
    calls = [Step("a.py", "f"), Step("b.py", "g"), Step("a.py", "f")]
    steps = [Step("b.py", "g"), Step("a.py", "f")]
    assert first_missing(steps, calls) is None
    assert first_missing([*steps, Step("b.py", "g")], calls) == Step("b.py", "g")


def test_a_publish_can_be_followed_in_few_files(traces: Traces) -> None:
    opened = {step.path for step in paths()["a publish"]}
    assert len(opened) <= FILES_OPENED, sorted(opened)
    entered = set.intersection(*({call.path for call in run} for run in traces.publishes))
    assert opened <= entered
    assert len(entered) <= FILES_ENTERED, "\n".join(sorted(entered))
