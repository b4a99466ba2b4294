"""The ready messages of a queue, in order: they come, are taken, come back, or go all at once.

A queue numbers its messages. Those that were never taken are `ready`, without a gap up to
`next_seq`. Requeued ones are `returned`; each is older than all of `ready`, so taking from
`returned` first keeps every message in its place. The queue has its own digest, `ready_sum`, so
that a purge costs nothing per message.
"""

from broker.machine.clock.cluster_time import recheck_deadlines, time_to_live
from broker.machine.digest import MASK, item_hash, ready_element
from broker.machine.move_log import (
    DUE,
    ENQUEUED,
    EXPIRES,
    FLAG,
    INDEX_MASK,
    MARK_MASK,
    OVER_LIMIT,
    REPLACED,
    SENT_ON,
    limit_told,
    note,
    row,
)
from broker.machine.queueing.groups import group_key, kept_element, note_group, wait_in_group
from broker.machine.queueing.last_values import last_value_key, wait_as_last
from broker.machine.requests.delay_header import due_ms_of, place_when_due
from broker.machine.requests.properties import priority_of
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    CREATED_US,
    DUE_SHIFT,
    IS_PERSISTENT,
    NO_TTL,
    NUMBER,
    PROPERTIES,
    RANK_SHIFT,
    TTL_US,
    Consumer,
    Message,
    Queue,
    Readers,
    State,
    ready_count,
    rehash,
)
from broker.waiting.backlog import Backlog
from broker.waiting.groups import Groups
from broker.waiting.last_values import LastValues
from broker.waiting.places import Places

_PUBLISHED_NEXT = (DUE, SENT_ON)


def next_seq(queue: Queue, message: Message) -> int:
    """The number of an incoming message. In a priority queue numbers ascend in the order of
    service: priority downwards, then arrival; the lowest bit is kept free for `seq_at`."""
    seq = queue.next_seq
    if queue.delays is not None:
        seq = place_when_due(queue, message)
        queue.next_seq += 1
        return seq
    queue.next_seq = seq + 1
    queue.tally.publish += 1
    return seq if queue.max_priority < 0 else _ranked(queue, message, seq)


def last_place(queue: Queue, message: Message) -> int:
    """The number of the message that came in last, which is this one."""
    seq = queue.next_seq - 1
    return seq if queue.max_priority < 0 else _ranked(queue, message, seq)


def _ranked(queue: Queue, message: Message, seq: int) -> int:
    rank = queue.max_priority - min(priority_of(message[PROPERTIES]), queue.max_priority)
    return (rank << RANK_SHIFT) | (seq << 1)


def is_in_time(queue: Queue) -> bool:
    """Nothing leaves a queue that delays before it is due."""
    return all(place >> DUE_SHIFT >= due_ms_of(one) for place, one in queue.returned.items())


def seq_at(queue: Queue, place: int) -> tuple[int, bool]:
    """Number and redelivered flag of a key of `returned`. A plain queue keeps only returned
    messages there; a priority queue keeps all, with the flag in the lowest bit."""
    if queue.max_priority < 0:
        return place, True
    return place & ~1, place & 1 == 1


def place_of(queue: Queue, seq: int) -> int:
    """The key in `returned` of a message that came back."""
    return seq if queue.max_priority < 0 else seq | 1


def take(state: State, queue: Queue) -> tuple[int, Message, bool]:
    """Take the first ready message: sequence number, message, redelivered. The queue has one."""
    if queue.returned:
        place, message = queue.returned.popleft()
        seq, redelivered = seq_at(queue, place)
        if queue.last_values is not None:
            queue.last_values.waiting.pop(last_value_key(queue.last_values, message), None)
        if queue.groups is not None:
            queue.groups.leaves(group_key(queue.groups, message), place)
    else:
        seq = queue.next_seq - len(queue.ready)
        message = queue.ready.popleft()
        redelivered = seq < queue.recovered_seq
    _count_left(state, queue, seq, message, redelivered)
    return seq, message, redelivered


def take_of_group(
    state: State, queue: Queue, groups: Groups[Consumer], holder: Consumer | None
) -> tuple[int, Message, bool] | None:
    """Like `take`, for this consumer or a get, which then holds the message's group."""
    place = groups.next_of(holder)
    if place is None:
        return None
    taken = _take_at(state, queue, groups, place)
    key = group_key(groups, taken[1])
    groups.hold(key, holder)
    if holder is not None and groups.keep(key, holder):
        state.add(kept_element(holder, key))
    return taken


def _take_at(
    state: State, queue: Queue, groups: Groups[Consumer], place: int
) -> tuple[int, Message, bool]:
    """Take the first waiting message of a group from its place."""
    message = queue.returned.remove(place)
    groups.leaves(group_key(groups, message), place)
    seq, redelivered = seq_at(queue, place)
    _count_left(state, queue, seq, message, redelivered)
    return seq, message, redelivered


