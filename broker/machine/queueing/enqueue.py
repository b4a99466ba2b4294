"""How a message enters a queue: it is delivered at once, waits, replaces another, or is refused.

There is one function for each kind of queue: plain, with last values, with groups, and with a
window of keys; streams.py appends to streams. queue_limits.py drops what the queue may then no
longer keep.
"""

from operator import attrgetter
from typing import Final

from broker.machine.limits import TRIMMED_PER_MESSAGE_MAX
from broker.machine.move_log import FLAG, PASSED
from broker.machine.queueing.dispatch import (
    deliver,
    dispatch,
    has_room,
    next_consumer,
    shared_room,
)
from broker.machine.queueing.groups import group_key
from broker.machine.queueing.queue import append, last_place, next_seq, replace, waiting_last_value
from broker.machine.queueing.queue_limits import bury_refused, expire_at_once, is_full, trim
from broker.machine.queueing.windows import is_repeat, note_key
from broker.machine.state import (
    BODY,
    IS_PERSISTENT,
    NO_TTL,
    Consumer,
    Message,
    Queue,
    State,
    Window,
)
from broker.waiting.groups import Groups
from broker.waiting.last_values import LastValues


def enqueue(state: State, queue: Queue, message: Message) -> bool:
    """Append the message, or deliver it at once; False if the queue refuses it (reject-publish)."""
    if queue.service and queue.number not in state.late:
        consumer = next_consumer(queue)
        if consumer is not None:
            seq = next_seq(queue, message)
            state.add(queue.salt)
            what = PASSED | FLAG if message[IS_PERSISTENT] else PASSED
            deliver(state, queue, consumer, seq, message, False, what)
            return True
    if queue.max_length >= 0 or queue.max_bytes >= 0:
        if queue.overflow != "drop-head" and is_full(queue, len(message[BODY])):
            if queue.overflow == "reject-publish-dlx":
                bury_refused(state, queue, message)
            return False
        append(state, queue, message)
        trim(state, queue, TRIMMED_PER_MESSAGE_MAX)
    else:
        append(state, queue, message)
    if queue.expiring:
        expire_at_once(state, queue)
    return True


def enqueue_last(state: State, queue: Queue, last: LastValues, message: Message) -> bool:
    """The same in a last-value queue: it replaces the waiting message with its key, but takes a
    place at the end. A refused message replaces nothing."""
    older = waiting_last_value(queue, last, message)
    if older is not None:
        place, replaced = older
        size = len(message[BODY]) - len(replaced[BODY])
        if queue.overflow != "drop-head" and is_full(queue, size, 0):
            if queue.overflow == "reject-publish-dlx":
                bury_refused(state, queue, message)
            return False
        replace(state, queue, place, message)
    return enqueue(state, queue, message)


def enqueue_in_group(
    state: State, queue: Queue, groups: Groups[Consumer], message: Message
) -> bool:
    """The same in a queue with message groups: it waits, unless it may go at once."""
    full = queue.overflow != "drop-head" and is_full(queue, len(message[BODY]))
    if full and (queue.number in state.late or not _goes_at_once(queue, groups, message)):
        if queue.overflow == "reject-publish-dlx":
            bury_refused(state, queue, message)
        return False
    append(state, queue, message)
    dispatch(state, queue, enters=True)
    trim(state, queue, TRIMMED_PER_MESSAGE_MAX)
    if queue.expiring:
        expire_at_once(state, queue)
    return True


def _goes_at_once(queue: Queue, groups: Groups[Consumer], message: Message) -> bool:
    """Whether a consumer with credit may have it."""
    group = groups.by_key.get(group_key(groups, message))
    if group is None:
        return any(has_room(one.channel, one) for one in queue.service)
    holder = group.holder
    if group.places or holder is None or not holder.waiting:
        return False
    return has_room(holder.channel, holder)


def enqueue_once(state: State, queue: Queue, window: Window, key: bytes, message: Message) -> bool:
    """Put it into the queue, unless the window has its key; False if the queue refuses it, and then
    its key is not noted."""
    if not key:
        return enqueue(state, queue, message)
    if is_repeat(state, queue, window, key, message):
        return True
    if not enqueue(state, queue, message):
        return False
    note_key(state, queue, window, key, last_place(queue, message), message)
    return True


RUN_TRAITS: Final[dict[str, object]] = {
    "expiring": False,
    "takes_all": True,
    "readers": None,
    "max_priority": -1,
    "max_length": -1,
    "max_bytes": -1,
    "ttl_us": NO_TTL,
}
"""The traits that a queue must have to take messages in runs. A test lists all traits that do not
matter to runs, so that every new trait of queues is put into one of the two."""
_traits, _wanted_traits = attrgetter(*RUN_TRAITS), tuple(RUN_TRAITS.values())


def takes_runs(queue: Queue) -> bool:
    """Whether `enqueue` does no more with a message without a time to live than append it, or
    deliver it to the only consumer with credit."""
    return len(queue.service) < 2 and is_plain(queue)


def is_plain(queue: Queue) -> bool:
    """Whether it has no trait that matters to each message."""
    return bool(_traits(queue) == _wanted_traits)


def would_refuse(state: State, queue: Queue, size: int, count: int, *, leaves: bool) -> bool:
    """Whether `enqueue` would, or might, refuse a body of this size that goes to so many queues,
    whose consumers may share the credit of a channel; `leaves`: it is one of the letters kept for
    the queue, so its own place becomes free."""
    if queue.overflow == "drop-head" or max(queue.max_length, queue.max_bytes) < 0:
        return False
    if queue.stream is not None:  # it drops its oldest
        return False
    if not (is_full(queue, 0, 0) if leaves else is_full(queue, size)):
        return False
    if queue.groups is not None:  # the consumer that has its group is not known here
        return True
    if queue.number in state.late:  # its consumers get others first
        return True
    return not any(shared_room(consumer) >= count for consumer in queue.service)


def die_refused(state: State, queue: Queue, message: Message) -> None:
    """The full queue refused a message that has no publisher to be told."""
    if queue.overflow == "reject-publish":
        bury_refused(state, queue, message)
