"""Recomputes the sums over a queue's messages, and checks the invariants of queues."""

from collections.abc import Iterable, Sequence
from itertools import count, islice, pairwise
from operator import itemgetter
from typing import TypeAlias

from broker.machine.clock.cluster_time import lease_end, look_us, time_to_live
from broker.machine.digest import MASK, elements_in_a_row, ready_element, ready_elements
from broker.machine.queueing.dispatch import has_room
from broker.machine.queueing.groups import group_key, kept_element
from broker.machine.queueing.last_values import last_value_key, superseded_element
from broker.machine.queueing.queue import counts_returns, is_in_time, returns_element, seq_at
from broker.machine.queueing.queue_limits import is_over
from broker.machine.queueing.streams import check as check_stream
from broker.machine.queueing.streams import check_readers
from broker.machine.queueing.windows import check as check_window
from broker.machine.schedule import NEVER_US
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    DELAYED_MESSAGE,
    NO_TTL,
    NUMBER,
    TTL_US,
    Consumer,
    Message,
    Queue,
    State,
    Vhost,
    ready_count,
    rehash_wholly,
)
from broker.waiting.groups import KEPT_GROUPS_MAX, Groups
from broker.waiting.last_values import LastValues

HeldOfQueue: TypeAlias = dict[int, list[tuple[int, Message]]]
"""By queue: numbers and messages that channels hold."""
_PART = 4096
"""The number of messages summed up at once: about a millisecond."""


def ready_sum(queue: Queue, fresh: bool) -> int:
    """The sum over all ready messages of the queue; from their bytes unless just hashed."""
    first = queue.next_seq - len(queue.ready)
    total = returned_sum(queue, fresh) + backlog_sum(queue, queue.ready, first, fresh)
    return total & MASK


def returned_sum(queue: Queue, fresh: bool) -> int:
    """The sum over messages that have their own places."""
    number, total = queue.number, 0
    for place, message in queue.returned.items():
        seq, redelivered = seq_at(queue, place)
        content = message[CONTENT_HASH] if fresh else rehash_wholly(message)
        total += ready_element(content, number, seq, redelivered)
    return total


def backlog_sum(queue: Queue, messages: Iterable[Message], first: int, fresh: bool) -> int:
    """The sum over messages that were never taken, the first of them at this place."""
    number, total = queue.number, 0
    recovered = max(0, queue.recovered_seq - first)  # the number of first ones
    ready = iter(messages)
    # In parts: each is summed up at once, with the interpreter's lock held.
    while part := list(islice(ready, min(recovered, _PART) or _PART)):
        contents = map(itemgetter(CONTENT_HASH) if fresh else rehash_wholly, part)
        total += ready_elements(contents, number, count(first), recovered > 0)
        first += len(part)
        recovered = max(0, recovered - len(part))
    return total


def contents_sum(queue: Queue, contents: Sequence[int], first: int) -> int:
    """The same from the hashes of their contents."""
    recovered = max(0, queue.recovered_seq - first)
    again = elements_in_a_row(contents[:recovered], queue.number, first, True)
    return again + elements_in_a_row(contents[recovered:], queue.number, first + recovered, False)


def returns_sum(queue: Queue) -> int:
    return sum(returns_element(queue, seq, count) for seq, count in queue.returns.items()) & MASK


def superseded_sum(queue: Queue, last: LastValues) -> int:
    return sum(superseded_element(queue, seq) for seq in last.superseded) & MASK


def kept_sum(groups: Groups[Consumer]) -> int:
    return sum(kept_element(one, key) for key, one in groups.kept.items()) & MASK


def _check_last_values(queue: Queue, last: LastValues, held: dict[int, Message]) -> None:
    """`held`: the held messages of this queue, by their numbers."""
    assert last.elements == superseded_sum(queue, last)
    assert all(seq in held for seq in last.superseded), "only what is held can be superseded"
    live = {seq: one for seq, one in held.items() if seq not in last.superseded}
    waiting = {seq_at(queue, place)[0]: one for place, one in queue.returned.items()}
    for found, there in ((last.waiting, waiting), (last.held, live)):
        keys = {last_value_key(last, message): seq for seq, message in there.items()}
        keys.pop(b"", None)
        keyless = sum(not last_value_key(last, message) for message in there.values())
        assert found == keys, "each key leads to its newest message"
        assert len(keys) + keyless == len(there), "no two have the same key"
    assert not last.waiting.keys() & last.held.keys(), "one is live of each key"


def _check_groups(state: State, queue: Queue, groups: Groups[Consumer]) -> None:
    """All knowledge of groups follows from waiting messages, their holders, and kept groups."""
    waiting: dict[bytes, list[int]] = {}
    for place, message in queue.returned.items():
        waiting.setdefault(group_key(groups, message), []).append(place)
    free = waiting.pop(b"", []) if groups.keeps else []  # each separately
    holders: dict[bytes, list[Consumer | None]] = {}
    for channel in state.channels.values():
        for held in (*channel.unacked.values(), *channel.unsent.values()):
            if held[0] is queue and held[2][NUMBER]:
                holders.setdefault(group_key(groups, held[2]), []).append(held[3])
    if groups.keeps:
        holders.pop(b"", None)
    assert sorted(groups.by_key) == sorted({**waiting, **holders, **groups.kept})
    assert groups.keeps or not groups.kept
    assert len(groups.kept) <= KEPT_GROUPS_MAX
    by_consumer: dict[Consumer, list[bytes]] = {}
    for key, consumer in groups.kept.items():
        by_consumer.setdefault(consumer, []).append(key)
        assert queue.consumers.get(_who(consumer)) is consumer, "it is there"
    assert groups.kept_by == by_consumer
    wanted: dict[Consumer, list[int]] = {}
    for key, group in groups.by_key.items():
        held_by = holders.get(key, [])
        assert sorted(group.places) == waiting.get(key, [])
        assert group.held == len(held_by)
        assert (groups.held.get(key) is group) == bool(held_by)
        assert all(one is group.holder for one in held_by), "a group has one holder"
        assert held_by or group.holder is groups.kept.get(key)
        assert group.holder is groups.kept.get(key, group.holder), "and stays with it"
        if group.places and group.holder is None and not held_by:
            free.append(group.places[0])
        elif group.places and group.holder is not None:
            wanted.setdefault(group.holder, []).append(group.places[0])
    assert list(groups.free) == sorted(free)
    assert {one: list(places) for one, places in groups.wanted.items()} == {
        one: sorted(places) for one, places in wanted.items()
    }
    if queue.number in state.late:
        return
    assert not any(one.waiting for one in groups.pending), "who has its turn got it"
    for consumer in queue.consumers.values():
        if consumer.reader is None and consumer.waiting and has_room(consumer.channel, consumer):
            assert groups.next_of(consumer) is None, "credit and a message that it may have"


