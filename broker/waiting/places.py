"""Messages that keep a place of their own: those returned to a plain queue, and all of a priority
queue.

They are in blocks that a copy shares with its original: a shared block is copied before it is
changed. So the copy of a million messages is a thousand references, in order.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

_T = TypeVar("_T")

PLACES_BLOCK = 512
"""The most messages in a block: copying one, or making room in it, takes some microseconds."""


class _PlacesBlock(Generic[_T]):
    __slots__ = ("messages", "owner", "places")

    def __init__(self, owner: object, places: list[int], messages: list[_T]) -> None:
        self.owner, self.places, self.messages = owner, places, messages


class Places(Generic[_T]):
    """Messages by ascending place; no two have the same."""

    __slots__ = ("_blocks", "_count", "_lasts", "_owner")

    def __init__(self) -> None:
        self._blocks: list[_PlacesBlock[_T]] = []  # none of them is empty
        self._lasts: list[int] = []  # the last place of each
        self._count = 0
        self._owner: object = None  # blocks with this one are shared with no copy

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[int]:
        """The places, ascending. As with all iteration here, they must not change meanwhile."""
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
        """The message at the first place. There must be one."""
        return self._blocks[0].messages[0]

    @property
    def first_place(self) -> int:
        """The lowest place. There must be one."""
        return self._blocks[0].places[0]

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

    def at(self, place: int) -> _T:
        """The message at this place. There must be one."""
        block = self._blocks[bisect_left(self._lasts, place)]
        return block.messages[bisect_left(block.places, place)]

    def next(self, place: int) -> int | None:
        """This place if it has a message, or the first place after it that has one."""
        at = bisect_left(self._lasts, place)
        if at == len(self._lasts):
            return None
        places = self._blocks[at].places
        return places[bisect_left(places, place)]

    def count_from(self, place: int) -> int:
        """The number of messages at this place and after it."""
        at = bisect_left(self._lasts, place)
        if at == len(self._lasts):
            return 0
        within = bisect_left(self._blocks[at].places, place)
        return sum(len(block.places) for block in islice(self._blocks, at, None)) - within

    def remove(self, place: int) -> _T:
        """Take the message at this place. There must be one."""
        at = bisect_left(self._lasts, place)
        block = self._blocks[at]
        if block.owner is not self._owner:
            block = self._own(at)
        within = bisect_left(block.places, place)
        assert block.places[within] == place
        self._count -= 1
        del block.places[within]
        message = block.messages.pop(within)
        if not block.places:
            del self._blocks[at], self._lasts[at]
        elif within == len(block.places):
            self._lasts[at] = block.places[-1]
        return message

    def popleft(self) -> tuple[int, _T]:
        """Take the first: its place and the message. There must be one."""
        block = self._blocks[0]
        if block.owner is not self._owner:
            block = self._own(0)
        self._count -= 1
        taken = block.places.pop(0), block.messages.pop(0)
        if not block.places:
            del self._blocks[0], self._lasts[0]
        return taken

    def pop(self) -> tuple[int, _T]:
        """Take the last: its place and the message. There must be one."""
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
        """Yield all, ascending, in lists of places and of messages, freeing them on the way."""
        blocks, self._blocks, self._lasts, self._count = self._blocks, [], [], 0
        blocks.reverse()
        while blocks:
            block = blocks.pop()
            yield block.places, block.messages

    def _own(self, at: int) -> _PlacesBlock[_T]:
        """Replace a block by a copy that may be changed, and return the copy."""
        block = self._blocks[at]
        copy = self._blocks[at] = _PlacesBlock(
            self._owner, block.places.copy(), block.messages.copy()
        )
        return copy

    def _append(self, places: list[int], messages: list[_T]) -> None:
        self._blocks.append(_PlacesBlock(self._owner, places, messages))
        self._lasts.append(places[-1])

    def _split(self, at: int) -> None:
        block, half = self._blocks[at], PLACES_BLOCK // 2
        rest = _PlacesBlock(self._owner, block.places[half:], block.messages[half:])
        del block.places[half:], block.messages[half:]
        self._blocks.insert(at + 1, rest)
        self._lasts.insert(at, block.places[-1])
