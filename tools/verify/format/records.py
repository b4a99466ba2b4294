"""Records of member logs and histories of clients, and their decoder.

Written after docs/MEMBERLOG.md, sharing nothing with the broker that writes them: an error there is
not repeated here.  A record's class states its fields in their order in the file: the types that
its payload must have, and up to where the check can count.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from itertools import accumulate
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_type_hints

import lz4.block
import msgpack
from msgspec import Meta, MsgspecError
from msgspec.msgpack import Decoder

from tools.verify.format.commands import Command, Outcome
from tools.verify.format.moves import MOVE, expand, ops_of

SUFFIX = ".qml"
HASH_BYTES = 16
ROLE_CLIENT = "client"
TAKEN, GIVEN_UP, LOST = "taken", "given up", "lost"
MARK = struct.Struct("<Q16s")  # of an END: position, chain after it
CHECKPOINT_ROW = struct.Struct("<IQIQQ")
"""Number of the queue, ready, unacked, its next message's number, sum of the ready ones' hashes."""
READER_ROW = struct.Struct("<IIQQ?")
"""Number of the queue, channel, name of the reader, the place that it is sent next, filtered."""
CLIENT_ROW = struct.Struct("<BQQ")
"""`ClientOp` with REDELIVERED, hash of the body, number of the publish or delivery tag."""
REDELIVERED = 0x80
# The format has unsigned 64-bit numbers, Spark and numpy have signed ones, and the time of a move
# has its position in the upper 43 bits: at ten thousand a second these last 28 years.
POSITION_BITS = 43
Number: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Position: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << POSITION_BITS)]
Segment: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]
Time: TypeAlias = Annotated[int, Meta(ge=-(1 << 55), lt=1 << 55)]  # a clock may be before 1970
Hash: TypeAlias = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
_LZ4_RATIO_MAX = 255
_MOVE_BYTES = MOVE.size
_MOVE_SEQ_HIGH = 14  # the highest byte of the number in a move
_new = tuple.__new__


class RecordMalformed(ValueError):
    """A payload whose checksum is right, and that is no record of this format."""


class RecordKind(IntEnum):
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
    LEASE = 18


class Header(NamedTuple):
    """Whose log it is, and which segment of it."""

    version: Number
    cluster_name: str
    cluster_id: str  # "" = not known yet
    member: str  # of a client's log: the client
    incarnation: Number
    segment: Segment
    prev_link: bytes  # the last one of the segment before
    hash_alg: str
    wall_us: Time
    role: Literal["member", "client"] = "member"


class Start(NamedTuple):
    """The state that recovery found."""

    state_epoch: Number
    position: Position
    chain: bytes
    root: int


class ViewSeen(NamedTuple):
    """A view of the ring."""

    ring_seq: Number
    ring_rep: str
    regular: bool
    members: tuple[tuple[str, Number], ...]  # name, incarnation


class Active(NamedTuple):
    """From here the member is in the primary of this epoch."""

    epoch: Number
    ring_seq: Number
    ring_rep: str
    base_position: Position
    base_chain: bytes
    members: tuple[tuple[str, Number, bool], ...]  # name, incarnation, fresh
    voters: tuple[str, ...]
    cold: bool


class Inactive(NamedTuple):
    """From here the member is in no primary."""

    reason: str


class Batch(NamedTuple):
    """One ordered item, applied."""

    epoch: Number
    ring_seq: Number
    seq: Number
    first_position: Position
    commands: Position
    origin: str
    session: Number
    blob_no: Number
    time_us: Time
    kinds: bytes  # one `Command` each
    outcomes: bytes  # one u16 each
    blob_hash: Hash
    chain: Hash
    root: int
    order: Hash
    moves: bytes  # rows of MOVE; a PASSED among them only where they are not to be expanded


class ConfirmRecord(NamedTuple):
    """Publishes that were confirmed to the member's own clients, by position."""

    epoch: Number
    durable_mark: Position
    positions: tuple[int, ...]


class Snapshot(NamedTuple):
    """The state was replaced by one that another member sent."""

    state_epoch: Number
    position: Position
    chain: bytes
    root: int
    donor: str


class Durable(NamedTuple):
    """The member's own disk has everything up to here."""

    position: Position


class Stop(NamedTuple):
    """An orderly end."""

    reason: str
    position: Position
    chain: bytes


class Vote(NamedTuple):
    """A vote about the state at a position, as this member counted it."""

    position: Position
    chain: bytes
    root: int
    verdict: str


class Decided(NamedTuple):
    """The batches that follow were decided by the primary of this epoch."""

    epoch: Number


