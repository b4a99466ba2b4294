"""One member's replica and the log that it writes, for tests of a log's contents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker.machine import commands as c
from broker.machine.command_codec import pack_blob
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.machine.version import MACHINE_VERSION
from broker.memberlog.reader import Entry, LogError, read_segment
from broker.memberlog.recorder import Recorder
from broker.memberlog.records import Batch, Record
from broker.memberlog.segments import open_segment, segments_in
from broker.memberlog.writer import MemberLogWriter
from broker.replication.chain import History
from broker.replication.replica import Item, Replica
from vsync.primary.events import Activation
from vsync.types import RingId

RING = RingId(1, "a", 1)


def read_until_fault(data: bytes) -> tuple[list[Entry], LogError | None]:
    """Return the records of a segment up to the first fault, and the fault."""
    entries: list[Entry] = []
    try:
        entries.extend(read_segment(data, "x"))  # which keeps what came before an exception
    except LogError as fault:
        return entries, fault
    return entries, None


class Scene:
    """A replica that writes its log, fed with blobs of member a."""

    def __init__(self, directory: Path, local: str = "a", segment_us: int = 3_600_000_000) -> None:
        self.directory, self.now_us = directory, 1_000_000
        self.replica = Replica(local, Machine(local), History())
        self.writer = MemberLogWriter(
            directory, "prod", "c1", local, 1, lambda: self.now_us, segment_us=segment_us
        )
        self.book = Recorder(self.writer)
        self.book.start(self.replica.history, self.replica.machine)
        self.replica.log = self.book
        self.seq = 0
        self.entries: list[bytes] = []
        members = (("a", 1, True), ("b", 1, True))
        self.item(Activation(1, members, False, ("a", "b"), "c1", version=MACHINE_VERSION))
        self.run(
            c.ConnectionOpen(c.CONNECTION_OPEN, 1, "/", "guest", "x:1"),
            c.ChannelOpen(c.CHANNEL_OPEN, 1, 1),
        )

    def item(self, body: bytes | Activation) -> None:
        self.seq += 1
        self.replica.apply(Item(1, RING, self.seq, "a", body))
        commit = self.replica.cut()
        assert commit is not None
        self.entries.append(commit.entry)

    def run(self, *commands: Command) -> None:
        session = self.replica.machine.sessions["a"]
        self.item(pack_blob(session.session, session.last_blob_no + 1, 5, list(commands)))

    def declare(self, *names: str) -> None:
        self.run(*(
            c.QueueDeclare(c.QUEUE_DECLARE, 1, 1, n, False, True, False, False, False, {})
            for n in names
        ))  # fmt: skip

    def publish(self, *names: str) -> None:
        self.run(*(
            c.Publish(c.PUBLISH, 1, 1, no, "", n, c.PERSISTENT, b"", n.encode())
            for no, n in enumerate(names, 1)
        ))  # fmt: skip

    def traffic(self) -> None:
        """Publish, get, return, get again, acknowledge."""
        self.declare("one", "two")
        self.publish("one", "two", "nowhere", "one")
        self.run(
            c.Get(c.GET, 1, 1, "one", False), c.Nack(c.NACK, 1, 1, 1, False, True),
            c.Get(c.GET, 1, 1, "one", False), c.Ack(c.ACK, 1, 1, 2, False),
        )  # fmt: skip

    def records(self) -> Iterator[Record]:
        self.writer.flush()
        for path in segments_in(self.directory):
            for entry in read_segment(open_segment(path), str(path)):
                yield entry.record

    def kinds(self) -> list[type[Record]]:
        return [type(record) for record in self.records()]

    def moves(self) -> list[tuple[int, bytes]]:
        return [(r.first_position, r.moves) for r in self.records() if isinstance(r, Batch)]
