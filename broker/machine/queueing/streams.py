"""Streams: queues that are read without being consumed.

A stream's messages are the `ready` ones of its queue, and their numbers there are the offsets, from
0 on. They leave only when they are no longer kept (`x-max-length-bytes`, `x-max-age`). Each
consumer has a *reader*, which knows the offset that it is sent next; what a channel holds of a
stream are offsets, and to settle one gives credit and moves nothing.

What readers get is sent at the end of each command, in turns and as much as one position may cost;
the rest follows at the next ones. Only the member whose client reads looks at the messages for it.
Decision: docs/decisions/0079-a-stream-is-read-at-offsets.md.
"""

from collections import deque
from collections.abc import Iterable

from broker.machine.clock.cluster_time import recheck_deadlines
from broker.machine.commands import Table, Value
from broker.machine.digest import MASK, held_element, item_hash, ready_element
from broker.machine.effects import DeliverEffect
from broker.machine.limits import (
    CHANNEL_HELD_MAX,
    PASSED_PER_READ,
    READS_MAX,
    READS_PER_TURN,
    STREAM_TIMES_MAX,
)
from broker.machine.move_log import ENQUEUED, FLAG, INDEX_MASK, MARK_MASK, READ, READER, row
from broker.machine.policies.settings import age_us, erlang
from broker.machine.queueing.arguments import filter_of
from broker.machine.queueing.dispatch import has_room
from broker.machine.queueing.properties import headers_of, with_new_header
from broker.machine.queueing.refusals import (
    Refusal,
    invalid_argument,
    needs_prefetch,
    not_on_stream,
)
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    EXCHANGE,
    IS_PERSISTENT,
    KEY,
    NO_TTL,
    NUMBER,
    PROPERTIES,
    STAYS,
    Channel,
    Consumer,
    Message,
    Queue,
    Reader,
    State,
    Stream,
)
from broker.machine.tally import count_delivery
from broker.waiting.filter_column import NONE, entry_of
from broker.waiting.stream_log import StreamLog

OFFSET = "x-stream-offset"
"""The consumer argument that says where to begin, and the header of each delivery."""
AT_TIME = "@"
"""Begins a time in seconds, as the gateway writes a timestamp in that argument: commands have no
type for it (broker/frontend/methods.py)."""
FILTER_VALUE = "x-stream-filter-value"
"""The header by which readers choose (`x-stream-filter`)."""
_IN_BYTES = FILTER_VALUE.encode()
_FORGOTTEN_PER_MESSAGE = 4
_SECOND_US = 1_000_000


def first_offset(queue: Queue) -> int:
    """Of the messages that are kept; the next one, if there are none."""
    return queue.next_seq - len(queue.ready)


def column_entry(message: Message) -> bytes:
    """What the stream's column has for it."""
    properties = message[PROPERTIES]
    if _IN_BYTES not in properties:
        return NONE
    value = headers_of(properties).get(FILTER_VALUE)
    return entry_of(value) if isinstance(value, str | bytes) else NONE


def lag(queue: Queue, consumer: Consumer) -> int:
    """How many kept messages a reader has not looked at yet."""
    reader = consumer.reader
    assert reader is not None
    return min(queue.next_seq - reader.offset, len(queue.ready)) if queue.ready else 0


def max_lag(queue: Queue) -> int:
    """That of the reader furthest behind."""
    return max((lag(queue, one) for one in queue.consumers.values()), default=0)


def enter(state: State, queue: Queue, stream: Stream, message: Message) -> None:
    """At the end. It stays until it is no longer kept, persistent or not."""
    offset, content = queue.next_seq, message[CONTENT_HASH]
    queue.next_seq = offset + 1
    queue.tally.publish += 1
    at, number = state.position & INDEX_MASK, message[NUMBER] & MARK_MASK
    what = ENQUEUED | FLAG if message[IS_PERSISTENT] else ENQUEUED
    state.moves.append(row(what, at, queue.mark, offset, number, content))
    size = len(message[BODY])
    state.full(queue.ready.append(message, size))
    queue.ready_bytes += size
    element = ready_element(content, queue.number, offset, False)
    queue.ready_sum = (queue.ready_sum + element) & MASK
    state.add(element + queue.salt)
    _note_time(state, queue, stream, offset)
    stream.column.note(first_offset(queue), offset, column_entry(message))
    if queue.ttl_us != NO_TTL:
        recheck_deadlines(state, queue)
    if queue.ready_bytes > queue.max_bytes >= 0:
        state.trimming[queue.number] = queue
    if stream.caught_up:
        queue.service.extend(stream.caught_up)
        stream.caught_up.clear()
    if queue.service:
        state.reading[queue.number] = queue


# -- readers -------------------------------------------------------------------------------------


