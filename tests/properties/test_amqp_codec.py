"""The codec against pamqp, an independent implementation, and against arbitrary bytes."""

import contextlib
import datetime
import decimal
from typing import Any

import pamqp.commands
import pamqp.decode
import pamqp.encode
import pamqp.frame
import pamqp.header
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.amqp import codec, spec
from broker.amqp.errors import ProtocolFault
from broker.amqp.fields import (
    RawDecimal,
    Table,
    Timestamp,
    Value,
    decode_table,
    encode_table,
)
from broker.amqp.fields import encode_short_string as short

names = st.text(max_size=20).filter(lambda text: len(text.encode()) <= 80)
scalars: st.SearchStrategy[Value] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=30),
    st.binary(max_size=30),
    st.integers(0, (1 << 32) - 1).map(Timestamp),
    st.tuples(st.integers(0, 20), st.integers(0, (1 << 31) - 1)).map(
        lambda pair: RawDecimal(bytes((pair[0],)) + pair[1].to_bytes(4, "big"))
    ),
)


def _extend(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    arrays: st.SearchStrategy[Value] = st.lists(inner, max_size=4).map(tuple)
    return st.one_of(arrays, st.dictionaries(names, inner, max_size=4))


values: st.SearchStrategy[Value] = st.recursive(scalars, _extend, max_leaves=12)
tables: st.SearchStrategy[Table] = st.dictionaries(names, values, max_size=5)


def unmarshal(data: bytes) -> tuple[int, int, Any]:
    return pamqp.frame.unmarshal(data)


def as_pamqp(value: Value) -> object:
    match value:
        case Timestamp():
            return datetime.datetime.fromtimestamp(value, tz=datetime.UTC)
        case RawDecimal():
            return decimal.Decimal(int.from_bytes(value[1:], "big")).scaleb(-value[0])
        case bytes():
            return bytearray(value)
        case dict():
            return {name: as_pamqp(item) for name, item in value.items()}
        case tuple():
            return [as_pamqp(item) for item in value]
        case _:
            return value


@given(tables)
def test_pamqp_reads_our_tables(table: Table) -> None:
    data = encode_table(table)
    assert pamqp.decode.field_table(data) == (len(data), as_pamqp(table))
    assert decode_table(data, 0, len(data)) == (table, len(data))


@given(tables)
def test_we_read_tables_of_pamqp(table: Table) -> None:
    def without_precision(value: Value) -> Value:
        match value:
            case float():
                return int(value) if abs(value) < 1000 else 0  # pamqp writes single precision
            case dict():
                return {name: without_precision(item) for name, item in value.items()}
            case tuple():
                return tuple(without_precision(item) for item in value)
            case _:
                return value

    table = {name: without_precision(item) for name, item in table.items()}
    data = pamqp.encode.field_table(as_pamqp(table))  # type: ignore[arg-type]
    decoded, end = decode_table(data, 0, len(data))
    assert end == len(data)
    assert as_pamqp(decoded) == as_pamqp(table)


def test_the_method_table_is_the_specifications() -> None:
    theirs: dict[int, Any] = pamqp.commands.INDEX_MAPPING
    ours = {(m.class_id << 16) + m.method_id: m for m in spec.METHODS.values()}
    assert ours.keys() == theirs.keys()
    for index, method in ours.items():
        other = theirs[index]
        assert method.name.replace("-", "") == other.name.lower()
        assert [field.type for field in method.fields] == [
            getattr(other, "_" + name) for name in other.attributes()
        ]


def argument(kind: str) -> st.SearchStrategy[Value]:
    match kind:
        case "octet":
            return st.integers(0, 255)
        case "short":
            return st.integers(0, 65535)
        case "long":
            return st.integers(0, (1 << 32) - 1)
        case "longlong":
            return st.integers(0, (1 << 63) - 1)
        case "bit":
            return st.booleans()
        case "shortstr":
            return names
        case "longstr":
            return names.map(str.encode)
        case _:
            return tables


@st.composite
def calls(draw: st.DrawFn) -> tuple[spec.Method, tuple[Value, ...]]:
    method = draw(st.sampled_from(list(spec.METHODS.values())))
    args = tuple(draw(argument(f.type)) for f in method.fields if not f.reserved)
    return method, args


@given(calls())
def test_every_method_round_trips(
    call: tuple[spec.Method, tuple[Value, ...]],
) -> None:
    method, args = call
    payload = spec.encode_method(method.name, args)
    assert spec.decode_method(payload, 0, len(payload)) == (method, args)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pamqp")
@given(calls())
def test_pamqp_reads_every_method(
    call: tuple[spec.Method, tuple[Value, ...]],
) -> None:
    method, args = call
    out = bytearray()
    codec.append_method(out, 7, method.name, args)
    size, channel, other = unmarshal(bytes(out))
    assert (size, channel) == (len(out), 7)
    mine = iter(args)
    for field, attribute in zip(method.fields, type(other).__slots__, strict=True):
        theirs = getattr(other, attribute)
        if field.reserved:
            assert not theirs or theirs == "0"
            continue
        value = next(mine)
        expected = value.decode() if isinstance(value, bytes) else as_pamqp(value)
        assert theirs == expected


def _properties() -> st.SearchStrategy[Table]:
    text = names
    return st.fixed_dictionaries(
        {},
        optional={
            "content_type": text,
            "content_encoding": text,
            "headers": tables,
            "delivery_mode": st.integers(1, 2),
            "priority": st.integers(0, 255),
            "correlation_id": text,
            "reply_to": text,
            "expiration": text,
            "message_id": text,
            "timestamp": st.integers(0, (1 << 32) - 1),
            "type": text,
            "user_id": text,
            "app_id": text,
            "cluster_id": text,
        },
    )


@given(_properties(), st.integers(1, (1 << 40)))
def test_pamqp_reads_every_property_set(values: Table, body_bytes: int) -> None:
    data = codec.encode_properties(values)
    payload = b"\x00\x3c\x00\x00" + body_bytes.to_bytes(8, "big") + data
    assert codec.decode_content_header(payload, 0, len(payload)) == (body_bytes, data)
    assert codec.decode_properties(data) == values
    seen = codec.inspect_properties(data)
    assert seen.flags == (codec.PERSISTENT if values.get("delivery_mode") == 2 else 0)
    user_id = values.get("user_id")
    assert seen.user_id == (user_id.encode() if isinstance(user_id, str) else None)
    header = pamqp.header.ContentHeader()
    header.unmarshal(payload)
    assert header.body_size == body_bytes
    for name, value in values.items():
        theirs = getattr(header.properties, "message_type" if name == "type" else name)
        if name == "timestamp":
            theirs = int(theirs.timestamp())
        assert theirs == as_pamqp(value)


@given(names, names, _properties(), st.binary(max_size=300), st.booleans(), st.integers(4096, 8192))
def test_pamqp_reads_a_publish(
    exchange: str, key: str, values: Table, body: bytes, mandatory: bool, frame_max: int
) -> None:
    body *= 40
    out = bytearray()
    properties = codec.encode_properties(values)
    codec.append_publish(
        out, 3, exchange, key, properties, body, mandatory=mandatory, frame_max=frame_max
    )
    frames = []
    data = bytes(out)
    while data:
        size, channel, frame = unmarshal(data)
        assert size <= frame_max
        assert channel == 3
        frames.append(frame)
        data = data[size:]
    publish, header, *bodies = frames
    assert (publish.exchange, publish.routing_key) == (exchange, key)
    assert (publish.mandatory, publish.immediate) == (mandatory, False)
    assert header.body_size == len(body)
    assert b"".join(part.value for part in bodies) == body


@given(names, st.integers(0, 1 << 62), st.booleans(), names, names, st.binary(max_size=9000))
def test_both_implementations_read_a_delivery(
    tag: str, number: int, redelivered: bool, exchange: str, key: str, body: bytes
) -> None:
    out = bytearray()
    codec.append_deliver(
        out, 9, short(tag), number, redelivered, short(exchange) + short(key), b"\0\0", body, 4096
    )
    data = bytes(out)
    frames, end = codec.split_frames(data, 0, 4096 - codec.FRAME_OVERHEAD_BYTES)
    assert end == len(data)
    seen = codec.decode_deliver(data, frames[0].start, frames[0].end)
    assert seen == (tag, number, redelivered, exchange, key)
    assert b"".join(data[f.start : f.end] for f in frames[2:]) == body
    _, _, theirs = unmarshal(data)
    assert (theirs.consumer_tag, theirs.delivery_tag, theirs.redelivered) == seen[:3]
    assert (theirs.exchange, theirs.routing_key) == seen[3:]


@given(
    names,
    names,
    st.lists(
        st.tuples(
            st.integers(0, 1 << 62),
            st.booleans(),
            st.sampled_from([b"\0\0", b"\x10\0\x02"]),
            st.one_of(st.sampled_from([b"", b"one", b"two"]), st.binary(max_size=9000)),
        ),
        max_size=9,
    ),
)
def test_a_run_of_deliveries_equals_them_one_at_a_time(
    tag: str, key: str, run: list[codec.Delivery]
) -> None:
    one_by_one, out = bytearray(b"before"), bytearray(b"before")
    about = short(tag), short("") + short(key)
    for number, redelivered, properties, body in run:
        codec.append_deliver(
            one_by_one, 9, about[0], number, redelivered, about[1], properties, body, 4096
        )
    codec.append_deliveries(out, 9, *about, run, 4096)
    assert out == one_by_one


@given(st.integers(0, 1 << 62), st.booleans(), st.booleans())
def test_both_implementations_read_settlements(tag: int, multiple: bool, requeue: bool) -> None:
    out = bytearray()
    codec.append_ack(out, 1, tag, multiple)
    codec.append_nack(out, 2, tag, multiple, requeue)
    data = bytes(out)
    (ack, nack), _ = codec.split_frames(data)
    assert codec.decode_ack(data, ack.start, ack.end) == (tag, multiple)
    assert codec.decode_ack(data, nack.start, nack.end) == (tag, multiple)
    size, _, first = unmarshal(data)
    _, _, second = unmarshal(data[size:])
    assert (first.delivery_tag, first.multiple) == (tag, multiple)
    assert (second.delivery_tag, second.multiple, second.requeue) == (tag, multiple, requeue)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_a_fault(data: bytes) -> None:
    for prefix in (b"", len(data).to_bytes(4, "big")):
        with contextlib.suppress(ProtocolFault):
            _, end = decode_table(prefix + data, 0, len(prefix + data))
            assert end <= len(prefix + data)


@given(st.sampled_from(list(spec.METHODS.values())), st.binary(max_size=100))
def test_any_bytes_are_a_method_or_a_fault(method: spec.Method, data: bytes) -> None:
    for payload in (data, method.wire_id + data):
        with contextlib.suppress(ProtocolFault):
            spec.decode_method(payload, 0, len(payload))


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_properties_or_a_fault(flags: bytes, data: bytes) -> None:
    for candidate in (data, flags[:2] + data):
        with contextlib.suppress(ProtocolFault):
            codec.inspect_properties(candidate)
        with contextlib.suppress(ProtocolFault):
            codec.decode_content_header(candidate, 0, len(candidate))


@given(calls(), st.data())
@settings(max_examples=60)
def test_a_truncated_method_is_a_fault(
    call: tuple[spec.Method, tuple[Value, ...]], data: st.DataObject
) -> None:
    method, args = call
    payload = spec.encode_method(method.name, args)
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(ProtocolFault):
        spec.decode_method(payload, 0, cut)


@pytest.mark.parametrize("opening", [b"F", b"A"])
def test_nesting_is_bounded(opening: bytes) -> None:
    item = b"V"
    for _ in range(70):
        inner = item if opening == b"A" else b"\x01a" + item
        item = opening + len(inner).to_bytes(4, "big") + inner
    data = (2 + len(item)).to_bytes(4, "big") + b"\x01a" + item
    with pytest.raises(ProtocolFault, match="nested"):
        decode_table(data, 0, len(data))
