"""Deduplication windows: the keys of the messages that a queue took most recently.

A message's key is the value of its header `x-deduplication-header`, or else its property
message-id; without either it never counts as a repeat. A key stays when its message leaves the
queue: a message sent again after a failover may come long after the first one was consumed. A key
goes when `x-cache-size` others came behind it, or when `x-cache-ttl` is over in the machine's time.

Dead letters, recognised by their header `x-death`, pass a window without a check, whichever way
they come (a delay, a shovel). One that comes back to where it was published, as in retry schemes,
is the only copy, and would be lost.
Decision: docs/decisions/0065-a-repeat-is-known-by-its-key-in-a-window-of-the-queue.md.
"""

from collections import deque
from collections.abc import Iterable

from broker.machine.digest import MASK, window_element
from broker.machine.limits import WINDOW_KEYS_WORK
from broker.machine.move_log import FLAG, INDEX_MASK, MARK_MASK, REPEATED, row
from broker.machine.schedule import NEVER_US
from broker.machine.state import (
    CONTENT_HASH,
    IS_PERSISTENT,
    NO_TTL,
    NUMBER,
    Message,
    Noted,
    Queue,
    State,
    Window,
)

_FORGOTTEN_PER_MESSAGE = 2


def is_repeat(state: State, queue: Queue, window: Window, key: bytes, message: Message) -> bool:
    """Whether the window has the key of an incoming message, which is then dropped."""
    _forget_ended(state, queue, window, _FORGOTTEN_PER_MESSAGE)
    noted = window.by_key.get(key)
    if noted is None or not _stands_for(state, window, noted, message):
        return False
    what = REPEATED | FLAG if message[IS_PERSISTENT] else REPEATED
    at, low = state.position & INDEX_MASK, message[NUMBER] & MARK_MASK
    state.moves.append(row(what, at, queue.mark, noted[1], low, message[CONTENT_HASH]))
    queue.tally.drop_duplicate += 1
    return True


def note_key(
    state: State, queue: Queue, window: Window, key: bytes, seq: int, message: Message
) -> None:
    """The message has entered the queue: another one with its key is a repeat from here on."""
    if len(window.order) == window.size:
        _forget_first(state, window)
    noted = (key, seq, state.horizon_us, not message[IS_PERSISTENT])
    window.order.append(noted)
    window.by_key[key] = noted
    window.volatile += noted[3]
    _count(state, window, element(window, noted))
    _recheck(state, queue, window)


def _stands_for(state: State, window: Window, noted: Noted, message: Message) -> bool:
    """A key that a cold start drops does not stand for a message that it would keep."""
    _, _, noted_us, volatile = noted
    if volatile and message[IS_PERSISTENT]:
        return False
    return window.ttl_us == NO_TTL or state.now_us < noted_us + window.ttl_us


def element(window: Window, noted: Noted) -> int:
    return window_element(window.salt, *noted)


def recomputed_sum(window: Window, noted: Iterable[Noted]) -> int:
    """The sum of the elements of these, computed anew."""
    return sum([element(window, one) for one in noted]) & MASK


def _count(state: State, window: Window, elements: int) -> None:
    window.sum = (window.sum + elements) & MASK
    state.add(elements)


def _forget_first(state: State, window: Window) -> None:
    noted = window.order.popleft()
    if window.by_key.get(noted[0]) is noted:  # otherwise it was noted again since
        del window.by_key[noted[0]]
    window.volatile -= noted[3]
    _count(state, window, -element(window, noted))


def _end_us(window: Window) -> int:
    """When the time of the oldest key is over."""
    if window.ttl_us == NO_TTL or not window.order:
        return NEVER_US
    return window.order[0][2] + window.ttl_us


def _forget_ended(state: State, queue: Queue, window: Window, count_max: int) -> int:
    """Forget keys whose time is over, at most this many; return how many."""
    count = 0
    while count < count_max and _end_us(window) <= state.now_us:
        _forget_first(state, window)
        count += 1
    if count:
        _recheck(state, queue, window)
    return count


def _recheck(state: State, queue: Queue, window: Window) -> None:
    """The oldest key may have changed."""
    end_us = _end_us(window)
    if end_us < NEVER_US:
        state.remembering[queue.number] = queue
        # A past time counts from now: other ended keys have their turn before the rest.
        state.key_ends.note(queue.number, max(end_us, state.now_us))
    else:
        state.remembering.pop(queue.number, None)


def forget_what_ended(state: State) -> None:
    """Forget keys whose time is over, of all queues, as many as one tick may."""
    work = 0
    while work < WINDOW_KEYS_WORK:
        number = state.key_ends.take(state.now_us)
        if number is None:
            return
        queue = state.remembering.get(number)
        work += 1
        if queue is not None and queue.window is not None:
            work += _forget_ended(state, queue, queue.window, WINDOW_KEYS_WORK - work)
            _recheck(state, queue, queue.window)


def empty_window(state: State, queue: Queue) -> None:
    """The queue was purged, or is gone."""
    window = queue.window
    if window is not None and window.order:
        _count(state, window, -window.sum)
        state.discarded += [window.order, window.by_key]
        window.order, window.by_key = deque(), {}
        window.volatile = 0
        state.remembering.pop(queue.number, None)


def close_window(state: State, queue: Queue) -> None:
    """The queue is gone."""
    if queue.window is not None:
        empty_window(state, queue)
        state.key_ends.forget(queue.number)  # even if it was noted for keys that are gone
        state.window_keys -= queue.window.size
        queue.window = None


def forget_volatile_keys(state: State, queue: Queue) -> None:
    """A cold start dropped their messages, which may be sent again."""
    window = queue.window
    if window is None or not window.volatile:
        return
    gone = [noted for noted in window.order if noted[3]]
    _count(state, window, -recomputed_sum(window, gone))
    kept = [noted for noted in window.order if not noted[3]]
    state.discarded += [window.order, window.by_key]
    window.order, window.by_key = deque(kept), {noted[0]: noted for noted in kept}
    window.volatile = 0
    _recheck(state, queue, window)


def restore_keys(state: State, queue: Queue, noted: Iterable[Noted]) -> None:
    """Restore the keys of a new window, in order; the schedule comes with the snapshot."""
    window = queue.window
    assert window is not None
    window.order += noted
    window.by_key.update((one[0], one) for one in noted)
    window.volatile += sum([one[3] for one in noted])
    window.sum = (window.sum + recomputed_sum(window, noted)) & MASK
    if _end_us(window) < NEVER_US:
        state.remembering[queue.number] = queue


def check(state: State, queue: Queue) -> None:
    """Assert the invariants between commands."""
    window = queue.window
    if window is None:
        assert queue.number not in state.remembering
        return
    order = window.order
    assert len(order) <= window.size
    assert window.by_key == {one[0]: one for one in order}
    assert all(window.by_key[key] is one for key, one in window.by_key.items())
    assert window.sum == recomputed_sum(window, order), "its own sum is of these keys"
    assert window.volatile == sum(one[3] for one in order)
    times = [noted_us for _, _, noted_us, _ in order]
    assert times == sorted(times), "the oldest is the first"
    end_us = _end_us(window)
    assert (end_us < NEVER_US) == (queue.number in state.remembering)
    assert state.key_ends.times.get(queue.number, NEVER_US) <= max(end_us, state.now_us)
