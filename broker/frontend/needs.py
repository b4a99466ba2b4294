"""The meaning of each client method, and the permissions it needs: values only, no side effects.

Shapes are checked and names resolved. A method may be examined any number of times and generates no
names: one that waits for permission has left no trace before it gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, cast

from broker.access.access import Needs, Resource, Rights, Topic
from broker.amqp import errors
from broker.amqp.fields import Table, Value
from broker.frontend.channel import LocalChannel
from broker.frontend.direct_reply import REPLY_QUEUE, REPLY_TO

Args: TypeAlias = tuple[Value, ...]
Understood: TypeAlias = tuple[Args, Needs]
Understand: TypeAlias = Callable[[Rights, LocalChannel, Args], Understood]
"""The interpreted arguments, and the permissions they need. Raises Misshapen."""

GENERATED_QUEUE = "amq.gen-"
ANY_GENERATED_QUEUE = GENERATED_QUEUE + 22 * "A"
"""The name for which permissions are checked while a queue has no name yet: it has the form of all
generated names, so the same pattern matches."""
# What a blob takes (see machine.blob): more would be refused by every member, with the whole blob.
TABLE_DEPTH_MAX = 16
TABLE_ITEMS_MAX = 4096


class Misshapen(Exception):
    """A method with arguments that are never allowed: its channel is closed."""

    def __init__(self, method: str, code: int, text: str) -> None:
        super().__init__(text)
        self.method, self.code, self.text = method, code, text


def exchange_declare(rights: Rights, _channel: LocalChannel, args: Args) -> Understood:
    """Forwarding unroutable messages is reading the exchange, and writing to the alternate one."""
    method = "exchange.declare"
    name = _stripped(args[0])
    args = name, *args[1:]
    _, kind, passive, durable, auto_delete, *_ = args
    arguments = _good_table(method, args[-1])
    if passive:
        return args, Needs(method)
    resources = [Resource("configure", "exchange", name)]
    alternate = arguments.get("alternate-exchange")
    # Declared again as it is it gives nobody anything. That it is there is not enough: its deletion
    # may be under way, and this would be a new one.
    if isinstance(alternate, str) and alternate != rights.access.alternate(rights.vhost, name):
        resources.append(Resource("read", "exchange", name))
        resources.append(Resource("write", "exchange", alternate))
    facts = {"type": str(kind), "durable": _word(durable), "autodelete": _word(auto_delete)}
    return args, Needs(method, tuple(resources), facts)


def exchange_delete(_rights: Rights, _channel: LocalChannel, args: Args) -> Understood:
    name = _stripped(args[0])
    return (name, *args[1:]), Needs("exchange.delete", (Resource("configure", "exchange", name),))


def _exchange_binding(
    method: str, _rights: Rights, _channel: LocalChannel, args: Args
) -> Understood:
    args = _stripped(args[0]), _stripped(args[1]), *args[2:]
    _good_table(method, args[-1])
    return args, _binding(method, "exchange", args)


def queue_declare(rights: Rights, _channel: LocalChannel, args: Args) -> Understood:
    """Forwarding dead letters is reading the queue, and writing to the dead-letter exchange."""
    method = "queue.declare"
    name = _stripped(args[0])
    _, passive, durable, exclusive, auto_delete, *_ = args
    arguments = _good_table(method, args[-1])
    if name == REPLY_TO:
        return (name, *args[1:]), Needs(method)
    if passive or name.startswith(REPLY_QUEUE):  # which belongs to another channel
        return (name, True, *args[2:]), Needs(method)
    if name.startswith(GENERATED_QUEUE):
        text = f"queue name '{name}' contains reserved prefix 'amq.*'"
        raise Misshapen(method, errors.ACCESS_REFUSED, text)
    queue = name or ANY_GENERATED_QUEUE
    resources = [Resource("configure", "queue", queue)]
    letters = arguments.get("x-dead-letter-exchange")
    if isinstance(letters, str):
        resources.append(Resource("read", "queue", queue))
        resources.append(Resource("write", "exchange", letters))
    facts = {
        "durable": _word(durable), "exclusive": _word(exclusive), "autodelete": _word(auto_delete),
    }  # fmt: skip
    return (name, *args[1:]), Needs(method, tuple(resources), facts)


def queue_unbind(rights: Rights, channel: LocalChannel, args: Args) -> Understood:
    return _queue_binding("queue.unbind", rights, channel, (*args[:3], False, args[3]))


def _queue_binding(method: str, rights: Rights, channel: LocalChannel, args: Args) -> Understood:
    name, exchange, key, nowait, arguments = _stripped(args[0]), _stripped(args[1]), *args[2:]
    queue = _queue(rights, channel, method, name)
    _good_table(method, arguments)
    if name == "" and key == "":
        key = queue  # AMQP: both empty mean the queue that was declared last
    args = queue, exchange, key, nowait, arguments
    return args, _binding(method, "queue", args)


def queue_delete(rights: Rights, channel: LocalChannel, args: Args) -> Understood:
    return _of_queue("queue.delete", "configure", rights, channel, (_stripped(args[0]), *args[1:]))


def consume(rights: Rights, channel: LocalChannel, args: Args) -> Understood:
    if args[0] == REPLY_TO:
        _good_table("basic.consume", args[-1])
        return args, Needs("basic.consume")
    understood = _of_queue("basic.consume", "read", rights, channel, args)
    _good_table("basic.consume", args[-1])
    return understood


def _of_queue(
    method: str, permission: str, rights: Rights, channel: LocalChannel, args: Args
) -> Understood:
    queue = _queue(rights, channel, method, args[0])
    return (queue, *args[1:]), Needs(method, (Resource(permission, "queue", queue),))


def _binding(method: str, kind: str, args: Args) -> Needs:
    destination, source, key = (str(one) for one in args[:3])
    resources = Resource("write", kind, destination), Resource("read", "exchange", source)
    facts = {"queuename": destination, "routingkey": key}
    return Needs(method, resources, facts, (Topic("read", source, key),))


def _queue(rights: Rights, channel: LocalChannel, method: str, name: Value) -> str:
    """The queue that is meant: no name means the one declared last on this channel. That behind a
    direct reply-to is there for its own channel only, and for whoever asks whether it is."""
    queue = channel.last_queue if name == "" else str(name)
    if queue is None:
        raise Misshapen(method, errors.NOT_FOUND, "no previously declared queue")
    if queue.startswith(REPLY_QUEUE) and method != "queue.declare":
        text = f"no queue '{queue}' in vhost '{rights.vhost}'"
        raise Misshapen(method, errors.NOT_FOUND, text)
    return queue


def _stripped(name: Value) -> str:
    """A name of a queue or an exchange without line ends: RabbitMQ takes them out where things are
    declared, deleted and bound, and nowhere else."""
    assert isinstance(name, str)
    return name.replace("\r", "").replace("\n", "") if "\r" in name or "\n" in name else name


def _word(value: Value) -> str:
    """Return a value in an ACL file's form."""
    return "true" if value else "false"


def _good_table(method: str, arguments: Value) -> Table:
    if _items(arguments, 0) <= TABLE_ITEMS_MAX:
        return cast("Table", arguments)
    text = f"arguments are nested deeper than {TABLE_DEPTH_MAX} or more than {TABLE_ITEMS_MAX}"
    raise Misshapen(method, errors.PRECONDITION_FAILED, text)


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


UNDERSTAND: dict[str, Understand] = {
    "exchange.declare": exchange_declare,
    "exchange.delete": exchange_delete,
    "exchange.bind": partial(_exchange_binding, "exchange.bind"),
    "exchange.unbind": partial(_exchange_binding, "exchange.unbind"),
    "queue.declare": queue_declare,
    "queue.bind": partial(_queue_binding, "queue.bind"),
    "queue.unbind": queue_unbind,
    "queue.purge": partial(_of_queue, "queue.purge", "read"),
    "queue.delete": queue_delete,
    "basic.consume": consume,
    "basic.get": partial(_of_queue, "basic.get", "read"),
}
"""The other methods need no permission, except basic.publish, which `dispatch` checks."""
