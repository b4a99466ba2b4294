"""Full disks: publishers are blocked at all members, no member ends, and nothing is lost (G21).

The small disks are real file systems, which only root can mount; elsewhere those tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.exit_codes import Exit
from store.files.space import BESIDE_BYTES, STEP_BYTES
from store.lmdb_environment import DATA_NAME
from store.lmdb_store import LmdbStore
from tests.system.support.clusters import admitted, running_cluster, wait_until
from tests.system.support.small_disks import SmallDisk, mounted, why_not
from tools.client.management import Target
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Publisher:
    """A client that publishes until it is blocked, and the reasons that it was given."""

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
        """Publish one message, without a confirm, and see whether the broker blocks it."""
        self.channel.basic_publish("", "q", b"one", PERSISTENT)
        self.connection.process_data_events(0.1)
        return bool(self.told and self.told[-1])


def connect(member: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", member.address.port))


def consumed(channel: BlockingChannel, most: int) -> int:
    """Ack this many messages, or fewer if none arrives for a minute; return their number."""
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


def test_one_member_low_on_disk_blocks_all_publishers(tmp_path: Path) -> None:
    """G21.  Its limit is above the space of any disk; it restarts with another limit."""
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
        # Consuming continues, also on a blocked connection, and at the member itself.
        assert consumed(first.connection.channel(), 1) == 1
        with admitted(lambda: connect(small)) as reader:
            reader.channel().queue_purge("q")
        small.terminate()
        wait_until(lambda: "low on disk" not in alarms(cluster[1]), 20, "the alarm to end")
        wait_until(lambda: not first.is_blocked(), 20, "the publisher to continue")
        for publisher in publishers:
            publisher.connection.close()
        small.arguments = before
        small.start()
        cluster.wait_active()


def publish_until_blocked(cluster: LocalCluster) -> int:
    """Publish with confirms until no confirm comes, and return the number of confirms."""
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
            if closed.reply_code != 320:  # its member was excluded for a moment: it reconnects
                raise
        assert count < 10_000
    return count


def end_badly(member: BrokerProcess, disk: SmallDisk) -> None:
    """Let the store of a stopped member own so much of its disk that the next step of its file, at
    the next start, would take all free space."""
    left, path = disk.free_bytes(), member.data_dir / "store"
    disk.relieve()
    store = LmdbStore(path)
    used = store.size_bytes()
    store.close()
    end = used + BESIDE_BYTES + STEP_BYTES - left
    with (path / DATA_NAME).open("r+b") as data:
        data.truncate(min(end, data.seek(0, os.SEEK_END)))
        os.posix_fallocate(data.fileno(), 0, end)
    disk.fill(left)


def test_full_disks_of_all_members_are_drained(tmp_path: Path) -> None:
    """G9, G21.  Blocked, filled by another program, drained, stopped, started and drained again."""
    places = [tmp_path / label for label in ("broker-1", "broker-2", "broker-3")]
    with mounted(places) as disks, running_cluster(tmp_path) as cluster:
        confirmed = publish_until_blocked(cluster)
        assert confirmed > 100
        for disk in disks:
            disk.fill()
        with admitted(lambda: connect(cluster[1])) as connection:
            read = consumed(connection.channel(), confirmed // 2)
        assert read == confirmed // 2
        Target(cluster[0].address).ask(op="shutdown")
        assert cluster.wait_stopped() == [Exit.OK] * 3
        for member, disk in zip(cluster.members, disks, strict=True):
            end_badly(member, disk)
            member.start()
        cluster.wait_active()
        wait_until(lambda: "low on disk" in alarms(cluster[2]), 20, "the alarm to be shown again")
        with admitted(lambda: connect(cluster[2])) as connection:
            read += consumed(connection.channel(), confirmed - read)
            assert read == confirmed
            connection.channel().queue_purge("q")  # unconfirmed messages
        for disk in disks:
            disk.relieve()
        wait_until(lambda: "low on disk" not in alarms(cluster[2]), 20, "the alarms to end")


def test_a_member_that_cannot_write_leaves_and_returns(tmp_path: Path) -> None:
    """G21.  Its disk alone is full, even the reserve: it ends with code 72, again at the start on
    the full disk, and no longer once there is space."""
    with mounted([tmp_path / "broker-3"]) as (disk,), running_cluster(tmp_path) as cluster:
        small = cluster[2]
        with admitted(lambda: connect(cluster[0])) as connection:
            channel = connection.channel()

            def has_left() -> bool:
                """Take the reserve that the member gives up, so that it has nothing to write
                with."""
                disk.fill()
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
        disk.relieve()
        small.start()
        cluster.wait_active()
        with admitted(lambda: connect(small)) as connection:
            connection.channel().queue_declare("after", passive=True)


HAS_A_DISK = """
import sys, time
from pathlib import Path
from tests.system.support.small_disks import mounted
with mounted([Path(sys.argv[1])], 16):
    print("here", flush=True)
    time.sleep(60)
"""


def test_a_killed_test_run_leaves_no_disk(tmp_path: Path) -> None:
    """It is not visible to other processes either while it exists."""
    if lacking := why_not():
        pytest.skip(lacking)
    disk = str(tmp_path / "disk")
    devices = Path("/sys/block")

    def backing() -> str:
        return "".join(one.read_text() for one in devices.glob("loop*/loop/backing_file"))

    arguments = [sys.executable, "-c", HAS_A_DISK, disk]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "here\n"
        assert disk in Path(f"/proc/{run.pid}/mounts").read_text()
        assert disk in backing()
        assert disk not in Path("/proc/self/mounts").read_text()
        run.kill()
    wait_until(lambda: disk not in backing(), 20, "its device to be released")