def consume_refusal(
    state: State, channel: Channel, queue: Queue, no_ack: bool, prefetch: int, arguments: Table
) -> Refusal | None:
    """Why nobody may read like this, in RabbitMQ's words."""
    name, vhost = queue.name, queue.vhost.name
    given = arguments.get(OFFSET)
    if OFFSET in arguments and _start(state, queue, given) is None:
        kind = f"{{longstr,{erlang(given)}}}" if isinstance(given, str) else erlang(given)
        return invalid_argument(
            OFFSET, "queue", name, vhost, f"{{invalid_stream_offset_arg,{kind}}}"
        )
    if prefetch <= 0:
        return needs_prefetch(name, vhost)
    if no_ack:
        return not_on_stream("automatic acknowledgement not supported by stream", name, vhost)
    if channel.limit < CHANNEL_HELD_MAX:
        return not_on_stream("", name, vhost, "does not support global qos")
    return None


def open_reader(state: State, consumer: Consumer, arguments: Table) -> None:
    """It begins where the arguments say, which were checked."""
    queue, channel = consumer.queue, consumer.channel
    offset = _start(state, queue, arguments.get(OFFSET, "next"))
    assert offset is not None
    salt = item_hash("reader", channel.key, consumer.tag, state.position)
    consumer.reader = Reader(salt, offset, filter_of(arguments))
    at = state.position & INDEX_MASK
    what = READER | FLAG if consumer.reader.filter else READER
    state.moves.append(row(what, at, queue.mark, offset, channel.mark, salt))


