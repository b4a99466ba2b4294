"""One connection against the rules of AMQP 0-9-1: orders, closes, garbage, silence."""

import pytest

from broker.amqp import codec, errors
from broker.amqp.connection import ServerConnection
from broker.amqp.events import (
    Called,
    ChannelCloseAsked,
    ChannelOpened,
    CloseAsked,
    Event,
    Faulted,
    OpenAsked,
    Oversized,
    Published,
)
from broker.amqp.fields import Table, encode_table
from broker.amqp.limits import Identity, Limits
from tests.unit.amqp_peer import (
    PERSISTENT,
    Said,
    heard,
    method,
    opening,
    publish,
    start_ok,
    tune_ok,
)


def new(limits: Limits | None = None) -> ServerConnection:
    def authenticate(user: str, password: str) -> bool:
        return (user, password) == ("guest", "guest")

    return ServerConnection(authenticate, limits or Limits(), Identity(member="a"), 0.0)


def opened(
    limits: Limits | None = None, heartbeat: int = 0, frame_max: int = 131_072
) -> ServerConnection:
    connection = new(limits)
    data = opening(heartbeat=heartbeat, frame_max=frame_max) + method(1, "channel.open")
    events = connection.receive(data, 0.0)
    assert [type(event) for event in events] == [OpenAsked, ChannelOpened]
    connection.accept_open()
    connection.say(1, "channel.open-ok")
    connection.take_output()
    return connection


def expect_close(connection: ServerConnection, events: list[Event], code: int, *words: str) -> Said:
    """The fault is an event, and the last thing said is a close with this code and these words."""
    fault = events[-1]
    assert isinstance(fault, Faulted)
    assert fault.code == code
    said = heard(connection.take_output())[-1]
    assert (said.channel, said.method, said.args[0]) == (0, "connection.close", code)
    text = said.args[1]
    assert isinstance(text, str)
    assert text.startswith(errors.REPLY_NAMES[code])
    for word in words:
        assert word in text
    assert not connection.has_ended
    return said


# -- the handshake --------------------------------------------------------------------------------


def test_the_handshake_step_by_step() -> None:
    connection = new()
    assert connection.receive(b"AMQP\x00", 0.0) == []
    assert connection.receive(b"\x00\x09\x01", 0.0) == []
    (start,) = heard(connection.take_output())
    assert start.method == "connection.start"
    properties = start.args[2]
    assert isinstance(properties, dict)
    assert properties["node"] == "a"
    capabilities = properties["capabilities"]
    assert isinstance(capabilities, dict)
    assert capabilities["publisher_confirms"] is True
    assert capabilities["direct_reply_to"] is False
    assert start.args[3] == b"PLAIN AMQPLAIN ANONYMOUS"
    assert connection.receive(start_ok(), 0.0) == []
    assert heard(connection.take_output()) == [
        (0, "connection.tune", (2047, 131_072, 60), None, b"")
    ]
    assert connection.receive(tune_ok(), 0.0) == []
    (asked,) = connection.receive(method(0, "connection.open", "/"), 0.0)
    assert isinstance(asked, OpenAsked)
    assert (asked.vhost, asked.user) == ("/", "guest")
    connection.accept_open()
    assert heard(connection.take_output()) == [(0, "connection.open-ok", (), None, b"")]


@pytest.mark.parametrize(
    "data",
    [b"AMQP\x00\x00\x09\x00", b"AMQP\x01\x01\x00\x0a", b"GET / HT", b"\x16\x03\x01", b"\x00"],
)
def test_another_protocol_is_told_what_is_spoken_here(data: bytes) -> None:
    connection = new()
    (fault,) = connection.receive(data, 0.0)
    assert isinstance(fault, Faulted)
    assert connection.take_output() == codec.PROTOCOL_HEADER
    assert connection.has_ended
    assert connection.receive(b"more", 0.0) == []
    assert connection.next_timer() is None


