"""Reading without consuming: streams, and consumers that browse other queues.

A stream's messages are the `ready` ones of its queue, and their numbers are the offsets, from 0 on.
They leave only when they are no longer kept (`x-max-length-bytes`, `x-max-age`). Each consumer has
a *reader*, which knows the next offset to send. A channel holds only offsets of a stream; settling
one gives credit and moves nothing.

A consumer with the argument `x-filter-no-consume` is a reader of a queue from which others consume.
It is sent the waiting messages, from the first place on, and then new ones; it may miss messages
that are consumed before its turn. Decision: docs/decisions/0085-a-browser-is-a-reader.md.

Readers are sent messages at the end of each command, in turns and as many as one position may cost;
the rest follows at the next positions. Only the member whose client reads looks at the messages.
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
from broker.machine.queueing.dispatch import has_room, properties_for
from broker.machine.queueing.queue import place_of, seq_at, wake_readers
from broker.machine.requests.arguments import NO_CONSUME, filter_of, is_browse_only
from broker.machine.requests.properties import header_of, short_string, with_new_header
from broker.machine.requests.refusals import (
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
    RANK_SHIFT,
    STAYS,
    Channel,
    Consumer,
    Message,
    Queue,
    Reader,
    Readers,
    State,
    Stream,
)
from broker.machine.tally import count_delivery
from broker.waiting.filter_column import NONE, entry_of
from broker.waiting.stream_log import StreamLog

OFFSET = "x-stream-offset"
"""The consumer argument that says where to begin, and the header of each delivery."""
AT_TIME = "@"
"""Prefix of a time in seconds, as the gateway writes a timestamp in that argument: commands have no
type for it (broker/frontend/methods.py)."""
FILTER_VALUE = "x-stream-filter-value"
"""The header by which readers filter (`x-stream-filter`)."""
_IN_BYTES = short_string(FILTER_VALUE)
_FORGOTTEN_PER_MESSAGE = 4
_SECOND_US = 1_000_000


def first_offset(queue: Queue) -> int:
    """The first offset that is kept; the next one if no message is."""
    return queue.next_seq - len(queue.ready)


def column_entry(message: Message) -> bytes:
    """The message's entry in the stream's column."""
    value = header_of(message[PROPERTIES], _IN_BYTES)
    return entry_of(value) if isinstance(value, str | bytes) else NONE


def lag(queue: Queue, reader: Reader) -> int:
    """The number of messages that a reader has not looked at yet."""
    waiting = min(queue.next_seq - reader.offset, len(queue.ready)) if queue.ready else 0
    return max(0, waiting) + queue.returned.count_from(reader.offset)


def max_lag(queue: Queue) -> int:
    """The lag of the reader furthest behind."""
    readers = [one.reader for one in queue.consumers.values() if one.reader is not None]
    return max((lag(queue, reader) for reader in readers), default=0)


def enter(state: State, queue: Queue, stream: Stream, message: Message) -> None:
    """Append a message. It stays until it is no longer kept, persistent or not."""
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
    assert queue.readers is not None
    wake_readers(state, queue, queue.readers)


# -- readers -------------------------------------------------------------------------------------


def consume_refusal(
    state: State, channel: Channel, queue: Queue, no_ack: bool, prefetch: int, arguments: Table
) -> Refusal | None:
    """Why no consumer may read like this, in RabbitMQ's words."""
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
        return not_on_stream(
            "automatic acknowledgement not supported by stream queues", name, vhost
        )
    if channel.limit < CHANNEL_HELD_MAX:
        return not_on_stream("", name, vhost, "does not support global qos")
    return None


def browses(queue: Queue, arguments: Table) -> bool:
    """Whether a consumer with these arguments takes nothing. Consumers of a stream never do."""
    if queue.stream is not None:
        return False
    return arguments.get(NO_CONSUME) is True or is_browse_only(queue)


def readers_of(queue: Queue) -> Readers:
    """The readers of a queue, created if it had none."""
    if queue.readers is None:
        queue.readers, queue.ready = Readers(), StreamLog.of(queue.ready)
    return queue.readers


