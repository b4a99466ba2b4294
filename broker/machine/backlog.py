# mypy: disable-error-code="import-untyped"
"""The messages that wait in a queue, in order: long ones cost no pause, and need no memory.

Those of a plain queue that were never taken are a `Backlog`.  Its two ends are deques, what lies
between are blocks, whose messages never change.  So a copy takes references of the blocks only, and
the garbage collector passes by what is in them: it stops tracking a tuple of tuples of atomic
values.  With one deque of a million messages each full collection took 40 ms of processor, a copy
20 and freeing the copy 14, all in one piece.

A block may be *on disk*: then it holds a `Page`, from which its messages are read when somebody
looks at them, each time anew.  Which blocks of a machine's queues go there a `Pager` decides: one
that is full stays in memory while all that do take less than the limit; else the newest ones go,
which are the last to be consumed of their queues.  What is read again is not kept, but for the end
of the queue that it becomes.  All this is one member's own: where messages are is no part of the
replicated state, and changes nothing in it.  Pages are a copy: what is durable is the store's log
and checkpoint, and a restart reads these.
Decision: docs/decisions/0057-a-backlog-is-not-memory.md.

Those that keep a place of their own are `Places`: what came back to a plain queue, and all of a
priority queue.  They stand in blocks that a copy shares with its original: whoever changes a block
that the other one has, too, takes a copy of it first.  So the copy of a million messages is a
thousand references, and is in order.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice, repeat
from typing import Generic, Protocol, TypeAlias, TypeVar
from weakref import ref

import msgpack

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

BLOCK_MESSAGES = 256
BLOCK_BYTES = 64 << 10
"""So many messages make a block, or fewer of so many bytes: to read one from disk takes some tenths
of a millisecond, and each end of a queue, which is always in memory, is about as large."""
AHEAD = 8
AHEAD_BYTES = 1 << 20
"""So many blocks are asked for before they are looked at, or fewer of so many bytes."""
AHEAD_SHARE = 4
"""What was read ahead takes this part of the memory for messages; beyond it only the next block of
each queue is asked for.  Eight of a thousand queues would be a gigabyte while nobody consumes."""
PLACES_BLOCK = 512
"""So many make a block at most: to copy one, or to make room in it, takes some microseconds."""


class Page(Protocol[_T_co]):
    """Messages that are on disk.  They go from there with the last reference."""

    def load(self) -> tuple[_T_co, ...]:
        """Read them; at once where they were asked for in time."""

    def ask(self) -> int:
        """Have them read, as somebody is about to look at them; return how many bytes that are, or
        more than `AHEAD_BYTES`: what follows them must not be asked for now."""


class Block(Generic[_T]):
    """Messages that lie between the ends of a backlog, in memory or on disk."""

    __slots__ = ("__weakref__", "_count", "_messages", "_page")

    def __init__(self, messages: tuple[_T, ...]) -> None:
        self._count = len(messages)
        self._messages: tuple[_T, ...] | None = messages
        self._page: Page[_T] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_T]:
        return iter(self.messages())

    def messages(self) -> tuple[_T, ...]:
        """All of them."""
        messages = self._messages  # looked at once: another thread may put them on disk
        if messages is None:
            assert self._page is not None
            messages = self._page.load()
        return messages

    @property
    def on_disk(self) -> bool:
        """Whether they are not in memory."""
        return self._messages is None

    def put_on_disk(self, page: Page[_T]) -> None:
        """`page` has them now.  Any thread may call this."""
        self._page = page
        self._messages = None

    def ask(self) -> int:
        """Somebody is about to look at them; return how many bytes have to be read for it."""
        if self._messages is None and self._page is not None:
            return self._page.ask()
        return 0


Part: TypeAlias = tuple[_T, ...] | Block[_T]


def read_ahead(parts: Iterable[Part[_T]]) -> Iterator[Part[_T]]:
    """Yield these parts, those that come next asked for."""
    ahead: deque[tuple[Part[_T], int]] = deque()
    total = 0
    for part in parts:
        size = part.ask() if isinstance(part, Block) else 0
        ahead.append((part, size))
        total += size
        while len(ahead) > (AHEAD if total <= AHEAD_BYTES else 1):
            first, size = ahead.popleft()
            total -= size
            yield first
    for first, _ in ahead:
        yield first


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
        """Not while it changes."""
        yield from self._head
        for block in read_ahead(self._blocks):
            yield from block
        if self._tail is not self._head:
            yield from self._tail

    @property
    def first(self) -> _T:
        """The message at the front.  There is one."""
        return self._head[0]

    @property
    def blocks(self) -> Sequence[Block[_T]]:
        """What lies between the ends."""
        return self._blocks

    def append(self, message: _T, size: int = 0) -> Block[_T] | None:
        """Add one at the end, of so many bytes; return the block that is full now."""
        tail = self._tail
        tail.append(message)
        self._tail_bytes += size
        if len(tail) >= BLOCK_MESSAGES or self._tail_bytes >= BLOCK_BYTES:
            return self._seal()
        return None

    def extend(self, messages: Iterable[_T], sizes: Iterable[int] = ()) -> list[Block[_T]]:
        """Add them at the end, of so many bytes each; return the blocks that are full now."""
        full: list[Block[_T]] = []
        rest = iter(sizes)
        for message in messages:
            block = self.append(message, next(rest, 0))
            if block is not None:
                full.append(block)
        return full

    def adopt(self, block: Block[_T]) -> Block[_T] | None:
        """Add those of a block of another backlog at the end, wherever they are; return the block
        that is full now, if any: never that one."""
        if not self._head:
            self.extend(block)
            return None
        full = self._seal() if self._tail else None
        self._blocks.append(block)
        self._between += len(block)
        return full

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

    def drop(self, count: int) -> int:
        """Take about so many, without a look at them; return how many.  None are left of 0."""
        dropped = 0
        while self._blocks and dropped < count:
            dropped += len(self._blocks.pop())
        self._between -= dropped
        for _ in range(min(len(self), count - dropped)):
            self.pop()
            dropped += 1
        return dropped

    def copy(self) -> "Backlog[_T]":
        """Return the same messages; it takes no longer for a million of them."""
        other: Backlog[_T] = Backlog()
        other._blocks, other._between = self._blocks.copy(), self._between
        other._head = self._head.copy()
        other._tail = other._head if self._tail is self._head else self._tail.copy()
        other._tail_bytes = self._tail_bytes
        return other

    def parts(self) -> list[Part[_T]]:
        """Return the same messages in parts, to be read once: less than a copy for a short one."""
        last = () if self._tail is self._head else (tuple(self._tail),)
        return [tuple(self._head), *self._blocks, *last]

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
            for block in islice(self._blocks, AHEAD):
                total += block.ask()
                if total > AHEAD_BYTES:
                    break
        else:
            self._head = self._tail


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

    def _own(self, at: int) -> _PlacesBlock[_T]:
        """Return a copy of a block, which takes its place and may be changed."""
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


# -- on disk ------------------------------------------------------------------------------------

Row: TypeAlias = tuple[int, int, str, str, int, int, int, bytes, bytes]  # a state.Message
Place: TypeAlias = tuple[int, int, int]  # where, how many bytes, and their checksum
Work: TypeAlias = Callable[[], None]

COUNTERS = ("written", "refused", "ahead", "waited", "unasked")
"""Pages that were written, for which there was no room, that were read ahead, and that whoever
looked at the messages had to read: asked for too late, or not at all."""
ROW_BYTES = 400
"""What a message takes in memory beside its body and properties, about."""


class PageLost(Exception):
    """A page cannot be read: this member's machine cannot go on, and its store has all of it."""