class End(NamedTuple):
    """Totals of the segment that it closes, which are compared with what was counted."""

    first_position: int  # 0: no batch
    position: int  # 0: not known
    chain: Hash
    records: int
    batches: int
    commands: int
    moves: int
    confirms: int
    step: int
    marks: bytes  # rows of MARK


class Queues(NamedTuple):
    """Names of the queues that moves give by number."""

    queues: tuple[tuple[Number, str, str, bool, int], ...]
    """Number, vhost, name, durable, highest priority (-1: a plain queue)."""


class Checkpoint(NamedTuple):
    """The figures of queues at this place."""

    position: Position
    root: int
    next_message: Number
    queues: bytes  # rows of CHECKPOINT_ROW


class Readers(NamedTuple):
    """The readers of all queues, where the next CHECKPOINT is."""

    readers: bytes  # rows of READER_ROW


class Lease(NamedTuple):
    """What became of the lease on a shared store under which this incarnation leads."""

    what: Literal["taken", "given up", "lost"]
    token: Number
    owner: str
    source: Number  # the token whose store was copied, 0 = it begins empty
    clock: str  # "": its times are compared with no others
    at_us: Number
    until_us: Number


class Client(NamedTuple):
    """What a client did and received in one turn of one connection."""

    session: Number
    queue: str  # "": none is named
    time_us: Time
    ops: bytes  # rows of CLIENT_ROW


class ClientOp(IntEnum):
    PUBLISHED = 1
    CONFIRMED = 2
    REFUSED = 3
    UNROUTABLE = 4
    RECEIVED = 5
    ACKED = 6
    LOST = 7


Record: TypeAlias = (
    Header | Start | ViewSeen | Active | Inactive | Batch | ConfirmRecord | Snapshot | Durable
    | Stop | Vote | Decided | End | Queues | Checkpoint | Client | Readers | Lease
)  # fmt: skip
KINDS: dict[type[Record], RecordKind] = dict(zip(get_args(Record), RecordKind, strict=True))
BEGINNINGS = tuple(
    msgpack.Packer().pack_array_header(2 + len(of._fields)) + bytes([kind])
    for of, kind in KINDS.items()
)
"""The first bytes of payloads: a list of so many fields, and its kind."""
_BATCH, _CONFIRM = int(RecordKind.BATCH), int(RecordKind.CONFIRM)
_KINDS = bytes((0, *Command))  # 0: a blob of which nothing was carried out
_OUTCOME = struct.Struct("<H")
_OUTCOMES = frozenset((*Outcome, *range(300, 600)))
_ONLY_OF = {
    Outcome.MALFORMED: 0, Outcome.OUT_OF_SEQUENCE: 0,
    Outcome.UNROUTABLE: Command.PUBLISH, Outcome.REPEATED: Command.PUBLISH,
}  # fmt: skip
"""The only kind of command that has an outcome; 0 has no others."""
_CLIENT_WHATS = frozenset({*ClientOp, ClientOp.RECEIVED | REDELIVERED})
_FIXED_LIST_MAX = 0x9F  # the first byte of a list of up to 15 fields; longer ones have three
_FIELD = re.compile(r"`\$\[(\d+)\](.*)`")


def decode(payload: bytes, *, expanded: bool = True) -> tuple[int, Record]:
    """Return number and record; raises `RecordMalformed`.

    `expanded`: a move that stands for two becomes two, which only who compares moves needs.
    """
    try:
        kind = payload[1 if payload[0] <= _FIXED_LIST_MAX else 3]
        build, read, complain = _READERS[kind]
        fields = read(payload)
    except LookupError as error:
        raise RecordMalformed(f"not a record: {error}") from error
    except MsgspecError as error:
        raise RecordMalformed(_in_words(payload, str(error))) from error
    values = fields[2:]
    if kind == _BATCH:
        values = *values[:-1], _moves(values[-1], expanded)
    elif kind == _CONFIRM:
        values = *values[:2], _positions(values[2])
    record = _new(build, values)
    if complain is not None and (what := complain(record)):
        raise RecordMalformed(what)
    return fields[1], record


decode_written = partial(decode, expanded=False)
"""The same, with moves as they are written."""


def _in_words(payload: bytes, error: str) -> str:
    """Return why a payload is refused, with the name and value of the field that it is about."""
    try:
        values = msgpack.unpackb(payload, use_list=False)
        names = ("kind", "lsn", *_READERS[values[0]][0]._fields)
        kind = RecordKind(values[0]).name
    except (ValueError, TypeError, LookupError, msgpack.UnpackException):
        return f"not a record: {error}"
    if (found := _FIELD.search(error)) is None:
        return f"a {kind} of {len(values)} fields: {error}"
    at = int(found[1])
    value = str(values[at])[:80]
    why = error.partition(" - at")[0]
    return f"{kind} {values[1]} has {names[at]} {value}, which cannot be: {why}"


