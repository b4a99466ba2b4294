"""Blocks of waiting messages, in memory or on disk.

The messages of a block never change, so a copy of a queue only takes references to its blocks, and
the garbage collector skips their content: it stops tracking a tuple of tuples of atomic values.

A block may be *on disk*: then it holds a `Page`, from which its messages are read anew at each
access. Code that only needs their summary, or hands them on unchanged, uses the page's bytes
without unpacking them.
Decisions: docs/decisions/0057-a-backlog-is-not-memory.md,
docs/decisions/0086-a-checkpoint-has-pages-as-they-are.md.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_P = TypeVar("_P")

AHEAD = 8
AHEAD_BYTES = 1 << 20
"""The number of blocks requested ahead of their use, or fewer with this many bytes."""


class Summary(NamedTuple):
    """Facts about the messages of a page, known without reading them."""

    messages: int
    bytes: int  # of bodies
    timed: int  # how many have a time to live of their own
    memory: int  # bytes that they take there, about
    persistent: bool  # each of them


class Packed(Protocol):
    """The requested bytes of a page."""

    def found(self) -> bytes | None:
        """Return the bytes if they were read."""

    def get(self) -> bytes:
        """Return the bytes; waits for the disk."""


class Page(Protocol[_T_co]):
    """Messages on disk. They are removed from it with the last reference."""

    @property
    def summary(self) -> Summary:
        """The summary of the messages."""

    def packed(self) -> Packed:
        """Request their bytes."""

    def load(self) -> tuple[_T_co, ...]:
        """Return the messages; waits for the disk if they were not requested in time."""

    def found(self) -> tuple[_T_co, ...] | None:
        """Return the messages if they were read, else request them."""

    def ask(self) -> int:
        """Request the messages, as they are about to be used; return their bytes, or more than
        `AHEAD_BYTES`: later blocks must not be requested now."""


class Block(Generic[_T]):
    """Messages between the ends of a backlog, in memory or on disk."""

    __slots__ = ("__weakref__", "_count", "_messages", "_page")

    def __init__(self, messages: tuple[_T, ...] | Page[_T]) -> None:
        self._messages: tuple[_T, ...] | None = None
        self._page: Page[_T] | None = None
        if isinstance(messages, tuple):
            self._messages, self._count = messages, len(messages)
        else:
            self._page, self._count = messages, messages.summary.messages

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_T]:
        return iter(self.messages())

    def messages(self) -> tuple[_T, ...]:
        """All messages; waits for the disk."""
        messages = self._messages
        if messages is None:
            assert self._page is not None
            messages = self._page.load()
        return messages

    def found(self) -> tuple[_T, ...] | None:
        """All messages if they are in memory by now; else they are being read."""
        messages = self._messages
        if messages is None:
            assert self._page is not None
            messages = self._page.found()
        return messages

    @property
    def page(self) -> Page[_T] | None:
        """The page with the messages; None when they are in memory."""
        return self._page if self._messages is None else None

    @property
    def on_disk(self) -> bool:
        """Whether the messages are on disk."""
        return self._messages is None

    def put_on_disk(self, page: Page[_T]) -> None:
        """Let `page` hold the messages from now on."""
        self._page = page
        self._messages = None

    def ask(self) -> int:
        """Prepare for a use of the messages; return how many bytes must be read for it."""
        if self._messages is None and self._page is not None:
            return self._page.ask()
        return 0


Part: TypeAlias = tuple[_T, ...] | Block[_T]


def read_along(parts: Iterable[Part[_T]]) -> Iterator[tuple[_T, ...] | None]:
    """Yield the messages of these parts; None while the next ones are being read."""
    for part in read_ahead(parts):
        if isinstance(part, tuple):
            yield part
            continue
        while (messages := part.found()) is None:
            yield None
        yield messages


def read_ahead(parts: Iterable[Part[_T]]) -> Iterator[Part[_T]]:
    """Yield these parts, requesting the next ones ahead."""
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


def packed_ahead(
    parts: Iterable[_P], wanted: Callable[[Block[_T]], bool]
) -> Iterator[tuple[_P, Packed | None]]:
    """Yield these parts, with the bytes of those that are on disk and `wanted` so, requesting the
    next ones ahead."""
    ahead: deque[tuple[_P, Packed | None]] = deque()
    for part in parts:
        packed: Packed | None = None
        if isinstance(part, Block):
            page = part.page
            if page is not None and wanted(part):
                packed = page.packed()
            else:
                part.ask()
        ahead.append((part, packed))
        if len(ahead) > AHEAD:
            yield ahead.popleft()
    yield from ahead
