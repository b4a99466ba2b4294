"""The messages of a queue with readers, in order: appended at the end, read anywhere, taken from
the front; of a stream only when they are no longer kept.

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
"""So much of what readers read from disk last stays in memory, of all streams together: who reads
one message at a time comes back to the same block for the next one."""


class StreamLog(Backlog[_T]):
    """A backlog that finds any of its messages in a time that hardly depends on its length."""

    __slots__ = ("_ends", "_taken")

    def __init__(self, messages: Iterable[_T] = ()) -> None:
        # By block: how many messages had come, ever, when its last one had.
        self._ends: deque[int] = deque()
        self._taken = 0  # from the front
        super().__init__(messages)

    @classmethod
    def of(cls, backlog: Backlog[_T]) -> "StreamLog[_T]":
        """The same messages; the other one must not be used any more."""
        log: StreamLog[_T] = cls()
        log._head, log._tail, log._blocks = backlog._head, backlog._tail, backlog._blocks
        log._between, log._tail_bytes = backlog._between, backlog._tail_bytes
        came = len(log._head)
        for block in log._blocks:
            came += len(block)
            log._ends.append(came)
        return log

    def at(self, index: int, recent: "Recent[_T]") -> _T:
        """Return the message of this index, 0 for the one at the front.  It is there."""
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
        """Take the first.  There is one."""
        self._taken += 1
        return super().popleft()

    def take(self, count: int) -> list[_T]:
        """Take the first so many.  There are as many."""
        self._taken += count
        return super().take(count)

    def adopt(self, block: Block[_T]) -> Block[_T] | None:
        """Add those of a block at the end, wherever they are, as a backlog does."""
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
    """Blocks that were read from disk last, kept for who reads on in them.

    One member's own: where messages are is no part of the replicated state.
    """

    def __init__(
        self, size: Callable[[tuple[_T, ...]], int], bytes_max: int = RECENT_BYTES
    ) -> None:
        """`size` says what messages take in memory, about."""
        self._size, self._bytes_max = size, bytes_max
        self._blocks: OrderedDict[Block[_T], tuple[tuple[_T, ...], int]] = OrderedDict()
        self.bytes = 0

    def messages(self, block: Block[_T]) -> tuple[_T, ...]:
        """Return those of a block; waits for the disk, unless they were looked at recently."""
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
        """Let go of all of them."""
        self._blocks.clear()
        self.bytes = 0
