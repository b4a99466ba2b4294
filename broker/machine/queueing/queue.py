"""Queues: their ready messages in order, expiry and limits, and how a queue is deleted.

A queue numbers its messages. Those that were never taken are `ready`, without a gap up to
`next_seq`; requeued ones are `returned`, each older than all of `ready`, so taking from `returned`
first keeps every message in its place. The queue has a digest of its own, `ready_sum`, so that a
purge costs nothing per message.
"""

from broker.machine.clock.cluster_time import (
    deadline,
    head,
    lease,
    recheck_deadlines,
    unlease,
)
from broker.machine.commands import Table
from broker.machine.digest import MASK, canonical, item_hash, ready_element
from broker.machine.move_log import (
    DECLARED,
    DELAYS_DECLARED,
    DUE,
    ENQUEUED,
    EXPIRED,
    FLAG,
    INDEX_MASK,
    LETTERS_DECLARED,
    MARK_MASK,
    OVER_LIMIT,
    PURGED,
    QUEUE_DELETED,
    REPLACED,
    SENT_ON,
    row,
)
from broker.machine.policies.choice import policies_element, policies_of_queue
from broker.machine.requests.arguments import (
    apply_settings,
    keep_groups,
    keep_last_values,
    open_window,
)
from broker.machine.requests.death_headers import letters_name
from broker.machine.requests.delay_header import due_ms_of, place_when_due, queue_name
from broker.machine.requests.properties import key_by, priority_of
from broker.machine.requests.refusals import Refusal, locked, no_queue
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    DUE_SHIFT,
    IS_PERSISTENT,
    KEY,
    NO_TTL,
    NUMBER,
    PROPERTIES,
    RANK_SHIFT,
    TTL_US,
    Channel,
    ConnectionRecord,
    Consumer,
    Exchange,
    Letter,
    Message,
    Queue,
    Readers,
    State,
    Vhost,
    order_of,
    ready_count,
    rehash,
)
from broker.machine.version import LAST_VALUES, MESSAGE_GROUPS
from broker.waiting.backlog import Backlog
from broker.waiting.groups import KEPT_GROUPS_MAX, Groups
from broker.waiting.last_values import LastValues
from broker.waiting.places import Places

_PUBLISHED_NEXT = (DUE, SENT_ON)


def queue_element(queue: Queue) -> int:
    return item_hash(
        "queue",
        queue.vhost.name,
        queue.name,
        queue.number,
        queue.durable,
        queue.auto_delete,
        queue.owner_key,
        canonical(queue.arguments),
    )


def lease_element(queue: Queue) -> int:
    return item_hash("lease", queue.number, queue.used_us) if queue.expires_us >= 0 else 0


def mark_used(state: State, queue: Queue) -> None:
    """The queue was declared, read from, or left by its last consumer."""
    if queue.expires_us >= 0:
        state.remove(lease_element(queue))
        queue.used_us = max(queue.used_us, state.horizon_us)  # the horizon may come nearer again
        state.add(lease_element(queue))
        if not queue.consumers:
            lease(state, queue)


def consumer_element(consumer: Consumer) -> int:
    reader = consumer.reader
    return (reader.salt * reader.offset if reader is not None else 0) + item_hash(
        "consumer",
        consumer.channel.key,
        consumer.tag,
        consumer.queue.number,
        consumer.no_ack,
        consumer.no_local,
        consumer.exclusive,
        consumer.prefetch,
        consumer.priority,
        *(reader.filter if reader is not None else ()),
    )


def create_queue(
    state: State,
    vhost: Vhost,
    name: str,
    durable: bool,
    auto_delete: bool,
    owner: ConnectionRecord | None,
    arguments: Table,
) -> Queue:
    queue = Queue(vhost, name, state.next_queue, durable, auto_delete, owner, arguments)
    queue.policy, queue.operator_policy = policies_of_queue(vhost, name, arguments)
    if state.version >= LAST_VALUES:
        keep_last_values(queue)
    if state.version >= MESSAGE_GROUPS:
        keep_groups(queue)
    apply_settings(queue)
    open_window(state, queue)
    vhost.queues[name] = queue
    vhost.routes.clear()
    state.totals_of(-1, vhost.name).queues_created += 1
    if owner is not None:
        owner.exclusive[name] = queue
    _begin(state, queue, DECLARED)
    return queue


def _begin(state: State, queue: Queue, what: int) -> None:
    """It is there from here on; `what` is the move."""
    queue.salt = item_hash("next seq", queue.number)
    state.next_queue += 1
    state.add(queue_element(queue) + policies_element(queue) + lease_element(queue))
    what |= FLAG if queue.durable else 0
    state.moves.append(
        row(what, state.position & INDEX_MASK, queue.mark, 0, order_of(queue) + 1, 0)
    )
    state.declared.append(queue)