def amqplain(table: Table) -> bytes:
    return method(0, "connection.start-ok", {}, "AMQPLAIN", encode_table(table)[4:], "en_US")


@pytest.mark.parametrize(
    "data",
    [
        amqplain({"LOGIN": "guest", "PASSWORD": "guest"}),
        method(0, "connection.start-ok", {}, "ANONYMOUS", b"", "en_US"),
        start_ok(),
    ],
)
def test_every_mechanism_lets_in(data: bytes) -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER, 0.0)
    assert connection.receive(data, 0.0) == []
    assert heard(connection.take_output())[-1].method == "connection.tune"
    assert connection.user == "guest"


@pytest.mark.parametrize(
    ("data", "code", "word"),
    [
        (method(0, "connection.start-ok", {}, "PLAIN", b"guest", "en_US"), 502, "PLAIN"),
        (method(0, "connection.start-ok", {}, "PLAIN", b"\0\xff\0x", "en_US"), 502, "UTF-8"),
        (method(0, "connection.start-ok", {}, "EXTERNAL", b"", "en_US"), 503, "EXTERNAL"),
        (amqplain({"LOGIN": "guest"}), 502, "AMQPLAIN"),
        (amqplain({"LOGIN": "guest", "PASSWORD": 4}), 502, "AMQPLAIN"),
        (start_ok(password="wrong"), 403, "guest"),
    ],
)
def test_bad_credentials_end_the_connection(data: bytes, code: int, word: str) -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER, 0.0)
    expect_close(connection, connection.receive(data, 0.0), code, word)


def test_a_client_that_does_not_know_failure_close_is_just_let_go() -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER, 0.0)
    connection.take_output()
    (fault,) = connection.receive(start_ok("guest", "no", {}), 0.0)
    assert isinstance(fault, Faulted)
    assert (fault.code, connection.has_ended) == (403, True)
    assert not connection.take_output()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (tune_ok(channel_max=4000), "channel_max"),
        (tune_ok(frame_max=200_000), "frame_max"),
        (tune_ok(frame_max=100), "frame_max"),
    ],
)
def test_limits_that_cannot_be_agreed_on_end_the_connection(data: bytes, word: str) -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER + start_ok(), 0.0)
    expect_close(connection, connection.receive(data, 0.0), errors.NOT_ALLOWED, word)


def test_no_limit_of_the_clients_means_ours() -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER + start_ok() + tune_ok(0, 0), 0.0)
    assert connection.frame_bytes_max == 131_072


@pytest.mark.parametrize(
    ("data", "code", "word"),
    [
        (tune_ok(), 503, "tune-ok"),
        (method(0, "connection.open", "/"), 503, "open"),
        (method(1, "channel.open"), 503, "channel.open"),
        (method(1, "connection.start-ok", {}, "PLAIN", b"", ""), 503, "channel 1"),
        (method(0, "channel.open"), 503, "channel 0"),
        (method(0, "connection.start", 0, 9, {}, b"", b""), 503, "start"),
        (b"\x01\x00\x00\x00\x00\x10\x00", 501, "4096"),
        (b"\x02\x00\x00\x00\x00\x00\x00\xce", 505, "channel 0"),
        (b"\x01\x00\x00\x00\x00\x00\x00\xce", 502, "no method"),
        (b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x63\xce", 540, "99"),
    ],
)
def test_what_does_not_belong_in_a_handshake(data: bytes, code: int, word: str) -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER, 0.0)
    expect_close(connection, connection.receive(data + b"\x00", 0.0), code, word)


def test_a_client_may_leave_in_the_middle_of_the_handshake() -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER + start_ok(), 0.0)
    connection.take_output()
    assert connection.receive(method(0, "connection.close", 200, "bye", 0, 0), 0.0) == []
    assert heard(connection.take_output())[0].method == "connection.close-ok"
    assert connection.has_ended


