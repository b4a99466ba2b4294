"""Frames, methods and messages on an open connection, whole and broken."""

from collections.abc import Callable
from sys import getsizeof

import pytest

from broker.amqp import codec, errors
from broker.amqp.channel import ChannelIn
from broker.amqp.codec import Properties
from broker.amqp.errors import ProtocolFault
from broker.amqp.events import (
    BodyPart,
    Called,
    ChannelOpened,
    Event,
    Faulted,
    Oversized,
    Published,
    SecretUpdated,
)
from broker.amqp.fields import decode_long_string, decode_table, encode_table
from broker.amqp.frame_reader import FrameReader
from broker.amqp.handshake import Limits
from tests.support.amqp_connection import expect_close, opened
from tests.support.amqp_peer import PERSISTENT, method, publish


def test_messages_come_whole_however_the_bytes_are_split() -> None:
    bodies = [b"", b"x", b"y" * 4088, b"z" * 4089, b"w" * 20_000]
    stream = b"".join(
        publish(1, "ex", f"key-{number}", body, frame_max=4096)
        for number, body in enumerate(bodies)
    )
    expected = [
        Published(1, "ex", f"key-{number}", 4, PERSISTENT, body, None)
        for number, body in enumerate(bodies)
    ]
    for step in (1, 2, 3, 7, 100, 1000, 4096, len(stream)):
        connection = opened(frame_max=4096)
        events: list[Event] = []
        for at in range(0, len(stream), step):
            events += connection.receive(stream[at : at + step], 0.0)
        assert events == expected


def test_messages_of_different_channels_may_interleave() -> None:
    connection = opened()
    connection.receive(method(2, "channel.open"), 0.0)
    one, two = publish(1, "", "a", b"1" * 10), publish(2, "", "b", b"2" * 10)
    frames_one, _ = codec.split_frames(one)
    frames_two, _ = codec.split_frames(two)
    mixed = b"".join(
        data[frame.start - 7 : frame.end + 1]
        for pair in zip(frames_one, frames_two, strict=True)
        for data, frame in zip((one, two), pair, strict=True)
    )
    events = connection.receive(mixed, 0.0)
    assert [event[2:3] for event in events] == [("a",), ("b",)]


def test_flags_and_user_id_are_seen() -> None:
    connection = opened()
    properties = codec.encode_properties({"delivery_mode": 1, "user_id": "guest"})
    (event,) = connection.receive(publish(1, "", "q", b"x", properties, mandatory=True), 0.0)
    assert event == Published(1, "", "q", 1, properties, b"x", b"guest")


def header(channel: int, size: int, properties: bytes = b"\x00\x00", class_id: int = 60) -> bytes:
    out = bytearray()
    payload = class_id.to_bytes(2, "big") + b"\0\0" + size.to_bytes(8, "big") + properties
    codec.append_frame(out, codec.HEADER, channel, payload)
    return bytes(out)


def body(channel: int, data: bytes) -> bytes:
    out = bytearray()
    codec.append_frame(out, codec.BODY, channel, data)
    return bytes(out)


PUBLISH = method(1, "basic.publish", "", "q", False, False)