def delay_by(state: State, vhost: Vhost, exchange: Exchange) -> None:
    """A new exchange delays messages: it gets the queue in which they wait."""
    name, number = queue_name(exchange.name), state.next_queue
    queue = Queue(vhost, name, number, exchange.durable, False, None, {}, delays=exchange.name)
    vhost.delays[exchange.name] = queue
    _begin(state, queue, DELAYS_DECLARED)


def drop_delayed(state: State, vhost: Vhost, exchange: Exchange) -> None:
    """The exchange is gone, and what waited in it."""
    queue = vhost.delays.pop(exchange.name, None)
    if queue is not None:
        purge(state, queue, QUEUE_DELETED)
        state.expiry.forget(queue.number)
        state.remove(queue_element(queue) + queue.salt * queue.next_seq)
        queue.deleted = True


def keep_letters_of(state: State, source: Queue) -> Queue:
    """A dead letter of the queue cannot go: it gets a queue in which its letters wait."""
    name, number = letters_name(source.name), state.next_queue
    kept = Queue(
        source.vhost, name, number, source.durable, False, None, {}, letters_of=source.name
    )
    source.letters = source.vhost.kept_letters[source.name] = kept
    _begin(state, kept, LETTERS_DECLARED)
    return kept


def purge_letters(state: State, source: Queue) -> None:
    """Drop the dead letters that the queue keeps."""
    kept = source.letters
    if kept is not None and ready_count(kept):
        purge(state, kept, PURGED)
        state.keeping.pop(kept.number, None)


def drop_letters(state: State, source: Queue) -> None:
    """The queue is gone, and the dead letters that it keeps."""
    kept = source.letters
    if kept is not None:
        purge(state, kept, QUEUE_DELETED)
        state.keeping.pop(kept.number, None)
        state.letter_times.forget(kept.number)
        state.remove(queue_element(kept) + kept.salt * kept.next_seq)
        del kept.vhost.kept_letters[source.name]
        kept.deleted = True
        source.letters = None


def accessible_queue(channel: Channel, name: str) -> Queue | Refusal:
    """The queue of that name, unless it is exclusive to another connection."""
    connection = channel.connection
    queue = connection.vhost.queues.get(name)
    if queue is None:
        return no_queue(name, connection.vhost.name)
    if queue.owner is not None and queue.owner is not connection:
        return locked(name, connection.vhost.name)
    return queue


