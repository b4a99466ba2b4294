"""Which blocks of a machine's queues are on disk: a `Pager` decides.

One that is full stays in memory while all that do take less than the limit; else the newest ones
go, which are the last to be consumed of their queues. What is read again is not kept, but for the
end of the queue that it becomes. All this is one member's own: where messages are is no part of
the replicated state, and changes nothing in it. Pages are a copy: what is durable is the store's
log and checkpoint, and a restart reads these.
Decision: docs/decisions/0057-a-backlog-is-not-memory.md.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol, TypeAlias
from weakref import ref

from broker.waiting import blocks as sizes
from broker.waiting.blocks import Block
from broker.waiting.page_format import Row, pack, unpack

Place: TypeAlias = tuple[int, int, int]  # where, how many bytes, and their checksum
Work: TypeAlias = Callable[[], None]

AHEAD_SHARE = 4
"""What was read ahead takes this part of the memory for messages; beyond it only the next block of
each queue is asked for.  Eight of a thousand queues would be a gigabyte while nobody consumes."""
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
        return self._place[1] if pager.ahead_bytes <= pager.ahead_max else sizes.AHEAD_BYTES + 1

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