@pytest.mark.parametrize(
    ("data", "code", "word"),
    [
        (header(1, 5), 505, "header on channel 1"),
        (b"\x02\x00\x01\x00\x00\x00\x02\x00\x0a\xce", 505, "header on channel 1"),  # malformed, too
        (body(1, b"x"), 505, "body on channel 1"),
        (PUBLISH + body(1, b"x"), 505, "body on channel 1"),
        (PUBLISH + header(1, 5) + header(1, 5), 505, "header on channel 1"),
        (PUBLISH + header(1, 5) + body(1, b"123456"), 501, "longer than"),
        (PUBLISH + header(1, 5, class_id=50), 505, "class 50"),
        (PUBLISH + header(1, 5, b"\x80\x00"), 502, "content_type"),
        (PUBLISH + header(1, 5, b"\x80\x00\x05ab"), 502, "content_type"),
        (PUBLISH + header(1, 5, b"\x10\x00"), 502, "delivery_mode"),
        (PUBLISH + header(1, 5, b"\x00\x01\x00\x00"), 502, "flags"),
        (PUBLISH + header(1, 5, b"\x00\x00\x00"), 502, "after the last"),
        (PUBLISH + header(1, 5, b"\x20\x00\x00\x00\x00\x09"), 502, "table"),
        (PUBLISH + header(1, 5, b""), 502, "12 bytes"),
        (PUBLISH + PUBLISH, 505, "middle"),
        (PUBLISH + method(1, "basic.ack", 1, False), 505, "middle"),
        (PUBLISH + header(2, 5), 505, "channel 2"),
        (header(0, 5), 505, "channel 0"),
        (body(2, b"x"), 505, "channel 2"),
        (method(2, "basic.ack", 1, False), 504, "channel 2"),
        (method(1, "channel.open"), 504, "second"),
        (method(1, "basic.deliver", "t", 1, False, "", ""), 503, "basic.deliver"),
        (method(1, "queue.declare-ok", "q", 0, 0), 503, "declare-ok"),
        (method(0, "connection.start-ok", {}, "PLAIN", b"", ""), 503, "start-ok"),
        (method(0, "queue.purge", "q", False), 504, "channel 0"),
        (b"\x01\x00\x01\x00\x00\x00\x00\xce", 501, "no method"),
        (method(1, "connection.close", 200, "", 0, 0), 503, "channel 1"),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x63\xce", 540, "class 60"),
        (b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x50\x00\xce", 502, "basic.ack"),
        (b"\x05\x00\x01\x00\x00\x00\x00\xce", 501, "type 5"),
        (b"\x08\x00\x01\x00\x00\x00\x00\xce", 505, "heartbeat"),
        (b"\x08\x00\x00\x00\x00\x00\x01x\xce", 501, "heartbeat"),
        (b"\x01\x00\x01\x00\x02\x00\x01\x00", 501, "frame_max"),
        (b"\x01\x00\x01\x00\x00\x00\x00\x00", 501, "206"),
        (b"\xff" * 20, 501, "frame"),
    ],
)
def test_invalid_input_on_an_open_connection(data: bytes, code: int, word: str) -> None:
    connection = opened()
    expect_close(connection, connection.receive(data, 0.0), code, word)
    assert connection.receive(publish(1, "", "q"), 0.0) == []
    assert connection.receive(method(0, "connection.close-ok"), 0.0) == []
    assert connection.has_ended


def test_a_close_names_the_method_at_fault() -> None:
    connection = opened()
    data = b"\x01\x00\x01\x00\x00\x00\x06\x00\x32\x00\x0a\x00\x00\xce"
    received = expect_close(connection, connection.receive(data, 0.0), 502, "queue.declare")
    assert received.args[2:] == (50, 10)


def test_methods_sent_before_an_error_count() -> None:
    connection = opened()
    events = connection.receive(publish(1, "", "q") + b"\xff" * 8, 0.0)
    assert [type(event) for event in events] == [Published, Faulted]


def test_an_error_in_a_split_frame_is_the_same() -> None:
    stream = publish(1, "", "q") + b"\x01\x00\x01\x00\x00\x00\x02ab\xce" + publish(1, "", "q")
    for cut in range(1, len(stream)):
        connection = opened()
        events = connection.receive(stream[:cut], 0.0) + connection.receive(stream[cut:], 0.0)
        assert [type(event) for event in events] == [Published, Faulted], cut


def test_a_frame_may_exceed_the_size_by_its_framing_octets() -> None:
    connection = opened(frame_max=4096)
    data = PUBLISH + header(1, 2 * 4096) + 2 * body(1, b"x" * 4096)
    for part in (data, publish(1, "", "q", b"x" * 4096, frame_max=8192)):
        (event,) = connection.receive(part, 0.0)
        assert isinstance(event, Published)
    data = PUBLISH + header(1, 4097) + body(1, b"x" * 4097)
    expect_close(connection, connection.receive(data, 0.0), errors.FRAME_ERROR, "4096")


def test_a_message_that_is_too_large_ends_only_its_channel() -> None:
    connection = opened(Limits(message_bytes_max=100))
    data = publish(1, "", "q", b"x" * 101) + publish(1, "", "q", b"x")
    assert connection.receive(data, 0.0) == [Oversized(1, 101)]
    connection.close_channel(1, 406, "PRECONDITION_FAILED - too large", 60, 40)
    assert connection.receive(publish(1, "", "q", b"x"), 0.0) == []
    assert connection.receive(method(1, "channel.close-ok"), 0.0) == []
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]


