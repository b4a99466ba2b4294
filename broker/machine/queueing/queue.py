"""Queues: their ready messages in order, expiry and limits, and how a queue is deleted.

A queue numbers its messages. Those that were never taken are `ready`, without a gap up to
`next_seq`; requeued ones are `returned`, each older than all of `ready`, so taking from `returned`
first keeps every message in its place. The queue has a digest of its own, `ready_sum`, so that a
purge costs nothing per message.
"""

from collections import deque
from heapq import heappop, heappush

from broker.machine.clock.cluster_time import (
    add_deadline,
    deadline,
    lease,
    remove_deadlines,
    unlease,
)
from broker.machine.commands import Table
from broker.machine.digest import MASK, canonical, item_hash, ready_element
from broker.machine.effects import CancelNotify
from broker.machine.limits import TRIMMED_MAX
from broker.machine.move_log import (
    DECLARED,
    ENQUEUED,
    EXPIRED,
    FLAG,
    INDEX_MASK,
    MARK_MASK,
    OVER_LIMIT,
    QUEUE_DELETED,
    row,
)
from broker.machine.queueing.arguments import apply_arguments
from broker.machine.queueing.properties import priority_of
from broker.machine.queueing.refusals import Refusal, locked, no_queue
from broker.machine.queueing.routing import remove_bindings
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    IS_PERSISTENT,
    KEY,
    NO_TTL,
    NUMBER,
    PROPERTIES,
    TTL_US,
    Channel,
    ConnectionRecord,
    Consumer,
    Letter,
    Message,
    Queue,
    State,
    Vhost,
    rehash,
)

_RANK_SHIFT = 54  # above any number of messages; 8 bits of priority fit below bit 62


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


def mark_used(state: State, queue: Queue) -> None:
    """The queue was declared, read from, or left by its last consumer."""
    if queue.expires_us >= 0:
        state.remove(lease_element(queue))
        queue.used_us = max(queue.used_us, state.horizon_us)  # the horizon may come nearer again
        state.add(lease_element(queue))
        if not queue.consumers:
            lease(state, queue)


