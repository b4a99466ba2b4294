"""Sick members: a clock far off, a disk that stands still, an event loop that hangs.

The sick member is a real process in which a function is replaced before it starts.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.exit_codes import Exit
from tests.system.support.clusters import admitted, running_cluster, wait_until
from tests.system.support.undisturbed import pauses
from tools.client.management import Target
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

PERSISTENT = pika.BasicProperties(delivery_mode=2)

CLOCK = """
import broker.process.member
right = broker.process.member._wall_us
broker.process.member._wall_us = lambda: right() - 3_600_000_000
"""
DRIFT = """
import os, sys, broker.process.member
right = broker.process.member._wall_us
sign = sys.argv[sys.argv.index("--data-dir") + 1] + ".drift"
broker.process.member._wall_us = lambda: right() + (3_600_000_000 if os.path.exists(sign) else 0)
"""
DISK = """
import time, broker.durability.store_writer, store.lmdb_store
broker.durability.store_writer.PATIENCE_S = 0.2
write = store.lmdb_store.LmdbStore.commit
def commit(self, entry, first, last, meta):
    if b"the straw" in entry:
        time.sleep(1000)
    write(self, entry, first, last, meta)
store.lmdb_store.LmdbStore.commit = commit
"""
HANG = """
import time, broker.frontend.gateway
take = broker.frontend.gateway.Gateway.data_received
def data_received(self, client, data, now):
    if b"the straw" in data:
        time.sleep(1000)
    take(self, client, data, now)
broker.frontend.gateway.Gateway.data_received = data_received
"""

NO_THREADS = """
import os, sys, threading
start = threading.Thread.start
sign = sys.argv[sys.argv.index("--data-dir") + 1] + ".starved"
def refused(thread):
    if os.path.exists(sign):
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = refused
"""
FROZEN = """
import os, sys, time, broker.durability.store_writer
from broker.memberlog.segment_file import SegmentFile
from store.files.directory_lock import DirectoryLock
from store.lmdb_store import LmdbStore
broker.durability.store_writer.PATIENCE_S = 0.2
sign = sys.argv[sys.argv.index("--data-dir") + 1] + ".frozen"
def freeze(owner, name):
    real = getattr(owner, name)
    def frozen(*arguments, **more):
        while os.path.exists(sign):
            time.sleep(0.01)
        return real(*arguments, **more)
    setattr(owner, name, frozen)
freeze(SegmentFile, "carry_out")
freeze(LmdbStore, "_write")
freeze(LmdbStore, "_to_journal")
freeze(DirectoryLock, "touch")
"""
FROZEN_PAGES = """
import os, sys, time
from broker.durability.pages import PageFile
sign = sys.argv[sys.argv.index("--data-dir") + 1] + ".frozen"
get = PageFile.get
def frozen(self, place):
    while os.path.exists(sign):
        time.sleep(0.01)
    return get(self, place)
PageFile.get = frozen
"""
WATCHED = """
import os, sys, threading, time, broker.process.member as member
from store.lmdb_store import LmdbStore
loop_thread, report, watched = threading.get_ident(), None, False
def seen(what, where):
    global watched
    if not watched or threading.get_ident() != loop_thread or str(where).endswith((".py", ".pyc")):
        return
    watched = False
    frame, stack = sys._getframe(2), []
    while frame is not None and len(stack) < 6:
        stack.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_name}")
        frame = frame.f_back
    report.write(f"{what} {where}: {' < '.join(stack)}\\n")
    report.flush()
    watched = True
def audited(event, arguments):
    if event == "open" or event.startswith(("os.", "shutil.")):
        seen(event, arguments[0] if arguments else "")
def wrap(name):
    real = getattr(os, name)
    def wrapped(*arguments, **more):
        seen(name, arguments[0] if arguments else "")
        return real(*arguments, **more)
    setattr(os, name, wrapped)
for name in ("write", "read", "pread", "pwrite", "fsync", "fdatasync", "stat", "lstat", "fstat",
             "statvfs", "access", "ftruncate", "close"):
    wrap(name)
start, stop = member.BrokerMember.start, member.BrokerMember.stop
def started(self, *beside):
    global report
    start(self, *beside)
    name = str(self._identity.data_dir)
    report = open(name + ".files", "w")
    sys.addaudithook(audited)
    threading.Thread(target=when_asked, args=(name + ".watch",), daemon=True).start()
def when_asked(sign):
    global watched
    while not os.path.exists(sign):
        time.sleep(0.05)
    os.unlink(sign)
    watched = True
def stopped(self, *arguments, **more):
    global watched
    watched = False
    stop(self, *arguments, **more)
