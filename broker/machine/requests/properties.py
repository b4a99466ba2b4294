"""Reads and writes the few properties of a message that the machine needs, inside their bytes.

Properties travel verbatim. The machine looks into them only for `expiration`, for `headers` (the
headers exchange) and to write the x-death headers of a dead-lettered message. Bytes that are not
properties read as if the property were absent: the gateway has refused them long before.
"""

import struct
from functools import lru_cache
from typing import TypeAlias

from broker.machine.commands import Table, Value

HAS_HEADERS = 0x2000
HAS_DELIVERY_MODE = 0x1000
HAS_PRIORITY = 0x0800
HAS_EXPIRATION = 0x0100
_SHORT_STRINGS = (0x8000, 0x4000)  # before the headers
# bit, width (0 = short string), in wire order after the headers
_AFTER = ((0x1000, 1), (0x0800, 1), (0x0400, 0), (0x0200, 0), (0x0100, 0))
_DEPTH_MAX = 64  # as the gateway allows (broker/amqp/fields.py)
_INT_MAX = (1 << 63) - 1
_FAULTS = (IndexError, KeyError, struct.error, ValueError, RecursionError)

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


def property_of(properties: bytes, name: str) -> bytes:
    """The bytes of correlation_id, message_id or timestamp; none if it is absent."""
    span = _spans(properties)
    if span is None:
        return b""
    flags, at = int.from_bytes(properties[:2], "big"), span[1]
    before: tuple[tuple[int, int], ...]
    if name == "correlation_id":
        before, bit, width = ((HAS_DELIVERY_MODE, 1), (HAS_PRIORITY, 1)), 0x0400, 0
    elif name == "message_id":
        before, bit, width, at = (), 0x0080, 0, span[3]
    else:
        before, bit, width, at = ((0x0080, 0),), 0x0040, 8, span[3]
    try:
        for other, size in before:
            if flags & other:
                at += size or 1 + properties[at]
        start = at if width else at + 1
        return properties[start : start + (width or properties[at])] if flags & bit else b""
    except IndexError:
        return b""


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
    """The headers undecoded, so that they can be written back unchanged."""
    span = _spans(properties)
    if span is None or span[0] == span[1]:
        return []
    try:
        return entries_of(properties, span[0])
    except _FAULTS:
        return []


def entries_of(data: bytes, at: int) -> list[Entry]:
    """The entries of the table that begins with its length at `at`, undecoded."""
    at, end = _inside(data, at)
    entries: list[Entry] = []
    while at < end:
        start = at
        name, at = _short(data, at)
        after = skip_value(data, at)
        entries.append((name, data[start:at], data[at:after]))
        at = after
    if at != end:
        raise ValueError
    return entries


def items_of(value: bytes) -> list[bytes]:
    """The items of a raw array, undecoded; none if it is not an array."""
    items: list[bytes] = []
    try:
        if value[0] != _ARRAY:
            return []
        at, end = _inside(value, 1)
        while at < end:
            after = skip_value(value, at)
            items.append(value[at:after])
            at = after
    except _FAULTS:
        return []
    return items


def skip_value(data: bytes, at: int) -> int:
    """Where the value that starts at `at` ends. Nested values have a length in front, so nothing is
    walked; all types that clients may send are known."""
    kind = data[at]
    size = _SIZES[kind]
    if size is None:
        return _inside(data, at + 1)[1]
    at += 1 + size
    if at > len(data):
        raise IndexError
    return at


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


def with_header(properties: bytes, name: str, value: Value) -> bytes:
    """The same properties with this header, replacing one of this name."""
    kept = [one for one in raw_headers(properties) if one[0] != name]
    kept.append(entry(name, encode_value(value)))
    return with_headers(properties, kept, keep_expiration=True)


def with_new_header(properties: bytes, name: str, value: Value) -> bytes:
    """The same, faster where there is no header of this name yet."""
    span, raw_name = _spans(properties), short_string(name)
    if span is None or raw_name in properties[span[0] : span[1]]:
        return with_header(properties, name, value)
    start, end, _, _ = span
    table = properties[start + 4 : end] + raw_name + encode_value(value)
    flags = int.from_bytes(properties[:2], "big") | HAS_HEADERS
    length = len(table).to_bytes(4, "big")
    head = flags.to_bytes(2, "big") + properties[2:start]
    return b"".join((head, length, table, properties[end:]))


def entry(name: str, value: bytes) -> Entry:
    return (name, short_string(name), value)


def short_string(text: str) -> bytes:
    data = text.encode()[:255]
    return bytes((len(data),)) + data


def encode_value(value: Value) -> bytes:
    """Type byte and value of the components of x-death."""
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
    """The value of a raw header; None if there is none."""
    try:
        return _value(data, 0, 0)[0]
    except _FAULTS:
        return None


def header_of(properties: bytes, raw_name: bytes) -> Value:
    """The value of a header, given its name in wire format; None if it is absent. Of several with
    one name the last one counts."""
    if raw_name not in properties:
        return None
    raw = _raw_by_name(properties).get(raw_name)
    return decode_value(raw) if raw is not None else None


@lru_cache(maxsize=8)
def _raw_by_name(properties: bytes) -> dict[bytes, bytes]:
    """The headers undecoded, by their names in wire format. A message with thousands of headers may
    reach thousands of queues, each of which looks for one."""
    return {name: raw for _, name, raw in raw_headers(properties)}


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


def _inside(data: bytes, at: int) -> tuple[int, int]:
    """Begin and end of the content whose four-byte length is at `at`."""
    start = at + 4
    end = start + int.from_bytes(data[at:start], "big")
    if end > len(data):
        raise IndexError
    return start, end


def _table(data: bytes, at: int, depth: int) -> tuple[Table, int]:
    at, end = _inside(data, at)
    table: Table = {}
    while at < end:
        name, at = _short(data, at)
        table[name], at = _value(data, at, depth)
    if at != end:
        raise ValueError
    return table, at


_FIXED = {
    ord(kind): struct.Struct(form)
    for kind, form in (
        *(("b", ">b"), ("B", ">B"), ("s", ">h"), ("u", ">H"), ("I", ">i"), ("i", ">I")),
        *(("l", ">q"), ("L", ">q"), ("T", ">Q"), ("f", ">f"), ("d", ">d")),
    )
}
_BOOL, _VOID, _DECIMAL, _STRING, _BYTES, _TABLE, _ARRAY = b"tVDSxFA"
_LONG = (_STRING, _BYTES, _TABLE, _ARRAY)  # with a length in front
_SIZES: dict[int, int | None] = {
    **{kind: form.size for kind, form in _FIXED.items()},
    _BOOL: 1,
    _VOID: 0,
    _DECIMAL: 5,
    **dict.fromkeys(_LONG),
}


def _value(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    kind = data[at]
    at += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed.unpack_from(data, at)[0], at + fixed.size
    if kind == _BOOL:
        return data[at] != 0, at + 1
    if kind == _VOID:
        return None, at
    if kind == _DECIMAL:  # kept distinct from other numbers
        return data[at : at + 5], at + 5
    if kind not in _LONG or depth >= _DEPTH_MAX:
        raise ValueError
    if kind == _TABLE:
        return _table(data, at, depth + 1)
    at, end = _inside(data, at)
    if kind == _ARRAY:
        items: list[Value] = []
        while at < end:
            item, at = _value(data, at, depth + 1)
            items.append(item)
        if at != end:
            raise ValueError
        return tuple(items), at
    raw = data[at:end]
    if kind == _STRING:
        try:
            return raw.decode(), end
        except UnicodeDecodeError:
            return raw, end
    return raw, end
