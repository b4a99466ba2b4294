"""Consuming: consume, cancel, get, qos, and the settlement of deliveries."""

from itertools import repeat

from broker.machine.clock.cluster_time import note_held, unlease
from broker.machine.commands import (
    ACK,
    CONSUME,
    GET,
    NACK,
    OK,
    RECOVER,
    Ack,
    Cancel,
    Consume,
    Get,
    Nack,
    Qos,
    Recover,
    Sent,
)
from broker.machine.digest import held_element
from broker.machine.effects import GetEmpty, GetOk
from broker.machine.handlers.connections import (
    channel_element,
    refuse,
    remove_consumer,
    reply,
    resume_service,
)
from broker.machine.limits import (
    CHANNEL_CONSUMERS_MAX,
    CHANNEL_HELD_MAX,
    CONSUMER_HELD_MAX,
    EXPIRED_AT_ONCE_MAX,
    NO_ACK_HELD_MAX,
    QUEUE_CONSUMERS_MAX,
)
from broker.machine.move_log import (
    ACKED,
    FLAG,
    GOT,
    INDEX_MASK,
    NACKED,
    REJECTED,
    SENT,
    TAKEN_BACK,
    is_return,
    row,
)
from broker.machine.queueing.declaration import accessible_queue, consumer_element, mark_used
from broker.machine.queueing.deletion import delete_queue
from broker.machine.queueing.dispatch import (
    dispatch,
    offer,
    offer_all,
    properties_for,
    serve_late,
)
from broker.machine.queueing.last_values import hold_last_value
from broker.machine.queueing.queue import take, take_of_group
from broker.machine.queueing.queue_limits import (
    dead_letter,
    expire,
    expire_next,
    has_expired,
    next_has_expired,
)
from broker.machine.queueing.settlement import release, release_all, requeue, tags_up_to
from broker.machine.queueing.streams import browses, consume_refusal, open_reader
from broker.machine.requests.arguments import check_consume, is_browse_only
from broker.machine.requests.refusals import (
    Refusal,
    exclusive_use,
    not_implemented,
    not_on_stream,
    reused_tag,
    too_much,
    unknown_tag,
)
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    NUMBER,
    Channel,
    Consumer,
    Held,
    Message,
    Queue,
    State,
    ready_count,
    rehash,
)
from broker.machine.tally import count_get


def on_consume(state: State, channel: Channel, command: Consume) -> int:
    _, _, _, name, tag, no_local, no_ack, exclusive, nowait, arguments, prefetch = command
    queue = reused_tag(tag) if tag in channel.consumers else accessible_queue(channel, name)
    if isinstance(queue, Refusal):
        return refuse(state, channel, CONSUME, queue)
    browsing = browses(queue, arguments)
    refusal = check_consume(queue, arguments)
    if queue.stream is not None and refusal is None:
        refusal = consume_refusal(state, channel, queue, no_ack, prefetch, arguments)
    if refusal is not None:
        return refuse(state, channel, CONSUME, refusal)
    if queue.exclusive_consumer or (exclusive and (queue.consumers or queue.single_active)):
        refusal = exclusive_use(name, queue.vhost.name)
    elif len(channel.consumers) >= CHANNEL_CONSUMERS_MAX:
        refusal = too_much(
            "consumers on this channel", len(channel.consumers) + 1, CHANNEL_CONSUMERS_MAX,
            "open another channel",
        )  # fmt: skip
    elif len(queue.consumers) >= QUEUE_CONSUMERS_MAX:
        refusal = too_much(
            f"consumers of queue '{name}'", len(queue.consumers) + 1, QUEUE_CONSUMERS_MAX,
            "spread them over several queues",
        )  # fmt: skip
    if refusal is not None:
        return refuse(state, channel, CONSUME, refusal)
    prefetch = min(max(prefetch, 0), CHANNEL_HELD_MAX)
    limit = NO_ACK_HELD_MAX if no_ack else prefetch or CONSUMER_HELD_MAX
    given = arguments.get("x-priority")
    priority = given if isinstance(given, int) else 0
    consumer = Consumer(channel, queue, tag, no_ack, no_local, exclusive, prefetch, limit, priority)
    channel.consumers[tag] = consumer
    queue.consumers[(*channel.key, tag)] = consumer
    queue.exclusive_consumer = exclusive
    unlease(state, queue)
    if queue.stream is not None or browsing:
        open_reader(state, consumer, arguments)
    state.add(consumer_element(consumer))
    if not nowait:
        reply(state, channel, "basic.consume-ok", (tag,), False)
    offer(consumer)
    dispatch(state, queue)
    return OK


