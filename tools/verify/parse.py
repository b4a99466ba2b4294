"""From the bytes of one segment to rows; pure, runs inside Spark tasks.

One row per record, in one wide shape, plus one SEGMENT row per file (how it continues its
predecessor) and one FAULT row per damage.  What needs only neighbours within a segment is checked
here, above all that each batch's chains follow from the batch before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple, TypedDict

from broker.machine.commands import OK, PUBLISH, TX_COMMIT, UNROUTABLE
from broker.memberlog.reader import LogError, NotALog, OtherVersion, TornTail, read_segment
from broker.memberlog.records import (
    HASH_BYTES,
    Active,
    Batch,
    Confirm,
    Durable,
    Header,
    Inactive,
    Kind,
    Record,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)

SEGMENT, FAULT, UNREADABLE = 100, 101, 102
FAULTS_MAX = 50  # of one segment; more say nothing new
CONFIRMABLE = (PUBLISH, TX_COMMIT)
_U64 = 1 << 64
_OUTCOMES_OK = frozenset(code.to_bytes(2, "little") for code in (OK, UNROUTABLE))


class Row(NamedTuple):
    """A record, flat; which columns mean what depends on the kind, see `_columns`."""

    file: str
    member: str
    incarnation: int
    segment: int
    lsn: int
    kind: int
    torn: bool  # there is damage between this record and the one before
    epoch: int | None = None
    ring_seq: int | None = None
    ring_rep: str | None = None
    seq: int | None = None
    position: int | None = None  # first position of a batch; the position named by others
    last: int | None = None  # the position that the member stands at after this record
    chain: bytes | None = None
    root: int | None = None  # signed: Spark has no unsigned numbers
    blob_hash: bytes | None = None
    order: bytes | None = None
    origin: str | None = None
    kinds: bytes | None = None
    outcomes: bytes | None = None
    names: list[str] | None = None  # "name/incarnation", with "+" when fresh
    voters: list[str] | None = None
    flag: bool | None = None  # regular, cold
    text: str | None = None  # reason, donor, verdict; JSON of a SEGMENT; what a FAULT is
    mark: int | None = None
    positions: list[int] | None = None  # confirmed; of a batch: what its origin may confirm


SCHEMA = (
    "file string, member string, incarnation bigint, segment int, lsn bigint, kind int, "
    "torn boolean, epoch bigint, ring_seq bigint, ring_rep string, seq bigint, position bigint, "
    "last bigint, chain binary, root bigint, blob_hash binary, `order` binary, origin string, "
    "kinds binary, outcomes binary, names array<string>, voters array<string>, flag boolean, "
    "text string, mark bigint, positions array<bigint>"
)


class FirstBatch(TypedDict):
    """A batch whose predecessor is in the segment before; hashes in hex."""

    position: int
    blob_hash: str
    outcomes: str
    chain: str


class SegmentEnds(TypedDict):
    """What a SEGMENT row says, as JSON: how the segment meets the ones beside it."""

    first_lsn: int
    prev_link: str
    link: str
    cluster: tuple[str, str]
    records: int
    torn_tail: bool
    first_batch: FirstBatch | None
    chain: str


def signed(number: int) -> int:
    """Return a 64-bit number as Spark can hold it."""
    return number - _U64 if number >= _U64 >> 1 else number


def parse_segment(data: bytes, file: str) -> Iterator[Row]:
    """Yield the rows of one segment."""
    faults: list[LogError] = []
    parser = _Parser(file)
    try:
        for lsn, link, _, record in read_segment(data, file, faults):
            yield from parser.faults(faults)
            yield parser.row(lsn, link, record)
            yield from parser.broken()
    except (NotALog, OtherVersion) as error:
        yield Row(
            file, parser.member, parser.incarnation, -1, -1, UNREADABLE, False, text=str(error)
        )
        return
    yield from parser.faults(faults)
    yield parser.summary()


class _Parser:
    """Where a segment stands while it is read."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.member, self.incarnation, self.segment = _from_name(file)
        self.first_lsn = self.lsn = -1
        self.prev_link = self.link = b""
        self.cluster = ("", "")
        self.records = 0
        self.torn_tail = False
        self._torn = False
        self._told = 0
        self._stands = -1
        self._chain = b""  # after the last batch or state; b"" = unknown
        self._order = b""
        self._first: FirstBatch | None = None
        self._broken: list[Row] = []

    def row(self, lsn: int, link: bytes, record: Record) -> Row:
        """Return the row of a record and move on."""
        if isinstance(record, Header):
            self.member, self.incarnation = record.member, record.incarnation
            self.segment, self.prev_link = record.segment, record.prev_link
            self.cluster = (record.cluster_name, record.cluster_id)
        if self.first_lsn < 0:
            self.first_lsn = lsn
        self.lsn, self.link = lsn, link
        self.records += 1
        row = self._columns(lsn, record)
        self._torn = False
        return row

    def faults(self, faults: list[LogError]) -> Iterator[Row]:
        """Yield rows for the faults that were not told yet."""
        while self._told < len(faults):
            fault = faults[self._told]
            self._told += 1
            if isinstance(fault, TornTail):
                self.torn_tail = True
                continue
            self._torn, self._chain, self._order = True, b"", b""
            if self._told <= FAULTS_MAX:
                yield self._fault(fault.lsn, "LOG", fault.what)

    def broken(self) -> Iterator[Row]:
        """Yield what the last record itself showed."""
        yield from self._broken
        self._broken.clear()

    def summary(self) -> Row:
        """Return the row that says how this segment continues others."""
        ends = SegmentEnds(
            first_lsn=self.first_lsn,
            prev_link=self.prev_link.hex(),
            link=self.link.hex(),
            cluster=self.cluster,
            records=self.records,
            torn_tail=self.torn_tail,
            first_batch=self._first,
            chain=self._chain.hex(),
        )
        row = self._bare(self.lsn, SEGMENT)
        return row._replace(position=self._stands, text=json.dumps(ends))

    def _bare(self, lsn: int, kind: int) -> Row:
        who = (self.file, self.member, self.incarnation, self.segment)
        return Row(*who, lsn, int(kind), self._torn)

    def _fault(self, lsn: int, proof: str, what: str) -> Row:
        return self._bare(lsn, FAULT)._replace(origin=proof, text=what, position=self._stands)

    def _columns(self, lsn: int, record: Record) -> Row:
        if isinstance(record, Batch):
            return self._batch(lsn, record)
        row = self._bare(lsn, _KINDS[type(record)])
        match record:
            case Start(epoch, position, chain, root):
                self._state(position, chain)
                return row._replace(
                    epoch=epoch, position=position, last=position, chain=chain, root=signed(root)
                )
            case Snapshot(position, chain, root, donor):
                self._state(position, chain)
                return row._replace(
                    position=position, last=position, chain=chain, root=signed(root), text=donor
                )
            case ViewSeen(ring_seq, ring_rep, regular, members):
                names = [f"{name}/{life}" for name, life in members]
                return row._replace(ring_seq=ring_seq, ring_rep=ring_rep, flag=regular, names=names)
            case Active():
                names = [f"{n}/{life}{'+' * bool(fresh)}" for n, life, fresh in record.members]
                return row._replace(
                    epoch=record.epoch,
                    ring_seq=record.ring_seq,
                    ring_rep=record.ring_rep,
                    position=record.base_position,
                    chain=record.base_chain,
                    names=names,
                    voters=list(record.voters),
                    flag=record.cold,
                )
            case Confirm(epoch, mark, positions):
                return row._replace(epoch=epoch, mark=mark, positions=list(positions))
            case Vote(position, chain, root, verdict):
                return row._replace(position=position, chain=chain, root=signed(root), text=verdict)
            case Stop(reason, position, chain):
                return row._replace(position=position, chain=chain, text=reason)
            case Durable(position):
                return row._replace(position=position)
            case Inactive(reason):
                return row._replace(text=reason)
            case _:
                return row

    def _state(self, position: int, chain: bytes) -> None:
        self._stands, self._chain, self._order = position, chain, b""

    def _batch(self, lsn: int, record: Batch) -> Row:
        last = record.first_position + record.commands - 1
        if record.first_position == self._stands + 1:
            chain = digest(self._chain + record.blob_hash + record.outcomes)
            order = digest(self._order + record.blob_hash)
            if (self._chain and chain != record.chain) or (self._order and order != record.order):
                what = "the chain does not follow from the batch before it, its hash and outcomes"
                fault = self._fault(lsn, "G14", what)
                self._broken.append(fault._replace(position=record.first_position))
        if self._first is None and not self._chain:
            self._first = FirstBatch(
                position=record.first_position,
                blob_hash=record.blob_hash.hex(),
                outcomes=record.outcomes.hex(),
                chain=record.chain.hex(),
            )
        self._stands, self._chain, self._order = last, record.chain, record.order
        own = record.origin == self.member
        return self._bare(lsn, Kind.BATCH)._replace(
            epoch=record.epoch,
            ring_seq=record.ring_seq,
            seq=record.seq,
            position=record.first_position,
            last=last,
            chain=record.chain,
            root=signed(record.root),
            blob_hash=record.blob_hash,
            order=record.order,
            origin=record.origin,
            kinds=record.kinds,
            outcomes=record.outcomes,
            positions=confirmable(record) if own else None,
        )