member.BrokerMember.start, member.BrokerMember.stop = started, stopped
for name in ("_write", "_to_journal", "_load", "_log_slice", "size_bytes", "close"):
    def watched_call(self, *arguments, real=getattr(LmdbStore, name), name=name):
        seen(name, self.path)
        return real(self, *arguments)
    setattr(LmdbStore, name, watched_call)
"""


class Sick(BrokerProcess):
    """A restart of a member with a function replaced, and its own log."""

    def __init__(self, member: BrokerProcess, illness: str, *more: str) -> None:
        root, arguments = member.log_path.parent, (*member.arguments, *more)
        super().__init__(f"{member}-sick", root, member.address.port, arguments)
        self._illness = illness

    def program(self) -> list[str]:
        """Return the command with the replacement."""
        return [
            sys.executable,
            "-c",
            f"{self._illness}\nfrom tools.commands.qpidd import main\nmain()",
        ]


@contextlib.contextmanager
def sick(member: BrokerProcess, illness: str, *more: str) -> Iterator[Sick]:
    """Start a member with a function replaced; it is ended with the block."""
    process = Sick(member, illness, *more)
    process.start()
    try:
        yield process
    finally:
        if process.alive:
            process.kill()


@pytest.fixture
def two_of_three(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster that formed with three voters, of which the last has stopped."""
    with running_cluster(tmp_path) as cluster:
        cluster[2].terminate()
        cluster.wait_active(cluster.members[:2])
        yield cluster


@contextlib.contextmanager
def publisher_beside_three(cluster: LocalCluster) -> Iterator[BlockingChannel]:
    """A channel with confirms to the first member, and a queue, once the third member serves
    too."""
    wait_until(
        lambda: [one.state for one in cluster[0].status().members] == ["ACTIVE"] * 3,
        20,
        "the third member",
    )
    parameters = pika.ConnectionParameters(*cluster[0].address)
    connection = admitted(lambda: pika.BlockingConnection(parameters))
    with contextlib.closing(connection):
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        yield channel


def test_a_clock_an_hour_behind_is_refused_at_join(two_of_three: LocalCluster) -> None:
    """G17: one sentence with both values, its own exit code; the others do not notice."""
    with sick(two_of_three[2], CLOCK) as process:
        assert process.wait(60) == Exit.CLOCK
    said = process.log_path.read_text()
    sentence = next(line for line in said.splitlines() if "clock says" in line)
    assert "3600.0 s behind the cluster's time" in sentence
    assert "--clock-bound" in sentence
    assert "serving" not in said
    two_of_three.wait_active(two_of_three.members[:2])


def test_a_stuck_disk_makes_its_member_leave(two_of_three: LocalCluster) -> None:
    with (
        sick(two_of_three[2], DISK, "--disk-lag-max", "1") as process,
        publisher_beside_three(two_of_three) as channel,
    ):
        channel.basic_publish("", "q", b"the straw", PERSISTENT)
        assert process.wait(60) == Exit.LATE_DISK
        said = process.log_path.read_text()
        assert "the disk of this member does not keep up" in said
        assert "--disk-lag-max" in said
        two_of_three.wait_active(two_of_three.members[:2])
        channel.basic_publish("", "q", b"life goes on", PERSISTENT)


def test_a_hanging_event_loop_ends_its_process(two_of_three: LocalCluster) -> None:
    """The others continue at once; its clients, and whatever restarts it, see that it has ended."""
    with sick(two_of_three[2], HANG, "--watchdog-interval", "2") as process:
        wait_until(
            lambda: [one.state for one in two_of_three[0].status().members] == ["ACTIVE"] * 3,
            20,
            "the third member",
        )
        with socket.create_connection(process.address) as client:
            client.sendall(b"the straw")
            assert process.wait(60) == Exit.FAILURE
        said = process.log_path.read_text()
        assert "Timeout (0:00:02)!" in said
        assert "in data_received" in said
        two_of_three.wait_active(two_of_three.members[:2])


def test_a_drifting_clock_is_reported_and_expires_nothing(two_of_three: LocalCluster) -> None:
    """G17: every member names it, and a message with a minute to live is still there."""
    sick_one = two_of_three[2]
    with sick(sick_one, DRIFT) as process:
        with publisher_beside_three(two_of_three) as channel:
            for expiration in ("60000", "500"):
                channel.basic_publish(
                    "", "q", b"m", pika.BasicProperties(delivery_mode=2, expiration=expiration)
                )
            channel.queue_declare("short", durable=True, arguments={"x-message-ttl": 500})
            channel.basic_publish("", "short", b"m", PERSISTENT)
            sick_one.data_dir.with_name(sick_one.data_dir.name + ".drift").touch()
            wait_until(
                lambda: all("3600." in str(m.status().raw["alarms"]) for m in two_of_three.members),
                20,
                "the alarm at all members",
            )
            declared = channel.queue_declare("q", passive=True)
            assert declared.method.message_count == 2
            wait_until(
                lambda: not channel.queue_declare("short", passive=True).method.message_count,
                20,
                "the time, which the other clocks move, for the message with half a second to live",
            )
        assert process.alive, "it continues"