def next_seq(queue: Queue, message: Message) -> int:
    """The number of a message that comes in. In a priority queue numbers ascend in the order of
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
    """Nothing in a queue that delays goes before it is due."""
    return all(place >> DUE_SHIFT >= due_ms_of(one) for place, one in queue.returned.items())


def seq_at(queue: Queue, place: int) -> tuple[int, bool]:
    """Number and redelivered flag of a key of `returned`. A plain queue keeps there only what came
    back; a priority queue everything, with the flag in the lowest bit."""
    if queue.max_priority < 0:
        return place, True
    return place & ~1, place & 1 == 1


def place_of(queue: Queue, seq: int) -> int:
    """The key in `returned` of a message that came back."""
    return seq if queue.max_priority < 0 else seq | 1


def take(state: State, queue: Queue) -> tuple[int, Message, bool]:
    """The first ready message: sequence number, message, redelivered. There is one."""
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
    """As `take`, what this consumer may get next, or a get, which holds its group from here on."""
    place = groups.next_of(holder)
    if place is None:
        return None
    message = queue.returned.remove(place)
    key = group_key(groups, message)
    groups.leaves(key, place)
    groups.hold(key, holder)
    if holder is not None and groups.keep(key, holder):
        state.add(kept_element(holder, key))
    seq, redelivered = seq_at(queue, place)
    _count_left(state, queue, seq, message, redelivered)
    return seq, message, redelivered


def group_key(groups: Groups[Consumer], message: Message) -> bytes:
    """Of the group of a message; the same, empty one for all that name none."""
    key = key_by(message[PROPERTIES], groups.raw_header)
    if not groups.keeps or not key:
        return key
    return (int.from_bytes(key[:2], "big") % KEPT_GROUPS_MAX).to_bytes(2, "big")


def kept_element(consumer: Consumer, key: bytes) -> int:
    return item_hash("kept", consumer.queue.number, *consumer.channel.key, consumer.tag, key)


def let_go_of_group(state: State, queue: Queue, groups: Groups[Consumer], message: Message) -> None:
    """No channel holds the message any more. Whom the others of its group may go to now have them
    when the command is done."""
    if groups.let_go(group_key(groups, message)):
        state.freed[queue.number] = queue


def keep_no_groups(state: State, consumer: Consumer) -> None:
    """The consumer is gone: its groups go to others when nothing of them is held."""
    groups = consumer.queue.groups
    if groups is not None:
        groups.pending.pop(consumer, None)
        for key in groups.keep_no_more(consumer):
            state.remove(kept_element(consumer, key))


def _wait_in_group(groups: Groups[Consumer], place: int, message: Message) -> None:
    holder = groups.waits(group_key(groups, message), place)
    if holder is not None and holder.waiting:
        groups.pending[holder] = None


def _count_left(state: State, queue: Queue, seq: int, message: Message, redelivered: bool) -> None:
    """A message is not ready any more."""
    element = ready_element(message[CONTENT_HASH], queue.number, seq, redelivered)
    queue.ready_sum = (queue.ready_sum - element) & MASK
    state.remove(element)
    queue.ready_bytes -= len(message[BODY])
    if queue.expiring:
        if message[TTL_US] != NO_TTL and queue.stream is None:
            queue.timed -= 1
        recheck_deadlines(state, queue)


def append(state: State, queue: Queue, message: Message) -> None:
    """At the end. The caller has found no consumer with credit, and checks the limits."""
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
            _wait_as_last(state, queue, queue.last_values, seq, message)
        if queue.groups is not None:
            _wait_in_group(queue.groups, seq, message)
    state.add(_count_ready(state, queue, seq, message, False) + queue.salt)
    if queue.readers is not None:
        wake_readers(state, queue, queue.readers)


def put_back(state: State, queue: Queue, seq: int, message: Message) -> None:
    """In its old place, flagged redelivered. The caller checks the limits and dispatches."""
    queue.returned.put(place_of(queue, seq), message)
    if queue.last_values is not None:
        _wait_as_last(state, queue, queue.last_values, seq, message)
    if queue.groups is not None:
        _wait_in_group(queue.groups, place_of(queue, seq), message)
    state.add(_count_ready(state, queue, seq, message, True))
    if queue.readers is not None:
        wake_readers(state, queue, queue.readers)


def wake_readers(state: State, queue: Queue, readers: Readers) -> None:
    """Something waits that they may not have read: they have a turn when the command is done."""
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


# -- last values ---------------------------------------------------------------------------------


def last_value_key(last: LastValues, message: Message) -> bytes:
    """What a message of this queue replaces an older one by; none: it replaces nothing."""
    return key_by(message[PROPERTIES], last.raw_header)


def _wait_as_last(state: State, queue: Queue, last: LastValues, seq: int, message: Message) -> None:
    key = last_value_key(last, message)
    if key:
        _supersede(state, queue, last, last.waits(key, seq))


def hold_last_value(
    state: State, queue: Queue, last: LastValues, seq: int, message: Message
) -> None:
    """A channel holds the message from here on."""
    key = last_value_key(last, message)
    if key:
        _supersede(state, queue, last, last.hold(key, seq))


def _supersede(state: State, queue: Queue, last: LastValues, seq: int | None) -> None:
    """A newer one came while a channel holds this one."""
    if seq is not None:
        last.superseded[seq] = None
        _count_superseded(state, last, superseded_element(queue, seq))


def let_go_of_last_value(
    state: State, queue: Queue, last: LastValues, seq: int, message: Message
) -> None:
    """No channel holds the message any more, whether it comes back or not."""
    if seq in last.superseded:
        del last.superseded[seq]
        _count_superseded(state, last, -superseded_element(queue, seq))
        return
    key = last_value_key(last, message)
    if key:
        last.let_go(key, seq)


def _count_superseded(state: State, last: LastValues, element: int) -> None:
    last.elements = (last.elements + element) & MASK
    state.add(element)


def superseded_element(queue: Queue, seq: int) -> int:
    return item_hash("superseded", queue.number, seq)


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
    """Drop the message at this place, whose key the newer one has, which enters next. It is no dead
    letter."""
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


def close_last_values(state: State, queue: Queue) -> None:
    """The queue is gone, and what waited in it."""
    last = queue.last_values
    if last is not None:
        state.remove(last.elements)
        state.discarded.append(last.held)
        queue.last_values = None


# -- returns, limits, expiry ---------------------------------------------------------------------


def count_return(state: State, queue: Queue, seq: int) -> int:
    """A message came back to a queue with a delivery limit: how often by now."""
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
    """Nobody counts any more, or from nothing again."""
    if queue.returns:
        state.discarded.append(queue.returns)
        queue.returns = {}
        _add_returns(state, queue, -queue.returns_sum)


def _keep_returns_of_held(state: State, queue: Queue) -> None:
    """All that is ready goes. Only what stays is hashed: a million of them take seconds."""
    counts, gone = queue.returns, queue.returned
    kept: dict[int, int] = {}
    if queue.unacked and len(counts) * 4 < len(gone):  # to look one up takes about as long as four
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


def is_full(queue: Queue, bytes_more: int, more: int = 1) -> bool:
    """Would so many more messages be too many?  Dead letters that it keeps count."""
    count, size, kept = ready_count(queue), queue.ready_bytes, queue.letters
    if kept is not None:
        count, size = count + ready_count(kept), size + kept.ready_bytes
    return (0 <= queue.max_length < count + more) or (0 <= queue.max_bytes < size + bytes_more)


def is_over(queue: Queue) -> bool:
    """It holds more than it may. A stream keeps its last message: nobody may have read it yet."""
    return (ready_count(queue) > queue.max_length >= 0) or (
        queue.ready_bytes > queue.max_bytes >= 0 and (queue.stream is None or len(queue.ready) > 1)
    )


def trim(state: State, queue: Queue, count_max: int) -> int:
    """Drop messages from the head until the limits hold, at most `count_max`, so that one position
    stays cheap: the others follow at the next ones. Return how many. A queue that refuses
    publishes instead drops nothing."""
    count = 0
    while queue.overflow == "drop-head" and is_over(queue):
        if count == count_max:
            state.trimming[queue.number] = queue
            return count
        drop_head(state, queue, "maxlen")
        count += 1
    state.trimming.pop(queue.number, None)
    return count


def apply_policies(state: State, queue: Queue) -> bool:
    """The policies that apply may be others now. Return whether they are."""
    applied = policies_of_queue(queue.vhost, queue.name, queue.arguments)
    if applied == (queue.policy, queue.operator_policy):
        return False
    ttl_us, expires_us = queue.ttl_us, queue.expires_us
    state.remove(policies_element(queue) + lease_element(queue))
    queue.policy, queue.operator_policy = applied
    apply_settings(queue)
    if queue.expires_us != expires_us:  # what was unused before counts from now
        queue.used_us = state.horizon_us
        if queue.expires_us >= 0 and not queue.consumers:
            lease(state, queue)
        else:
            unlease(state, queue)
    state.add(policies_element(queue) + lease_element(queue))
    if queue.ttl_us != ttl_us:
        recheck_deadlines(state, queue)
    if queue.delivery_limit < 0:
        forget_all_returns(state, queue)
    if is_over(queue):
        state.trimming[queue.number] = queue
    return True


def drop_head(state: State, queue: Queue, reason: str) -> None:
    """Remove the first ready message; dead-letter it if the queue has an exchange for that."""
    seq, message = remove_head(state, queue, EXPIRED if reason == "expired" else OVER_LIMIT)
    if queue.returns:
        forget_returns(state, queue, seq)
    dead_letter(state, queue, message, reason)


def remove_head(state: State, queue: Queue, what: int) -> tuple[int, Message]:
    """`what` is the move.  What is published next is named."""
    seq, message, redelivered = take(state, queue)
    state.moves.append(
        row(
            what | FLAG if redelivered else what,
            state.position & INDEX_MASK,
            queue.mark,
            seq,
            message[NUMBER] & MARK_MASK if what in _PUBLISHED_NEXT else 0,
            message[CONTENT_HASH],
        )
    )
    _audit(state, queue, seq, message, redelivered)
    return seq, message


def dead_letter(state: State, queue: Queue, message: Message, reason: str) -> None:
    """To be published to the queue's dead-letter exchange, if it has one, after the command."""
    exchange = queue.dead_letter_exchange
    if exchange is not None and not queue.deleted:
        key = message[KEY] if queue.dead_letter_key is None else queue.dead_letter_key
        state.dead_letters.append(Letter(queue.vhost, exchange, key, queue.name, message, reason))


def _audit(state: State, queue: Queue, seq: int, message: Message, redelivered: bool) -> None:
    """If the bytes are no longer those that were hashed, the root differs from here on."""
    content = rehash(message)
    if content != message[CONTENT_HASH]:
        state.add(ready_element(message[CONTENT_HASH], queue.number, seq, redelivered))
        state.remove(ready_element(content, queue.number, seq, redelivered))


def expire(state: State, queue: Queue, count_max: int) -> int:
    """Drop expired messages at the head, at most `count_max`, so that one position stays cheap;
    return how many. Others wait behind the first, as AMQP brokers do it."""
    now_us = state.now_us
    count = 0
    while count < count_max and queue.expiring and deadline(queue, head(queue)) <= now_us:
        drop_head(state, queue, "expired")
        count += 1
    return count


def all_ready(queue: Queue) -> tuple[Backlog[Message], Places[Message]]:
    """What holds the ready messages; the queue gets others, which are empty."""
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
    # To free a million messages takes too long for one position: the member does it in slices.
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
