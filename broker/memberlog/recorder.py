"""The recorder of a member: turns events at the member into records of its member log.

The log is evidence, written to be checked afterwards; nothing in the broker reads it back. It never
holds bodies, keys or names of clients: a batch is recorded as its hash, its kinds, its outcomes and
its moves of messages, which are numbers and hashes. Queues are named once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker.machine.machine import Machine
from broker.machine.state import Consumer, Queue, Reader, all_queues, order_of, ready_count
from broker.memberlog.records import (
    CHECKPOINT_ROW,
    READER_ROW,
    Active,
    Batch,
    Checkpoint,
    ConfirmRecord,
    Decided,
    Durable,
    Inactive,
    Lease,
    Queues,
    Readers,
    Record,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)
from broker.memberlog.writer import MemberLogWriter
from broker.replication.chain import History
from broker.replication.replica import Applied
from vsync.primary.events import Activated
from vsync.types import Member, RingId

QUEUES_PER_RECORD = 20_000  # with the longest names 10 MiB: a reader accepts up to 16
READERS_PER_RECORD = 500_000


class Recorder:
    """Appends the records of one member to its log."""

    def __init__(self, writer: MemberLogWriter) -> None:
        self._writer = writer
        self._active_epoch = 0
        self._machine: Machine | None = None
        self._position, self._root = 0, 0  # of the state recorded in the log so far
        self._checked = -1  # the position of the last CHECKPOINT in this place

    def start(self, history: History, machine: Machine) -> None:
        """This incarnation begins with the state that recovery found."""
        root = machine.root()
        self._writer.append(Start(history.epoch, history.position, history.chain, root))
        self._checkpoint(history.position, machine)
        self._writer.begins_with = self._beginning

    def lease(self, record: Lease) -> None:
        """The lease on a shared store was taken, before anything is done under it, or is over."""
        self._writer.append(record)

    def view(self, ring: RingId, members: tuple[Member, ...], *, regular: bool) -> None:
        """The ring delivered a configuration."""
        named = tuple((m.name, m.incarnation) for m in members)
        self._writer.append(ViewSeen(ring.seq, ring.rep, regular, named))

    def activated(self, event: Activated, base: History | None) -> None:
        """This member is in a primary view whose first command follows `base`.

        None, written as position 0, when the activation came inside a transferred state.
        """
        a = event.activation
        base = base if base is not None else History()
        self._writer.cluster_id = a.cluster_id
        self._active_epoch = a.epoch
        self._writer.append(
            Active(
                a.epoch, event.ring.seq, event.ring.rep, base.position, base.chain,
                a.members, a.voters, a.cold,
            )
        )  # fmt: skip
        self._checkpoint_again()

    def decided(self, epoch: int) -> None:
        """The next applied messages were unstable; the primary of `epoch` decided them."""
        self._writer.append(Decided(epoch))

    def inactive(self, reason: str) -> None:
        """This member is no longer in a primary view."""
        if self._active_epoch:
            self._active_epoch = 0
            self._writer.append(Inactive(reason))

    def batch(self, applied: Applied, history: History, root: int) -> None:
        """One item was applied."""
        item = applied.item
        if applied.declared:
            self._writer.append(_named(applied.declared))
        self._position, self._root = history.position, root
        self._writer.append(
            Batch(
                item.epoch, item.ring.seq, item.seq, applied.first, len(applied.kinds),
                item.sender, applied.session, applied.blob_no, applied.time_us,
                applied.kinds, applied.outcomes, applied.hashed, history.chain, root,
                history.order, applied.moves,
            )
        )  # fmt: skip

    def confirmed(self, epoch: int, durable_mark: int, positions: list[int]) -> None:
        """These publishes were confirmed to clients of this member."""
        self._writer.append(ConfirmRecord(epoch, durable_mark, tuple(positions)))

    def durable(self, position: int) -> None:
        """This member's own store holds everything up to `position`."""
        self._writer.append(Durable(position))

    def snapshot(self, history: History, machine: Machine, donor: str) -> None:
        """The state was replaced by the donor's."""
        root = machine.root()
        self._writer.append(Snapshot(history.epoch, history.position, history.chain, root, donor))
        self._checkpoint(history.position, machine)

    def vote(self, position: int, chain: bytes, root: int, verdict: str) -> None:
        """A digest vote was decided."""
        self._writer.append(Vote(position, chain, root, verdict))

    def stop(self, reason: str, history: History) -> None:
        """The orderly end, after the state of all queues at that point."""
        self._checkpoint_again()
        self._writer.append(Stop(reason, history.position, history.chain))

    @property
    def written(self) -> int:
        """Everything recorded before `flush` returned this number, or a lower one, is written."""
        return self._writer.written

    @property
    def unflushed(self) -> bool:
        """Whether anything was recorded since the last `flush`."""
        return self._writer.unflushed

    def flush(self) -> int:
        """Have everything recorded in this turn written; see `written`."""
        return self._writer.flush()

    def close(self) -> None:
        """Write everything and close the file."""
        self._writer.close()

    def _checkpoint(self, position: int, machine: Machine) -> None:
        self._machine, self._position, self._root = machine, position, machine.root()
        self._checked = position
        for record in self._checkpoint_records(machine):
            self._writer.append(record)

    def _checkpoint_again(self) -> None:
        """Append the state of all queues, all named, unless the log has just recorded it."""
        if self._position != self._checked:
            for record in self._beginning() or ():
                self._checked = self._position
                if isinstance(record, Checkpoint | Readers):
                    self._writer.append(record)

    def _beginning(self) -> Iterator[Record] | None:
        """Return the names and the state of all queues, for a reader that begins here.

        None where the machine is in the middle of an item, which waits for messages on disk or has
        failed: it has no state that the log has recorded.
        """
        machine = self._machine
        if machine is None or machine.root() != self._root:
            return None
        return self._checkpoint_records(machine)

    def _checkpoint_records(self, machine: Machine) -> Iterator[Record]:
        queues = [queue for vhost in machine.vhosts.values() for queue in all_queues(vhost)]
        queues.sort(key=lambda queue: queue.number)
        for first in range(0, len(queues), QUEUES_PER_RECORD):
            yield _named(queues[first : first + QUEUES_PER_RECORD])
        yield from readers_of(queues)
        rows = [
            CHECKPOINT_ROW.pack(q.mark, ready_count(q), q.unacked, q.next_seq, q.ready_sum)
            for q in queues
        ]
        for first in range(0, len(rows) or 1, QUEUES_PER_RECORD):
            part = b"".join(rows[first : first + QUEUES_PER_RECORD])
            yield Checkpoint(self._position, self._root, machine.next_message, part)


def readers_of(queues: Iterable[Queue]) -> Iterator[Readers]:
    """Yield the progress of these queues' readers; nothing if none is a stream or browsed."""
    read = [queue for queue in queues if queue.readers is not None]
    if read:
        rows = [
            _reader_row(one, one.reader)
            for queue in read
            for one in queue.consumers.values()
            if one.reader is not None
        ]
        for first in range(0, len(rows) or 1, READERS_PER_RECORD):
            yield Readers(b"".join(rows[first : first + READERS_PER_RECORD]))


def _reader_row(consumer: Consumer, reader: Reader) -> bytes:
    marks = consumer.queue.mark, consumer.channel.mark
    return READER_ROW.pack(*marks, reader.salt, reader.offset, bool(reader.filter))


def _named(queues: Iterable[Queue]) -> Queues:
    return Queues(tuple((q.mark, q.vhost.name, q.name, q.durable, order_of(q)) for q in queues))
