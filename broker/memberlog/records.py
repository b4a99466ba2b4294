"""The records of a member log, and their bytes both ways.  Pure; the format is docs/MEMBERLOG.md.

A payload is a msgpack list: kind, lsn, then the fields of the record in the order they stand here.
On disk a payload is preceded by its length, its CRC and a link, a hash over the previous link and
the payload, so that a record cannot be altered, dropped or moved without breaking the chain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple, TypeAlias
from zlib import crc32

import msgpack

MAGIC = b"QPIDLOG1"
VERSION = 1
HASH_ALG = "blake2b-16"
SUFFIX = ".qml"
NO_LINK = bytes(8)
FRAME = struct.Struct("<II8s")  # length, crc32 of the payload, link
RECORD_BYTES_MAX = 16 << 20
HASH_BYTES = 16
MARK_BYTES = 8 + HASH_BYTES


class Kind(IntEnum):
    """The closed list of what a member log can say."""

    HEADER = 1
    START = 2
    VIEW = 3
    ACTIVE = 4
    INACTIVE = 5
    BATCH = 6
    CONFIRM = 7
    SNAPSHOT = 8
    DURABLE = 9
    STOP = 10
    VOTE = 11
    DECIDED = 12
    END = 13


class Header(NamedTuple):
    """First record of each segment: whose log this is and how it continues."""

    version: int
    cluster_name: str
    cluster_id: str  # "" while the member does not know its cluster
    member: str
    incarnation: int
    segment: int
    prev_link: bytes  # the last link of the segment before
    hash_alg: str
    wall_us: int


class Start(NamedTuple):
    """What recovery found in the store; the log goes on from this position."""

    state_epoch: int
    position: int
    chain: bytes
    root: int


class ViewSeen(NamedTuple):
    """A configuration of the ring was delivered."""

    ring_seq: int
    ring_rep: str
    regular: bool
    members: tuple[tuple[str, int], ...]  # name, incarnation


class Active(NamedTuple):
    """From here this member is in the primary view of `epoch`."""

    epoch: int
    ring_seq: int
    ring_rep: str
    base_position: int  # the epoch's first command is at base_position + 1
    base_chain: bytes
    members: tuple[tuple[str, int, bool], ...]  # name, incarnation, fresh
    voters: tuple[str, ...]
    cold: bool


class Inactive(NamedTuple):
    """From here this member is in no primary view."""

    reason: str


class Decided(NamedTuple):
    """The batches up to the next ACTIVE were undecided as their view ended; `epoch` decided."""

    epoch: int


class Batch(NamedTuple):
    """One ordered item was applied: `commands` of them at `first_position` and after."""

    epoch: int
    ring_seq: int
    seq: int
    first_position: int
    commands: int
    origin: str
    session: int
    blob_no: int
    time_us: int
    kinds: bytes  # one u8 a command
    outcomes: bytes  # one u16 little endian a command
    blob_hash: bytes
    chain: bytes  # after the batch
    root: int  # of the state after the batch
    order: bytes


class Confirm(NamedTuple):
    """Publishes of this member's own clients were confirmed to them, named by position."""

    epoch: int
    durable_mark: int
    positions: tuple[int, ...]
    transient: tuple[int, ...] | None = None  # those that had not to wait; None = not recorded


class Snapshot(NamedTuple):
    """The state was replaced by a transferred one: a legal gap up to `position`."""

    state_epoch: int
    position: int
    chain: bytes
    root: int
    donor: str


class Durable(NamedTuple):
    """This member's own store holds everything up to `position`, fsynced."""

    position: int


class Stop(NamedTuple):
    """An orderly end of this log; without it, the tail is unknown."""

    reason: str
    position: int
    chain: bytes


class Vote(NamedTuple):
    """This member's view of a digest vote."""

    position: int
    chain: bytes
    root: int
    verdict: str  # "agreed", "divergent" or "undecided"


class End(NamedTuple):
    """Last record of a closed segment: what is in it, to be read without reading it."""

    first_position: int  # of its first batch, 0 = none
    position: int  # where the life stands, 0 = the segment does not say
    chain: bytes  # there
    records: int  # the header and this one included
    batches: int
    commands: int
    confirms: int
    step: int  # positions between marks
    marks: bytes  # u64le position and 16 bytes of chain, each


Record: TypeAlias = (
    Header
    | Start
    | ViewSeen
    | Active
    | Inactive
    | Decided
    | Batch
    | Confirm
    | Snapshot
    | Durable
    | Stop
    | Vote
    | End
)

_KIND_OF: dict[type[Record], Kind] = {
    Header: Kind.HEADER,
    Start: Kind.START,
    ViewSeen: Kind.VIEW,
    Active: Kind.ACTIVE,
    Inactive: Kind.INACTIVE,
    Decided: Kind.DECIDED,
    Batch: Kind.BATCH,
    Confirm: Kind.CONFIRM,
    Snapshot: Kind.SNAPSHOT,
    Durable: Kind.DURABLE,
    Stop: Kind.STOP,
    Vote: Kind.VOTE,
    End: Kind.END,
}


class RecordMalformed(ValueError):
    """A payload whose CRC holds but that is not a record of this version."""


def encode(lsn: int, record: Record) -> bytes:
    """Return the payload of a record."""
    kind = _KIND_OF[type(record)]
    if isinstance(record, Confirm):
        # Confirms that waited and others leave in one turn, in no order of positions.
        packed = pack_positions(sorted(record.positions))
        free = None if record.transient is None else pack_positions(sorted(record.transient))
        return bytes(msgpack.packb((kind, lsn, record.epoch, record.durable_mark, packed, free)))
    return bytes(msgpack.packb((kind, lsn, *record)))


