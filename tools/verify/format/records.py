"""Records of member logs and histories of clients, and their decoder.

Written after docs/MEMBERLOG.md, sharing nothing with the broker that writes them: an error there is
not repeated here.  A record's class states its fields in their order in the file, and so the types
that its payload must have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, get_origin, get_type_hints

import lz4.block
import msgpack

from tools.verify.format.moves import MOVE, expand, ops_of

SUFFIX = ".qml"
HASH_BYTES = 16
ROLE_MEMBER, ROLE_CLIENT = "member", "client"
MARK = struct.Struct("<Q16s")  # of an END: position, chain after it
CHECKPOINT_ROW = struct.Struct("<IQIQQ")
"""Number of the queue, ready, unacked, its next message's number, sum of the ready ones' hashes."""
READER_ROW = struct.Struct("<IIQQ?")
"""Number of the stream, channel, name of the reader, the offset that it is sent next, filtered."""
CLIENT_ROW = struct.Struct("<BQQ")
"""`ClientOp` with REDELIVERED, hash of the body, number of the publish or delivery tag."""
REDELIVERED = 0x80
_LZ4_RATIO_MAX = 255
_MOVE_BYTES = MOVE.size
_new = tuple.__new__


class RecordMalformed(ValueError):
    """A payload whose checksum is right, and that is no record of this format."""


class RecordKind(IntEnum):
    """The kinds of records."""

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
    QUEUES = 14
    CHECKPOINT = 15
    CLIENT = 16
    READERS = 17


class Header(NamedTuple):
    """Whose log it is, and which segment of it."""

    version: int
    cluster_name: str
    cluster_id: str  # "" = not known yet
    member: str  # of a client's log: the client
    incarnation: int
    segment: int
    prev_link: bytes  # the last one of the segment before
    hash_alg: str
    wall_us: int
    role: str = ROLE_MEMBER


class Start(NamedTuple):
    """The state that recovery found."""

    state_epoch: int
    position: int
    chain: bytes
    root: int


class ViewSeen(NamedTuple):
    """A view of the ring."""

    ring_seq: int
    ring_rep: str
    regular: bool
    members: tuple[tuple[str, int], ...]  # name, incarnation


class Active(NamedTuple):
    """From here the member is in the primary of this epoch."""

    epoch: int
    ring_seq: int
    ring_rep: str
    base_position: int
    base_chain: bytes
    members: tuple[tuple[str, int, bool], ...]  # name, incarnation, fresh
    voters: tuple[str, ...]
    cold: bool


class Inactive(NamedTuple):
    """From here the member is in no primary."""

    reason: str


class Batch(NamedTuple):
    """One ordered item, applied."""

    epoch: int
    ring_seq: int
    seq: int
    first_position: int
    commands: int
    origin: str
    session: int
    blob_no: int
    time_us: int
    kinds: bytes  # one `Command` each
    outcomes: bytes  # one u16 each
    blob_hash: bytes
    chain: bytes
    root: int
    order: bytes
    moves: bytes  # rows of MOVE; a PASSED among them only where they are not to be expanded


class ConfirmRecord(NamedTuple):
    """Publishes that were confirmed to the member's own clients, by position."""

    epoch: int
    durable_mark: int
    positions: tuple[int, ...]
    transient: tuple[int, ...] | None = None  # those that did not wait; None: not recorded


class Snapshot(NamedTuple):
    """The state was replaced by one that another member sent."""

    state_epoch: int
    position: int
    chain: bytes
    root: int
    donor: str


class Durable(NamedTuple):
    """The member's own disk has everything up to here."""

    position: int


class Stop(NamedTuple):
    """An orderly end."""

    reason: str
    position: int
    chain: bytes


class Vote(NamedTuple):
    """A vote about the state at a position, as this member counted it."""

    position: int
    chain: bytes
    root: int
    verdict: str


class Decided(NamedTuple):
    """The batches that follow were decided by the primary of this epoch."""

    epoch: int


class End(NamedTuple):
    """Totals of the segment that it closes."""

    first_position: int  # 0: no batch
    position: int  # 0: not known
    chain: bytes
    records: int
    batches: int
    commands: int
    moves: int
    confirms: int
    step: int
    marks: bytes  # rows of MARK


