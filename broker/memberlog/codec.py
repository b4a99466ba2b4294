"""Encodes and decodes records of a member log. Pure; the format is docs/MEMBERLOG.md.

A payload is a msgpack list: kind, lsn, then the fields of the record in the order of its class. On
disk a payload is preceded by its length, its CRC and a link, a hash over the previous link and the
payload, so that a record cannot be altered, dropped or moved without breaking the chain.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import accumulate
from typing import TypeAlias, get_origin, get_type_hints
from zlib import crc32

import lz4.block
import msgpack

from broker.machine.move_log import MOVE, OPS_KNOWN, spelled_out
from broker.memberlog.records import (
    CHECKPOINT_ROW,
    CLIENT_ROW,
    HASH_BYTES,
    LEASE_GIVEN_UP,
    LEASE_LOST,
    LEASE_TAKEN,
    MARK_BYTES,
    READER_ROW,
    REDELIVERED,
    ROLE_CLIENT,
    ROLE_MEMBER,
    Active,
    Batch,
    Checkpoint,
    Client,
    ClientOp,
    ConfirmRecord,
    Decided,
    Durable,
    End,
    Header,
    Inactive,
    Lease,
    Queues,
    Readers,
    Record,
    RecordKind,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)

MAGIC = b"QPIDLOG1"
NO_LINK = bytes(8)
FRAME = struct.Struct("<II8s")  # length, crc32 of the payload, link
RECORD_BYTES_MAX = 1 << 30  # one command can cause many moves: all that a member held
LARGE_BYTES = 1 << 20
PACKED_MOVES_MIN = 12
"""From this many moves on they are packed: fewer gain little, and the call costs as much."""
_LZ4_RATIO_MAX = 255
_pack: Callable[[tuple[object, ...]], bytes] = msgpack.Packer().pack  # one for all: half the cost

_KIND_OF: dict[type[Record], RecordKind] = {
    Header: RecordKind.HEADER,
    Start: RecordKind.START,
    ViewSeen: RecordKind.VIEW,
    Active: RecordKind.ACTIVE,
    Inactive: RecordKind.INACTIVE,
    Decided: RecordKind.DECIDED,
    Batch: RecordKind.BATCH,
    ConfirmRecord: RecordKind.CONFIRM,
    Snapshot: RecordKind.SNAPSHOT,
    Durable: RecordKind.DURABLE,
    Stop: RecordKind.STOP,
    Vote: RecordKind.VOTE,
    End: RecordKind.END,
    Queues: RecordKind.QUEUES,
    Checkpoint: RecordKind.CHECKPOINT,
    Client: RecordKind.CLIENT,
    Readers: RecordKind.READERS,
    Lease: RecordKind.LEASE,
}

FIRST_BYTES = re.compile(
    b"|".join(
        re.escape(msgpack.Packer().pack_array_header(2 + len(record._fields)) + bytes([kind]))
        for record, kind in _KIND_OF.items()
    )
)
"""The first bytes of payloads: a list as long as the fields of their kind, and the kind."""


class RecordMalformed(ValueError):
    """A payload whose CRC is right but that is not a record of this version."""


def encode(lsn: int, record: Record) -> bytes:
    """Return the payload of a record."""
    kind = _KIND_OF[type(record)]
    if isinstance(record, ConfirmRecord):
        # Records written in one turn are not in the order of positions.
        packed = pack_positions(sorted(record.positions))
        return _pack((kind, lsn, record.epoch, record.durable_mark, packed))
    if isinstance(record, Batch):
        fields = (kind, lsn, *record[:-1], pack_moves(record.moves))
        if len(record.moves) > LARGE_BYTES:  # a packer never frees memory that it once needed
            return bytes(msgpack.packb(fields))
        return _pack(fields)
    return _pack((kind, lsn, *record))


def decode(payload: bytes | memoryview) -> tuple[int, Record]:
    """Return (lsn, record); raises `RecordMalformed` for anything else."""
    try:
        fields = msgpack.unpackb(payload, use_list=False)
        build, types, check = _SHAPES[fields[0]]
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise RecordMalformed(f"not a record: {error}") from error
    if build is Batch:
        fields = (*fields[:-1], unpack_moves(fields[-1]))
    if tuple(map(type, fields)) != types:
        raise RecordMalformed(_misfit(fields, types))
    if fields[1] < 0:
        raise RecordMalformed(f"lsn {fields[1]} is below zero")
    if build is ConfirmRecord:
        fields = (*fields[:-1], unpack_positions(fields[-1]))
    record: Record = tuple.__new__(build, fields[2:])
    if check is not None:
        check(record)
    return fields[1], record


def next_link(link: bytes, payload: bytes | memoryview) -> bytes:
    """Return the link of the record that follows the one with `link`."""
    return blake2b(link + payload, digest_size=8).digest()


def frame(payload: bytes, link: bytes) -> bytes:
    """Return a record's bytes on disk; `link` is its own."""
    return frame_head(payload, link) + payload


def frame_head(payload: bytes, link: bytes) -> bytes:
    """Return what precedes a payload on disk."""
    return FRAME.pack(len(payload), crc32(payload), link)


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
    for at, byte in enumerate(packed):
        delta |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            position += delta
            positions.append(position)
            delta = shift = 0
            rest = packed[at + 1 :]
            if rest.isascii():  # one byte each, as is usual after the first
                positions.extend(accumulate(rest, initial=position))
                del positions[-len(rest) - 1]
                break
        elif shift > 63:
            raise RecordMalformed("a position is longer than 64 bits")
    if shift:
        raise RecordMalformed("the last position is cut")
    return tuple(positions)


