"""ARCHITECTURE.md follows a publish, a view change and a join through the code: so they go.

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
"""To follow a publish by the table, and in all, from the client's bytes to its confirm: eighteen
more than before the member log and the store's logic left their threads' files, links could be
doubled, the token carried a lease, commands had a weight, a user's permission was asked, the
confirm was timed, sockets got limits and TLS, applying asks whether it may need a page (two), and
small commits go to a journal, and members report to who keeps the token.  Each is a subject of its
own."""


class Traces(NamedTuple):
    """What the member called, by what happened."""

    join: list[Step]
    publishes: list[list[Step]]
    view_change: list[Step]

    def of(self, what: str) -> list[list[Step]]:
        """The records that belong to a table of ARCHITECTURE.md."""
        runs = {"a publish": self.publishes, "a view change": [self.view_change]}
        return runs.get(what, [self.join])


async def observe(cluster: LocalCluster) -> Traces:
    """The first member comes back with nothing, serves publishes, and loses a companion."""
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
                    await asyncio.sleep(0.03)  # nothing else is on its way
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
    """A durable queue with a message in it, so that there is something to fetch."""
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
    # On a slow machine the log's thread may write a publish when it is durable already.
    missing = [first_missing(paths()[what], calls) for calls in traces.of(what)]
    assert None in missing, f"{what}: {missing[-1]} was not called after the ones before it"


def test_a_wrong_order_is_seen() -> None:
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