def on_cancel(state: State, channel: Channel, command: Cancel) -> int:
    """Cancelling an unknown consumer succeeds: its queue may have been deleted meanwhile."""
    _, _, _, tag, nowait = command
    consumer = channel.consumers.get(tag)
    if consumer is not None:
        queue = consumer.queue
        remove_consumer(state, consumer)
        if queue.auto_delete and not queue.consumers:
            delete_queue(state, queue)
    if not nowait:
        reply(state, channel, "basic.cancel-ok", (tag,), False)
    if consumer is not None:
        resume_service(state, consumer.queue)
    return OK


def on_get(state: State, channel: Channel, command: Get) -> int:
    """A get does not depend on credit, as in AMQP. It finds nothing where more has expired than one
    position may drop."""
    _, conn, chan, name, no_ack = command
    queue = accessible_queue(channel, name)
    if isinstance(queue, Refusal):
        return refuse(state, channel, GET, queue)
    if queue.stream is not None:
        refusal = not_on_stream("basic.get not supported by stream queues", name, queue.vhost.name)
        return refuse(state, channel, GET, refusal)
    if is_browse_only(queue):
        why = "basic.get takes, and this queue is browsed only: consume from"
        return refuse(state, channel, GET, not_on_stream(why, name, queue.vhost.name))
    held_by_tag = channel.unsent if no_ack else channel.unacked
    if len(held_by_tag) >= 2 * CHANNEL_HELD_MAX:
        return refuse(state, channel, GET, _holds_too_much(len(held_by_tag) + 1))
    tallies = queue.tally, channel.tally, channel.total
    mark_used(state, queue)
    if queue.expiring:
        expire(state, queue, EXPIRED_AT_ONCE_MAX)
    groups = queue.groups
    found: tuple[int, Message, bool] | None = None
    if groups is not None:  # messages of groups that others hold wait for their holders
        expire_next(state, queue, groups, None, EXPIRED_AT_ONCE_MAX)
        if not next_has_expired(state, queue, groups, None):
            found = take_of_group(state, queue, groups, None)
    elif ready_count(queue) and not has_expired(state, queue):
        found = take(state, queue)
    if found is None:
        count_get(tallies, False, no_ack, False)
        if channel.local:
            state.effects.append(GetEmpty(conn, chan))
        return OK
    seq, message, redelivered = found
    content = message[CONTENT_HASH]
    tag = channel.next_tag
    channel.next_tag = tag + 1
    held: Held = (queue, seq, message, None, redelivered)
    held_by_tag[tag] = held
    queue.unacked += 1
    queue.unacked_bytes += len(message[BODY])
    note_held(state, queue, message)
    if queue.last_values is not None:
        hold_last_value(state, queue, queue.last_values, seq, message)
    count_get(tallies, True, no_ack, redelivered)
    what = GOT | FLAG if redelivered else GOT
    state.moves.append(
        row(what, state.position & INDEX_MASK, queue.mark, seq, channel.mark, content)
    )
    element = held_element(content, queue.number, seq, channel.salt, tag + tag + redelivered)
    state.add(element + channel.salt)
    if channel.local:
        _, _, exchange, key, _, _, _, _, body = message
        properties = properties_for(queue, seq, message)
        count = ready_count(queue)
        state.effects.append(
            GetOk(conn, chan, tag, redelivered, exchange, key, count, properties, body, no_ack)
        )
    return OK


def _holds_too_much(count: int) -> Refusal:
    return too_much(
        "messages that this channel holds", count, 2 * CHANNEL_HELD_MAX,
        "settle some of them first, or use another channel",
    )  # fmt: skip


def on_qos(state: State, channel: Channel, command: Qos) -> int:
    _, _, _, count, global_ = command
    if global_:
        state.remove(channel_element(channel))
        channel.limit = min(count, CHANNEL_HELD_MAX) if count > 0 else CHANNEL_HELD_MAX
        state.add(channel_element(channel))
    reply(state, channel, "basic.qos-ok", (), False)
    if global_:
        offer_all(state, channel)
    return OK