class Shelf(Protocol):
    """Where pages lie.  Any thread may call it."""

    def put(self, data: bytes) -> Place | None:
        """Keep these bytes; None: there is no room for them now."""

    def get(self, place: Place) -> bytes | memoryview:
        """Return the bytes of this place, as they were put there; raises what the disk did."""

    def drop(self, place: Place) -> None:
        """They are not needed any more; never waits."""


ONE = 0
"""With this begin the bytes of a single message; those of several with a head of msgpack."""


def pack(messages: tuple[Row, ...]) -> bytes:
    """Return messages as bytes, by columns; for this process only."""
    if len(messages) == 1:
        return _pack_one(messages[0])
    contents, numbers, exchanges, keys, flags, created_us, ttl_us, properties, bodies = zip(
        *messages, strict=True
    )
    return bytes(
        msgpack.packb(
            (
                array("Q", contents).tobytes(),
                array("Q", numbers).tobytes(),
                _once(exchanges),
                _once(keys),
                flags,
                array("q", created_us).tobytes(),
                array("q", ttl_us).tobytes(),
                properties,
                bodies,
            )
        )
    )


def unpack(data: bytes | memoryview) -> tuple[Row, ...]:
    """Return the messages that were packed."""
    if data[0] == ONE:
        return (_unpack_one(data),)
    contents, numbers, exchanges, keys, flags, created_us, ttl_us, properties, bodies = (
        msgpack.unpackb(data, use_list=False)
    )
    count = len(bodies)
    return tuple(
        zip(
            array("Q", contents),
            array("Q", numbers),
            _each(exchanges, count),
            _each(keys, count),
            flags,
            array("q", created_us),
            array("q", ttl_us),
            properties,
            bodies,
            strict=True,
        )
    )


def _pack_one(message: Row) -> bytes:
    """It may be large, and nothing else goes on while it is copied: once, that is."""
    head = msgpack.packb(message[:-1])
    return b"".join((bytes((ONE,)), len(head).to_bytes(4, "big"), head, message[-1]))


