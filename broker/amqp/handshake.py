"""The handshake: what a server offers in connection.start and connection.tune, and accepts.

SASL only reads what a client claims; `Authenticate` judges it.
"""

from collections.abc import Callable
from typing import NamedTuple

from broker.amqp.codec import FRAME_MAX_BYTES
from broker.amqp.errors import (
    COMMAND_INVALID,
    FRAME_MIN_BYTES,
    NOT_ALLOWED,
    SYNTAX_ERROR,
    ProtocolFault,
)
from broker.amqp.fields import Table, Value, decode_table, encode_long_string

Authenticate = Callable[["Credentials"], "str | None"]
"""Returns the user that these credentials, from this connection's address, identify. Empty: they
are refused. None: not known yet, `ServerConnection.logged_in` will say. May raise ProtocolFault."""

CAPABILITIES: Table = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
    "queue_numbers": True,  # of deliveries, for consumers that ask for them
    "followed_queues": True,  # a consumer may learn what is held, and what has left
    "numbered_publishes": True,  # a numbered message of a producer is taken once
}


MECHANISMS = ("PLAIN", "AMQPLAIN")
"""The mechanisms that take a password."""


class Limits(NamedTuple):
    frame_bytes_max: int = FRAME_MAX_BYTES
    channel_max: int = 2047
    heartbeat_s: int = 60
    handshake_s: float = 10.0
    closing_s: float = 10.0
    message_bytes_max: int = 128 * 1024 * 1024
    assembly_bytes_max: int = 64 * 1024 * 1024  # bodies in progress on all channels, as far as kept


class ServerIdentity(NamedTuple):
    """How this server names itself to clients."""

    product: str = "qpid-cluster-py"
    version: str = "0.1.0"
    member: str = ""
    cluster: str = ""
    cluster_id: str = ""  # hex; empty while this member does not know it

    def properties(self) -> Table:
        return {
            "product": self.product,
            "version": self.version,
            "platform": "Python",
            "information": "Licensed under the Apache License, Version 2.0",
            "copyright": "The authors of qpid-cluster-py",
            "cluster_name": self.cluster,
            "cluster_id": self.cluster_id,
            "node": self.member,
            "capabilities": {**CAPABILITIES},
        }


class Tuned(NamedTuple):
    channel_max: int
    frame_bytes_max: int
    heartbeat_s: int


def negotiate(limits: Limits, args: tuple[Value, ...]) -> Tuned:
    """The agreed values. Zero from the client means that it sets no limit, so ours applies."""
    channel_max, frame_max, heartbeat = args
    assert isinstance(channel_max, int)
    assert isinstance(frame_max, int)
    assert isinstance(heartbeat, int)
    if channel_max > limits.channel_max:
        raise _too_high("channel_max", channel_max, limits.channel_max)
    if frame_max > limits.frame_bytes_max:
        raise _too_high("frame_max", frame_max, limits.frame_bytes_max)
    if 0 < frame_max < FRAME_MIN_BYTES:
        text = f"negotiated frame_max = {frame_max} is lower than the minimum allowed value"
        raise ProtocolFault(NOT_ALLOWED, f"{text} ({FRAME_MIN_BYTES})", 10, 31)
    return Tuned(channel_max or limits.channel_max, frame_max or limits.frame_bytes_max, heartbeat)


def _too_high(what: str, requested: int, allowed: int) -> ProtocolFault:
    text = f"negotiated {what} = {requested} is higher than the maximum allowed value ({allowed})"
    return ProtocolFault(NOT_ALLOWED, text, 10, 31)


def has_capability(client_properties: Table, name: str) -> bool:
    """Whether the client has declared this capability."""
    return name in announced(client_properties)


def announced(client_properties: Table) -> list[str]:
    """The capabilities that the client has declared."""
    capabilities = client_properties.get("capabilities")
    found = capabilities if isinstance(capabilities, dict) else {}
    return [name for name, on in found.items() if on is True]


class Credentials(NamedTuple):
    user: str
    password: str
    mechanism: str
    """With EXTERNAL the certificate names the client's user, with ANONYMOUS the operator does; user
    and password are empty."""


def credentials_of(mechanism: str, response: bytes) -> Credentials:
    """The credentials in a client's SASL response; a fault if it is not one of that mechanism."""
    match mechanism:
        case "PLAIN":
            user, password = _plain(response)
        case "AMQPLAIN":
            user, password = _amqplain(response)
        case "ANONYMOUS" | "EXTERNAL":
            user = password = ""
        case _:
            text = f"unknown authentication mechanism '{mechanism}'"
            raise ProtocolFault(COMMAND_INVALID, text, 10, 11)
    return Credentials(user, password, mechanism)


def _plain(response: bytes) -> tuple[str, str]:
    """RFC 4616: authorisation identity (not used here), user, password."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise ProtocolFault(SYNTAX_ERROR, "PLAIN response without user and password", 10, 11)
    return _text(parts[1]), _text(parts[2])


def _amqplain(response: bytes) -> tuple[str, str]:
    """A field table without its length."""
    framed = encode_long_string(response)
    table, _ = decode_table(framed, 0, len(framed))
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str):
        raise ProtocolFault(SYNTAX_ERROR, "AMQPLAIN response without LOGIN and PASSWORD", 10, 11)
    return user, password


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProtocolFault(SYNTAX_ERROR, "credentials are no UTF-8", 10, 11) from None
