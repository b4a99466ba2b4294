# mypy: disable-error-code="import-untyped"
"""Encoding of commands: a *blob* is what an origin submits as one ordered message.

A blob holds many commands of one session, its number in that session and the origin's clock.
Consecutive publishes that differ only in body and number are one record. Nothing in a blob is
trusted: bytes that do not have exactly the shape of `commands.py`, or of such a run, are a
`BlobMalformed` at every member alike, because the verdict depends on the bytes alone. The replica
gives such a blob one position and the outcome MALFORMED.
Decision: docs/decisions/0130-publishes-alike-travel-as-one.md.
"""

import types
from collections.abc import Sequence
from itertools import count, repeat
from typing import NamedTuple, TypeGuard, cast, get_args, get_type_hints

import msgpack

from broker.machine.commands import (
    ACTIVATE,
    CLASSES,
    DEFINE,
    PUBLISH,
    TX_COMMIT,
    VOTERS,
    Command,
    Publish,
)

BLOB_VERSION = 1
RUN = 127
"""A run, which is no command: publishes that differ only in their bodies and in their numbers,
which rise by one or are all 0. In place of number and body it has the first number and at least two
bodies."""
RUN_NUMBER_MAX = 1 << 62
BLOB_COMMANDS_MAX = 65_535
BODY_BYTES_MAX = 128 * 1024 * 1024
STRING_BYTES_MAX = 1024 * 1024
TABLE_DEPTH_MAX = 16
TABLE_ITEMS_MAX = 4096


class BlobMalformed(ValueError):
    """These bytes are not a blob; the reason names the first fault, alike at all members."""


class Blob(NamedTuple):
    session: int
    blob_no: int  # counts from 1 in its session, without gaps
    time_us: int  # the origin's wall clock
    commands: tuple[Command, ...]


def pack_blob(session: int, blob_no: int, time_us: int, commands: list[Command]) -> bytes:
    """Encode one ordered message. The caller keeps to BLOB_COMMANDS_MAX and to its frame budget."""
    records = _in_runs(commands)
    if commands and is_large(commands[-1][-1]):
        head = msgpack.packb((BLOB_VERSION, session, blob_no, time_us)), _array_head(len(records))
        parts = [with_more_items(head[0], 1), head[1]]
        for record in records:
            parts += _parts(record)
        return b"".join(parts)
    return cast("bytes", msgpack.packb((BLOB_VERSION, session, blob_no, time_us, records)))


def _in_runs(commands: list[Command]) -> Sequence[tuple[object, ...]]:
    """The commands in order, with runs in place of similar publishes."""
    records: list[tuple[object, ...]] = []
    at, end = 0, len(commands)
    while at < end:
        command = commands[at]
        bodies = _bodies_alike(commands, at) if command[0] == PUBLISH else ()
        if len(bodies) > 1:
            records.append((RUN, *command[1:8], bodies))
            at += len(bodies)
        else:
            records.append(command)
            at += 1
    return records


def _bodies_alike(commands: list[Command], at: int) -> list[bytes]:
    """The bodies of the publishes from this one on that form a run, which has no large bodies."""
    publishes = cast("list[Publish]", commands)
    _, conn, chan, number, exchange, key, flags, properties, _ = publishes[at]
    step = 1 if number else 0
    bodies: list[bytes] = []
    for index in range(at, len(publishes) if 0 <= number <= RUN_NUMBER_MAX else at):
        one = publishes[index]
        if one[0] != PUBLISH:
            break
        _, on, by, no, other, another, bits, given, body = one
        if no != number or by != chan or on != conn or len(body) >= LARGE_BYTES:
            break
        if another != key or other != exchange or bits != flags or given != properties:
            break
        bodies.append(body)
        number += step
    return bodies


LARGE_BYTES = 4096
"""From this size on it costs less to write their head here than to have msgpack copy them twice."""


def is_large(value: object) -> TypeGuard[bytes]:
    """Whether to pack these bytes as `head_of_bytes` followed by the bytes themselves."""
    return type(value) is bytes and len(value) >= LARGE_BYTES


def with_more_items(packed: bytes, count: int) -> bytes:
    """A packed tuple of a few items, changed so that this many more items may follow it."""
    return bytes((packed[0] + count,)) + packed[1:]


