"""The closed list of effects: what the machine asks its own member to do.

Effects are built only for connections of the local member's session: every member computes the same
change, and one of them replies. They come in the order in which they must be sent. The outbox holds
effects marked `durable` until the position of their command is durable, and with them later effects
on the same channel if AMQP requires that order.
"""

from typing import NamedTuple, TypeAlias

from broker.machine.commands import Value
from broker.waiting.bodies import Body


class Reply(NamedTuple):
    """A reply method; `args` in the order of the AMQP specification, without nowait bits."""

    conn: int
    chan: int
    method: str  # "queue.declare-ok"
    args: tuple[Value, ...]
    durable: bool


class DeliverEffect(NamedTuple):
    conn: int
    chan: int
    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    key: str
    properties: bytes
    body: Body
    no_ack: bool  # settled by a Sent of this delivery tag, once written


class GetOk(NamedTuple):
    """A no-ack get is settled by a Sent of its delivery tag, like a no-ack delivery."""

    conn: int
    chan: int
    delivery_tag: int
    redelivered: bool
    exchange: str
    key: str
    message_count: int
    properties: bytes
    body: Body
    no_ack: bool


class GetEmpty(NamedTuple):
    conn: int
    chan: int


class Return(NamedTuple):
    """A mandatory message that reached no queue; precedes its Confirm."""

    conn: int
    chan: int
    code: int
    text: str
    exchange: str
    key: str
    properties: bytes
    body: Body


class Confirm(NamedTuple):
    conn: int
    chan: int
    publish_no: int
    durable: bool  # of a persistent message; for checkers, as the outbox lets every confirm wait
    ack: bool  # False: the queue refused it (basic.nack)


class ChannelError(NamedTuple):
    """The machine has closed the channel; the member sends channel.close."""

    conn: int
    chan: int
    code: int
    text: str
    class_id: int
    method_id: int


class ConnectionError_(NamedTuple):
    """The machine has closed the connection; the member sends connection.close."""

    conn: int
    code: int
    text: str
    class_id: int
    method_id: int


class CancelNotify(NamedTuple):
    """The consumer's queue was deleted; sent only to clients with the capability."""

    conn: int
    chan: int
    consumer_tag: str


class SessionStarted(NamedTuple):
    """This member's own new session: drop every connection of an older one."""

    session: int


class Defined(NamedTuple):
    """The result of this member's own `Define`; `code` is an HTTP status (handlers/definitions.py).
    No client waits for it: the outbox hands it on when its position is durable."""

    request: int
    code: int
    text: str


Effect: TypeAlias = (
    Reply
    | DeliverEffect
    | GetOk
    | GetEmpty
    | Return
    | Confirm
    | ChannelError
    | ConnectionError_
    | CancelNotify
    | SessionStarted
    | Defined
)
