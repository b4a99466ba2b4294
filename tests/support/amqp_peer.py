"""The other end of a connection in tests: encodes methods, and decodes the server's."""

from typing import NamedTuple

from broker.amqp import codec
from broker.amqp.fields import Table, Value
from broker.amqp.spec import METHODS, decode_method

ALL_CAPABILITIES: Table = {
    "capabilities": {
        "authentication_failure_close": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
    }
}
PERSISTENT = codec.encode_properties({"delivery_mode": 2})


class ServerMethod(NamedTuple):
    """One method of the server, with its content."""

    channel: int
    method: str
    args: tuple[Value, ...]
    body: bytes | None = None
    properties: bytes = b""


def method(channel: int, name: str, *args: Value) -> bytes:
    out = bytearray()
    codec.append_method(out, channel, name, args)
    return bytes(out)


def publish(
    channel: int,
    exchange: str,
    key: str,
    body: bytes = b"hello",
    properties: bytes = PERSISTENT,
    *,
    mandatory: bool = False,
    frame_max: int = codec.FRAME_MAX_BYTES,
) -> bytes:
    out = bytearray()
    codec.append_publish(
        out, channel, exchange, key, properties, body, mandatory=mandatory, frame_max=frame_max
    )
    return bytes(out)


def start_ok(
    user: str = "guest", password: str = "guest", properties: Table | None = None
) -> bytes:
    properties = ALL_CAPABILITIES if properties is None else properties
    response = f"\0{user}\0{password}".encode()
    return method(0, "connection.start-ok", properties, "PLAIN", response, "en_US")


def tune_ok(channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> bytes:
    return method(0, "connection.tune-ok", channel_max, frame_max, heartbeat)


def opening(
    vhost: str = "/",
    user: str = "guest",
    *,
    heartbeat: int = 0,
    frame_max: int = 131_072,
    properties: Table | None = None,
) -> bytes:
    """Everything that a client sends until it is open, without waiting for the server."""
    return (
        codec.PROTOCOL_HEADER
        + start_ok(user, properties=properties)
        + tune_ok(heartbeat=heartbeat, frame_max=frame_max)
        + method(0, "connection.open", vhost)
    )


def methods_in(data: bytes | bytearray) -> list[ServerMethod]:
    """The methods in these bytes, which must be whole frames; heartbeats are left out."""
    data = bytes(data)
    frames, end = codec.split_frames(data)
    assert end == len(data)
    received: list[ServerMethod] = []
    missing = 0
    for kind, channel, start, stop in frames:
        if kind == codec.METHOD:
            assert missing == 0
            known, args = decode_method(data, start, stop)
            received.append(ServerMethod(channel, known.name, args))
            assert known.by_server
        elif kind == codec.HEADER:
            missing, properties = codec.decode_content_header(data, start, stop)
            assert METHODS[received[-1].method].has_content
            received[-1] = received[-1]._replace(body=b"", properties=properties)
        elif kind == codec.BODY:
            assert received[-1].body is not None
            received[-1] = received[-1]._replace(body=received[-1].body + data[start:stop])
            missing -= stop - start
    assert missing == 0
    return received


def short(received: list[ServerMethod]) -> list[tuple[object, ...]]:
    """The parts that most tests look at: channel, method and arguments in one tuple."""
    return [(one.channel, one.method, *one.args) for one in received]
