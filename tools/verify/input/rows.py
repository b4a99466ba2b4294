"""Rows that the parser gives to Spark: one wide schema for every kind of record."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct
from msgspec.json import Decoder, encode

SEGMENT, FAULT, UNREADABLE, UNPAIRED, ACCEPTED, SUMS = range(100, 106)
_U64 = 1 << 64


class Row(NamedTuple):
    """A record, flat.

    Some kinds are no records: SEGMENT, one per file; FAULT, one per broken promise that the segment
    alone shows; UNPAIRED, confirms whose publish is not before them in the segment; ACCEPTED,
    publishes of a segment that are not confirmed in it.
    """

    file: str
    member: str
    incarnation: int
    segment: int
    lsn: int
    kind: int
    epoch: int | None = None
    ring_seq: int | None = None
    ring_rep: str | None = None
    # of an ACTIVE or VIEW: what its segment reported to be on disk before; -1 = nothing
    seq: int | None = None
    position: int | None = None  # first position of a batch; the position named in other records
    last: int | None = None  # the position that the chain and the root below are of
    chain: bytes | None = None
    root: int | None = None  # signed: Spark has no unsigned numbers
    blob_hash: bytes | None = None
    order_hash: bytes | None = None
    origin: str | None = None  # of a FAULT: the promise
    kinds: bytes | None = None
    outcomes: bytes | None = None
    names: list[str] | None = None  # "name/incarnation", with "+" when fresh
    voters: list[str] | None = None
    # regular, cold, durable; of a batch: applied while active, None = not known; of a VOTE, STOP or
    # CHECKPOINT: True = its state is the one that the batches of this segment led to
    flag: bool | None = None
    text: str | None = None  # reason, donor, verdict; JSON of a SEGMENT; what a FAULT is
    positions: list[int] | None = None
    decided: int | None = None  # epoch of the primary in which it was applied, or of the state
    time_us: int | None = (
        None  # since 1970, by the clocks of the origins; never falls in an incarnation
    )
    moves_hash: int | None = None  # xxh3_64 of what a batch did to messages, signed

    @property
    def reached(self) -> int:
        """Return the position; -1: there is none, or it is not known."""
        return -1 if self.position is None else self.position


SCHEMA = (
    "file string, member string, incarnation bigint, segment int, lsn bigint, kind int, "
    "epoch bigint, ring_seq bigint, ring_rep string, seq bigint, position bigint, "
    "last bigint, chain binary, root bigint, blob_hash binary, order_hash binary, origin string, "
    "kinds binary, outcomes binary, names array<string>, voters array<string>, flag boolean, "
    "text string, positions array<bigint>, decided bigint, "
    "time_us bigint, moves_hash bigint"
)


class Sums(NamedTuple):
    """Summary of consecutive batches of a segment.

    It sums up all that is compared at each position, so that members are compared range by range,
    and batch by batch only where they differ: two members that applied the same have the same sums
    over all their ranges of the same `span`.
    """

    file: str
    member: str
    incarnation: int
    segment: int
    lsn: int  # of the last batch
    kind: int
    epoch: int
    position: int  # of the first command
    last: int  # of the last command
    flag: bool | None  # as of each of the batches
    decided: int  # as of each of the batches
    time_us: int
    span: int  # last // SPAN of each of the batches
    batches: int
    begins: int  # where the first of them begins in the (uncompressed) segment, in bytes
    ends: int  # where the last one ends
    low: int  # exclusive or of the xxh3_128 of all fields of each batch, halves, signed
    high: int


SPAN = 4096  # positions
SUMS_SCHEMA = "span bigint, batches bigint, begins bigint, ends bigint, low bigint, high bigint"
SCAN_SCHEMA = f"{SCHEMA}, {SUMS_SCHEMA}"


class Joint(Struct):
    """The first batch of a segment, or the last one, as far as the batch beside it, in another
    segment, depends on it; what stands for the last one where there is none is `reached`.
    """

    primary: tuple[int, int]  # epoch, ring
    seq: int
    first: int
    last: int
    outcomes: bytes
    blob_hash: bytes
    chain: bytes
    order: bytes


class EpochSums(Struct):
    """What a segment holds of one epoch; -1 = nothing."""

    first: int = -1
    last: int = -1
    confirmed: int = -1
    mark: int = -1  # the highest durable mark of its confirms

    def add(self, more: EpochSums) -> None:
        """Add what another part of the log holds of it."""
        self.first = min((one for one in (self.first, more.first) if one >= 0), default=-1)
        self.last, self.mark = max(self.last, more.last), max(self.mark, more.mark)
        self.confirmed = max(self.confirmed, more.confirmed)


class Run(NamedTuple):
    """Consecutive positions, and the epoch that decided them.

    They are after the state of this number in the file.
    """

    first: int
    last: int
    decided: int
    state: int


class Activated(NamedTuple):
    """An ACTIVATE command: where, of which epoch, and behind what; as it is listed in JSON."""

    position: int
    epoch: int
    chain_before: str  # in hex; "" = not known, or it is not the first command of its item
    forgot: bool  # with moves of a cold start


class Claim(NamedTuple):
    """A statement about a position, which must have been applied: what it does, in words."""

    promise: str
    does: str
    position: int


class RoleChange(NamedTuple):
    """A member took the role of the active one, or gave it up; as it is listed in JSON."""

    position: int
    epoch: int  # in which it was ordered
    took: bool
    member: str


class SegmentEnds(Struct):
    """Content of a SEGMENT row, as JSON: totals, and its joints with the segments beside it."""

    cluster: tuple[str, str] = "", ""
    records: int = 0
    first_lsn: int = -1
    prev_link: str = ""
    link: str = ""
    torn_tail: bool = False
    closed: bool = False  # it has its END
    whole: bool = True  # no damage in it
    behind_dropped: bool = False  # what is missing before it was dropped, as its member noted
    # What was assumed at its beginning, to be compared with the segment before:
    first_batch: Joint | None = None  # None: something in this segment came before it
    entry_primary: list[tuple[int, int, int]] = []  # (epoch, ring, position) before an ACTIVE
    entry_confirms: list[tuple[int, int]] = []  # (epoch, position) before an ACTIVE or INACTIVE
    claims: list[Claim] = []  # about positions that were to be applied before it
    entry_durable: int = -1  # the first DURABLE that is not 0, before a START or SNAPSHOT
    # What it carries over to the next one; None, -1: as it was at the beginning.
    last_batch: Joint | None = None
    on_disk: int = -1
    primary: tuple[int, int] | None = None
    active: bool | None = None
    deciding: int | None = None  # the epoch that decides what comes next; None: none
    # Totals:
    epochs: dict[int, EpochSums] = {}
    runs: list[Run] = []
    durable: int = -1
    confirms: int = 0
    publishes: int = 0
    votes: int = 0
    voters_at: list[int] = []  # positions of accepted commands that changed the voters
    activations: list[Activated] = []
    roles: list[RoleChange] = []
    origins: dict[int, dict[str, int]] = {}  # by epoch, who submitted, with its first position
    unpaired: int = 0


_ENDS = Decoder(SegmentEnds)


def in_json(ends: SegmentEnds) -> str:
    return encode(ends).decode()


def ends_of(row: Row) -> SegmentEnds:
    return _ENDS.decode(row.text or "{}")


def append_run(runs: list[Run], more: Run) -> None:
    """Add positions: they extend the last run or begin a new one."""
    if runs and (runs[-1].last + 1, *runs[-1][2:]) == (more.first, *more[2:]):
        runs[-1] = runs[-1]._replace(last=more.last)
    else:
        runs.append(more)


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as a signed one, as Spark holds it."""
    return number - _U64 if number >= _U64 >> 1 else number
