"""Connections for the tests of one connection, and the check that all their faults share."""

from broker.amqp import errors
from broker.amqp.connection import ServerConnection
from broker.amqp.events import ChannelOpened, Event, Faulted, OpenRequested
from broker.amqp.handshake import Credentials, Limits, ServerIdentity
from tests.support.amqp_peer import ServerMethod, method, methods_in, opening


def new(limits: Limits | None = None) -> ServerConnection:
    def authenticate(credentials: Credentials) -> str:
        user, password, _ = credentials
        return user if (user, password) == ("guest", "guest") else ""

    return ServerConnection(authenticate, limits or Limits(), ServerIdentity(member="a"), 0.0)


def opened(
    limits: Limits | None = None, heartbeat: int = 0, frame_max: int = 131_072
) -> ServerConnection:
    connection = new(limits)
    data = opening(heartbeat=heartbeat, frame_max=frame_max) + method(1, "channel.open")
    events = connection.receive(data, 0.0)
    assert [type(event) for event in events] == [OpenRequested, ChannelOpened]
    connection.accept_open()
    connection.send(1, "channel.open-ok")
    connection.take_output()
    return connection


def expect_close(
    connection: ServerConnection, events: list[Event], code: int, *words: str
) -> ServerMethod:
    """The fault is an event, and the last method sent is a close with this code and these words."""
    fault = events[-1]
    assert isinstance(fault, Faulted)
    assert fault.code == code
    received = methods_in(connection.take_output())[-1]
    assert (received.channel, received.method, received.args[0]) == (0, "connection.close", code)
    text = received.args[1]
    assert isinstance(text, str)
    assert text.startswith(errors.REPLY_NAMES[code])
    for word in words:
        assert word in text
    assert not connection.has_ended
    return received
