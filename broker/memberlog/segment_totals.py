"""Counts the totals of a segment while it is written, for its closing record.

Members cut their segments at different positions, so their ends alone can hardly be compared.
*Marks* can: the chain after each batch that reaches a multiple of a power of two of positions,
which is the same batch at every member.
"""

from __future__ import annotations

import struct

from broker.machine.move_log import FLAG, MOVE, PASSED
from broker.memberlog.records import Batch, ConfirmRecord, End, Record, Snapshot, Start

STEP = 1024  # positions between marks, doubled whenever a segment has more than MARKS_MAX
MARKS_MAX = 256
_MARK = struct.Struct("<Q16s")


class SegmentTotals:
    """Counts one segment, record by record; every record that a member writes passes through it."""

    def __init__(self) -> None:
        self._first = 0
        self._latest: Batch | None = None  # None: see `_reached`
        self._reached = 0, bytes(16)  # position and chain of the last Start or Snapshot
        self._records = self._batches = self._commands = self._moves = self._confirms = 0
        self._step = self._next = STEP
        self._marks: list[tuple[int, int, bytes]] = []  # position before the batch, after, chain

    def take(self, record: Record) -> None:
        """Count a record of the segment."""
        self._records += 1
        if isinstance(record, Batch):
            first, commands = record[3], record[4]  # by number: faster than by name
            if not self._batches:
                self._first = first
            self._batches += 1
            self._commands += commands
            self._moves += moves_in(record[15])
            self._latest = record
            if first + commands > self._next:
                self._mark(record)
        elif isinstance(record, ConfirmRecord):
            self._confirms += len(record.positions)
        elif isinstance(record, Start | Snapshot):
            self._latest, self._reached = None, (record.position, record.chain)
            self._next = (record.position // self._step + 1) * self._step

    def end(self) -> End:
        """Return the closing record of the records counted so far."""
        position, chain = self._reached
        if self._latest is not None:
            position = self._latest.first_position + self._latest.commands - 1
            chain = self._latest.chain
        marks = b"".join(_MARK.pack(last, at) for _, last, at in self._marks)
        return End(
            self._first, position, chain, self._records + 1, self._batches, self._commands,
            self._moves, self._confirms, self._step, marks,
        )  # fmt: skip

    def _mark(self, batch: Batch) -> None:
        before = batch.first_position - 1
        last = before + batch.commands
        if last // self._step > before // self._step:  # otherwise it only comes after a gap
            self._marks.append((before, last, batch.chain))
        while len(self._marks) > MARKS_MAX:
            self._step *= 2
            step = self._step
            self._marks = [mark for mark in self._marks if mark[1] // step > mark[0] // step]
        self._next = (last // self._step + 1) * self._step


def marks_of(end: End) -> list[tuple[int, bytes]]:
    """Return (position, chain) of a closing record's marks, ascending except in a wrong log."""
    return [(position, chain) for position, chain in _MARK.iter_unpack(end.marks)]


def moves_in(rows: bytes) -> int:
    """Return how many moves the rows stand for: PASSED is two."""
    whats = rows[:: MOVE.size]
    return len(whats) + whats.count(PASSED) + whats.count(PASSED | FLAG)
