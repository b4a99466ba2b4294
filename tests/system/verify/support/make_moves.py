"""Makes the member logs of three members with real machines.

Clients use the rig of the unit tests, and the members' records are kept so that a test can corrupt
them.  A test may also break a machine's state between two commands, the same at all members: then
the logs agree with one another, and only the queue contract can find the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from broker.machine import commands as c
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.machine.move_log import MOVE
from broker.machine.state import Queue, all_queues, order_of
from broker.memberlog.recorder import readers_of
from broker.memberlog.records import (
    CHECKPOINT_ROW,
    Active,
    Batch,
    Checkpoint,
    ConfirmRecord,
    Durable,
    Inactive,
    Queues,
    Record,
    ViewSeen,
)
from tests.support.three_machines import MEMBERS, Rig
from tests.system.verify.support.make_logs import VOTERS, IncarnationId, LogMaker
from tests.system.verify.support.read_back import read_back
from tools.verify.contract.job import ContractResult, exchange_of_contract
from tools.verify.contract.replay import Replay
from tools.verify.contract.rules import Breach
from tools.verify.contract.segment import check_segment
from tools.verify.input.ranges_of_file import FileRange
from tools.verify.sql.exchange import Tables

INCARNATIONS: tuple[IncarnationId, ...] = tuple((name, 1) for name in MEMBERS)
MoveTuple = tuple[int, int, int, int, int, int]


class MoveMaker(LogMaker):
    """The logs of a rig, and the rig: `rig.client()` and its methods make the history."""

    def __init__(self) -> None:
        super().__init__()
        self._named: dict[int, bool] = {}
        self._blobs: dict[int, int] = {}
        self._origins: dict[int, str] = {}
        for incarnation in INCARNATIONS:
            self.start(incarnation)
        self.checkpoint_of(None)
        self.rig = _TapedRig(self)

    @property
    def machine(self) -> Machine:
        """Return the machine of the first member."""
        return self.rig.machine

    def applied(self, session: int, command: Command, outcome: int, moves: bytes) -> None:
        """Record a command that all three have applied."""
        machine = self.machine
        if isinstance(command, c.Activate):
            self._activated(command)
        self._name_queues(moves)
        self.seq += 1
        self._blobs[session] = self._blobs.get(session, 0) + 1
        outcomes = outcome.to_bytes(2, "little")
        hashed = (machine.position << 64 | self.seq).to_bytes(16, "little")
        first = self.history.position + 1
        self.history = self.history.after(machine.epoch, 1, hashed, outcomes)
        for name, record in machine.sessions.items():
            self._origins[record.session] = name  # also when the session has ended
        origin = self._origins.get(session, MEMBERS[0])
        self._add(
            Batch(
                machine.epoch, self.ring[0], self.seq, first, 1, origin, session,
                self._blobs[session] if session else 0, 1_000 * self.seq, bytes([command[0]]),
                outcomes, hashed, self.history.chain, machine.root(), self.history.order, moves,
            )
        )  # fmt: skip
        if isinstance(command, c.Publish) and command.publish_no and outcome in (c.OK, 200, 201):
            self._add(Durable(first))
            self.logs[origin, 1].append(ConfirmRecord(machine.epoch, first, (first,)))

    def _activated(self, command: c.Activate) -> None:
        logs = tuple((member.name, member.incarnation) for member in command.members)
        if self.epoch:
            self._add(ViewSeen(*self.ring, False, logs))
            self._add(Inactive("view ended"))
        self.view(self.ring[0] + 1, *logs)
        self.epoch = command.epoch
        anew = command.cold and self.epoch > 1  # these incarnations stand for their successors
        members = tuple((*incarnation, anew) for incarnation in logs)
        base = self.history
        self._add(
            Active(self.epoch, *self.ring, base.position, base.chain, members, VOTERS, command.cold)
        )

    def _name_queues(self, moves: bytes) -> None:
        wanted = {row[2] for row in MOVE.iter_unpack(moves) if row[0] & 15 != 1} - {0, *self._named}
        if wanted:
            known = {queue.number: queue for queue in self._queues()} | self.rig.gone
            changed = tuple(_queue_row(known[number]) for number in sorted(wanted))
            self._named |= dict.fromkeys(wanted, True)
            self._add(Queues(changed))

    def _queues(self) -> list[Queue]:
        return [q for vhost in self.machine.vhosts.values() for q in all_queues(vhost)]

    def _add(self, record: Record) -> None:
        for records in self.logs.values():
            records.append(record)

    def checkpoint(self) -> None:
        """Add a checkpoint of the queues to every log."""
        self.checkpoint_of(self.machine)

    def checkpoint_of(self, machine: Machine | None) -> None:
        """The checkpoint of this machine; None if nothing was applied yet."""
        if machine is None:
            self._add(Checkpoint(0, 0, 1, b""))
            return
        for record in readers_of(self._queues()):
            self._add(record)
        rows = b"".join(
            CHECKPOINT_ROW.pack(
                queue.number, len(queue.ready) + len(queue.returned), queue.unacked,
                queue.next_seq, queue.ready_sum,
            )
            for queue in sorted(self._queues(), key=lambda queue: queue.number)
        )  # fmt: skip
        self._add(Checkpoint(self.history.position, machine.root(), machine.next_message, rows))

    def end(self) -> None:
        """End cleanly, with a last checkpoint."""
        self.checkpoint()
        self.stop(*INCARNATIONS)

    # Changes of all logs alike.

    def edit(self, change: Callable[[MoveTuple], MoveTuple | None], number: int = 0) -> int:
        """Change the n-th move for which `change` returns another one; return its position."""
        seen = -1
        where = -1
        for incarnation in INCARNATIONS:
            records = self.logs[incarnation]
            seen = -1
            for at, record in enumerate(records):
                if not isinstance(record, Batch):
                    continue
                rows = list(MOVE.iter_unpack(record.moves))
                for i, row in enumerate(rows):
                    changed = change(row)
                    if changed is None or changed == row:
                        continue
                    seen += 1
                    if seen == number:
                        rows[i] = changed
                        where = record.first_position
                        records[at] = record._replace(moves=packed(rows))
        assert where >= 0, "there is no such move"
        return where

    def rewrite(self, change: Callable[[int, list[MoveTuple]], list[MoveTuple]]) -> None:
        """Change the moves of all batches, given the position and the rows of each."""
        for incarnation in INCARNATIONS:
            records = self.logs[incarnation]
            for at, record in enumerate(records):
                if isinstance(record, Batch):
                    rows: list[MoveTuple] = list(MOVE.iter_unpack(record.moves))
                    changed = packed(change(record.first_position, list(rows)))
                    records[at] = record._replace(moves=changed)

    # The check without Spark.

    def breaches(self) -> list[Breach]:
        """Return the breaches in the first member's log."""
        records = self.logs[INCARNATIONS[0]]
        return contract_breaches([records])

    def write_all(self, directory: Path) -> None:
        """Write each log in one segment."""
        self.write(directory, 1 << 30)