def test_the_handshake_has_a_time_limit() -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER, 1.0)
    assert connection.next_timer() == 10.0
    assert connection.wake(9.9) == []
    (fault,) = connection.wake(10.0)
    assert isinstance(fault, Faulted)
    assert "start-ok" in fault.text
    assert connection.has_ended


# -- frames, methods and contents -----------------------------------------------------------------


def test_messages_come_whole_however_the_bytes_are_cut() -> None:
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
        (body(1, b"x"), 505, "body on channel 1"),
        (PUBLISH + body(1, b"x"), 505, "body on channel 1"),
        (PUBLISH + header(1, 5) + header(1, 5), 505, "header on channel 1"),
        (PUBLISH + header(1, 5) + body(1, b"123456"), 501, "longer than"),
        (PUBLISH + header(1, 5, class_id=50), 501, "class 50"),
        (PUBLISH + header(1, 5, b"\x80\x00"), 502, "content_type"),
        (PUBLISH + header(1, 5, b"\x80\x00\x05ab"), 502, "content_type"),
        (PUBLISH + header(1, 5, b"\x10\x00"), 502, "delivery_mode"),
        (PUBLISH + header(1, 5, b"\x00\x01\x00\x00"), 502, "flags"),
        (PUBLISH + header(1, 5, b"\x00\x00\x00"), 502, "after the last"),
        (PUBLISH + header(1, 5, b"\x20\x00\x00\x00\x00\x09"), 502, "table"),
        (PUBLISH + header(1, 5, b""), 502, "12 bytes"),
        (PUBLISH + PUBLISH, 505, "middle"),
        (PUBLISH + method(1, "basic.ack", 1, False), 505, "middle"),
        (PUBLISH + header(2, 5), 504, "channel 2"),
        (method(2, "basic.ack", 1, False), 504, "channel 2"),
        (method(1, "channel.open"), 504, "second"),
        (method(3000, "channel.open"), 504, "channel_max"),
        (method(1, "basic.deliver", "t", 1, False, "", ""), 503, "basic.deliver"),
        (method(1, "queue.declare-ok", "q", 0, 0), 503, "declare-ok"),
        (method(0, "connection.start-ok", {}, "PLAIN", b"", ""), 503, "start-ok"),
        (method(0, "queue.purge", "q", False), 503, "channel 0"),
        (method(1, "connection.close", 200, "", 0, 0), 503, "channel 1"),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x63\xce", 540, "class 60"),
        (b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x50\x00\xce", 502, "basic.ack"),
        (b"\x05\x00\x01\x00\x00\x00\x00\xce", 501, "type 5"),
        (b"\x08\x00\x01\x00\x00\x00\x00\xce", 501, "heartbeat"),
        (b"\x08\x00\x00\x00\x00\x00\x01x\xce", 501, "heartbeat"),
        (b"\x01\x00\x01\x00\x02\x00\x00\x00", 501, "frame_max"),
        (b"\x01\x00\x01\x00\x00\x00\x00\x00", 501, "206"),
        (b"\xff" * 20, 501, "frame"),
    ],
)
def test_what_an_open_connection_does_not_take(data: bytes, code: int, word: str) -> None:
    connection = opened()
    expect_close(connection, connection.receive(data, 0.0), code, word)
    assert connection.receive(publish(1, "", "q"), 0.0) == []
    assert connection.receive(method(0, "connection.close-ok"), 0.0) == []
    assert connection.has_ended


def test_a_close_names_the_method_at_fault() -> None:
    connection = opened()
    data = b"\x01\x00\x01\x00\x00\x00\x06\x00\x32\x00\x0a\x00\x00\xce"
    said = expect_close(connection, connection.receive(data, 0.0), 502, "queue.declare")
    assert said.args[2:] == (50, 10)


def test_what_was_said_before_the_fault_counts() -> None:
    connection = opened()
    events = connection.receive(publish(1, "", "q") + b"\xff" * 8, 0.0)
    assert [type(event) for event in events] == [Published, Faulted]