def test_a_large_body_is_handed_on_in_parts() -> None:
    connection = opened(Limits(assembly_bytes_max=1 << 20))
    whole = bytes(range(256)) * 8192  # 2 MiB
    for _ in range(2):
        events: list[Event] = []
        stream = publish(1, "ex", "k", whole)
        for at in range(0, len(stream), 100_000):
            events += connection.receive(stream[at : at + 100_000], 0.0)
        *parts, message = events
        assert isinstance(message, Published)
        assert message[:5] == (1, "ex", "k", 4 | 8, PERSISTENT)
        data = [part.data for part in parts if isinstance(part, BodyPart) and part.channel == 1]
        assert len(data) == len(parts) == 16
        assert b"".join((*data, message.body)) == whole


def test_a_body_in_tiny_frames_takes_about_its_bytes_in_memory() -> None:
    """Otherwise a connection could take about thirty times the permitted size of its bodies."""
    channel, body = ChannelIn(), bytes(range(250)) * 40
    channel.on_publish(("", "q", 0))
    channel.on_header(len(body), PERSISTENT, Properties(0, None))
    for at in range(0, len(body), 2):
        channel.on_body(1, body[at : at + 2])
    assert sum(map(getsizeof, channel.parts)) < 2 * len(body)
    assert channel.whole(1) == Published(1, "", "q", 0, PERSISTENT, body, None)
    channel.on_publish(("", "q", 0))
    channel.on_header(904, PERSISTENT, Properties(0, None))
    for piece in (b"a", b"b" * 600, b"c", b"d", b"e" * 300, b"f"):
        channel.on_body(1, piece)
    message = channel.whole(1)
    assert message is not None
    assert message.body == b"a" + b"b" * 600 + b"cd" + b"e" * 300 + b"f"


def test_a_small_body_comes_whole() -> None:
    connection, size = opened(), 1 << 20
    (event,) = connection.receive(publish(1, "", "q", bytes(size)), 0.0)
    assert event == Published(1, "", "q", 4, PERSISTENT, bytes(size), None)


def test_a_channel_closed_within_a_large_body_starts_anew() -> None:
    connection = opened()
    stream = publish(1, "", "q", bytes(2 << 20))
    (part,) = connection.receive(stream[:200_000], 0.0)
    assert isinstance(part, BodyPart)
    connection.close_channel(1, 406, "PRECONDITION_FAILED - no", 60, 40)
    assert connection.receive(stream[200_000:], 0.0) == []
    connection.receive(method(1, "channel.close-ok"), 0.0)
    connection.receive(method(1, "channel.open"), 0.0)
    (event,) = connection.receive(publish(1, "", "q", b"x"), 0.0)
    assert event == Published(1, "", "q", 4, PERSISTENT, b"x", None)


def test_unfinished_messages_are_bounded() -> None:
    connection = opened(Limits(assembly_bytes_max=150))
    connection.receive(method(2, "channel.open"), 0.0)
    assert connection.receive(PUBLISH + header(1, 100), 0.0) == []
    data = method(2, "basic.publish", "", "q", False, False) + header(2, 100)
    expect_close(connection, connection.receive(data, 0.0), errors.RESOURCE_ERROR, "200 bytes")


def test_finished_and_refused_messages_do_not_count_as_unfinished() -> None:
    connection = opened(Limits(assembly_bytes_max=250, message_bytes_max=200))
    for _ in range(5):
        assert len(connection.receive(PUBLISH + header(1, 200), 0.0)) == 0
        assert len(connection.receive(body(1, bytes(200)), 0.0)) == 1
    assert connection.receive(PUBLISH + header(1, 201), 0.0) == [Oversized(1, 201)]
    connection.receive(method(2, "channel.open"), 0.0)
    data = method(2, "basic.publish", "", "q", False, False) + header(2, 200)
    assert connection.receive(data, 0.0) == []


def test_a_message_costs_the_same_however_many_channels_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = 0
    kept_of = FrameReader._kept_of

    def count(reader: FrameReader, channel: ChannelIn) -> int:
        nonlocal counted
        counted += 1
        return kept_of(reader, channel)

    monkeypatch.setattr(FrameReader, "_kept_of", count)
    connection = opened()
    for number in range(2, 1000):
        connection.receive(method(number, "channel.open"), 0.0)
    for _ in range(10):
        assert len(connection.receive(publish(1, "", "q", b""), 0.0)) == 1
        assert len(connection.receive(PUBLISH + header(1, 1) + body(1, b"") + body(1, b"x"), 0.0))
    assert counted == 20


