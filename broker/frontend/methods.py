"""Turns each method of a client, as `needs` understood it, into commands.

This module does not know whether a queue exists or a binding matches: the machine decides that at
the command's position. A method that the machine replies to is counted in `channel.requested`, so
that the gateway's own replies keep their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, cast

from broker.amqp import errors
from broker.amqp.errors import reply_text
from broker.amqp.events import Called
from broker.amqp.fields import Table, Timestamp
from broker.amqp.spec import METHODS
from broker.frontend.channel import Following, LocalChannel, Transaction
from broker.frontend.client import Client
from broker.frontend.direct_reply import REPLY_TO, consume_replies
from broker.frontend.needs import GENERATED_QUEUE, UNDERSTAND, Args, Misshapen, Understand
from broker.machine import commands as c
from broker.machine.publishing.queue_numbers import FOLLOW, asked
from broker.machine.queueing.streams import AT_TIME, OFFSET

AsItIs: TypeAlias = (
    c.ExchangeDeclare | c.ExchangeDelete | c.ExchangeBind | c.ExchangeUnbind
    | c.QueueBind | c.QueueUnbind | c.QueueDelete
)  # fmt: skip
"""Commands that consist of the client's arguments, with connection and channel."""
Handler: TypeAlias = Callable[[Client, int, LocalChannel, Args], None]

GENERATED_TAG = "amq.ctag-"


