"""The `Pager` decides which blocks of a machine's queues are on disk.

A full block stays in memory while all such blocks take less than the limit; beyond it the newest
ones go to disk, which are the last to be consumed of their queues. A block that is read back is not
kept, except as the end of a queue. All this is local to one member: the place of messages is not
part of the replicated state, and changes nothing in it. Pages are a copy: the store's log and
checkpoint are the durable data, and a restart reads these.
Decision: docs/decisions/0057-a-backlog-is-not-memory.md.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeAlias
from weakref import ref

from broker.waiting import blocks as sizes
from broker.waiting.blocks import Block, Summary
from broker.waiting.page_format import LARGE_BYTES, Row, pack, unpack, unpack_large

Place: TypeAlias = tuple[int, int, int]  # where, how many bytes, and their checksum
Work: TypeAlias = Callable[[], object]
Judge: TypeAlias = Callable[[tuple[Row, ...]], str]  # what is wrong with messages, or nothing

AHEAD_SHARE = 4
"""Blocks read ahead may take one part in `AHEAD_SHARE` of the memory for messages; beyond it only
the next block of each queue is requested. Eight blocks of each of a thousand queues would take a
gigabyte while nobody consumes."""
COUNTERS = ("written", "refused", "ahead", "waited", "unasked", "at_once")
"""Pages written; refused for lack of room; read before they were needed; waited for although they
had been requested; waited for because they had not; and read at once by their user, where nothing
else has to go on meanwhile."""
ROW_BYTES = 400
"""About how much memory a message takes in addition to its body and properties."""


class PageLost(Exception):
    """A page cannot be read: this member's machine cannot go on, and its store has all of it."""


class PageDamaged(PageLost):
    """A page that the store had is not what was published: neither the machine nor its store can go
    on."""


class Shelf(Protocol):
    """Storage for pages. Any thread may call it."""

    def put(self, data: bytes | list[bytes]) -> Place | None:
        """Keep these bytes, or their parts in order; None: there is no room for them now."""

    def get(self, place: Place) -> bytes | memoryview:
        """Return the bytes that were put at this place; raises the disk's error."""

    def pieces(self, place: Place) -> Iterator[bytes]:
        """Yield the bytes piece by piece; raises at the end if they are not those put there."""

    def drop(self, place: Place) -> None:
        """Release this place; never waits."""


def in_memory_bytes(messages: tuple[Row, ...]) -> int:
    """About how much memory these messages take."""
    sizes = [len(one[-1]) + len(one[-2]) for one in messages]
    return sum(sizes) + ROW_BYTES * len(sizes)


def summary_of(messages: tuple[Row, ...]) -> Summary:
    """Return the summary of these messages."""
    return Summary(
        len(messages),
        sum([len(one[-1]) for one in messages]),
        sum([one[6] >= 0 for one in messages]),
        in_memory_bytes(messages),
        all(one[4] for one in messages),
    )


class Waiter(Protocol):
    """The runner of a machine, which must not wait for the disk: its work pauses at a page."""

    def runs_here(self) -> bool:
        """Whether the caller is work that can pause."""

    def pause(self, may_go_on: Callable[[], bool]) -> None:
        """Return when the work may try again: `may_go_on` says so, after a call of `wake`."""

    def wake(self) -> None:
        """An awaited page has arrived. Any thread may call this."""


class _StoredPage:
    """Messages on a shelf; also in memory from their request until they are used."""

    __slots__ = (
        "_ahead", "_asked", "_error", "_judge", "_pager", "_place", "_wanted", "summary",
    )  # fmt: skip

    def __init__(
        self, pager: "Pager", place: Place, summary: Summary, judge: Judge | None = None
    ) -> None:
        self._pager, self._place, self.summary, self._judge = pager, place, summary, judge
        self._ahead: tuple[Row, ...] | None = None
        self._error: Exception | None = None
        self._asked = self._wanted = False

    def load(self) -> tuple[Row, ...]:
        waiter = self._pager.waiter
        if waiter is not None and waiter.runs_here():
            while (messages := self.found()) is None:
                waiter.pause(self._may_be_found)
            return messages
        ahead, self._ahead = self._ahead, None
        self._let_go()
        if ahead is not None:
            return ahead
        self._pager.counters["at_once"] += 1
        try:
            return self._unpacked()
        except Exception as error:
            raise _lost(error) from error

    def packed(self) -> "_PackedPage":
        return _PackedPage(self, self._pager, self._place)

    def found(self) -> tuple[Row, ...] | None:
        asked = self._asked
        self.ask()
        ahead, error = self._ahead, self._error
        if ahead is None and error is None:
            if not self._wanted:
                self._wanted = True
                self._pager.counters["waited" if asked else "unasked"] += 1
            return None
        self._ahead = self._error = None
        self._let_go()
        if ahead is None:
            assert error is not None
            raise _lost(error) from error
        return ahead

    def ask(self) -> int:
        pager = self._pager
        if not self._asked:
            self._asked = True
            pager.ahead_bytes += self.summary.memory
            pager.read(self._read)
        return self._place[1] if pager.ahead_bytes <= pager.ahead_max else sizes.AHEAD_BYTES + 1

    def _read(self) -> None:
        if not self._asked or self._is_here():
            return  # somebody could not wait, or it was asked for twice
        try:
            self._ahead = self._unpacked()
            self._pager.counters["ahead"] += not self._wanted
        except Exception as error:
            self._error = error  # for whoever looks at them
        if not self._asked:  # meanwhile: nobody comes for these
            self._ahead = self._error = None
        elif self._wanted and (waiter := self._pager.waiter) is not None:
            waiter.wake()

    def _unpacked(self) -> tuple[Row, ...]:
        shelf, place = self._pager.shelf, self._place
        is_large = place[1] > LARGE_BYTES
        messages = unpack_large(shelf.pieces(place)) if is_large else unpack(shelf.get(place))
        if self._judge is not None and (wrong := self._judge(messages)):
            raise PageDamaged(wrong)
        return messages

    def _is_here(self) -> bool:
        return self._ahead is not None or self._error is not None

    def _may_be_found(self) -> bool:
        """Whether the page is here, or another caller has taken it so that it must be requested
        again."""
        return self._is_here() or not self._asked

    def _let_go(self) -> None:
        """Nobody waits for the page any more."""
        if self._asked:
            self._asked = self._wanted = False
            self._pager.ahead_bytes -= self.summary.memory

    def __del__(self) -> None:
        pager = self._pager
        pager.gone.append(self.summary.memory if self._asked else 0)  # any thread may be here
        pager.shelf.drop(self._place)


