"""Frames, content headers, and the hot methods, both ways. Pure functions over bytes.

A sender appends to its own bytearray (one per connection and loop turn). A receiver uses
`split_frames`, or walks its buffer itself, as `frame_reader` does.

A load client needs: `append_publish`, `append_method` for all the rest, `split_frames`,
`decode_deliver`, `decode_ack`, `decode_content_header`, and `spec.decode_method` for replies.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from broker.amqp.errors import FRAME_ERROR, SYNTAX_ERROR, UNEXPECTED_FRAME, ProtocolFault
from broker.amqp.fields import (
    Table,
    Value,
    decode_short_string,
    decode_table,
    encode_short_string,
    encode_table,
)
from broker.amqp.spec import encode_method

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEADER_OF_0_9 = b"AMQP\x01\x01\x00\x09"
"""The header of AMQP 0-9; libraries that send it mean 0-9-1, and RabbitMQ takes it as that."""
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
FRAME_OVERHEAD_BYTES = 8
FRAME_MAX_BYTES = 131_072
RECEIVED_BYTES_MAX = 1 << 20
"""The largest payload that a client of ours takes: more than any frame size that it agreed to. A
content header cannot be split, may have filled a frame when it was published, and grows where the
broker adds headers to it, such as those of a dead letter."""
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

PUBLISH_INDEX = b"\x00\x3c\x00\x28"
DELIVER_INDEX = b"\x00\x3c\x00\x3c"
ACK_INDEX = b"\x00\x3c\x00\x50"
NACK_INDEX = b"\x00\x3c\x00\x78"

FRAME_HEAD = struct.Struct(">BHI")
HEADER_HEAD = struct.Struct(">BHIHHQ")  # a header frame up to its property flags
_ACK = struct.Struct(">BHI4sQBB")
_TAG_BITS = struct.Struct(">QB")

PERSISTENT = 4  # of Properties.flags; the bits of basic.publish take 1 and 2


class Frame(NamedTuple):
    """A frame inside a buffer: its payload is `data[start:end]`."""

    kind: int
    channel: int
    start: int
    end: int


def split_frames(
    data: bytes | bytearray, at: int = 0, payload_max: int = RECEIVED_BYTES_MAX
) -> tuple[list[Frame], int]:
    """The whole frames from `at` on, and where the first incomplete one starts."""
    frames: list[Frame] = []
    size = len(data)
    while size - at >= FRAME_OVERHEAD_BYTES:
        kind, channel, length = FRAME_HEAD.unpack_from(data, at)
        end = at + 7 + length
        if length > payload_max:
            raise ProtocolFault(FRAME_ERROR, f"frame of {length} bytes on channel {channel}")
        if end >= size:
            break
        if data[end] != FRAME_END:
            raise ProtocolFault(FRAME_ERROR, f"frame on channel {channel} has no end octet")
        frames.append(Frame(kind, channel, at + 7, end))
        at = end + 1
    return frames, at


def append_frame(out: bytearray, kind: int, channel: int, payload: bytes | memoryview) -> None:
    out += FRAME_HEAD.pack(kind, channel, len(payload))
    out += payload
    out.append(FRAME_END)


def append_method(out: bytearray, channel: int, name: str, args: tuple[Value, ...] = ()) -> None:
    """One method without content; `args` without the reserved fields (see `spec`)."""
    append_frame(out, METHOD, channel, encode_method(name, args))


def content_header_fits(properties: bytes, frame_max: int) -> bool:
    """Whether a content header with these properties fits a frame: headers cannot be split."""
    return len(properties) + HEADER_HEAD.size + 1 <= frame_max


def append_content(
    out: bytearray, channel: int, properties: bytes, body: bytes, frame_max: int
) -> None:
    """Append content header and body frames. `properties` are the flags and the list, verbatim."""
    size = len(body)
    out += HEADER_HEAD.pack(HEADER, channel, 12 + len(properties), 60, 0, size)
    out += properties
    room = frame_max - FRAME_OVERHEAD_BYTES
    if 0 < size <= room:
        out += b"\xce\x03"
        out += channel.to_bytes(2, "big")
        out += size.to_bytes(4, "big")
        out += body
        out.append(FRAME_END)
        return
    out.append(FRAME_END)
    whole = memoryview(body)
    for at in range(0, size, room):
        append_frame(out, BODY, channel, whole[at : at + room])


def append_content_header(out: bytearray, channel: int, properties: bytes, size: int) -> None:
    """Append the content header alone; `body_frames` follow."""
    out += HEADER_HEAD.pack(HEADER, channel, 12 + len(properties), 60, 0, size)
    out += properties
    out.append(FRAME_END)


def body_frames(channel: int, parts: Iterable[bytes], frame_max: int) -> Iterator[bytes]:
    """The frames of a body in parts: no frame has bytes of two parts."""
    room = frame_max - FRAME_OVERHEAD_BYTES
    for part in parts:
        whole = memoryview(part)
        for at in range(0, len(part), room):
            payload = whole[at : at + room]
            yield b"".join((FRAME_HEAD.pack(BODY, channel, len(payload)), payload, b"\xce"))


def append_publish(
    out: bytearray,
    channel: int,
    exchange: str,
    key: str,
    properties: bytes,
    body: bytes,
    *,
    mandatory: bool = False,
    frame_max: int = FRAME_MAX_BYTES,
) -> None:
    """basic.publish with its content."""
    payload = b"%b\x00\x00%b%b%b" % (
        PUBLISH_INDEX,
        encode_short_string(exchange),
        encode_short_string(key),
        b"\x01" if mandatory else b"\x00",
    )
    append_frame(out, METHOD, channel, payload)
    append_content(out, channel, properties, body, frame_max)


def append_deliver(
    out: bytearray,
    channel: int,
    consumer_tag: bytes,
    delivery_tag: int,
    redelivered: bool,
    address: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> None:
    """Append basic.deliver with its content, in few steps: `consumer_tag` and `address` (exchange,
    then key) are encoded short strings that the caller caches, because they repeat."""
    size = len(body)
    tag_size = len(consumer_tag)
    out += FRAME_HEAD.pack(METHOD, channel, 13 + tag_size + len(address))
    out += DELIVER_INDEX
    out += consumer_tag
    out += _TAG_BITS.pack(delivery_tag, redelivered)
    out += address
    if 0 < size <= frame_max - FRAME_OVERHEAD_BYTES:
        out.append(FRAME_END)
        out += HEADER_HEAD.pack(HEADER, channel, 12 + len(properties), 60, 0, size)
        out += properties
        out.append(FRAME_END)
        out += FRAME_HEAD.pack(BODY, channel, size)
        out += body
        out.append(FRAME_END)
    else:
        out.append(FRAME_END)
        append_content(out, channel, properties, body, frame_max)


Delivery: TypeAlias = tuple[int, bool, bytes, bytes]
"""Tag, redelivered flag, properties and body."""


def append_deliveries(
    out: bytearray,
    channel: int,
    consumer_tag: bytes,
    address: bytes,
    deliveries: Iterable[Delivery],
    frame_max: int,
) -> None:
    """`append_deliver` of messages to one consumer with one address. The bytes between the numbers
    and the bodies are made once for all messages with the same properties and length, and
    everything is joined."""
    method = FRAME_HEAD.pack(METHOD, channel, 13 + len(consumer_tag) + len(address))
    method += DELIVER_INDEX + consumer_tag
    parts: list[bytes | bytearray] = []
    pack, room = _TAG_BITS.pack, frame_max - FRAME_OVERHEAD_BYTES
    size, before, between = -1, b"", b""
    for delivery_tag, redelivered, properties, body in deliveries:
        if len(body) != size or properties != before:
            size, before = len(body), properties
            if not 0 < size <= room:
                size, one = -1, bytearray()
                append_deliver(
                    one, channel, consumer_tag, delivery_tag, redelivered, address, properties,
                    body, frame_max,
                )  # fmt: skip
                parts.append(one)
                continue
            header = HEADER_HEAD.pack(HEADER, channel, 12 + len(properties), 60, 0, size)
            between = b"%b\xce%b%b\xce%b" % (
                address, header, properties, FRAME_HEAD.pack(BODY, channel, size),
            )  # fmt: skip
        parts += (method, pack(delivery_tag, redelivered), between, body, b"\xce")
    out += b"".join(parts)


def append_ack(out: bytearray, channel: int, delivery_tag: int, multiple: bool) -> None:
    out += _ACK.pack(METHOD, channel, 13, ACK_INDEX, delivery_tag, multiple, FRAME_END)


def append_nack(
    out: bytearray, channel: int, delivery_tag: int, multiple: bool, requeue: bool
) -> None:
    bits = multiple | requeue << 1
    out += _ACK.pack(METHOD, channel, 13, NACK_INDEX, delivery_tag, bits, FRAME_END)


class Deliver(NamedTuple):
    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    key: str


def decode_deliver(data: bytes, at: int, end: int) -> Deliver:
    """The payload of a method frame that begins with DELIVER_INDEX."""
    tag, at = decode_short_string(data, at + 4, end)
    if end - at < 9:
        raise ProtocolFault(SYNTAX_ERROR, "basic.deliver is cut short", 60, 60)
    delivery_tag, redelivered = _TAG_BITS.unpack_from(data, at)
    exchange, at = decode_short_string(data, at + 9, end)
    key, at = decode_short_string(data, at, end)
    return Deliver(tag, delivery_tag, redelivered & 1 == 1, exchange, key)


def decode_ack(data: bytes, at: int, end: int) -> tuple[int, bool]:
    """Delivery tag and multiple, of a method frame that begins with ACK_INDEX or NACK_INDEX."""
    if end - at != 13:
        raise ProtocolFault(SYNTAX_ERROR, "basic.ack of another length than 13 bytes", 60, 80)
    tag, bits = _TAG_BITS.unpack_from(data, at + 4)
    return tag, bits & 1 == 1


class ContentHeader(NamedTuple):
    body_bytes: int
    properties: bytes  # flags and list, verbatim


def decode_content_header(data: bytes, at: int, end: int) -> ContentHeader:
    """Decode the payload of a header frame, without looking into the properties."""
    if end - at < 14:
        raise ProtocolFault(SYNTAX_ERROR, f"content header of {end - at} bytes")
    class_id = int.from_bytes(data[at : at + 2], "big")
    if class_id != 60:
        raise ProtocolFault(UNEXPECTED_FRAME, f"content header of class {class_id}, not of basic")
    size = int.from_bytes(data[at + 4 : at + 12], "big")
    return ContentHeader(size, bytes(data[at + 12 : end]))


class Properties(NamedTuple):
    """The properties of a message that the broker needs."""

    flags: int  # PERSISTENT or 0
    user_id: bytes | None


# bit, and the encoding of the property: a short string, a table, or that many bytes
_PROPERTIES: tuple[tuple[int, str, int], ...] = (
    (0x8000, "content_type", 0),
    (0x4000, "content_encoding", 0),
    (0x2000, "headers", -1),
    (0x1000, "delivery_mode", 1),
    (0x0800, "priority", 1),
    (0x0400, "correlation_id", 0),
    (0x0200, "reply_to", 0),
    (0x0100, "expiration", 0),
    (0x0080, "message_id", 0),
    (0x0040, "timestamp", 8),
    (0x0020, "type", 0),
    (0x0010, "user_id", 0),
    (0x0008, "app_id", 0),
    (0x0004, "cluster_id", 0),
)


def encode_properties(values: Table) -> bytes:
    """Flags and list of the named properties: str, int, and a table for `headers`; bytes stand for
    a text that is no UTF-8."""
    flags = 0
    parts: list[bytes] = []
    for bit, name, width in _PROPERTIES:
        value = values.get(name)
        if value is None:
            continue
        flags |= bit
        if isinstance(value, dict):
            parts.append(encode_table(value))
        elif isinstance(value, int):
            parts.append(value.to_bytes(width, "big"))
        elif isinstance(value, bytes):
            parts.append(bytes((len(value),)) + value)
        else:
            assert isinstance(value, str), name
            parts.append(encode_short_string(value))
    return flags.to_bytes(2, "big") + b"".join(parts)


def inspect_properties(data: bytes) -> Properties:
    """Walk all properties, so that nothing gets in that consumers could not read."""
    end = len(data)
    if end < 2:
        raise ProtocolFault(SYNTAX_ERROR, "content header without property flags", 60, 40)
    flags = int.from_bytes(data[:2], "big")
    if flags & 3:
        text = f"property flags {flags:#06x} name properties that basic has not"
        raise ProtocolFault(SYNTAX_ERROR, text, 60, 40)
    at = 2
    persistent = 0
    user_id: bytes | None = None
    for bit, name, width in _PROPERTIES:
        if not flags & bit:
            continue
        start = at
        if width < 0:
            _, at = decode_table(data, at, end)
        elif width == 0:
            at = at + 1 + data[at] if at < end else end + 1
        else:
            at += width
        if at > end:
            raise ProtocolFault(SYNTAX_ERROR, f"property {name} is cut short", 60, 40)
        if bit == 0x1000 and data[start] == 2:
            persistent = PERSISTENT
        elif bit == 0x0010:
            user_id = data[start + 1 : at]
    if at != end:
        raise ProtocolFault(SYNTAX_ERROR, f"{end - at} bytes after the last property", 60, 40)
    return Properties(persistent, user_id)


def decode_properties(data: bytes) -> Table:
    """The named properties, for clients and tools; a text that is no UTF-8 stays bytes."""
    inspect_properties(data)
    flags = int.from_bytes(data[:2], "big")
    values: Table = {}
    at, end = 2, len(data)
    for bit, name, width in _PROPERTIES:
        if not flags & bit:
            continue
        if width < 0:
            values[name], at = decode_table(data, at, end)
        elif width == 0:
            start, at = at + 1, at + 1 + data[at]
            try:
                values[name] = data[start:at].decode()
            except UnicodeDecodeError:
                values[name] = data[start:at]
        else:
            values[name] = int.from_bytes(data[at : at + width], "big")
            at += width
    return values
