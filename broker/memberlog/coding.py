"""Records of a member log and their bytes, both ways.  Pure; the format is docs/MEMBERLOG.md.

A payload is a msgpack list: kind, lsn, then the fields of the record in the order of its class.
On disk a payload is preceded by its length, its CRC and a link, a hash over the previous link and
the payload, so that a record cannot be altered, dropped or moved without breaking the chain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import TypeAlias
from zlib import crc32

import msgpack

from broker.machine.tape import MOVE, OPS_KNOWN
from broker.memberlog.records import (
    CLIENT_ROW,
    HASH_BYTES,
    MARK_BYTES,
    OF_CLIENT,
    OF_MEMBER,
    REDELIVERED,
    STANDING_ROW,
    Active,
    Batch,
    Checkpoint,
    Client,
    Confirm,
    Decided,
    Did,
    Durable,
    End,
    Header,
    Inactive,
    Kind,
    Queues,
    Record,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)

MAGIC = b"QPIDLOG1"
NO_LINK = bytes(8)
FRAME = struct.Struct("<II8s")  # length, crc32 of the payload, link
RECORD_BYTES_MAX = 16 << 20

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
    Queues: Kind.QUEUES,
    Checkpoint: Kind.CHECKPOINT,
    Client: Kind.CLIENT,
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
    *(_BYTES, _BYTES, _BYTES, _BYTES, _INT, _BYTES, _BYTES),
)


def _build_batch(fields: _Fields) -> Record:
    record = _build_batch_fields(fields)
    assert isinstance(record, Batch)
    if not (record.commands == len(record.kinds) == len(record.outcomes) // 2 > 0):
        raise RecordMalformed(f"a batch of {record.commands} with {len(record.kinds)} kinds")
    if not (len(record.blob_hash) == len(record.chain) == len(record.order) == HASH_BYTES):
        raise RecordMalformed("a hash has the wrong length")
    if len(record.moves) % MOVE.size or not OPS_KNOWN.issuperset(record.moves[:: MOVE.size]):
        raise RecordMalformed("moves that are cut or of an unknown kind")
    return record


_build_end_fields = _builder(End, _INT, _INT, _BYTES, _INT, _INT, _INT, _INT, _INT, _INT, _BYTES)


def _build_end(fields: _Fields) -> Record:
    record = _build_end_fields(fields)
    assert isinstance(record, End)
    if len(record.chain) != HASH_BYTES or len(record.marks) % MARK_BYTES:
        raise RecordMalformed("a closing record with a cut hash or mark")
    return record


_build_header_fields = _builder(
    Header, _INT, _STR, _STR, _STR, _INT, _INT, _BYTES, _STR, _INT, _STR
)


def _build_header(fields: _Fields) -> Record:
    record = _build_header_fields(fields)
    assert isinstance(record, Header)
    if record.role not in (OF_MEMBER, OF_CLIENT):
        raise RecordMalformed(f"a log of a {record.role!r}")
    return record


def _build_queues(fields: _Fields) -> Record:
    record = _builder(Queues, _TUPLE)(fields)
    assert isinstance(record, Queues)
    for queue in record.queues:
        if type(queue) is not tuple or [type(field) for field in queue] != _QUEUE_TYPES:
            raise RecordMalformed(f"{queue!r} does not describe a queue")
    return record


def _build_checkpoint(fields: _Fields) -> Record:
    record = _builder(Checkpoint, _INT, _INT, _INT, _BYTES)(fields)
    assert isinstance(record, Checkpoint)
    if len(record.queues) % STANDING_ROW.size:
        raise RecordMalformed("a checkpoint with a cut queue")
    return record


def _build_client(fields: _Fields) -> Record:
    record = _builder(Client, _INT, _STR, _INT, _BYTES)(fields)
    assert isinstance(record, Client)
    rest = len(record.ops) % CLIENT_ROW.size
    if rest or not _DONE.issuperset(record.ops[:: CLIENT_ROW.size]):
        raise RecordMalformed("a client's history that is cut or of an unknown kind")
    return record


_QUEUE_TYPES = [int, str, str, bool, int]
_DONE = frozenset({*Did, Did.RECEIVED | REDELIVERED})


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
    Kind.HEADER: _build_header,
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
    Kind.QUEUES: _build_queues,
    Kind.CHECKPOINT: _build_checkpoint,
    Kind.CLIENT: _build_client,
}
