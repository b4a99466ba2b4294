# mypy: disable-error-code="import-untyped"
"""The format of a page: waiting messages as bytes, by columns.

A checkpoint contains pages unchanged, so these bytes outlive the process and reach other members:
another layout needs another name among the items of a snapshot (`machine/image/snapshot.py`).
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import TypeAlias

import msgpack

from broker.waiting.bodies import Body, LargeBody, in_parts

Row: TypeAlias = tuple[int, int, str, str, int, int, int, bytes, Body]  # a state.Message

HASHES_BYTES_MAX = 4 << 10
"""The hashes of a block lie within this many bytes of its beginning."""
ONE, LARGE = 0, 1
"""The first byte of a single message, and of several messages with large bodies, which follow all
else; any other page begins with a msgpack head."""
LARGE_BYTES = 1 << 20
"""Messages with more bytes of large bodies than this are written and read part by part, and no
checkpoint contains their page unchanged."""


def pack(messages: tuple[Row, ...]) -> bytes | list[bytes]:
    """Return messages as bytes, by columns, the hashes of their contents first; with large bodies
    among them, as a list of parts, so that these are never joined."""
    large = [body for *_, body in messages if type(body) is LargeBody]
    if sum(map(len, large)) > LARGE_BYTES:
        return _pack_large(messages, large)
    if large:
        messages = tuple([(*one[:-1], bytes(one[-1])) for one in messages])
    return _pack(messages)


def _pack(messages: tuple[Row, ...]) -> bytes:
    if len(messages) == 1:
        return _pack_one(messages[0])
    contents, numbers, exchanges, keys, flags, created_us, ttl_us, properties, bodies = zip(
        *messages, strict=True
    )
    return bytes(
        msgpack.packb(
            (
                _column("Q", contents),
                _column("Q", numbers),
                _once(exchanges),
                _once(keys),
                flags,
                _column("q", created_us),
                _column("q", ttl_us),
                properties,
                bodies,
            )
        )
    )


def unpack(data: bytes | memoryview) -> tuple[Row, ...]:
    """Return the messages that were packed."""
    if data[0] == ONE:
        return (_unpack_one(data),)
    contents, numbers, exchanges, keys, flags, created_us, ttl_us, properties, bodies = (
        msgpack.unpackb(data, use_list=False)
    )
    count = len(bodies)
    return tuple(
        zip(
            _numbers("Q", contents),
            _numbers("Q", numbers),
            _each(exchanges, count),
            _each(keys, count),
            flags,
            _numbers("q", created_us),
            _numbers("q", ttl_us),
            properties,
            bodies,
            strict=True,
        )
    )


def unpack_large(pieces: Iterator[bytes]) -> tuple[Row, ...]:
    """Return the packed messages, from pieces of any size, which are consumed in order, to the
    last."""
    data = next(pieces)
    if data[0] not in (ONE, LARGE):
        return unpack(b"".join((data, *pieces)))
    while len(data) < (end := 5 + int.from_bytes(data[1:5], "big")):
        data += next(pieces)
    head = msgpack.unpackb(data[5:end], use_list=False)
    left = chain((data[end:],) if len(data) > end else (), pieces)
    if data[0] == ONE:
        row: Row = (*head, in_parts(left))
        return (row,)
    *rows, sizes = head
    rest = b""
    messages: list[Row] = []
    for row, size in zip(rows, sizes, strict=True):
        if size < 0:
            messages.append(row)
            continue
        parts: list[bytes] = []
        while size:
            rest = rest or next(left)
            parts.append(rest[:size])
            size, rest = size - len(parts[-1]), rest[size:]
        messages.append((*row[:-1], in_parts(parts)))
    for _ in left:
        pass  # the reader compares the checksum at the end
    return tuple(messages)


def contents_of(data: bytes) -> Sequence[int]:
    """Return the hashes of the packed messages' contents, and read nothing else."""
    if data[0] == ONE:
        return (_unpack_one(data)[0],)
    head = msgpack.Unpacker(max_buffer_size=0)
    head.feed(memoryview(data)[:HASHES_BYTES_MAX])
    head.read_array_header()
    return _numbers("Q", head.unpack())


def _column(kind: str, numbers: tuple[int, ...]) -> bytes:
    """Return a column, little endian on any machine."""
    column = array(kind, numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _numbers(kind: str, column: bytes) -> "array[int]":
    numbers = array(kind, column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _pack_one(message: Row) -> bytes:
    """Pack a single message, which may be of some size, and is copied once."""
    head = msgpack.packb(message[:-1])
    return b"".join((bytes((ONE,)), len(head).to_bytes(4, "big"), head, bytes(message[-1])))


def _pack_large(messages: tuple[Row, ...], large: list[LargeBody]) -> list[bytes]:
    """Pack rows without the large bodies, then the lengths of these, then the bodies."""
    rows = [(*one[:-1], b"") if type(one[-1]) is LargeBody else one for one in messages]
    sizes = [len(one[-1]) if type(one[-1]) is LargeBody else -1 for one in messages]
    head = msgpack.packb((*rows, sizes))
    packed = [bytes((LARGE,)) + len(head).to_bytes(4, "big") + head]
    for body in large:
        packed += body.parts
    return packed


def _unpack_one(data: bytes | memoryview) -> Row:
    end = 5 + int.from_bytes(data[1:5], "big")
    row: Row = (*msgpack.unpackb(data[5:end], use_list=False), bytes(data[end:]))
    return row


def _once(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Most often they are all the same."""
    return texts[:1] if texts.count(texts[0]) == len(texts) else texts


def _each(texts: tuple[str, ...], count: int) -> list[str]:
    """Equal ones are one string, as they are where they come from a route."""
    if len(texts) == 1:
        return list(repeat(texts[0], count))
    shared: dict[str, str] = {}
    return [shared.setdefault(text, text) for text in texts]
