"""Declaring, finding and using queues, including two kinds that no client sees.

These hold messages until they are due, and dead letters until they can go.
"""

from broker.machine.clock.cluster_time import lease
from broker.machine.commands import Table
from broker.machine.digest import canonical, item_hash
from broker.machine.move_log import (
    DECLARED,
    DELAYS_DECLARED,
    FLAG,
    INDEX_MASK,
    LETTERS_DECLARED,
    PURGED,
    QUEUE_DELETED,
    row,
)
from broker.machine.policies.choice import policies_element, policies_of_queue
from broker.machine.queueing.queue import purge
from broker.machine.requests.arguments import (
    apply_settings,
    keep_groups,
    keep_last_values,
    open_window,
)
from broker.machine.requests.death_headers import letters_name
from broker.machine.requests.delay_header import queue_name
from broker.machine.requests.refusals import Refusal, locked, no_queue
from broker.machine.state import (
    Channel,
    ConnectionRecord,
    Consumer,
    Exchange,
    Queue,
    State,
    Vhost,
    order_of,
    ready_count,
)


def create_queue(
    state: State,
    vhost: Vhost,
    name: str,
    durable: bool,
    auto_delete: bool,
    owner: ConnectionRecord | None,
    arguments: Table,
) -> Queue:
    queue = Queue(vhost, name, state.next_queue, durable, auto_delete, owner, arguments)
    queue.policy, queue.operator_policy = policies_of_queue(vhost, name, arguments)
    keep_last_values(queue)
    keep_groups(queue)
    apply_settings(queue)
    open_window(state, queue)
    vhost.queues[name] = queue
    vhost.routes.clear()
    state.totals_of(-1, vhost.name).queues_created += 1
    if owner is not None:
        owner.exclusive[name] = queue
    _begin(state, queue, DECLARED)
    return queue


def _begin(state: State, queue: Queue, what: int) -> None:
    """The queue exists from here on; `what` is the move."""
    queue.salt = item_hash("next seq", queue.number)
    state.next_queue += 1
    state.add(queue_element(queue) + policies_element(queue) + lease_element(queue))
    what |= FLAG if queue.durable else 0
    state.moves.append(
        row(what, state.position & INDEX_MASK, queue.mark, 0, order_of(queue) + 1, 0)
    )
    state.declared.append(queue)


def accessible_queue(channel: Channel, name: str) -> Queue | Refusal:
    """The queue of that name, unless it is exclusive to another connection."""
    connection = channel.connection
    queue = connection.vhost.queues.get(name)
    if queue is None:
        return no_queue(name, connection.vhost.name)
    if queue.owner is not None and queue.owner is not connection:
        return locked(name, connection.vhost.name)
    return queue


def mark_used(state: State, queue: Queue) -> None:
    """The queue was declared, read from, or left by its last consumer."""
    if queue.expires_us >= 0:
        state.remove(lease_element(queue))
        queue.used_us = max(queue.used_us, state.horizon_us)  # the horizon may come nearer again
        state.add(lease_element(queue))
        if not queue.consumers:
            lease(state, queue)


def queue_element(queue: Queue) -> int:
    return item_hash(
        "queue",
        queue.vhost.name,
        queue.name,
        queue.number,
        queue.durable,
        queue.auto_delete,
        queue.owner_key,
        canonical(queue.arguments),
    )


def lease_element(queue: Queue) -> int:
    return item_hash("lease", queue.number, queue.used_us) if queue.expires_us >= 0 else 0


def delay_by(state: State, vhost: Vhost, exchange: Exchange) -> None:
    """Give a new exchange that delays messages the queue in which they wait."""
    queue = new_delays(vhost, exchange.name, state.next_queue, exchange.durable)
    _begin(state, queue, DELAYS_DECLARED)


def new_delays(vhost: Vhost, exchange: str, number: int, durable: bool) -> Queue:
    name = queue_name(exchange)
    queue = Queue(vhost, name, number, durable, False, None, {}, delays=exchange)
    vhost.delays[exchange] = queue
    return queue


def drop_delayed(state: State, vhost: Vhost, exchange: Exchange) -> None:
    """The exchange is gone, and with it its waiting messages."""
    queue = vhost.delays.pop(exchange.name, None)
    if queue is not None:
        state.expiry.forget(queue.number)
        _drop(state, queue)


def keep_letters_of(state: State, source: Queue) -> Queue:
    """A dead letter of the queue cannot go: create the queue in which its letters wait."""
    kept = new_letters(source, state.next_queue, source.durable)
    _begin(state, kept, LETTERS_DECLARED)
    return kept


def new_letters(source: Queue, number: int, durable: bool) -> Queue:
    vhost, name = source.vhost, letters_name(source.name)
    kept = Queue(vhost, name, number, durable, False, None, {}, letters_of=source.name)
    source.letters = vhost.kept_letters[source.name] = kept
    return kept


def purge_letters(state: State, source: Queue) -> None:
    """Drop the dead letters kept for the queue."""
    kept = source.letters
    if kept is not None and ready_count(kept):
        purge(state, kept, PURGED)
        state.keeping.pop(kept.number, None)


def drop_letters(state: State, source: Queue) -> None:
    """The queue is gone, and with it its dead letters."""
    kept = source.letters
    if kept is not None:
        state.keeping.pop(kept.number, None)
        state.letter_times.forget(kept.number)
        del kept.vhost.kept_letters[source.name]
        source.letters = None
        _drop(state, kept)


def _drop(state: State, queue: Queue) -> None:
    """Delete a queue that no client sees, with its waiting messages."""
    purge(state, queue, QUEUE_DELETED)
    state.remove(queue_element(queue) + queue.salt * queue.next_seq)
    queue.deleted = True


def consumer_element(consumer: Consumer) -> int:
    reader = consumer.reader
    return (reader.salt * reader.offset if reader is not None else 0) + item_hash(
        "consumer",
        consumer.channel.key,
        consumer.tag,
        consumer.queue.number,
        consumer.no_ack,
        consumer.no_local,
        consumer.exclusive,
        consumer.prefetch,
        consumer.priority,
        *(reader.filter if reader is not None else ()),
    )
