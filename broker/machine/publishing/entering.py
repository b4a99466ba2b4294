"""Puts a message into the queues of a route: for a client, when it is due, or as a dead letter."""

from typing import NamedTuple

from broker.machine.commands import PERSISTENT
from broker.machine.digest import MASK, body_hash, message_hash
from broker.machine.move_log import BY_DELAY, FLAG, INDEX_MASK, MARK_MASK, row
from broker.machine.publishing.copies import copies_of
from broker.machine.publishing.routing import find_route
from broker.machine.queueing.enqueue import (
    die_refused,
    enqueue,
    enqueue_in_group,
    enqueue_last,
    enqueue_once,
)
from broker.machine.queueing.streams import enter
from broker.machine.requests.message_keys import key_of_repeat
from broker.machine.requests.refusals import Refusal
from broker.machine.state import Exchange, Route, State, Vhost
from broker.waiting.bodies import Body


def turn_of(state: State, index: int = 0) -> int:
    """Return a number that differs from message to message, for exchanges that choose at random;
    `index` is the message's index in a transaction."""
    return (state.position * 1_000_003 + state.next_message * 8191 + index) & MASK


def publish_to(
    state: State,
    route: Route,
    flags: int,
    ttl_us: int,
    properties: bytes,
    body: Body,
    what: int,
    mark: int,
    publish_no: int,
) -> bool:
    """Put one message tuple, which all queues share, into the route's queues; False if one refused.

    `what`, `mark` and `publish_no` go into the recorded move: how it was published, by which
    channel, and its number there.
    """
    exchange, key, queues, _, _, _, source, _ = route
    source.tally.publish += 1
    source.tally.routed += len(queues)
    persistent = flags & PERSISTENT
    if persistent:
        what |= FLAG
    hashed = body_hash(body)
    number = state.next_message if queues else 0
    state.moves.append(
        row(what, state.position & INDEX_MASK, publish_no & MARK_MASK, number, mark, hashed)
    )
    if not queues:
        return True
    state.next_message = number + 1
    created_us = state.horizon_us
    content = message_hash(
        number, exchange, key, persistent, created_us, ttl_us, properties, body, hashed
    )
    message = (content, number, exchange, key, persistent, created_us, ttl_us, properties, body)
    accepted = True
    known_by: bytes | None = None
    for queue in queues:
        if queue.takes_all:
            entered = enqueue(state, queue, message)
        elif queue.last_values is not None:
            entered = enqueue_last(state, queue, queue.last_values, message)
        elif queue.groups is not None:
            entered = enqueue_in_group(state, queue, queue.groups, message)
        elif queue.window is None:
            assert queue.stream is not None
            enter(state, queue, queue.stream, message)
            entered = True
        else:
            known_by = key_of_repeat(properties) if known_by is None else known_by
            entered = enqueue_once(state, queue, queue.window, known_by, message)
        if not entered:
            accepted = False
            if what & ~FLAG == BY_DELAY:
                die_refused(state, queue, message)
    return accepted


class Envelope(NamedTuple):
    """The parts of a message that decide its admission and its route."""

    exchange: str
    key: str
    flags: int
    properties: bytes
    ttl_us: int
    named: bool
    """Whether its properties may name further keys (`may_name_copies`)."""
    turn: int


def find_way(vhost: Vhost, exchange: Exchange, envelope: Envelope) -> tuple[Route, bytes] | Refusal:
    """Return the route by all keys of a message, and its properties as others may see them."""
    _, key, _, properties, _, named, turn = envelope
    if not named:
        route = find_route(vhost, exchange, (key,), properties, turn)
        return route if isinstance(route, Refusal) else (route, properties)
    copies = copies_of(properties)
    if isinstance(copies, Refusal):
        return copies
    keys = (key, *copies.keys, *copies.blind)
    route = find_route(vhost, exchange, keys, properties, turn)
    if isinstance(route, Refusal):
        return route
    # A delayed message keeps the names of all its keys: it is routed by them when it is due.
    waits = route.queues and all(queue.delays is not None for queue in route.queues)
    return route, properties if waits else copies.properties
