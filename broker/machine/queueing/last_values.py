"""Last-value queues: which message waits for each key, and which ones were superseded.

Applies `broker.waiting.last_values`, which works on keys, to messages, and keeps the digest.
"""

from broker.machine.digest import MASK, item_hash
from broker.machine.requests.message_keys import key_by
from broker.machine.state import PROPERTIES, Message, Queue, State
from broker.waiting.last_values import LastValues


def last_value_key(last: LastValues, message: Message) -> bytes:
    """The key by which a message of this queue replaces an older one; none: it replaces nothing."""
    return key_by(message[PROPERTIES], last.raw_header)


def wait_as_last(state: State, queue: Queue, last: LastValues, seq: int, message: Message) -> None:
    """It waits in the queue, the newest of its key."""
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
    """A newer message came while a channel holds this one."""
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


def close_last_values(state: State, queue: Queue) -> None:
    """The queue is gone, and with it its waiting messages."""
    last = queue.last_values
    if last is not None:
        state.remove(last.elements)
        state.discarded.append(last.held)
        queue.last_values = None