def test_a_member_whose_store_was_removed_stops(two_of_three: LocalCluster) -> None:
    """It could confirm messages that a restart would not find; the others continue."""
    sick_one = two_of_three[2]
    sick_one.start()
    with publisher_beside_three(two_of_three) as channel:
        shutil.rmtree(sick_one.data_dir / "store")
        assert sick_one.wait(60) == Exit.IO_ERROR
        assert "the store of this member is gone" in sick_one.log_path.read_text()
        channel.basic_publish("", "q", b"life goes on", PERSISTENT)


def test_a_member_without_memory_for_a_thread_stops_cleanly(two_of_three: LocalCluster) -> None:
    with sick(two_of_three[2], NO_THREADS) as process, publisher_beside_three(two_of_three) as one:
        one.basic_publish("", "q", b"m", PERSISTENT)
        two_of_three[2].data_dir.with_name(two_of_three[2].data_dir.name + ".starved").touch()
        process.terminate()
        assert process.wait(60) == Exit.OK
        said = process.log_path.read_text()
        assert "stopping: asked to terminate" in said
        assert "could not" not in said


def test_the_event_loop_touches_no_file(two_of_three: LocalCluster) -> None:
    """Between the start of service and the stop.

    docs/decisions/0023-no-file-operation-on-the-loop-thread.md.
    """
    watched = two_of_three[2]
    paging = ("--page-memory", "16KiB")
    with sick(watched, WATCHED, *paging) as process, publisher_beside_three(two_of_three):
        parameters = pika.ConnectionParameters(*watched.address)
        sign = watched.data_dir.with_name(watched.data_dir.name + ".watch")
        sign.touch()
        wait_until(lambda: not sign.exists(), 20, "the watch")
        with contextlib.closing(admitted(lambda: pika.BlockingConnection(parameters))) as other:
            channel = other.channel()
            channel.confirm_delivery()
            channel.queue_declare("w", durable=True)
            for number in range(200):
                channel.basic_publish("", "w", b"%d" % number, PERSISTENT)
            for _ in range(200):
                method, _, _ = channel.basic_get("w")
                channel.basic_ack(method.delivery_tag)
            with_backlog(watched, 3_000)
            drained(watched, 3_000)
            counted = paged(watched)
            assert counted["written"] > 5
            assert counted["ahead"] + counted["waited"] + counted["unasked"] > 5
            assert not counted["at_once"]
            two_of_three[1].kill()  # causes a view change, and so a promise
            channel.basic_publish("", "w", b"after", PERSISTENT)
        assert process.alive
        found = watched.data_dir.with_name(watched.data_dir.name + ".files").read_text()
        assert not found


def paged(member: BrokerProcess) -> dict[str, int]:
    """Its counters of pages."""
    counters = Target(member.address).ask(op="counters")["counters"]
    assert isinstance(counters, dict)
    return {
        name.removeprefix("pages."): value
        for name, value in counters.items()
        if name.startswith("pages.") and isinstance(value, int)
    }


def with_backlog(member: BrokerProcess, messages: int) -> None:
    """This many messages wait in the queue `long`."""
    parameters = pika.ConnectionParameters(*member.address)
    with contextlib.closing(admitted(lambda: pika.BlockingConnection(parameters))) as connection:
        channel = connection.channel()
        channel.queue_declare("long", durable=True)
        for _ in range(messages):
            channel.basic_publish("", "long", bytes(100), PERSISTENT)
        wait_until(
            lambda: channel.queue_declare("long", passive=True).method.message_count == messages,
            60,
            "the messages",
        )


def drained(member: BrokerProcess, messages: int) -> None:
    """Consume them."""
    parameters = pika.ConnectionParameters(*member.address)
    with contextlib.closing(admitted(lambda: pika.BlockingConnection(parameters))) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=200)
        for method, _, _ in channel.consume("long", inactivity_timeout=30):
            assert method is not None
            channel.basic_ack(method.delivery_tag)
            messages -= 1
            if not messages:
                return