def _count_left(state: State, queue: Queue, seq: int, message: Message, redelivered: bool) -> None:
    """A message is no longer ready."""
    element = ready_element(message[CONTENT_HASH], queue.number, seq, redelivered)
    queue.ready_sum = (queue.ready_sum - element) & MASK
    state.remove(element)
    queue.ready_bytes -= len(message[BODY])
    if queue.expiring:
        if message[TTL_US] != NO_TTL and queue.stream is None:
            queue.timed -= 1
        recheck_deadlines(state, queue)


def append(state: State, queue: Queue, message: Message) -> None:
    """Append it at the end. The caller has found no consumer with credit, and checks the limits."""
    seq = next_seq(queue, message)
    state.moves.append(
        row(
            ENQUEUED | FLAG if message[IS_PERSISTENT] else ENQUEUED,
            state.position & INDEX_MASK,
            queue.mark,
            seq,
            message[NUMBER] & MARK_MASK,
            message[CONTENT_HASH],
        )
    )
    if queue.max_priority < 0:
        state.full(queue.ready.append(message, len(message[BODY])))
    else:
        queue.returned.put(seq, message)
        if queue.last_values is not None:
            wait_as_last(state, queue, queue.last_values, seq, message)
        if queue.groups is not None:
            note_group(state, queue, queue.groups, seq, message)
            wait_in_group(queue.groups, seq, message)
    state.add(_count_ready(state, queue, seq, message, False) + queue.salt)
    if queue.expiring:
        _note_deadline(state, queue, seq, message)
    if queue.readers is not None:
        wake_readers(state, queue, queue.readers)


def _note_deadline(state: State, queue: Queue, seq: int, message: Message) -> None:
    """Schedule the deadline. 0: a message with a time to live of zero goes at once."""
    ttl_us = time_to_live(queue, message)
    if ttl_us != NO_TTL and queue.stream is None:
        note(state, EXPIRES, queue.mark, seq, 0, ttl_us and message[CREATED_US] + ttl_us)


def put_back(state: State, queue: Queue, seq: int, message: Message) -> None:
    """Put it in its old place, flagged redelivered. The caller checks the limits and dispatches."""
    queue.returned.put(place_of(queue, seq), message)
    if queue.last_values is not None:
        wait_as_last(state, queue, queue.last_values, seq, message)
    if queue.groups is not None:
        wait_in_group(queue.groups, place_of(queue, seq), message)
    state.add(_count_ready(state, queue, seq, message, True))
    if queue.readers is not None:
        wake_readers(state, queue, queue.readers)


def wake_readers(state: State, queue: Queue, readers: Readers) -> None:
    """A message waits that readers may not have read: they have a turn when the command is done."""
    if readers.caught_up:
        readers.service.extend(readers.caught_up)
        readers.caught_up.clear()
    if readers.service:
        state.reading[queue.number] = queue


def _count_ready(state: State, queue: Queue, seq: int, message: Message, redelivered: bool) -> int:
    """Count a message that is ready now; return its element."""
    element = ready_element(message[CONTENT_HASH], queue.number, seq, redelivered)
    queue.ready_sum = (queue.ready_sum + element) & MASK
    queue.ready_bytes += len(message[BODY])
    if message[TTL_US] != NO_TTL:
        queue.timed += 1
    if queue.timed or queue.ttl_us != NO_TTL or queue.delays is not None:
        recheck_deadlines(state, queue)
    return element


def waiting_last_value(
    queue: Queue, last: LastValues, message: Message
) -> tuple[int, Message] | None:
    """The place and the message that this one would replace."""
    seq = last.waiting.get(last_value_key(last, message))
    if seq is None:
        return None
    place = seq if seq in queue.returned else place_of(queue, seq)
    return place, queue.returned.at(place)


def replace(state: State, queue: Queue, place: int, newer: Message) -> None:
    """Drop the message at this place: the newer one with its key enters next. It is not
    dead-lettered."""
    last, message = queue.last_values, queue.returned.remove(place)
    assert last is not None
    seq, redelivered = seq_at(queue, place)
    del last.waiting[last_value_key(last, message)]
    _count_left(state, queue, seq, message, redelivered)
    state.moves.append(
        row(
            REPLACED | FLAG if redelivered else REPLACED,
            state.position & INDEX_MASK,
            queue.mark,
            seq,
            newer[NUMBER] & MARK_MASK,
            message[CONTENT_HASH],
        )
    )
    queue.tally.replaced += 1
    _audit(state, queue, seq, message, redelivered)
    if queue.returns:
        forget_returns(state, queue, seq)


def remove_head(state: State, queue: Queue, what: int) -> tuple[int, Message]:
    """Remove the first ready message; `what` is the move, which names a message published next."""
    return _left(state, queue, take(state, queue), what)


def remove_at(
    state: State, queue: Queue, groups: Groups[Consumer], place: int, what: int
) -> tuple[int, Message]:
    """Remove the first waiting message of a group."""
    return _left(state, queue, _take_at(state, queue, groups, place), what)