def test_a_message_that_is_too_large_ends_only_its_channel() -> None:
    connection = opened(Limits(message_bytes_max=100))
    data = publish(1, "", "q", b"x" * 101) + publish(1, "", "q", b"x")
    assert connection.receive(data, 0.0) == [Oversized(1, 101)]
    connection.close_channel(1, 406, "PRECONDITION_FAILED - too large", 60, 40)
    assert connection.receive(publish(1, "", "q", b"x"), 0.0) == []
    assert connection.receive(method(1, "channel.close-ok"), 0.0) == []
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]


def test_unfinished_messages_are_bounded() -> None:
    connection = opened(Limits(assembly_bytes_max=150))
    connection.receive(method(2, "channel.open"), 0.0)
    assert connection.receive(PUBLISH + header(1, 100), 0.0) == []
    data = method(2, "basic.publish", "", "q", False, False) + header(2, 100)
    expect_close(connection, connection.receive(data, 0.0), errors.RESOURCE_ERROR, "200 bytes")


def test_methods_are_handed_on_with_their_arguments() -> None:
    connection = opened()
    data = method(1, "queue.declare", "q", False, True, False, False, False, {"x-a": 1})
    data += method(1, "basic.ack", 7, True) + method(1, "basic.nack", 8, False, True)
    assert connection.receive(data, 0.0) == [
        Called(1, "queue.declare", ("q", False, True, False, False, False, {"x-a": 1})),
        Called(1, "basic.ack", (7, True)),
        Called(1, "basic.nack", (8, False, True)),
    ]


def test_a_secret_may_be_renewed() -> None:
    connection = opened()
    assert connection.receive(method(0, "connection.update-secret", b"new", "time"), 0.0) == []
    assert heard(connection.take_output())[0].method == "connection.update-secret-ok"


# -- ends -----------------------------------------------------------------------------------------


def test_the_client_closes_the_connection() -> None:
    connection = opened()
    data = publish(1, "", "q") + method(0, "connection.close", 200, "bye", 0, 0)
    events = connection.receive(data + publish(1, "", "q") + b"garbage that follows", 0.0)
    assert [type(event) for event in events] == [Published, CloseAsked]
    connection = opened()
    connection.receive(data, 0.0)
    connection.close_ok()
    assert heard(connection.take_output())[0].method == "connection.close-ok"
    assert connection.has_ended


def test_both_sides_close_the_connection_at_once() -> None:
    connection = opened()
    connection.close(320, "CONNECTION_FORCED - stop")
    connection.close(541, "INTERNAL_ERROR - a second close is not said")
    connection.receive(method(0, "connection.close", 200, "bye", 0, 0), 0.0)
    said = [one.method for one in heard(connection.take_output())]
    assert said == ["connection.close", "connection.close-ok"]
    assert connection.has_ended


def test_after_a_close_nothing_is_said_and_all_is_discarded_until_close_ok() -> None:
    connection = opened()
    connection.close(320, "CONNECTION_FORCED - stop")
    connection.take_output()
    connection.say(1, "basic.get-empty")
    assert connection.receive(publish(1, "", "q") + method(1, "tx.select"), 0.0) == []
    assert connection.take_output() == b""
    assert not connection.has_ended
    connection.receive(method(0, "connection.close-ok"), 0.0)
    assert connection.has_ended


def test_a_client_that_does_not_say_close_ok_is_let_go_after_a_while() -> None:
    connection = opened()
    connection.receive(b"", 5.0)
    connection.close(320, "CONNECTION_FORCED - stop")
    assert connection.next_timer() == 15.0
    assert [type(event) for event in connection.wake(15.0)] == [Faulted]
    assert connection.has_ended
    assert connection.wake(16.0) == []


def test_nonsense_after_a_close_ends_it_at_once() -> None:
    connection = opened()
    connection.close(320, "CONNECTION_FORCED - stop")
    assert connection.receive(b"\xff" * 30, 0.0) == []
    assert connection.has_ended