def open_reader(state: State, consumer: Consumer, arguments: Table) -> None:
    """Begin where the arguments say, which were checked; a browsing consumer begins with all
    waiting messages."""
    queue, channel = consumer.queue, consumer.channel
    readers_of(queue).count += 1
    offset = 0 if queue.stream is None else _start(state, queue, arguments.get(OFFSET, "next"))
    assert offset is not None
    salt = item_hash("reader", channel.key, consumer.tag, state.position)
    consumer.reader = Reader(salt, offset, filter_of(arguments))
    at = state.position & INDEX_MASK
    what = READER | FLAG if consumer.reader.filter else READER
    state.moves.append(row(what, at, queue.mark, offset, channel.mark, salt))


def _start(state: State, queue: Queue, given: Value) -> int | None:
    """The offset at which to begin; None if the argument is not understood."""
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
    """Send messages to readers with credit, as many as one position may cost."""
    work = READS_MAX
    while state.reading and work > 0:
        number, queue = next(iter(state.reading.items()))
        del state.reading[number]
        readers = queue.readers
        assert readers is not None
        share = READS_PER_TURN * (1 + len(readers.service))
        while readers.service and work > 0 and share > 0:
            used = 1 + _send(state, queue, readers, readers.service.popleft())
            work, share = work - used, share - used
        if readers.service:
            state.reading[number] = queue


def _send(state: State, queue: Queue, readers: Readers, consumer: Consumer) -> int:
    """Send one reader its messages for one turn; return the cost, in messages."""
    reader, channel = consumer.reader, consumer.channel
    assert reader is not None
    began, most = reader.offset, min(READS_PER_TURN, consumer.limit - consumer.outstanding)
    if queue.stream is None:
        used = _send_next(state, queue, consumer, reader, most)
    else:  # its next message may no longer be kept
        reader.offset = max(began, first_offset(queue))
        if reader.filter:
            used = _send_matching(state, queue, queue.stream, consumer, reader, most)
        else:
            used = _send_on(state, queue, consumer, reader, reader.offset, most)
    state.add(reader.salt * (reader.offset - began))
    if consumer.outstanding >= consumer.limit or not has_room(channel, consumer):
        consumer.waiting = False
    elif _next_place(queue, reader.offset) is None:
        readers.caught_up.append(consumer)
    else:
        readers.service.append(consumer)
    return used


def _send_next(state: State, queue: Queue, consumer: Consumer, reader: Reader, most: int) -> int:
    """Send a browsing consumer at most this many waiting messages; return how many."""
    sent, place = 0, queue.returned.next(reader.offset)
    while place is not None and sent < most and has_room(consumer.channel, consumer):
        seq, _ = seq_at(queue, place)
        _deliver(state, queue, consumer, reader, seq, place)
        reader.offset = place_of(queue, seq) + 1  # also when it comes back
        sent += 1
        place = queue.returned.next(reader.offset)
    if place is not None or not queue.ready:
        return sent
    start = max(reader.offset, first_offset(queue))
    return sent + _send_on(state, queue, consumer, reader, start, most - sent)


def _send_on(
    state: State, queue: Queue, consumer: Consumer, reader: Reader, start: int, most: int
) -> int:
    """Send at most this many of the never taken messages, from the offset `start` on."""
    channel, offset, end = consumer.channel, start, min(queue.next_seq, start + most)
    while offset < end and has_room(channel, consumer):
        _deliver(state, queue, consumer, reader, offset, offset)
        offset += 1
    if offset > start:
        reader.offset = offset
    return offset - start


