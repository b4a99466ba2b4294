"""What the last record of a closed segment says of the whole of it, counted while it is written.

Members cut their segments at different positions, so their ends alone can hardly be compared.
*Marks* can: the chain after each batch that reaches a multiple of a power of two of positions,
which is the same batch at every member.
"""

from __future__ import annotations

import struct

from broker.memberlog.records import Batch, Confirm, End, Record, Snapshot, Start

STEP = 1024  # positions between marks, doubled whenever a segment has more than MARKS_MAX
MARKS_MAX = 256
_MARK = struct.Struct("<Q16s")


class Tally:
    """Counts one segment, record by record."""

    __slots__ = (
        "_batches", "_chain", "_commands", "_confirms", "_first", "_marks", "_position", "_records",
        "_step",
    )  # fmt: skip

    def __init__(self) -> None:
        self._first = self._position = 0
        self._chain = bytes(16)
        self._records = self._batches = self._commands = self._confirms = 0
        self._step = STEP
        self._marks: list[tuple[int, int, bytes]] = []  # position before the batch, after, chain

    def take(self, record: Record) -> None:
        """Count a record of the segment."""
        self._records += 1
        kind = type(record)
        if kind is Batch:
            assert isinstance(record, Batch)
            before = record.first_position - 1
            last = before + record.commands
            if not self._batches:
                self._first = record.first_position
            self._batches += 1
            self._commands += record.commands
            self._position, self._chain = last, record.chain
            if last // self._step > before // self._step:
                self._mark(before, last, record.chain)
        elif kind is Confirm:
            assert isinstance(record, Confirm)
            self._confirms += len(record.positions)
        elif isinstance(record, Start | Snapshot):
            self._position, self._chain = record.position, record.chain

    def end(self) -> End:
        """Return the closing record of what was taken so far."""
        marks = b"".join(_MARK.pack(position, chain) for _, position, chain in self._marks)
        return End(
            self._first, self._position, self._chain, self._records + 1, self._batches,
            self._commands, self._confirms, self._step, marks,
        )  # fmt: skip

    def _mark(self, before: int, last: int, chain: bytes) -> None:
        self._marks.append((before, last, chain))
        while len(self._marks) > MARKS_MAX:
            self._step *= 2
            step = self._step
            self._marks = [mark for mark in self._marks if mark[1] // step > mark[0] // step]


def marks_of(end: End) -> list[tuple[int, bytes]]:
    """Return (position, chain) of the marks of a closing record, ascending but for a wrong log."""
    return [(position, chain) for position, chain in _MARK.iter_unpack(end.marks)]
