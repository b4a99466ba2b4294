"""Dispatch of messages to consumers: every member computes the same assignment.

Decision: docs/decisions/0014-the-machine-dispatches.md.

A queue's `service` holds its consumers with credit, the next one first. Credit is what the
consumer's own limit, and for consumers with acknowledgement the limit of the channel, leave open.
Between commands a queue never has both a ready message and a consumer with credit. A queue with
readers is only noted for them: what they get is sent when the command is done (streams.py).
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Final

from broker.machine.clock.cluster_time import head, next_deadline, time_to_live
from broker.machine.digest import MASK, element_of, held_element, place
from broker.machine.effects import DeliverEffect
from broker.machine.limits import CHANNEL_HELD_MAX, TRIMMED_PER_MESSAGE_MAX
from broker.machine.move_log import (
    DELIVERED,
    DUE,
    END_OF_READ,
    FLAG,
    GIVEN_UP,
    INDEX_MASK,
    LAPSED,
    MEMBER_LOST,
    PASSED,
    SUPERSEDED,
    is_return,
    row,
)
from broker.machine.queueing.queue import (
    append,
    count_return,
    dead_letter,
    drop_head,
    forget_returns,
    group_key,
    hold_last_value,
    is_full,
    let_go_of_group,
    let_go_of_last_value,
    next_seq,
    put_back,
    remove_head,
    replace,
    take,
    take_of_group,
    trim,
    waiting_last_value,
)
from broker.machine.requests.properties import with_header
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    EXCHANGE,
    IS_PERSISTENT,
    KEY,
    NO_TTL,
    NUMBER,
    PROPERTIES,
    Channel,
    Consumer,
    Held,
    Message,
    Queue,
    State,
    bytes_of,
    rehash,
    rehash_all,
)
from broker.machine.tally import count_delivery
from broker.machine.version import ANSWERS_AS_RABBITMQ
from broker.waiting.groups import Groups
from broker.waiting.last_values import LastValues

_new = tuple.__new__  # half the cost of calling the class


def enqueue(state: State, queue: Queue, message: Message) -> bool:
    """Append it, or deliver it at once; False if the queue refuses it (reject-publish)."""
    if queue.service:
        consumer = next_consumer(queue)
        if consumer is not None:
            seq = next_seq(queue, message)
            state.add(queue.salt)
            what = PASSED | FLAG if message[IS_PERSISTENT] else PASSED
            deliver(state, queue, consumer, seq, message, False, what)
            return True
    if queue.max_length >= 0 or queue.max_bytes >= 0:
        if queue.overflow != "drop-head" and is_full(queue, len(message[BODY])):
            if queue.overflow == "reject-publish-dlx":
                dead_letter(state, queue, message, "maxlen")
            return False
        append(state, queue, message)
        trim(state, queue, TRIMMED_PER_MESSAGE_MAX)
    else:
        append(state, queue, message)
    if queue.expiring:
        _expire_at_once(state, queue)
    return True


def enqueue_last(state: State, queue: Queue, last: LastValues, message: Message) -> bool:
    """The same in a last-value queue: in the place of the one of its key that waits, but at the
    end. What the queue refuses replaces nothing."""
    older = waiting_last_value(queue, last, message)
    if older is not None:
        place, replaced = older
        size = len(message[BODY]) - len(replaced[BODY])
        if queue.overflow != "drop-head" and is_full(queue, size, 0):
            if queue.overflow == "reject-publish-dlx":
                dead_letter(state, queue, message, "maxlen")
            return False
        replace(state, queue, place, message)
    return enqueue(state, queue, message)


def enqueue_in_group(
    state: State, queue: Queue, groups: Groups[Consumer], message: Message
) -> bool:
    """The same in a queue whose messages have groups: it waits, unless it may go at once."""
    full = queue.overflow != "drop-head" and is_full(queue, len(message[BODY]))
    if full and not _goes_at_once(queue, groups, message):
        if queue.overflow == "reject-publish-dlx":
            dead_letter(state, queue, message, "maxlen")
        return False
    append(state, queue, message)
    dispatch(state, queue)
    trim(state, queue, TRIMMED_PER_MESSAGE_MAX)
    if queue.expiring:
        _expire_at_once(state, queue)
    return True


def _goes_at_once(queue: Queue, groups: Groups[Consumer], message: Message) -> bool:
    """Whether somebody with credit may have it."""
    group = groups.by_key.get(group_key(groups, message))
    if group is None:
        return any(has_room(one.channel, one) for one in queue.service)
    holder = group.holder
    if group.places or holder is None or not holder.waiting:
        return False
    return has_room(holder.channel, holder)


RUN_TRAITS: Final[dict[str, object]] = {
    "expiring": False,
    "takes_all": True,
    "readers": None,
    "max_priority": -1,
    "max_length": -1,
    "max_bytes": -1,
    "ttl_us": NO_TTL,
}
"""What a queue must be like to take messages in runs. A test has a list of all that does not matter
to runs, so that a new trait of queues is in one of the two."""
_traits, _wanted_traits = attrgetter(*RUN_TRAITS), tuple(RUN_TRAITS.values())
_number = itemgetter(NUMBER)


def takes_runs(queue: Queue) -> bool:
    """Whether all that `enqueue` does with a message without a time to live is to append it, or
    to deliver it to the only consumer with credit."""
    return len(queue.service) < 2 and is_plain(queue)


def is_plain(queue: Queue) -> bool:
    """Whether it has no trait that needs to be thought of with each message."""
    return bool(_traits(queue) == _wanted_traits)


def would_refuse(queue: Queue, size: int, *, leaves: bool) -> bool:
    """Whether `enqueue` would, a body of so many bytes; `leaves`: it is one of the letters that the
    queue keeps, and makes its own room."""
    if queue.overflow == "drop-head" or max(queue.max_length, queue.max_bytes) < 0:
        return False
    if queue.stream is not None:  # it drops its oldest
        return False
    if not (is_full(queue, 0, 0) if leaves else is_full(queue, size)):
        return False
    if queue.groups is not None:  # whose message is another one is not known here
        return True
    return not any(has_room(consumer.channel, consumer) for consumer in queue.service)


def _expire_at_once(state: State, queue: Queue) -> None:
    """What has no time to live was delivered at once, or is dead. No more here than came in and
    one: the others, which a new policy may bring, expire by tick."""
    if state.version < ANSWERS_AS_RABBITMQ or queue.delays is not None:
        return
    for _ in range(TRIMMED_PER_MESSAGE_MAX):
        if not queue.expiring or time_to_live(queue, head(queue)) != 0:
            return
        drop_head(state, queue, "expired")


def die_refused(state: State, queue: Queue, message: Message) -> None:
    """The queue refused a message, as it is full, and there is no publisher to be told."""
    if queue.overflow == "reject-publish":
        dead_letter(state, queue, message, "maxlen")


def take_due(state: State, queue: Queue) -> Message | None:
    """Remove the first message of a queue that delays, if it is due."""
    if not queue.expiring or next_deadline(queue) > state.now_us:
        return None
    return remove_head(state, queue, DUE)[1]


def next_consumer(queue: Queue) -> Consumer | None:
    """Taken out of the service queue; `deliver` puts it back if credit is left."""
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
    """It got something: it waits for more, or has no credit left."""
    if consumer.outstanding < consumer.limit:
        queue_for_service(queue, consumer)
    else:
        consumer.waiting = False


def _show(state: State, tag: int, held: Held) -> None:
    """Tell the member that has the consumer's connection."""
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
    """With how often it came back, as RabbitMQ's quorum queues tell it."""
    count = queue.returns.get(seq, 0) if queue.returns else 0
    if not count:
        return message[PROPERTIES]
    return with_header(message[PROPERTIES], "x-delivery-count", count)


