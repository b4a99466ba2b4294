"""Disks that become full: publishers are blocked everywhere, nobody ends, nothing is lost (G21).

The small disks are real file systems, which only root can mount; elsewhere those tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.exit_codes import Exit
from tests.system.support.clusters import admitted, running_cluster, wait_until
from tools.client.management import ask
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

DISK_BYTES = 64 << 20
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of its own at `path`."""
    path.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class Publisher:
    """A client that has published as much as it may, and what it was told."""

    def __init__(self, member: BrokerProcess) -> None:
        self.told: list[str] = []
        self.confirmed = 0
        self.connection = admitted(lambda: connect(member))
        self.connection.add_on_connection_blocked_callback(
            lambda _, frame: self.told.append(str(frame.method.reason))
        )
        self.connection.add_on_connection_unblocked_callback(lambda *_: self.told.append(""))
        self.channel: BlockingChannel = self.connection.channel()
        self.channel.queue_declare("q", durable=True)

    def is_blocked(self) -> bool:
        """Publish one message, without a confirm, and look what comes."""
        self.channel.basic_publish("", "q", b"one", PERSISTENT)
        self.connection.process_data_events(0.1)
        return bool(self.told and self.told[-1])


def connect(member: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", member.address.port))


def consumed(channel: BlockingChannel, most: int) -> int:
    """Ack so many messages, or fewer when none comes for a minute; return how many there were."""
    count = 0
    for method, _, _ in channel.consume("q", inactivity_timeout=60):
        if method is None:
            break
        channel.basic_ack(method.delivery_tag)
        count += 1
        if count == most:
            break
    channel.cancel()
    return count


def alarms(member: BrokerProcess) -> str:
    return str(member.status().raw["alarms"])


def test_one_member_with_too_little_space_blocks_the_publishers_of_all(tmp_path: Path) -> None:
    """G21.  The limit is above what any disk has; the member comes back with another one."""
    with running_cluster(tmp_path) as cluster:
        publishers = [Publisher(member) for member in cluster.members[:2]]
        publishers[0].channel.basic_publish("", "q", b"before", PERSISTENT)
        small = cluster[2]
        before = small.arguments
        small.terminate()
        small.arguments = (*before, "--disk-free-limit", "900TB")
        small.start()
        cluster.wait_active()
        first = publishers[0]
        wait_until(first.is_blocked, 20, "the publisher to be blocked")
        assert "low on disk" in first.told[-1]
        assert "--disk-free-limit" in first.told[-1]
        wait_until(publishers[1].is_blocked, 20, "the other publisher to be blocked")
        assert "low on disk" in alarms(cluster[1])
        # Consuming goes on, also on a blocked connection, and at the member itself.
        assert consumed(first.connection.channel(), 1) == 1
        with admitted(lambda: connect(small)) as reader:
            reader.channel().queue_purge("q")
        small.terminate()
        wait_until(lambda: "low on disk" not in alarms(cluster[1]), 20, "the alarm to end")
        wait_until(lambda: not first.is_blocked(), 20, "the publisher to go on")
        for publisher in publishers:
            publisher.connection.close()
        small.arguments = before
        small.start()
        cluster.wait_active()


def publish_until_blocked(cluster: LocalCluster) -> int:
    """Publish with confirms until no confirm comes, and return how many came."""
    count, blocked = 0, False
    address = cluster[0].address.port
    parameters = pika.ConnectionParameters("127.0.0.1", address, blocked_connection_timeout=1)
    while not blocked:
        connection = admitted(lambda: pika.BlockingConnection(parameters))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        try:
            while count < 10_000:
                channel.basic_publish("", "q", b"x" * 20_000, PERSISTENT)
                count += 1
        except pika.exceptions.ConnectionBlockedTimeout:
            blocked = True
        except pika.exceptions.ConnectionClosedByBroker as closed:
            if closed.reply_code != 320:  # its member was left out for a moment: it comes again
                raise
        assert count < 10_000
    return count


def fill(path: Path) -> None:
    """Take what space there is."""
    with contextlib.suppress(OSError), (path / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_all_disks_become_full_and_are_drained(tmp_path: Path) -> None:
    """G9, G21.  Blocked, filled by somebody else, drained, stopped, started and drained again."""
    with contextlib.ExitStack() as disks:
        for label in ("broker-1", "broker-2", "broker-3"):
            disks.enter_context(small_disk(tmp_path / label))
        cluster = disks.enter_context(running_cluster(tmp_path))
        confirmed = publish_until_blocked(cluster)
        assert confirmed > 100
        for member in cluster.members:
            fill(member.data_dir)
        with admitted(lambda: connect(cluster[1])) as connection:
            read = consumed(connection.channel(), confirmed // 2)
        assert read == confirmed // 2
        ask(cluster[0].address, {"op": "shutdown"}, 10.0, "guest", "guest")
        assert cluster.wait_stopped() == [Exit.OK] * 3
        for member in cluster.members:
            member.start()
        cluster.wait_active()
        wait_until(lambda: "low on disk" in alarms(cluster[2]), 20, "the alarm to be said again")
        with admitted(lambda: connect(cluster[2])) as connection:
            read += consumed(connection.channel(), confirmed - read)
            assert read == confirmed
            connection.channel().queue_purge("q")  # what was not confirmed any more
        for member in cluster.members:
            (member.data_dir / "filler").unlink(missing_ok=True)
        wait_until(lambda: "low on disk" not in alarms(cluster[2]), 20, "the alarms to end")


def test_a_member_that_can_write_nothing_leaves_and_comes_back(tmp_path: Path) -> None:
    """G21.  Only its disk is full, the reserve too: code 72, at the start on it again, and then no
    more."""
    with contextlib.ExitStack() as disks:
        disks.enter_context(small_disk(tmp_path / "broker-3"))
        cluster = disks.enter_context(running_cluster(tmp_path))
        small = cluster[2]
        with admitted(lambda: connect(cluster[0])) as connection:
            channel = connection.channel()

            def has_left() -> bool:
                """What the member gives up to write with, somebody else takes."""
                fill(small.data_dir)
                channel.queue_declare("q", durable=True)
                channel.queue_delete("q")
                return not small.alive

            wait_until(has_left, 60, "the member to leave")
            assert small.exit_code == Exit.FULL
            assert "disk full" in small.log_tail(30)
            channel.queue_declare("after", durable=True)
        cluster.wait_active(cluster.members[:2])
        small.start()
        wait_until(lambda: not small.alive, 30, "the refusal to start")
        assert small.exit_code == Exit.FULL
        (small.data_dir / "filler").unlink()
        small.start()
        cluster.wait_active()
        with admitted(lambda: connect(small)) as connection:
            connection.channel().queue_declare("after", passive=True)
