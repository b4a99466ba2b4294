"""Turns the events of a client's connection into commands, after its bytes were read.

Publishes are checked and numbered here, and connections and channels are opened and closed; the
other methods are in `methods`.
"""

from __future__ import annotations

from broker.access.access import IMPERSONATOR, SYSTEM
from broker.amqp import errors
from broker.amqp.channel import IN_PARTS
from broker.amqp.errors import reply_text
from broker.amqp.events import (
    BodyPart,
    Called,
    ChannelCloseRequested,
    ChannelOpened,
    CloseRequested,
    Event,
    Faulted,
    OpenRequested,
    Oversized,
    Published,
    SecretUpdated,
)
from broker.frontend.channel import TX_BYTES_MAX, LocalChannel, Transaction
from broker.frontend.client import Client
from broker.frontend.direct_reply import REPLY_TO_FLAG, with_reply_queue
from broker.frontend.methods import REQUESTS
from broker.machine.commands import (
    BODY_PART,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    PUBLISH,
    ChannelClose,
    ChannelOpen,
    ConnectionOpen,
    Publish,
    TxPublish,
)
from broker.machine.commands import BodyPart as BodyPartCommand
from broker.machine.publishing.copies import copies_of, may_name_copies
from broker.machine.requests.refusals import Refusal

REPLY_SUCCESS = 200
_new = tuple.__new__  # half the cost of calling the class


def on_events(client: Client, events: list[Event]) -> None:
    """Carry out the events of a connection, or keep them while they have to wait."""
    kept = client.kept
    if kept.holds_all:
        kept.add(events)
        return
    port, channels = client.port, client.channels
    commands = port.commands
    published = 0
    rest = iter(events)
    for event in kept.sift(rest) if port.alarm else rest:
        if type(event) is Published:
            number, exchange, key, flags, properties, body, user_id = event
            channel = channels.get(number)
            if channel is None or channel.pending_close is not None:
                continue
            if exchange not in client.rights.publishes and _stays(client, event):
                if kept.holds_all:
                    kept.add(rest)
                continue
            if properties[0] & REPLY_TO_FLAG:
                replied = with_reply_queue(client, number, channel, properties)
                if replied is None:
                    continue
                properties, event = replied, event._replace(properties=replied)
            is_rare = channel.transaction is not None or user_id is not None
            if is_rare and not _may_publish(client, number, channel, event):
                continue
            if channel.wants_confirms:
                publish_no = channel.publish_no = channel.publish_no + 1
                if not channel.probe_no:
                    channel.probe_no, channel.probed_at = publish_no, client.connection.now
            else:
                publish_no, channel.unanswered = 0, True
            published += 1
            fields = (
                PUBLISH, client.conn, number, publish_no, exchange, key, flags, properties, body
            )  # fmt: skip
            commands.append(_new(Publish, fields))
        elif type(event) is Called:
            channel = channels.get(event.channel)
            if channel is not None and channel.pending_close is None:
                if published:
                    client.is_publisher = True
                REQUESTS[event.method](client, event.channel, channel, event.args)
                if kept.holds_all:
                    kept.add(rest)
        else:
            _on_other_event(client, event)
            if kept.holds_all:
                kept.add(rest)
    if port.alarm and kept.has_publishes:
        client.is_publisher = True
        client.tell_blocked()
        port.mark_writable(client)  # whether it is read is looked at with its output
    if published:
        client.is_publisher = True
        port.counters["publishes"] += published
    if client.connection.out or client.connection.has_ended:
        port.mark_writable(client)


def release(client: Client) -> None:
    """Examine the kept events again, because something that they waited for is over."""
    on_events(client, client.kept.take())


def _stays(client: Client, message: Published) -> bool:
    """Whether a publish stops here: it is refused, or waits until its verdict is known."""
    keys = [message.key]
    if may_name_copies(message.properties):
        copies = copies_of(message.properties)
        if not isinstance(copies, Refusal):  # else the machine says so, in its order
            keys += dict.fromkeys(copies.keys + copies.blind)
    refusal = client.rights.refuses_publish(message.exchange, keys)
    if refusal is None:
        client.hold(message, client.rights.missing)
    elif refusal:
        code = errors.ACCESS_REFUSED
        client.refuse_channel(message.channel, code, refusal, "basic.publish")
    return refusal != ""


def _may_publish(client: Client, number: int, channel: LocalChannel, message: Published) -> bool:
    """Check a publish that names its user or is part of a transaction; False if it is refused or
    kept for tx.commit."""
    _, exchange, key, flags, properties, body, user_id = message
    user = client.connection.user
    if (
        user_id is not None
        and user_id != user.encode()
        and user != SYSTEM
        and IMPERSONATOR not in client.port.access.tags(user, client.login)
    ):
        shown = user_id.decode("ascii", "backslashreplace")
        text = f"user_id property set to '{shown}' but authenticated user was '{user}'"
        client.refuse_channel(number, errors.PRECONDITION_FAILED, text, "basic.publish")
        return False
    transaction = channel.transaction
    if transaction is None:
        return True
    client.is_publisher = True
    client.port.counters["publishes"] += 1
    size = len(properties) + len(body)
    if flags & IN_PARTS:
        body, transaction.parts = b"".join((*transaction.parts, body)), []
    publish = TxPublish(exchange, key, flags & ~IN_PARTS, properties, body)
    transaction.publishes.append(publish)
    _count_in_transaction(client, number, transaction, size)
    return False


