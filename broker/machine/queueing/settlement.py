"""Settlement: a message that a channel held returns to its queue, or leaves for good."""

from collections.abc import Iterable
from operator import itemgetter

from broker.machine.digest import element_of, held_element, place
from broker.machine.limits import TRIMMED_PER_MESSAGE_MAX
from broker.machine.move_log import (
    END_OF_READ,
    FLAG,
    GIVEN_UP,
    INDEX_MASK,
    LAPSED,
    MEMBER_LOST,
    SUPERSEDED,
    is_return,
    row,
)
from broker.machine.queueing.enqueue import is_plain
from broker.machine.queueing.groups import let_go_of_group
from broker.machine.queueing.last_values import let_go_of_last_value
from broker.machine.queueing.queue import count_return, counts_returns, forget_returns, put_back
from broker.machine.queueing.queue_limits import dead_letter, expire_at_once, trim
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    NUMBER,
    Channel,
    Consumer,
    Held,
    Queue,
    State,
    bytes_of,
    rehash,
    rehash_all,
)

_number = itemgetter(NUMBER)


def requeue(
    state: State, channel: Channel, tag: int, held: Held, what: int, *, counts: bool = True
) -> None:
    """Put a held message back in its place; the caller dispatches. A deleted queue takes none.
    `counts`: this return counts towards the queue's limit of deliveries."""
    queue, seq, message, _, _ = held
    content = message[CONTENT_HASH]
    if queue.deleted:
        release(state, channel, tag, held, content, LAPSED, tag)
        return
    if not message[NUMBER]:  # it is still there
        release(state, channel, tag, held, content, what, tag)
        return
    if queue.last_values is not None and seq in queue.last_values.superseded:
        queue.tally.replaced += 1
        release(state, channel, tag, held, rehash(message), SUPERSEDED, tag)
        return
    if counts and _came_back_too_often(state, queue, seq, what):
        what, limit = GIVEN_UP | FLAG, queue.delivery_limit
        release(state, channel, tag, held, rehash(message), what, limit)
        dead_letter(state, queue, message, "delivery_limit")
        return
    release(state, channel, tag, held, content, what, content)
    put_back(state, queue, seq, message)
    trim(state, queue, TRIMMED_PER_MESSAGE_MAX)
    if queue.expiring:
        expire_at_once(state, queue)


def _came_back_too_often(state: State, queue: Queue, seq: int, what: int) -> bool:
    """Count the return. The loss of a member is not the message's fault, and does not count."""
    if what == MEMBER_LOST or not counts_returns(queue):
        return False
    count = count_return(state, queue, seq)
    return 0 <= queue.delivery_limit < count


def release(
    state: State, channel: Channel, tag: int, held: Held, content: int, what: int, detail: int
) -> None:
    """Take a message from the channel that held it: the only place where credit comes back.

    `content` is its hash, computed anew by the caller when the message leaves for good; `what` and
    `detail` are the kind and the last field of the move to record.
    """
    queue, seq, message, consumer, redelivered = held
    state.moves.append(
        row(
            what if message[NUMBER] else END_OF_READ[what],
            state.position & INDEX_MASK,
            queue.mark,
            seq,
            channel.mark,
            detail,
        )
    )
    state.remove(held_element(content, queue.number, seq, channel.salt, tag + tag + redelivered))
    if message[NUMBER]:
        queue.unacked -= 1
        queue.unacked_bytes -= len(message[BODY])
        if queue.returns and not is_return(what):
            forget_returns(state, queue, seq)
        if queue.last_values is not None:
            let_go_of_last_value(state, queue, queue.last_values, seq, message)
        if queue.groups is not None:
            let_go_of_group(state, queue, queue.groups, message)
    elif queue.stream is not None:
        queue.unacked -= 1
    if consumer is not None:
        consumer.outstanding -= 1
        if not consumer.no_ack:
            channel.outstanding -= 1


def release_all(
    state: State,
    channel: Channel,
    unsettled: dict[int, Held],
    settled: Iterable[tuple[int, int]],
    what: int,
) -> list[tuple[Queue, Consumer | None, int]]:
    """`release` messages that leave for good, by their positions and tags, in less time: shared
    properties of messages of one plain queue and consumer are looked up and counted once. Return
    the messages, in order, with their number."""
    runs: list[tuple[Queue, Consumer | None, int]] = []
    run: list[tuple[int, int, Held]] = []
    of: Queue | None = None
    by: Consumer | None = None
    pop = unsettled.pop
    for position, tag in settled:
        held = pop(tag)
        if held[0] is not of or held[3] is not by:
            if of is not None:
                runs.append((of, by, len(run)))
                _release_run(state, channel, of, by, run, what)
            of, by, run = held[0], held[3], []
        run.append((position, tag, held))
    if of is not None:
        runs.append((of, by, len(run)))
        _release_run(state, channel, of, by, run, what)
    return runs


def _release_run(
    state: State,
    channel: Channel,
    queue: Queue,
    consumer: Consumer | None,
    run: list[tuple[int, int, Held]],
    what: int,
) -> None:
    """Release messages of one queue and consumer, by position and tag."""
    messages = [held[2] for _, _, held in run]
    if not (is_plain(queue) and all(map(_number, messages))):  # without one: it was read, not taken
        for state.position, tag, held in run:
            release(state, channel, tag, held, rehash(held[2]), what, tag)
        return
    try:
        contents = rehash_all(messages)
    except Exception:
        for state.position, _, held in run:  # which one is at fault
            rehash(held[2])
        raise
    rows, mark, salt = state.moves, channel.mark, channel.salt
    number, queue_mark = queue.number, queue.mark
    elements = 0
    for (position, tag, held), content in zip(run, contents, strict=True):
        seq = held[1]
        rows.append(row(what, position & INDEX_MASK, queue_mark, seq, mark, tag))
        elements += element_of(place(content, number, seq, salt, tag + tag + held[4]))
        if queue.returns:
            forget_returns(state, queue, seq)
    state.position = run[-1][0]
    state.remove(elements)
    _released(channel, queue, consumer, len(run), bytes_of(messages))


def _released(
    channel: Channel, queue: Queue, consumer: Consumer | None, count: int, size: int
) -> None:
    queue.unacked -= count
    queue.unacked_bytes -= size
    if consumer is not None:
        consumer.outstanding -= count
        if not consumer.no_ack:
            channel.outstanding -= count


def tags_up_to(channel: Channel, tag: int, multiple: bool) -> list[int] | None:
    """The delivery tags that a settlement names, ascending; None if it names an unknown one."""
    unacked = channel.unacked
    if not multiple:
        return [tag] if tag in unacked else None
    if tag == 0:
        return list(unacked)
    if tag not in unacked:
        return None
    tags = []
    for one in unacked:
        tags.append(one)
        if one == tag:
            break
    return tags
