"""A disk that fails at one place of one thread of a real broker.

It goes on, or it ends at once with the exit code for such a disk and a message that names the file
and the cause. Nothing confirmed is lost, and on the mended disk it starts again (G9).
Decision: docs/decisions/0152-a-broken-disk-has-a-code-of-its-own.md.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pika
import pika.exceptions
import pytest

from broker.durability.backup_pruning import LEVEL_S
from broker.exit_codes import Exit
from store.backups import backup_paths
from tests.crash.failing_disk import (
    ALL,
    CHANGES,
    LIST,
    LOOK,
    NAME,
    OPEN,
    READ,
    SHORT,
    SIZE,
    SYNC,
    WRITE,
    Brokers,
    Fault,
    ForkedBroker,
)
from tools.demo.local_cluster import free_ports

pytestmark = pytest.mark.timeout(600)

START_S = 100.0
AT_ONCE_S = 40.0  # on a busy machine; the watchdog would take a minute
EIO, EROFS, ENOSPC, EACCES = errno.EIO, errno.EROFS, errno.ENOSPC, errno.EACCES
BROKEN, FULL = Exit.IO_ERROR, Exit.FULL
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Place:
    """One broker's data directory and ports, and what it has confirmed."""

    def __init__(self, brokers: Brokers, root: Path, *arguments: str) -> None:
        self.brokers, self.data_dir = brokers, root / "data"
        self.port, api = free_ports(2)
        self._log = root / "said"
        self.arguments = [
            "--port", str(self.port), "--management-port", str(api), "--data-dir",
            str(self.data_dir), *arguments,
        ]  # fmt: skip
        self.confirmed = 0
        brokers.disk.watch(self.data_dir)

    def start(self) -> ForkedBroker:
        """Start it; what it said before is forgotten."""
        self._log.unlink(missing_ok=True)
        return self.brokers.start(self.arguments, self._log)

    def ready(self) -> ForkedBroker:
        """Start it, and wait until it serves."""
        broker = self.start()
        assert broker.says("READY, was", START_S), broker.text()
        return broker

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1", self.port, socket_timeout=AT_ONCE_S,
                blocked_connection_timeout=AT_ONCE_S,
            )
        )  # fmt: skip

    def publish(self, count: int, size: int = 10) -> None:
        """Publish until all are confirmed, or the broker ends."""
        with suppress(pika.exceptions.AMQPError, OSError):
            channel = self.connect().channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            for _ in range(count):
                channel.basic_publish("", "q", os.urandom(size), PERSISTENT)
                self.confirmed += 1
            channel.connection.close()

    def check(self) -> None:
        """Start it on the mended disk: everything confirmed is there."""
        self.brokers.disk.mend()
        broker = self.ready()
        connection = self.connect()
        found = connection.channel().queue_declare("q", durable=True, passive=True)
        connection.close()
        assert found.method.message_count >= self.confirmed
        broker.signal(signal.SIGTERM)
        assert broker.ended(START_S) == Exit.OK, broker.text()


def ended(broker: ForkedBroker, code: Exit, number: int, seconds: float = AT_ONCE_S) -> None:
    """It ends with this code, and says which file met which error."""
    assert broker.ended(seconds) == code, broker.text()
    text = broker.text()
    assert "Traceback" not in text, text
    cause = os.strerror(number), f"({errno.errorcode[number]})"
    assert any("/data" in line for line in text.splitlines() if any(map(line.count, cause))), text


def stops_in_order(broker: ForkedBroker) -> None:
    """It ends at SIGTERM with 0, and never logged a traceback."""
    broker.signal(signal.SIGTERM)
    assert broker.ended(START_S) == Exit.OK, broker.text()
    assert "Traceback" not in broker.text()


