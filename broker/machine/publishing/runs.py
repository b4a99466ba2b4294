"""Publishes and acks in runs: applies many of one channel at once, as busy programs send them.

A run has the same result as its commands applied one at a time: the same state, moves and effects
(`tests/unit/machine/publishing/test_runs.py`), so members need not agree on what makes a run.
Decision: docs/decisions/0083-a-busy-member-works-in-runs.md.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import cast

from broker.machine.commands import ACK, PERSISTENT, PUBLISH, Ack, Command, Publish
from broker.machine.digest import MASK, bytes_hash, content_of, head, ready_elements
from broker.machine.effects import Confirm
from broker.machine.move_log import (
    ACKED,
    BY_CLIENT,
    ENQUEUED,
    FLAG,
    INDEX_MASK,
    MARK_MASK,
    PASSED,
    two_rows,
)
from broker.machine.queueing.dispatch import deliver_all, next_consumer, room_of
from broker.machine.queueing.enqueue import is_plain, takes_runs
from broker.machine.queueing.settlement import release_all, tags_up_to
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    NO_TTL,
    Channel,
    Consumer,
    Held,
    Message,
    Queue,
    Route,
    State,
)

_new = tuple.__new__  # half the cost of calling the class
_PUBLISH_NO, _CONTENT = itemgetter(3), itemgetter(CONTENT_HASH)


def apply_publishes(
    state: State,
    position: int,
    session: int,
    time_us: int,
    commands: Sequence[Command],
    begin: int,
) -> int:
    """Apply publishes of these commands from `begin` on, at positions that rise by one, as
    `Machine.apply` does, in less time. Return how many; 0: none. All have the outcome OK, and
    equally many effects. On an exception, `state.position` is that of the failing command."""
    if not is_at_rest(state):
        return 0
    _, conn, chan, *_ = cast("Publish", commands[begin])
    channel = state.channels.get((session, conn, chan))
    if channel is None or not channel.open:
        return 0
    state.position = position
    state.time_us = time_us
    return _publish_run(state, channel, commands, begin)


def is_at_rest(state: State) -> bool:
    """Whether a position has no work besides its command."""
    return not (
        state.ending or state.leaving or state.stale or state.trimming
        or state.dead_letters or state.late_letters or state.late or state.poison or state.reading
    )  # fmt: skip


def _publish_run(state: State, channel: Channel, commands: Sequence[Command], begin: int) -> int:
    """Apply publishes that do nothing but wait in one queue, or go to its only consumer with
    credit: their common data is looked up and counted once."""
    _, _, _, first_no, exchange, key, flags, properties, _ = cast("Publish", commands[begin])
    route = channel.connection.vhost.routes.get((exchange, key))
    if route is None or flags & ~PERSISTENT or len(route.queues) != 1 or not _is_plain(properties):
        return 0
    queue = route.queues[0]
    if not takes_runs(queue):
        return 0
    consumer = next_consumer(queue) if queue.service else None
    end = len(commands) if consumer is None else begin + room_of(consumer)
    first, shown = queue.next_seq, len(state.effects)
    to = consumer.channel.mark if consumer is not None else None
    messages = _enter(state, channel, route, to, commands[begin:end])
    count = len(messages)
    queue.next_seq += count
    state.add(queue.salt * count)
    if consumer is not None:
        deliver_all(state, queue, consumer, first, messages)
    else:
        _enqueue_all(state, queue, first, messages)
    if channel.local and first_no > 0:
        durable = route.durable and flags != 0
        _confirm_all(state, channel, commands[begin : begin + count], durable, shown)
    _count(channel, route, count, count if first_no else 0)
    return count


def _enter(
    state: State, channel: Channel, route: Route, to: int | None, commands: Sequence[Command]
) -> list[Message]:
    """Return the messages of publishes that differ from the first only in number, properties and
    body; record their moves, as waiting or delivered to the channel `to`."""
    _, conn, chan, first_no, name, routing, flags, properties, _ = cast("Publish", commands[0])
    queue, exchange, key, created_us = route.queues[0], route.exchange, route.key, state.horizon_us
    address, confirms, size = (exchange + key).encode(), first_no > 0, len(exchange)
    text, flag, of = address + properties, FLAG if flags else 0, channel.mark
    published, entered = BY_CLIENT | flag, (ENQUEUED if to is None else PASSED) | flag
    mark, seq, position, number = queue.mark, queue.next_seq, state.position, state.next_message
    messages: list[Message] = []
    rows: list[bytes] = []
    try:
        for one in cast("Sequence[Publish]", commands):
            if one[0] != PUBLISH:
                break
            _, on, by, publish_no, other, another, bits, given, body = one
            if by != chan or on != conn or another != routing or other != name or bits != flags:
                break
            if given != properties:
                if not _is_plain(given):
                    break
                properties, text = given, address + given
            if (publish_no > 0) != confirms:
                break
            at, hashed, low = position & INDEX_MASK, bytes_hash(body), publish_no & MARK_MASK
            about = head(number, created_us, NO_TTL, flags, size, len(properties), len(body))
            content = content_of(about + text, hashed)
            messages.append(
                (content, number, exchange, key, flags, created_us, NO_TTL, properties, body)
            )
            rows.append(
                two_rows(
                    published, at, low, number, of, hashed,
                    entered, at, mark, seq, number & MARK_MASK if to is None else to, content,
                )
            )  # fmt: skip
            number += 1
            seq += 1
            position += 1
    except Exception:
        state.position = position
        raise
    state.position, state.next_message = position - 1, number
    state.moves += rows
    return messages


def _enqueue_all(state: State, queue: Queue, first: int, messages: Sequence[Message]) -> None:
    contents, seqs = map(_CONTENT, messages), range(first, first + len(messages))
    elements = ready_elements(contents, queue.number, seqs, False)
    sizes = [len(message[BODY]) for message in messages]
    queue.ready_sum = (queue.ready_sum + elements) & MASK
    queue.ready_bytes += sum(sizes)
    state.add(elements)
    for full in queue.ready.append_all(messages, sizes):
        state.full(full)


def _confirm_all(
    state: State, channel: Channel, publishes: Sequence[Command], durable: bool, shown: int
) -> None:
    """Behind the delivery of each, where effects from `shown` on are these."""
    _, conn, chan = channel.key
    numbers = map(_PUBLISH_NO, publishes)
    confirms = [_new(Confirm, (conn, chan, number, durable, True)) for number in numbers]
    effects = state.effects
    if deliveries := effects[shown:]:
        pairs = zip(deliveries, confirms, strict=True)
        effects[shown:] = [one for pair in pairs for one in pair]
    else:
        effects += confirms


def _is_plain(properties: bytes) -> bool:
    """Whether no property has a meaning here: there are neither headers nor an expiration."""
    return not properties or not properties[0] & 0x21


def _count(channel: Channel, route: Route, count: int, confirmed: int) -> None:
    for tally in (channel.tally, channel.total):
        tally.publish += count
        tally.confirm += confirmed
    channel.total.routed += count
    for tally in (route.queues[0].tally, route.source.tally):
        tally.publish += count
    route.source.tally.routed += count


def apply_acks(
    state: State,
    position: int,
    session: int,
    time_us: int,
    commands: Sequence[Command],
    begin: int,
) -> int:
    """Apply acks of these commands from `begin` on, at positions that rise by one, as
    `Machine.apply` does, in less time: acks after which nothing can be delivered, because their
    consumers had credit before and nothing waits in their queues. Return how many; 0: none. All
    have the outcome OK, and no effects. On an exception, `state.position` is that of the failing
    command."""
    first = cast("Ack", commands[begin])
    channel = state.channels.get((session, first[1], first[2]))
    if channel is None or not channel.open or not is_at_rest(state):
        return 0
    if channel.outstanding >= channel.limit:
        return 0  # its consumers would take turns
    state.time_us = time_us
    settled = _in_a_run(channel, islice(cast("Sequence[Ack]", commands), begin, None), position)
    acked = 0
    for queue, _, count in release_all(state, channel, channel.unacked, settled, ACKED):
        queue.tally.ack += count
        acked += count
    channel.tally.ack += acked
    channel.total.ack += acked
    return state.position - position + 1 if acked else 0


def _in_a_run(channel: Channel, acks: Iterator[Ack], position: int) -> Iterator[tuple[int, int]]:
    """Yield positions and settled tags, as far as the run goes. A yielded tag must be gone from the
    channel before the next one is requested."""
    conn, chan, unacked = channel.key[1], channel.key[2], channel.unacked
    queue: Queue | None = None
    consumer: Consumer | None = None
    for command in acks:
        if command[0] != ACK:
            return
        _, of_conn, of_chan, tag, multiple = command
        held = unacked.get(tag)
        if held is None or of_chan != chan or of_conn != conn:
            return
        if multiple and next(iter(unacked)) != tag:
            tags = tags_up_to(channel, tag, True) or []
            if not all(_changes_nothing(unacked[one]) for one in tags):
                return
            for one in tags:
                yield position, one
        else:
            if held[0] is not queue or held[3] is not consumer:
                if not _changes_nothing(held):
                    return
                queue, consumer = held[0], held[3]
            yield position, tag
        position += 1


def _changes_nothing(held: Held) -> bool:
    """Whether settling this delivery lets nothing be delivered."""
    queue, _, _, consumer, _ = held
    has_credit = consumer is None or consumer.waiting
    return has_credit and not (queue.ready or queue.returned) and is_plain(queue)
