"""Dispatch of messages to consumers: every member computes the same assignment.

Decision: docs/decisions/0014-the-machine-dispatches.md.

A queue's `service` holds its consumers with credit, the next one first. Credit is what remains of
the consumer's own limit and, for consumers with acknowledgement, of the channel's limit. Between
commands a queue never has both a ready message and a consumer with credit. A queue with readers is
only marked here: readers get their messages when the command is done (streams.py).
"""

from collections.abc import Sequence

from broker.machine.digest import MASK, element_of, held_element, place
from broker.machine.effects import DeliverEffect
from broker.machine.limits import CHANNEL_HELD_MAX, EXPIRED_AT_ONCE_MAX
from broker.machine.move_log import DELIVERED, FLAG, INDEX_MASK, row
from broker.machine.queueing.last_values import hold_last_value
from broker.machine.queueing.queue import take, take_of_group
from broker.machine.queueing.queue_limits import expire
from broker.machine.requests.properties import with_new_header
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    EXCHANGE,
    KEY,
    PROPERTIES,
    Channel,
    Consumer,
    Held,
    Message,
    Queue,
    State,
    bytes_of,
)
from broker.machine.tally import count_delivery
from broker.waiting.groups import Groups

_new = tuple.__new__  # half the cost of calling the class


def next_consumer(queue: Queue) -> Consumer | None:
    """Take the next consumer out of the service queue; `deliver` puts it back if credit is left."""
    service = queue.service
    while service:
        consumer = service.popleft()
        channel = consumer.channel
        if has_room(channel, consumer):
            return consumer
        consumer.waiting = False  # another consumer of its channel took the shared credit
    return None


def deliver(
    state: State,
    queue: Queue,
    consumer: Consumer,
    seq: int,
    message: Message,
    redelivered: bool,
    what: int,
) -> None:
    """Deliver to a consumer that `next_consumer` returned; `what`: the kind of move to record."""
    channel = consumer.channel
    tag = channel.next_tag
    channel.next_tag = tag + 1
    consumer.outstanding += 1
    queue.unacked += 1
    queue.unacked_bytes += len(message[BODY])
    if queue.last_values is not None:
        hold_last_value(state, queue, queue.last_values, seq, message)
    content = message[CONTENT_HASH]
    state.moves.append(
        row(
            what,
            state.position & INDEX_MASK,
            queue.mark,
            seq,
            channel.mark,
            content,
        )
    )
    if consumer.no_ack:
        channel.unsent[tag] = (queue, seq, message, consumer, redelivered)
    else:
        channel.unacked[tag] = (queue, seq, message, consumer, redelivered)
        channel.outstanding += 1
    count_delivery(queue.tally, channel.tally, channel.total, consumer.no_ack, 1, redelivered)
    state.add(
        held_element(content, queue.number, seq, channel.salt, tag + tag + redelivered)
        + channel.salt
    )
    _serve_again(queue, consumer)
    if channel.local:
        _show(state, tag, (queue, seq, message, consumer, redelivered))


def _serve_again(queue: Queue, consumer: Consumer) -> None:
    """It got a message: it waits for more, or has no credit left."""
    if consumer.outstanding < consumer.limit:
        queue_for_service(queue, consumer)
    else:
        consumer.waiting = False


def _show(state: State, tag: int, held: Held) -> None:
    """Send the delivery, at the member that has the consumer's connection."""
    queue, seq, message, consumer, redelivered = held
    assert consumer is not None
    _, conn, chan = consumer.channel.key
    state.effects.append(
        _new(
            DeliverEffect,
            (
                conn,
                chan,
                consumer.tag,
                tag,
                redelivered,
                message[EXCHANGE],
                message[KEY],
                properties_for(queue, seq, message),
                message[BODY],
                consumer.no_ack,
            ),
        )
    )


def properties_for(queue: Queue, seq: int, message: Message) -> bytes:
    """The properties with the number of returns, as in RabbitMQ's quorum queues."""
    if queue.delivery_limit < 0 and not queue.is_quorum:
        return message[PROPERTIES]
    return with_new_header(message[PROPERTIES], "x-delivery-count", queue.returns.get(seq, 0))