def test_the_event_loop_of_a_joiner_touches_no_file(two_of_three: LocalCluster) -> None:
    """Receiving a checkpoint, installing it, applying the tail behind it: none touches a file."""
    watched = two_of_three[2]
    parameters = pika.ConnectionParameters(*two_of_three[0].address)
    with contextlib.closing(admitted(lambda: pika.BlockingConnection(parameters))) as early:
        channel = early.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for _ in range(160):  # the others' log no longer begins at 1
            channel.basic_publish("", "q", bytes(1 << 20), PERSISTENT)
        channel.queue_purge("q")
    watched.data_dir.with_name(watched.data_dir.name + ".watch").touch()  # from its start on
    with sick(watched, WATCHED) as process, publisher_beside_three(two_of_three) as channel:
        channel.basic_publish("", "q", b"and then the order", PERSISTENT)
        assert process.alive
        said = process.log_path.read_text()
        assert "receiving its checkpoint" in said
        assert "the transferred state is in force" in said
        found = watched.data_dir.with_name(watched.data_dir.name + ".files").read_text()
        assert not found


def test_a_frozen_disk_changes_no_view_until_its_member_leaves(two_of_three: LocalCluster) -> None:
    """Nothing can be written, not even the member log: the member stays in the ring meanwhile."""
    frozen, other = two_of_three[2], two_of_three[0]

    def views() -> int:
        return other.log_path.read_text().count(") view ")

    with (
        sick(frozen, FROZEN, "--disk-lag-max", "3") as process,
        publisher_beside_three(two_of_three) as channel,
    ):
        channel.basic_publish("", "q", b"m", PERSISTENT)
        before, paused = views(), pauses(two_of_three.members[:2])
        frozen.data_dir.with_name(frozen.data_dir.name + ".frozen").touch()
        while process.alive:
            channel.basic_publish("", "q", b"m", PERSISTENT)
        said = process.log_path.read_text()
        assert process.wait(1) == Exit.LATE_DISK
        assert "the disk of this member does not keep up" in said
        wait_until(lambda: views() > before, 20, "the view without it")
        assert views() == before + 1 or pauses(two_of_three.members[:2]) != paused
        two_of_three.wait_active(two_of_three.members[:2])


def test_a_lone_broker_waits_for_pages_that_cannot_be_read(tmp_path: Path) -> None:
    """It reports what it waits for, and then carries out all that clients requested meanwhile."""
    illness = FROZEN_PAGES, "--disk-lag-max", "2", "--page-memory", "16KiB"
    with running_cluster(tmp_path, 1) as cluster:
        cluster[0].terminate()
        sign = cluster[0].data_dir.with_name(cluster[0].data_dir.name + ".frozen")
        with sick(cluster[0], *illness) as process:
            with_backlog(process, 3_000)
            parameters = pika.ConnectionParameters(*process.address, heartbeat=60)
            with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
                channel, left = connection.channel(), 3_000

                def take(*got: object) -> None:
                    nonlocal left
                    left -= 1
                    if left == 2_900:
                        sign.touch()
                    channel.basic_ack(3_000 - left)  # tags are counted from 1

                def said() -> bool:
                    connection.process_data_events(0.1)
                    return "has not given back messages" in process.log_path.read_text()

                channel.basic_qos(prefetch_count=50)
                channel.basic_consume("long", take)
                wait_until(said, 60, "the alarm")
                assert process.alive
                assert left
                sign.unlink()
                while left:
                    connection.process_data_events(0.1)
            counters = Target(process.address).ask(op="counters")["counters"]
            assert isinstance(counters, dict)
            assert counters["disk.unread"] == 1


def test_unreadable_pages_change_no_view_until_their_member_leaves(
    two_of_three: LocalCluster,
) -> None:
    """It cannot apply what needs the pages, but passes the token; then it leaves as for any stuck
    disk.  docs/decisions/0060-applying-waits-for-the-disk.md."""
    frozen, other = two_of_three[2], two_of_three[0]

    def views() -> int:
        return other.log_path.read_text().count(") view ")

    illness = FROZEN_PAGES, "--disk-lag-max", "3", "--page-memory", "16KiB"
    with sick(frozen, *illness) as process, publisher_beside_three(two_of_three) as channel:
        with_backlog(other, 3_000)
        before, paused = views(), pauses(two_of_three.members[:2])
        frozen.data_dir.with_name(frozen.data_dir.name + ".frozen").touch()
        drained(other, 3_000)
        while process.alive:  # without durable writes no member counts as late
            channel.basic_publish("", "q", b"m", PERSISTENT)
        assert process.wait(1) == Exit.LATE_DISK
        assert "the disk of this member does not keep up" in process.log_path.read_text()
        wait_until(lambda: views() > before, 20, "the view without it")
        assert views() == before + 1 or pauses(two_of_three.members[:2]) != paused
        two_of_three.wait_active(two_of_three.members[:2])
