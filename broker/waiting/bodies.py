"""The body of a message: bytes, or the parts of a large one, which nobody puts together.

A large body is made of what its channel sent, part by part, and stays so in queues, on disk and on
its way to consumers: to join 200 MB takes a member away from all else for a tenth of a second, and
is a second copy.  Whether a body is in parts, and in which, is one member's own, and no part of the
replicated state: its bytes, its length and its hash are the same.
Decision: docs/decisions/0093-a-large-body-stays-in-its-parts.md.
"""

# mypy: disable-error-code="import-untyped"
from collections.abc import Iterable, Iterator
from typing import TypeAlias, final

from xxhash import xxh3_64


@final
class LargeBody:
    """A body in its parts.  It has a length, is equal to its bytes, and knows their hash."""

    __slots__ = ("_size", "hashed", "parts")

    def __init__(self, parts: tuple[bytes, ...], size: int, hashed: int) -> None:
        self.parts, self._size = parts, size
        self.hashed = hashed
        """xxh3-64 of the bytes as they came."""

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LargeBody | bytes) and bytes(self) == bytes(other)

    def __repr__(self) -> str:
        return f"LargeBody({self._size} bytes, {self.hashed:016x})"

    def __bytes__(self) -> bytes:
        """A whole copy: for those that are not large."""
        return b"".join(self.parts)

    def hashed_again(self) -> int:
        """Return the hash of the bytes as they are now."""
        return _hash_of(self.parts)

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield all, in pieces of so many bytes, whatever the parts are; the last one is what is
        left."""
        piece = bytearray()
        for part in self.parts:
            at = 0
            while at < len(part):
                taken = part[at : at + size - len(piece)]
                piece += taken
                at += len(taken)
                if len(piece) == size:
                    yield bytes(piece)
                    piece.clear()
        if piece:
            yield bytes(piece)


Body: TypeAlias = bytes | LargeBody


class GrowingBody:
    """Parts that have come of a body which is not whole yet."""

    __slots__ = ("_hasher", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self._hasher = xxh3_64()

    def add(self, part: bytes) -> None:
        """The next part.  Its hash is a part's work, so that the whole has none left."""
        self.parts.append(part)
        self.size += len(part)
        self._hasher.update(part)

    def whole(self, rest: bytes = b"") -> LargeBody:
        """Return the body, of which this is the rest."""
        if rest:
            self.add(rest)
        return LargeBody(tuple(self.parts), self.size, self._hasher.intdigest())


def in_parts(parts: Iterable[bytes]) -> LargeBody:
    """Return a body of which all parts are here."""
    growing = GrowingBody()
    for part in parts:
        growing.add(part)
    return growing.whole()


def pieces_of(body: Body, size: int) -> Iterator[bytes]:
    """Yield a body in pieces of so many bytes."""
    if isinstance(body, LargeBody):
        yield from body.pieces(size)
        return
    for at in range(0, len(body), size):
        yield body[at : at + size]


def _hash_of(parts: Iterable[bytes]) -> int:
    hasher = xxh3_64()
    for part in parts:
        hasher.update(part)
    return int(hasher.intdigest())
