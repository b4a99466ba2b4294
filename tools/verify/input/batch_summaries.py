"""What a batch shows by itself, in whatever log it is; summaries of consecutive batches, by which
members are compared range by range; and the row of each single batch, where ranges differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import TypeAlias

from msgspec import Struct
from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

from tools.verify.format.commands import Command
from tools.verify.format.moves import FORGOTTEN, MOVE, count
from tools.verify.format.reader import FRAME
from tools.verify.format.records import (
    BEGINNINGS,
    MARK,
    Batch,
    ConfirmRecord,
    End,
    Record,
    RecordKind,
    Snapshot,
    Start,
    Vote,
    decode,
)
from tools.verify.input.rows import SPAN, SUMS, Row, Sums, signed

BATCHES_KNOWN = 1 << 17  # at most; of half a kilobyte and more each
RANGE_US = 200_000  # longest time that one summary covers: the resolution of the timeline
RowSource = tuple[str, str, int, int]  # file, member, incarnation, segment
_LOW = (1 << 64) - 1
_BATCH = BEGINNINGS[RecordKind.BATCH - 1]
_FIELDS_AT = {bytes([first]): 5 for first in range(128)} | {b"\xcc": 6, b"\xcd": 7, b"\xce": 9}
"""Where the fields behind the number of a BATCH begin, by the first byte of that number."""
_SELDOM = bytes((Command.ACTIVATE, Command.VOTERS, Command.PROMOTE, Command.DEMOTE))
_FIRST_STEP, _MARKS_MAX = (
    1024,
    256,
)  # of END: positions between marks at first, and how many at most


State: TypeAlias = tuple[int, bytes, int]
"""What a batch left behind: its last position, chain and root."""
Recent: TypeAlias = deque[State]


class KnownBatch(Struct, gc=False):
    """A batch, and what it shows by itself."""

    epoch: int
    ring_seq: int
    seq: int
    first: int
    last: int
    origin: str
    time_us: int
    kinds: bytes
    outcomes: bytes
    blob_hash: bytes
    chain: bytes
    root: int
    order: bytes
    digest: int  # xxh3_128 of all its fields but lsn
    moves: int
    moves_hash: int  # xxh3_64, where each single batch is looked at
    seldom: bool  # it has commands that are looked for
    forgets: bool  # it has moves of a cold start
    chain_before: bytes = b""  # from which chain and order follow
    order_before: bytes = b""

    @staticmethod
    def of(batch: Batch, digest: int, *, every: bool = False) -> KnownBatch:
        """Return what is known of a batch; `every`: each single one is looked at."""
        (
            epoch, ring_seq, seq, first, commands, origin, _, _, time_us, kinds, outcomes,
            blob_hash, chain, root, order, moves,
        ) = batch  # fmt: skip
        seldom = kinds.translate(None, _SELDOM) != kinds
        return KnownBatch(
            epoch, ring_seq, seq, first, first + commands - 1, origin, time_us, kinds, outcomes,
            blob_hash, chain, root, order, digest, count(moves),
            xxh3_64_intdigest(moves) if every else 0,
            seldom, seldom and FORGOTTEN in moves[:: MOVE.size],
        )  # fmt: skip


class BatchDecoder:
    """Decoder of records, which decodes what several logs have alike once: of a batch only the
    number of its record is the member's own.

    `known`: how many batches it holds; `every`: each single batch is looked at.
    """

    def __init__(self, known: int = 0, *, every: bool = False) -> None:
        self._most, self._every = known, every
        self._known: dict[int, KnownBatch] = {}

    def decode(self, payload: bytes) -> tuple[int, Record | KnownBatch]:
        """Return number and record; raises `RecordMalformed`."""
        begin = _FIELDS_AT.get(payload[4:5], 0) if payload.startswith(_BATCH) else 0
        digest = xxh3_128_intdigest(payload[begin:]) if begin else 0
        if begin and (known := self._known.get(digest)) is not None:
            return int.from_bytes(payload[5:begin] or payload[4:5], "big"), known
        lsn, record = decode(payload, expanded=self._every)
        if not isinstance(record, Batch):
            return lsn, record
        if not begin:  # its number is written longer than need be, so its sums are of no other log
            digest = xxh3_128_intdigest(payload)
        known = KnownBatch.of(record, digest, every=self._every)
        if begin and self._most:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[digest] = known
        return lsn, known


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
    offset, read = of.begins, BatchDecoder(every=True).decode
    while offset < of.ends:
        start = offset + FRAME.size
        offset = start + int(FRAME.unpack_from(data, offset)[0])
        lsn, record = read(data[start:offset])
        if isinstance(record, KnownBatch):
            yield batch_row(of[:4], lsn, record, of.flag, of.decided, of.time_us)


def batch_row(
    source: RowSource, lsn: int, batch: KnownBatch, active: bool | None, decided: int, time_us: int
) -> Row:
    """Return the row of a batch, and how it was applied in this log."""
    fields = (
        *source, lsn, 6, batch.epoch, batch.ring_seq, None, batch.seq, batch.first, batch.last,
        batch.chain, signed(batch.root), batch.blob_hash, batch.order, batch.origin, batch.kinds,
        batch.outcomes, None, None, active, None, None, decided, time_us, signed(batch.moves_hash),
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

    def take_batch(self, batch: KnownBatch) -> None:
        """Count a batch."""
        before, last = batch.first - 1, batch.last
        self._first = self._first or batch.first
        self._batches += 1
        self._commands += last - before
        self._moves += batch.moves
        self._position, self._chain = last, batch.chain
        if last // self._step > before // self._step:
            self._marks.append((before, last, batch.chain))
            self._thin_out()

    def take(self, record: Record) -> None:
        """Count another record."""
        if isinstance(record, ConfirmRecord):
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