def pack_moves(moves: bytes) -> bytes | tuple[int, bytes]:
    """Return few moves unchanged, many as (how many, LZ4 block): half the bytes or less.

    Their rows repeat queue, channel and counters. Packing takes no more time than the CRC, the link
    and the write of the bytes that it saves.
    """
    count = len(moves) // MOVE.size
    return (
        moves if count < PACKED_MOVES_MIN else (count, lz4.block.compress(moves, store_size=False))
    )


def unpack_moves(field: object) -> object:
    """Return the rows that `pack_moves` packed, expanded; anything else unchanged."""
    rows = _unpacked(field) if type(field) is tuple else field
    if type(rows) is not bytes:
        return rows
    try:
        return spelled_out(rows)
    except ValueError as error:
        raise RecordMalformed(str(error)) from error


def _unpacked(field: tuple[object, ...]) -> bytes:
    try:
        count, packed = field
    except ValueError as error:
        raise RecordMalformed(f"packed moves in {len(field)} fields") from error
    if type(count) is not int or type(packed) is not bytes:
        raise RecordMalformed("packed moves of other types")
    size = count * MOVE.size
    if not 0 < size <= _LZ4_RATIO_MAX * len(packed):
        raise RecordMalformed(f"{count} moves cannot be in {len(packed)} bytes")
    try:
        moves = bytes(lz4.block.decompress(packed, uncompressed_size=size))
    except lz4.block.LZ4BlockError as error:
        raise RecordMalformed(f"packed moves: {error}") from error
    if len(moves) != size:
        raise RecordMalformed(f"{len(moves)} bytes of moves instead of {size}")
    return moves


def _misfit(fields: tuple[object, ...], types: tuple[type, ...]) -> str:
    """Return why a payload does not have the types of its kind."""
    if len(fields) != len(types):
        return f"{len(fields)} fields instead of {len(types)}, kind and number included"
    pairs = zip(fields, types, strict=True)
    field, wanted = next((f, t) for f, t in pairs if type(f) is not t)
    return f"{field!r} is not of type {wanted.__name__}"


def _check_batch(record: Batch) -> None:
    commands, kinds, outcomes, moves = record[4], record[9], record[10], record[15]
    if not (commands == len(kinds) == len(outcomes) // 2 > 0):
        raise RecordMalformed(f"a batch of {commands} with {len(kinds)} kinds")
    if not (len(record[11]) == len(record[12]) == len(record[14]) == HASH_BYTES):
        raise RecordMalformed("a hash has the wrong length")
    if moves and (len(moves) % MOVE.size or not OPS_KNOWN.issuperset(moves[:: MOVE.size])):
        raise RecordMalformed("moves that are cut or of an unknown kind")


def _check_end(record: End) -> None:
    if len(record.chain) != HASH_BYTES or len(record.marks) % MARK_BYTES:
        raise RecordMalformed("a closing record with a cut hash or mark")


def _check_header(record: Header) -> None:
    if record.role not in (ROLE_MEMBER, ROLE_CLIENT):
        raise RecordMalformed(f"a log of a {record.role!r}")


def _check_queues(record: Queues) -> None:
    for queue in record.queues:
        if type(queue) is not tuple or [type(field) for field in queue] != _QUEUE_TYPES:
            raise RecordMalformed(f"{queue!r} does not describe a queue")


def _check_checkpoint(record: Checkpoint) -> None:
    if len(record.queues) % CHECKPOINT_ROW.size:
        raise RecordMalformed("a checkpoint with a cut queue")


def _check_readers(record: Readers) -> None:
    if len(record.readers) % READER_ROW.size:
        raise RecordMalformed("readers that are cut")


def _check_lease(record: Lease) -> None:
    if record.what not in (LEASE_TAKEN, LEASE_GIVEN_UP, LEASE_LOST):
        raise RecordMalformed(f"a lease that is {record.what!r}")


def _check_client(record: Client) -> None:
    rest = len(record.ops) % CLIENT_ROW.size
    if rest or not _CLIENT_OPS.issuperset(record.ops[:: CLIENT_ROW.size]):
        raise RecordMalformed("a client's history that is cut or of an unknown kind")


_QUEUE_TYPES = [int, str, str, bool, int]
_CLIENT_OPS = frozenset({*ClientOp, ClientOp.RECEIVED | REDELIVERED})
_CHECKS: dict[type[Record], Callable[..., None]] = {
    Header: _check_header,
    Batch: _check_batch,
    End: _check_end,
    Queues: _check_queues,
    Checkpoint: _check_checkpoint,
    Client: _check_client,
    Readers: _check_readers,
    Lease: _check_lease,
}
_Shape: TypeAlias = "tuple[type[Record], tuple[type, ...], Callable[..., None] | None]"


def _shape(record: type[Record]) -> _Shape:
    """Return the types of a payload, including kind and number, and further conditions."""
    fields = [get_origin(field) or field for field in get_type_hints(record).values()]
    if record is ConfirmRecord:
        fields[-1] = bytes  # in the form of its packed positions
    return record, (int, int, *fields), _CHECKS.get(record)


_SHAPES: dict[int, _Shape] = {kind: _shape(record) for record, kind in _KIND_OF.items()}