def _unpack_one(data: bytes | memoryview) -> Row:
    end = 5 + int.from_bytes(data[1:5], "big")
    row: Row = (*msgpack.unpackb(data[5:end], use_list=False), bytes(data[end:]))
    return row


def _once(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Most often they are all the same."""
    return texts[:1] if texts.count(texts[0]) == len(texts) else texts


def _each(texts: tuple[str, ...], count: int) -> list[str]:
    """Equal ones are one string, as they are where they come from a route."""
    if len(texts) == 1:
        return list(repeat(texts[0], count))
    shared: dict[str, str] = {}
    return [shared.setdefault(text, text) for text in texts]


def in_memory_bytes(messages: tuple[Row, ...]) -> int:
    """What these messages take in memory, about."""
    sizes = [len(one[-1]) + len(one[-2]) for one in messages]
    return sum(sizes) + ROW_BYTES * len(sizes)


class _StoredPage:
    """Messages on a shelf, and once they were asked for, until they are looked at, in memory."""

    __slots__ = ("_ahead", "_asked", "_pager", "_place", "_size")

    def __init__(self, pager: "Pager", place: Place, size: int) -> None:
        self._pager, self._place, self._size = pager, place, size
        self._ahead: tuple[Row, ...] | None = None
        self._asked = False

    def load(self) -> tuple[Row, ...]:
        asked = self._let_go()
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead
        self._pager.counters["waited" if asked else "unasked"] += 1
        try:
            return unpack(self._pager.shelf.get(self._place))
        except Exception as error:
            text = f"waiting messages cannot be read from disk: {error}"
            raise PageLost(text) from error

    def ask(self) -> int:
        pager = self._pager
        if not self._asked:
            size = self._size
            self._asked = True
            pager.ahead_bytes += size
            pager.read(self._read)
        return self._place[1] if pager.ahead_bytes <= pager.ahead_max else AHEAD_BYTES + 1

    def _read(self) -> None:
        if not self._asked:
            return  # somebody could not wait
        with suppress(Exception):  # whoever needs them reads them again, and says what is wrong
            self._ahead = unpack(self._pager.shelf.get(self._place))
            self._pager.counters["ahead"] += 1
        if not self._asked:  # meanwhile: nobody comes for these
            self._ahead = None

    def _let_go(self) -> bool:
        """Nobody waits for it any more; return whether somebody did."""
        asked, self._asked = self._asked, False
        if asked:
            size = self._size
            self._pager.ahead_bytes -= size
        return asked

    def __del__(self) -> None:
        self._let_go()
        self._pager.shelf.drop(self._place)


class Pager:
    """Decides for one machine which blocks go to disk.

    `read` and `write` have work done, at once or by a thread; what it raises is theirs.
    """

    def __init__(
        self,
        shelf: Shelf,
        limit_bytes: int,
        read: Callable[[Work], None],
        write: Callable[[Work], None],
        counters: dict[str, int],
    ) -> None:
        """`counters` has those of `COUNTERS`; it may be shared."""
        self.shelf, self.limit_bytes, self.read = shelf, limit_bytes, read
        self.counters = counters
        self._write = write
        self._at_once = False
        self._number = 0
        self._kept: dict[int, tuple[ref[Block[Row]], int]] = {}  # in memory, the oldest first
        self._refused: deque[ref[Block[Row]]] = deque()  # there was no room for them
        self.kept_bytes = 0
        self.ahead_bytes = 0  # of pages that were asked for, and not looked at
        self.ahead_max = limit_bytes // AHEAD_SHARE

    def another(self) -> "Pager":
        """Return what a second machine of this process needs."""
        return Pager(self.shelf, self.limit_bytes, self.read, self._write, self.counters)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What comes is not let pile up: who restores a state waits for the disk."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def full(self, block: Block[Row]) -> None:
        """Take a block that is full: it stays in memory, or goes to disk."""
        size = in_memory_bytes(block.messages())
        number = self._number = self._number + 1
        self._kept[number] = ref(block, partial(self._gone, number)), size
        self.kept_bytes += size
        while self.kept_bytes > self.limit_bytes and self._kept:
            _, (found, size) = self._kept.popitem()
            self.kept_bytes -= size
            if self._at_once:
                self._put(found)
            else:
                self._write(partial(self._put, found))
        if self._refused:
            self._write(partial(self._put, self._refused.popleft()))

    def _gone(self, number: int, _reference: object) -> None:
        """Its messages were taken, or dropped."""
        found = self._kept.pop(number, None)
        if found is not None:
            self.kept_bytes -= found[1]

    def _put(self, reference: "ref[Block[Row]]") -> None:
        block = reference()
        if block is None or block.on_disk:
            return
        messages = block.messages()
        place = self.shelf.put(pack(messages))
        if place is None:
            self.counters["refused"] += 1
            self._refused.append(reference)
        else:
            self.counters["written"] += 1
            block.put_on_disk(_StoredPage(self, place, in_memory_bytes(messages)))
