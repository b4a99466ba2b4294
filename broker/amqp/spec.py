"""The methods of AMQP 0-9-1 as data, including later additions by brokers.

A field whose name starts with an underscore is reserved: it is read and written as zero, and is not
among the arguments that this package returns or takes. `encode_method` and `decode_method` are
driven by the table; `codec` has faster functions for the few hot methods.
"""

import struct
from typing import NamedTuple, cast

from broker.amqp.errors import FRAME_ERROR, NOT_IMPLEMENTED, SYNTAX_ERROR, ProtocolFault
from broker.amqp.fields import (
    Table,
    Value,
    decode_long_string,
    decode_short_string,
    decode_table,
    encode_long_string,
    encode_short_string,
    encode_table,
)

# "name class method side content: field type, ..." ; side c = from clients, s = from servers.
_METHODS = """
connection.start 10 10 s: version_major octet, version_minor octet, server_properties table, mechanisms longstr, locales longstr
connection.start-ok 10 11 c: client_properties table, mechanism shortstr, response longstr, locale shortstr
connection.secure 10 20 s: challenge longstr
connection.secure-ok 10 21 c: response longstr
connection.tune 10 30 s: channel_max short, frame_max long, heartbeat short
connection.tune-ok 10 31 c: channel_max short, frame_max long, heartbeat short
connection.open 10 40 c: virtual_host shortstr, _capabilities shortstr, _insist bit
connection.open-ok 10 41 s: known_hosts shortstr
connection.close 10 50 cs: reply_code short, reply_text shortstr, class_id short, method_id short
connection.close-ok 10 51 cs:
connection.blocked 10 60 s: reason shortstr
connection.unblocked 10 61 s:
connection.update-secret 10 70 c: new_secret longstr, reason shortstr
connection.update-secret-ok 10 71 s:
channel.open 20 10 c: _out_of_band shortstr
channel.open-ok 20 11 s: _channel_id longstr
channel.flow 20 20 cs: active bit
channel.flow-ok 20 21 cs: active bit
channel.close 20 40 cs: reply_code short, reply_text shortstr, class_id short, method_id short
channel.close-ok 20 41 cs:
exchange.declare 40 10 c: _ticket short, exchange shortstr, type shortstr, passive bit, durable bit, auto_delete bit, internal bit, nowait bit, arguments table
exchange.declare-ok 40 11 s:
exchange.delete 40 20 c: _ticket short, exchange shortstr, if_unused bit, nowait bit
exchange.delete-ok 40 21 s:
exchange.bind 40 30 c: _ticket short, destination shortstr, source shortstr, routing_key shortstr, nowait bit, arguments table
exchange.bind-ok 40 31 s:
exchange.unbind 40 40 c: _ticket short, destination shortstr, source shortstr, routing_key shortstr, nowait bit, arguments table
exchange.unbind-ok 40 51 s:
queue.declare 50 10 c: _ticket short, queue shortstr, passive bit, durable bit, exclusive bit, auto_delete bit, nowait bit, arguments table
queue.declare-ok 50 11 s: queue shortstr, message_count long, consumer_count long
queue.bind 50 20 c: _ticket short, queue shortstr, exchange shortstr, routing_key shortstr, nowait bit, arguments table
queue.bind-ok 50 21 s:
queue.purge 50 30 c: _ticket short, queue shortstr, nowait bit
queue.purge-ok 50 31 s: message_count long
queue.delete 50 40 c: _ticket short, queue shortstr, if_unused bit, if_empty bit, nowait bit
queue.delete-ok 50 41 s: message_count long
queue.unbind 50 50 c: _ticket short, queue shortstr, exchange shortstr, routing_key shortstr, arguments table
queue.unbind-ok 50 51 s:
basic.qos 60 10 c: prefetch_size long, prefetch_count short, global bit
basic.qos-ok 60 11 s:
basic.consume 60 20 c: _ticket short, queue shortstr, consumer_tag shortstr, no_local bit, no_ack bit, exclusive bit, nowait bit, arguments table
basic.consume-ok 60 21 s: consumer_tag shortstr
basic.cancel 60 30 cs: consumer_tag shortstr, nowait bit
basic.cancel-ok 60 31 cs: consumer_tag shortstr
basic.publish 60 40 c content: _ticket short, exchange shortstr, routing_key shortstr, mandatory bit, immediate bit
basic.return 60 50 s content: reply_code short, reply_text shortstr, exchange shortstr, routing_key shortstr
basic.deliver 60 60 s content: consumer_tag shortstr, delivery_tag longlong, redelivered bit, exchange shortstr, routing_key shortstr
basic.get 60 70 c: _ticket short, queue shortstr, no_ack bit
basic.get-ok 60 71 s content: delivery_tag longlong, redelivered bit, exchange shortstr, routing_key shortstr, message_count long
basic.get-empty 60 72 s: _cluster_id shortstr
basic.ack 60 80 cs: delivery_tag longlong, multiple bit
basic.reject 60 90 c: delivery_tag longlong, requeue bit
basic.recover-async 60 100 c: requeue bit
basic.recover 60 110 c: requeue bit
basic.recover-ok 60 111 s:
basic.nack 60 120 cs: delivery_tag longlong, multiple bit, requeue bit
confirm.select 85 10 c: nowait bit
confirm.select-ok 85 11 s:
tx.select 90 10 c:
tx.select-ok 90 11 s:
tx.commit 90 20 c:
tx.commit-ok 90 21 s:
tx.rollback 90 30 c:
tx.rollback-ok 90 31 s:
"""  # noqa: E501


