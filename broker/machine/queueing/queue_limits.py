"""Messages that a queue drops by itself: those over its limits, and those too old."""

from broker.machine.clock.cluster_time import (
    deadline,
    head,
    lease,
    next_deadline,
    recheck_deadlines,
    time_to_live,
    unlease,
)
from broker.machine.limits import TRIMMED_PER_MESSAGE_MAX
from broker.machine.move_log import (
    DUE,
    EXPIRED,
    MARK_MASK,
    OVER_LIMIT,
    REFUSED_TO_GRAVE,
    note,
    note_clock,
)
from broker.machine.policies.choice import policies_element, policies_of_queue
from broker.machine.queueing.declaration import lease_element
from broker.machine.queueing.queue import (
    counts_returns,
    forget_all_returns,
    forget_returns,
    remove_at,
    remove_head,
)
from broker.machine.requests.arguments import apply_settings
from broker.machine.state import (
    KEY,
    NO_TTL,
    NUMBER,
    Consumer,
    Letter,
    Message,
    Queue,
    State,
    ready_count,
)
from broker.waiting.groups import Groups


def is_full(queue: Queue, bytes_more: int, more: int = 1) -> bool:
    """Whether `more` further messages are too many. Dead letters kept for the queue count."""
    count, size, kept = ready_count(queue), queue.ready_bytes, queue.letters
    if kept is not None:
        count, size = count + ready_count(kept), size + kept.ready_bytes
    return (0 <= queue.max_length < count + more) or (0 <= queue.max_bytes < size + bytes_more)


def is_over(queue: Queue) -> bool:
    """Whether it holds more than it may. A stream keeps its last message, perhaps still unread."""
    return (ready_count(queue) > queue.max_length >= 0) or (
        queue.ready_bytes > queue.max_bytes >= 0 and (queue.stream is None or len(queue.ready) > 1)
    )


def trim(state: State, queue: Queue, count_max: int) -> int:
    """Drop messages from the head until the limits hold, at most `count_max`, so that one position
    stays cheap: the others follow at the next ones. Return how many. A queue that refuses publishes
    drops nothing."""
    count = 0
    while queue.overflow == "drop-head" and is_over(queue):
        if count == count_max:
            state.trimming[queue.number] = queue
            return count
        drop_head(state, queue, "maxlen")
        count += 1
    state.trimming.pop(queue.number, None)
    return count


def expire(state: State, queue: Queue, count_max: int) -> int:
    """Drop expired messages at the head, at most `count_max`, so that one position stays cheap;
    return how many. Others wait behind the first, as in AMQP brokers."""
    count = 0
    while count < count_max and has_expired(state, queue):
        if not count:
            note_clock(state)
        drop_head(state, queue, "expired")
        count += 1
    return count


def has_expired(state: State, queue: Queue) -> bool:
    """Whether the first ready message has expired: nobody may get it any more."""
    return queue.expiring and deadline(queue, head(queue)) <= state.now_us


def next_has_expired(
    state: State, queue: Queue, groups: Groups[Consumer], holder: Consumer | None
) -> bool:
    """Whether the message that this consumer, or a get, would get next has expired. Live messages
    of other groups may wait before it."""
    return _expired_place(state, queue, groups, holder) is not None


def _expired_place(
    state: State, queue: Queue, groups: Groups[Consumer], holder: Consumer | None
) -> int | None:
    """The place of that message if it has expired."""
    if not queue.expiring:
        return None
    place = groups.next_of(holder)
    if place is None or deadline(queue, queue.returned.at(place)) > state.now_us:
        return None
    return place


def expire_next(
    state: State,
    queue: Queue,
    groups: Groups[Consumer],
    holder: Consumer | None,
    count_max: int,
) -> int:
    """`expire`, of what this consumer, or a get, would get next."""
    count = 0
    while count < count_max:
        place = _expired_place(state, queue, groups, holder)
        if place is None:
            break
        if not count:
            note_clock(state)
        _bury(state, queue, *remove_at(state, queue, groups, place, EXPIRED), "expired")
        count += 1
    return count


def expire_at_once(state: State, queue: Queue) -> None:
    """A message with a time to live of zero was delivered at once, or is dead. No more are dropped
    here than came in, plus one; others, which a new policy may cause, expire by tick."""
    if queue.delays is not None:
        return
    for _ in range(TRIMMED_PER_MESSAGE_MAX):
        if not queue.expiring or time_to_live(queue, head(queue)) != 0:
            return
        drop_head(state, queue, "expired")


def take_due(state: State, queue: Queue) -> Message | None:
    """Remove the first message of a queue that delays, if it is due."""
    if not queue.expiring or next_deadline(queue) > state.now_us:
        return None
    return remove_head(state, queue, DUE)[1]


def drop_head(state: State, queue: Queue, reason: str) -> None:
    """Remove the first ready message; dead-letter it if the queue has an exchange for that."""
    what = EXPIRED if reason == "expired" else OVER_LIMIT
    _bury(state, queue, *remove_head(state, queue, what), reason)


def _bury(state: State, queue: Queue, seq: int, message: Message, reason: str) -> None:
    """A message has left the queue, to nobody."""
    if queue.returns:
        forget_returns(state, queue, seq)
    dead_letter(state, queue, message, reason)


def dead_letter(state: State, queue: Queue, message: Message, reason: str) -> None:
    """Publish it to the queue's dead-letter exchange, if it has one, after the command."""
    exchange = queue.dead_letter_exchange
    kept = "at_least_once" if queue.at_least_once else "at_most_once"
    state.died[reason, kept if exchange is not None else "disabled"] += 1
    if exchange is not None and not queue.deleted:
        key = message[KEY] if queue.dead_letter_key is None else queue.dead_letter_key
        state.dead_letters.append(Letter(queue.vhost, exchange, key, queue.name, message, reason))


def bury_refused(state: State, queue: Queue, message: Message) -> None:
    """Dead-letter a message that never entered the queue."""
    note(state, REFUSED_TO_GRAVE, queue.mark, 0, message[NUMBER] & MARK_MASK, 0)
    dead_letter(state, queue, message, "maxlen")


def apply_policies(state: State, queue: Queue) -> bool:
    """The applicable policies may have changed. Return whether they did."""
    applied = policies_of_queue(queue.vhost, queue.name, queue.arguments)
    if applied == (queue.policy, queue.operator_policy):
        return False
    ttl_us, expires_us = queue.ttl_us, queue.expires_us
    state.remove(policies_element(queue) + lease_element(queue))
    queue.policy, queue.operator_policy = applied
    apply_settings(queue)
    if queue.expires_us != expires_us:  # the unused time counts from now
        queue.used_us = state.horizon_us
        if queue.expires_us >= 0 and not queue.consumers:
            lease(state, queue)
        else:
            unlease(state, queue)
    state.add(policies_element(queue) + lease_element(queue))
    if queue.ttl_us != ttl_us:
        recheck_deadlines(state, queue)
        if queue.unacked and queue.ttl_us != NO_TTL:
            state.held_from[queue.number] = queue
    if not counts_returns(queue):
        forget_all_returns(state, queue)
    if is_over(queue):
        state.trimming[queue.number] = queue
    return True