class Queues(NamedTuple):
    """Names of the queues that moves give by number."""

    queues: tuple[tuple[int, str, str, bool, int], ...]
    """Number, vhost, name, durable, highest priority (-1: a plain queue)."""


class Checkpoint(NamedTuple):
    """The figures of queues at this place."""

    position: int
    root: int
    next_message: int
    queues: bytes  # rows of CHECKPOINT_ROW


class Readers(NamedTuple):
    """The readers of all streams, where the next CHECKPOINT is."""

    readers: bytes  # rows of READER_ROW


class Client(NamedTuple):
    """What a client did and received in one turn of one connection."""

    session: int
    queue: str  # "": none is named
    time_us: int
    ops: bytes  # rows of CLIENT_ROW


class ClientOp(IntEnum):
    """What a client did or received."""

    PUBLISHED = 1
    CONFIRMED = 2
    REFUSED = 3
    UNROUTABLE = 4
    RECEIVED = 5
    ACKED = 6
    LOST = 7


Record: TypeAlias = (
    Header | Start | ViewSeen | Active | Inactive | Batch | ConfirmRecord | Snapshot | Durable
    | Stop | Vote | Decided | End | Queues | Checkpoint | Client | Readers
)  # fmt: skip
_CLASSES: tuple[type[Record], ...] = (
    Header, Start, ViewSeen, Active, Inactive, Batch, ConfirmRecord, Snapshot, Durable,
    Stop, Vote, Decided, End, Queues, Checkpoint, Client, Readers,
)  # fmt: skip
KINDS: dict[type[Record], RecordKind] = dict(zip(_CLASSES, RecordKind, strict=True))
BEGINNINGS = tuple(
    msgpack.Packer().pack_array_header(2 + len(of._fields)) + bytes([kind])
    for of, kind in KINDS.items()
)
"""The first bytes of payloads: a list of so many fields, and its kind."""
_MEMBERS, _FRESH_MEMBERS, _QUEUE = (str, int), (str, int, bool), (int, str, str, bool, int)
_BATCH, _CONFIRM = int(RecordKind.BATCH), int(RecordKind.CONFIRM)
_CLIENT_WHATS = frozenset({*ClientOp, ClientOp.RECEIVED | REDELIVERED})


def decode(payload: bytes | memoryview, *, expanded: bool = True) -> tuple[int, Record]:
    """Return number and record; raises `RecordMalformed`.

    `expanded`: a move that stands for two becomes two, which only who looks at moves needs.
    """
    try:
        fields: tuple[Any, ...] = msgpack.unpackb(payload, use_list=False)
        kind = fields[0]
        build, types, complain = _READERS[kind]
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise RecordMalformed(f"not a record: {error}") from error
    if kind == _BATCH:
        fields = (*fields[:-1], _moves(fields[-1], expanded))
    elif kind == _CONFIRM:
        fields = (*fields[:4], *map(_positions, fields[4:]))
    if [*map(type, fields)] not in types:
        raise RecordMalformed(f"a {RecordKind(kind).name} with fields of other types")
    if fields[1] < 0:
        raise RecordMalformed(f"lsn {fields[1]} is below zero")
    record = _new(build, fields[2:])
    if complain is not None and (what := complain(record)):
        raise RecordMalformed(what)
    return fields[1], record


def _moves(field: object, expanded: bool) -> object:
    """Return the rows of moves, unpacked, and `expanded` so that none stands for two."""
    if type(field) is tuple:
        field = _unpacked(*field) if len(field) == 2 else None
    if type(field) is not bytes:
        return None
    if len(field) % _MOVE_BYTES:
        raise RecordMalformed("a move is cut")
    try:
        if expanded:
            return expand(field)
        ops_of(field)
    except ValueError as error:
        raise RecordMalformed(str(error)) from error
    return field