def _send_matching(
    state: State, queue: Queue, stream: Stream, consumer: Consumer, reader: Reader, most: int
) -> int:
    """Send at most this many messages that pass the filter; return the cost: skipping messages is
    cheap, but bounded too."""
    wanted, start, sent = reader.filter, reader.offset, 0
    until = min(queue.next_seq, start + READS_PER_TURN * PASSED_PER_READ // len(wanted))
    offset = start
    while sent < most and offset < until and has_room(consumer.channel, consumer):
        offset = stream.column.next_match(wanted, offset, until)
        if offset < until:
            _deliver(state, queue, consumer, reader, offset, offset)
            offset += 1
            sent += 1
    reader.offset = offset
    return sent + (offset - start) * len(wanted) // PASSED_PER_READ


def _next_place(queue: Queue, offset: int) -> int | None:
    """The first place from this one on at which a message waits."""
    place = queue.returned.next(offset)
    if place is not None or not queue.ready:
        return place
    seq = max(offset, first_offset(queue))
    return seq if seq < queue.next_seq else None


def _deliver(
    state: State, queue: Queue, consumer: Consumer, reader: Reader, seq: int, place: int
) -> None:
    channel, no_ack = consumer.channel, consumer.no_ack
    tag = channel.next_tag
    channel.next_tag = tag + 1
    consumer.outstanding += 1
    if no_ack:
        channel.unsent[tag] = (queue, seq, STAYS, consumer, False)
    else:
        channel.unacked[tag] = (queue, seq, STAYS, consumer, False)
        channel.outstanding += 1
    queue.unacked += queue.stream is not None  # browsed messages are counted while they wait
    at = state.position & INDEX_MASK
    state.moves.append(row(READ, at, queue.mark, seq, channel.mark, reader.salt))
    count_delivery(queue.tally, channel.tally, channel.total, no_ack, 1, 0)
    element = held_element(STAYS[CONTENT_HASH], queue.number, seq, channel.salt, tag + tag)
    state.add(element + channel.salt)
    if not channel.local:
        return
    message = _message_at(state, queue, place)
    if queue.stream is not None:
        properties = with_new_header(message[PROPERTIES], OFFSET, seq)
    else:
        properties = properties_for(queue, seq, message)
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
            properties,
            message[BODY],
            no_ack,
        )
    )


def _message_at(state: State, queue: Queue, place: int) -> Message:
    if place in queue.returned:
        return queue.returned.at(place)
    assert isinstance(queue.ready, StreamLog)
    message: Message = queue.ready.at(place - first_offset(queue), state.recent)
    return message


def forget_readers(state: State, queue: Queue) -> None:
    """Forget readers removed from the queue. Without any an ordinary queue is as before."""
    readers = queue.readers
    if readers is None:
        return
    readers.caught_up = [one for one in readers.caught_up if one.waiting]
    readers.service = deque(one for one in readers.service if one.waiting)
    if not readers.service:
        state.reading.pop(queue.number, None)
    if not readers.count and queue.stream is None:
        queue.readers = None


def close_readers(state: State, queue: Queue) -> None:
    """The queue is gone."""
    queue.readers = None
    state.reading.pop(queue.number, None)


def check_readers(state: State, queue: Queue) -> list[Consumer]:
    """Assert the invariants between commands; return the waiting readers."""
    readers = queue.readers
    found = [one for one in queue.consumers.values() if one.reader is not None]
    if readers is None:
        assert not found
        return []
    assert readers.count == len(found)
    assert found or queue.stream is not None
    assert isinstance(queue.ready, StreamLog)
    for one in (*readers.service, *readers.caught_up):
        assert one.waiting
        assert one.reader is not None
    ahead = [one for one in readers.service if _next_place(queue, one.reader.offset) is not None]  # type: ignore[union-attr]
    assert not ahead or queue.number in state.reading, "they have their turn"
    for one in readers.caught_up:
        assert one.reader is not None
        assert _next_place(queue, one.reader.offset) is None, "it has read all there is"
    return [*readers.service, *readers.caught_up]


# -- looking -------------------------------------------------------------------------------------


_IN_RANK = (1 << RANK_SHIFT) - 1


def arrival_of(queue: Queue, seq: int) -> tuple[int, int]:
    """The rank of a message's priority, 0 the highest, and its arrival number."""
    return (0, seq) if queue.max_priority < 0 else (seq >> RANK_SHIFT, _arrival(seq))


def _arrival(place: int) -> int:
    """The arrival number of a place in a queue with priorities, returned or not."""
    return (place & _IN_RANK) >> 1