FIRST = PUBLISH + header(1, 3) + body(1, b"abc")
"""It is read whole, and so are those like it that follow."""


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (FIRST[:-1] + b"\0", errors.FRAME_ERROR),
        (FIRST + FIRST[:-1] + b"\0", errors.FRAME_ERROR),
        (PUBLISH + header(2, 3) + body(1, b"abc"), errors.UNEXPECTED_FRAME),
        (PUBLISH + header(1, 3, class_id=90) + body(1, b"abc"), errors.UNEXPECTED_FRAME),
        (PUBLISH + header(1, 3, bytes(4096 - 11)) + body(1, b"abc"), errors.FRAME_ERROR),
        (PUBLISH + header(1, 4097) + body(1, bytes(4097)), errors.FRAME_ERROR),
        (PUBLISH + header(1, 3) + body(2, b"abc"), errors.UNEXPECTED_FRAME),
    ],
)
def test_what_looks_like_the_message_before_is_checked_as_well(data: bytes, code: int) -> None:
    connection = opened(frame_max=4096)
    connection.receive(method(2, "channel.open"), 0.0)
    assert len(connection.receive(FIRST, 0.0)) == 1
    expect_close(connection, connection.receive(data + codec.HEARTBEAT_FRAME, 0.0), code)


def test_what_is_remembered_of_messages_is_bounded() -> None:
    connection = opened()
    for number in range(3000):
        properties = codec.encode_properties({"type": f"t{number}"})
        connection.receive(publish(1, "", f"q{number}", b"x", properties), 0.0)
    long = codec.encode_properties({"headers": {"a": "x" * 1000}})
    assert len(connection.receive(publish(1, "", "q", b"x", long), 0.0)) == 1
    assert len(connection._seen) <= 512
    assert len(connection._addresses) <= 512
    assert long not in connection._seen


def test_methods_are_handed_on_with_their_arguments() -> None:
    connection = opened()
    data = method(1, "queue.declare", "q", False, True, False, False, False, {"x-a": 1})
    data += method(1, "basic.ack", 7, True) + method(1, "basic.nack", 8, False, True)
    assert connection.receive(data, 0.0) == [
        Called(1, "queue.declare", ("q", False, True, False, False, False, {"x-a": 1})),
        Called(1, "basic.ack", (7, True)),
        Called(1, "basic.nack", (8, False, True)),
    ]


def test_a_new_secret_is_handed_on() -> None:
    connection = opened()
    data = method(0, "connection.update-secret", b"new", "time")
    assert connection.receive(data, 0.0) == [SecretUpdated("new", "time")]


# -- the codec alone ------------------------------------------------------------------------------


def test_whole_frames_are_split_off() -> None:
    data = publish(1, "", "q") + codec.HEARTBEAT_FRAME
    frames, end = codec.split_frames(data + data[:9])
    assert [frame.kind for frame in frames] == [1, 2, 3, 8]
    assert end == len(data)


@pytest.mark.parametrize("data", [b"\x01\x00\x00\x00\x10\x00\x00\x00", b"\x08" + b"\x00" * 7])
def test_bytes_that_are_not_frames_are_not_split(data: bytes) -> None:
    with pytest.raises(ProtocolFault):
        codec.split_frames(data, 0, 4096 - codec.FRAME_OVERHEAD_BYTES)


@pytest.mark.parametrize("decode", [decode_table, decode_long_string])
def test_a_length_that_ends_behind_what_holds_it_is_refused(
    decode: Callable[[bytes, int, int], object],
) -> None:
    held = b"\0\0\0\x03\x01aV"
    decode(held, 0, 7)
    for more in (4, 5, 200):
        with pytest.raises(ProtocolFault):
            decode(held[:3] + bytes((more,)) + held[4:] + bytes(300), 0, 7)


def test_tables_decode_types_that_only_some_clients_use() -> None:
    entries = (
        b"\x01aL" + b"\xff" * 8 + b"\x01bB\xff" + b"\x01cu\xff\xff" + b"\x01di\xff\xff\xff\xff"
        b"\x01eS\x00\x00\x00\x01\xff" + b"\x01ff\x3f\x80\x00\x00"
    )
    data = len(entries).to_bytes(4, "big") + entries
    table, _ = decode_table(data, 0, len(data))
    assert table == {"a": -1, "b": 255, "c": 65535, "d": 2**32 - 1, "e": b"\xff", "f": 1.0}
    again = encode_table(table)
    assert decode_table(again, 0, len(again)) == (table, len(again))