def _moves(field: bytes | tuple[int, bytes], expanded: bool) -> bytes:
    """Return the rows of moves, unpacked, and `expanded` so that none stands for two."""
    rows = field if isinstance(field, bytes) else _unpacked(*field)
    if len(rows) % _MOVE_BYTES:
        raise RecordMalformed("a move is cut")
    if not rows[_MOVE_SEQ_HIGH::_MOVE_BYTES].isascii():
        raise RecordMalformed("a move with a number that cannot be: 2^63 is beyond all logs")
    try:
        if expanded:
            return expand(rows)
        ops_of(rows[::_MOVE_BYTES])
    except ValueError as error:
        raise RecordMalformed(str(error)) from error
    return rows


def _unpacked(count: int, packed: bytes) -> bytes:
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


def _positions(field: bytes) -> tuple[int, ...]:
    """Return the positions that are packed as differences in LEB128."""
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
    found = tuple(accumulate(differences))
    if found and found[-1] >> POSITION_BITS:
        raise RecordMalformed(
            f"position {found[-1]} cannot be: 2^{POSITION_BITS} is beyond all logs"
        )
    return found


def marks_of(end: End) -> list[tuple[int, bytes]]:
    return list(MARK.iter_unpack(end.marks))


def _batch(one: Batch) -> str:
    first, commands, kinds, outcomes = one[3], one[4], one[9], one[10]
    if not commands == len(kinds) == len(outcomes) / 2 > 0:
        return f"a batch of {commands} with {len(kinds)} kinds"
    if first + commands >> POSITION_BITS:
        return f"a batch up to position {first + commands}: 2^{POSITION_BITS} is beyond all logs"
    if unknown := kinds.translate(None, _KINDS):
        return f"a batch with a command of kind {unknown[0]}"
    if outcomes.strip(b"\0") or 0 in kinds:
        for kind, (outcome,) in zip(kinds, _OUTCOME.iter_unpack(outcomes), strict=True):
            if outcome not in _OUTCOMES:
                return f"a batch with the outcome {outcome}"
            if _ONLY_OF.get(outcome, kind or None) != kind:
                return f"a batch with the outcome {outcome} of a command of kind {kind}"
    return ""


def _end(one: End) -> str:
    return "a closing record with a cut mark" if len(one.marks) % MARK.size else ""


def _checkpoint(one: Checkpoint) -> str:
    if len(one.queues) % CHECKPOINT_ROW.size:
        return "a checkpoint with a cut queue"
    rows = CHECKPOINT_ROW.iter_unpack(one.queues)
    highest = max((max(row[1], row[3]) for row in rows), default=0)
    return f"a checkpoint has a queue with {highest}, which cannot be" if highest >> 63 else ""


def _readers(one: Readers) -> str:
    if len(one.readers) % READER_ROW.size:
        return "readers that are cut"
    highest = max((row[3] for row in READER_ROW.iter_unpack(one.readers)), default=0)
    return f"a reader is at {highest}, which cannot be" if highest >> 63 else ""


def _client(one: Client) -> str:
    if len(one.ops) % CLIENT_ROW.size or not _CLIENT_WHATS.issuperset(one.ops[:: CLIENT_ROW.size]):
        return "a client's history that is cut or of an unknown kind"
    return ""


_COMPLAIN: dict[type[Record], Callable[[Any], str]] = {
    Batch: _batch, End: _end, Checkpoint: _checkpoint, Readers: _readers, Client: _client,
}  # fmt: skip
_AS_WRITTEN: dict[type[Record], dict[str, Any]] = {
    Batch: {"moves": bytes | tuple[int, bytes]},
    ConfirmRecord: {"positions": bytes},
}
"""The types of fields that `decode` unpacks."""


def _reader(of: type[Record]) -> Callable[[bytes], tuple[Any, ...]]:
    """Return what reads a payload of this record: kind, number, and its fields."""
    hints = get_type_hints(of, include_extras=True) | _AS_WRITTEN.get(of, {})
    read: Callable[[bytes], tuple[Any, ...]]
    read = Decoder(GenericAlias(tuple, (int, Number, *hints.values()))).decode
    return read


_READERS = {int(kind): (of, _reader(of), _COMPLAIN.get(of)) for of, kind in KINDS.items()}