def _as_it_is(kind: int, make: Callable[[Iterable[object]], AsItIs]) -> Handler:
    """Return the handler of a method whose arguments are those of its command."""

    def handler(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
        command = make((kind, client.conn, number, *args))
        _request(client, channel, command, command.nowait)

    return handler


def on_queue_declare(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    name, *rest = args
    if name == REPLY_TO:  # as if there were one queue for all
        if not args[5]:
            _reply_in_order(client, number, channel, "queue.declare-ok", (name, 0, 1))
        return
    name = cast("str", name)
    if not (name or args[1]):  # a passive declare looks for just this name, as RabbitMQ's does
        name = client.port.new_name(GENERATED_QUEUE)
    channel.last_queue = name
    command = c.QueueDeclare._make((c.QUEUE_DECLARE, client.conn, number, name, *rest))
    command = _of_default_type(client, command)
    _request(client, channel, command, command.nowait)


def _of_default_type(client: Client, declared: c.QueueDeclare) -> c.QueueDeclare:
    """With the type that the virtual host gives to queues without one and that can have it, as by
    RabbitMQ: classic ones stay what may be transient, exclusive or auto-delete."""
    lasting = declared.durable and not (declared.exclusive or declared.auto_delete)
    if "x-queue-type" in declared.arguments or not lasting:
        return declared
    kind = client.port.access.default_queue_type(client.vhost)
    if not kind:
        return declared
    return declared._replace(arguments={**declared.arguments, "x-queue-type": kind})


def on_queue_purge(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    command = c.QueuePurge._make((c.QUEUE_PURGE, client.conn, number, *args))
    if _is_copy(client, number, command.queue, "queue.purge"):
        return
    _request(client, channel, command, command.nowait)


def on_qos(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    """Without `global` the count is for consumers to come: it is stamped into their Consume."""
    size, count, is_global = args
    if size:
        text = f"prefetch_size!=0 ({size!r})"
        _refuse_connection(client, errors.NOT_IMPLEMENTED, text, "basic.qos")
        return
    if not is_global:
        channel.prefetch = cast("int", count)
    command = c.Qos._make((c.QOS, client.conn, number, count, is_global))
    channel.qos_replies.append(("basic.qos-ok", ()))
    _request(client, channel, command, nowait=False)


def on_consume(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    queue, tag, *rest = args
    tag = str(tag) or client.port.new_name(GENERATED_TAG)
    if queue == REPLY_TO:
        _, no_ack, _, nowait, arguments = rest
        replies = consume_replies(
            client, number, channel, tag, bool(no_ack), bool(nowait), cast("Table", arguments)
        )
        if replies is not None:
            _request(client, channel, replies, replies.nowait)
        return
    *flags, arguments = rest
    if FOLLOW in cast("Table", arguments):
        _follow(client, number, channel, tag, args)
        return
    if _is_copy(client, number, str(queue), "basic.consume"):
        return
    channel.following.pop(tag, None)
    spelled = _with_spelled_time(cast("Table", arguments))
    command = c.Consume._make(
        (c.CONSUME, client.conn, number, queue, tag, *flags, spelled, channel.prefetch)
    )
    if asked(command.arguments) and not command.no_ack:
        channel.numbered.add(tag)
    else:
        channel.numbered.discard(tag)
    _request(client, channel, command, command.nowait)


def _follow(client: Client, number: int, channel: LocalChannel, tag: str, args: Args) -> None:
    queue, _, _, no_ack, _, nowait, arguments = args
    known = cast("Table", arguments)[FOLLOW]
    if not no_ack or not isinstance(known, str):
        text = f"{FOLLOW} is a text, and takes a consumer without acknowledgement"
        client.refuse_channel(number, errors.PRECONDITION_FAILED, text, "basic.consume")
        return
    channel.following[tag] = Following(str(queue), known)
    client.port.following[client] = None
    if not nowait:
        client.reply_locally(number, "basic.consume-ok", (tag,))


def _is_copy(client: Client, number: int, queue: str, method: str) -> bool:
    """Whether this queue replicates another broker's; then its channel is closed, because only the
    replication may take messages from it."""
    if client.keeps_copy or not client.port.access.is_copy(client.vhost, queue):
        return False
    text = (
        f"queue '{queue}' in vhost '{client.vhost}' is kept the same as one of another broker; "
        f"'qpid-ha replicate {queue} --stop' makes it a queue of its own"
    )
    client.refuse_channel(number, errors.RESOURCE_LOCKED, text, method)
    return True


def _with_spelled_time(arguments: Table) -> Table:
    """The offset of a stream may be a time, which in commands is a text: numbers are offsets."""
    given = arguments.get(OFFSET)
    if not isinstance(given, Timestamp):
        return arguments
    return {**arguments, OFFSET: f"{AT_TIME}{int(given)}"}


def on_cancel(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    command = c.Cancel._make((c.CANCEL, client.conn, number, *args))
    if command.tag == channel.reply_consumer:
        channel.reply_queue = channel.reply_consumer = ""
    if channel.following.pop(command.tag, None) is not None:
        if not command.nowait:
            client.reply_locally(number, "basic.cancel-ok", (command.tag,))
        return
    _request(client, channel, command, command.nowait)


def on_get(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    command = c.Get._make((c.GET, client.conn, number, *args))
    if _is_copy(client, number, command.queue, "basic.get"):
        return
    _request(client, channel, command, nowait=False)


def on_ack(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    tag, multiple = cast("tuple[int, bool]", args)
    if channel.transaction is not None:
        _settle_later(client, number, channel.transaction, "basic.ack", tag, multiple, c.TX_ACK)
    else:
        channel.unanswered = True
        client.port.commands.append(c.Ack(c.ACK, client.conn, number, tag, multiple))


def on_nack(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    tag, multiple, requeue = cast("tuple[int, bool, bool]", args)
    if channel.transaction is not None:
        action = c.TX_REQUEUE if requeue else c.TX_DISCARD
        _settle_later(client, number, channel.transaction, "basic.nack", tag, multiple, action)
    else:
        channel.unanswered = True
        client.port.commands.append(c.Nack(c.NACK, client.conn, number, tag, multiple, requeue))


def on_reject(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    on_nack(client, number, channel, (args[0], False, args[1]))


def on_recover(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    if args[0] and _recovers_the_rest(client, number, channel):
        _reply_through_machine(client, number, channel, "basic.recover-ok")
        return
    channel.recovers.append(True)
    command = c.Recover(c.RECOVER, client.conn, number, bool(args[0]))
    _request(client, channel, command, nowait=False)


def on_recover_async(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    """Like `on_recover`, but the client does not want the reply, which the outbox drops."""
    if args[0] and _recovers_the_rest(client, number, channel):
        return
    channel.recovers.append(False)
    command = c.Recover(c.RECOVER, client.conn, number, bool(args[0]))
    _request(client, channel, command, nowait=False)


def _recovers_the_rest(client: Client, number: int, channel: LocalChannel) -> bool:
    """Whether the transaction settles some deliveries, which stay settled; the others go back.

    While those of one basic.recover are still here, another one does nothing: each tag would be
    unknown the second time, and a small frame would make thousands of commands again and again.
    """
    transaction = channel.transaction
    if transaction is None or not transaction.settlements:
        return False
    outstanding = client.port.outstanding(client.conn, number)
    if transaction.giving_back in outstanding:
        return True
    tags = [tag for tag in outstanding if not transaction.has_settled(tag)]
    transaction.giving_back = tags[-1] if tags else 0
    client.port.commands += [c.Nack(c.NACK, client.conn, number, tag, False, True) for tag in tags]
    return True


def on_flow(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    """Clients limit their deliveries with prefetch; stopping all deliveries is not supported."""
    if args[0]:
        _reply_in_order(client, number, channel, "channel.flow-ok", (True,))
    else:
        _refuse_connection(client, errors.NOT_IMPLEMENTED, "active=false", "channel.flow")


def on_confirm_select(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    if channel.transaction is not None:
        _refuse(client, number, "confirm.select", "cannot switch from tx to confirm mode")
        return
    channel.wants_confirms = True
    if not args[0]:
        _reply_in_order(client, number, channel, "confirm.select-ok")


def on_tx_select(client: Client, number: int, channel: LocalChannel, _args: Args) -> None:
    if channel.wants_confirms:
        _refuse(client, number, "tx.select", "cannot switch from confirm to tx mode")
        return
    if channel.transaction is None:
        channel.transaction = Transaction()
    _reply_in_order(client, number, channel, "tx.select-ok")


def on_tx_commit(client: Client, number: int, channel: LocalChannel, _args: Args) -> None:
    transaction = channel.transaction
    if transaction is None:
        _refuse(client, number, "tx.commit", "channel is not transactional")
        return
    command = c.TxCommit(
        c.TX_COMMIT, client.conn, number, tuple(transaction.publishes),
        tuple(transaction.settlements),
    )  # fmt: skip
    client.transaction_bytes -= transaction.clear()
    _request(client, channel, command, nowait=False)


def on_tx_rollback(client: Client, number: int, channel: LocalChannel, _args: Args) -> None:
    if channel.transaction is None:
        _refuse(client, number, "tx.rollback", "channel is not transactional")
        return
    client.transaction_bytes -= channel.transaction.clear()
    _reply_in_order(client, number, channel, "tx.rollback-ok")


def on_nothing(_client: Client, _number: int, _channel: LocalChannel, _args: Args) -> None:
    """A client's reply, which needs no answer."""


_HANDLERS: dict[str, Handler] = {
    "exchange.declare": _as_it_is(c.EXCHANGE_DECLARE, c.ExchangeDeclare._make),
    "exchange.delete": _as_it_is(c.EXCHANGE_DELETE, c.ExchangeDelete._make),
    "exchange.bind": _as_it_is(c.EXCHANGE_BIND, c.ExchangeBind._make),
    "exchange.unbind": _as_it_is(c.EXCHANGE_UNBIND, c.ExchangeUnbind._make),
    "queue.declare": on_queue_declare,
    "queue.bind": _as_it_is(c.QUEUE_BIND, c.QueueBind._make),
    "queue.unbind": _as_it_is(c.QUEUE_UNBIND, c.QueueUnbind._make),
    "queue.purge": on_queue_purge,
    "queue.delete": _as_it_is(c.QUEUE_DELETE, c.QueueDelete._make),
    "basic.qos": on_qos,
    "basic.consume": on_consume,
    "basic.cancel": on_cancel,
    "basic.get": on_get,
    "basic.ack": on_ack,
    "basic.nack": on_nack,
    "basic.reject": on_reject,
    "basic.recover": on_recover,
    "basic.recover-async": on_recover_async,
    "channel.flow": on_flow,
    "confirm.select": on_confirm_select,
    "tx.select": on_tx_select,
    "tx.commit": on_tx_commit,
    "tx.rollback": on_tx_rollback,
    "channel.flow-ok": on_nothing,
    "channel.close-ok": on_nothing,
    "basic.cancel-ok": on_nothing,
}


def _if_allowed(understand: Understand, carry_out: Handler) -> Handler:
    """Have a method carried out as it is understood, by who may; else its channel is closed.  Where
    it is not known yet, the method waits as it came, and is understood anew."""

    def on_method(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
        try:
            meant, needed = understand(client.rights, channel, args)
        except Misshapen as bad:
            client.refuse_channel(number, bad.code, bad.text, bad.method)
            return
        refusal = client.rights.refuses(needed)
        if refusal is None:
            client.hold(Called(number, needed.method, args), client.rights.missing)
        elif refusal:
            client.refuse_channel(number, errors.ACCESS_REFUSED, refusal, needed.method)
        else:
            carry_out(client, number, channel, meant)

    return on_method


REQUESTS: dict[str, Handler] = _HANDLERS | {
    method: _if_allowed(understand, _HANDLERS[method]) for method, understand in UNDERSTAND.items()
}


def _request(client: Client, channel: LocalChannel, command: c.Command, nowait: bool) -> None:
    client.count_request()
    if nowait:
        channel.unanswered = True
    else:
        channel.requested += 1
    client.port.commands.append(command)


def _reply_in_order(
    client: Client, number: int, channel: LocalChannel, method: str, args: Args = ()
) -> None:
    """Send the gateway's own reply. Messages published before it may still be returned."""
    if client.is_publisher:
        _reply_through_machine(client, number, channel, method, args)
    else:
        client.reply_locally(number, method, args)


def _reply_through_machine(
    client: Client, number: int, channel: LocalChannel, method: str, args: Args = ()
) -> None:
    """A reply of the gateway's own, after what all commands before it do: with a basic.qos that
    changes nothing."""
    channel.qos_replies.append((method, args))
    _request(client, channel, c.Qos(c.QOS, client.conn, number, 0, False), nowait=False)


def _settle_later(
    client: Client, number: int, transaction: Transaction, method: str, tag: int, multiple: bool,
    action: int,
) -> None:  # fmt: skip
    """With tx.commit. That a tag is unknown, or settled in this transaction before, is said now."""
    outstanding = client.port.outstanding(client.conn, number)
    if multiple and tag == 0:  # all that are left
        tag = transaction.last_unsettled(outstanding)
        if not tag:
            return
    if tag not in outstanding or transaction.has_settled(tag):
        _refuse(client, number, method, f"unknown delivery tag {tag}")
        return
    transaction.settle(tag, multiple, action)
    if transaction.is_full:
        _refuse(client, number, method, "the transaction is larger than this server allows")


def _refuse(client: Client, number: int, method: str, text: str) -> None:
    client.refuse_channel(number, errors.PRECONDITION_FAILED, text, method)


def _refuse_connection(client: Client, code: int, text: str, method: str) -> None:
    ids = METHODS[method]
    client.refuse(code, reply_text(code, text), ids.class_id, ids.method_id)
