"""Cold start: no session goes on, so what is not durable is gone, and what remains may have been
delivered before.

The messages of a queue are numbered anew at the position of the activation, and a million of them
take the better part of a second. A member that has a ring to turn meanwhile looks through its
queues before that position, in small steps (`find_survivors`). It changes nothing; what was found
is used where it fits, and who has not looked does it at the position, with the same result.
Decision: docs/decisions/0042-what-is-long-is-looked-through-before.md.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from broker.machine.backlog import BLOCK_MESSAGES
from broker.machine.clock.cluster_time import recheck_deadlines
from broker.machine.digest import MASK, ready_elements
from broker.machine.handlers.publish import letter_element
from broker.machine.move_log import FORGOTTEN, INDEX_MASK, MARK_MASK, RECOVERED, row
from broker.machine.queueing.queue import (
    delete_queue,
    forget_all_returns,
    mark_used,
    purge,
    put_back,
    ready_count,
)
from broker.machine.queueing.routing import remove_exchange
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    IS_PERSISTENT,
    NO_TTL,
    TTL_US,
    Message,
    Queue,
    State,
    Survivors,
    Vhost,
)

PART = BLOCK_MESSAGES
"""Messages that are looked at in one step: about a millisecond."""


def find_survivors(state: State) -> Iterator[None]:
    """Look through the queues, for who applies a cold activation next and nothing before it; pauses
    every millisecond."""
    state.survivors.clear()
    held: dict[int, int] = {}  # these come back to the front of their queues as the sessions end
    looked = 0
    for channel in state.channels.values():
        for held_by_tag in (channel.unacked, channel.unsent):
            for queue, _, message, _, _ in held_by_tag.values():
                held[queue.number] = held.get(queue.number, 0) + (message[IS_PERSISTENT] > 0)
            looked += len(held_by_tag)
        if looked >= PART:
            looked = 0
            yield
    for vhost in state.vhosts.values():
        for queue in vhost.queues.values():
            if not queue.durable or not queue.ready:
                continue
            back = held.get(queue.number, 0)
            back += sum([message[IS_PERSISTENT] > 0 for message in queue.returned.values()])
            found = state.survivors[queue.number] = _survivors(queue, queue.next_seq + back)
            looked += len(queue.returned)
            while count := _look(found):
                looked += count
                if looked >= PART:
                    looked = 0
                    yield


def _survivors(queue: Queue, first: int) -> Survivors:
    """None of the waiting messages of a plain queue was looked at yet; the first to stay will have
    that number."""
    return Survivors(queue.number, queue.next_seq, len(queue.ready), iter(queue.ready), first)


def _look(found: Survivors) -> int:
    """Look at the next messages; return how many."""
    part = list(islice(found.rest, PART))
    _count(found, part)
    return len(part)


def _count(found: Survivors, part: Iterable[Message]) -> None:
    stay = [message for message in part if message[IS_PERSISTENT]]
    contents = [message[CONTENT_HASH] for message in stay]
    found.sum += ready_elements(contents, found.number, found.first + len(found.messages), True)
    found.bytes += sum([len(message[BODY]) for message in stay])
    found.timed += sum([message[TTL_US] != NO_TTL for message in stay])
    found.messages.extend(stay)


def forget_volatile(state: State) -> None:
    """Drop what is not durable. No connection is left, hence no consumer and nothing unacked:
    messages can be renumbered."""
    for vhost in state.vhosts.values():
        for queue in list(vhost.queues.values()):
            if queue.durable:
                _keep_persistent(state, queue)
                mark_used(state, queue)
            else:
                delete_queue(state, queue)
        _drop_volatile_exchanges(state, vhost)
    state.survivors.clear()
    kept = [letter for letter in state.late_letters if letter.message[IS_PERSISTENT]]
    for letter in state.late_letters:
        if not letter.message[IS_PERSISTENT]:
            letter.vhost.letters -= 1
            state.remove(letter_element(letter))
    state.late_letters = deque(kept)


def _keep_persistent(state: State, queue: Queue) -> None:
    forget_all_returns(state, queue)  # messages are numbered anew
    if queue.max_priority >= 0:
        persistent_at = {place | 1: m for place, m in queue.returned.items() if m[IS_PERSISTENT]}
        purge(state, queue, FORGOTTEN)
        for place in sorted(persistent_at):
            put_back(state, queue, place & ~1, persistent_at[place])
        _log_recovered(state, queue, len(persistent_at), 0)
        return
    count = ready_count(queue)
    first = queue.next_seq
    state.moves.append(
        row(FORGOTTEN, state.position & INDEX_MASK, queue.mark, first, count & MARK_MASK, 0)
    )
    back = [message for _, message in sorted(queue.returned.items()) if message[IS_PERSISTENT]]
    stay = _all_survivors(state, queue, first + len(back))
    front = Survivors(queue.number, 0, 0, iter(()), first)
    _count(front, back)
    stay.messages.put_before(back)
    state.discarded.append(queue.ready)  # a million of them are freed in slices
    queue.returned.clear()
    queue.returned_order.clear()
    queue.ready = stay.messages
    queue.next_seq = queue.recovered_seq = first + len(queue.ready)
    total = front.sum + stay.sum
    state.add(total - queue.ready_sum + queue.salt * len(queue.ready))
    queue.ready_sum = total & MASK
    queue.ready_bytes = front.bytes + stay.bytes
    queue.timed = front.timed + stay.timed
    recheck_deadlines(state, queue)
    _log_recovered(state, queue, len(queue.ready), first)


def _all_survivors(state: State, queue: Queue, first: int) -> Survivors:
    """Of what waits in a plain queue: found before, if nothing came or went since."""
    found = state.survivors.pop(queue.number, None)
    now = (queue.next_seq, len(queue.ready), first)
    if found is None or (found.next_seq, found.waiting, found.first) != now:
        found = _survivors(queue, first)
    while _look(found):
        pass
    return found


def _log_recovered(state: State, queue: Queue, persistent: int, first: int) -> None:
    state.moves.append(
        row(
            RECOVERED,
            state.position & INDEX_MASK,
            queue.mark,
            first,
            persistent & MARK_MASK,
            queue.ready_sum,
        )
    )


def _drop_volatile_exchanges(state: State, vhost: Vhost) -> None:
    for exchange in list(vhost.exchanges.values()):
        if not exchange.durable and vhost.exchanges.get(exchange.name) is exchange:
            remove_exchange(state, vhost, exchange)