class There:
    """All messages of a queue at one moment, waiting or held, by arrival number: for a member that
    informs its own client, so not part of the state."""

    def __init__(self, state: State, queue: Queue) -> None:
        self._state, self._queue = state, queue
        held, self.looked_at = _held(state, queue)
        """Messages looked at, including those of other queues in the same channels."""
        waiting = {place: place for place in queue.returned}
        if queue.max_priority >= 0:  # their keys begin with their priority
            held = {_arrival(seq): one for seq, one in held.items()}
            waiting = {_arrival(place): place for place in waiting}
        self._held, self._waiting = held, waiting
        self.in_line: list[tuple[int, int]] = []
        """First and last of the never taken messages."""
        if queue.ready:
            self.in_line = [(first_offset(queue), queue.next_seq - 1)]
        self.out_of_line = sorted((*self._held, *self._waiting))
        self.looked_at += len(self._waiting)

    def message(self, place: int) -> Message:
        """The message with this arrival number."""
        found = self._held.get(place)
        if found is not None:
            return found
        queue = self._queue
        if place not in self._waiting and not isinstance(queue.ready, StreamLog):
            queue.ready = StreamLog.of(queue.ready)  # how it is stored is not part of the state
        return _message_at(self._state, queue, self._waiting.get(place, place))


def _held(state: State, queue: Queue) -> tuple[dict[int, Message], int]:
    """The messages of a queue that channels hold, by place, and the number of messages that those
    channels hold in all."""
    found: dict[int, Message] = {}
    looked_at = 0
    if queue.unacked:
        of_consumers = {one.channel.key: one.channel for one in queue.consumers.values()}
        looked_at = _collect(of_consumers.values(), queue, found)
        if len(found) < queue.unacked:  # by basic.get, or by cancelled consumers
            looked_at += _collect(state.channels.values(), queue, found)
    return found, looked_at


def _collect(channels: Iterable[Channel], queue: Queue, found: dict[int, Message]) -> int:
    looked_at = 0
    for channel in channels:
        for by_tag in (channel.unacked, channel.unsent):
            looked_at += 1 + len(by_tag)
            found |= {
                seq: message
                for of, seq, message, _, _ in by_tag.values()
                if of is queue and message is not STAYS
            }
    return looked_at


# -- times ---------------------------------------------------------------------------------------
# When messages came, for reading from a time on: the first offset in each second with a message.
# When there are too many seconds, steps double, and a reader begins that much earlier.


def time_element(queue: Queue, step_s: int, time: tuple[int, int]) -> int:
    return item_hash("time", queue.number, step_s, *time)


def recomputed_times(queue: Queue, stream: Stream) -> int:
    """The sum of the elements, computed anew."""
    return sum(time_element(queue, stream.step_s, one) for one in stream.times) & MASK


def _note_time(state: State, queue: Queue, stream: Stream, offset: int) -> None:
    times = stream.times
    step = state.time_us // (_SECOND_US * stream.step_s)
    if times and step <= times[-1][0]:
        return  # the same step, or from a clock that is behind another
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
    """The offset of the first message that came at this time or later, or shortly before."""
    assert queue.stream is not None
    step = seconds // queue.stream.step_s
    return next((at for one, at in queue.stream.times if one >= step), queue.next_seq)


def restore_times(queue: Queue, step_s: int, times: Iterable[tuple[int, int]]) -> None:
    """Restore the times of a new stream from a snapshot."""
    assert queue.stream is not None
    queue.stream.step_s = step_s
    queue.stream.times.extend((step, offset) for step, offset in times)
    queue.stream.times_sum = recomputed_times(queue, queue.stream)


def close_stream(state: State, queue: Queue) -> None:
    """The queue is gone."""
    if queue.stream is not None:
        state.remove(queue.stream.times_sum)


def check(state: State, queue: Queue, stream: Stream) -> None:
    """Assert the invariants between commands."""
    assert not queue.returned, "nothing comes back to a stream"
    assert not queue.timed, "nor has a message a time of its own there"
    assert queue.window is None
    assert stream.times_sum == recomputed_times(queue, stream)
    steps = [step for step, _ in stream.times]
    assert steps == sorted(dict.fromkeys(steps)), "times ascend"
    assert len(stream.times) <= STREAM_TIMES_MAX
    for offset, message in enumerate(queue.ready, first_offset(queue)):
        assert stream.column.at(offset) == column_entry(message)
