"""The messages that wait in a queue, in order: long ones cost no pause.

Those of a plain queue that were never taken are a `Backlog`.  Its two ends are deques, what lies
between are tuples, which never change.  So a copy takes references of the tuples only, and the
garbage collector passes them by: it stops tracking a tuple of tuples of atomic values.  With one
deque of a million messages each full collection took 40 ms of processor, a copy 20 and freeing the
copy 14, all in one piece.

Those that keep a place of their own are `Places`: what came back to a plain queue, and all of a
priority queue.  They stand in blocks that a copy shares with its original: whoever changes a block
that the other one has, too, takes a copy of it first.  So the copy of a million messages is a
thousand references, and is in order.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Generic, TypeVar

_T = TypeVar("_T")

BLOCK_MESSAGES = 4096
"""So many make a tuple: work that touches one of them takes some tens of microseconds."""
PLACES_BLOCK = 512
"""So many make a block at most: to copy one, or to make room in it, takes some microseconds."""


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
        rest = iter(messages)
        while part := list(islice(rest, max(1, BLOCK_MESSAGES - len(self._tail)))):
            self._tail.extend(part)
            if len(self._tail) >= BLOCK_MESSAGES:
                self._seal()

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


class _Block(Generic[_T]):
    __slots__ = ("messages", "owner", "places")

    def __init__(self, owner: object, places: list[int], messages: list[_T]) -> None:
        self.owner, self.places, self.messages = owner, places, messages


class Places(Generic[_T]):
    """Messages by ascending place; no two have the same."""

    __slots__ = ("_blocks", "_count", "_lasts", "_owner")

    def __init__(self) -> None:
        self._blocks: list[_Block[_T]] = []  # none of them is empty
        self._lasts: list[int] = []  # the last place of each
        self._count = 0
        self._owner: object = None  # blocks with this one are shared with no copy

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[int]:
        """The places, ascending.  Not while they change, as all that iterates here."""
        for block in self._blocks:
            yield from block.places

    def __contains__(self, place: int) -> bool:
        at = bisect_left(self._lasts, place)
        if at == len(self._lasts):
            return False
        places = self._blocks[at].places
        return places[bisect_left(places, place)] == place

    def values(self) -> Iterator[_T]:
        """The messages, in their order."""
        for block in self._blocks:
            yield from block.messages

    def items(self) -> Iterator[tuple[int, _T]]:
        """Places and messages, ascending."""
        for block in self._blocks:
            yield from zip(block.places, block.messages, strict=True)

    @property
    def first(self) -> _T:
        """The message at the first place.  There is one."""
        return self._blocks[0].messages[0]

    def put(self, place: int, message: _T) -> None:
        """Add a message at its place."""
        self._count += 1
        lasts = self._lasts
        if not lasts:
            self._append([place], [message])
            return
        behind_all = place > lasts[-1]
        at = -1 if behind_all else bisect_left(lasts, place)
        block = self._blocks[at]
        if block.owner is not self._owner:
            block = self._own(at)
        places = block.places
        if behind_all:
            if len(places) >= PLACES_BLOCK:
                self._append([place], [message])
            else:
                places.append(place)
                block.messages.append(message)
                lasts[-1] = place
            return
        within = bisect_left(places, place)
        places.insert(within, place)
        block.messages.insert(within, message)
        if len(places) > PLACES_BLOCK:
            self._split(at)

    def extend(self, places: Sequence[int], messages: Sequence[_T]) -> None:
        """Add messages behind all others, at ascending places."""
        for begin in range(0, len(places), PLACES_BLOCK):
            part = slice(begin, begin + PLACES_BLOCK)
            self._append(list(places[part]), list(messages[part]))
        self._count += len(places)

    def popleft(self) -> tuple[int, _T]:
        """Take the first: its place and the message.  There is one."""
        block = self._blocks[0]
        if block.owner is not self._owner:
            block = self._own(0)
        self._count -= 1
        taken = block.places.pop(0), block.messages.pop(0)
        if not block.places:
            del self._blocks[0], self._lasts[0]
        return taken

    def pop(self) -> tuple[int, _T]:
        """Take the last: its place and the message.  There is one."""
        block = self._blocks[-1]
        if block.owner is not self._owner:
            block = self._own(-1)
        self._count -= 1
        taken = block.places.pop(), block.messages.pop()
        if block.places:
            self._lasts[-1] = block.places[-1]
        else:
            del self._blocks[-1], self._lasts[-1]
        return taken

    def copy(self) -> "Places[_T]":
        """Return the same messages."""
        other: Places[_T] = Places()
        other._blocks, other._lasts = self._blocks.copy(), self._lasts.copy()
        other._count = self._count
        self._owner, other._owner = object(), object()
        return other

    def drain(self) -> Iterator[tuple[list[int], list[_T]]]:
        """Yield all, ascending, in lists of places and of messages; they are let go on the way."""
        blocks, self._blocks, self._lasts, self._count = self._blocks, [], [], 0
        blocks.reverse()
        while blocks:
            block = blocks.pop()
            yield block.places, block.messages

    def _own(self, at: int) -> _Block[_T]:
        """Return a copy of a block, which takes its place and may be changed."""
        block = self._blocks[at]
        copy = self._blocks[at] = _Block(self._owner, block.places.copy(), block.messages.copy())
        return copy

    def _append(self, places: list[int], messages: list[_T]) -> None:
        self._blocks.append(_Block(self._owner, places, messages))
        self._lasts.append(places[-1])

    def _split(self, at: int) -> None:
        block, half = self._blocks[at], PLACES_BLOCK // 2
        rest = _Block(self._owner, block.places[half:], block.messages[half:])
        del block.places[half:], block.messages[half:]
        self._blocks.insert(at + 1, rest)
        self._lasts.insert(at, block.places[-1])
