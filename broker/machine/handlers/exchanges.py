"""Commands about exchanges, and about bindings of queues and exchanges."""

from broker.machine.commands import (
    OK,
    QUEUE_BIND,
    QUEUE_UNBIND,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    QueueBind,
    QueueUnbind,
    Table,
)
from broker.machine.digest import canonical
from broker.machine.handlers.connections import refuse, reply
from broker.machine.queueing.bindings import (
    add_binding,
    add_exchange,
    remove_bindings,
    remove_exchange,
)
from broker.machine.queueing.declaration import accessible_queue, delay_by
from broker.machine.requests.arguments import check_binding, check_exchange, compare_exchange
from broker.machine.requests.delay_header import check_type
from broker.machine.requests.exchange_types import (
    CONSISTENT_HASH,
    EXCHANGE_TYPES,
    FEDERATION_UPSTREAM,
    check_arguments,
    check_link_arguments,
    check_weight,
)
from broker.machine.requests.refusals import (
    NOT_FOUND,
    Refusal,
    default_exchange,
    in_use,
    inequivalent,
    no_exchange,
    reserved_name,
    system_exchange,
    unknown_exchange_type,
)
from broker.machine.state import (
    DELAYED_MESSAGE,
    DELAYED_TYPE,
    Binding,
    Channel,
    Exchange,
    Queue,
    State,
)


def on_exchange_declare(state: State, channel: Channel, command: ExchangeDeclare) -> int:
    kind, _, _, name, exchange_type, passive, durable, auto_delete, internal, nowait, arguments = (
        command
    )
    vhost = channel.connection.vhost
    exchange = vhost.exchanges.get(name)
    wanted = Exchange(name, exchange_type, durable, auto_delete, internal, arguments)
    refusal: Refusal | None = None
    if not passive and exchange_type not in EXCHANGE_TYPES:
        refusal = unknown_exchange_type(exchange_type)
    elif name == "":
        refusal = default_exchange()
    elif passive:
        refusal = no_exchange(name, vhost.name) if exchange is None else None
    elif exchange is not None:
        refusal = _difference(vhost.name, wanted, exchange)
    elif name.startswith("amq."):
        refusal = reserved_name("exchange", name)
    else:
        refusal = check_exchange(name, vhost.name, arguments)
        if refusal is None and exchange_type == DELAYED_MESSAGE:
            refusal = check_type(arguments)
        if refusal is None and wanted.routes_as == CONSISTENT_HASH:
            refusal = check_arguments(arguments)
        elif refusal is None and wanted.routes_as == FEDERATION_UPSTREAM:
            refusal = check_link_arguments(arguments)
    if refusal is not None:
        return refuse(state, channel, kind, refusal)
    if exchange is None:
        exchange = wanted
        add_exchange(state, vhost, exchange)
        if exchange_type == DELAYED_MESSAGE:
            delay_by(state, vhost, exchange)
    if not nowait:
        reply(state, channel, "exchange.declare-ok", (), exchange.durable)
    return OK


def _difference(vhost: str, wanted: Exchange, exchange: Exchange) -> Refusal | None:
    name = exchange.name
    for arg, received, current in (
        ("type", wanted.type, exchange.type),
        (DELAYED_TYPE, wanted.routes_as, exchange.routes_as),
        ("durable", wanted.durable, exchange.durable),
        ("auto_delete", wanted.auto_delete, exchange.auto_delete),
        ("internal", wanted.internal, exchange.internal),
    ):
        if received != current:
            return inequivalent(arg, "exchange", name, vhost, received, current)
    return compare_exchange(name, vhost, wanted.arguments, exchange.arguments)


