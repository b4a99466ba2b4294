"""The body of a message: bytes, or the parts of a large body, which are never joined.

A large body keeps the parts in which its channel sent it, in queues, on disk and on its way to
consumers: joining 200 MB would block a member for a tenth of a second, and make a second copy. The
division into parts is local to one member, and not part of the replicated state: bytes, length and
hash of the body are the same everywhere.
Decision: docs/decisions/0093-a-large-body-stays-in-its-parts.md.
"""

# mypy: disable-error-code="import-untyped"
from collections.abc import Iterable, Iterator
from typing import TypeAlias, final

from xxhash import xxh3_64


@final
class LargeBody:
    """A body in parts. It has a length, is equal to its bytes, and knows their hash."""

    __slots__ = ("_size", "hashed", "parts")

    def __init__(self, parts: tuple[bytes, ...], size: int, hashed: int) -> None:
        self.parts, self._size = parts, size
        self.hashed = hashed
        """xxh3-64 of the bytes as received."""

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LargeBody | bytes) and bytes(self) == bytes(other)

    def __repr__(self) -> str:
        return f"LargeBody({self._size} bytes, {self.hashed:016x})"

    def __bytes__(self) -> bytes:
        """A whole copy: for bodies that are not large."""
        return b"".join(self.parts)

    def hashed_again(self) -> int:
        """Return the hash of the bytes as they are now."""
        return _hash_of(self.parts)

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the body in pieces of `size` bytes, whatever its parts; the last one may be
        shorter."""
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
    """The received parts of an incomplete body."""

    __slots__ = ("_hasher", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self._hasher = xxh3_64()

    def add(self, part: bytes) -> None:
        """Add the next part. It is hashed now, so that no work is left for the whole."""
        self.parts.append(part)
        self.size += len(part)
        self._hasher.update(part)

    def whole(self, rest: bytes = b"") -> LargeBody:
        """Return the whole body; `rest` is its last part."""
        if rest:
            self.add(rest)
        return LargeBody(tuple(self.parts), self.size, self._hasher.intdigest())


def in_parts(parts: Iterable[bytes]) -> LargeBody:
    """Return a body made of all its parts."""
    growing = GrowingBody()
    for part in parts:
        growing.add(part)
    return growing.whole()


def pieces_of(body: Body, size: int) -> Iterator[bytes]:
    """Yield a body in pieces of `size` bytes."""
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
