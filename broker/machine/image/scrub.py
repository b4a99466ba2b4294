"""Scrubbing: hashes the messages at rest again, in small slices, to find corrupted memory.

A message that leaves a queue is hashed as it leaves; a scrub checks those that stay. Queue by
queue, the ready messages of one instant are hashed and compared with the queue's own sum; then the
numbers of each producer, and the keys that each queue remembers. The rest is summed up at once and
compared with the root.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from broker.machine.digest import MASK, item_hash, ready_element, window_element
from broker.machine.image.invariants import recompute_root
from broker.machine.publishing.numbers import places, recomputed_sum
from broker.machine.queueing.queue import seq_at
from broker.machine.state import (
    CONTENT_HASH,
    NUMBER,
    Message,
    Noted,
    Queue,
    State,
    all_queues,
    rehash_wholly,
)
from broker.waiting.backlog import Backlog
from broker.waiting.blocks import read_along
from broker.waiting.places import Places

REST_MAX = 5_000
"""A larger rest is not summed up, because nothing else happens meanwhile: ten milliseconds."""


class Fault(NamedTuple):
    """A sum that no longer holds; `where` is for people."""

    where: str
    what: str


def _numbered(
    parts: Iterator[tuple[Message, ...] | None], first: int, recovered: int
) -> Iterator[tuple[int, bool, Message] | None]:
    seq = first
    for messages in parts:
        if messages is None:
            yield None
            continue
        for message in messages:
            yield seq, seq < recovered, message
            seq += 1


class Scrub:
    """One pass over a state that changes between the slices."""

    def __init__(self, state: State) -> None:
        self.messages = 0
        self.left_out = False  # the rest was too large
        self.done = False
        self._state = state
        self._producers = [
            (vhost.name, name, producer)
            for vhost in state.vhosts.values()
            for of_user in vhost.producers.values()
            for name, producer in of_user.items()
        ]
        self._queues = [queue for vhost in state.vhosts.values() for queue in all_queues(vhost)]
        self._queues.reverse()
        self._windows = [queue for queue in self._queues if queue.window is not None]
        self._keys: tuple[Queue, int, deque[Noted]] | None = None  # of one window; not hashed yet
        self._keys_total = 0
        self._queue: Queue | None = None
        self._returned: Places[Message] = Places()
        self._ready: Backlog[Message] = Backlog()
        self._unread: Iterator[tuple[int, bool, Message] | None] = iter(())  # messages of both
        self._waits = False  # for the disk
        self._source = self._ready  # a different one now means that the queue was purged
        self._plain = False  # it has messages that were never taken
        self._first = self._at = 0  # the first place of these, and the last one looked at
        self._expected = self._total = 0

    def step(self, messages: int) -> Fault | None:
        """Hash about this many messages, or fewer while others are being read from disk; return the
        first fault."""
        self._waits = False
        while messages > 0 and not self.done and not self._waits:
            if self._queue is not None and self._is_gone(self._queue):
                self._let_go()  # unread parts would still take memory, and disk
            if self._queue is None and not self._next_queue():
                if self._producers:
                    count, fault = self._next_producer()
                elif self._keys is not None or self._windows:
                    count, fault = self._next_keys(messages)
                else:
                    self.done = True
                    return self._rest()
            else:
                count, fault = self._hash(messages)
                self.messages += count
            messages -= count + 1
            if fault is not None:
                self.done = True
                return fault
        return None

    def _is_gone(self, queue: Queue) -> bool:
        """The queue was purged, or its consumers are ahead of this pass: its messages are hashed
        anyway when they leave."""
        first = queue.next_seq - len(queue.ready)
        return queue.ready is not self._source or (self._plain and first > self._at)

    def _next_producer(self) -> tuple[int, Fault | None]:
        vhost, name, producer = self._producers.pop()
        if recomputed_sum(producer) == producer.sum:
            return places(producer), None
        where = f"producer '{name}' in vhost '{vhost}'"
        return places(producer), Fault(where, "its numbers are not those that it used")

    def _next_keys(self, keys: int) -> tuple[int, Fault | None]:
        """Hash some keys of a window, as the window was when its turn began."""
        if self._keys is None:
            queue = self._windows.pop()
            if queue.window is None:  # the queue was deleted
                return 0, None
            self._keys = queue, queue.window.sum, queue.window.order.copy()
            self._keys_total = 0
        queue, expected, order = self._keys
        some = [order.popleft() for _ in range(min(keys, len(order)))]
        salt = item_hash("window", queue.number)
        self._keys_total += sum([window_element(salt, *noted) for noted in some])
        if order:
            return len(some), None
        self._keys = None
        if self._keys_total & MASK == expected:
            return len(some), None
        where = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
        return len(some), Fault(where, "its keys are not those of the messages that it took")

    def _next_queue(self) -> bool:
        while self._queues and self._queues[-1].deleted:
            self._queues.pop()
        if not self._queues:
            return False
        queue = self._queues.pop()
        # Messages never change, so references taken at this instant are as good as the queue.
        self._queue = queue
        self._returned = queue.returned.copy()
        self._source, self._ready = queue.ready, queue.ready.copy()
        first, recovered = queue.next_seq - len(self._ready), queue.recovered_seq
        self._plain, self._first, self._at = bool(self._ready), first, first
        fresh = _numbered(read_along(self._ready.drain_parts()), first, recovered)
        returned = ((*seq_at(queue, at), one) for at, one in self._returned.items())
        self._unread = chain(returned, fresh)
        self._expected, self._total = queue.ready_sum, 0
        return True

    def _hash(self, messages: int) -> tuple[int, Fault | None]:
        queue = self._queue
        assert queue is not None
        place, count = f"queue '{queue.name}' in vhost '{queue.vhost.name}'", 0
        for found in islice(self._unread, messages):
            if found is None:
                self._waits = True
                return count, None
            seq, redelivered, message = found
            count += 1
            if seq >= self._first:
                self._at = seq
            content = rehash_wholly(message)
            if content != message[CONTENT_HASH]:
                what = f"message {message[NUMBER]} is not what was published"
                return count, Fault(place, what)
            self._total += ready_element(content, queue.number, seq, redelivered)
        if count < messages:
            self._let_go()
            if self._total & MASK != self._expected:
                return count, Fault(place, "its messages are not those that it took in")
        return count, None

    def _let_go(self) -> None:
        """Let go of the current queue; these may be the last references to a million messages."""
        self._state.discarded += (self._ready, self._returned)
        self._queue, self._unread = None, iter(())
        self._ready, self._returned = Backlog(), Places()

    def _rest(self) -> Fault | None:
        state = self._state
        held = (len(one.unacked) + len(one.unsent) for one in state.channels.values())
        things = sum(held) + 2 * len(state.channels) + sum(map(len, state.definitions.values()))
        for vhost in state.vhosts.values():
            things += sum(1 + len(queue.returns) for queue in all_queues(vhost))
            things += sum(
                len(one.last_values.superseded) for one in vhost.queues.values() if one.last_values
            )
            things += sum(len(one.groups.kept) for one in vhost.queues.values() if one.groups)
            things += sum(1 + len(e.bindings) for e in vhost.exchanges.values())
        if things > REST_MAX:
            self.left_out = True
            return None
        if recompute_root(state, fresh=True) != state.digest:
            return Fault("the rest of the state", "its sum is not the root")
        return None