def has_room(channel: Channel, consumer: Consumer) -> bool:
    """Whether the channel may hold one more delivery to a consumer of its own."""
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
        queue.groups.pending.pop(consumer, None)  # who had no credit meanwhile has no place there
        if consumer in queue.groups.wanted:
            queue.groups.pending[consumer] = None


def active_consumer(queue: Queue) -> Consumer | None:
    """The one that is served where only one is: the first that came, of those that take."""
    return next((one for one in queue.consumers.values() if one.reader is None), None)


def queue_for_service(queue: Queue, consumer: Consumer) -> None:
    """Behind all consumers of the same or a higher priority."""
    service = queue.service
    at = len(service)
    while at and service[at - 1].priority < consumer.priority:
        at -= 1
    if at == len(service):
        service.append(consumer)
    else:
        service.insert(at, consumer)


def dispatch(state: State, queue: Queue) -> None:
    """Deliver while there are both a ready message and a consumer with credit."""
    if queue.readers is not None and queue.readers.service:
        state.reading[queue.number] = queue
    while queue.service and _dispatch_next(state, queue, in_runs=True):
        pass


def _dispatch_next(state: State, queue: Queue, *, in_runs: bool) -> bool:
    """Whether there were both. `in_runs`: nobody else takes turns with this queue, so that all goes
    at once to the only consumer there is for it."""
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
    """Whether somebody with credit might have one, and got it: who holds a group has its turn
    first, then others with what nobody holds."""
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
    """One with credit that holds a group of which more waits; it is taken out of the service."""
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
    channel = consumer.channel
    if consumer.no_ack:
        left = CHANNEL_HELD_MAX - len(channel.unsent)
    else:
        left = channel.limit - channel.outstanding
    return min(left, consumer.limit - consumer.outstanding)