def _count_in_transaction(client: Client, number: int, transaction: Transaction, size: int) -> None:
    transaction.size += size
    client.transaction_bytes += size
    if transaction.is_full or client.transaction_bytes > TX_BYTES_MAX:
        text = "the transaction is larger than this server allows"
        client.refuse_channel(number, errors.PRECONDITION_FAILED, text, "basic.publish")


def _on_body_part(client: Client, number: int, data: bytes) -> None:
    """Send a part of a large body to the machine ahead of its message, or keep it for tx.commit."""
    channel = client.channels.get(number)
    if channel is None or channel.pending_close is not None:
        return
    client.is_publisher = True
    if channel.transaction is not None:
        channel.transaction.parts.append(data)
        _count_in_transaction(client, number, channel.transaction, len(data))
        return
    client.port.large_senders[client] = None
    client.port.commands.append(BodyPartCommand(BODY_PART, client.conn, number, data))


def _on_other_event(client: Client, event: Event) -> None:
    port = client.port
    match event:
        case BodyPart(number, data):
            _on_body_part(client, number, data)
        case OpenRequested():
            _on_open(client, event)
        case ChannelOpened(number):
            if client.conn and (client.unlimited or not _refuses_channel(client)):
                client.channels[number] = LocalChannel()
                port.commands.append(ChannelOpen(CHANNEL_OPEN, client.conn, number))
                client.send(number, "channel.open-ok")
        case ChannelCloseRequested(number):
            channel = client.channels.get(number)
            if channel is not None and channel.pending_close is None:
                port.commands.append(ChannelClose(CHANNEL_CLOSE, client.conn, number))
                if channel.is_quiet and port.is_idle(client.conn, number):
                    client.close_ahead(number)
        case Oversized(number, size):
            if number in client.channels:
                text = f"message size {size} is larger than configured max size"
                limit = port.limits.message_bytes_max
                code = errors.PRECONDITION_FAILED
                client.refuse_channel(number, code, f"{text} {limit}", "basic.publish")
        case CloseRequested(code, text):
            in_order = code == REPLY_SUCCESS or not (code or text)  # py-amqp gives no code
            said = "" if in_order else f" with {code} {text!r}"
            client.end_reason = f"it closed the connection{said}"
            # The machine replies, so that what the client sent before has been done. A fenced
            # member closes the connection at once.
            conn = client.conn
            client.deregister()
            if conn and not port.fenced:
                client.closing_conn = conn
                port.clients[conn] = client
            else:
                client.connection.close_ok()
        case SecretUpdated():
            _on_secret(client, event)
        case Faulted(_, text):
            port.note("faults", f"client {client.peer}: {text}")
            client.end_reason = client.end_reason or text
            client.deregister()
        case Called() | Published():
            pass


def _on_secret(client: Client, event: SecretUpdated) -> None:
    """Check an updated secret; a wrong one closes the connection with RabbitMQ's code and text."""
    port = client.port
    if not client.conn:
        return  # what came before it has closed the connection: it is no further guess
    login = port.logins.login_by(client, event.secret)
    if login is None:
        client.kept.hold(event)
    elif login.backend:
        client.login = login
        client.rights = port.logins.rights_of(client, client.connection.user, client.vhost)
        client.send(0, "connection.update-secret-ok")
        said = f": {event.reason[:128]}" if event.reason else ""
        port.tell("connected", f"{client.describe()} renewed its secret{said}")
    else:
        text = "New secret was refused by one of the backends"
        client.refuse(errors.NOT_ALLOWED, reply_text(errors.NOT_ALLOWED, text), 10, 70)


def _refuses_channel(client: Client) -> bool:
    """Close the connection if the client's user has too many channels; return whether it has."""
    port, user = client.port, client.rights.user

    def opened() -> int:
        return sum(len(one.channels) for one in port.clients.values() if one.rights.user == user)

    refusal = port.access.refuses_channel(port.session, user, opened)
    if refusal:
        client.refuse(errors.NOT_ALLOWED, reply_text(errors.NOT_ALLOWED, refusal), 20, 10)
    return bool(refusal)


def _on_open(client: Client, event: OpenRequested) -> None:
    port = client.port
    client.rights = port.logins.rights_of(client, event.user, event.vhost)
    conn = port.admit(client, event.user, event.vhost)
    if conn is None:
        client.kept.hold(event)
    if not conn:
        return
    client.conn = conn
    client.connection.accept_open()
    port.commands.append(
        ConnectionOpen(CONNECTION_OPEN, conn, event.vhost, event.user, client.peer)
    )
