"""Direct reply-to: replies to a client without a queue of its own, as far as the client knows.

A client consumes from `amq.rabbitmq.reply-to`, publishes its requests on the same channel with that
name as their `reply_to`, and the responder finds another name there. Behind it is a queue like any
other, which lives as long as its consumer, so that replies reach the client from every member. The
queue is not durable, and no other client may consume from it, bind or delete it. Its name cannot be
guessed, like the names of all generated queues.
"""

from broker.amqp import errors
from broker.frontend.channel import LocalChannel
from broker.frontend.client import Client
from broker.machine import commands as c
from broker.machine.commands import Table

REPLY_TO = "amq.rabbitmq.reply-to"
REPLY_QUEUE = REPLY_TO + "."
"""The prefix of the queues' names, by which clients know them; they may declare these only
passively."""
UNUSED_MS = 60_000
"""How long the queue stays if its consumer never comes: it was refused or its member is lost."""
REPLY_TO_FLAG = 2
"""The flag of `reply_to` in the first byte of a message's properties."""
_REPLY_TO = REPLY_TO.encode()
_BEFORE = ((0x8000, 0), (0x4000, 0), (0x2000, -1), (0x1000, 1), (0x0800, 1), (0x0400, 0))
"""The properties before `reply_to`: flag, and a short string, a table, or a number of bytes."""


def consume_replies(
    client: Client, number: int, channel: LocalChannel, tag: str, no_ack: bool, nowait: bool,
    arguments: Table,
) -> c.Consume | None:  # fmt: skip
    """Make the queue; return the command that consumes from it, or None if that is refused."""
    if not no_ack:
        client.refuse_channel(
            number, errors.PRECONDITION_FAILED, "reply consumer cannot acknowledge", "basic.consume"
        )
        return None
    if channel.reply_queue:
        client.refuse_channel(
            number, errors.PRECONDITION_FAILED, "reply consumer already set", "basic.consume"
        )
        return None
    queue = client.port.new_name(REPLY_QUEUE)
    channel.reply_queue, channel.reply_consumer = queue, tag
    client.port.commands.append(
        c.QueueDeclare(
            c.QUEUE_DECLARE, client.conn, number, queue, passive=False, durable=False,
            exclusive=False, auto_delete=True, nowait=True, arguments={"x-expires": UNUSED_MS},
        )
    )  # fmt: skip
    return c.Consume(
        c.CONSUME, client.conn, number, queue, tag, no_local=False, no_ack=True, exclusive=True,
        nowait=nowait, arguments=arguments, prefetch=0,
    )  # fmt: skip


def with_reply_queue(
    client: Client, number: int, channel: LocalChannel, properties: bytes
) -> bytes | None:
    """Return the properties with the responder's reply name; None: the publish is refused."""
    if _REPLY_TO not in properties:
        return properties
    flags = int.from_bytes(properties[:2], "big")
    at = 2
    for flag, width in _BEFORE:
        if flags & flag:
            if width < 0:
                at += 4 + int.from_bytes(properties[at : at + 4], "big")
            else:
                at += width or 1 + properties[at]
    end = at + 1 + properties[at]
    if properties[at + 1 : end] != _REPLY_TO:
        return properties
    if not channel.reply_queue:
        client.refuse_channel(
            number,
            errors.PRECONDITION_FAILED,
            "fast reply consumer does not exist",
            "basic.publish",
        )
        return None
    name = channel.reply_queue.encode()
    return b"%b%c%b%b" % (properties[:at], len(name), name, properties[end:])
