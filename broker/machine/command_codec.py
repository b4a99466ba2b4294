# mypy: disable-error-code="import-untyped"
"""How commands travel: a *blob* is what an origin submits as one ordered message.

It holds many commands of one session, the number of the blob in that session and the origin's
clock. Nothing in it is trusted: bytes that do not have exactly the shape of `commands.py` are a
`BlobMalformed` at every member alike, since the verdict depends on the bytes alone. The replica
gives such a blob one position and the outcome MALFORMED.
"""

import types
from typing import NamedTuple, TypeGuard, cast, get_args, get_type_hints

import msgpack

from broker.machine.commands import (
    ACTIVATE,
    CLASSES,
    DEFINE,
    TICK,
    TX_COMMIT,
    VOTERS,
    Command,
    PlacedTick,
)
from broker.machine.version import ITEMS_BY_SHA256

BLOB_VERSION, BLOB_VERSION_SHA256 = 1, 2
"""They differ in what hash of the blob goes into the chains (`broker.replication.chain`)."""
BLOB_COMMANDS_MAX = 65_535
BODY_BYTES_MAX = 128 * 1024 * 1024
STRING_BYTES_MAX = 1024 * 1024
TABLE_DEPTH_MAX = 16
TABLE_ITEMS_MAX = 4096


class BlobMalformed(ValueError):
    """These bytes are no blob; the reason names the first fault and is the same everywhere."""


class Blob(NamedTuple):
    session: int
    blob_no: int  # counts from 1 in its session, without a gap
    time_us: int  # wall clock of the origin
    commands: tuple[Command, ...]


def blob_version(machine_version: int) -> int:
    """The newest one of blobs in a cluster whose machine has this version."""
    return BLOB_VERSION_SHA256 if machine_version >= ITEMS_BY_SHA256 else BLOB_VERSION


def pack_blob(
    session: int, blob_no: int, time_us: int, commands: list[Command], version: int = BLOB_VERSION
) -> bytes:
    """One ordered message. The caller keeps to BLOB_COMMANDS_MAX and to its frame budget."""
    if commands and is_large(commands[-1][-1]):
        head = msgpack.packb((version, session, blob_no, time_us)), _array_head(len(commands))
        parts = [with_more_items(head[0], 1), head[1]]
        for command in commands:
            parts += _parts(command)
        return b"".join(parts)
    return cast("bytes", msgpack.packb((version, session, blob_no, time_us, commands)))


LARGE_BYTES = 4096
"""From here on it costs more to have msgpack copy bytes, twice, than to write down what surrounds
them."""


def is_large(value: object) -> TypeGuard[bytes]:
    """Whether bytes are packed by `head_of_bytes` and themselves."""
    return type(value) is bytes and len(value) >= LARGE_BYTES


def with_more_items(packed: bytes, count: int) -> bytes:
    """A packed tuple of a few items, so that so many more may be put behind it."""
    return bytes((packed[0] + count,)) + packed[1:]


def head_of_bytes(value: bytes) -> bytes:
    """What msgpack puts before these."""
    size = len(value)
    return b"\xc6" + size.to_bytes(4, "big") if size > 0xFFFF else b"\xc5" + size.to_bytes(2, "big")


