"""Output that contains large contents, sent ahead of the bytes in `ServerConnection.out`.

Frames of large contents are made as the socket takes them, so a client costs no copy of a large
message, and nobody waits while 200 MB are copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

TAKEN_BYTES = 512 << 10
"""Bytes of frames of large contents sent at once."""

_Piece: TypeAlias = bytearray | Iterator[bytes]


class Ahead(deque[_Piece]):
    """Bytes, and contents whose frames are made later, in order; true while there are any, like a
    deque, because every delivery asks."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        super().__init__()
        self.held: deque[_Piece] = deque()  # set aside while the client gets no replies

    def put(self, before: bytearray, frames: Iterator[bytes]) -> None:
        """Add a content behind these bytes."""
        self.extend((before, frames))

    def take(self) -> bytearray:
        """Return the next output: whole frames, and not much more than `TAKEN_BYTES` of them."""
        out = bytearray()
        while self and len(out) < TAKEN_BYTES:
            first = self[0]
            if isinstance(first, bytearray):
                out += first
            elif (frame := next(first, None)) is not None:
                out += frame
                continue
            self.popleft()
        return out

    def cut(self) -> bytearray:
        """Forget the contents and everything behind the first of them; return the bytes
        before it.
        """
        before = bytearray()
        for piece in self:
            if not isinstance(piece, bytearray):
                break
            before += piece
        self.clear()
        return before

    def hold(self, out: bytearray) -> None:
        """Set everything aside, with these bytes behind it."""
        self.held += self
        if out:
            self.held.append(out)
        self.clear()

    def release(self) -> None:
        """The output that was set aside goes first again."""
        self.extendleft(reversed(self.held))
        self.held.clear()

    def drop_held(self) -> None:
        """It is too late for the output that was set aside."""
        self.held.clear()