class Field(NamedTuple):
    name: str
    type: str

    @property
    def reserved(self) -> bool:
        return self.name.startswith("_")


class Method(NamedTuple):
    """One row of the table. `wire_id` is the four bytes with which its frame's payload begins."""

    name: str
    class_id: int
    method_id: int
    by_client: bool
    by_server: bool
    has_content: bool
    fields: tuple[Field, ...]
    wire_id: bytes


def _parse(line: str) -> Method:
    head, _, tail = line.partition(":")
    name, class_id, method_id, side, *content = head.split()
    fields = tuple(Field(*item.split()) for item in tail.split(",") if item.strip())
    wire_id = struct.pack(">HH", int(class_id), int(method_id))
    return Method(
        name,
        int(class_id),
        int(method_id),
        "c" in side,
        "s" in side,
        bool(content),
        fields,
        wire_id,
    )


METHODS: dict[str, Method] = {
    method.name: method for method in map(_parse, _METHODS.strip().splitlines())
}
BY_INDEX: dict[bytes, Method] = {method.wire_id: method for method in METHODS.values()}

_ZERO: dict[str, Value] = {
    "octet": 0, "short": 0, "long": 0, "longlong": 0, "bit": False,
    "shortstr": "", "longstr": b"", "table": {},
}  # fmt: skip
_SIZES = {"octet": 1, "short": 2, "long": 4, "longlong": 8}


def encode_method(name: str, args: tuple[Value, ...] = ()) -> bytes:
    """The payload of a method frame; `args` without the reserved fields."""
    method = METHODS[name]
    values = iter(args)
    parts = [method.wire_id]
    bits = bit_count = 0
    for field in method.fields:
        value = _ZERO[field.type] if field.reserved else next(values)
        if field.type == "bit":
            bits |= bool(value) << bit_count
            bit_count += 1
            continue
        if bit_count:
            parts.append(bytes((bits,)))
            bits = bit_count = 0
        parts.append(_encode_field(field.type, value))
    if bit_count:
        parts.append(bytes((bits,)))
    assert next(values, None) is None, f"too many arguments for {name}"
    return b"".join(parts)


def _encode_field(kind: str, value: Value) -> bytes:
    if kind == "shortstr":
        return encode_short_string(cast("str", value))
    if kind == "longstr":
        return encode_long_string(cast("bytes", value))
    if kind == "table":
        return encode_table(cast("Table", value))
    return cast("int", value).to_bytes(_SIZES[kind], "big")


def decode_method(data: bytes, at: int, end: int) -> tuple[Method, tuple[Value, ...]]:
    """The method whose frame payload is `data[at:end]`, and its arguments."""
    if end - at < 4:
        raise ProtocolFault(FRAME_ERROR, f"method frame of {end - at} bytes names no method")
    method = BY_INDEX.get(bytes(data[at : at + 4]))
    if method is None:
        class_id, method_id = struct.unpack_from(">HH", data, at)
        text = f"there is no method {method_id} in class {class_id}"
        raise ProtocolFault(NOT_IMPLEMENTED, text, class_id, method_id)
    try:
        return method, _decode_fields(method, data, at + 4, end)
    except ProtocolFault as fault:
        text = f"{method.name}: {fault.text}"
        raise ProtocolFault(fault.code, text, method.class_id, method.method_id) from None


def _decode_fields(method: Method, data: bytes, at: int, end: int) -> tuple[Value, ...]:
    args: list[Value] = []
    bits = bit_count = 0
    for field in method.fields:
        value: Value
        if field.type == "bit":
            if bit_count == 0:
                bits, at = _decode_number(field, data, at, end, 1)
            value = bits >> bit_count & 1 == 1
            bit_count += 1
        else:
            bit_count = 0
            if field.type == "shortstr":
                value, at = decode_short_string(data, at, end)
            elif field.type == "longstr":
                value, at = decode_long_string(data, at, end)
            elif field.type == "table":
                value, at = decode_table(data, at, end)
            else:
                value, at = _decode_number(field, data, at, end, _SIZES[field.type])
        if not field.reserved:
            args.append(value)
    if at != end:
        raise ProtocolFault(SYNTAX_ERROR, f"{end - at} bytes are left after the last argument")
    return tuple(args)


def _decode_number(field: Field, data: bytes, at: int, end: int, size: int) -> tuple[int, int]:
    if end - at < size:
        text = f"the frame ends before the argument {field.name.strip('_')}"
        raise ProtocolFault(SYNTAX_ERROR, text)
    return int.from_bytes(data[at : at + size], "big"), at + size