def _unpacked(count: object, packed: object) -> bytes | None:
    if type(count) is not int or type(packed) is not bytes:
        return None
    size = count * _MOVE_BYTES
    if not 0 < size <= _LZ4_RATIO_MAX * len(packed):  # no memory for what cannot be
        raise RecordMalformed(f"{count} moves cannot be in {len(packed)} bytes")
    try:
        rows: bytes = lz4.block.decompress(packed, uncompressed_size=size)
    except (lz4.block.LZ4BlockError, OverflowError) as error:  # it counts to 2**31
        raise RecordMalformed(f"packed moves: {error}") from error
    if len(rows) != size:
        raise RecordMalformed(f"{len(rows)} bytes of moves instead of {size}")
    return rows


def _positions(field: object) -> object:
    """Return the positions that are packed as differences in LEB128; nil as it is."""
    if type(field) is not bytes:
        return field if field is None else ""
    if not field:
        return ()
    differences: list[int] = []
    value = shift = 0
    for at, byte in enumerate(field):
        value |= (byte & 0x7F) << shift
        if byte > 0x7F:
            shift += 7
            if shift > 63:
                raise RecordMalformed("a position is longer than 64 bits")
            continue
        differences.append(value)
        value = shift = 0
        if len(differences) == 1 and field[at + 1 :].isascii():  # one byte each, nearly always
            differences += field[at + 1 :]
            break
    if shift:
        raise RecordMalformed("the last position is cut")
    return tuple(accumulate(differences))


def marks_of(end: End) -> list[tuple[int, bytes]]:
    """Return position and chain of the marks of an END."""
    return list(MARK.iter_unpack(end.marks))


def _header(one: Header) -> str:
    return "" if one.role in (ROLE_MEMBER, ROLE_CLIENT) else f"a log of a {one.role!r}"


def _view(one: ViewSeen) -> str:
    return _rows(one.members, _MEMBERS, "a member of a view")


def _active(one: Active) -> str:
    if any(type(voter) is not str for voter in one.voters):
        return f"{one.voters!r} are no voters"
    return _rows(one.members, _FRESH_MEMBERS, "a member of a primary")


def _batch(one: Batch) -> str:
    _, _, _, _, commands, _, _, _, _, kinds, outcomes, blob_hash, chain, _, order, _ = one
    if not commands == len(kinds) == len(outcomes) / 2 > 0:
        return f"a batch of {commands} with {len(kinds)} kinds"
    if not len(blob_hash) == len(chain) == len(order) == HASH_BYTES:
        return "a hash has the wrong length"
    return ""


def _end(one: End) -> str:
    cut = len(one.chain) != HASH_BYTES or len(one.marks) % MARK.size
    return "a closing record with a cut hash or mark" if cut else ""


def _queues(one: Queues) -> str:
    return _rows(one.queues, _QUEUE, "a queue")


def _checkpoint(one: Checkpoint) -> str:
    return "a checkpoint with a cut queue" if len(one.queues) % CHECKPOINT_ROW.size else ""


def _readers(one: Readers) -> str:
    return "readers that are cut" if len(one.readers) % READER_ROW.size else ""


def _client(one: Client) -> str:
    if len(one.ops) % CLIENT_ROW.size or not _CLIENT_WHATS.issuperset(one.ops[:: CLIENT_ROW.size]):
        return "a client's history that is cut or of an unknown kind"
    return ""


def _rows(rows: tuple[object, ...], types: tuple[type, ...], what: str) -> str:
    """Return which of the rows is not `what`, "" for none."""
    for row in rows:
        if type(row) is not tuple or tuple(map(type, row)) != types:
            return f"{row!r} does not describe {what}"
    return ""


_COMPLAIN: dict[type[Record], Callable[[Any], str]] = {
    Header: _header, ViewSeen: _view, Active: _active, Batch: _batch, End: _end, Queues: _queues,
    Checkpoint: _checkpoint, Client: _client, Readers: _readers,
}  # fmt: skip


def _types(of: type[Record]) -> tuple[list[type], ...]:
    """Return the types that a payload of this record may have, kind and number included."""
    fields = [get_origin(hint) or hint for hint in get_type_hints(of).values()]
    if of is ConfirmRecord:
        fields = [int, int, tuple]
        return [int, int, *fields, tuple], [int, int, *fields, type(None)]
    return ([int, int, *fields],)


_READERS = {kind: (of, _types(of), _COMPLAIN.get(of)) for of, kind in KINDS.items()}
