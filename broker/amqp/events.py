"""The closed list of events that a connection reports to its owner.

They come in the order of the client's bytes.
"""

from typing import NamedTuple, TypeAlias

from broker.amqp.fields import Table, Value


class OpenRequested(NamedTuple):
    """The client has logged in and opens a virtual host. Reply with `accept_open` or `close`."""

    vhost: str
    user: str
    client_properties: Table


class BodyPart(NamedTuple):
    """A part of the body of a large message, ahead of the message; nothing else comes between them
    on its channel."""

    channel: int
    data: bytes


class Published(NamedTuple):
    """One message. `flags`: 1 mandatory, 2 immediate, 4 persistent (delivery mode 2), 8 in parts:
    `body` follows the parts."""

    channel: int
    exchange: str
    key: str
    flags: int
    properties: bytes  # flags and list, verbatim; known to be well-formed
    body: bytes
    user_id: bytes | None


class Oversized(NamedTuple):
    """A message larger than allowed was announced; its channel now discards."""

    channel: int
    body_bytes: int


class Called(NamedTuple):
    """Any other method on an open channel, `args` without the reserved fields."""

    channel: int
    method: str
    args: tuple[Value, ...]


class ChannelOpened(NamedTuple):
    """No reply was sent yet: the owner sends open-ok."""

    channel: int


class ChannelCloseRequested(NamedTuple):
    """The channel discards until the owner calls `channel_close_ok`."""

    channel: int


class CloseRequested(NamedTuple):
    """The connection discards until the owner calls `close_ok`."""

    code: int
    text: str


class SecretUpdated(NamedTuple):
    """The client presents another secret for its user: the owner sends update-secret-ok, or closes
    the connection."""

    secret: str
    reason: str


class Faulted(NamedTuple):
    """The client broke the protocol or fell silent: the reason was sent, the connection is
    ending.
    """

    code: int
    text: str


Event: TypeAlias = (
    OpenRequested
    | BodyPart
    | Published
    | Oversized
    | Called
    | ChannelOpened
    | ChannelCloseRequested
    | CloseRequested
    | SecretUpdated
    | Faulted
)
