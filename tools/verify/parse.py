"""From the bytes of one segment to rows; pure, runs inside Spark tasks.

What needs only the records of one life in their order is checked here, once, while they are read:
chains follow, positions follow, batches belong to the primary, confirms have their publish.  Where
that depends on the segment before, the SEGMENT row says what was taken for granted, and `control`
compares it with how that segment ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from broker.machine.commands import OK, PUBLISH, TX_COMMIT, UNROUTABLE
from broker.memberlog.closing import Tally
from broker.memberlog.coding import pack_positions
from broker.memberlog.reader import (
    After,
    LogError,
    NotALog,
    OtherVersion,
    TornTail,
    read_segment,
)
from broker.memberlog.records import (
    HASH_BYTES,
    Active,
    Batch,
    Confirm,
    Decided,
    Durable,
    End,
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
from tools.verify.rows import (
    ACCEPTED,
    FAULT,
    SEGMENT,
    UNPAIRED,
    UNREADABLE,
    EpochSums,
    FirstBatch,
    Row,
    SegmentEnds,
    run_on,
    signed,
)

FAULTS_MAX = 50  # of one segment; more say nothing new
CONFIRMABLE = (PUBLISH, TX_COMMIT)
_OUTCOMES_OK = frozenset(code.to_bytes(2, "little") for code in (OK, UNROUTABLE))


class Stretch(NamedTuple):
    """What lies before a part of a segment that is read for itself."""

    member: str
    incarnation: int
    segment: int
    after: After


def parse_segment(data: bytes, file: str, behind: Stretch | None = None) -> Iterator[Row]:
    """Yield the rows of one segment, or of what lies `behind` a place in it."""
    faults: list[LogError] = []
    parser = _Parser(file, behind)
    try:
        after = None if behind is None else behind.after
        for lsn, link, _, record, _ in read_segment(data, file, faults, after):
            if faults:
                parser.damaged(faults)
            yield from parser.take(lsn, link, record)
            if parser.faults:
                yield from parser.take_faults()
    except (NotALog, OtherVersion) as error:
        yield parser.bare(-1, UNREADABLE)._replace(text=str(error))
        return
    parser.damaged(faults)
    yield from parser.take_faults()
    yield from parser.summary()


class _Parser:
    """Where a segment stands while it is read."""

    def __init__(self, file: str, behind: Stretch | None) -> None:
        self.faults: list[Row] = []
        self._file = file
        self._who = (file, *(_from_name(file) if behind is None else behind[:3]))
        self._from_header = behind is None
        self._faults_told = 0
        self._lsn = -1
        self._link = b""
        self._stands = -1  # the position reached; -1 = not known
        self._chain = b""  # of that position; b"" = not known
        self._order = b""
        self._primary: tuple[int, int] | None = None  # epoch, ring
        self._active: bool | None = None
        self._deciding: int | None = None  # after a DECIDED: its epoch
        self._state_epoch: int | None = None
        self._time_us = 0
        self._entering = True  # nothing said yet at which position this segment begins
        self._whole = True  # no damage so far
        self._tally = Tally()
        self._unconfirmed: set[int] = set()
        self._sums_epoch = -1
        self._epoch_sums = EpochSums(first=-1, last=-1, confirmed=-1)
        self._ends = SegmentEnds(
            cluster=("", ""), records=0, first_lsn=-1, prev_link="", link="",
            torn_tail=False, closed=False, first_batch=None, entry_primary=[], entry_confirm=None,
            chain="", primary=None, active=None, deciding=None,
            epochs={}, runs=[], durable=-1, confirms=0, publishes=0, unpaired=0, unjudged=0,
        )  # fmt: skip

    def bare(self, lsn: int, kind: int) -> Row:
        """Return a row that says only where it is from."""
        return Row(*self._who, lsn, int(kind))

    def damaged(self, faults: list[LogError]) -> None:
        """Tell of damage; what was known of the position is not known behind it."""
        for fault in faults:
            if isinstance(fault, TornTail):
                self._ends["torn_tail"] = True
                continue
            self._fault(
                "LOG", self._stands, f"{fault.what} (in {self._file}, after lsn {fault.lsn})"
            )
            self._stands, self._chain, self._order = -1, b"", b""
            self._primary = self._active = None
            self._entering = self._whole = False
        faults.clear()

    def take_faults(self) -> list[Row]:
        """Return what was found since the last call."""
        found, self.faults = self.faults, []
        return found

    def take(self, lsn: int, link: bytes, record: Record) -> Iterator[Row]:
        """Yield the rows of a record and move on."""
        ends = self._ends
        if ends["records"] == 0:
            ends["first_lsn"] = lsn
        ends["records"] += 1
        self._lsn, self._link = lsn, link
        expected = self._tally.end() if isinstance(record, End) else None
        self._tally.take(record)
        match record:
            case Batch():
                yield self._batch(lsn, record)
            case Confirm():
                yield from self._confirm(lsn, record)
            case Durable():
                self._not_beyond("G9", "says that it is on disk", record.position)
                ends["durable"] = max(ends["durable"], record.position)
            case Start() | Snapshot():
                self._state(record)
                yield self._control(lsn, record)
            case Active():
                self._primary, self._active = (record.epoch, record.ring_seq), True
                self._deciding = None
                yield self._control(lsn, record)
            case Inactive():
                self._active, self._deciding = False, None
                yield self._control(lsn, record)
            case Decided(epoch):
                # A primary view decided the batches that follow, which are of views before it.
                self._active, self._deciding = True, epoch
            case Header():
                self._who = (self._file, record.member, record.incarnation, record.segment)
                ends["prev_link"] = record.prev_link.hex()
                ends["cluster"] = (record.cluster_name, record.cluster_id)
                self._time_us = record.wall_us
            case End():
                ends["closed"] = True
                if self._whole and self._from_header and record != expected:
                    what = f"the closing record of {self._file} is not about what is in it"
                    self._fault("LOG", self._stands, what)
            case Vote():
                self._not_beyond("G10", "votes about its state there", record.position)
                yield self._control(lsn, record)
            case Stop():
                if self._stands >= 0 and record.position != self._stands:
                    what = f"stops there, but stands at position {self._stands}"
                    self._fault("G14", record.position, what)
                yield self._control(lsn, record)
            case _:
                yield self._control(lsn, record)

    def summary(self) -> Iterator[Row]:
        """Yield the rows at the end of a segment."""
        ends = self._ends
        ends["link"], ends["chain"] = self._link.hex(), self._chain.hex()
        ends["primary"], ends["active"] = self._primary, self._active
        ends["deciding"] = self._deciding
        row = self.bare(self._lsn, SEGMENT)
        yield row._replace(position=self._stands, text=json.dumps(ends), time_us=self._time_us)
        if self._unconfirmed:
            yield self.bare(self._lsn, ACCEPTED)._replace(positions=sorted(self._unconfirmed))

    def _fault(self, promise: str, position: int, what: str, until: int = -1) -> None:
        self._faults_told += 1
        if self._faults_told <= FAULTS_MAX:
            row = self.bare(self._lsn, FAULT)
            self.faults.append(
                row._replace(origin=promise, text=what, position=position, last=until)
            )

    def _not_beyond(self, promise: str, does: str, position: int) -> None:
        """A life can speak only of what it has applied."""
        if 0 <= self._stands < position:
            what = f"{does}, but applied only up to position {self._stands}"
            self._fault(promise, position, what)

    def _state(self, record: Start | Snapshot) -> None:
        self._stands, self._chain, self._order = record.position, record.chain, b""
        self._entering = False
        self._state_epoch, self._deciding = record.state_epoch, None
        self._ends["durable"] = max(self._ends["durable"], record.position)
        if isinstance(record, Start):
            self._active = False

    def _batch(self, lsn: int, record: Batch) -> Row:
        first = record.first_position
        last = first + record.commands - 1
        if self._entering:
            self._entering = False
            self._ends["first_batch"] = FirstBatch(
                position=first,
                blob_hash=record.blob_hash.hex(),
                outcomes=record.outcomes.hex(),
                chain=record.chain.hex(),
            )
        elif self._stands >= 0:
            self._follows(record, first, last)
        self._belongs(record, first)
        self._time_us = max(self._time_us, record.time_us)
        self._stands, self._chain, self._order = last, record.chain, record.order
        self._state_epoch = self._deciding or record.epoch
        run_on(self._ends["runs"], first, last, self._state_epoch)
        sums = self._sums(record.epoch)
        sums["first"] = first if sums["first"] < 0 else min(first, sums["first"])
        sums["last"] = max(last, sums["last"])
        if record.origin == self._who[1]:
            own = confirmable(record)
            self._unconfirmed.update(own)
            self._ends["publishes"] += len(own)
        return Row(
            *self._who, lsn, int(Kind.BATCH), record.epoch, record.ring_seq, None, record.seq,
            first, last, record.chain, signed(record.root), record.blob_hash, record.order,
            record.origin, record.kinds, record.outcomes, None, None, self._active, None, None,
            self._state_epoch, self._time_us,
        )  # fmt: skip

    def _follows(self, record: Batch, first: int, last: int) -> None:
        """Check a batch against the position and the chains before it."""
        sequence = out_of_sequence(self._stands, first, last)
        if sequence is not None:
            where, until, what = sequence
            self._fault("G1", where, what, until)
            return
        chain = digest(self._chain + record.blob_hash + record.outcomes)
        order = digest(self._order + record.blob_hash)
        if (self._chain and chain != record.chain) or (self._order and order != record.order):
            what = "the chain does not follow from the batch before it, its hash and its outcomes"
            self._fault("G14", first, what)

    def _belongs(self, record: Batch, first: int) -> None:
        """Check a batch against the primary that this life is in."""
        of = (record.epoch, record.ring_seq)
        if self._deciding is not None and record.epoch < self._deciding:
            return
        if self._primary is None:
            taken = self._ends["entry_primary"]
            if self._whole and (not taken or taken[-1][:2] != of):
                taken.append((*of, first))
        elif of != self._primary:
            self._fault("G7", first, foreign_batch(of, self._primary))

    def _confirm(self, lsn: int, record: Confirm) -> Iterator[Row]:
        ends = self._ends
        positions = record.positions
        if not positions:
            return
        ends["confirms"] += len(positions)
        mark = record.durable_mark
        if record.transient is None:
            ends["unjudged"] += sum(position > mark for position in positions)
            waited = [position for position in positions if position <= mark]
        else:
            waited = sorted(set(positions) - set(record.transient))
        if waited:
            sums = self._sums(record.epoch)
            sums["confirmed"] = max(waited[-1], sums["confirmed"])
            if waited[-1] > mark:
                beyond = next(position for position in waited if position > mark)
                self._fault("G9", beyond, f"confirmed above the durable mark {mark}")
        if self._active is False:
            self._fault("G7", positions[0], "confirmed outside of the primary")
        elif self._active and self._deciding is None and self._primary is not None:
            if record.epoch != self._primary[0]:
                what = f"confirmed in epoch {record.epoch}, while in epoch {self._primary[0]}"
                self._fault("G7", positions[0], what)
        elif self._active is None and self._whole and ends["entry_confirm"] is None:
            ends["entry_confirm"] = positions[0]
        unpaired = [p for p in positions if p not in self._unconfirmed]
        self._unconfirmed.difference_update(positions)
        row = self.bare(lsn, Kind.CONFIRM)._replace(epoch=record.epoch)
        yield row._replace(kinds=pack_positions(positions))
        if unpaired:
            ends["unpaired"] += len(unpaired)
            yield row._replace(kind=UNPAIRED, positions=unpaired)

    def _sums(self, epoch: int) -> EpochSums:
        if epoch != self._sums_epoch:
            empty = EpochSums(first=-1, last=-1, confirmed=-1)
            self._epoch_sums = self._ends["epochs"].setdefault(str(epoch), empty)
            self._sums_epoch = epoch
        return self._epoch_sums

    def _control(self, lsn: int, record: Record) -> Row:
        row = self.bare(lsn, _KINDS[type(record)])
        row = row._replace(decided=self._state_epoch, time_us=self._time_us)
        match record:
            case Start(epoch, position, chain, root):
                row = row._replace(epoch=epoch, position=position, last=position, chain=chain)
                return row._replace(root=signed(root))
            case Snapshot(epoch, position, chain, root, donor):
                row = row._replace(
                    epoch=epoch, position=position, last=position, chain=chain, text=donor
                )
                return row._replace(root=signed(root))
            case Vote(position, chain, root, verdict):
                row = row._replace(position=position, text=verdict)
                if verdict == "undecided":
                    return row
                return row._replace(last=position, chain=chain, root=signed(root))
            case Stop(reason, position, chain):
                return row._replace(position=position, last=position, chain=chain, text=reason)
            case ViewSeen(ring_seq, ring_rep, regular, members):
                names = [f"{name}/{life}" for name, life in members]
                row = row._replace(ring_seq=ring_seq, ring_rep=ring_rep, flag=regular)
                return row._replace(names=names, position=self._stands)
            case Active():
                return row._replace(
                    epoch=record.epoch,
                    ring_seq=record.ring_seq,
                    ring_rep=record.ring_rep,
                    position=record.base_position,
                    chain=record.base_chain,
                    names=[f"{n}/{life}{'+' * bool(new)}" for n, life, new in record.members],
                    voters=list(record.voters),
                    flag=record.cold,
                )
            case _:
                return row


def digest(data: bytes) -> bytes:
    """Return the chain hash of the log's only hash kind."""
    return blake2b(data, digest_size=HASH_BYTES).digest()


def out_of_sequence(stands: int, first: int, last: int) -> tuple[int, int, str] | None:
    """Return from where to where and how a batch does not begin one past where the life stands."""
    if first > stands + 1:
        return stands + 1, first - 1, f"positions {stands + 1} to {first - 1} are missing"
    if first <= stands:
        until = min(stands, last)
        return first, until, f"positions {first} to {until} are applied again"
    return None


def foreign_batch(of: tuple[int, int], primary: tuple[int, int] | None) -> str:
    """Say that a batch is of another primary than the one that the life is in."""
    here = "no primary" if primary is None else f"epoch {primary[0]}, ring {primary[1]}"
    return f"a batch of epoch {of[0]}, ring {of[1]} is applied in {here}"


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
    Start: Kind.START,
    ViewSeen: Kind.VIEW,
    Active: Kind.ACTIVE,
    Inactive: Kind.INACTIVE,
    Snapshot: Kind.SNAPSHOT,
    Stop: Kind.STOP,
    Vote: Kind.VOTE,
}