def consumer_element(consumer: Consumer) -> int:
    return item_hash(
        "consumer",
        consumer.channel.key,
        consumer.tag,
        consumer.queue.number,
        consumer.no_ack,
        consumer.no_local,
        consumer.exclusive,
        consumer.prefetch,
        consumer.priority,
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
    apply_arguments(queue)
    queue.salt = item_hash("next seq", queue.number)
    state.next_queue += 1
    vhost.queues[name] = queue
    vhost.routes.clear()
    state.totals_of(-1, vhost.name).queues_created += 1
    if owner is not None:
        owner.exclusive[name] = queue
    state.add(queue_element(queue) + lease_element(queue))
    what = DECLARED | FLAG if durable else DECLARED
    state.moves.append(
        row(what, state.position & INDEX_MASK, queue.mark, 0, queue.max_priority + 1, 0)
    )
    state.declared.append(queue)
    return queue


def accessible_queue(channel: Channel, name: str) -> Queue | Refusal:
    """The queue of that name, unless it is exclusive to another connection."""
    connection = channel.connection
    queue = connection.vhost.queues.get(name)
    if queue is None:
        return no_queue(name, connection.vhost.name)
    if queue.owner is not None and queue.owner is not connection:
        return locked(name, connection.vhost.name)
    return queue


def ready_count(queue: Queue) -> int:
    return len(queue.ready) + len(queue.returned)


def next_seq(queue: Queue, message: Message) -> int:
    """The number of a message that comes in. In a priority queue numbers ascend in the order of
    service: priority downwards, then arrival; the lowest bit is kept free for `seq_at`."""
    seq = queue.next_seq
    queue.next_seq = seq + 1
    queue.tally.publish += 1
    if queue.max_priority < 0:
        return seq
    rank = queue.max_priority - min(priority_of(message[PROPERTIES]), queue.max_priority)
    return (rank << _RANK_SHIFT) | (seq << 1)


def seq_at(queue: Queue, place: int) -> tuple[int, bool]:
    """Number and redelivered flag of a key of `returned`. A plain queue keeps there only what came
    back; a priority queue everything, with the flag in the lowest bit."""
    if queue.max_priority < 0:
        return place, True
    return place & ~1, place & 1 == 1


def take(state: State, queue: Queue) -> tuple[int, Message, bool]:
    """The first ready message: sequence number, message, redelivered. There is one."""
    if queue.returned_order:
        place = heappop(queue.returned_order)
        message = queue.returned.pop(place)
        seq, redelivered = seq_at(queue, place)
    else:
        seq = queue.next_seq - len(queue.ready)
        message = queue.ready.popleft()
        redelivered = seq < queue.recovered_seq
    element = ready_element(message[CONTENT_HASH], queue.number, seq, redelivered)
    queue.ready_sum = (queue.ready_sum - element) & MASK
    state.remove(element)
    if queue.max_bytes >= 0:
        queue.ready_bytes -= len(message[BODY])
    if queue.deadlines:
        state.due_us = 0  # what is at the head now may have expired long ago
        if message[TTL_US] != NO_TTL or queue.ttl_us != NO_TTL:
            remove_deadlines(state, queue, 1)
    return seq, message, redelivered


def append(state: State, queue: Queue, message: Message) -> None:
    """At the end. The caller has found no consumer with credit, and checks the limits."""
    seq = next_seq(queue, message)
    state.moves.append(
        row(
            ENQUEUED | FLAG if message[IS_PERSISTENT] else ENQUEUED,
            state.position & INDEX_MASK,
            queue.mark,
            seq,
            message[NUMBER] & MARK_MASK,
            message[CONTENT_HASH],
        )
    )
    if queue.max_priority < 0:
        queue.ready.append(message)
    else:
        queue.returned[seq] = message
        heappush(queue.returned_order, seq)
    state.add(_count_ready(state, queue, seq, message, False) + queue.salt)


def put_back(state: State, queue: Queue, seq: int, message: Message) -> None:
    """In its old place, flagged redelivered. The caller checks the limits and dispatches."""
    place = seq if queue.max_priority < 0 else seq | 1
    queue.returned[place] = message
    heappush(queue.returned_order, place)
    state.add(_count_ready(state, queue, seq, message, True))


def _count_ready(state: State, queue: Queue, seq: int, message: Message, redelivered: bool) -> int:
    """Count a message that is ready now; return its element."""
    element = ready_element(message[CONTENT_HASH], queue.number, seq, redelivered)
    queue.ready_sum = (queue.ready_sum + element) & MASK
    if queue.max_bytes >= 0:
        queue.ready_bytes += len(message[BODY])
    if message[TTL_US] != NO_TTL or queue.ttl_us != NO_TTL:
        add_deadline(state, queue, message)
    return element


def is_full(queue: Queue, bytes_more: int) -> bool:
    """Would one more message be too many?"""
    return (0 <= queue.max_length <= ready_count(queue)) or (
        0 <= queue.max_bytes < queue.ready_bytes + bytes_more
    )


def trim(state: State, queue: Queue) -> None:
    """Drop messages from the head until the limits hold; of very small ones for a large one not all
    at once, so that one position stays cheap."""
    for _ in range(TRIMMED_MAX):
        over = ready_count(queue) > queue.max_length >= 0
        if not over and not queue.ready_bytes > queue.max_bytes >= 0:
            return
        drop_head(state, queue, "maxlen")


def drop_head(state: State, queue: Queue, reason: str) -> None:
    """Remove the first ready message; dead-letter it if the queue has an exchange for that."""
    seq, message, redelivered = take(state, queue)
    what = EXPIRED if reason == "expired" else OVER_LIMIT
    state.moves.append(
        row(
            what | FLAG if redelivered else what,
            state.position & INDEX_MASK,
            queue.mark,
            seq,
            0,
            message[CONTENT_HASH],
        )
    )
    _audit(state, queue, seq, message, redelivered)
    dead_letter(state, queue, message, reason)


def dead_letter(state: State, queue: Queue, message: Message, reason: str) -> None:
    """To be published to the queue's dead-letter exchange, if it has one, after the command."""
    exchange = queue.dead_letter_exchange
    if exchange is not None and not queue.deleted:
        key = message[KEY] if queue.dead_letter_key is None else queue.dead_letter_key
        state.dead_letters.append(Letter(queue.vhost, exchange, key, queue.name, message, reason))


def _audit(state: State, queue: Queue, seq: int, message: Message, redelivered: bool) -> None:
    """If the bytes are no longer those that were hashed, the root differs from here on."""
    content = rehash(message)
    if content != message[CONTENT_HASH]:
        state.add(ready_element(message[CONTENT_HASH], queue.number, seq, redelivered))
        state.remove(ready_element(content, queue.number, seq, redelivered))


def expire(state: State, queue: Queue, count_max: int) -> int:
    """Drop expired messages at the head, at most `count_max`, so that one position stays cheap;
    return how many. Others wait behind the first, as AMQP brokers do it."""
    now_us = state.now_us
    count = 0
    while count < count_max and queue.deadlines and deadline(queue, head(queue)) <= now_us:
        drop_head(state, queue, "expired")
        count += 1
    return count


def head(queue: Queue) -> Message:
    """The first ready message. There is one."""
    return queue.returned[queue.returned_order[0]] if queue.returned_order else queue.ready[0]


def purge(state: State, queue: Queue, what: int) -> int:
    """Drop all ready messages; `what` is the move."""
    count = ready_count(queue)
    state.moves.append(
        row(what, state.position & INDEX_MASK, queue.mark, queue.next_seq, count & MARK_MASK, 0)
    )
    state.remove(queue.ready_sum)
    queue.ready_sum = 0
    queue.ready_bytes = 0
    # To free a million messages takes too long for one position: the member does it in slices.
    state.discarded += (queue.ready, list(queue.returned.values()))
    queue.ready, queue.returned, queue.returned_order = deque(), {}, []
    if queue.deadlines:
        remove_deadlines(state, queue, queue.deadlines)
    return count


def delete_queue(state: State, queue: Queue) -> int:
    """With its consumers, bindings and ready messages; unacked ones stay with their channels."""
    count = purge(state, queue, QUEUE_DELETED)
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
    state.remove(queue_element(queue) + lease_element(queue) + queue.salt * queue.next_seq)
    queue.deleted = True
    state.totals_of(-1, vhost.name).queues_deleted += 1
    return count
