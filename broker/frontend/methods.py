"""What each method of a client means: shapes checked, names resolved, commands made.

Whether a queue exists or a binding matches is not known here: that is decided by the machine at
the command's position. A method that the machine replies to is counted in `channel.requested`, so
that replies of the gateway's own keep their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from broker.access.access import Resource
from broker.amqp import errors
from broker.amqp.errors import reply_text
from broker.amqp.fields import Table, Value
from broker.amqp.spec import METHODS
from broker.frontend.channel import LocalChannel, Transaction
from broker.frontend.client import Client
from broker.frontend.direct_reply import REPLY_QUEUE, REPLY_TO, consume_replies
from broker.machine import commands as c

Args: TypeAlias = tuple[Value, ...]
Handler: TypeAlias = Callable[[Client, int, LocalChannel, Args], None]

GENERATED_QUEUE = "amq.gen-"
GENERATED_TAG = "amq.ctag-"
REQUESTS_LIGHT_MAX = 256
"""A client that requests more than this is treated like a publisher when the member is full."""
# What a blob takes (see machine.blob): more would be refused by every member, with the whole blob.
TABLE_DEPTH_MAX = 16
TABLE_ITEMS_MAX = 4096


def on_exchange_declare(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    args, passive = (_stripped(args[0]), *args[1:]), args[2]
    if not _is_good_table(client, number, "exchange.declare", args[-1]):
        return
    if passive or _may_declare_exchange(client, number, args):
        nowait = args[6]
        command = c.ExchangeDeclare._make((c.EXCHANGE_DECLARE, client.conn, number, *args))
        _request(client, channel, command, bool(nowait))


def on_exchange_delete(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    args = (_stripped(args[0]), *args[1:])
    if not _may(client, number, "exchange.delete", Resource("configure", "exchange", str(args[0]))):
        return
    command = c.ExchangeDelete._make((c.EXCHANGE_DELETE, client.conn, number, *args))
    _request(client, channel, command, command.nowait)


def on_exchange_bind(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    method = "exchange.bind"
    args = (_stripped(args[0]), _stripped(args[1]), *args[2:])
    if _is_good_table(client, number, method, args[-1]) and _may_bind(
        client, number, method, "exchange", cast("tuple[str, str, str]", args[:3])
    ):
        command = c.ExchangeBind._make((c.EXCHANGE_BIND, client.conn, number, *args))
        _request(client, channel, command, command.nowait)


def on_exchange_unbind(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    method = "exchange.unbind"
    args = (_stripped(args[0]), _stripped(args[1]), *args[2:])
    if _is_good_table(client, number, method, args[-1]) and _may_bind(
        client, number, method, "exchange", cast("tuple[str, str, str]", args[:3])
    ):
        command = c.ExchangeUnbind._make((c.EXCHANGE_UNBIND, client.conn, number, *args))
        _request(client, channel, command, command.nowait)


def on_queue_declare(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    if not _is_good_table(client, number, "queue.declare", args[-1]):
        return
    name, passive, *rest = _stripped(args[0]), *args[1:]
    if name == REPLY_TO:  # as if there were one queue for all
        if not args[5]:
            _reply_in_order(client, number, channel, "queue.declare-ok", (name, 0, 1))
        return
    passive = passive or name.startswith(REPLY_QUEUE)  # it belongs to another channel
    if passive:
        queue = _queue(client, number, channel, "queue.declare", name)
        if queue is None:
            return
        name = queue
    elif name == "":
        name = client.port.new_name(GENERATED_QUEUE)
    elif isinstance(name, str) and name.startswith(GENERATED_QUEUE):
        text = f"queue name '{name}' contains reserved prefix 'amq.*'"
        client.refuse_channel(number, errors.ACCESS_REFUSED, text, 50, 10)
        return
    if not passive and not _may_declare_queue(client, number, str(name), tuple(rest)):
        return
    channel.last_queue = name
    command = c.QueueDeclare._make((c.QUEUE_DECLARE, client.conn, number, name, passive, *rest))
    _request(client, channel, command, command.nowait)


def on_queue_bind(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    _bind(client, number, channel, "queue.bind", args)


def on_queue_unbind(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    _bind(client, number, channel, "queue.unbind", (*args[:3], False, args[3]))


def _bind(client: Client, number: int, channel: LocalChannel, method: str, args: Args) -> None:
    name, exchange, key, nowait, arguments = _stripped(args[0]), _stripped(args[1]), *args[2:]
    queue = _queue(client, number, channel, method, name)
    if queue is None or not _is_good_table(client, number, method, arguments):
        return
    if name == "" and key == "":
        key = queue  # AMQP: both empty mean the queue that was declared last
    ends = cast("tuple[str, str, str]", (queue, exchange, key))
    if not _may_bind(client, number, method, "queue", ends):
        return
    is_bind = method == "queue.bind"
    record = c.QueueBind if is_bind else c.QueueUnbind
    kind = c.QUEUE_BIND if is_bind else c.QUEUE_UNBIND
    command = record._make((kind, client.conn, number, queue, exchange, key, nowait, arguments))
    _request(client, channel, command, command.nowait)


def on_queue_purge(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    method = "queue.purge"
    queue = _queue(client, number, channel, method, args[0])
    if queue is not None and _may(client, number, method, Resource("read", "queue", queue)):
        command = c.QueuePurge(c.QUEUE_PURGE, client.conn, number, queue, bool(args[1]))
        _request(client, channel, command, command.nowait)


def on_queue_delete(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    method = "queue.delete"
    queue = _queue(client, number, channel, method, _stripped(args[0]))
    if queue is not None and _may(client, number, method, Resource("configure", "queue", queue)):
        command = c.QueueDelete._make((c.QUEUE_DELETE, client.conn, number, queue, *args[1:]))
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
    name, tag, no_local, no_ack, exclusive, nowait, arguments = args
    if name == REPLY_TO and _is_good_table(client, number, "basic.consume", arguments):
        tag = str(tag) or client.port.new_name(GENERATED_TAG)
        replies = consume_replies(
            client, number, channel, tag, bool(no_ack), bool(nowait), cast("Table", arguments)
        )
        if replies is not None:
            _request(client, channel, replies, replies.nowait)
        return
    queue = _queue(client, number, channel, "basic.consume", name)
    if queue is None or not _is_good_table(client, number, "basic.consume", arguments):
        return
    if not _may(client, number, "basic.consume", Resource("read", "queue", queue)):
        return
    if tag == "":
        tag = client.port.new_name(GENERATED_TAG)
    command = c.Consume._make(
        (c.CONSUME, client.conn, number, queue, tag, no_local, no_ack, exclusive, nowait, arguments,
         channel.prefetch)
    )  # fmt: skip
    _request(client, channel, command, command.nowait)


def on_cancel(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    command = c.Cancel._make((c.CANCEL, client.conn, number, *args))
    if command.tag == channel.reply_consumer:
        channel.reply_queue = channel.reply_consumer = ""
    _request(client, channel, command, command.nowait)


def on_get(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    method = "basic.get"
    queue = _queue(client, number, channel, method, args[0])
    if queue is not None and _may(client, number, method, Resource("read", "queue", queue)):
        _request(
            client, channel, c.Get(c.GET, client.conn, number, queue, bool(args[1])), nowait=False
        )


def on_ack(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    tag, multiple = cast("tuple[int, bool]", args)
    if channel.transaction is not None:
        _settle_later(client, number, channel.transaction, "basic.ack", tag, multiple, c.TX_ACK)
    else:
        client.port.commands.append(c.Ack(c.ACK, client.conn, number, tag, multiple))


def on_nack(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    tag, multiple, requeue = cast("tuple[int, bool, bool]", args)
    if channel.transaction is not None:
        action = c.TX_REQUEUE if requeue else c.TX_DISCARD
        _settle_later(client, number, channel.transaction, "basic.nack", tag, multiple, action)
    else:
        client.port.commands.append(c.Nack(c.NACK, client.conn, number, tag, multiple, requeue))


def on_reject(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    on_nack(client, number, channel, (args[0], False, args[1]))


def on_recover(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    if args[0] and _recovers_the_rest(client, number, channel):
        _reply_in_order(client, number, channel, "basic.recover-ok")
        return
    channel.recovers.append(True)
    command = c.Recover(c.RECOVER, client.conn, number, bool(args[0]))
    _request(client, channel, command, nowait=False)


def on_recover_async(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    """The same, but the client does not want the reply: the outbox drops it."""
    if args[0] and _recovers_the_rest(client, number, channel):
        return
    channel.recovers.append(False)
    command = c.Recover(c.RECOVER, client.conn, number, bool(args[0]))
    _request(client, channel, command, nowait=False)


def _recovers_the_rest(client: Client, number: int, channel: LocalChannel) -> bool:
    """Whether the transaction settles some deliveries, which stay settled; the others go back."""
    transaction = channel.transaction
    if transaction is None or not transaction.settlements:
        return False
    client.port.commands += [
        c.Nack(c.NACK, client.conn, number, tag, False, True)
        for tag in client.port.outstanding(client.conn, number)
        if not transaction.has_settled(tag)
    ]
    return True


def on_flow(client: Client, number: int, channel: LocalChannel, args: Args) -> None:
    """Clients bound what they are sent with prefetch; stopping all of it is not offered."""
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
    """A reply, which needs none."""


REQUESTS: dict[str, Handler] = {
    "exchange.declare": on_exchange_declare,
    "exchange.delete": on_exchange_delete,
    "exchange.bind": on_exchange_bind,
    "exchange.unbind": on_exchange_unbind,
    "queue.declare": on_queue_declare,
    "queue.bind": on_queue_bind,
    "queue.unbind": on_queue_unbind,
    "queue.purge": on_queue_purge,
    "queue.delete": on_queue_delete,
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


def _request(client: Client, channel: LocalChannel, command: c.Command, nowait: bool) -> None:
    client.requests += 1
    if client.requests > REQUESTS_LIGHT_MAX:
        client.is_publisher = True
    if not nowait:
        channel.requested += 1
    client.port.commands.append(command)


def _stripped(name: Value) -> str:
    """A name of a queue or an exchange without line ends: RabbitMQ takes them out where things are
    declared, deleted and bound, and nowhere else."""
    assert isinstance(name, str)
    return name.replace("\r", "").replace("\n", "") if "\r" in name or "\n" in name else name


def _reply_in_order(
    client: Client, number: int, channel: LocalChannel, method: str, args: Args = ()
) -> None:
    """A reply of the gateway's own. What was published before it may be returned yet, so it takes
    the same way through the machine, with a basic.qos that changes nothing."""
    if client.is_publisher:
        channel.qos_replies.append((method, args))
        _request(client, channel, c.Qos(c.QOS, client.conn, number, 0, False), nowait=False)
    else:
        client.reply_locally(number, method, args)


def _queue(
    client: Client, number: int, channel: LocalChannel, method: str, name: Value
) -> str | None:
    """The queue that is meant: no name means the one declared last on this channel. That behind a
    direct reply-to is there for its own channel only, and for whoever asks whether it is."""
    if name != "":
        queue = cast("str", name)
        if queue.startswith(REPLY_QUEUE) and method != "queue.declare":
            ids = METHODS[method]
            text = f"no queue '{queue}' in vhost '{client.vhost}'"
            client.refuse_channel(number, errors.NOT_FOUND, text, ids.class_id, ids.method_id)
            return None
        return queue
    if channel.last_queue is None:
        ids = METHODS[method]
        text = "no previously declared queue"
        client.refuse_channel(number, errors.NOT_FOUND, text, ids.class_id, ids.method_id)
    return channel.last_queue


def _may(client: Client, number: int, method: str, *resources: Resource, **facts: str) -> bool:
    """Whether the client has these permissions; else its channel is closed.  `facts`: what an ACL
    file may look at beside the name."""
    for resource in resources:
        if refusal := client.rights.refuses(resource, (method, facts)):
            return _forbid(client, number, method, refusal)
    return True


def _may_declare_exchange(client: Client, number: int, args: Args) -> bool:
    """To send on what it cannot route is to read it, and to write to the alternate exchange."""
    name, kind, _, durable, auto_delete, *_ = args
    name, arguments = str(name), cast("Table", args[-1])
    needed = [Resource("configure", "exchange", name)]
    alternate = arguments.get("alternate-exchange")
    rights = client.rights
    # Declared again as it is it gives nobody anything. That it is there is not enough: its deletion
    # may be under way, and this would be a new one.
    if isinstance(alternate, str) and alternate != rights.access.alternate(rights.vhost, name):
        needed.append(Resource("read", "exchange", name))
        needed.append(Resource("write", "exchange", alternate))
    return _may(
        client, number, "exchange.declare", *needed, type=str(kind), durable=_word(durable),
        autodelete=_word(auto_delete),
    )  # fmt: skip


def _may_declare_queue(client: Client, number: int, name: str, rest: Args) -> bool:
    """To send on what dies in it is to read it, and to write to the dead-letter exchange."""
    durable, exclusive, auto_delete, *_ = rest
    arguments = cast("Table", rest[-1])
    needed = [Resource("configure", "queue", name)]
    letters = arguments.get("x-dead-letter-exchange")
    if isinstance(letters, str):
        needed.append(Resource("read", "queue", name))
        needed.append(Resource("write", "exchange", letters))
    return _may(
        client, number, "queue.declare", *needed, durable=_word(durable),
        exclusive=_word(exclusive), autodelete=_word(auto_delete),
    )  # fmt: skip


def _word(value: Value) -> str:
    """As an ACL file has it."""
    return "true" if value else "false"


def _may_bind(
    client: Client, number: int, method: str, kind: str, ends: tuple[str, str, str]
) -> bool:
    destination, source, key = ends
    write, read = Resource("write", kind, destination), Resource("read", "exchange", source)
    if not _may(client, number, method, write, read, queuename=destination, routingkey=key):
        return False
    refusal = client.rights.refuses_topic("read", source, key)
    return not refusal or _forbid(client, number, method, refusal)


def _forbid(client: Client, number: int, method: str, refusal: str) -> bool:
    ids = METHODS[method]
    client.refuse_channel(number, errors.ACCESS_REFUSED, refusal, ids.class_id, ids.method_id)
    return False


def _settle_later(
    client: Client, number: int, transaction: Transaction, method: str, tag: int, multiple: bool,
    action: int,
) -> None:  # fmt: skip
    """With tx.commit. That a tag is unknown, or settled in this transaction before, is said now."""
    outstanding = client.port.outstanding(client.conn, number)
    if multiple and tag == 0:  # all, of which the last one is the highest
        tag = next(reversed(outstanding), 0)
        if transaction.has_settled(tag):
            return
    if tag not in outstanding or transaction.has_settled(tag):
        _refuse(client, number, method, f"unknown delivery tag {tag}")
        return
    transaction.settle(tag, multiple, action)
    if transaction.is_full:
        _refuse(client, number, method, "the transaction is larger than this server allows")


def _refuse(client: Client, number: int, method: str, text: str) -> None:
    ids = METHODS[method]
    client.refuse_channel(number, errors.PRECONDITION_FAILED, text, ids.class_id, ids.method_id)


def _refuse_connection(client: Client, code: int, text: str, method: str) -> None:
    ids = METHODS[method]
    client.refuse(code, reply_text(code, text), ids.class_id, ids.method_id)


def _is_good_table(client: Client, number: int, method: str, arguments: Value) -> bool:
    if _items(cast("Table", arguments), 0) <= TABLE_ITEMS_MAX:
        return True
    text = f"arguments are nested deeper than {TABLE_DEPTH_MAX} or more than {TABLE_ITEMS_MAX}"
    _refuse(client, number, method, text)
    return False


def _items(value: Value, depth: int) -> int:
    if isinstance(value, dict):
        items = list(value.values())
    elif isinstance(value, tuple):
        items = list(value)
    else:
        return 1
    if depth > TABLE_DEPTH_MAX:
        return TABLE_ITEMS_MAX + 1
    return 1 + sum(_items(item, depth + 1) for item in items)
