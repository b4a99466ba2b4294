"""The messages of a queue with readers, in order: appended at the end, read anywhere, taken from
the front; in a stream only when they are no longer kept.

Decision: docs/decisions/0079-a-stream-is-read-at-offsets.md.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from broker.waiting.backlog import Backlog
from broker.waiting.blocks import Block

_T = TypeVar("_T")

RECENT_BYTES = 16 << 20
"""The most bytes of recently read blocks kept in memory, for all streams together: a reader that
takes one message at a time comes back to the same block for the next one."""


class StreamLog(Backlog[_T]):
    """A backlog that finds any of its messages in time nearly independent of its length."""

    __slots__ = ("_ends", "_taken")

    def __init__(self, messages: Iterable[_T] = ()) -> None:
        # By block: how many messages had come, ever, when its last one had.
        self._ends: deque[int] = deque()
        self._taken = 0  # from the front
        super().__init__(messages)

    @classmethod
    def of(cls, backlog: Backlog[_T]) -> "StreamLog[_T]":
        """Return a log with the messages of `backlog`, which must not be used any more."""
        log: StreamLog[_T] = cls()
        log._head, log._tail, log._blocks = backlog._head, backlog._tail, backlog._blocks
        log._between, log._tail_bytes = backlog._between, backlog._tail_bytes
        came = len(log._head)
        for block in log._blocks:
            came += len(block)
            log._ends.append(came)
        return log

    def at(self, index: int, recent: "Recent[_T]") -> _T:
        """Return the message at this index, 0 for the front. It must exist."""
        head, tail = self._head, self._tail
        if index < len(head):
            return head[index]
        from_end = len(self) - index
        if from_end <= len(tail):
            return tail[-from_end]
        came = self._taken + index
        place = bisect_right(self._ends, came)
        block = self._blocks[place]
        return recent.messages(block)[came - self._ends[place] + len(block)]

    def popleft(self) -> _T:
        """Take the first message. There must be one."""
        self._taken += 1
        return super().popleft()

    def take(self, count: int) -> list[_T]:
        """Take the first `count` messages. There must be as many."""
        self._taken += count
        return super().take(count)

    def adopt(self, block: Block[_T]) -> Block[_T] | None:
        """Add the messages of a block at the end, in memory or on disk, as a backlog does."""
        if not self._head:
            return super().adopt(block)
        full = super().adopt(block)
        self._ends.append(self._taken + len(self))
        return full

    def _seal(self) -> Block[_T] | None:
        full = super()._seal()
        if full is not None:
            self._ends.append(self._taken + len(self))
        return full

    def _next_head(self) -> None:
        if self._blocks:
            self._ends.popleft()
        super()._next_head()


class Recent(Generic[_T]):
    """Recently read blocks, kept for readers that go on in them.

    Local to one member: the place of messages is not part of the replicated state.
    """

    def __init__(
        self, size: Callable[[tuple[_T, ...]], int], bytes_max: int = RECENT_BYTES
    ) -> None:
        """`size` tells about how much memory messages take."""
        self._size, self._bytes_max = size, bytes_max
        self._blocks: OrderedDict[Block[_T], tuple[tuple[_T, ...], int]] = OrderedDict()
        self.bytes = 0

    def messages(self, block: Block[_T]) -> tuple[_T, ...]:
        """Return the messages of a block; waits for the disk, unless they were read recently."""
        if not block.on_disk:
            return block.messages()
        found = self._blocks.get(block)
        if found is not None:
            self._blocks.move_to_end(block)
            return found[0]
        messages = block.messages()
        size = self._size(messages)
        self._blocks[block] = messages, size
        self.bytes += size
        while self.bytes > self._bytes_max and len(self._blocks) > 1:
            _, (_, size) = self._blocks.popitem(last=False)
            self.bytes -= size
        return messages

    def forget(self) -> None:
        """Release all blocks."""
        self._blocks.clear()
        self.bytes = 0
