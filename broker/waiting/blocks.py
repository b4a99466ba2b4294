"""Blocks of messages that wait: in memory, or on disk.

The messages of a block never change, so a copy of a queue takes references of its blocks only, and
the garbage collector passes by what is in them: it stops tracking a tuple of tuples of atomic
values.

A block may be *on disk*: then it holds a `Page`, from which its messages are read when somebody
looks at them, each time anew. Who has to know no more than what they are together, or hands them on
as they are, has the bytes of the page without unpacking them.
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
"""So many blocks are asked for before they are looked at, or fewer of so many bytes."""


class Summary(NamedTuple):
    """What is known of the messages of a page without a look at them."""

    messages: int
    bytes: int  # of bodies
    timed: int  # how many have a time to live of their own
    memory: int  # bytes that they take there, about
    persistent: bool  # each of them


class Packed(Protocol):
    """The bytes of a page, which were asked for."""

    def found(self) -> bytes | None:
        """Return them if they were read."""

    def get(self) -> bytes:
        """Return them; waits for the disk."""


class Page(Protocol[_T_co]):
    """Messages that are on disk.  They go from there with the last reference."""

    @property
    def summary(self) -> Summary:
        """What they are together."""

    def packed(self) -> Packed:
        """Have their bytes read."""

    def load(self) -> tuple[_T_co, ...]:
        """Return them; waits for the disk where they were not asked for in time."""

    def found(self) -> tuple[_T_co, ...] | None:
        """Return them if they were read, else have them read."""

    def ask(self) -> int:
        """Have them read, as somebody is about to look at them; return how many bytes that are, or
        more than `AHEAD_BYTES`: what follows them must not be asked for now."""


class Block(Generic[_T]):
    """Messages that lie between the ends of a backlog, in memory or on disk."""

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
        """All of them; waits for the disk."""
        messages = self._messages
        if messages is None:
            assert self._page is not None
            messages = self._page.load()
        return messages

    def found(self) -> tuple[_T, ...] | None:
        """All of them if they are in memory by now; else they are being read."""
        messages = self._messages
        if messages is None:
            assert self._page is not None
            messages = self._page.found()
        return messages

    @property
    def page(self) -> Page[_T] | None:
        """Where they are, unless that is in memory."""
        return self._page if self._messages is None else None

    @property
    def on_disk(self) -> bool:
        """Whether they are not in memory."""
        return self._messages is None

    def put_on_disk(self, page: Page[_T]) -> None:
        """`page` has them now."""
        self._page = page
        self._messages = None

    def ask(self) -> int:
        """Somebody is about to look at them; return how many bytes have to be read for it."""
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


def packed_ahead(
    parts: Iterable[_P], wanted: Callable[[Block[_T]], bool]
) -> Iterator[tuple[_P, Packed | None]]:
    """Yield these parts, with the bytes of those that are on disk and `wanted` so; those that come
    next are asked for."""
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
