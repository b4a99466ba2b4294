# mypy: disable-error-code="import-untyped"
"""Waiting messages as the bytes of a page, by columns; for this process only."""

from array import array
from itertools import repeat
from typing import TypeAlias

import msgpack

Row: TypeAlias = tuple[int, int, str, str, int, int, int, bytes, bytes]  # a state.Message

ONE = 0
"""With this begin the bytes of a single message; those of several with a head of msgpack."""


def pack(messages: tuple[Row, ...]) -> bytes:
    """Return messages as bytes, by columns; for this process only."""
    if len(messages) == 1:
        return _pack_one(messages[0])
    contents, numbers, exchanges, keys, flags, created_us, ttl_us, properties, bodies = zip(
        *messages, strict=True
    )
    return bytes(
        msgpack.packb(
            (
                array("Q", contents).tobytes(),
                array("Q", numbers).tobytes(),
                _once(exchanges),
                _once(keys),
                flags,
                array("q", created_us).tobytes(),
                array("q", ttl_us).tobytes(),
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
            array("Q", contents),
            array("Q", numbers),
            _each(exchanges, count),
            _each(keys, count),
            flags,
            array("q", created_us),
            array("q", ttl_us),
            properties,
            bodies,
            strict=True,
        )
    )


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