def head_of_bytes(value: bytes) -> bytes:
    """The head that msgpack puts before these bytes."""
    size = len(value)
    return b"\xc6" + size.to_bytes(4, "big") if size > 0xFFFF else b"\xc5" + size.to_bytes(2, "big")


def _array_head(count: int) -> bytes:
    return bytes((0x90 + count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def _parts(record: tuple[object, ...]) -> list[bytes]:
    body = record[-1]
    if not is_large(body):
        return [msgpack.packb(record)]
    return [with_more_items(msgpack.packb(record[:-1]), 1), head_of_bytes(body), body]


def unpack_blob(data: bytes) -> Blob:
    """Decode a blob; raises `BlobMalformed`, and nothing else, for any other bytes."""
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
    version, session, blob_no, time_us, records = envelope
    if version != BLOB_VERSION:
        msg = f"blob version {version} is not {BLOB_VERSION}"
        raise BlobMalformed(msg)
    if session < 0 or blob_no < 0 or time_us < 0:
        msg = "blob envelope has a negative number"
        raise BlobMalformed(msg)
    if not records:  # each command of an item moves the position by one
        msg = "blob has no command"
        raise BlobMalformed(msg)
    has_runs = False
    for index, record in enumerate(records):
        if type(record) is not tuple or not record or type(record[0]) is not int:
            msg = f"command {index} has no kind"
            raise BlobMalformed(msg)
        kind = record[0]
        shape = tuple(map(type, record))
        if _SHAPES.get(kind) != shape and _OTHER_SHAPES.get(kind) != shape:
            msg = f"command {index} of kind {kind} has another shape"
            raise BlobMalformed(msg)
        check = _CHECKS.get(kind)
        if check is not None and not check(record):
            msg = f"command {index} of kind {kind} has a bad item"
            raise BlobMalformed(msg)
        if kind == RUN:
            has_runs = True
    return Blob(session, blob_no, time_us, _without_runs(records) if has_runs else records)


def _without_runs(records: Sequence[tuple[object, ...]]) -> tuple[Command, ...]:
    """The commands that these records stand for."""
    commands: list[tuple[object, ...]] = []
    for record in records:
        if record[0] == RUN:
            _, conn, chan, first, exchange, key, flags, properties, bodies = cast("Publish", record)
            commands += zip(
                repeat(PUBLISH), repeat(conn), repeat(chan), count(first) if first else repeat(0),
                repeat(exchange), repeat(key), repeat(flags), repeat(properties), bodies,
            )  # fmt: skip
        else:
            commands.append(record)
        if len(commands) > BLOB_COMMANDS_MAX:
            msg = "blob has too many commands"
            raise BlobMalformed(msg)
    return cast("tuple[Command, ...]", tuple(commands))


_ENVELOPE = (int, int, int, int, tuple)


def _shape(record: type[Command]) -> tuple[type, ...]:
    """One type per item; the other type for an item that may be None."""
    hints = [
        get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
        for hint in get_type_hints(record).values()
    ]
    return tuple(cast("type", getattr(hint, "__origin__", hint)) for hint in hints)


_SHAPES = {kind: _shape(record) for kind, record in CLASSES.items()}
_SHAPES[RUN] = (*_SHAPES[PUBLISH][:-1], tuple)
_OTHER_SHAPES = {DEFINE: (*_SHAPES[DEFINE][:-1], type(None))}


def _has_good_table(command: tuple[object, ...]) -> bool:
    """Tables are walked recursively later, so their depth and types are bounded here."""
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


def _is_good_run(record: tuple[object, ...]) -> bool:
    bodies = cast("tuple[object, ...]", record[8])
    return (
        0 <= cast("int", record[3]) <= RUN_NUMBER_MAX
        and len(bodies) > 1
        and {*map(type, bodies)} == {bytes}
    )


_CHECKS = {kind: _has_good_table for kind, shape in _SHAPES.items() if dict in shape} | {
    TX_COMMIT: _is_good_commit,
    ACTIVATE: _is_good_activate,
    VOTERS: _is_good_voters,
    RUN: _is_good_run,
}
