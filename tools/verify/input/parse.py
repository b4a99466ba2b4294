"""LOG, G1, G7, G9, G10, G14, G38: in one segment each record follows from those before it.

The parser of a segment, from bytes to rows: pure, it runs inside Spark tasks.

What depends only on the order of one incarnation's records is checked here, while they are read:
chains and positions follow, batches belong to the primary, confirms have their publish.  Where that
depends on the segment before, the SEGMENT row states what was assumed at the beginning, and
`checks.lifetimes` compares it with how that segment ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tools.verify.format.commands import Command
from tools.verify.format.files import identity_of
from tools.verify.format.reader import (
    FRAME,
    NOTHING_BEFORE,
    After,
    Entry,
    Fault,
    LogError,
    read_segment,
)
from tools.verify.format.records import (
    ROLE_CLIENT,
    TAKEN,
    Active,
    Checkpoint,
    Client,
    ConfirmRecord,
    Decided,
    Durable,
    End,
    Header,
    Inactive,
    Lease,
    Readers,
    Record,
    RecordKind,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)
from tools.verify.input.batch_summaries import (
    BatchDecoder,
    BatchRange,
    KnownBatch,
    Recent,
    RowSource,
    SegmentTotals,
    batch_row,
    breaches,
    compare_vote,
    is_inside,
    joint_of,
    matches_batch,
    reached,
)
from tools.verify.input.control_rows import control_rows
from tools.verify.input.log_sequence import (
    accepted,
    confirmable,
    falls,
    foreign_batch,
    foreign_confirm,
    not_applied,
)
from tools.verify.input.rows import (
    ACCEPTED,
    FAULT,
    SEGMENT,
    UNPAIRED,
    UNREADABLE,
    Activated,
    Claim,
    EpochSums,
    RoleChange,
    Row,
    Run,
    SegmentEnds,
    Sums,
    append_run,
    in_json,
)

FAULTS_MAX = 50  # reported of one segment; more add nothing
RECENT = 4096  # batches held for votes, checkpoints and stops that are about one of them
_NO_PLACE = (-1, -1), -1
_ENDS_RANGE = (Start, Snapshot, Active, Inactive, Decided, End)
_STOP, _END, _LEASE = range(3)  # ways to end


def parse_segment(data: bytes, file: str) -> Iterator[Row]:
    return scan_segment(data, file, every_record=True)  # type: ignore[return-value]


def scan_segment(
    data: bytes, file: str, decoder: BatchDecoder | None = None, *, every_record: bool = False
) -> Iterator[Row | Sums]:
    """Yield the rows of one segment, with SUMS over ranges of batches instead of a row for each and
    without CONFIRM: all that is needed where members agree.  `decoder`: of several segments.
    """
    parser = Parser(every_record=every_record, decoder=decoder)
    yield from parser.take_bytes(data, file)
    yield from parser.finish()


class Parser:
    """State of a segment while it is parsed, or of several of one incarnation, one after another:
    then they are to the checks like one segment, the first.
    """

    def __init__(self, *, every_record: bool, decoder: BatchDecoder | None = None) -> None:
        self.ends = SegmentEnds()
        self._decode = (decoder or BatchDecoder(every=every_record)).decode
        self._rows: list[Row | Sums] = []  # not taken by the caller yet
        self._every_record = every_record
        self._source: RowSource = ("", "", -1, -1)
        self._first = self._source  # the source of the first segment
        self._of_client = False
        self._faults_seen = 0
        self._before = 0, 0  # records and confirms before this segment
        self._ended: dict[int, str] = {}  # how, and the words for what follows all the same
        self._lsn = -1
        self._link = b""
        self._after = NOTHING_BEFORE  # as far as it is known, where the next part begins
        self._last = reached(-1, b"", _NO_PLACE)  # the last batch
        self._batch_primary: tuple[int, int] | None = None  # the last batch's, when that was right
        self._state_epoch: int | None = None
        self._states = 0  # how many START and SNAPSHOT records there were
        self._time_us = 0
        self._on_disk = -1  # as DURABLE, START or SNAPSHOT said last; -1: not known
        self._first_ring = 0  # of its first view; what was ordered before is not its own
        self._received = False  # its primary was activated within a state that it received
        self._origins: dict[str, int] = {}  # of the present epoch, see SegmentEnds
        self._at_start = True  # no record has shown yet at which position this segment begins
        self._countable = False  # no damage in this segment so far
        self._totals = SegmentTotals()
        self._unconfirmed: set[int] = set()
        self._recent: Recent = deque(maxlen=RECENT)
        self._range = BatchRange()

    @property
    def incarnation(self) -> tuple[str, int]:
        return self._first[1], self._first[2]

    def take_bytes(self, data: bytes, file: str, *, begins: bool = True) -> Iterator[Row | Sums]:
        """Yield the rows of a segment, or of the next part of one."""
        faults: list[Fault] = []
        if self.ends.torn_tail:
            before = self._source[0] if begins else "the part before"
            what = f"{before} ends in the middle of a record, but {file} follows it"
            self.ends.torn_tail, self.ends.closed = False, True  # that is one fault
            self._take_damage([Fault(what, self._lsn)])
        if begins:
            self._begin(file)
        rows, take = self._rows, self._take
        try:
            for entry in read_segment(
                data, file, faults, self._after, begins=begins, decode=self._decode
            ):
                if faults:
                    self._take_damage(faults)
                take(entry)
                if rows:
                    yield from rows
                    rows.clear()
        except LogError as error:
            yield self._empty_row(-1, UNREADABLE)._replace(text=str(error))
            return
        self._after = After(self._lsn, b"" if faults else self._link)
        self._take_damage(faults)
        yield from rows
        rows.clear()

    def finish(self) -> Iterator[Row]:
        """Yield the rows at the end of what was taken."""
        self._end_range()
        yield from self._rows  # type: ignore[misc]
        self._rows.clear()
        if self._of_client:
            return
        ends = self.ends
        ends.link, ends.on_disk = self._link.hex(), self._on_disk
        ends.last_batch = None if self._at_start else joint_of(self._last)
        row = Row(*self._first, self._lsn, SEGMENT)
        yield row._replace(position=self._last.last, text=in_json(ends), time_us=self._time_us)
        if self._unconfirmed:
            row = self._empty_row(self._lsn, ACCEPTED)
            yield row._replace(positions=sorted(self._unconfirmed))
            self._unconfirmed.clear()

    def _begin(self, file: str) -> None:
        """Begin a segment, which follows what was taken before, if anything was."""
        self._end_range()
        before, self._source = self._source[0], (file, *identity_of(Path(file)))
        if not self.ends.records:
            self._first = self._source
        elif not self.ends.closed:
            what = f"{before} has no closing record, but {file} follows it"
            self._fault("LOG", self._last.last, what)
        self.ends.closed = False
        self._ended = {how: what for how, what in self._ended.items() if how == _LEASE}
        self._countable, self._totals = True, SegmentTotals()
        self._before = self.ends.records, self.ends.confirms

    def _empty_row(self, lsn: int, kind: int) -> Row:
        """Return a row with nothing but its source."""
        return Row(*self._source, lsn, int(kind))

    def _take_damage(self, faults: list[Fault]) -> None:
        """Report damage; the position is not known after it."""
        for fault in faults:
            if fault.torn_tail:
                self.ends.torn_tail = True
                continue
            self._end_range()
            what = f"{fault.what} (in {self._source[0]}, after lsn {fault.lsn})"
            self._fault("LOG", self._last.last, what)
            self._last = reached(-1, b"", (self._last.primary, self._last.seq))
            self.ends.primary = self.ends.active = self._batch_primary = None
            self._at_start = self.ends.whole = self._countable = False
            self._on_disk = -1
        faults.clear()

    def _take(self, entry: Entry) -> None:
        lsn, self._link, _, record, _ = entry
        ends = self.ends
        if not ends.records:
            ends.first_lsn = lsn
        if self._ended:
            self._goes_on(record)
        self._lsn = lsn
        ends.records += 1
        if isinstance(record, KnownBatch):
            self._batch(entry, record)
        elif isinstance(record, Durable):
            (position,) = record
            if position > ends.durable:
                ends.durable = position
            if position:  # 0: another store is to take its place, as a SNAPSHOT says
                if position < self._on_disk:
                    self._fault("G9", position, falls(self._on_disk))
                elif self._on_disk < 0 and ends.whole:
                    ends.entry_durable = position
                self._on_disk = position
            if position > self._last.last:
                self._check_applied("G9", "reports it to be on disk", position)
        elif isinstance(record, ConfirmRecord):
            self._confirm(record)
        else:
            self._control_record(record)

    def _goes_on(self, record: Record) -> None:
        """Take note that a record follows an end."""
        for how, what in sorted(self._ended.items()):
            if how == _LEASE and isinstance(record, KnownBatch | ConfirmRecord | Active):
                self._fault("G38", _named_by(record), what)
            elif how == _END or (how == _STOP and not isinstance(record, End)):
                self._fault("LOG", self._last.last, f"{self._source[0]} goes on behind {what}")
            else:
                continue
            del self._ended[how]

    def _control_record(self, record: Record) -> None:
        """Take a record of a kind that does not grow with traffic."""
        ends, known = self.ends, None
        if isinstance(record, _ENDS_RANGE):
            self._end_range()
        match record:
            case Start() | Snapshot():
                if isinstance(record, Start) and self._lsn > 1:
                    what = f"{self._source[0]} has what a recovery found, and no log begins there"
                    self._fault("LOG", self._last.last, what)
                self._state(record)
            case Active():
                self.ends.primary, self.ends.active = (record.epoch, record.ring_seq), True
                self.ends.deciding = self._batch_primary = None
                self._received = record.base_position == 0
            case Inactive():
                self.ends.active, self.ends.deciding, self._batch_primary = False, None, None
            case Decided(epoch):
                # A primary view decided the batches that follow, which are of views before it, or
                # of its own where they were taken from the log of a member that is in it.
                self.ends.active, self.ends.deciding, self._batch_primary = True, epoch, None
                return
            case Header():
                self._header(record)
                return
            case End():
                ends.closed, self._ended[_END] = True, "its closing record"
                confirms = ends.confirms - self._before[1]
                expected = self._totals.end(self._records_here(), confirms)
                if self._countable and record != expected:
                    what = f"the closing record of {self._source[0]} is not about what is in it"
                    self._fault("LOG", self._last.last, what)
                return
            case Client() | Readers():
                return
            case Vote(position):
                ends.votes += 1
                self._check_applied("G10", "votes about its state there", position)
                if is_inside(self._recent, position):
                    self._fault("G10", position, "votes about the middle of an item")
                record, known = compare_vote(self._recent, record)
            case Lease(what):
                self._ended.pop(_LEASE, None)
                if what != TAKEN:
                    self._ended[_LEASE] = f"goes on after its token of the shared store was {what}"
            case ViewSeen(ring_seq) if not self._source[3]:
                self._first_ring = self._first_ring or ring_seq
            case Checkpoint(position, root):
                known = matches_batch(self._recent, position, None, root)
            case Stop(_, position, chain):
                self._ended[_STOP] = "the record of an orderly stop"
                known = matches_batch(self._recent, position, chain, None)
            case _:
                pass
        row = self._empty_row(self._lsn, 0)._replace(
            decided=self._state_epoch, time_us=self._time_us
        )
        row = row._replace(flag=known)
        self._rows += control_rows(row, record, self._last.last, self.ends.durable)

    def _records_here(self) -> int:
        return self.ends.records - self._before[0]

    def _header(self, record: Header) -> None:
        file = self._source[0]
        if self._records_here() > 1:
            what = f"{file} has another header, {record.member}'s, behind its beginning"
            self._fault("LOG", self._last.last, what)
            return
        self._source = (file, record.member, record.incarnation, record.segment)
        self._of_client = record.role == ROLE_CLIENT
        self._time_us = max(self._time_us, record.wall_us)
        if record.cluster_id or not self.ends.cluster[1]:
            self.ends.cluster = (record.cluster_name, record.cluster_id)
        if self.ends.records == 1:
            self._first, self.ends.prev_link = self._source, record.prev_link.hex()
        elif self._after.link not in (b"", record.prev_link):
            what = f"{file} does not continue the last record of the segment before"
            self._fault("LOG", self._last.last, what)

    def _fault(self, promise: str, position: int, what: str, until: int = -1) -> None:
        self._faults_seen += 1
        if self._faults_seen <= FAULTS_MAX:
            row = self._empty_row(self._lsn, FAULT)
            self._rows.append(
                row._replace(origin=promise, text=what, position=position, last=until)
            )

    def _check_applied(self, promise: str, does: str, position: int) -> None:
        """Report a record about a position that was not applied yet."""
        if self._at_start:
            self.ends.claims.append(Claim(promise, does, position))
        elif 0 <= self._last.last < position:
            self._fault(promise, position, not_applied(does, self._last.last))

    def _state(self, record: Start | Snapshot) -> None:
        self._last = reached(record.position, record.chain, _NO_PLACE)
        self._totals.state = record.position, record.chain
        self._states += 1
        self._at_start = False
        self._recent.clear()
        self._unconfirmed.clear()  # its clients are gone with the state that they knew
        self._state_epoch, self.ends.deciding, self._batch_primary = record.state_epoch, None, None
        self.ends.durable = max(self.ends.durable, record.position)
        self._on_disk = record.position

    def _batch(self, entry: Entry, batch: KnownBatch) -> None:
        before, time_us = self._last, batch.time_us
        if batch.follows != before.digest or batch.primary != self._batch_primary:
            self._compare(before, batch)
        if batch.origin not in self._origins:
            self._origins[batch.origin] = batch.first
        if time_us > self._time_us:
            self._time_us = time_us
        if batch.seldom:
            self._seldom(batch)
        self._last = batch
        self._recent.append(batch)
        if batch.origin == self._source[1] and batch.primary[1] >= self._first_ring:
            offsets = confirmable(batch.kinds, batch.outcomes)
            self._unconfirmed.update([batch.first + i for i in offsets])
            self.ends.publishes += len(offsets)
        if self._every_record:
            how = self.ends.active, self.ends.deciding or batch.primary[0], self._time_us
            self._rows.append(batch_row(self._source, self._lsn, batch, *how))
        summed = self._range
        goes_on = batch.follows == before.digest or (
            batch.first == before.last + 1 and batch.primary[0] == before.primary[0]
        )
        if not (goes_on and batch.last < summed.limit and self._time_us < summed.until_us):
            self._end_range()
            self._state_epoch = self.ends.deciding or batch.primary[0]
            summed.begin(batch.last, self._time_us, entry.end - FRAME.size - entry.size)
        summed.batches.append(batch)
        summed.last = entry

    def _compare(self, before: KnownBatch, batch: KnownBatch) -> None:
        """Compare a batch with the one before it, and with the primary."""
        if self._at_start:
            self._at_start = False
            self.ends.first_batch = joint_of(batch)
        found = list(breaches(before, batch))
        for promise, position, until, what in found:
            self._fault(promise, position, what, until)
        if batch.primary != self._batch_primary:
            self._check_primary(batch.primary, batch.first)
        if batch.primary[0] != before.primary[0]:
            self._origins = self.ends.origins.setdefault(batch.primary[0], {})
        elif before.order and not found:
            batch.follows = before.digest

    def _seldom(self, batch: KnownBatch) -> None:
        """Take the commands of a batch that change who is active, or who votes."""
        of = batch.first, batch.kinds, batch.outcomes
        for i, kind in enumerate(batch.kinds):
            if kind == Command.ACTIVATE:
                before = "" if i else self._last.chain.hex()
                one = Activated(batch.first + i, batch.primary[0], before, batch.forgets)
                if self._received and batch.primary == self.ends.primary and one.position > 1:
                    what = "in a primary without a base, as with a state that includes this command"
                    self._fault("G7", one.position, what)
                self.ends.activations.append(one)
        self.ends.voters_at += accepted(Command.VOTERS, *of)
        for command in (Command.PROMOTE, Command.DEMOTE):
            for at in accepted(command, *of):
                change = RoleChange(at, batch.primary[0], command == Command.PROMOTE, batch.origin)
                self.ends.roles.append(change)

    def _end_range(self) -> None:
        """Close the present range of batches and add its SUMS row."""
        batches = self._range.batches
        if not batches:
            return
        decided, time_us = self._state_epoch or 0, self._time_us
        epoch, first, last = batches[0].primary[0], batches[0].first, batches[-1].last
        self._totals.take(batches)
        self.ends.epochs.setdefault(epoch, EpochSums()).add(EpochSums(first, last))
        append_run(self.ends.runs, Run(first, last, decided, self._states))
        if not self._every_record:
            self._rows.append(self._range.sums(self._source, self.ends.active, decided, time_us))
        self._range.clear()

    def _check_primary(self, of: tuple[int, int], first: int) -> None:
        """Check a batch against the primary that this incarnation is in."""
        if self.ends.deciding is not None and of[0] <= self.ends.deciding:
            pass
        elif self.ends.primary is None:
            taken = self.ends.entry_primary
            if self.ends.whole and (not taken or taken[-1][:2] != of):
                taken.append((*of, first))
        elif of != self.ends.primary:
            self._fault("G7", first, foreign_batch(of, self.ends.primary))
            return
        self._batch_primary = of

    def _confirm(self, record: ConfirmRecord) -> None:
        ends = self.ends
        epoch, mark, positions = record
        if not positions:
            return
        ends.confirms += len(positions)
        if (sums := ends.epochs.get(epoch)) is None:
            sums = ends.epochs[epoch] = EpochSums()
        sums.confirmed, sums.mark = max(sums.confirmed, positions[-1]), max(sums.mark, mark)
        if positions[-1] > mark:
            beyond = next(position for position in positions if position > mark)
            self._fault("G9", beyond, f"confirmed above the durable mark {mark}")
        if what := foreign_confirm(epoch, ends.active, ends.deciding, ends.primary):
            self._fault("G7", positions[0], what)
        elif ends.active is None and ends.whole and epoch not in dict(ends.entry_confirms):
            ends.entry_confirms.append((epoch, positions[0]))
        if self._every_record:
            row = self._empty_row(self._lsn, RecordKind.CONFIRM)._replace(epoch=epoch)
            self._rows.append(row._replace(positions=list(positions)))
        if len(known := self._unconfirmed.intersection(positions)) != len(positions):
            twice = zip((-1, *positions), positions, strict=False)
            unpaired = [p for before, p in twice if p == before or p not in known]
            ends.unpaired += len(unpaired)
            row = self._empty_row(self._lsn, UNPAIRED)._replace(epoch=epoch)
            self._rows.append(row._replace(positions=unpaired))
        self._unconfirmed.difference_update(positions)


def _named_by(record: KnownBatch | ConfirmRecord | Active) -> int:
    """Return the first position that a record is about; -1: none."""
    if isinstance(record, ConfirmRecord):
        return min(record.positions, default=-1)
    return record.first if isinstance(record, KnownBatch) else record.base_position
