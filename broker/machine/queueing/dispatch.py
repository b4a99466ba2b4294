"""Dispatch of messages to consumers: every member computes the same assignment.

Decisions: docs/decisions/0014-the-machine-dispatches.md,
docs/decisions/0155-what-has-expired-is-not-delivered.md.

A queue's `service` holds its consumers with credit, the next one first. Credit is what remains of
the consumer's own limit and, for consumers with acknowledgement, of the channel's limit. Between
commands a queue never has both a ready message and a consumer with credit, unless it is *late*:
what has expired is not delivered, and dropping many messages takes several positions. A
queue with readers is only marked here: readers get their messages when the command is done
(streams.py).
"""

from collections.abc import Sequence
from itertools import islice

from broker.machine.clock.cluster_time import note_held
from broker.machine.digest import MASK, element_of, held_element, place
from broker.machine.effects import DeliverEffect
from broker.machine.limits import CHANNEL_HELD_MAX, EXPIRED_AT_ONCE_MAX
from broker.machine.move_log import DELIVERED, FLAG, INDEX_MASK, row
from broker.machine.queueing.last_values import hold_last_value
from broker.machine.queueing.queue import take, take_of_group
from broker.machine.queueing.queue_limits import (
    expire,
    expire_next,
    has_expired,
    next_has_expired,
)
from broker.machine.requests.properties import with_new_header
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    EXCHANGE,
    KEY,
    NO_TTL,
    PROPERTIES,
    TTL_US,
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
    if message[TTL_US] != NO_TTL or queue.ttl_us != NO_TTL:
        note_held(state, queue, message)
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
    """Deliver while there are both a ready message and a consumer with credit. Where the first one
    has expired, the queue goes on when the command is done (`serve_late`). `enters`: none can have
    expired, because a message has just come in; it may have a time to live of zero and is still
    delivered at once."""
    if queue.readers is not None and queue.readers.service:
        state.reading[queue.number] = queue
    if not queue.service or queue.number in state.late:
        return
    while enters or not _is_late(state, queue):
        if not (queue.service and _dispatch_next(state, queue, in_runs=True)):
            return


def _is_late(state: State, queue: Queue) -> bool:
    """Whether its first message, or what a consumer would get next, has expired; if so, its
    consumers are served later."""
    if not queue.expiring:
        return False
    late, groups = has_expired(state, queue), queue.groups
    if not late and groups is not None:
        consumer = _first_in_groups(queue, groups)
        late = consumer is not None and next_has_expired(state, queue, groups, consumer)
    if not late:
        return False
    state.late[queue.number] = queue
    return True


def serve_late(state: State) -> None:
    """Drop what has expired in late queues, and serve their consumers, as much as one position may
    cost. A queue that is not done has its next turn after the others."""
    work = 0
    for number, queue in list(islice(state.late.items(), EXPIRED_AT_ONCE_MAX)):
        if work >= EXPIRED_AT_ONCE_MAX:
            return
        del state.late[number]
        work += 1 + _go_on(state, queue, EXPIRED_AT_ONCE_MAX - work)


def _go_on(state: State, queue: Queue, work_max: int) -> int:
    """Serve the consumers of a queue that was late; return how many messages left it."""
    work = 0
    if queue.groups is not None:  # a snapshot has only the order of the service
        queue.groups.turns_of(queue.service)
    while queue.service:
        work += _expire_before(state, queue, work_max - work)
        if work >= work_max:
            state.late[queue.number] = queue
            break
        held = queue.unacked
        if not _dispatch_next(state, queue, in_runs=True):
            break
        work += queue.unacked - held
    return work


def _expire_before(state: State, queue: Queue, count_max: int) -> int:
    """Drop what has expired before the next message that a consumer can get; return how many."""
    count, groups = expire(state, queue, count_max), queue.groups
    while groups is not None and count < count_max:
        consumer = _first_in_groups(queue, groups)
        if consumer is None:
            break
        dropped = expire_next(state, queue, groups, consumer, count_max - count)
        if not dropped:
            break
        count += dropped
    return count


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
    consumer = _first_in_groups(queue, groups)
    if consumer is None:
        return False
    queue.service.remove(consumer)
    taken = take_of_group(state, queue, groups, consumer)
    assert taken is not None
    seq, message, redelivered = taken
    what = DELIVERED | FLAG if redelivered else DELIVERED
    deliver(state, queue, consumer, seq, message, redelivered, what)
    if consumer.waiting and consumer in groups.wanted:
        groups.pending[consumer] = None
    return True


def _first_in_groups(queue: Queue, groups: Groups[Consumer]) -> Consumer | None:
    """The consumer with credit whose turn it is, in the service still: one whose group has more
    waiting messages, or else the next one if there are some of a group that nobody holds."""
    pending, service = groups.pending, queue.service
    while pending:
        consumer = next(iter(pending))
        if consumer.waiting and consumer in groups.wanted:
            if has_room(consumer.channel, consumer):
                return consumer
            service.remove(consumer)
            consumer.waiting = False  # another consumer of its channel took the shared credit
        del pending[consumer]
    while groups.free and service:
        if has_room(service[0].channel, service[0]):
            return service[0]
        service.popleft().waiting = False
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
    while turns:
        served = []
        for queue in turns:
            if not queue.service or queue.number in state.late or _is_late(state, queue):
                continue
            if _dispatch_next(state, queue, in_runs=False):
                served.append(queue)
        turns = served
