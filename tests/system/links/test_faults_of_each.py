"""Each kind of fault of a link's runner and of its source, while messages are confirmed.

Messages confirmed at the other cluster arrive here once and in order (G24, G27), or are held by the
replica (G35); the checks that need no Spark judge the logs of both.  All cases share the clusters,
and each has its own link.  The tests of shovels, federation and replicas kill the runner and the
source.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pika
import pytest
from pika.exceptions import AMQPError

from broker.exit_codes import Exit
from tests.system.links.federation_support import (
    DURABLE,
    bound,
    exchange,
    federate,
    link,
    stop_federating,
    upstream,
    wait_for_bindings,
    wait_for_link,
)
from tests.system.links.support import (
    api,
    channel,
    define,
    depth,
    end,
    publish,
    rows,
    shovel,
    take,
    uri,
    wait_for_state,
)
from tests.system.links.test_replicas import qpid_ha, replica
from tests.system.support.clusters import START_SECONDS, wait_until
from tests.system.support.small_disks import SmallDisk, mounted
from tests.system.test_network_faults import findings
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]
DISK_MIB = 96
STANDS_S = 2.0
"""Longer than the ring waits for a stalled member."""
MORE = 30
"""This many confirms show that messages flow."""
REST_S = 0.004
Look = Callable[[BrokerProcess], dict[str, object]]


class Publisher:
    """Publishes numbers to an exchange or queue of one broker, each when the one before is
    confirmed; an unconfirmed number is not sent again."""

    def __init__(self, broker: BrokerProcess, exchange_name: str, key: str) -> None:
        self.confirmed: list[int] = []
        self._broker, self._address = broker, (exchange_name, key)
        self._next = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Publisher:
        self._thread.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def goes_on(self) -> None:
        """Wait until more messages are confirmed."""
        goal = len(self.confirmed) + MORE
        wait_until(lambda: len(self.confirmed) >= goal, START_SECONDS, f"{MORE} confirms more")

    def _run(self) -> None:
        host, port = self._broker.address
        parameters = pika.ConnectionParameters(
            host, port, heartbeat=4, blocked_connection_timeout=10, socket_timeout=4
        )
        while not self._ends.is_set():
            with contextlib.suppress(AMQPError, OSError):
                connection = pika.BlockingConnection(parameters)
                with contextlib.closing(connection):
                    one = connection.channel()
                    one.confirm_delivery()
                    while not self._ends.wait(REST_S):
                        number, self._next = self._next, self._next + 1
                        one.basic_publish(*self._address, str(number).encode(), DURABLE)
                        self.confirmed.append(number)
            self._ends.wait(0.1)


class Clusters:
    """Three members that take messages from one in another cluster, each with its own disk."""

    def __init__(self, near: LocalCluster, far: LocalCluster, disks: list[SmallDisk]) -> None:
        self.near, self.far = near, far
        self._disks = dict(zip([*near.members, *far.members], disks, strict=True))

    def suffer(self, which: str, fault: str, look: Look) -> None:
        """Inject a fault into the far member, or the runner that `look` shows; wait until the link
        runs."""
        members = self.near.members
        node = look(members[0])["node"]
        runner = next(one for one in members if api(one).row("overview")["node"] == node)
        self._befall(fault, self.far[0] if which == "upstream" else runner)
        for cluster in (self.near, self.far):
            cluster.wait_active(timeout_seconds=START_SECONDS)
        well = next(one for one in members if one is not runner)
        key = "status" if "status" in look(well) else "state"
        wait_until(lambda: look(well).get(key) == "running", 60, "the link to run again")

    def _befall(self, fault: str, one: BrokerProcess) -> None:
        """Inject the fault, and end it after a while."""
        disk = self._disks[one]
        if fault == "stop":
            one.signal(signal.SIGSTOP)
            time.sleep(STANDS_S)
            one.signal(signal.SIGCONT)
        elif fault == "kill":
            one.kill()
            one.start()
        elif one is self.far[0]:  # the only one of its cluster: it makes publishers wait
            with filled(disk):
                wait_until(lambda: bool(one.status().raw["alarms"]), 20, "the alarm")
        else:
            other = next(well for well in self.near.members if well is not one)
            with filled(disk), channel(other) as writer:

                def has_left() -> bool:
                    """Take the reserve that it gives up, too; links are blocked, so something else
                    must be written."""
                    disk.fill()
                    writer.queue_declare("written", durable=True)
                    writer.queue_delete("written")
                    return not one.alive

                wait_until(has_left, START_SECONDS, f"{one} to leave")
            assert one.exit_code == Exit.FULL
            one.start()


@contextlib.contextmanager
def filled(disk: SmallDisk) -> Iterator[None]:
    """Fill the disk for a while."""
    disk.fill()
    try:
        yield
    finally:
        disk.relieve()


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    root = tmp_path_factory.mktemp("links")
    with contextlib.ExitStack() as stack:
        near = LocalCluster(root / "near", 3, "near", management=True)
        far = LocalCluster(root / "far", 1, "far", management=True)
        places = [one.data_dir for one in (*near.members, *far.members)]
        disks = stack.enter_context(mounted(places, DISK_MIB))
        for cluster in (near, far):
            stack.enter_context(cluster)
            cluster.start(START_SECONDS)
        yield Clusters(near, far, disks)


def came(member: BrokerProcess, queue: str, confirmed: list[int], *, ordered: bool = True) -> None:
    """All confirmed messages arrived, once and in order; unconfirmed ones may be there, too."""
    found = take(member, queue, cast("int", depth(member, queue)))
    assert sorted(set(confirmed) - set(found)) == []
    assert (found if ordered else sorted(found)) == sorted(set(found))


def cases(*which_and_fault: tuple[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("which", "fault"), which_and_fault)


@cases(("runner", "disk full"), ("upstream", "stop"))
def test_a_link_of_federation(troubled: Clusters, which: str, fault: str) -> None:
    """G27."""
    near, far = troubled.near, troubled.far
    flow = f"flow of {fault}"
    for one in (near[0], far[0]):
        exchange(one, flow)
    bound(near[0], flow, flow, "#")
    upstream(near[0], "far", far[0])
    federate(near[0], f"^{flow}$")
    wait_for_bindings(far[0], flow.replace(" ", "%20"), "#")
    wait_for_link(near[0], flow)
    with Publisher(far[0], flow, "key") as publisher:
        troubled.suffer(which, fault, lambda one: link(one, flow))
        publisher.goes_on()

    def is_over() -> bool:
        queues = rows(far[0], "queues")
        return not any(queues[name]["messages"] for name in queues if "federation: " in name)

    wait_until(is_over, 60, "all to be taken")
    came(near[1], flow, publisher.confirmed)
    stop_federating(near[0], f"^{flow}$")


@cases(("runner", "stop"), ("upstream", "disk full"))
def test_a_shovel(troubled: Clusters, which: str, fault: str) -> None:
    """G24.  Messages under way when a stalled member's link broke arrive when that member returns
    them: later ones may arrive before."""
    near, far = troubled.near, troubled.far
    queue = f"shovelled-{which}"
    publish(far[0], queue, ())
    define(near[0], "flow", src_uri=uri(far[0]), src_queue=queue, dest_uri="amqp://",
           dest_queue=queue, reconnect_delay=1)  # fmt: skip
    wait_for_state(near[0], "flow", "running")
    with Publisher(far[0], "", queue) as publisher:
        troubled.suffer(which, fault, lambda one: shovel(one, "flow"))
        publisher.goes_on()
    wait_until(lambda: depth(far[0], queue) == 0, 60, "all to be taken")
    end(near, "flow")
    came(near[1], queue, publisher.confirmed, ordered=fault != "stop")


@cases(("runner", "kill"), ("upstream", "stop"))
def test_a_replica_of_a_queue(troubled: Clusters, which: str, fault: str) -> None:
    """G35."""
    near, far = troubled.near, troubled.far
    queue = f"kept-{which}"
    publish(far[0], queue, ())
    qpid_ha(near[0], "replicate", queue, uri(far[0]))
    wait_until(lambda: replica(near[0]).get("state") == "running", 30, "the replica")
    with Publisher(far[0], "", queue) as publisher:
        troubled.suffer(which, fault, replica)
        publisher.goes_on()

    def is_level() -> bool:
        level = replica(near[0])["level"] is True
        return level and depth(near[0], queue) == depth(far[0], queue)

    wait_until(is_level, 60, "a replica that is level")
    qpid_ha(near[0], "replicate", queue, "--stop")
    came(near[1], queue, publisher.confirmed)


def test_the_logs_of_both_clusters_are_consistent(troubled: Clusters) -> None:
    """The last test, as it ends the clusters."""
    for cluster in (troubled.near, troubled.far):
        with channel(cluster[0], confirms=True) as one:
            one.queue_declare("last", durable=True)
            for _ in range(10):
                one.basic_publish("", "last", b"", DURABLE)
        for member in cluster.members:
            member.terminate(START_SECONDS)
        assert findings(cluster[0].data_dir.parent) == []