def decode(payload: bytes | memoryview) -> tuple[int, Record]:
    """Return (lsn, record); `RecordMalformed` for anything else."""
    try:
        kind, lsn, *fields = msgpack.unpackb(payload, use_list=False)
        build = _BUILD[kind]
        record = build(fields)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise RecordMalformed(f"not a record: {error}") from error
    if type(lsn) is not int or lsn < 0:
        raise RecordMalformed(f"lsn {lsn!r} is not a number")
    return lsn, record


def next_link(link: bytes, payload: bytes | memoryview) -> bytes:
    """Return the link of the record that follows the one with `link`."""
    digest = blake2b(link, digest_size=8)
    digest.update(payload)
    return digest.digest()


def frame(payload: bytes, link: bytes) -> bytes:
    """Return a record's bytes on disk; `link` is its own."""
    return FRAME.pack(len(payload), crc32(payload), link) + payload


def pack_positions(positions: Iterable[int]) -> bytes:
    """Pack ascending positions as unsigned LEB128 differences, the first one from zero."""
    out = bytearray()
    before = 0
    for position in positions:
        delta = position - before
        if delta < 0:
            raise ValueError(f"positions must ascend: {position} after {before}")
        while delta > 0x7F:
            out.append(delta & 0x7F | 0x80)
            delta >>= 7
        out.append(delta)
        before = position
    return bytes(out)


def unpack_positions(packed: bytes) -> tuple[int, ...]:
    """Return the positions of `pack_positions`."""
    positions: list[int] = []
    position = delta = shift = 0
    for byte in packed:
        delta |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            position += delta
            positions.append(position)
            delta = shift = 0
        elif shift > 63:
            raise RecordMalformed("a position is longer than 64 bits")
    if shift:
        raise RecordMalformed("the last position is cut")
    return tuple(positions)


_Fields: TypeAlias = "list[int | str | bytes | bool | tuple[object, ...] | None]"
_INT, _STR, _BYTES, _BOOL, _TUPLE = int, str, bytes, bool, tuple
_Build: TypeAlias = Callable[[_Fields], Record]


def _builder(record: Callable[..., Record], *types: type) -> _Build:
    """Return a builder that checks the number and the types of the fields."""

    def build(fields: _Fields) -> Record:
        if len(fields) != len(types):
            raise RecordMalformed(f"{len(fields)} fields instead of {len(types)}")
        for field, wanted in zip(fields, types, strict=True):
            if type(field) is not wanted:
                raise RecordMalformed(f"{field!r} is not of type {wanted.__name__}")
        return record(*fields)

    return build


_build_batch_fields = _builder(
    Batch,
    *(_INT, _INT, _INT, _INT, _INT, _STR, _INT, _INT, _INT),
    *(_BYTES, _BYTES, _BYTES, _BYTES, _INT, _BYTES),
)


def _build_batch(fields: _Fields) -> Record:
    record = _build_batch_fields(fields)
    assert isinstance(record, Batch)
    if not (record.commands == len(record.kinds) == len(record.outcomes) // 2 > 0):
        raise RecordMalformed(f"a batch of {record.commands} with {len(record.kinds)} kinds")
    if not (len(record.blob_hash) == len(record.chain) == len(record.order) == HASH_BYTES):
        raise RecordMalformed("a hash has the wrong length")
    return record


_build_end_fields = _builder(End, _INT, _INT, _BYTES, _INT, _INT, _INT, _INT, _INT, _BYTES)


def _build_end(fields: _Fields) -> Record:
    record = _build_end_fields(fields)
    assert isinstance(record, End)
    if len(record.chain) != HASH_BYTES or len(record.marks) % MARK_BYTES:
        raise RecordMalformed("a closing record with a cut hash or mark")
    return record


def _build_confirm(fields: _Fields) -> Record:
    epoch, durable_mark, packed, free = fields
    if type(epoch) is not int or type(durable_mark) is not int or type(packed) is not bytes:
        raise RecordMalformed("a confirm with fields of other types")
    if free is None:
        return Confirm(epoch, durable_mark, unpack_positions(packed))
    if type(free) is not bytes:
        raise RecordMalformed("a confirm with fields of other types")
    return Confirm(epoch, durable_mark, unpack_positions(packed), unpack_positions(free))


_BUILD: dict[int, _Build] = {
    Kind.HEADER: _builder(Header, _INT, _STR, _STR, _STR, _INT, _INT, _BYTES, _STR, _INT),
    Kind.START: _builder(Start, _INT, _INT, _BYTES, _INT),
    Kind.VIEW: _builder(ViewSeen, _INT, _STR, _BOOL, _TUPLE),
    Kind.ACTIVE: _builder(Active, _INT, _INT, _STR, _INT, _BYTES, _TUPLE, _TUPLE, _BOOL),
    Kind.INACTIVE: _builder(Inactive, _STR),
    Kind.BATCH: _build_batch,
    Kind.CONFIRM: _build_confirm,
    Kind.SNAPSHOT: _builder(Snapshot, _INT, _INT, _BYTES, _INT, _STR),
    Kind.DURABLE: _builder(Durable, _INT),
    Kind.STOP: _builder(Stop, _STR, _INT, _BYTES),
    Kind.VOTE: _builder(Vote, _INT, _BYTES, _INT, _STR),
    Kind.DECIDED: _builder(Decided, _INT),
    Kind.END: _build_end,
}
