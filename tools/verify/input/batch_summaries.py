"""Summaries of consecutive batches of a segment, by which members are compared range by range; and
the row of each single batch, where ranges differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from tools.verify.format.moves import count
from tools.verify.format.reader import FRAME
from tools.verify.format.records import (
    MARK,
    Batch,
    ConfirmRecord,
    End,
    Record,
    Snapshot,
    Start,
    Vote,
    decode,
)
from tools.verify.input.rows import SPAN, SUMS, Row, Sums, signed

RANGE_US = 200_000  # longest time that one summary covers: the resolution of the timeline
RowSource = tuple[str, str, int, int]  # file, member, incarnation, segment
_LOW = (1 << 64) - 1
_FIRST_STEP, _MARKS_MAX = (
    1024,
    256,
)  # of END: positions between marks at first, and how many at most


State: TypeAlias = tuple[int, bytes, int]
"""What a batch left behind: its last position, chain and root."""
Recent: TypeAlias = deque[State]


class BatchRange:
    """Running summary of consecutive batches; `batches` is 0 when it is empty."""

    __slots__ = (
        "batches", "begins", "digest", "ends", "epoch", "first", "last", "limit", "lsn", "until_us",
    )  # fmt: skip

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Empty the summary; the next batch does not continue it."""
        self.batches = self.begins = self.digest = self.ends = self.epoch = 0
        self.first = self.last = self.limit = self.lsn = self.until_us = -1

    def begin(self, first: int, last: int, epoch: int, time_us: int, begins: int) -> None:
        """Start with a batch of positions `first` to `last`, at byte `begins`."""
        self.first, self.epoch, self.begins = first, epoch, begins
        self.limit = (last // SPAN + 1) * SPAN
        self.until_us = time_us + RANGE_US

    def sums(self, source: RowSource, active: bool | None, decided: int, time_us: int) -> Sums:
        """Return the SUMS row; activity and deciding epoch are the same for each of the batches."""
        low, high = self.digest & _LOW, self.digest >> 64
        return Sums(
            *source, self.lsn, SUMS, self.epoch, self.first, self.last, active, decided, time_us,
            self.last // SPAN, self.batches, self.begins, self.ends, signed(low), signed(high),
        )  # fmt: skip


def expand_sums(data: bytes, of: Sums) -> Iterator[Row]:
    """Yield a row for each batch of a SUMS row; `data` is the bytes of their segment."""
    offset = of.begins
    while offset < of.ends:
        start = offset + FRAME.size
        offset = start + int(FRAME.unpack_from(data, offset)[0])
        lsn, record = decode(data[start:offset])
        if isinstance(record, Batch):
            yield batch_row(of[:4], lsn, record, of.flag, of.decided, of.time_us)


def batch_row(
    source: RowSource, lsn: int, batch: Batch, active: bool | None, decided: int, time_us: int
) -> Row:
    """Return the row of a batch, and how it was applied in this log."""
    (
        epoch, ring_seq, seq, first, commands, origin, _, _, _, kinds, outcomes, blob_hash, chain,
        root, order, moves,
    ) = batch  # fmt: skip
    fields = (
        *source, lsn, 6, epoch, ring_seq, None, seq, first, first + commands - 1, chain,
        signed(root), blob_hash, order, origin, kinds, outcomes, None, None, active, None, None,
        decided, time_us, signed(xxh3_64_intdigest(moves)),
    )  # fmt: skip
    row: Row = tuple.__new__(Row, fields)
    return row


def matches_batch(
    recent: Recent, position: int, chain: bytes | None, root: int | None
) -> bool | None:
    """Return whether the batch that ends at a position left this chain and root; None: not held."""
    left = _left_at(recent, position)
    if left is None:
        return None
    return chain in (None, left[1]) and root in (None, left[2])


def compare_vote(recent: Recent, vote: Vote) -> tuple[Vote, bool | None]:
    """Return a vote, and whether the batch it is about left the state that won.

    Where no state won, the vote gets the state that this incarnation had and voted for.
    """
    if vote.verdict != "undecided":
        return vote, matches_batch(recent, vote.position, vote.chain, vote.root)
    _, chain, root = _left_at(recent, vote.position) or (-1, b"", 0)
    return vote._replace(chain=chain, root=root), None


def _left_at(recent: Recent, position: int) -> State | None:
    at = bisect_left(recent, position, key=itemgetter(0))
    return recent[at] if at < len(recent) and recent[at][0] == position else None


class SegmentTotals:
    """Totals of a segment, counted from its records to be compared with its END."""

    def __init__(self) -> None:
        self._batches = self._commands = self._moves = self._confirms = 0
        self._first = self._position = 0
        self._chain = bytes(16)
        self._step = _FIRST_STEP
        self._marks: list[tuple[int, int, bytes]] = []  # position before a batch, after it, chain

    def take(self, record: Record) -> None:
        """Count a record."""
        if isinstance(record, Batch):
            first, commands = record[3], record[4]  # by number: it is faster
            before = first - 1
            last = before + commands
            self._first = self._first or first
            self._batches += 1
            self._commands += commands
            self._moves += count(record[15])
            self._position, self._chain = last, record[12]
            if last // self._step > before // self._step:
                self._marks.append((before, last, record.chain))
                self._thin_out()
        elif isinstance(record, ConfirmRecord):
            self._confirms += len(record.positions)
        elif isinstance(record, Start | Snapshot):
            self._position, self._chain = record.position, record.chain

    def end(self, records: int) -> End:
        """Return the END that a segment of so many records should have."""
        marks = b"".join(MARK.pack(last, chain) for _, last, chain in self._marks)
        return End(
            self._first, self._position, self._chain, records, self._batches,
            self._commands, self._moves, self._confirms, self._step, marks,
        )  # fmt: skip

    def _thin_out(self) -> None:
        """Double the step while there are too many marks."""
        while len(self._marks) > _MARKS_MAX:
            self._step *= 2
            self._marks = [m for m in self._marks if m[1] // self._step > m[0] // self._step]
