"""What a batch shows by itself, in whatever log it is; summaries of consecutive batches, by which
members are compared range by range; and the row of each single batch, where ranges differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from functools import reduce
from operator import attrgetter, xor
from typing import TypeAlias

from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

from tools.verify.format.commands import Command
from tools.verify.format.moves import FORGOTTEN, MOVE, count
from tools.verify.format.reader import FRAME, Entry
from tools.verify.format.records import (
    BEGINNINGS,
    MARK,
    Batch,
    End,
    Record,
    RecordKind,
    Vote,
    decode,
)
from tools.verify.input.log_sequence import digest
from tools.verify.input.rows import SPAN, SUMS, Joint, Row, Sums, signed

BATCHES_KNOWN = 1 << 14  # at most; of half a kilobyte and more each
RANGE_US = 200_000  # longest time that one summary covers: the resolution of the timeline
RowSource = tuple[str, str, int, int]  # file, member, incarnation, segment
_LOW = (1 << 64) - 1
_BATCH = BEGINNINGS[RecordKind.BATCH - 1]
_FIELDS_AT = dict.fromkeys(range(128), 5) | {0xCC: 6, 0xCD: 7, 0xCE: 9}
"""Where the fields behind the number of a BATCH begin, by the first byte of that number."""
_SELDOM = bytes((Command.ACTIVATE, Command.VOTERS, Command.PROMOTE, Command.DEMOTE))
_FIRST_STEP, _MARKS_MAX = 1024, 256  # of END: positions between marks at first; of these at most
Recent: TypeAlias = "deque[KnownBatch]"
_last = attrgetter("last")


class KnownBatch(Joint, gc=False):
    """A batch, and what it shows by itself."""

    origin: str
    time_us: int
    kinds: bytes
    root: int
    digest: int  # xxh3_128 of all its fields but lsn
    moves: int
    moves_hash: int  # xxh3_64, where each single batch is looked at
    seldom: bool  # it has commands that are looked for
    forgets: bool  # it has moves of a cold start
    follows: int = -1  # the digest of a batch of its epoch behind which it is in order

    @staticmethod
    def of(batch: Batch, digest: int, *, every: bool = False) -> KnownBatch:
        """Return what is known of a batch; `every`: each single one is looked at."""
        (
            epoch, ring_seq, seq, first, commands, origin, _, _, time_us, kinds, outcomes,
            blob_hash, chain, root, order, moves,
        ) = batch  # fmt: skip
        seldom = kinds.translate(None, _SELDOM) != kinds
        return KnownBatch(
            (epoch, ring_seq), seq, first, first + commands - 1, outcomes, blob_hash, chain, order,
            origin, time_us, kinds, root, digest, count(moves),
            xxh3_64_intdigest(moves) if every else 0,
            seldom, seldom and FORGOTTEN in moves[:: MOVE.size],
        )  # fmt: skip


def reached(position: int, chain: bytes, place: tuple[tuple[int, int], int]) -> KnownBatch:
    """Return what stands for the batch before the next one where there is none, or it is not known:
    the position and chain that it left (-1, b"": not known), and its primary and place in that.
    """
    return KnownBatch(
        *place, position, position, b"", b"", chain, b"", "", 0, b"", 0, -2, 0, 0, False, False
    )


def joint_of(batch: KnownBatch) -> Joint:
    return Joint(*(getattr(batch, field) for field in Joint.__struct_fields__))


def breaches(before: Joint, batch: Joint) -> Iterator[tuple[str, int, int, str]]:
    """Yield how a batch does not follow the one before it, as far as that is known: the promise,
    first and last position, and words.
    """
    first, reached, hashed = batch.first, before.last, batch.blob_hash
    chain, order = before.chain, before.order
    if reached >= 0 and first > reached + 1:
        yield "G1", reached + 1, first - 1, f"positions {reached + 1} to {first - 1} are missing"
    elif reached >= 0 and first <= reached:
        until = min(reached, batch.last)
        yield "G1", first, until, f"positions {first} to {until} are applied again"
    elif (chain and digest(chain + hashed + batch.outcomes) != batch.chain) or (
        order and digest(order + hashed) != batch.order
    ):
        what = "the chain does not follow from the batch before it, its hash and its outcomes"
        yield "G14", first, -1, what
    place, place_before = (batch.primary[1], batch.seq), (before.primary[1], before.seq)
    if batch.primary[0] == before.primary[0] and place < place_before:
        yield "G1", first, -1, f"ordered at {place} of the ring, after {place_before}"


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
        if not payload.startswith(_BATCH):
            return decode(payload)
        begin = _FIELDS_AT.get(payload[4], 0)
        digest = xxh3_128_intdigest(payload[begin:])
        if begin and (known := self._known.get(digest)) is not None:
            return int.from_bytes(payload[5:begin] or payload[4:5], "big"), known
        lsn, record = decode(payload, expanded=self._every)
        assert isinstance(record, Batch)
        known = KnownBatch.of(record, digest, every=self._every)
        if begin and self._most:  # else its number is longer than need be, and so in no other log
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[digest] = known
        return lsn, known


class BatchRange:
    """Consecutive batches of one epoch, each behind the one before it, which one row sums up."""

    last: Entry  # the record of the last one

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Empty it; the next batch does not continue it."""
        self.batches: list[KnownBatch] = []
        self.limit = self.until_us = -1

    def begin(self, last: int, time_us: int, begins: int) -> None:
        """Start with a batch up to position `last`, at byte `begins`."""
        self.limit = (last // SPAN + 1) * SPAN
        self.until_us, self.begins = time_us + RANGE_US, begins

    def sums(self, source: RowSource, active: bool | None, decided: int, time_us: int) -> Sums:
        """Return the SUMS row; activity and deciding epoch are the same for each of the batches."""
        first, last = self.batches[0], self.batches[-1].last
        summed = reduce(xor, [one.digest for one in self.batches])
        return Sums(
            *source, self.last.lsn, SUMS, first.primary[0], first.first, last, active, decided,
            time_us, last // SPAN, len(self.batches), self.begins, self.last.end,
            signed(summed & _LOW), signed(summed >> 64),
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
        *source, lsn, 6, *batch.primary, None, batch.seq, batch.first, batch.last,
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
    return chain in (None, left.chain) and root in (None, left.root)


def compare_vote(recent: Recent, vote: Vote) -> tuple[Vote, bool | None]:
    """Return a vote, and whether the batch it is about left the state that won.

    Where no state won, the vote gets the state that this incarnation had and voted for.
    """
    if vote.verdict != "undecided":
        return vote, matches_batch(recent, vote.position, vote.chain, vote.root)
    left = _left_at(recent, vote.position)
    chain, root = (b"", 0) if left is None else (left.chain, left.root)
    return vote._replace(chain=chain, root=root), None


def is_inside(recent: Recent, position: int) -> bool:
    """Return whether a position is one within an item: no state was there."""
    at = bisect_left(recent, position, key=_last)
    return at < len(recent) and recent[at].first <= position < recent[at].last


def _left_at(recent: Recent, position: int) -> KnownBatch | None:
    at = bisect_left(recent, position, key=_last)
    return recent[at] if at < len(recent) and recent[at].last == position else None


class SegmentTotals:
    """Totals of a segment, counted from its records to be compared with its END."""

    def __init__(self) -> None:
        self._batches = self._commands = self._moves = 0
        self._first = 0
        self.state = 0, bytes(16)  # position and chain
        self._step = _FIRST_STEP
        self._marks: list[tuple[int, int, bytes]] = []  # position before a batch, after it, chain

    def take(self, batches: list[KnownBatch]) -> None:
        """Count consecutive batches."""
        before, last = batches[0].first - 1, batches[-1].last
        self._first = self._first or before + 1
        self._batches += len(batches)
        self._commands += last - before
        self._moves += sum([one.moves for one in batches])
        self.state = last, batches[-1].chain
        while (mark := (before // self._step + 1) * self._step) <= last:
            one = batches[bisect_left(batches, mark, key=_last)]
            self._marks.append((one.first - 1, one.last, one.chain))
            before = one.last
            self._thin_out()

    def end(self, records: int, confirms: int) -> End:
        """Return the END that a segment of so many records and confirms should have."""
        marks = b"".join(MARK.pack(last, chain) for _, last, chain in self._marks)
        return End(
            self._first, *self.state, records, self._batches, self._commands, self._moves, confirms,
            self._step, marks,
        )  # fmt: skip

    def _thin_out(self) -> None:
        """Double the step while there are too many marks."""
        while len(self._marks) > _MARKS_MAX:
            self._step *= 2
            self._marks = [m for m in self._marks if m[1] // self._step > m[0] // self._step]