class _PackedPage:
    """The bytes of a page, read by a thread, or by a caller that cannot wait for the thread."""

    __slots__ = ("_data", "_error", "_page", "_pager", "_place", "_wanted")

    def __init__(self, page: _StoredPage, pager: "Pager", place: Place) -> None:
        self._page = page  # its place is kept for it
        self._pager, self._place = pager, place
        self._data: bytes | None = None
        self._error: Exception | None = None
        self._wanted = False
        pager.read(self._read)

    def found(self) -> bytes | None:
        if self._error is not None:
            raise _lost(self._error) from self._error
        if self._data is None and not self._wanted:
            self._wanted = True
            self._pager.counters["waited"] += 1
        return self._data

    def get(self) -> bytes:
        waiter = self._pager.waiter
        if waiter is not None and waiter.runs_here():
            while (data := self.found()) is None:
                waiter.pause(self._is_here)
            return data
        if not self._is_here():
            self._pager.counters["at_once"] += 1
            self._get()
        data = self.found()
        assert data is not None
        return data

    def _read(self) -> None:
        if self._is_here():
            return  # somebody could not wait
        self._get()
        self._pager.counters["ahead"] += not self._wanted
        if self._wanted and (waiter := self._pager.waiter) is not None:
            waiter.wake()

    def _get(self) -> None:
        try:
            self._data = bytes(self._pager.shelf.get(self._place))
        except Exception as error:
            self._error = error  # for whoever looks at them

    def _is_here(self) -> bool:
        return self._data is not None or self._error is not None


def _lost(error: Exception) -> PageLost:
    if isinstance(error, PageDamaged):
        return PageDamaged(
            f"waiting messages in this member's store are not what was published: {error}"
        )
    return PageLost(
        f"waiting messages cannot be read from disk: {error}; nothing is lost, as the store has "
        "all of them: look after the disk of --data-dir, then start this member again; "
        "--page-memory 0 keeps them in memory"
    )


def _nothing() -> None:
    pass


class Pager:
    """Decides for one machine which blocks go to disk.

    `read` and `write` have work done, at once or by a thread, and handle its exceptions. A written
    block is on disk from `settle` on, so that its messages do not move while they are being used.
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
        self.waiter: Waiter | None = None
        self._write = write
        self._at_once = False
        self.steady = False  # while set no block goes to disk, but for `settle`
        self._number = 0
        self._kept: dict[int, tuple[ref[Block[Row]], int]] = {}  # in memory, the oldest first
        self._refused: deque[ref[Block[Row]]] = deque()  # there was no room for them
        self.written: deque[tuple[ref[Block[Row]], _StoredPage]] = deque()  # and not settled
        self.gone: deque[int] = deque()  # pages: what each had taken of `ahead_bytes`
        self.kept_bytes = 0
        self.pages = 0  # at least so many blocks are on disk
        self.ahead_bytes = 0  # of pages that were asked for, and not looked at
        self.ahead_max = limit_bytes // AHEAD_SHARE

    def another(self) -> "Pager":
        """Return a pager for a second machine of this process."""
        return Pager(self.shelf, self.limit_bytes, self.read, self._write, self.counters)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Do not let blocks pile up: restoring a state waits for the disk."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False
            self._write(_nothing)  # who writes looks after what was written: it may be dropped soon

    def take(self, packed: bytes, summary: Summary, judge: Judge | None) -> Block[Row] | None:
        """Put an already packed page on disk; None: there is no room for it. `judge` checks the
        messages each time they are read."""
        place = self.shelf.put(packed)
        if place is None:
            return None
        self.pages += 1
        self.counters["written"] += 1
        return Block(_StoredPage(self, place, summary, judge))

    def settle(self) -> None:
        """Free the memory of written blocks; notice which pages are gone."""
        while self.written:
            reference, page = self.written.popleft()
            block = reference()
            self.pages += 1
            if block is not None and not block.on_disk:
                block.put_on_disk(page)
        while self.gone:
            self.ahead_bytes -= self.gone.popleft()
            self.pages -= 1

    def full(self, block: Block[Row]) -> None:
        """Take a full block, which stays in memory or goes to disk."""
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
        if not self.steady:
            self.settle()

    def _gone(self, number: int, _reference: object) -> None:
        """The messages of a block were taken, or dropped."""
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
            page = _StoredPage(self, place, summary_of(messages))
            self.written.append((reference, page))
            self.counters["written"] += 1
