"""Scrubbing: hashing the messages at rest again in small slices, to find corrupted memory.

What leaves a queue is hashed again when it leaves; a scrub is for what stays. Queue by queue, the
ready messages of one instant are hashed again and summed up against the queue's own sum. What is
left, all that is not a ready message, is summed up at once against the root.
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from broker.machine.backlog import Backlog
from broker.machine.digest import MASK, ready_element
from broker.machine.image.invariants import recompute_root
from broker.machine.queueing.queue import seq_at
from broker.machine.state import CONTENT_HASH, NUMBER, Message, Queue, State, rehash

REST_MAX = 5_000
"""More things than this are not summed up, as nothing else happens meanwhile: ten milliseconds."""


class Fault(NamedTuple):
    """What does not hold any more; `where` for people."""

    where: str
    what: str


class Scrub:
    """One pass over a state that changes between the slices."""

    def __init__(self, state: State) -> None:
        self.messages = 0
        self.left_out = False  # the rest was too large
        self.done = False
        self._state = state
        self._queues = [queue for vhost in state.vhosts.values() for queue in vhost.queues.values()]
        self._queues.reverse()
        self._queue: Queue | None = None
        self._captured: list[tuple[int, bool, Message]] = []
        self._ready: Backlog[Message] = Backlog()
        self._unread: Iterator[Message] = iter(())  # of it
        self._source = self._ready  # another one: the queue was purged
        self._first = self._recovered = self._expected = self._total = self._at = 0

    def step(self, messages: int) -> Fault | None:
        """Hash about so many messages again; return the first thing that does not hold."""
        while messages > 0 and not self.done:
            if self._queue is not None and self._queue.ready is not self._source:
                self._let_go()  # it was purged: what is read no more would still take memory
            if self._queue is None and not self._next_queue():
                self.done = True
                return self._rest()
            count, fault = self._hash(messages)
            messages -= count + 1
            self.messages += count
            if fault is not None:
                self.done = True
                return fault
        return None

    def _next_queue(self) -> bool:
        while self._queues and self._queues[-1].deleted:
            self._queues.pop()
        if not self._queues:
            return False
        queue = self._queues.pop()
        # Messages never change, so references of this instant are as good as the queue.
        self._queue = queue
        self._captured = [(*seq_at(queue, at), one) for at, one in queue.returned.items()]
        self._source, self._ready = queue.ready, queue.ready.copy()
        self._unread = iter(self._ready)
        self._first = queue.next_seq - len(self._ready)
        self._recovered, self._expected = queue.recovered_seq, queue.ready_sum
        self._total = self._at = 0
        return True

    def _hash(self, messages: int) -> tuple[int, Fault | None]:
        queue, at = self._queue, self._at
        assert queue is not None
        place = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
        returned = len(self._captured)
        end = min(at + messages, returned + len(self._ready))
        first, recovered = self._first - returned, self._recovered
        fresh = (
            (first + i, first + i < recovered, message)
            for i, message in zip(range(max(at, returned), end), self._unread, strict=False)
        )
        for seq, redelivered, message in chain(self._captured[at:end], fresh):
            content = rehash(message)
            if content != message[CONTENT_HASH]:
                what = f"message {message[NUMBER]} is not what was published"
                return end - at, Fault(place, what)
            self._total += ready_element(content, queue.number, seq, redelivered)
        self._at = end
        if end == returned + len(self._ready):
            self._let_go()
            if self._total & MASK != self._expected:
                return end - at, Fault(place, "its messages are not those that it took in")
        return end - at, None

    def _let_go(self) -> None:
        """Of the queue in hand; these may be the last references to a million messages."""
        self._state.discarded += (self._ready, self._captured)
        self._queue, self._captured, self._ready, self._unread = None, [], Backlog(), iter(())

    def _rest(self) -> Fault | None:
        state = self._state
        held = (len(one.unacked) + len(one.unsent) for one in state.channels.values())
        things = sum(held) + 2 * len(state.channels) + sum(map(len, state.definitions.values()))
        for vhost in state.vhosts.values():
            things += sum(1 + len(queue.returns) for queue in vhost.queues.values())
            things += sum(1 + len(e.bindings) for e in vhost.exchanges.values())
        if things > REST_MAX:
            self.left_out = True
            return None
        if recompute_root(state, fresh=True) != state.digest:
            return Fault("the rest of the state", "its sum is not the root")
        return None