def _array_head(count: int) -> bytes:
    return bytes((0x90 + count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def _parts(command: Command) -> list[bytes]:
    body = command[-1]
    if not is_large(body):
        return [msgpack.packb(command)]
    return [with_more_items(msgpack.packb(command[:-1]), 1), head_of_bytes(body), body]


SHA256_BLOB = pack_blob(0, 0, 0, [], BLOB_VERSION_SHA256)[:2]
"""What blobs of that version begin with."""


def unpack_blob(data: bytes, newest: int = BLOB_VERSION_SHA256) -> Blob:
    """The blob in these bytes; raises `BlobMalformed` for anything else, and nothing but that.
    `newest`: versions above are not known yet."""
    try:
        envelope = msgpack.unpackb(
            data,
            use_list=False,
            strict_map_key=True,
            max_str_len=STRING_BYTES_MAX,
            max_bin_len=BODY_BYTES_MAX,
            max_array_len=BLOB_COMMANDS_MAX,
            max_map_len=TABLE_ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        msg = "blob is not msgpack within limits"
        raise BlobMalformed(msg) from error
    if type(envelope) is not tuple or tuple(map(type, envelope)) != _ENVELOPE:
        msg = "blob envelope has another shape"
        raise BlobMalformed(msg)
    version, session, blob_no, time_us, commands = envelope
    if not BLOB_VERSION <= version <= newest:
        msg = f"blob version {version} is not {BLOB_VERSION} to {newest}"
        raise BlobMalformed(msg)
    if session < 0 or blob_no < 0 or time_us < 0:
        msg = "blob envelope has a negative number"
        raise BlobMalformed(msg)
    shapes = _SHAPES
    for index, command in enumerate(commands):
        if type(command) is not tuple or not command or type(command[0]) is not int:
            msg = f"command {index} has no kind"
            raise BlobMalformed(msg)
        kind = command[0]
        shape = tuple(map(type, command))
        if shapes.get(kind) != shape and _OTHER_SHAPES.get(kind) != shape:
            msg = f"command {index} of kind {kind} has another shape"
            raise BlobMalformed(msg)
        check = _CHECKS.get(kind)
        if check is not None and not check(command):
            msg = f"command {index} of kind {kind} has a bad item"
            raise BlobMalformed(msg)
    return Blob(session, blob_no, time_us, commands)


_ENVELOPE = (int, int, int, int, tuple)


def _shape(record: type[Command]) -> tuple[type, ...]:
    """A type per item; of one that may be None, the other type."""
    hints = [
        get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
        for hint in get_type_hints(record).values()
    ]
    return tuple(cast("type", getattr(hint, "__origin__", hint)) for hint in hints)


_SHAPES = {kind: _shape(record) for kind, record in CLASSES.items()}
_OTHER_SHAPES = {DEFINE: (*_SHAPES[DEFINE][:-1], type(None)), TICK: _shape(PlacedTick)}


def _has_good_table(command: tuple[object, ...]) -> bool:
    """Tables are walked recursively later on, so their depth and types are bounded here."""
    return all(
        not item or _table_items(item, 0) <= TABLE_ITEMS_MAX
        for item in command
        if type(item) is dict
    )


def _table_items(value: object, depth: int) -> int:
    if type(value) in _SCALARS:
        return 1
    if depth > TABLE_DEPTH_MAX:
        return TABLE_ITEMS_MAX + 1
    if type(value) is tuple:
        return 1 + sum(_table_items(item, depth + 1) for item in value)
    if type(value) is dict and all(type(key) is str for key in value):
        return 1 + sum(_table_items(item, depth + 1) for item in value.values())
    return TABLE_ITEMS_MAX + 1


_SCALARS = frozenset((type(None), bool, int, float, str, bytes))


def _has_items_of(records: object, shape: tuple[type, ...]) -> bool:
    return type(records) is tuple and all(
        type(item) is tuple and tuple(map(type, item)) == shape for item in records
    )


def _is_good_commit(command: tuple[object, ...]) -> bool:
    return _has_items_of(command[3], (str, str, int, bytes, bytes)) and _has_items_of(
        command[4], (int, bool, int)
    )


def _is_good_activate(command: tuple[object, ...]) -> bool:
    voters = command[4]
    return (
        _has_items_of(command[2], (str, int, bool))
        and type(voters) is tuple
        and all(type(name) is str for name in voters)
    )


def _is_good_voters(command: tuple[object, ...]) -> bool:
    return all(
        type(terms) is tuple and all(type(term) is str for term in terms) for terms in command[1:]
    )


_CHECKS = {kind: _has_good_table for kind, shape in _SHAPES.items() if dict in shape} | {
    TX_COMMIT: _is_good_commit,
    ACTIVATE: _is_good_activate,
    VOTERS: _is_good_voters,
}