def on_exchange_delete(state: State, channel: Channel, command: ExchangeDelete) -> int:
    """Deleting an exchange that does not exist succeeds."""
    kind, _, _, name, if_unused, nowait = command
    vhost = channel.connection.vhost
    exchange = vhost.exchanges.get(name)
    refusal: Refusal | None = None
    if name == "":
        refusal = default_exchange()
    elif name.startswith("amq."):
        refusal = system_exchange(name, vhost.name)
    elif exchange is not None and if_unused and exchange.bindings:
        refusal = in_use("exchange", name, vhost.name)
    if refusal is not None:
        return refuse(state, channel, kind, refusal)
    if exchange is not None:
        remove_exchange(state, vhost, exchange)
    if not nowait:
        reply(state, channel, "exchange.delete-ok", (), exchange is not None and exchange.durable)
    return OK


def on_bind(state: State, channel: Channel, command: ExchangeBind | QueueBind) -> int:
    kind, _, _, destination, source, key, nowait, arguments = command
    ends_of = _queue_ends if kind == QUEUE_BIND else _exchange_ends
    ends = ends_of(channel, source, destination)
    return _bind(state, channel, kind, ends, key, arguments, nowait)


def on_unbind(state: State, channel: Channel, command: ExchangeUnbind | QueueUnbind) -> int:
    kind, _, _, destination, source, key, nowait, arguments = command
    ends_of = _queue_ends if kind == QUEUE_UNBIND else _exchange_ends
    ends = ends_of(channel, source, destination)
    return _unbind(state, channel, kind, ends, key, arguments, nowait)


Ends = tuple[Exchange, Exchange | Queue]


def _exchange_ends(channel: Channel, source: str, destination: str) -> Ends | Refusal:
    vhost = channel.connection.vhost
    if source == "" or destination == "":
        return default_exchange()
    for name in (source, destination):
        if name not in vhost.exchanges:
            return no_exchange(name, vhost.name)
    return (vhost.exchanges[source], vhost.exchanges[destination])


def _queue_ends(channel: Channel, source: str, destination: str) -> Ends | Refusal:
    vhost = channel.connection.vhost
    if source == "":
        return default_exchange()
    exchange = vhost.exchanges.get(source)
    if exchange is None:  # checked first, as in RabbitMQ, also where the queue is another's
        return no_exchange(source, vhost.name)
    queue = accessible_queue(channel, destination)
    return queue if isinstance(queue, Refusal) else (exchange, queue)


def _binding(ends: Ends, key: str, arguments: Table) -> Binding:
    source, destination = ends
    return Binding(
        source.name,
        isinstance(destination, Queue),
        destination.name,
        key,
        arguments,
        canonical(arguments),
    )


def _bind(
    state: State,
    channel: Channel,
    kind: int,
    ends: Ends | Refusal,
    key: str,
    arguments: Table,
    nowait: bool,
) -> int:
    if isinstance(ends, Refusal):
        return refuse(state, channel, kind, ends)
    refusal = check_binding(ends[0].routes_as, arguments)
    if ends[0].routes_as == CONSISTENT_HASH:
        refusal = check_weight(key)
    if refusal is None:
        refusal = add_binding(state, channel.connection.vhost, _binding(ends, key, arguments))
    if refusal is not None:
        return refuse(state, channel, kind, refusal)
    if not nowait:
        method = "queue.bind-ok" if kind == QUEUE_BIND else "exchange.bind-ok"
        reply(state, channel, method, (), ends[0].durable and ends[1].durable)
    return OK


def _unbind(
    state: State,
    channel: Channel,
    kind: int,
    ends: Ends | Refusal,
    key: str,
    arguments: Table,
    nowait: bool,
) -> int:
    """Unbinding succeeds even if the binding, or an end of it, does not exist."""
    durable = False
    if not isinstance(ends, Refusal):
        remove_bindings(state, channel.connection.vhost, [_binding(ends, key, arguments)])
        durable = ends[0].durable and ends[1].durable
    elif ends.code != NOT_FOUND:
        return refuse(state, channel, kind, ends)
    if not nowait:
        method = "queue.unbind-ok" if kind == QUEUE_UNBIND else "exchange.unbind-ok"
        reply(state, channel, method, (), durable)
    return OK