def digest(data: bytes) -> bytes:
    """Return the chain hash of the log's only hash kind."""
    return blake2b(data, digest_size=HASH_BYTES).digest()


def confirmable(batch: Batch) -> list[int]:
    """Return the positions of a batch whose publishes were accepted."""
    kinds, outcomes, first = batch.kinds, batch.outcomes, batch.first_position
    return [
        first + i
        for i, kind in enumerate(kinds)
        if kind in CONFIRMABLE and outcomes[2 * i : 2 * i + 2] in _OUTCOMES_OK
    ]


def _from_name(file: str) -> tuple[str, int, int]:
    """Guess whose segment it is, for files whose header cannot be read."""
    parts = file.rsplit("/", 1)[-1].rsplit(".", 3)
    if len(parts) == 4 and parts[1].isdigit() and parts[2].isdigit():
        return parts[0], int(parts[1]), int(parts[2])
    return parts[0], -1, -1


_KINDS: dict[type[Record], Kind] = {
    Header: Kind.HEADER,
    Start: Kind.START,
    ViewSeen: Kind.VIEW,
    Active: Kind.ACTIVE,
    Inactive: Kind.INACTIVE,
    Confirm: Kind.CONFIRM,
    Snapshot: Kind.SNAPSHOT,
    Durable: Kind.DURABLE,
    Stop: Kind.STOP,
    Vote: Kind.VOTE,
}
