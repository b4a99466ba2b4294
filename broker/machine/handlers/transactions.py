"""tx.commit: all settlements and all publishes at one position, or an error and none of them.

Settlements come first: a message that goes back takes its old place before a newer one, published
by the same transaction, is delivered.
"""

from broker.machine.commands import (
    MANDATORY,
    OK,
    TX_ACK,
    TX_COMMIT,
    TX_DISCARD,
    TX_REQUEUE,
    TxCommit,
    TxSettle,
)
from broker.machine.handlers.connections import refuse, reply
from broker.machine.handlers.consumers import settle_tags
from broker.machine.handlers.publish import (
    count_publish,
    is_durable,
    return_unroutable,
    ttl_of,
    way_or_refusal,
)
from broker.machine.limits import COMMIT_WORK_MAX, FOUND_AGAIN_PER_WORK
from broker.machine.move_log import BY_TX, REJECTED, TX_ACKED, TX_REQUEUED
from broker.machine.publishing.copies import may_name_copies
from broker.machine.publishing.entering import Envelope, publish_to, turn_of
from broker.machine.publishing.producers import attempt_of, may_be_numbered, not_in_a_transaction
from broker.machine.requests.refusals import Refusal, too_much, unknown_tag
from broker.machine.state import Channel, Held, Route, State

_MOVES = {TX_ACK: TX_ACKED, TX_DISCARD: REJECTED, TX_REQUEUE: TX_REQUEUED}


def on_tx_commit(state: State, channel: Channel, command: TxCommit) -> int:
    _, _, _, publishes, settlements = command
    vhost = channel.connection.vhost
    routes: list[tuple[Route, int, bytes]] = []
    found: dict[tuple[str, str], bool] = {}
    work = len(publishes)
    for index, (exchange, key, flags, properties, _) in enumerate(publishes):
        if (
            may_be_numbered(properties)
            and attempt_of(channel, exchange, key, properties, b"") is not None
        ):
            return refuse(state, channel, TX_COMMIT, not_in_a_transaction())
        ttl_us, has_copies = ttl_of(properties), may_name_copies(properties)
        turn = turn_of(state, index)
        envelope = Envelope(exchange, key, flags, properties, ttl_us, has_copies, turn)
        way = way_or_refusal(vhost, envelope)
        if isinstance(way, Refusal):
            return refuse(state, channel, TX_COMMIT, way)
        route, shown = way
        routes.append((route, ttl_us, shown))
        work += len(route.queues) + sum([queue.window is not None for queue in route.queues])
        if has_copies or (exchange, key) not in found:
            found[exchange, key] = True
            work += route.work
        elif not route.lasts:
            work += route.work // FOUND_AGAIN_PER_WORK
        if work > COMMIT_WORK_MAX:  # finding the other routes would cost the work refused here
            return refuse(state, channel, TX_COMMIT, _too_large(work))
    named = _named_tags(channel, settlements)
    if isinstance(named, Refusal):
        return refuse(state, channel, TX_COMMIT, named)
    work += sum([len(tags) for tags, _ in named])
    if work > COMMIT_WORK_MAX:
        return refuse(state, channel, TX_COMMIT, _too_large(work))
    # Everything is checked; from here on nothing can fail.
    durable = False
    for tags, action in named:
        durable = durable or any(_is_durable(channel.unacked[tag]) for tag in tags)
        settle_tags(state, channel, tags, _MOVES.get(action, REJECTED))
    for publish, (route, ttl_us, properties) in zip(publishes, routes, strict=True):
        exchange, key, flags, _, body = publish
        publish_to(state, route, flags, ttl_us, properties, body, BY_TX, channel.mark, 0)
        count_publish(channel, route, flags, False)
        durable = durable or is_durable(route, flags)
        if channel.local and not route.queues and flags & MANDATORY:
            return_unroutable(state, channel, exchange, key, properties, body)
    reply(state, channel, "tx.commit-ok", (), durable)
    return OK


def _too_large(work: int) -> Refusal:
    return too_much(
        "messages that this transaction puts into queues or settles, and routes to find",
        work, COMMIT_WORK_MAX, "nothing of it was done: commit fewer at a time",
    )  # fmt: skip


def _is_durable(held: Held) -> bool:
    queue, *_ = held
    return queue.durable and not queue.deleted


def _named_tags(
    channel: Channel, settlements: tuple[TxSettle, ...]
) -> list[tuple[list[int], int]] | Refusal:
    """The delivery tags of each settlement, each tag once: earlier ones count as settled."""
    named: list[tuple[list[int], int]] = []
    gone: dict[int, bool] = {}
    unacked = channel.unacked
    rest = iter(unacked)  # tags it has yielded are gone: each tag is walked over once
    for tag, multiple, action in settlements:
        if (tag not in unacked or tag in gone) and not (multiple and tag == 0):
            return unknown_tag(tag)
        tags = [tag]
        if multiple:
            tags = []
            for one in rest:
                if one not in gone:
                    tags.append(one)
                if one == tag:
                    break
        gone.update(dict.fromkeys(tags, True))
        named.append((tags, action))
    return named