def has_room(channel: Channel, consumer: Consumer) -> bool:
    """Whether the channel may hold one more delivery to one of its consumers."""
    if consumer.no_ack:
        return len(channel.unsent) < CHANNEL_HELD_MAX and channel.open
    return channel.outstanding < channel.limit and channel.open


def offer(consumer: Consumer) -> None:
    """Queue the consumer for service if it has credit."""
    if consumer.waiting or not consumer.active or consumer.outstanding >= consumer.limit:
        return
    if not has_room(consumer.channel, consumer):
        return
    queue = consumer.queue
    if consumer.reader is not None:
        assert queue.readers is not None
        consumer.waiting = True
        queue.readers.service.append(consumer)
        return
    if queue.single_active and active_consumer(queue) is not consumer:
        return
    consumer.waiting = True
    queue_for_service(queue, consumer)
    if queue.groups is not None:
        queue.groups.pending.pop(consumer, None)  # without credit it lost its place there
        if consumer in queue.groups.wanted:
            queue.groups.pending[consumer] = None


def active_consumer(queue: Queue) -> Consumer | None:
    """The consumer served where only one is: the first to come, of those that take messages."""
    return next((one for one in queue.consumers.values() if one.reader is None), None)


def queue_for_service(queue: Queue, consumer: Consumer) -> None:
    """Queue it behind all consumers of the same or a higher priority."""
    service = queue.service
    at = len(service)
    while at and service[at - 1].priority < consumer.priority:
        at -= 1
    if at == len(service):
        service.append(consumer)
    else:
        service.insert(at, consumer)


def dispatch(state: State, queue: Queue, *, enters: bool = False) -> None:
    """Deliver while there are both a ready message and a consumer with credit. An expired message
    behind one that had not expired is dropped when its turn comes. `enters`: none can have expired,
    because a message has just come in; it may have a time to live of zero and is still delivered at
    once."""
    if queue.readers is not None and queue.readers.service:
        state.reading[queue.number] = queue
    drops = 0 if enters else EXPIRED_AT_ONCE_MAX
    while queue.service:
        if drops and queue.expiring:
            drops -= expire(state, queue, drops)
        if not _dispatch_next(state, queue, in_runs=True):
            return


def _dispatch_next(state: State, queue: Queue, *, in_runs: bool) -> bool:
    """Deliver once; return whether there were both. `in_runs`: no other queue takes turns with this
    one, so everything may go at once to its only available consumer."""
    if queue.groups is not None:
        return _dispatch_group(state, queue, queue.groups)
    if not (queue.ready or queue.returned):
        return False
    consumer = next_consumer(queue)
    if consumer is None:
        return False
    if in_runs and not (queue.service or queue.returned or queue.expiring):
        _deliver_run(state, queue, consumer)
        return True
    seq, message, redelivered = take(state, queue)
    what = DELIVERED | FLAG if redelivered else DELIVERED
    deliver(state, queue, consumer, seq, message, redelivered, what)
    return True


def _dispatch_group(state: State, queue: Queue, groups: Groups[Consumer]) -> bool:
    """Deliver one message of a group; return whether a consumer with credit got one. The holder of
    a group has its turn first; then other consumers get messages of groups that nobody holds."""
    consumer = _pending_consumer(queue, groups)
    if consumer is None:
        consumer = next_consumer(queue) if groups.free else None
        if consumer is None:
            return False
    taken = take_of_group(state, queue, groups, consumer)
    assert taken is not None
    seq, message, redelivered = taken
    what = DELIVERED | FLAG if redelivered else DELIVERED
    deliver(state, queue, consumer, seq, message, redelivered, what)
    if consumer.waiting and consumer in groups.wanted:
        groups.pending[consumer] = None
    return True


