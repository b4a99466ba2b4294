"""G12, G20, G29, G30: a queue serves in its order, and holds what its moves leave in it.

The reference model: dicts and heaps, written from AMQP's promises about a queue. It executes moves
one at a time and raises `ModelMismatch` for an impossible one. The first ready message in the order
of service is the next to leave; a message that comes back takes its old place; a cold start keeps
persistent messages. A reader of a stream gets the next message that is kept, which stays, as all
messages of a stream do at a cold start; a reader that browses another queue gets the next waiting
message. In a last-value queue a message may leave from anywhere, for the one that enters next. In a
queue with message groups, whose keys the log does not have, a message may go to any consumer, or
expire, while others wait before it. The model shares no code with the broker: the hash of ready
messages is recomputed from its definition in docs/MEMBERLOG.md.

It may begin at the figures of a checkpoint. The messages of that time are *unknown*: only their
numbers, ready and held, are known, and that they are older than later messages.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

ReaderRow = tuple[int, int, int, int, bool]
"""Number of the queue, channel, name, the next place to send, whether it has a filter."""
_new = tuple.__new__  # faster than by keywords
_PLACE = struct.Struct("<QQQQQ")
_MASK = (1 << 64) - 1
_RANK_SHIFT = 54
_STREAM = 257  # as the highest priority: a stream
_GROUPS = 259  # as the highest priority: messages have groups, and each of these an order
_LAST_VALUES = 258  # as the highest priority: a last-value queue, in the order of arrival
_DELAYS = 256  # as the highest priority: a queue of delayed messages, by due time
_ARRIVAL_BITS = 21  # of the number in which one came, in its place there
_PUBLISHED, _ENQUEUED, _DELIVERED, _SETTLED, _RETURNED = 1, 2, 3, 4, 5
_DROPPED, _PURGED, _DECLARED, _RECOVERED, _REPEATED = 6, 7, 8, 9, 10
_READER, _READ, _READ_END, _NOTED = 11, 12, 13, 14
_MEMBER_LOST = 3  # a return that a message is not blamed for
_AGAIN = 3  # a publish that names an earlier message, and makes none
_EXPIRED = 0  # a drop by age
_REPLACED = 4  # a drop for the message that enters next
_PURGE_OF_DELETE, _PURGE_OF_COLD_START = 1, 2


class ModelMismatch(Exception):
    """An impossible move, or a different state: the broken rule, and the expected value."""

    def __init__(self, rule: str, more: str) -> None:
        super().__init__(rule, more)
        self.rule, self.more = rule, more


class QueueFigures(NamedTuple):
    """Figures of a queue, as a checkpoint states them."""

    ready: int
    unacked: int
    next_seq: int
    ready_sum: int

    def __str__(self) -> str:
        return (
            f"{self.ready} ready, {self.unacked} held, next place {self.next_seq}, "
            f"sum {self.ready_sum:016x}"
        )


class Message(NamedTuple):
    """The known facts about a message."""

    content: int
    persistent: bool | None  # None: unknown
    redelivered: bool
    body: int | None = None  # its hash; None: unknown, and so are its returns
    returns: int = 0  # but for those with a lost member


@dataclass(slots=True)
class ModelQueue:
    """A queue: its messages by place, ready or held."""

    number: int
    ranked: bool  # a place has a priority, and is kept by a cold start
    delays: bool = False
    next_seq: int = 0
    unknown_ready: int = 0
    unknown_held: int = 0
    floor: int = 0  # unknown messages are before this place
    last_unknown: int = -1  # the unknown one that left last
    unknown_sum: int = 0  # of the unknown ready messages
    ready: dict[int, Message] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)  # the places of `ready`, a heap
    held: dict[int, tuple[Message, int]] = field(default_factory=dict)  # with its channel
    cold: bool = False  # a cold start has stated the former messages, and will state the kept ones
    stream: bool = False
    last_values: bool = False
    grouped: bool = False
    # By name: a lower bound of the next place to send, the channel, and whether it has a filter.
    readers: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    reads: Counter[tuple[int, int]] = field(default_factory=Counter)  # by place and channel

    def figures(self) -> QueueFigures:
        """Return the figures that a checkpoint should state of this queue now.

        The sum is computed here, because most messages come and go between two checkpoints.
        """
        held = len(self.held) + self.unknown_held + self.reads.total() * self.stream
        total = self.unknown_sum + sum(self._hash(seq, one) for seq, one in self.ready.items())
        return QueueFigures(self.count(), held, self.next_seq, total & _MASK)

    def is_plain(self) -> bool:
        """Return whether it serves in the order of places, and all ready messages are known."""
        return not (self.ranked or self.stream or self.cold or self.unknown_ready)

    def count(self) -> int:
        return len(self.ready) + self.unknown_ready

    def first(self) -> int:
        """Return the offset of the first message of a stream that is kept."""
        return self.next_seq - self.count()

    def arrival(self, seq: int) -> int:
        """Return how many messages arrived before this one; for delayed ones, its low bits."""
        if self.delays:
            return (seq >> 1) & ((1 << _ARRIVAL_BITS) - 1)
        return (seq & ((1 << _RANK_SHIFT) - 1)) >> 1 if self.ranked else seq

    def next_arrival(self) -> int:
        return self.next_seq & ((1 << _ARRIVAL_BITS) - 1) if self.delays else self.next_seq

    def is_next(self, seq: int) -> bool:
        """Return whether this is the place of the next message."""
        if self.ranked:
            return self.arrival(seq) == self.next_arrival()
        return seq == self.next_seq

    def may_be_unknown(self, seq: int) -> bool:
        """Return whether a message at this place may be older than the known ones."""
        return self.delays or self.arrival(seq) < self.floor

    def add(self, seq: int, message: Message) -> None:
        self.ready[seq] = message
        heappush(self.order, seq)

    def _hash(self, seq: int, message: Message) -> int:
        return xxh3_64_intdigest(
            _PLACE.pack(message.content, self.number, seq, 0, message.redelivered)
        )

    def leave(self, seq: int, content: int, redelivered: bool) -> Message:
        """Remove and return the first ready message; `ModelMismatch` if it is another one."""
        while self.order and self.order[0] not in self.ready:  # it was replaced
            heappop(self.order)
        oldest = self.order[0] if self.order else None
        if seq == oldest or seq in self.ready:
            if seq != oldest:
                raise ModelMismatch("wrong message", f"place {oldest} was ready")
            if self.unknown_ready and not self.ranked and seq >= self.floor:
                raise ModelMismatch("wrong message", f"{self.unknown_ready} older ones were ready")
            heappop(self.order)
            return self.leave_anywhere(seq, content, redelivered)
        left = self.leave_anywhere(seq, content, redelivered)
        if oldest is not None and oldest < seq:
            raise ModelMismatch("wrong message", f"place {oldest} was ready")
        if seq <= self.last_unknown and not self.ranked:
            raise ModelMismatch("wrong message", f"place {self.last_unknown} left before")
        self.last_unknown = seq
        return left

    def leave_anywhere(self, seq: int, content: int, redelivered: bool) -> Message:
        """Remove and return a ready message, wherever it is."""
        known = self.ready.pop(seq, None)
        if known is not None:
            if known.content != content or known.redelivered != redelivered:
                raise ModelMismatch("impossible", f"there it is {known}")
            return known
        if not self.unknown_ready or not self.may_be_unknown(seq) or seq in self.held:
            raise ModelMismatch("impossible", "it is not ready")
        left = Message(content, None, redelivered)
        self.unknown_ready -= 1
        self.unknown_sum -= self._hash(seq, left)
        return left

    def give_up(self, seq: int, channel: int, content: int | None) -> Message:
        """Release a message that a channel holds, and return it."""
        if (known := self.held.pop(seq, None)) is not None:
            message, holder = known
            if holder != channel:
                raise ModelMismatch("impossible", f"channel {holder:08x} held it")
            if content not in (None, message.content):
                raise ModelMismatch("impossible", f"it was {message.content:016x}")
            return message
        if not self.unknown_held or not self.may_be_unknown(seq) or seq in self.ready:
            raise ModelMismatch("impossible", "nobody held it")
        self.unknown_held -= 1
        return Message(content or 0, None, True)

    def is_read(self) -> bool:
        """Return whether there may be readers: not if new messages may come before their places."""
        return not self.ranked or self.last_values or self.grouped

    def read(self, op: int, flag: bool, seq: int, of: int, detail: int) -> None:
        """Open a reader, send it a waiting message, or end it; moves nothing."""
        if not self.is_read():
            raise ModelMismatch("impossible", "nobody reads in this queue")
        if op == _READER:
            if seq and not self.stream:
                raise ModelMismatch("wrong read", "who browses begins with the first that waits")
            self.readers[detail] = seq, of, flag
        elif op == _READ:
            if detail not in self.readers:
                raise ModelMismatch("wrong read", "there is no such reader")
            after, channel, filtered = self.readers[detail]
            if of != channel:
                raise ModelMismatch("wrong read", f"it is one of channel {channel:08x}")
            if self.stream:
                self._read_next(self.next_read(after), seq, filtered)
            else:
                self._browse(after, seq)
            self.readers[detail] = self.behind(seq), of, filtered
            self.reads[seq, of] += 1
        elif self.reads[seq, of]:
            self.reads[seq, of] -= 1
        elif self.unknown_held and self.stream:
            self.unknown_held -= 1
        elif self.stream or not self.may_be_unknown(seq):
            raise ModelMismatch("impossible", "nobody read it")
        if op == _READ_END and not self.reads[seq, of]:
            del self.reads[seq, of]

    def behind(self, seq: int) -> int:
        """Return the first place behind this message, also if it comes back to a ranked queue."""
        return (seq | 1 if self.ranked else seq) + 1

    def next_read(self, after: int) -> int:
        """Return the place from which a reader is sent messages."""
        return max(after, self.first()) if self.stream else after

    def _read_next(self, expected: int, seq: int, filtered: bool) -> None:
        if seq < expected or (seq > expected and not filtered) or seq >= self.next_seq:
            more = f"the next one is at {expected}, of {self.first()} to {self.next_seq - 1}"
            raise ModelMismatch("wrong read", more)

    def _browse(self, after: int, seq: int) -> None:
        """The next waiting message; some unknown messages may have waited before it."""
        if seq < after:
            raise ModelMismatch("wrong read", f"the next one is at {after} or later")
        if seq not in self.ready and not (self.unknown_ready and self.may_be_unknown(seq)):
            raise ModelMismatch("wrong read", "no message waits there")
        ahead: Iterable[int] = range(after, seq)
        if len(self.ready) < seq - after:
            ahead = (at for at in self.ready if after <= at < seq)
        passed = min((at for at in ahead if at in self.ready), default=None)
        if passed is not None:
            raise ModelMismatch("wrong read", f"place {passed} waits, and is before it")

    def clear(self) -> None:
        """Remove all ready messages."""
        self.ready.clear()
        self.order.clear()
        self.unknown_ready = self.unknown_sum = 0


def _queue_of(number: int, max_priority: int) -> ModelQueue:
    ranked = 0 <= max_priority <= _DELAYS or max_priority in (_LAST_VALUES, _GROUPS)
    return ModelQueue(
        number, ranked, max_priority == _DELAYS,
        stream=max_priority == _STREAM, last_values=max_priority == _LAST_VALUES,
        grouped=max_priority == _GROUPS,
    )  # fmt: skip


class Model:
    """Reference model of all queues."""

    def __init__(self, next_message: int) -> None:
        self.next_message = next_message
        self.moved: Message | None = None  # by the last move, if it left or was let go
        self._body = 0  # of the last publish
        self.queues: dict[int, ModelQueue] = {}

    def begin(self, number: int, figures: QueueFigures, max_priority: int) -> None:
        """Add a queue of which only figures are known."""
        queue = self.queues[number] = _queue_of(number, max_priority)
        queue.next_seq = queue.floor = figures.next_seq
        queue.unknown_ready, queue.unknown_held = figures.ready, figures.unacked
        queue.unknown_sum = figures.ready_sum

    def move(
        self, op: int, flag: bool, cause: int, number: int, seq: int, of: int, detail: int
    ) -> None:
        """Execute a move; `ModelMismatch` if it is impossible."""
        self.moved = None
        if op == _PUBLISHED:
            return None if cause == _AGAIN else self._publish(seq, detail)
        if op == _NOTED:
            return
        if op == _DECLARED:
            if number in self.queues:
                raise ModelMismatch("impossible", "this queue is there already")
            self.queues[number] = _queue_of(number, of - 1)
            return
        queue = self.queues.get(number)
        if queue is None:
            if op not in (_SETTLED, _READ_END):
                raise ModelMismatch("impossible", "there is no such queue")
            return
        if queue.cold is not (op == _RECOVERED):
            raise ModelMismatch(
                "impossible", "a cold start tells what was there, and then what stays"
            )
        if op == _ENQUEUED:
            if not queue.is_next(seq):
                raise ModelMismatch("impossible", f"the next place is {queue.next_seq}")
            queue.next_seq += 1
            queue.add(seq, _new(Message, (detail, flag, False, self._body, 0)))
        elif op == _DELIVERED:
            leave = queue.leave_anywhere if queue.grouped else queue.leave
            queue.held[seq] = leave(seq, detail, flag), of
        elif op == _SETTLED:
            self.moved = queue.give_up(seq, of, None)
        elif op in (_READER, _READ, _READ_END):
            queue.read(op, flag, seq, of, detail)
        elif op == _DROPPED and cause == _REPLACED:
            if not queue.last_values:
                raise ModelMismatch("impossible", "this queue keeps no last values")
            queue.leave_anywhere(seq, detail, flag)
        elif op == _DROPPED:
            anywhere = queue.grouped and cause == _EXPIRED
            self.moved = (queue.leave_anywhere if anywhere else queue.leave)(seq, detail, flag)
        elif op == _RETURNED:
            left = queue.give_up(seq, of, detail)
            count = left.returns + (cause != _MEMBER_LOST)
            queue.add(seq, left._replace(redelivered=True, returns=count))
        elif op == _PURGED:
            if (of, seq) != (queue.count(), queue.next_seq):
                more = f"{queue.count()} were ready, and the next place is {queue.next_seq}"
                raise ModelMismatch("wrong state", more)
            queue.cold = cause == _PURGE_OF_COLD_START
            if not queue.cold:  # otherwise RECOVERED, the next move, states the kept messages
                queue.clear()
            if cause == _PURGE_OF_DELETE:
                del self.queues[number]
        elif op == _REPEATED:
            if queue.arrival(seq) >= queue.next_arrival():
                raise ModelMismatch("impossible", f"the next place is {queue.next_seq}")
        elif op == _RECOVERED:
            _recover(queue, seq, of, detail)

    def _publish(self, number: int, body: int) -> None:
        self._body = body
        if number and number != self.next_message:
            raise ModelMismatch("impossible", f"the next message has number {self.next_message}")
        self.next_message += 1 if number else 0

    def pass_over(self, published: int, body: int) -> None:
        """Count messages that were published, the last one with this body."""
        self.next_message += published
        self._body = body

    def misplaced(self, readers: Iterable[ReaderRow]) -> Iterator[tuple[int, str]]:
        """Yield the queues of readers whose place in the log differs from that of their moves."""
        for number, channel, name, offset, filtered in readers:
            queue = self.queues.get(number)
            if queue is None or not queue.is_read():
                yield number, "it has readers, and is no queue that can be read"
                continue
            known = queue.readers.get(name)
            if known is None:
                yield number, f"no reader {name:016x} was opened; the log: {offset}"
            else:
                at, logged = queue.next_read(known[0]), queue.next_read(offset)
                skips = filtered and logged > at
                if known[1:] != (channel, filtered) or (logged != at and not skips):
                    yield number, f"reader {name:016x} is to get {at}; the log: {logged}"

    def take_readers(self, readers: Iterable[ReaderRow]) -> None:
        """Forget the readers that have ended: the given ones are complete."""
        for queue in self.queues.values():
            queue.readers.clear()
        for number, channel, name, offset, filtered in readers:
            if number in self.queues:
                self.queues[number].readers[name] = offset, channel, filtered

    def differences(self, figures: dict[int, QueueFigures]) -> list[tuple[int, str]]:
        """Return the queues whose figures differ from those of the log, with both in words."""
        found: list[tuple[int, str]] = []
        for number in sorted({*figures, *self.queues}):
            queue, logged = self.queues.get(number), figures.get(number)
            here = None if queue is None else queue.figures()
            if here != logged:
                found.append((number, f"{here or 'no such queue'}; the log: {logged or 'none'}"))
        return found


def _recover(queue: ModelQueue, first: int, kept: int, ready_sum: int) -> None:
    """Apply a cold start: persistent messages stay, flagged; in a plain queue renumbered."""
    queue.cold = False
    if queue.held or queue.unknown_held:
        raise ModelMismatch("impossible", "messages were still held")
    if first != (0 if queue.ranked else queue.next_seq):
        raise ModelMismatch("wrong state", f"the next place is {queue.next_seq}")
    if queue.unknown_ready or any(one.persistent is None for one in queue.ready.values()):
        # Which of them are persistent is not known.
        if kept > queue.count():
            raise ModelMismatch("wrong state", f"only {queue.count()} were ready")
        if not queue.ranked:
            queue.next_seq = first + kept
        queue.clear()
        queue.unknown_ready, queue.unknown_sum = kept, ready_sum
        queue.floor, queue.last_unknown = queue.next_seq, -1
        return
    persistent = [(seq, one) for seq, one in sorted(queue.ready.items()) if one.persistent]
    queue.clear()
    for place, (seq, message) in enumerate(persistent, queue.next_seq):
        queue.add(seq if queue.ranked else place, message._replace(redelivered=True))
    if not queue.ranked:
        queue.next_seq += len(persistent)
    total = queue.figures().ready_sum
    if (kept, ready_sum) != (len(persistent), total):
        more = f"{len(persistent)} persistent ones with sum {total:016x} should be kept"
        raise ModelMismatch("wrong state", more)