def check_queue(state: State, queue: Queue, held_of_queue: HeldOfQueue) -> None:
    assert not queue.deleted
    held = held_of_queue.get(queue.number, [])
    size = sum(len(message[BODY]) for _, message in held)
    assert (queue.unacked, queue.unacked_bytes) == (len(held), size), "what is unacked is counted"
    if queue.last_values is not None:
        _check_last_values(queue, queue.last_values, dict(held))
    if queue.groups is not None:
        _check_groups(state, queue, queue.groups)
    special = (queue.last_values, queue.groups, queue.window, queue.stream)
    assert queue.takes_all == all(one is None for one in special)
    assert queue.ready_sum == ready_sum(queue, False), "the queue's own sum is of its messages"
    places = list(queue.returned)
    assert all(one < other for one, other in pairwise(places)), "each has a place of its own"
    assert len(places) == len(queue.returned)
    first = queue.next_seq - len(queue.ready)
    if queue.max_priority < 0:
        assert all(seq < first for seq in queue.returned), "returned messages are the older ones"
    else:
        assert not queue.ready, "a priority queue has one order for all"
    ranks = [consumer.priority for consumer in queue.service]
    assert ranks == sorted(ranks, reverse=True), "consumers of higher priority come first"
    served = [*queue.service, *check_readers(state, queue)]
    assert len(dict.fromkeys(map(_who, served), True)) == len(served)
    for consumer in queue.consumers.values():
        assert consumer.queue is queue
        assert consumer.waiting == (_who(consumer) in map(_who, served))
        assert consumer.reader is not None or queue.stream is None
        takes = consumer.reader is None and queue.groups is None and queue.number not in state.late
        if takes and ready_count(queue) and consumer.waiting:
            channel = consumer.channel
            assert not has_room(channel, consumer), "credit and a ready message"
    assert all(consumer.active for consumer in queue.service)
    waiting = (*queue.ready, *queue.returned.values())
    assert queue.ready_bytes == sum(len(message[BODY]) for message in waiting)
    over = is_over(queue) and queue.overflow == "drop-head"
    assert not over or queue.number in state.trimming, "what is too much is about to be dropped"
    unused = queue.expires_us >= 0 and not queue.consumers
    assert unused == (queue.number in state.leased)
    assert not unused or state.lease_ends.times[queue.number] <= lease_end(queue)
    assert queue.returns_sum == returns_sum(queue)
    check_window(state, queue)
    assert counts_returns(queue) or not queue.returns, "nobody counts"
    if queue.stream is not None:
        check_stream(state, queue, queue.stream)
    else:
        assert queue.timed == sum(message[TTL_US] != NO_TTL for message in waiting)
        mortal = any(time_to_live(queue, message) != NO_TTL for _, message in held)
        assert not mortal or queue.number in state.held_from, "time goes on for what may come back"
    of_queue = queue.ttl_us != NO_TTL or queue.delays is not None
    expiring = queue.timed > 0 or (of_queue and bool(waiting))
    assert expiring == queue.expiring == (queue.number in state.expiring)
    due_us = look_us(state, queue) if expiring else NEVER_US
    assert state.expiry.times.get(queue.number, NEVER_US) <= due_us, "it is looked at in time"
    if queue.owner is not None:
        assert queue.owner.exclusive[queue.name] is queue
        assert state.connections[queue.owner.key] is queue.owner


def check_delays(state: State, vhost: Vhost) -> None:
    delaying = [one.name for one in vhost.exchanges.values() if one.type == DELAYED_MESSAGE]
    assert sorted(vhost.delays) == sorted(delaying), "each that delays has its queue"
    for name, queue in vhost.delays.items():
        assert queue.delays == name
        assert queue.durable == vhost.exchanges[name].durable
        check_queue(state, queue, {})
        assert is_in_time(queue)


def _who(consumer: Consumer) -> tuple[int, int, int, str]:
    return (*consumer.channel.key, consumer.tag)


def check_letters(state: State, vhost: Vhost) -> None:
    """Each queue of dead letters belongs to its queue, and is scheduled for another look."""
    of = {name: one.letters for name, one in vhost.queues.items() if one.letters is not None}
    assert of == vhost.kept_letters
    for name, queue in vhost.kept_letters.items():
        assert queue.letters_of == name
        assert queue.durable == vhost.queues[name].durable
        check_queue(state, queue, {})
        if ready_count(queue):
            assert state.keeping[queue.number] is queue
            assert queue.number in state.letter_times.times