def on_ack(state: State, channel: Channel, command: Ack) -> int:
    _, _, _, tag, multiple = command
    if multiple:
        return _settle(state, channel, ACK, tag, True, ACKED)
    held = channel.unacked.pop(tag, None)
    if held is None:
        return refuse(state, channel, ACK, unknown_tag(tag))
    queue, _, message, consumer, _ = held
    queue.tally.ack += 1
    channel.tally.ack += 1
    channel.total.ack += 1
    was_full = channel.outstanding >= channel.limit
    release(state, channel, tag, held, rehash(message), ACKED, tag)
    if was_full:
        offer_all(state, channel)
    elif consumer is not None and not consumer.waiting:
        offer(consumer)
        dispatch(state, consumer.queue)
    return OK


def on_nack(state: State, channel: Channel, command: Nack) -> int:
    _, _, _, tag, multiple, wants_requeue = command
    return _settle(state, channel, NACK, tag, multiple, NACKED if wants_requeue else REJECTED)


def on_recover(state: State, channel: Channel, command: Recover) -> int:
    _, _, _, wants_requeue = command
    if not wants_requeue:
        return refuse(state, channel, RECOVER, not_implemented("requeue=false"))
    reply(state, channel, "basic.recover-ok", (), False)
    settle_tags(state, channel, list(channel.unacked), TAKEN_BACK)
    return OK


def on_sent(state: State, channel: Channel, command: Sent) -> int:
    """Settles the channel's no-ack deliveries up to the tag; a late report settles nothing."""
    _, _, _, last = command
    unsent = channel.unsent
    was_full = len(unsent) >= CHANNEL_HELD_MAX
    credited: dict[str, Consumer] = {}
    tags = []
    for tag in unsent:
        if tag > last:
            break
        tags.append(tag)
    at = repeat(state.position)
    for _, consumer, _ in release_all(state, channel, unsent, zip(at, tags, strict=False), SENT):
        if consumer is not None and not consumer.waiting:
            _note_credit(credited, consumer)
    for consumer in credited.values():
        offer(consumer)
        dispatch(state, consumer.queue)
    if was_full:
        offer_all(state, channel)
    return OK


def _note_credit(credited: dict[str, Consumer], consumer: Consumer | None) -> None:
    """Note a consumer that gained credit, by its tag. A cancelled one has its tag no more: another
    may have it, and a snapshot does not say which tag it was."""
    if consumer is not None and consumer.active:
        credited[consumer.tag] = consumer


def serve_others(state: State) -> None:
    """Serve the queues of which this command freed a group, which any consumer may take now, and
    those that are late."""
    freed, state.freed = state.freed, {}
    for queue in freed.values():
        dispatch(state, queue)
    if state.late:
        serve_late(state)


def _settle(state: State, channel: Channel, kind: int, tag: int, multiple: bool, what: int) -> int:
    tags = tags_up_to(channel, tag, multiple)
    if tags is None:
        return refuse(state, channel, kind, unknown_tag(tag))
    settle_tags(state, channel, tags, what)
    return OK


def settle_tags(state: State, channel: Channel, tags: list[int], what: int) -> None:
    """Settle all the tags, then offer to the consumers that gained credit, in the order of the
    tags, or in turn if the credit is their channel's. `what` is the move, and so whether messages
    are requeued or leave."""
    was_full = channel.outstanding >= channel.limit
    credited: dict[str, Consumer] = {}
    affected: dict[int, Queue] = {}
    if is_return(what) or what == REJECTED:
        for tag in tags:
            held = channel.unacked.pop(tag)
            queue, _, message, consumer, _ = held
            if what != REJECTED:
                requeue(state, channel, tag, held, what)
            else:
                release(state, channel, tag, held, rehash(message), what, tag)
                if message[NUMBER]:
                    dead_letter(state, queue, message, "rejected")
            affected[queue.number] = queue
            _note_credit(credited, consumer)
    else:
        settled = zip(repeat(state.position), tags, strict=False)
        for queue, consumer, count in release_all(state, channel, channel.unacked, settled, what):
            queue.tally.ack += count
            affected[queue.number] = queue
            _note_credit(credited, consumer)
        channel.tally.ack += len(tags)
        channel.total.ack += len(tags)
    if was_full:
        offer_all(state, channel)
    else:
        for consumer in credited.values():
            offer(consumer)
    for queue in affected.values():
        dispatch(state, queue)
