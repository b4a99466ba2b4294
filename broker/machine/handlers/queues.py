"""Commands about queues themselves: declare, purge, delete."""

from broker.machine.commands import OK, QueueDeclare, QueueDelete, QueuePurge, Table
from broker.machine.handlers.connections import refuse, reply
from broker.machine.move_log import FLAG, PURGED
from broker.machine.policies.qpid_options import Fault, has_options, in_our_words
from broker.machine.queueing.declaration import (
    accessible_queue,
    create_queue,
    mark_used,
    purge_letters,
)
from broker.machine.queueing.deletion import delete_queue
from broker.machine.queueing.queue import purge
from broker.machine.queueing.windows import empty_window
from broker.machine.requests.arguments import (
    CLASSIC,
    check_queue,
    compare_queue,
    queue_type,
    window_refusal,
)
from broker.machine.requests.refusals import (
    Refusal,
    in_use,
    inequivalent,
    invalid_argument,
    invalid_property,
    locked,
    no_queue,
    no_server_named,
    not_empty,
    not_on_stream,
    reserved_name,
    too_many_queues,
)
from broker.machine.state import Channel, Queue, State, ready_count

GENERATED_PREFIXES = ("amq.gen-", "amq.rabbitmq.reply-to.")
"""Of names that the gateway generates; it refuses them from clients."""


def on_queue_declare(state: State, channel: Channel, command: QueueDeclare) -> int:
    kind, _, _, name, passive, durable, exclusive, auto_delete, nowait, arguments = command
    if has_options(arguments) and not passive:
        said = in_our_words(arguments, auto_delete=auto_delete, exclusive=exclusive)
        if isinstance(said, Fault):
            vhost_name = channel.connection.vhost.name
            fault = invalid_argument(said.option, "queue", name, vhost_name, said.why)
            return refuse(state, channel, kind, fault)
        arguments, auto_delete = said
    connection = channel.connection
    vhost = connection.vhost
    queue = vhost.queues.get(name)
    if queue is not None and queue.owner is not None and queue.owner.ended:
        delete_queue(state, queue)  # its client came back before its end had its turn
        queue = None
    refusal: Refusal | None = None
    if queue is not None and queue.owner is not None and queue.owner is not connection:
        refusal = locked(name, vhost.name)
    elif passive:
        refusal = no_queue(name, vhost.name) if queue is None else None
    elif queue is not None:
        declared = durable, exclusive, auto_delete
        refusal = _difference(queue, declared, arguments)
    elif name == "" or (name.startswith("amq.") and not name.startswith(GENERATED_PREFIXES)):
        refusal = reserved_name("queue", name)
    elif 0 <= vhost.max_queues <= len(vhost.queues):
        refusal = too_many_queues(name, vhost.name, vhost.max_queues)
    elif name.startswith(GENERATED_PREFIXES) and queue_type(arguments) != CLASSIC:
        refusal = no_server_named(queue_type(arguments))
    else:
        refusal = check_queue(name, vhost.name, arguments)
        declared = durable, exclusive, auto_delete
        refusal = refusal or _misfit(name, declared, arguments, vhost.name)
        refusal = refusal or window_refusal(state, name, arguments)
    if refusal is not None:
        return refuse(state, channel, kind, refusal)
    if queue is None:
        owner = connection if exclusive else None
        queue = create_queue(state, vhost, name, durable, auto_delete, owner, arguments)
    mark_used(state, queue)
    if not passive:
        connection.totals.queues_declared += 1
    if not nowait:
        counts = (name, ready_count(queue), len(queue.consumers))
        reply(state, channel, "queue.declare-ok", counts, queue.durable)
    return OK


def _misfit(
    name: str, declared: tuple[bool, bool, bool], arguments: Table, vhost: str
) -> Refusal | None:
    """Why a queue cannot have the requested type; checks are in RabbitMQ's order."""
    if queue_type(arguments) == CLASSIC:
        return None
    durable, exclusive, auto_delete = declared
    for prop, is_wrong in (
        ("auto-delete", auto_delete),
        ("exclusive-owner", exclusive),
        ("non-durable", not durable),
    ):
        if is_wrong:
            return invalid_property(prop, name, vhost)
    return None


def _difference(
    queue: Queue, declared: tuple[bool, bool, bool], arguments: Table
) -> Refusal | None:
    durable, exclusive, auto_delete = declared
    name, vhost, is_exclusive = queue.name, queue.vhost.name, queue.owner is not None
    if exclusive != is_exclusive:
        return locked(name, vhost)
    if exclusive:  # it goes with its connection, durable or not
        durable = queue.durable
    for arg, received, current in (
        ("durable", durable, queue.durable),
        ("auto_delete", auto_delete, queue.auto_delete),
    ):
        if received != current:
            return inequivalent(arg, "queue", name, vhost, received, current)
    return compare_queue(name, vhost, arguments, queue.arguments)


def on_queue_purge(state: State, channel: Channel, command: QueuePurge) -> int:
    kind, _, _, name, nowait = command
    queue = accessible_queue(channel, name)
    if isinstance(queue, Refusal):
        return refuse(state, channel, kind, queue)
    if queue.stream is not None:
        refusal = not_on_stream(
            "queue.purge not supported by stream queues", name, queue.vhost.name
        )
        return refuse(state, channel, kind, refusal)
    empties = queue.window is not None
    count = purge(state, queue, PURGED | FLAG if empties else PURGED)
    purge_letters(state, queue)
    if empties:
        empty_window(state, queue)
    if not nowait:
        reply(state, channel, "queue.purge-ok", (count,), queue.durable)
    return OK


def on_queue_delete(state: State, channel: Channel, command: QueueDelete) -> int:
    """Deleting a queue that does not exist succeeds."""
    kind, _, _, name, if_unused, if_empty, nowait = command
    connection = channel.connection
    queue = connection.vhost.queues.get(name)
    count = 0
    if queue is not None:
        refusal: Refusal | None = None
        if queue.owner is not None and queue.owner is not connection:
            refusal = locked(name, connection.vhost.name)
        elif if_unused and queue.consumers:
            refusal = in_use("queue", name, connection.vhost.name)
        elif if_empty and ready_count(queue):
            refusal = not_empty(name, connection.vhost.name)
        if refusal is not None:
            return refuse(state, channel, kind, refusal)
        count = ready_count(queue)
    if not nowait:  # before the queue's consumers are told, as in RabbitMQ
        reply(state, channel, "queue.delete-ok", (count,), queue is not None and queue.durable)
    if queue is not None:
        delete_queue(state, queue)
    return OK
