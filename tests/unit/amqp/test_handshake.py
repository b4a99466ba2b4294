"""How a connection begins: the protocol header, the login, and the agreed limits."""

import pytest

from broker.amqp import codec, errors
from broker.amqp.connection import ServerConnection
from broker.amqp.events import (
    Faulted,
    OpenRequested,
)
from broker.amqp.fields import Table, encode_table
from broker.amqp.handshake import Limits, ServerIdentity
from tests.support.amqp_connection import expect_close, new
from tests.support.amqp_peer import method, methods_in, start_ok, tune_ok


def test_the_handshake_step_by_step() -> None:
    connection = new()
    assert connection.receive(b"AMQP\x00", 0.0) == []
    assert connection.receive(b"\x00\x09\x01", 0.0) == []
    (start,) = methods_in(connection.take_output())
    assert start.method == "connection.start"
    properties = start.args[2]
    assert isinstance(properties, dict)
    assert (properties["node"], properties["cluster_id"]) == ("a", "")  # not yet known
    capabilities = properties["capabilities"]
    assert isinstance(capabilities, dict)
    assert capabilities["publisher_confirms"] is True
    assert capabilities["direct_reply_to"] is True
    assert capabilities["numbered_publishes"] is True
    assert start.args[3] == b"PLAIN AMQPLAIN"
    assert connection.receive(start_ok(), 0.0) == []
    assert methods_in(connection.take_output()) == [
        (0, "connection.tune", (2047, 131_072, 60), None, b"")
    ]
    assert connection.receive(tune_ok(), 0.0) == []
    (requested,) = connection.receive(method(0, "connection.open", "/"), 0.0)
    assert isinstance(requested, OpenRequested)
    assert (requested.vhost, requested.user) == ("/", "guest")
    connection.accept_open()
    assert methods_in(connection.take_output()) == [(0, "connection.open-ok", ("",), None, b"")]


def test_a_client_of_0_9_gets_0_9_1() -> None:
    """As from RabbitMQ: aioamqp sends that header."""
    connection = new()
    assert connection.receive(codec.HEADER_OF_0_9[:5], 0.0) == []
    assert connection.receive(codec.HEADER_OF_0_9[5:] + start_ok() + tune_ok(), 0.0) == []
    (requested,) = connection.receive(method(0, "connection.open", "/"), 0.0)
    assert isinstance(requested, OpenRequested)


@pytest.mark.parametrize(
    "data",
    [b"AMQP\x00\x00\x09\x00", b"AMQP\x01\x01\x00\x0a", b"GET / HT", b"\x16\x03\x01", b"\x00"],
)
def test_another_protocol_gets_our_protocol_header(data: bytes) -> None:
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
        start_ok(),
    ],
)
def test_every_mechanism_logs_in(data: bytes) -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER, 0.0)
    assert connection.receive(data, 0.0) == []
    assert methods_in(connection.take_output())[-1].method == "connection.tune"
    assert connection.user == "guest"


@pytest.mark.parametrize(
    ("data", "code", "word"),
    [
        (method(0, "connection.start-ok", {}, "PLAIN", b"guest", "en_US"), 502, "PLAIN"),
        (method(0, "connection.start-ok", {}, "PLAIN", b"\0\xff\0x", "en_US"), 502, "UTF-8"),
        (method(0, "connection.start-ok", {}, "EXTERNAL", b"", "en_US"), 503, "EXTERNAL"),
        (amqplain({"LOGIN": "guest"}), 502, "AMQPLAIN"),
        (amqplain({"LOGIN": "guest", "PASSWORD": 4}), 502, "AMQPLAIN"),
        (start_ok(password="wrong"), 403, "Login was refused using authentication mechanism PLAIN"),
    ],
)
def test_bad_credentials_end_the_connection(data: bytes, code: int, word: str) -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER, 0.0)
    expect_close(connection, connection.receive(data, 0.0), code, word)


def test_a_client_without_the_capability_failure_close_is_just_closed() -> None:
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


def test_zero_limits_of_the_client_mean_ours() -> None:
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
        (method(0, "channel.open"), 504, "channel 0"),
        (method(0, "connection.start", 0, 9, {}, b"", b""), 503, "start"),
        (b"\x01\x00\x00\x00\x00\x10\x01", 501, "4096"),
        (b"\x02\x00\x00\x00\x00\x00\x00\xce", 505, "channel 0"),
        (b"\x01\x00\x00\x00\x00\x00\x00\xce", 501, "no method"),
        (b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x63\xce", 540, "99"),
    ],
)
def test_invalid_methods_in_a_handshake(data: bytes, code: int, word: str) -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER, 0.0)
    expect_close(connection, connection.receive(data + b"\x00", 0.0), code, word)


def test_a_client_may_leave_in_the_middle_of_the_handshake() -> None:
    connection = new()
    connection.receive(codec.PROTOCOL_HEADER + start_ok(), 0.0)
    connection.take_output()
    assert connection.receive(method(0, "connection.close", 200, "bye", 0, 0), 0.0) == []
    assert methods_in(connection.take_output())[0].method == "connection.close-ok"
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


def test_what_comes_while_a_login_is_judged_is_handled_when_its_user_is_known() -> None:
    """However the bytes were cut, and although nothing more comes."""
    data = start_ok() + tune_ok() + method(0, "connection.open", "/")
    for cut in range(0, len(start_ok()) + 5, 3):
        connection = ServerConnection(lambda _: None, Limits(), ServerIdentity(), 0.0)
        connection.receive(codec.PROTOCOL_HEADER, 0.0)
        assert connection.receive(data[:cut], 0.0) == connection.receive(data[cut:], 0.0) == []
        assert connection.is_judged
        (opens,) = connection.logged_in("guest", 1.0)
        assert isinstance(opens, OpenRequested)
        assert connection.logged_in("guest", 1.0) == []  # it is no login any more