def deliver_all(
    state: State, queue: Queue, consumer: Consumer, first: int, messages: Sequence[Message]
) -> None:
    """`deliver` messages whose places follow each other, for which there is room; the caller
    records the moves. What they have in common is looked up and counted once."""
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
    """Deliver as many of the messages that were never taken as the consumer has credit for."""
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
    and the first is another one as deliveries go on: or the credit of a channel that is always
    full would always go to the same."""
    consumers = list(channel.consumers.values())
    if state.version < ANSWERS_AS_RABBITMQ:
        for consumer in consumers:
            offer(consumer)
            dispatch(state, consumer.queue)
        return
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
        turns = [
            queue
            for queue in turns
            if queue.service and _dispatch_next(state, queue, in_runs=False)
        ]


def requeue(
    state: State, channel: Channel, tag: int, held: Held, what: int, *, counts: bool = True
) -> None:
    """Put a held message back in its place; the caller dispatches. A deleted queue takes none.
    `counts`: it comes nearer to the queue's limit of deliveries."""
    queue, seq, message, _, _ = held
    content = message[CONTENT_HASH]
    if queue.deleted:
        release(state, channel, tag, held, content, LAPSED, tag)
        return
    if not message[NUMBER]:  # it is there still
        release(state, channel, tag, held, content, what, tag)
        return
    if queue.last_values is not None and seq in queue.last_values.superseded:
        queue.tally.replaced += 1
        release(state, channel, tag, held, rehash(message), SUPERSEDED, tag)
        return
    if counts and _came_back_too_often(state, queue, seq, what):
        release(state, channel, tag, held, rehash(message), GIVEN_UP, tag)
        dead_letter(state, queue, message, "delivery_limit")
        return
    release(state, channel, tag, held, content, what, content)
    put_back(state, queue, seq, message)
    trim(state, queue, TRIMMED_PER_MESSAGE_MAX)
    if queue.expiring:
        _expire_at_once(state, queue)


def _came_back_too_often(state: State, queue: Queue, seq: int, what: int) -> bool:
    """That the broker lost a member is no fault of the message's, and does not count."""
    if queue.delivery_limit < 0 or what == MEMBER_LOST:
        return False
    return count_return(state, queue, seq) > queue.delivery_limit


