"""Members of two releases in one cluster: an operator switches the new version on."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from broker.exit_codes import Exit
from broker.machine.version import MACHINE_VERSION
from tests.system.support.clusters import running_cluster, wait_until
from tests.system.test_cluster_faults import channel_of
from tests.system.test_operators import run
from tools.client.management import ManagementError, Target
from tools.demo.local_cluster import BrokerProcess, LocalCluster
from vsync.wire.codec import WIRE_VERSION

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

QUEUE = "orders"


def of_next_release() -> list[str]:
    return [sys.executable, "-m", "tests.system.support.next_release"]


def restart(cluster: LocalCluster, member: BrokerProcess, program: Callable[[], list[str]]) -> None:
    member.terminate()
    member.program = program  # type: ignore[method-assign]
    member.start()
    cluster.wait_active()


def frames_of(cluster: LocalCluster) -> list[int]:
    """The version in which each member writes the frames of the ring."""
    shown = [Target(member.address).ask(op="status") for member in cluster.members]
    return [int(str(one["wire_version"])) for one in shown]


def purge(member: BrokerProcess) -> int:
    """Fill a queue and purge it: members of both releases must do the same."""
    channel = channel_of(member)
    channel.queue_declare(QUEUE, durable=True)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", QUEUE, b"one", pika.BasicProperties(delivery_mode=2))
    count = channel.queue_purge(QUEUE).method.message_count
    channel.connection.close()
    return int(count)


def test_a_new_version_is_switched_on_when_all_members_execute_it(tmp_path: Path) -> None:
    """G10: members of two releases compute the same, before and after the switch."""
    with running_cluster(tmp_path) as cluster:
        of_this_release = cluster[0].program
        for member in cluster.members:
            restart(cluster, member, of_next_release)
            assert [purge(one) for one in cluster.members] == [3, 3, 3]
        assert frames_of(cluster) == [WIRE_VERSION + 1] * 3  # needs no command
        restart(cluster, cluster[0], of_this_release)  # a downgrade is possible until the switch
        assert frames_of(cluster) == [WIRE_VERSION] * 3
        asked = str(cluster[1].address)
        code, said, _ = run("qpid-cluster", "-f", "--upgrade", asked)
        assert (code, said) == (
            0, f"version {MACHINE_VERSION} is in force, the newest that all members here execute\n",
        )  # fmt: skip
        restart(cluster, cluster[0], of_next_release)
        shown = run("qpid-cluster", asked)[1]
        assert f"Version: {MACHINE_VERSION} (--upgrade: {MACHINE_VERSION + 1}," in shown

        cluster[2].terminate()
        cluster.wait_active([cluster[0], cluster[1]])
        with pytest.raises(ManagementError, match="could not come back with an older release"):
            Target(cluster[1].address).ask(op="upgrade")
        code, _, problem = run("qpid-cluster", "--upgrade", "-f", asked)
        assert code == 0, problem  # forced, as the absent member could be of the older release
        for member in (cluster[0], cluster[1]):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="locked"):
                purge(member)
        cluster[2].start()
        cluster.wait_active()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="locked"):
            purge(cluster[2])

        cluster[0].terminate()
        cluster[0].program = of_this_release  # type: ignore[method-assign]
        cluster[0].start()  # on the store of version + 1
        wait_until(lambda: not cluster[0].alive, 20, "the end of the older release")
        assert cluster[0].exit_code == Exit.DATA
        assert f"with version {MACHINE_VERSION + 1} in force, this release" in cluster[0].log_tail(
            200
        )
        shutil.rmtree(cluster[0].data_dir)
        cluster[0].start()  # on an empty store
        wait_until(lambda: not cluster[0].alive, 20, "the end of the older release")
        assert f"version {MACHINE_VERSION + 1} is in force among the members" in (
            cluster[0].log_tail(200)
        )
        cluster.wait_active([cluster[1], cluster[2]])