def contract_breaches(segments: list[list[Record]]) -> list[Breach]:
    """Check the segments of one incarnation, which begins at position 1, as the whole history."""
    return check_records(segments).breaches


def check_records(
    segments: list[list[Record]], first: int = 1, gaps: Sequence[int] = (), bins: int = 1
) -> ContractResult:
    """Check the segments of one incarnation, whose history begins at this position."""
    read = [read_back(records) for records in segments]
    tables = (
        one
        for records, following in zip(read, [*read[1:], []], strict=True)
        for one in check_segment(records, following, [FileRange(first, 1 << 40)], gaps)
    )
    found = ContractResult()
    found.add(exchange_of_contract(bins).run_here(tables))
    return found


def is_breached(records: list[Record]) -> bool:
    """Whether `check_records` finds something in a log; the cheapest rules run first, as hardly any
    fault needs the others.

    A finding of a step is a breach at the end: `test_each_violation_is_named_where_it_is` shows
    that for each rule.
    """
    read = read_back(records)
    replay = Replay()
    for record in read:
        replay.take(record)
    if replay.breaches:
        return True
    tables: list[Tables] = []
    for one in check_segment(read, [], [FileRange(1, 1 << 40)]):
        if len(one["breaches"]):
            return True
        tables.append(one)
    return bool(len(exchange_of_contract(1).run_here(tables)["firsts"]))


def in_one_batch(records: list[Record]) -> list[Record]:
    """Return a log with what a session did in one item, up to the next command from elsewhere."""
    merged: list[Record] = []
    for record in records:
        last = merged[-1] if merged else None
        if isinstance(record, Durable | ConfirmRecord):
            continue
        if isinstance(record, Batch) and isinstance(last, Batch) and record.session == last.session:
            fields = ("commands", "kinds", "outcomes", "moves")
            both = {name: getattr(last, name) + getattr(record, name) for name in fields}
            merged[-1] = record._replace(
                first_position=last.first_position, blob_no=last.blob_no, **both
            )
        else:
            merged.append(record)
    return merged


def packed(rows: list[MoveTuple]) -> bytes:
    """Return the bytes of moves."""
    return b"".join(MOVE.pack(*row) for row in rows)


def _queue_row(queue: Queue) -> tuple[int, str, str, bool, int]:
    return queue.number, queue.vhost.name, queue.name, queue.durable, order_of(queue)


class _TapedRig(Rig):
    """Passes on the results of each command."""

    def __init__(self, maker: MoveMaker) -> None:
        self._maker = maker
        self.gone: dict[int, Queue] = {}
        super().__init__()

    def apply(self, session: int, command: Command) -> int:
        """Apply a command at all members; their move logs must agree."""
        before = {queue.number: queue for queue in self.queues()}
        outcome = super().apply(session, command)
        self.gone |= before
        self._maker.rig = self
        self._maker.applied(session, command, outcome, self.moves)
        return outcome

    def queues(self) -> Iterator[Queue]:
        """Yield the queues of the first member."""
        for vhost in self.machine.vhosts.values():
            yield from all_queues(vhost)
