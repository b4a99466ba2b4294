# mypy: disable-error-code="import-untyped"
"""Waiting messages as the bytes of a page, by columns.

A checkpoint has pages as they are, so these bytes outlive the process and reach other members:
another layout needs another name among the items of a snapshot (`machine/image/snapshot.py`).
"""

import sys
from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import TypeAlias

import msgpack

Row: TypeAlias = tuple[int, int, str, str, int, int, int, bytes, bytes]  # a state.Message

HASHES_BYTES_MAX = 4 << 10
"""The hashes of a block are within so many bytes from its beginning."""
ONE = 0
"""With this begin the bytes of a single message; those of several with a head of msgpack."""


def pack(messages: tuple[Row, ...]) -> bytes:
    """Return messages as bytes, by columns, the hashes of their contents first."""
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


def contents_of(data: bytes) -> Sequence[int]:
    """Return the hashes of the contents of the messages that were packed, and look at no more."""
    if data[0] == ONE:
        return (_unpack_one(data)[0],)
    head = msgpack.Unpacker(max_buffer_size=0)
    head.feed(memoryview(data)[:HASHES_BYTES_MAX])
    head.read_array_header()
    return _numbers("Q", head.unpack())


def _column(kind: str, numbers: tuple[int, ...]) -> bytes:
    """Little endian, whatever this machine is."""
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
    """It may be large, and nothing else goes on while it is copied: once, that is."""
    head = msgpack.packb(message[:-1])
    return b"".join((bytes((ONE,)), len(head).to_bytes(4, "big"), head, message[-1]))


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
