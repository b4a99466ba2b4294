"""Cold start: no session continues; durable content is kept, and may have been delivered before.

The messages of a queue are renumbered at the position of the activation, and a million of them take
the better part of a second. A member that must keep its ring turning looks through its queues
before that position, in small steps (`find_survivors`). The search changes nothing; its results are
used where they still fit, and a member that has not searched does it at the position, with the same
result.
Decision: docs/decisions/0042-what-is-long-is-looked-through-before.md.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from operator import itemgetter

from broker.machine.clock.cluster_time import recheck_deadlines
from broker.machine.digest import MASK, elements_in_a_row, ready_elements
from broker.machine.move_log import FORGOTTEN, INDEX_MASK, MARK_MASK, RECOVERED, row
from broker.machine.publishing.letters import letter_element
from broker.machine.publishing.producers import forget_volatile_numbers
from broker.machine.queueing.bindings import remove_exchange
from broker.machine.queueing.declaration import mark_used
from broker.machine.queueing.deletion import delete_queue
from broker.machine.queueing.groups import group_key
from broker.machine.queueing.last_values import last_value_key
from broker.machine.queueing.queue import forget_all_returns, place_of, purge, seq_at
from broker.machine.queueing.windows import forget_volatile_keys
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    IS_PERSISTENT,
    NUMBER,
    Message,
    Queue,
    State,
    Survivors,
    Vhost,
    all_queues,
    bytes_of,
    ready_count,
    timed_of,
)
from broker.waiting.blocks import AHEAD_BYTES, Block, packed_ahead
from broker.waiting.groups import Groups
from broker.waiting.page_format import contents_of
from broker.waiting.places import Places

PART = 2_048
"""Messages looked at in one step: about a millisecond."""


def find_survivors(state: State) -> Iterator[None]:
    """Look through the queues, pausing every millisecond; the next command applied must be a cold
    activation."""
    state.survivors.clear()
    held: dict[int, list[tuple[int, Message]]] = {}  # they come back as sessions end
    looked = 0
    for channel in state.channels.values():
        for held_by_tag in (channel.unacked, channel.unsent):
            for queue, seq, message, _, _ in held_by_tag.values():
                if not message[NUMBER]:
                    continue  # it is in its queue
                held.setdefault(queue.number, []).append((place_of(queue, seq), message))
            looked += len(held_by_tag)
        if looked >= PART:
            looked = 0
            yield
    for vhost in state.vhosts.values():
        for queue in all_queues(vhost):
            back = held.pop(queue.number, [])
            if not queue.durable or queue.stream is not None or not (back or ready_count(queue)):
                continue
            returned = queue.returned
            if back:
                returned = returned.copy()
                for at in range(0, len(back), PART):
                    for place, message in back[at : at + PART]:
                        returned.put(place, message)
                    yield
            found = state.survivors[queue.number] = _survivors(queue, returned)
            while some := _look(state, queue, found):
                looked += some
                if looked >= PART:
                    looked = 0
                    yield


def _survivors(queue: Queue, returned: Places[Message]) -> Survivors:
    """The search of one queue, before any message was looked at."""
    fits = queue.next_seq, len(queue.ready), len(returned)
    came_back = returned.values()
    parts = chain(iter(lambda: tuple(islice(came_back, PART)), ()), queue.ready.parts())
    found = Survivors(queue.number, fits, packed_ahead(parts, _all_stay), iter(returned))
    if queue.groups is not None:
        found.groups = Groups(queue.groups.header, keeps=queue.groups.keeps)
    return found


def _all_stay(block: Block[Message]) -> bool:
    """Whether a block is kept unchanged, with no look at its messages."""
    page = block.page
    return page is not None and page.summary.persistent and page.summary.memory <= AHEAD_BYTES


def _look(state: State, queue: Queue, found: Survivors) -> int:
    """Look at the next messages; return how many."""
    block, packed = next(found.rest, ((), None))
    if isinstance(block, Block) and packed is not None and (page := block.page) is not None:
        first = queue.next_seq + len(found.messages)
        found.sum += elements_in_a_row(contents_of(packed.get()), found.number, first, True)
        found.bytes += page.summary.bytes
        found.timed += page.summary.timed
        state.full(found.messages.adopt(block))
        return len(block)
    part = tuple(block)
    stay = [message for message in part if message[IS_PERSISTENT]]
    if queue.max_priority < 0:
        seqs: Iterable[int] = count(queue.next_seq + len(found.messages))
        if isinstance(block, Block) and len(stay) == len(part):
            state.full(found.messages.adopt(block))
        else:
            for full in found.messages.extend(stay, map(len, map(itemgetter(BODY), stay))):
                state.full(full)
    else:
        places = zip(part, islice(found.places_of_rest, len(part)), strict=True)
        seqs = [seq_at(queue, place)[0] for message, place in places if message[IS_PERSISTENT]]
        found.places.extend([place_of(queue, seq) for seq in seqs], stay)
        if queue.last_values is not None:
            keys = (last_value_key(queue.last_values, message) for message in stay)
            found.keys.update((key, seq) for key, seq in zip(keys, seqs, strict=True) if key)
        if found.groups is not None:
            for seq, message in zip(seqs, stay, strict=True):
                found.groups.waits(group_key(found.groups, message), place_of(queue, seq))
    found.sum += ready_elements(map(itemgetter(CONTENT_HASH), stay), found.number, seqs, True)
    found.bytes += bytes_of(stay)
    found.timed += timed_of(stay)
    return len(part)


def forget_volatile(state: State) -> None:
    """Drop everything that is not durable. No connection is left, hence no consumer and no unacked
    message, so messages can be renumbered."""
    for vhost in state.vhosts.values():
        for queue in list(all_queues(vhost)):
            if queue.deleted:  # with an exchange that lost its last binding
                continue
            if queue.stream is not None:
                continue  # all of it stays in place
            if queue.durable:
                _keep_persistent(state, queue)
                forget_volatile_keys(state, queue)
                mark_used(state, queue)
            elif queue.delays is None and queue.letters_of is None:  # they go with their owner
                delete_queue(state, queue)
        _drop_volatile_exchanges(state, vhost)
        forget_volatile_numbers(state, vhost)
    state.survivors.clear()
    kept = [letter for letter in state.late_letters if letter.message[IS_PERSISTENT]]
    for letter in state.late_letters:
        if not letter.message[IS_PERSISTENT]:
            letter.vhost.letters -= 1
            state.remove(letter_element(letter))
    state.late_letters = deque(kept)


def _keep_persistent(state: State, queue: Queue) -> None:
    forget_all_returns(state, queue)  # messages are renumbered
    stay = _all_survivors(state, queue)
    purge(state, queue, FORGOTTEN)
    first, kept = 0, len(stay.places)
    if queue.max_priority < 0:
        first, kept = queue.next_seq, len(stay.messages)
        queue.ready = stay.messages
        queue.next_seq = queue.recovered_seq = first + kept
        state.add(queue.salt * kept)
    queue.returned = stay.places
    if queue.last_values is not None:
        queue.last_values.waiting = stay.keys
    if stay.groups is not None:
        queue.groups = stay.groups
    queue.ready_sum = stay.sum & MASK
    queue.ready_bytes, queue.timed = stay.bytes, stay.timed
    state.add(queue.ready_sum)
    recheck_deadlines(state, queue)
    state.moves.append(
        row(
            RECOVERED,
            state.position & INDEX_MASK,
            queue.mark,
            first,
            kept & MARK_MASK,
            queue.ready_sum,
        )
    )


def _all_survivors(state: State, queue: Queue) -> Survivors:
    """The survivors of a queue, found earlier if nothing else came or went since."""
    found = state.survivors.pop(queue.number, None)
    if found is None or found.fits != (queue.next_seq, len(queue.ready), len(queue.returned)):
        found = _survivors(queue, queue.returned)
    while _look(state, queue, found):
        pass
    return found


def _drop_volatile_exchanges(state: State, vhost: Vhost) -> None:
    for exchange in list(vhost.exchanges.values()):
        if not exchange.durable and vhost.exchanges.get(exchange.name) is exchange:
            remove_exchange(state, vhost, exchange)
