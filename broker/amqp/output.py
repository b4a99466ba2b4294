"""Output in which large contents stand, ahead of what collects in `ServerConnection.out`.

Their frames are made as the socket takes them, so a client costs no copy of a large message, and
nobody waits while 200 MB are copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

TAKEN_BYTES = 512 << 10
"""Of frames of large contents that go out at once."""

_Piece: TypeAlias = bytearray | Iterator[bytes]


class Ahead:
    """Bytes, and contents whose frames are made later, in their order; true while there are any."""

    __slots__ = ("_held", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._held: deque[_Piece] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def put(self, before: bytearray, frames: Iterator[bytes]) -> None:
        """Add a content behind these bytes."""
        self._pieces += (before, frames)

    def take(self) -> bytearray:
        """Return what goes out next: whole frames, and not much more than `TAKEN_BYTES` of them."""
        out = bytearray()
        pieces = self._pieces
        while pieces and len(out) < TAKEN_BYTES:
            first = pieces[0]
            if isinstance(first, bytearray):
                out += first
            elif (frame := next(first, None)) is not None:
                out += frame
                continue
            pieces.popleft()
        return out

    def cut(self) -> bytearray:
        """Forget the contents and all that follows the first of them; return what came before."""
        before = bytearray()
        for piece in self._pieces:
            if not isinstance(piece, bytearray):
                break
            before += piece
        self._pieces.clear()
        return before

    def hold(self, out: bytearray) -> None:
        """Set all aside, and these bytes behind it."""
        self._held += self._pieces
        if out:
            self._held.append(out)
        self._pieces.clear()

    def release(self) -> None:
        """What was set aside goes first again."""
        self._pieces.extendleft(reversed(self._held))
        self._held.clear()

    def drop_held(self) -> None:
        """It is too late for what was set aside."""
        self._held.clear()
