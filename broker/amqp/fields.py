"""Field tables and the elementary types of AMQP 0-9-1, both ways.

The tags are those that brokers and clients agree on in practice: t b B s u I i l L f d D S x A F T
V. Every length is checked against the available bytes before anything is built from it, every step
moves forward, and nesting is bounded, so that no input can cost more than its own length.
"""

import struct
from typing import TypeAlias

from broker.amqp.errors import SYNTAX_ERROR, ProtocolFault

Value: TypeAlias = "bool | int | float | str | bytes | tuple[Value, ...] | dict[str, Value] | None"
Table: TypeAlias = dict[str, Value]

DEPTH_MAX = 64
SHORT_STRING_BYTES_MAX = 255


class Timestamp(int):
    """Seconds since 1970. Only the encoder distinguishes it from an int."""

    __slots__ = ()


class Long(int):
    """Encoded with eight bytes even if small, for receivers that check the type."""

    __slots__ = ()


class RawDecimal(bytes):
    """A decimal in wire format: the scale (one byte), the signed unscaled value (four bytes)."""

    __slots__ = ()


_FIXED: dict[int, struct.Struct] = {
    ord("b"): struct.Struct(">b"),
    ord("B"): struct.Struct(">B"),
    ord("s"): struct.Struct(">h"),
    ord("u"): struct.Struct(">H"),
    ord("I"): struct.Struct(">i"),
    ord("i"): struct.Struct(">I"),
    ord("l"): struct.Struct(">q"),
    ord("L"): struct.Struct(">q"),
    ord("f"): struct.Struct(">f"),
    ord("d"): struct.Struct(">d"),
}
_BOOL, _VOID, _DECIMAL, _TIME = ord("t"), ord("V"), ord("D"), ord("T")
_STRING, _BYTES, _ARRAY, _TABLE = ord("S"), ord("x"), ord("A"), ord("F")


def decode_short_string(data: bytes, at: int, end: int) -> tuple[str, int]:
    """The string and where it ends. Strings must be UTF-8, because names become text."""
    if at >= end:
        raise _short_of("short string", at)
    stop = at + 1 + data[at]
    if stop > end:
        raise _short_of("short string", at)
    try:
        return data[at + 1 : stop].decode(), stop
    except UnicodeDecodeError:
        raise _fault("short string is no UTF-8", at) from None


def decode_long_string(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    start, stop = _span("long string", data, at, end)
    return data[start:stop], stop


def decode_table(data: bytes, at: int, end: int, depth: int = 0) -> tuple[Table, int]:
    """The table that starts with its length at `at`; of equal names the last one counts."""
    at, stop = _span("table", data, at, end)
    if depth >= DEPTH_MAX:
        raise _fault("field values are nested too deeply", at)
    table: Table = {}
    while at < stop:
        name, at = decode_short_string(data, at, stop)
        table[name], at = _decode_value(data, at, stop, depth)
    return table, stop


def _decode_array(data: bytes, at: int, end: int, depth: int) -> tuple[tuple[Value, ...], int]:
    at, stop = _span("array", data, at, end)
    if depth >= DEPTH_MAX:
        raise _fault("field values are nested too deeply", at)
    items: list[Value] = []
    while at < stop:
        item, at = _decode_value(data, at, stop, depth)
        items.append(item)
    return tuple(items), stop


def _decode_value(data: bytes, at: int, end: int, depth: int) -> tuple[Value, int]:
    if at >= end:
        raise _short_of("field value", at)
    tag = data[at]
    at += 1
    if tag == _STRING:
        raw, at = decode_long_string(data, at, end)
        try:
            return raw.decode(), at
        except UnicodeDecodeError:
            return raw, at
    fixed = _FIXED.get(tag)
    if fixed is not None:
        stop = _need(at, fixed.size, end)
        value: Value = fixed.unpack_from(data, at)[0]
        return value, stop
    if tag == _BOOL:
        stop = _need(at, 1, end)
        return data[at] != 0, stop
    if tag == _VOID:
        return None, at
    if tag == _TIME:
        stop = _need(at, 8, end)
        return Timestamp.from_bytes(data[at:stop], "big"), stop
    if tag == _DECIMAL:
        stop = _need(at, 5, end)
        return RawDecimal(data[at:stop]), stop
    if tag == _TABLE:
        return decode_table(data, at, end, depth + 1)
    if tag == _ARRAY:
        return _decode_array(data, at, end, depth + 1)
    if tag == _BYTES:
        return decode_long_string(data, at, end)
    raise _fault(f"field value of unknown type {bytes((tag,))!r}", at - 1)


def encode_short_string(text: str) -> bytes:
    """Encode text of at most 255 bytes: the caller checks names, `clip` shortens free text."""
    data = text.encode()
    return bytes((len(data),)) + data


def clip(text: str) -> str:
    """Cut free text, such as that of a close method, so that it fits a short string."""
    data = text.encode("utf-8", "replace")
    if len(data) <= SHORT_STRING_BYTES_MAX:
        return data.decode()
    return data[: SHORT_STRING_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."


def encode_long_string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def encode_table(table: Table) -> bytes:
    return encode_long_string(
        b"".join(encode_short_string(name) + encode_value(item) for name, item in table.items())
    )


def encode_value(value: Value) -> bytes:
    """Encode tag and value. Whole numbers take `I`, or `l` if needed, as in other brokers."""
    match value:
        case None:
            return b"V"
        case bool():
            return b"t\x01" if value else b"t\x00"
        case Timestamp():
            return b"T" + value.to_bytes(8, "big")
        case int():
            if -(1 << 31) <= value < 1 << 31 and type(value) is not Long:
                return b"I" + value.to_bytes(4, "big", signed=True)
            return b"l" + value.to_bytes(8, "big", signed=True)
        case float():
            return b"d" + struct.pack(">d", value)
        case str():
            return b"S" + encode_long_string(value.encode())
        case RawDecimal():
            return b"D" + value
        case bytes():
            return b"x" + encode_long_string(value)
        case dict():
            return b"F" + encode_table(value)
        case tuple():
            return b"A" + encode_long_string(b"".join(encode_value(item) for item in value))


def _span(what: str, data: bytes, at: int, end: int) -> tuple[int, int]:
    """Begin and end of the content whose four-byte length is here."""
    if end - at < 4:
        raise _short_of(what, at)
    stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
    if stop > end:
        raise _short_of(what, at)
    return at + 4, stop


def _need(at: int, size: int, end: int) -> int:
    if end - at < size:
        raise _short_of("field value", at)
    return at + size


def _short_of(what: str, at: int) -> ProtocolFault:
    return _fault(f"{what} is longer than what holds it", at)


def _fault(text: str, at: int) -> ProtocolFault:
    return ProtocolFault(SYNTAX_ERROR, f"{text} (byte {at})")
