"""How a queue is deleted: with its consumers, bindings and ready messages."""

from broker.machine.clock.cluster_time import unlease
from broker.machine.effects import CancelNotify
from broker.machine.limits import BINDING_WORK, CONSUMER_WORK, QUEUE_WORK
from broker.machine.move_log import QUEUE_DELETED
from broker.machine.policies.choice import policies_element
from broker.machine.queueing.queue import (
    close_last_values,
    consumer_element,
    drop_letters,
    forget_all_returns,
    lease_element,
    purge,
    queue_element,
)
from broker.machine.queueing.routing import remove_bindings
from broker.machine.queueing.streams import close_stream
from broker.machine.queueing.windows import close_window
from broker.machine.state import Queue, State


def deletion_work(queue: Queue) -> int:
    """Units of deleting the queue (limits.py), but for what its consumers hold."""
    return QUEUE_WORK + BINDING_WORK * len(queue.bindings) + CONSUMER_WORK * len(queue.consumers)


def delete_queue(state: State, queue: Queue) -> int:
    """With its consumers, bindings and ready messages; unacked ones stay with their channels."""
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
        if channel.local:
            _, conn, chan = channel.key
            state.effects.append(CancelNotify(conn, chan, consumer.tag))
    queue.consumers.clear()
    queue.service.clear()
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
    queue.deleted = True
    state.totals_of(-1, vhost.name).queues_deleted += 1
    return count