def release(
    state: State, channel: Channel, tag: int, held: Held, content: int, what: int, detail: int
) -> None:
    """Take a message from the channel that held it: the one place where credit comes back.

    `content` is its hash, computed anew by the caller when the message leaves for good; `what` and
    `detail` are the kind and the last field of the move to record.
    """
    queue, seq, message, consumer, redelivered = held
    state.moves.append(
        row(
            what if message[NUMBER] else END_OF_READ[what],
            state.position & INDEX_MASK,
            queue.mark,
            seq,
            channel.mark,
            detail,
        )
    )
    state.remove(held_element(content, queue.number, seq, channel.salt, tag + tag + redelivered))
    if message[NUMBER]:
        queue.unacked -= 1
        queue.unacked_bytes -= len(message[BODY])
        if queue.returns and not is_return(what):
            forget_returns(state, queue, seq)
        if queue.last_values is not None:
            let_go_of_last_value(state, queue, queue.last_values, seq, message)
        if queue.groups is not None:
            let_go_of_group(state, queue, queue.groups, message)
    elif queue.stream is not None:
        queue.unacked -= 1
    if consumer is not None:
        consumer.outstanding -= 1
        if not consumer.no_ack:
            channel.outstanding -= 1


def release_all(
    state: State,
    channel: Channel,
    unsettled: dict[int, Held],
    settled: Iterable[tuple[int, int]],
    what: int,
) -> list[tuple[Queue, Consumer | None, int]]:
    """`release` messages that leave for good, by their positions and tags, in less time: what those
    of one plain queue and consumer have in common is looked up and counted once. Return these, in
    order, with how many it were."""
    runs: list[tuple[Queue, Consumer | None, int]] = []
    run: list[tuple[int, int, Held]] = []
    of: Queue | None = None
    by: Consumer | None = None
    pop = unsettled.pop
    for position, tag in settled:
        held = pop(tag)
        if held[0] is not of or held[3] is not by:
            if of is not None:
                runs.append((of, by, len(run)))
                _release_run(state, channel, of, by, run, what)
            of, by, run = held[0], held[3], []
        run.append((position, tag, held))
    if of is not None:
        runs.append((of, by, len(run)))
        _release_run(state, channel, of, by, run, what)
    return runs


def _release_run(
    state: State,
    channel: Channel,
    queue: Queue,
    consumer: Consumer | None,
    run: list[tuple[int, int, Held]],
    what: int,
) -> None:
    """Release messages of one queue and consumer, by position and tag."""
    messages = [held[2] for _, _, held in run]
    if not (is_plain(queue) and all(map(_number, messages))):  # without one: read, and not taken
        for state.position, tag, held in run:
            release(state, channel, tag, held, rehash(held[2]), what, tag)
        return
    try:
        contents = rehash_all(messages)
    except Exception:
        for state.position, _, held in run:  # which one is to blame
            rehash(held[2])
        raise
    rows, mark, salt = state.moves, channel.mark, channel.salt
    number, queue_mark = queue.number, queue.mark
    elements = 0
    for (position, tag, held), content in zip(run, contents, strict=True):
        seq = held[1]
        rows.append(row(what, position & INDEX_MASK, queue_mark, seq, mark, tag))
        elements += element_of(place(content, number, seq, salt, tag + tag + held[4]))
        if queue.returns:
            forget_returns(state, queue, seq)
    state.position = run[-1][0]
    state.remove(elements)
    _released(channel, queue, consumer, len(run), bytes_of(messages))


def _released(
    channel: Channel, queue: Queue, consumer: Consumer | None, count: int, size: int
) -> None:
    queue.unacked -= count
    queue.unacked_bytes -= size
    if consumer is not None:
        consumer.outstanding -= count
        if not consumer.no_ack:
            channel.outstanding -= count