def _start(state: State, queue: Queue, given: Value) -> int | None:
    """The offset at which to begin; None: nobody knows what is meant."""
    first = first_offset(queue)
    if isinstance(given, bool):
        return None
    if isinstance(given, int):
        return max(given, first)
    if not isinstance(given, str):
        return None
    if given == "first":
        return first
    if given == "last":
        return max(first, queue.next_seq - 1)
    if given == "next":
        return queue.next_seq
    if given.startswith(AT_TIME) and given[1:].isdecimal() and len(given) <= 20:
        return max(first, _offset_at(queue, int(given[1:])))
    back_us = age_us(given)
    if back_us < 0:
        return None
    return max(first, _offset_at(queue, max(0, state.time_us - back_us) // _SECOND_US))


def read(state: State) -> None:
    """Send to readers what they have credit for, as much as one position may cost."""
    work = READS_MAX
    while state.reading and work > 0:
        number, queue = next(iter(state.reading.items()))
        del state.reading[number]
        assert queue.stream is not None
        share = READS_PER_TURN * (1 + len(queue.service))
        while queue.service and work > 0 and share > 0:
            used = 1 + _send(state, queue, queue.stream, queue.service.popleft())
            work, share = work - used, share - used
        if queue.service:
            state.reading[number] = queue


def _send(state: State, queue: Queue, stream: Stream, consumer: Consumer) -> int:
    """Send one reader what it may have in one turn; return what that costs, in messages."""
    reader, channel = consumer.reader, consumer.channel
    assert reader is not None
    first, end, began = first_offset(queue), queue.next_seq, reader.offset
    offset = start = max(began, first)  # what it was to read may be kept no longer
    most = min(READS_PER_TURN, consumer.limit - consumer.outstanding)
    if reader.filter:
        offset, used = _send_matching(state, queue, stream, consumer, reader, offset, most)
    else:
        most = min(end, start + most)
        while offset < most and has_room(channel, consumer):
            _deliver(state, queue, consumer, reader, offset, offset - first)
            offset += 1
        used = offset - start
    reader.offset = offset
    state.add(reader.salt * (offset - began))
    if consumer.outstanding >= consumer.limit or not has_room(channel, consumer):
        consumer.waiting = False
    elif offset >= end:
        stream.caught_up.append(consumer)
    else:
        queue.service.append(consumer)
    return used


def _send_matching(
    state: State, queue: Queue, stream: Stream, consumer: Consumer, reader: Reader, start: int,
    most: int,
) -> tuple[int, int]:  # fmt: skip
    """Send it at most so many that it wants; return where it goes on, and what it costs: to pass
    over messages is cheap, and no less bounded."""
    wanted, offset, first, sent = reader.filter, start, first_offset(queue), 0
    until = min(queue.next_seq, start + READS_PER_TURN * PASSED_PER_READ // len(wanted))
    while sent < most and offset < until and has_room(consumer.channel, consumer):
        offset = stream.column.next_match(wanted, offset, until)
        if offset < until:
            _deliver(state, queue, consumer, reader, offset, offset - first)
            offset += 1
            sent += 1
    return offset, sent + (offset - start) * len(wanted) // PASSED_PER_READ


def _deliver(
    state: State, queue: Queue, consumer: Consumer, reader: Reader, offset: int, index: int
) -> None:
    channel = consumer.channel
    tag = channel.next_tag
    channel.next_tag = tag + 1
    consumer.outstanding += 1
    channel.outstanding += 1
    queue.unacked += 1
    channel.unacked[tag] = (queue, offset, STAYS, consumer, False)
    at = state.position & INDEX_MASK
    state.moves.append(row(READ, at, queue.mark, offset, channel.mark, reader.salt))
    count_delivery(queue.tally, channel.tally, channel.total, False, 1, 0)
    element = held_element(STAYS[CONTENT_HASH], queue.number, offset, channel.salt, tag + tag)
    state.add(element + channel.salt)
    if not channel.local:
        return
    assert isinstance(queue.ready, StreamLog)
    message = queue.ready.at(index, state.recent)
    _, conn, chan = channel.key
    state.effects.append(
        DeliverEffect(
            conn,
            chan,
            consumer.tag,
            tag,
            False,
            message[EXCHANGE],
            message[KEY],
            with_new_header(message[PROPERTIES], OFFSET, offset),
            message[BODY],
            False,
        )
    )


def forget_readers(queue: Queue) -> None:
    """Those that were taken out of the queue."""
    if queue.stream is not None:
        queue.stream.caught_up = [one for one in queue.stream.caught_up if one.waiting]


# -- times ---------------------------------------------------------------------------------------
# When messages came, to begin at a time: the first offset in each second in which one came. When
# there are too many seconds, steps become twice as long, and a reader begins so much earlier.


def time_element(queue: Queue, step_s: int, time: tuple[int, int]) -> int:
    return item_hash("time", queue.number, step_s, *time)


def recomputed_times(queue: Queue, stream: Stream) -> int:
    """The sum of the elements, computed anew."""
    return sum(time_element(queue, stream.step_s, one) for one in stream.times) & MASK


def _note_time(state: State, queue: Queue, stream: Stream, offset: int) -> None:
    times = stream.times
    step = state.time_us // (_SECOND_US * stream.step_s)
    if times and step <= times[-1][0]:
        return  # of the same one, or of a clock that is behind another
    times.append((step, offset))
    _count(state, stream, time_element(queue, stream.step_s, (step, offset)))
    first = first_offset(queue)
    for _ in range(_FORGOTTEN_PER_MESSAGE):
        if len(times) > 1 and times[1][1] <= first:
            _count(state, stream, -time_element(queue, stream.step_s, times.popleft()))
    if len(times) > STREAM_TIMES_MAX:
        kept: dict[int, int] = {}
        for one, at in times:
            kept.setdefault(one // 2, at)
        stream.step_s, stream.times = stream.step_s * 2, deque(kept.items())
        _count(state, stream, recomputed_times(queue, stream) - stream.times_sum)


def _count(state: State, stream: Stream, elements: int) -> None:
    stream.times_sum = (stream.times_sum + elements) & MASK
    state.add(elements)


def _offset_at(queue: Queue, seconds: int) -> int:
    """Of the first message that came then or later, or of one shortly before."""
    assert queue.stream is not None
    step = seconds // queue.stream.step_s
    return next((at for one, at in queue.stream.times if one >= step), queue.next_seq)


def restore_times(queue: Queue, step_s: int, times: Iterable[tuple[int, int]]) -> None:
    """Of a new stream, from a snapshot."""
    assert queue.stream is not None
    queue.stream.step_s = step_s
    queue.stream.times.extend((step, offset) for step, offset in times)
    queue.stream.times_sum = recomputed_times(queue, queue.stream)


def close_stream(state: State, queue: Queue) -> None:
    """The queue is gone."""
    if queue.stream is not None:
        state.remove(queue.stream.times_sum)
        queue.stream.caught_up.clear()
        state.reading.pop(queue.number, None)


def check(state: State, queue: Queue, stream: Stream) -> None:
    """Asserts what must hold between commands."""
    assert not queue.returned, "nothing comes back to a stream"
    assert not queue.timed, "nor has a message a time of its own there"
    assert queue.window is None
    assert stream.times_sum == recomputed_times(queue, stream)
    steps = [step for step, _ in stream.times]
    assert steps == sorted(dict.fromkeys(steps)), "times ascend"
    assert len(stream.times) <= STREAM_TIMES_MAX
    for offset, message in enumerate(queue.ready, first_offset(queue)):
        assert stream.column.at(offset) == column_entry(message)
    assert queue.number in state.reading or not queue.service or not queue.ready
    for consumer in stream.caught_up:
        assert consumer.waiting
        assert consumer.reader is not None
        assert consumer.reader.offset >= queue.next_seq, "it has read all there is"
