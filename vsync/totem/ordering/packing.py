"""Packs payloads into frames and back: many small ones in one frame, a large one over several.

Sending side: one bounded first-in-first-out queue. A frame carries payloads of one guarantee, in
submission order. A payload that does not fit into a frame travels alone, as numbered pieces.

Receiving side: pieces are collected by sender (whose identity includes its incarnation). Members
that join later do not know a payload whose pieces were not all ordered in one ring. So at each new
regular configuration every receiver forgets its incomplete payloads, and the sender starts the
incomplete one again from its first piece. A payload therefore survives a view change whole or, with
its sender, vanishes whole.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import cast

from vsync.errors import PayloadTooLarge
from vsync.types import Guarantee, Member
from vsync.wire.codec import (
    FRAGMENT_HEAD_BYTES,
    ITEM_OVERHEAD,
    ITEMS_MAX,
    fragment_head,
    read_fragment_head,
)
from vsync.wire.messages import Content

Packed = tuple[Content, Guarantee, list[bytes]]


class SendQueue:
    """Submitted payloads that have no sequence number yet."""

    def __init__(self, bytes_max: int, count_max: int, payload_max: int) -> None:
        self._queue: deque[tuple[bytes, Guarantee]] = deque()
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._payload_max = payload_max
        self._index = 0  # next piece of the payload at the head
        self._gone = 0  # bytes of it that went out
        self._number = 0  # counts payloads that went out in pieces, for the receivers' check
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, payload: bytes, guarantee: Guarantee) -> bool:
        """Take a payload, or refuse it because the queue is full.

        An empty queue takes any legal payload; otherwise one above the byte limit could never go
        out.
        """
        size = len(payload)
        if size > self._payload_max:
            raise PayloadTooLarge(
                f"a message of {size} bytes is above the limit of {self._payload_max} bytes "
                f"(message_bytes_max): send it in several messages"
            )
        if self._queue and (
            self.bytes + size > self._bytes_max or len(self._queue) >= self._count_max
        ):
            return False
        self._queue.append((payload, guarantee))
        self.bytes += size
        return True

    def backlog(self, room: int) -> int:
        """The number of waiting frames of `room` item bytes: an estimate, for flow control only."""
        if not self._queue:
            return 0
        return 1 + (self.bytes - self._gone + ITEM_OVERHEAD * len(self._queue)) // room

    def next(self, room: int) -> Packed | None:
        """The next frame's content: at most `room` bytes of items with their lengths."""
        queue = self._queue
        if not queue:
            return None
        payload, guarantee = queue[0]
        if len(payload) + ITEM_OVERHEAD > room:
            return self._piece(payload, guarantee, room)
        items: list[bytes] = []
        taken = 0
        for payload, wanted in islice(queue, ITEMS_MAX):  # the ring waits for this loop
            size = len(payload)
            room -= size + ITEM_OVERHEAD
            if room < 0 or wanted is not guarantee:
                break
            items.append(payload)
            taken += size
        for _ in items:
            queue.popleft()
        self.bytes -= taken
        return Content.PAYLOADS, guarantee, items

    def _piece(self, payload: bytes, guarantee: Guarantee, room: int) -> Packed:
        size = room - 2 * ITEM_OVERHEAD - FRAGMENT_HEAD_BYTES
        count = -(-len(payload) // size)
        if not self._index:
            self._number += 1
        index = self._index
        items = [
            fragment_head(self._number, index, count),
            cast("bytes", memoryview(payload)[index * size : (index + 1) * size]),
        ]
        self._index += 1
        self._gone += len(items[1])
        if self._index == count:
            self._index = self._gone = 0
            self._queue.popleft()
            self.bytes -= len(payload)
        return Content.FRAGMENT, guarantee, items

    def restart(self) -> bool:
        """A new ring: the half-sent payload starts again. True if there was one."""
        half = self._index > 0
        self._index = self._gone = 0
        return half

    def invariants(self) -> None:
        if len(self._queue) <= 64:  # a long queue is not summed up after each step
            assert self.bytes == sum(len(p) for p, _ in self._queue), "queue bytes drifted"
        assert not self._index or self._queue, "a payload half sent, and not queued"
        assert bool(self._gone) == bool(self._index), "sent pieces drifted"


PIECES_APART_MAX = 1024
"""Up to this many pieces are kept one by one. Joining them at the end costs a twentieth of a
growing buffer; but pieces may be small and many, and each takes some 60 bytes more by itself."""


class _Partial:
    """The first pieces of one large payload."""

    def __init__(self, number: int, count: int, first: bytes) -> None:
        self.number = number
        self.count = count
        self.pieces = 1
        self.piece_bytes = len(first)  # of each but the last
        self.size = len(first)
        self._apart, self._joined = [first], list[bytes]()

    def add(self, part: bytes) -> None:
        """Take the next piece."""
        self.pieces += 1
        self.size += len(part)
        self._apart.append(part)
        if len(self._apart) == PIECES_APART_MAX:
            self._joined.append(b"".join(self._apart))
            self._apart.clear()

    def whole(self) -> bytes:
        """All pieces so far."""
        return b"".join((*self._joined, *self._apart))

    def fits(self, number: int, index: int, count: int, part: bytes) -> bool:
        """Is this the next piece, and has it the right size?"""
        last = index + 1 == self.count
        size = len(part)
        return (number, index, count) == (self.number, self.pieces, self.count) and (
            0 < size <= self.piece_bytes if last else size == self.piece_bytes
        )


class Reassembly:
    """Incomplete large payloads: at most one for each sender, none above the limit."""

    def __init__(self, payload_max: int) -> None:
        self._limit = payload_max
        self._parts: dict[Member, _Partial] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, sender: Member, items: list[bytes]) -> tuple[list[bytes], str]:
        """Take one piece; return the payload it completes (none or one), and a counter name or "".

        Pieces come in total order and each ring starts a payload at its first piece, so anything
        else comes from a faulty sender; all receivers drop it alike.
        """
        number, index, count = read_fragment_head(items[0])
        part = items[1]
        if index == 0:
            code = "fragment_restarted" if self._parts.pop(sender, None) is not None else ""
            # The last piece has at least one byte.
            if not part or count < 2 or (count - 1) * len(part) >= self._limit:
                return [], "fragment_refused"
            self._parts[sender] = _Partial(number, count, part)
            return [], code
        held = self._parts.get(sender)
        if held is None or not held.fits(number, index, count, part):
            self._parts.pop(sender, None)
            return [], "fragment_out_of_order"
        if held.size + len(part) > self._limit:
            del self._parts[sender]
            return [], "fragment_refused"
        held.add(part)
        if held.pieces < count:
            return [], ""
        del self._parts[sender]
        return [held.whole()], ""

    def forget(self) -> int:
        """A new regular configuration: drop all incomplete payloads; returns how many."""
        gone = len(self._parts)
        self._parts.clear()
        return gone
