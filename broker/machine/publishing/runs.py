"""Publishes in runs: many at once from one channel to one queue, as a busy producer sends them.

A run is no other way to be published: state, moves and effects are those of the same publishes one
at a time (`tests/unit/machine/publishing/test_runs.py`), so nobody has to agree on what makes one.
Decision: docs/decisions/0083-a-busy-member-works-in-runs.md.
"""

from collections.abc import Sequence
from typing import cast

from broker.machine.commands import PERSISTENT, Command, Publish
from broker.machine.digest import MASK, body_hash, message_hash, ready_element
from broker.machine.effects import Confirm
from broker.machine.move_log import (
    BY_CLIENT,
    ENQUEUED,
    FLAG,
    INDEX_MASK,
    MARK_MASK,
    PASSED,
    two_rows,
)
from broker.machine.queueing.dispatch import DeliveryRun, next_consumer, takes_runs
from broker.machine.state import NO_TTL, Channel, Route, State

_new = tuple.__new__  # half the cost of calling the class


def apply_run(
    state: State,
    position: int,
    session: int,
    time_us: int,
    commands: Sequence[Command],
    begin: int,
) -> int:
    """Apply publishes of these commands from `begin` on, at positions that rise by one, as
    `Machine.apply` does, in less time. Return how many; 0: none. All have the outcome OK, and as
    many effects each. Where it raises, `state.position` is that of the command."""
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
    """Whether nothing goes on at each position beside its command."""
    return not (
        state.ending or state.leaving or state.stale or state.trimming
        or state.dead_letters or state.late_letters or state.poison or state.reading
    )  # fmt: skip


def _publish_run(state: State, channel: Channel, commands: Sequence[Command], begin: int) -> int:
    """Of publishes in which nothing happens but that all wait in one queue, or all go to its only
    consumer with credit: what they have in common is looked up and counted once."""
    _, conn, chan, first_no, exchange, key, flags, properties, _ = cast("Publish", commands[begin])
    route = channel.connection.vhost.routes.get((exchange, key))
    if route is None or flags & ~PERSISTENT or len(route.queues) != 1 or not _is_plain(properties):
        return 0
    queue = route.queues[0]
    if not takes_runs(queue):
        return 0
    consumer = next_consumer(queue) if queue.service else None
    run = DeliveryRun(queue, consumer) if consumer is not None else None
    to = consumer.channel.mark if consumer is not None else 0
    alike = _alike(commands, begin, len(commands) if run is None else begin + run.room)
    exchange, key, mark, created_us = route.exchange, route.key, channel.mark, state.horizon_us
    flag = FLAG if flags else 0
    published, passed, entered = BY_CLIENT | flag, PASSED | flag, ENQUEUED | flag
    shows, durable = channel.local and first_no > 0, route.durable and flags != 0
    moves, ready, effects = state.moves, queue.ready, state.effects
    first, seq = state.next_message, queue.next_seq
    elements = size = 0
    for number, command in enumerate(alike, first):
        _, _, _, publish_no, _, _, _, properties, body = command
        at = state.position & INDEX_MASK
        hashed = body_hash(body)
        content = message_hash(
            number, exchange, key, flags, created_us, NO_TTL, properties, body, hashed
        )
        message = content, number, exchange, key, flags, created_us, NO_TTL, properties, body
        came = published, at, publish_no & MARK_MASK, number, mark, hashed
        if run is not None:
            moves.append(two_rows(*came, passed, at, queue.mark, seq, to, content))
            run.add(state, seq, message, False)
        else:
            low = number & MARK_MASK
            moves.append(two_rows(*came, entered, at, queue.mark, seq, low, content))
            if (full := ready.append(message, len(body))) is not None:
                state.full(full)
            elements += ready_element(content, queue.number, seq, False)
            size += len(body)
        if shows:
            effects.append(_new(Confirm, (conn, chan, publish_no, durable, True)))
        seq += 1
        state.position += 1
    count = len(alike)
    state.position -= 1
    if run is not None:
        run.end(state, count, 0)
    queue.ready_sum = (queue.ready_sum + elements) & MASK
    queue.ready_bytes += size
    state.add(elements + queue.salt * count)
    state.next_message, queue.next_seq = first + count, seq
    _count(channel, route, count, count if first_no else 0)
    return count


def _alike(commands: Sequence[Command], begin: int, end: int) -> list[Publish]:
    """The publishes from `begin` on, up to `end`, that differ from the first one in number,
    properties and body alone."""
    first = cast("Publish", commands[begin])
    channel, address, confirms = first[:3], first[4:7], first[3] > 0
    alike: list[Publish] = []
    for one in cast("Sequence[Publish]", commands[begin:end]):
        if one[:3] != channel or one[4:7] != address:
            break
        if (one[3] > 0) != confirms or not _is_plain(one[7]):
            break
        alike.append(one)
    return alike


def _is_plain(properties: bytes) -> bool:
    """Whether none of them means anything here: there are neither headers nor an expiration."""
    return not properties or not properties[0] & 0x21


def _count(channel: Channel, route: Route, count: int, confirmed: int) -> None:
    for tally in (channel.tally, channel.total):
        tally.publish += count
        tally.confirm += confirmed
    channel.total.routed += count
    for tally in (route.queues[0].tally, route.source.tally):
        tally.publish += count
    route.source.tally.routed += count
