"""The few properties of a message that the machine reads or writes, inside their bytes.

Properties travel verbatim; the machine looks into them only for `expiration`, for `headers` (the
headers exchange) and to write the x-death headers of a dead-lettered message. Bytes that are not
properties read as if the property were absent: the gateway has refused them long before.
"""

import struct
from typing import TypeAlias

from broker.machine.commands import Table, Value

HAS_HEADERS = 0x2000
HAS_DELIVERY_MODE = 0x1000
HAS_PRIORITY = 0x0800
HAS_EXPIRATION = 0x0100
_SHORT_STRINGS = (0x8000, 0x4000)  # before the headers
# bit, width (0 = short string), in wire order after the headers
_AFTER = ((0x1000, 1), (0x0800, 1), (0x0400, 0), (0x0200, 0), (0x0100, 0))
_DEPTH_MAX = 16
_INT_MAX = (1 << 63) - 1
_FAULTS = (IndexError, struct.error, ValueError, RecursionError)

Entry: TypeAlias = tuple[str, bytes, bytes]  # name; name as it came; type byte and value


def expiration_of(properties: bytes) -> bytes | None:
    """The text of the expiration property."""
    span = _spans(properties)
    if span is None or not int.from_bytes(properties[:2], "big") & HAS_EXPIRATION:
        return None
    return properties[span[2] + 1 : span[3]]


def priority_of(properties: bytes) -> int:
    span = _spans(properties)
    flags = int.from_bytes(properties[:2], "big")
    if span is None or not flags & HAS_PRIORITY:
        return 0
    return properties[span[1] + (flags & HAS_DELIVERY_MODE != 0)]


def headers_of(properties: bytes) -> Table:
    """The decoded headers table."""
    span = _spans(properties)
    if span is None or span[0] == span[1]:
        return {}
    try:
        return _table(properties, span[0], 0)[0]
    except _FAULTS:
        return {}


def raw_headers(properties: bytes) -> list[Entry]:
    """The headers undecoded, so that they can be written back exactly as they came."""
    span = _spans(properties)
    entries: list[Entry] = []
    if span is None or span[0] == span[1]:
        return entries
    try:
        at, end = span[0] + 4, span[1]
        while at < end:
            start = at
            name, at = _short(properties, at)
            _, after = _value(properties, at, 0)
            entries.append((name, properties[start:at], properties[at:after]))
            at = after
    except _FAULTS:
        return []
    return entries


def with_headers(properties: bytes, entries: list[Entry], keep_expiration: bool) -> bytes:
    """The same properties with these headers, with or without the expiration."""
    span = _spans(properties)
    flags = int.from_bytes(properties[:2], "big") if span is not None else 0
    before, start, exp_start, exp_end = span if span is not None else (2, 2, 2, 2)
    table = b"".join(raw_name + value for _, raw_name, value in entries)
    tail = properties[start:exp_start]
    if keep_expiration:
        tail += properties[exp_start:exp_end]
    else:
        flags &= ~HAS_EXPIRATION
    return b"".join(
        (
            (flags | HAS_HEADERS).to_bytes(2, "big"),
            properties[2:before],
            len(table).to_bytes(4, "big"),
            table,
            tail,
            properties[exp_end:],
        )
    )


def entry(name: str, value: bytes) -> Entry:
    return (name, short_string(name), value)


def short_string(text: str) -> bytes:
    data = text.encode()[:255]
    return bytes((len(data),)) + data


def encode_value(value: Value) -> bytes:
    """Type byte and value of what x-death is made of."""
    if isinstance(value, bool):
        return b"t" + bytes((value,))
    if isinstance(value, int):
        return b"l" + struct.pack(">q", min(max(value, -_INT_MAX), _INT_MAX))
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return b"S" + len(data).to_bytes(4, "big") + data
    if isinstance(value, tuple):
        data = b"".join(encode_value(item) for item in value)
        return b"A" + len(data).to_bytes(4, "big") + data
    if isinstance(value, dict):
        data = b"".join(short_string(name) + encode_value(item) for name, item in value.items())
        return b"F" + len(data).to_bytes(4, "big") + data
    return b"V"


def decode_value(data: bytes) -> Value:
    """The value of a raw header; None if it is none."""
    try:
        return _value(data, 0, 0)[0]
    except _FAULTS:
        return None


def _spans(properties: bytes) -> tuple[int, int, int, int] | None:
    """(headers start, headers end, expiration start, expiration end)."""
    if len(properties) < 2 or properties[1] & 1:
        return None
    flags = int.from_bytes(properties[:2], "big")
    at = 2
    try:
        for bit in _SHORT_STRINGS:
            if flags & bit:
                at += 1 + properties[at]
        headers = at
        if flags & HAS_HEADERS:
            at += 4 + int.from_bytes(properties[at : at + 4], "big")
        headers_end = at
        start = at
        for bit, width in _AFTER:
            start = at
            if flags & bit:
                at += width or 1 + properties[at]
    except IndexError:
        return None
    return (headers, headers_end, start, at) if at <= len(properties) else None


def _short(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode("utf-8", "replace"), end


def _table(data: bytes, at: int, depth: int) -> tuple[Table, int]:
    end = at + 4 + int.from_bytes(data[at : at + 4], "big")
    at += 4
    table: Table = {}
    while at < end:
        name, at = _short(data, at)
        table[name], at = _value(data, at, depth)
    return table, at


_FIXED = {
    ord("b"): ">b",
    ord("B"): ">B",
    ord("s"): ">h",
    ord("u"): ">H",
    ord("I"): ">i",
    ord("i"): ">I",
    ord("l"): ">q",
    ord("T"): ">Q",
    ord("f"): ">f",
    ord("d"): ">d",
}


def _value(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    kind = data[at]
    at += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return struct.unpack_from(fixed, data, at)[0], at + struct.calcsize(fixed)
    if kind == 0x74:  # t
        return data[at] != 0, at + 1
    if kind == 0x56:  # V
        return None, at
    if kind == 0x44:  # D: kept apart from other numbers
        return bytes(data[at : at + 5]), at + 5
    if kind in (0x53, 0x78):  # S, x
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            raise IndexError
        raw = data[at + 4 : end]
        if kind == 0x53:
            try:
                return raw.decode(), end
            except UnicodeDecodeError:
                return raw, end
        return raw, end
    if depth >= _DEPTH_MAX:
        raise ValueError
    if kind == 0x46:  # F
        return _table(data, at, depth + 1)
    if kind == 0x41:  # A
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        at += 4
        items: list[Value] = []
        while at < end:
            item, at = _value(data, at, depth + 1)
            items.append(item)
        return tuple(items), at
    raise ValueError