def _pending_consumer(queue: Queue, groups: Groups[Consumer]) -> Consumer | None:
    """A consumer with credit whose group has more waiting messages; taken out of the service."""
    pending = groups.pending
    while pending:
        consumer = next(iter(pending))
        if consumer.waiting and consumer in groups.wanted:
            queue.service.remove(consumer)
            if has_room(consumer.channel, consumer):
                return consumer
            consumer.waiting = False  # another consumer of its channel took the shared credit
        del pending[consumer]
    return None


def room_of(consumer: Consumer) -> int:
    """How many messages a consumer that `next_consumer` returned may get, at least one."""
    return min(shared_room(consumer), consumer.limit - consumer.outstanding)


def shared_room(consumer: Consumer) -> int:
    """How many more deliveries like this consumer's its channel may hold."""
    channel = consumer.channel
    if not channel.open:
        return 0
    if consumer.no_ack:
        return CHANNEL_HELD_MAX - len(channel.unsent)
    return channel.limit - channel.outstanding


def deliver_all(
    state: State, queue: Queue, consumer: Consumer, first: int, messages: Sequence[Message]
) -> None:
    """`deliver` messages with consecutive places, for which there is room; the caller records the
    moves. Shared properties are looked up and counted once."""
    channel, no_ack, number = consumer.channel, consumer.no_ack, queue.number
    salt, recovered_seq, tag = channel.salt, queue.recovered_seq, channel.next_tag
    held = channel.unsent if no_ack else channel.unacked
    elements = 0
    for seq, message in enumerate(messages, first):
        redelivered = seq < recovered_seq
        held[tag] = queue, seq, message, consumer, redelivered
        elements += element_of(
            place(message[CONTENT_HASH], number, seq, salt, tag + tag + redelivered)
        )
        tag += 1
    if channel.local:
        for one in range(channel.next_tag, tag):
            _show(state, one, held[one])
    channel.next_tag, count = tag, len(messages)
    queue.unacked += count
    queue.unacked_bytes += bytes_of(messages)
    state.add(elements + salt * count)
    again = min(max(recovered_seq - first, 0), count)
    count_delivery(queue.tally, channel.tally, channel.total, no_ack, count, again)
    if not no_ack:
        channel.outstanding += count
    consumer.outstanding += count
    _serve_again(queue, consumer)


def _deliver_run(state: State, queue: Queue, consumer: Consumer) -> None:
    """Deliver as many of the never taken messages as the consumer has credit for."""
    ready = queue.ready
    first = queue.next_seq - len(ready)
    messages = ready.take(min(room_of(consumer), len(ready)))
    number, mark, recovered_seq = queue.number, queue.mark, queue.recovered_seq
    rows, of, at = state.moves, consumer.channel.mark, state.position & INDEX_MASK
    elements = 0
    for seq, message in enumerate(messages, first):
        content, redelivered = message[CONTENT_HASH], seq < recovered_seq
        elements += element_of(place(content, number, seq, 0, redelivered))
        what = DELIVERED | FLAG if redelivered else DELIVERED
        rows.append(row(what, at, mark, seq, of, content))
    queue.ready_sum = (queue.ready_sum - elements) & MASK
    queue.ready_bytes -= bytes_of(messages)
    state.remove(elements)
    deliver_all(state, queue, consumer, first, messages)


def offer_all(state: State, channel: Channel) -> None:
    """The channel's shared credit has grown. Its consumers' queues take turns, one message each,
    and deliveries change which queue comes first; otherwise the credit of a channel that is always
    full would always go to the same queue."""
    consumers = list(channel.consumers.values())
    if not consumers:
        return
    first = channel.next_tag % len(consumers)
    queues: dict[int, Queue] = {}
    for consumer in consumers[first:] + consumers[:first]:
        offer(consumer)
        queue = consumer.queue
        queues[queue.number] = queue
        if queue.readers is not None and queue.readers.service:
            state.reading[queue.number] = queue
    turns = list(queues.values())
    drops = EXPIRED_AT_ONCE_MAX
    while turns:
        served = []
        for queue in turns:
            if queue.service and queue.expiring:
                drops -= expire(state, queue, drops)
            if queue.service and _dispatch_next(state, queue, in_runs=False):
                served.append(queue)
        turns = served
