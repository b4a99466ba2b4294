"""Deleting queues with their consumers, bindings and ready messages.

Messages taken out of queues are freed in slices, because freeing a million at once takes too long.
"""

from collections.abc import Callable

from broker.machine.clock.cluster_time import unlease
from broker.machine.effects import CancelNotify
from broker.machine.limits import BINDING_WORK, CONSUMER_WORK, QUEUE_WORK
from broker.machine.move_log import QUEUE_DELETED
from broker.machine.policies.choice import policies_element
from broker.machine.queueing.bindings import remove_bindings
from broker.machine.queueing.declaration import (
    consumer_element,
    drop_letters,
    lease_element,
    queue_element,
)
from broker.machine.queueing.groups import keep_no_groups
from broker.machine.queueing.last_values import close_last_values
from broker.machine.queueing.queue import all_ready, forget_all_returns, purge
from broker.machine.queueing.streams import close_readers, close_stream
from broker.machine.queueing.windows import close_window
from broker.machine.state import Discarded, Queue, State
from broker.waiting.backlog import Backlog


def deletion_work(queue: Queue) -> int:
    """Units of deleting the queue (limits.py), without the messages its consumers hold."""
    kept = len(queue.groups.kept) if queue.groups is not None else 0
    consumers = CONSUMER_WORK * len(queue.consumers)
    return QUEUE_WORK + BINDING_WORK * len(queue.bindings) + consumers + kept


def delete_queue(state: State, queue: Queue) -> int:
    """Delete it with its consumers, bindings and ready messages; unacked ones stay with
    channels.
    """
    forget_all_returns(state, queue)
    close_window(state, queue)
    close_stream(state, queue)
    drop_letters(state, queue)
    count = purge(state, queue, QUEUE_DELETED)
    close_last_values(state, queue)
    for consumer in queue.consumers.values():
        channel = consumer.channel
        consumer.active = False
        consumer.waiting = False
        del channel.consumers[consumer.tag]
        state.remove(consumer_element(consumer))
        keep_no_groups(state, consumer)
        if channel.local:
            _, conn, chan = channel.key
            state.effects.append(CancelNotify(conn, chan, consumer.tag))
    queue.consumers.clear()
    queue.service.clear()
    close_readers(state, queue)
    vhost = queue.vhost
    del vhost.queues[queue.name]
    if queue.owner is not None:
        queue.owner.exclusive.pop(queue.name, None)
    remove_bindings(state, vhost, list(queue.bindings.values()))
    unlease(state, queue)
    state.expiry.forget(queue.number)
    state.lease_ends.forget(queue.number)
    state.remove(queue_element(queue) + policies_element(queue) + lease_element(queue))
    state.remove(queue.salt * queue.next_seq)
    state.trimming.pop(queue.number, None)
    state.late.pop(queue.number, None)
    queue.deleted = True
    state.totals_of(-1, vhost.name).queues_deleted += 1
    return count


def contents(queue: Queue) -> list[Discarded]:
    """The large parts of a queue of a machine that is no longer in use."""
    found: list[Discarded] = [*all_ready(queue)]
    if queue.window is not None:
        found += [queue.window.order, queue.window.by_key]
    if queue.last_values is not None:
        found += [queue.last_values.waiting, queue.last_values.held]
    if queue.groups is not None:
        found += queue.groups.forget_waiting()
    return found


def drop(messages: Discarded, count: int) -> int:
    """Free about this many; return how many."""
    if isinstance(messages, Backlog):
        return messages.drop(count)
    let_go: Callable[[], object]
    let_go = messages.popitem if isinstance(messages, dict) else messages.pop
    count = min(len(messages), count)
    for _ in range(count):
        let_go()
    return count