@pytest.fixture(scope="module")
def brokers(failing_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(failing_library, tmp_path_factory.mktemp("brokers") / "disk")
    yield made
    made.close()


RUNNING = {
    "the journal": (Fault(EIO, WRITE, "journal", "store-writer"), BROKEN, 10),
    "half a record of the journal": (Fault(SHORT, WRITE, "journal", last=1), BROKEN, 10),
    "a sync of LMDB, once": (Fault(EIO, SYNC, "data.mdb", "store-writer", last=1), BROKEN, 70_000),
    "LMDB's file": (Fault(EROFS, WRITE, "data.mdb", "store-writer"), BROKEN, 70_000),
    "a commit without space": (Fault(ENOSPC, WRITE, "data.mdb", "store-writer"), FULL, 70_000),
    "blocks for LMDB": (Fault(EIO, SIZE | OPEN, "data.mdb", "store-writer"), BROKEN, 300_000),
    "the member log, once": (Fault(EIO, WRITE, "memberlog", last=1), BROKEN, 10),
    "the member log": (Fault(EACCES, WRITE, "memberlog"), BROKEN, 10),
    "the scrubber": (Fault(EROFS, ALL, "", "uvloop"), BROKEN, 10),
    "the look at the files": (Fault(EIO, ALL, "", "files"), BROKEN, 10),
    "everything": (Fault(EROFS, CHANGES), BROKEN, 10),
}  # fmt: skip
"""Where it fails, the exit code, and the size of the messages meanwhile."""
EVERY_DAY = ("half a record of the journal", "a sync of LMDB, once", "the member log, once")


def some(table: dict[str, tuple[Fault, Exit, int]]) -> list[object]:
    """Names of cases; most are slow tests."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in EVERY_DAY else slow) for name in table]


@pytest.mark.parametrize("case", some(RUNNING))
def test_a_running_broker_ends_at_once(brokers: Brokers, tmp_path: Path, case: str) -> None:
    fault, code, size = RUNNING[case]
    place = Place(brokers, tmp_path)
    broker = place.ready()
    place.publish(3)
    brokers.disk.order(fault)
    for _ in range(10):  # the scrubber has something to read only after a commit
        place.publish(20, size)
        if broker.ended(0.5) is not None:
            break
    assert brokers.disk.struck
    ended(broker, code, fault.how if fault.how > 0 else EIO)
    place.check()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(EIO, ALL, "", "resource-gauge"), id="the gauge"),
        pytest.param(Fault(ENOSPC, WRITE, "memberlog", last=3), id="the member log, for a while"),
        pytest.param(Fault(EIO, WRITE, "pages"), id="pages"),
        pytest.param(Fault(EIO, WRITE, "owner.lock"), id="the lock's file"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_running_broker_goes_on(brokers: Brokers, tmp_path: Path, fault: Fault) -> None:
    """Messages stay in memory; the log waits for space; the rest is for people."""
    place = Place(brokers, tmp_path, "--page-memory", "1MiB")
    broker = place.ready()
    brokers.disk.order(fault)
    until = time.monotonic() + START_S
    while (not brokers.disk.struck or place.confirmed < 40) and time.monotonic() < until:
        place.publish(40, 100_000)
    assert brokers.disk.struck
    assert place.confirmed >= 40
    assert broker.exit_code() is None, broker.text()
    brokers.disk.mend()
    stops_in_order(broker)
    place.check()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(Fault(EIO, SYNC, "memberlog", "memberlog-write"), BROKEN, id="the log's sync"),
        pytest.param(Fault(ENOSPC, WRITE, "memberlog"), FULL, id="no space for the log's end"),
        pytest.param(Fault(EROFS, CHANGES, "", "loop"), BROKEN, id="the marker"),
    ],
)
@pytest.mark.slow
def test_a_stop_tells_that_its_end_could_not_be_written(
    brokers: Brokers, tmp_path: Path, fault: Fault, code: Exit
) -> None:
    place = Place(brokers, tmp_path)
    broker = place.ready()
    place.publish(3)
    brokers.disk.order(fault)
    broker.signal(signal.SIGTERM)
    ended(broker, code, fault.how)
    place.check()


def left_by_a_kill(brokers: Brokers, root: Path) -> Path:
    """Return what a broker leaves that was killed after its first messages."""
    place = Place(brokers, root)
    broker = place.ready()
    place.publish(5)
    broker.signal(signal.SIGKILL)
    broker.ended(START_S)
    assert place.confirmed == 5
    return place.data_dir


STARTS = {
    "a look at LMDB's file": (Fault(EIO, LOOK, "store/data.mdb"), Exit.IO_ERROR),
    "LMDB's lock file": (Fault(ENOSPC, OPEN, "lock.mdb"), Exit.FULL),
    "the journal": (Fault(EIO, READ, "journal"), Exit.IO_ERROR),
    "the evidence": (Fault(EROFS, LOOK, "/evidence"), Exit.IO_ERROR),
    "the pages": (Fault(ENOSPC, OPEN, "/pages"), Exit.FULL),
    "another owner": (Fault(EACCES, OPEN, "/data.mdb"), Exit.CANNOT_CREATE),
}


def test_a_start_names_the_file_and_the_error(brokers: Brokers, tmp_path: Path) -> None:
    """And the next one, on the mended disk, finds everything."""
    left_by_a_kill(brokers, tmp_path)
    place = Place(brokers, tmp_path)
    place.confirmed = 5
    for case, (fault, code) in STARTS.items():
        brokers.disk.order(fault)
        broker = place.start()
        assert broker.ended(AT_ONCE_S) == code, f"{case}: {broker.text()}"
        assert "Traceback" not in broker.text(), case
        assert os.strerror(fault.how) in broker.text(), f"{case}: {broker.text()}"
    place.check()


def cluster_of_one(nodes: str, number: int) -> list[str]:
    """Return the options of a member of a cluster that one member forms."""
    return ["--cluster-name", "failing", "--cluster-size", "1", "--cluster-nodes", nodes,
            "--cluster-bind", nodes.split(",")[number]]  # fmt: skip


@pytest.mark.slow
def test_a_joiner_ends_whose_disk_takes_no_received_state(brokers: Brokers, tmp_path: Path) -> None:
    """It asked for the state again and again, with a warning each time."""
    nodes = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("donor", "joiner"):
        (tmp_path / name).mkdir()
    donor = Place(brokers, tmp_path / "donor", *cluster_of_one(nodes, 0))
    running = donor.ready()
    donor.publish(160, 1 << 20)  # its log no longer begins at 1
    joiner = Place(brokers, tmp_path / "joiner", *cluster_of_one(nodes, 1))
    brokers.disk.order(Fault(EROFS, CHANGES, "store.joining"))
    broker = joiner.start()
    ended(broker, BROKEN, EROFS, START_S)
    brokers.disk.mend()
    assert joiner.ready().exit_code() is None
    assert running.exit_code() is None, running.text()


ROTATING = {
    "the next segment": (Fault(EIO, OPEN, ".qml", "memberlog"), BROKEN),
    "its first record": (Fault(EROFS, WRITE, ".qml", "memberlog", first=7), BROKEN),
    "space for it, for a while": (Fault(ENOSPC, OPEN | WRITE, ".qml", "memberlog", last=3), None),
    "the archiver's list": (Fault(EIO, LIST, "memberlog"), None),
    "the archiver": (Fault(EIO, ALL, "memberlog", "loop"), None),
    "a compressed segment": (Fault(ENOSPC, OPEN | WRITE, ".gz", "loop"), None),
}
"""Where it fails, and the exit code; None: the broker goes on.  The archiver is a process."""


@pytest.mark.parametrize("case", ROTATING)
@pytest.mark.slow
def test_a_member_log_that_cannot_begin_or_archive_a_segment(
    brokers: Brokers, tmp_path: Path, case: str
) -> None:
    """A closed segment that is not compressed is only larger; one that is not begun is lost."""
    fault, code = ROTATING[case]
    place = Place(brokers, tmp_path, "--memberlog-segment-size", "0")
    broker = place.ready()
    place.publish(3)
    brokers.disk.order(fault)
    until = time.monotonic() + START_S
    while broker.exit_code() is None and time.monotonic() < until:
        place.publish(3)
        if code is None and brokers.disk.struck and place.confirmed > 10:
            break
    assert brokers.disk.struck
    if code is not None:
        ended(broker, code, fault.how)
    else:
        assert broker.exit_code() is None, broker.text()
        brokers.disk.mend()
        stops_in_order(broker)
    place.check()


@pytest.mark.slow
def test_old_stores_that_cannot_be_removed_are_reported_and_tried_again(
    brokers: Brokers, tmp_path: Path
) -> None:
    left = left_by_a_kill(brokers, tmp_path)
    for number in range(1, 4):
        shutil.copytree(left / "store", left / f"_cluster.bak.{number:04x}")
    place = Place(brokers, tmp_path, "--backups-keep", "1", "--backups-keep-days", "0")
    place.confirmed = 5
    broker = place.ready()
    brokers.disk.order(Fault(EIO, NAME, "_cluster.bak", "files"))
    assert broker.says("old stores stay in", LEVEL_S + START_S), broker.text()
    brokers.disk.mend()
    assert broker.says("_cluster.bak.0002 is removed", LEVEL_S + START_S), broker.text()
    assert "Traceback" not in broker.text()
    assert list(backup_paths(left)) == [3]
    broker.signal(signal.SIGTERM)
    assert broker.ended(START_S) == Exit.OK, broker.text()
    place.check()


@pytest.mark.slow
def test_an_arbitrator_ends_that_cannot_write_its_record(brokers: Brokers, tmp_path: Path) -> None:
    """At its start, and when a view of the cluster begins."""
    nodes = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("member", "arbitrator"):
        (tmp_path / name).mkdir()
    voting = ["--cluster-arbitrator", nodes.split(",")[1]]
    places = [
        Place(brokers, tmp_path / name, *cluster_of_one(nodes, number), *voting)
        for number, name in enumerate(("member", "arbitrator"))
    ]
    member, arbitrator = places
    record = Fault(EROFS, CHANGES, "arbitrator.")
    brokers.disk.order(record)
    ended(arbitrator.start(), BROKEN, EROFS)
    brokers.disk.mend()
    broker = arbitrator.start()
    assert broker.says("arbitrator: no data", START_S), broker.text()
    brokers.disk.order(record)
    running = member.start()
    ended(broker, BROKEN, EROFS, START_S)
    brokers.disk.mend()
    assert arbitrator.start().says("is held by", START_S)
    assert running.says("READY, was", START_S), running.text()