def _left(
    state: State, queue: Queue, taken: tuple[int, Message, bool], what: int
) -> tuple[int, Message]:
    """Record that a message left the queue, to nobody."""
    seq, message, redelivered = taken
    of = limit_told(queue) if what == OVER_LIMIT else 0
    if what in _PUBLISHED_NEXT:
        of = message[NUMBER] & MARK_MASK
    state.moves.append(
        row(
            what | FLAG if redelivered else what,
            state.position & INDEX_MASK,
            queue.mark,
            seq,
            of,
            message[CONTENT_HASH],
        )
    )
    _audit(state, queue, seq, message, redelivered)
    return seq, message


def _audit(state: State, queue: Queue, seq: int, message: Message, redelivered: bool) -> None:
    """If the bytes are not those that were hashed, the root differs from here on."""
    content = rehash(message)
    if content != message[CONTENT_HASH]:
        state.add(ready_element(message[CONTENT_HASH], queue.number, seq, redelivered))
        state.remove(ready_element(content, queue.number, seq, redelivered))


def all_ready(queue: Queue) -> tuple[Backlog[Message], Places[Message]]:
    """The containers of the ready messages; the queue gets new, empty ones."""
    taken = queue.ready, queue.returned
    queue.ready, queue.returned = type(queue.ready)(), Places()
    return taken


def purge(state: State, queue: Queue, what: int) -> int:
    """Drop all ready messages; `what` is the move."""
    count = ready_count(queue)
    state.moves.append(
        row(what, state.position & INDEX_MASK, queue.mark, queue.next_seq, count & MARK_MASK, 0)
    )
    state.remove(queue.ready_sum)
    queue.ready_sum = 0
    queue.ready_bytes = 0
    if queue.returns:
        _keep_returns_of_held(state, queue)
    # Freeing a million messages takes too long for one position: the member does it in slices.
    state.discarded += all_ready(queue)
    if queue.last_values is not None:
        state.discarded.append(queue.last_values.waiting)
        queue.last_values.waiting = {}
    if queue.groups is not None:
        state.discarded += queue.groups.forget_waiting()
    queue.timed = 0
    if queue.expiring:
        recheck_deadlines(state, queue)
    return count


# -- from a snapshot -----------------------------------------------------------------------------


def restore_returned(queue: Queue, places: tuple[int, ...], messages: list[Message]) -> None:
    """Restore returned messages of a new queue, whose settings come later."""
    queue.returned.extend(places, messages)
    last, groups = queue.last_values, queue.groups
    if last is not None:
        for place, message in zip(places, messages, strict=True):
            if key := last_value_key(last, message):
                last.waiting[key] = place & ~1  # in the form of `seq_at`
    if groups is not None:
        for place, message in zip(places, messages, strict=True):
            groups.waits(group_key(groups, message), place)


def restore_key_of_held(
    queue: Queue, seq: int, message: Message, consumer: Consumer | None
) -> None:
    """A channel holds a message of the queue."""
    last, groups = queue.last_values, queue.groups
    if last is not None and seq not in last.superseded and (key := last_value_key(last, message)):
        last.held[key] = seq
    if groups is not None:
        groups.hold(group_key(groups, message), consumer)


# -- how often a message came back ----------------------------------------------------------------


def counts_returns(queue: Queue) -> bool:
    return queue.delivery_limit >= 0 or queue.is_quorum


def count_return(state: State, queue: Queue, seq: int) -> int:
    """A message came back to a queue that counts returns: return its count."""
    count = queue.returns.get(seq, 0) + 1
    forget_returns(state, queue, seq)
    queue.returns[seq] = count
    _add_returns(state, queue, returns_element(queue, seq, count))
    return count


def forget_returns(state: State, queue: Queue, seq: int) -> None:
    """The message left the queue for good."""
    count = queue.returns.pop(seq, 0)
    if count:
        _add_returns(state, queue, -returns_element(queue, seq, count))


def forget_all_returns(state: State, queue: Queue) -> None:
    """Returns are no longer counted, or the count restarts."""
    if queue.returns:
        state.discarded.append(queue.returns)
        queue.returns = {}
        _add_returns(state, queue, -queue.returns_sum)


def _keep_returns_of_held(state: State, queue: Queue) -> None:
    """All ready messages go. Only the remaining counts are hashed: a million take seconds."""
    counts, gone = queue.returns, queue.returned
    kept: dict[int, int] = {}
    if queue.unacked and len(counts) * 4 < len(gone):  # looking one up takes about as long as four
        kept = {seq: n for seq, n in counts.items() if place_of(queue, seq) not in gone}
    elif queue.unacked:
        kept = counts.copy()
        for place in gone:
            kept.pop(seq_at(queue, place)[0], None)
    state.discarded.append(counts)
    queue.returns = kept
    rest = sum([returns_element(queue, seq, count) for seq, count in kept.items()])
    _add_returns(state, queue, rest - queue.returns_sum)


def _add_returns(state: State, queue: Queue, element: int) -> None:
    queue.returns_sum = (queue.returns_sum + element) & MASK
    state.add(element)


def returns_element(queue: Queue, seq: int, count: int) -> int:
    return item_hash("returns", queue.number, seq, count)
