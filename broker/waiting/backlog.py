"""The messages of a plain queue that were never taken, in order: a long queue costs no pause.

A `Backlog`'s two ends are deques; between them are blocks, which a copy shares with its original.
With one deque of a million messages each full garbage collection took 40 ms of processor time, a
copy 20 ms and freeing the copy 14 ms, each in one piece.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Generic, TypeVar

from broker.waiting import blocks as sizes
from broker.waiting.blocks import Block, Part, read_ahead

_T = TypeVar("_T")

BLOCK_MESSAGES = 256
BLOCK_BYTES = 64 << 10
"""A block is this many messages, or fewer with this many bytes: reading one from disk takes some
tenths of a millisecond, and each end of a queue, which is always in memory, is about as large."""


class Backlog(Generic[_T]):
    """A queue of messages, appended at the end and taken from the front."""

    __slots__ = ("_between", "_blocks", "_head", "_tail", "_tail_bytes")

    def __init__(self, messages: Iterable[_T] = ()) -> None:
        self._head: deque[_T] = deque()  # empty only when all is
        self._blocks: deque[Block[_T]] = deque()
        self._between = 0  # messages in the blocks
        self._tail = self._head  # the same one while it holds all
        self._tail_bytes = 0  # of what was appended to it
        self.extend(messages)

    def __len__(self) -> int:
        if self._tail is self._head:
            return len(self._head)
        return len(self._head) + self._between + len(self._tail)

    def __bool__(self) -> bool:
        return bool(self._head)

    def __iter__(self) -> Iterator[_T]:
        """Iterate in order; the backlog must not change meanwhile."""
        yield from self._head
        for block in read_ahead(self._blocks):
            yield from block
        if self._tail is not self._head:
            yield from self._tail

    @property
    def first(self) -> _T:
        """The message at the front. The backlog must not be empty."""
        return self._head[0]

    @property
    def blocks(self) -> Sequence[Block[_T]]:
        """The blocks between the ends."""
        return self._blocks

    def append(self, message: _T, size: int = 0) -> Block[_T] | None:
        """Add a message of `size` bytes at the end; return the block that is full now, if any."""
        tail = self._tail
        tail.append(message)
        self._tail_bytes += size
        if len(tail) >= BLOCK_MESSAGES or self._tail_bytes >= BLOCK_BYTES:
            return self._seal()
        return None

    def append_all(self, messages: Sequence[_T], sizes: Sequence[int]) -> list[Block[_T]]:
        """Add messages of these sizes at the end, as `append` does; return the blocks that are full
        now. Each block is filled at once."""
        full: list[Block[_T]] = []
        begin, end = 0, len(messages)
        while begin < end:
            tail = self._tail
            stop = begin + max(1, BLOCK_MESSAGES - len(tail))  # an adopted block may be larger
            size = self._tail_bytes + sum(sizes[begin:stop])
            if size >= BLOCK_BYTES:
                sums = list(accumulate(sizes[begin:stop], initial=self._tail_bytes))
                count = bisect_left(sums, BLOCK_BYTES, 1)
                stop, size = begin + count, sums[count]
            tail.extend(messages[begin:stop])
            self._tail_bytes = size
            if len(tail) >= BLOCK_MESSAGES or size >= BLOCK_BYTES:
                block = self._seal()
                if block is not None:
                    full.append(block)
            begin = stop
        return full

    def extend(self, messages: Iterable[_T], sizes: Iterable[int] = ()) -> list[Block[_T]]:
        """Do the same with messages that come one by one, or whose sizes do not matter."""
        held = list(messages)
        return self.append_all(held, list(sizes) or [0] * len(held))

    def adopt(self, block: Block[_T]) -> Block[_T] | None:
        """Add the messages of another backlog's block at the end, whether in memory or on disk;
        return the block that is full now, if any: never that one."""
        if not self._head:
            self.extend(block)
            return None
        full = self._seal() if self._tail else None
        self._blocks.append(block)
        self._between += len(block)
        return full

    def popleft(self) -> _T:
        """Take the first message. The backlog must not be empty."""
        message = self._head.popleft()
        if not self._head:
            self._next_head()
        return message

    def take(self, count: int) -> list[_T]:
        """Take the first `count` messages. There must be as many."""
        taken: list[_T] = []
        while (missing := count - len(taken)) > 0:
            head = self._head
            if len(head) > missing:
                taken += [head.popleft() for _ in range(missing)]
            else:
                taken += head
                head.clear()
                self._next_head()
        return taken

    def pop(self) -> _T:
        """Take the last message. The backlog must not be empty."""
        if not self._tail:
            if self._blocks:
                block = self._blocks.pop()
                self._between -= len(block)
                self._tail = deque(block)
            else:
                self._tail = self._head
        return self._tail.pop()

    def drop(self, count: int) -> int:
        """Take about `count` messages without looking at them; return how many, 0 at the end."""
        dropped = 0
        while self._blocks and dropped < count:
            dropped += len(self._blocks.pop())
        self._between -= dropped
        for _ in range(min(len(self), count - dropped)):
            self.pop()
            dropped += 1
        return dropped

    def copy(self) -> "Backlog[_T]":
        """Return a copy; a million messages take no longer."""
        other: Backlog[_T] = Backlog()
        other._blocks, other._between = self._blocks.copy(), self._between
        other._head = self._head.copy()
        other._tail = other._head if self._tail is self._head else self._tail.copy()
        other._tail_bytes = self._tail_bytes
        return other

    def parts(self) -> list[Part[_T]]:
        """Return the messages in parts, to be read once: cheaper than a copy of a short backlog."""
        last = () if self._tail is self._head else (tuple(self._tail),)
        return [tuple(self._head), *self._blocks, *last]

    def drain_parts(self) -> Iterator[Part[_T]]:
        """Yield the same parts once, releasing the blocks between the ends on the way."""
        last = () if self._tail is self._head else tuple(self._tail)
        yield tuple(self._head)
        while self._blocks:
            block = self._blocks.popleft()
            self._between -= len(block)
            yield block
        yield last

    def _seal(self) -> Block[_T] | None:
        full: Block[_T] | None = None
        if self._tail is not self._head:
            full = Block(tuple(self._tail))
            self._blocks.append(full)
            self._between += len(full)
        self._tail, self._tail_bytes = deque(), 0
        return full

    def _next_head(self) -> None:
        if self._blocks:
            block = self._blocks.popleft()
            self._between -= len(block)
            self._head = deque(block)
            total = 0
            for block in islice(self._blocks, sizes.AHEAD):
                total += block.ask()
                if total > sizes.AHEAD_BYTES:
                    break
        else:
            self._head = self._tail