def test_the_client_closes_a_channel() -> None:
    connection = opened()
    data = publish(1, "", "q") + method(1, "channel.close", 200, "", 0, 0) + publish(1, "", "q")
    events = connection.receive(data, 0.0)
    assert events[1:] == [ChannelCloseAsked(1)]
    connection.channel_close_ok(1)
    assert heard(connection.take_output()) == [(1, "channel.close-ok", (), None, b"")]
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]


def test_the_server_closes_a_channel_and_discards_until_close_ok() -> None:
    connection = opened()
    connection.close_channel(1, 404, "NOT_FOUND - no queue", 50, 10)
    connection.close_channel(1, 404, "NOT_FOUND - said only once", 50, 10)
    assert heard(connection.take_output()) == [
        (1, "channel.close", (404, "NOT_FOUND - no queue", 50, 10), None, b"")
    ]
    assert connection.receive(publish(1, "", "q") + method(1, "channel.open"), 0.0) == []
    connection.receive(method(1, "channel.close-ok"), 0.0)
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]


def test_both_sides_close_a_channel_at_once() -> None:
    close = method(1, "channel.close", 200, "", 0, 0)
    # ours was first on the wire
    connection = opened()
    connection.close_channel(1, 404, "NOT_FOUND - x", 50, 10)
    assert connection.receive(close + method(1, "channel.close-ok"), 0.0) == []
    said = [one.method for one in heard(connection.take_output())]
    assert said == ["channel.close", "channel.close-ok"]
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]
    # the client's was handed on already
    connection = opened()
    connection.receive(close, 0.0)
    connection.close_channel(1, 404, "NOT_FOUND - x", 50, 10)
    said = [one.method for one in heard(connection.take_output())]
    assert said == ["channel.close", "channel.close-ok"]
    # it may take the number again at once
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]
    # the server is about to say why
    connection = opened()
    connection.doom_channel(1)
    assert connection.receive(close, 0.0) == []
    connection.close_channel(1, 406, "PRECONDITION_FAILED - x", 60, 40)
    said = [one.method for one in heard(connection.take_output())]
    assert said == ["channel.close", "channel.close-ok"]


def test_close_texts_fit_whatever_they_quote() -> None:
    connection = opened()
    connection.close(530, "NOT_ALLOWED - " + "\u00e9" * 300)
    (said,) = heard(connection.take_output())
    assert isinstance(said.args[1], str)
    assert said.args[1].endswith("...")
    assert len(said.args[1].encode()) <= 255


# -- heartbeats -----------------------------------------------------------------------------------


def test_heartbeats_are_sent_when_nothing_else_is() -> None:
    connection = opened(heartbeat=10)
    connection.receive(codec.HEARTBEAT_FRAME, 0.0)
    assert connection.next_timer() == 5.0
    connection.wake(5.0)  # the handshake was something
    assert connection.take_output() == b""
    connection.wake(10.0)
    assert connection.take_output() == codec.HEARTBEAT_FRAME
    connection.say(1, "basic.get-empty")
    connection.take_output()
    connection.wake(15.0)
    assert connection.take_output() == b""


def test_a_silent_client_is_gone_after_two_intervals() -> None:
    connection = opened(heartbeat=10)
    connection.receive(codec.HEARTBEAT_FRAME, 7.0)
    assert connection.wake(26.9) == []
    (fault,) = connection.wake(27.0)
    assert isinstance(fault, Faulted)
    assert "heartbeats" in fault.text
    assert connection.has_ended


def test_a_client_that_is_not_read_is_not_silent() -> None:
    connection = opened(heartbeat=10)
    connection.reading(False, 5.0)
    for at in range(5, 100, 5):
        assert connection.wake(float(at)) == []
        timer = connection.next_timer()
        assert timer is not None
        assert timer > at
    connection.reading(True, 100.0)
    assert connection.wake(119.0) == []
    assert [type(event) for event in connection.wake(120.0)] == [Faulted]


def test_without_heartbeats_there_is_no_timer() -> None:
    assert opened(heartbeat=0).next_timer() is None
