"""Pages of waiting messages in memory: the disk of machines in tests."""

from __future__ import annotations

from collections.abc import Iterator

from broker.waiting.pager import COUNTERS, Pager, Place, Work


class MemoryShelf:
    """A shelf that knows its pages; if `full`, it accepts none."""

    def __init__(self) -> None:
        self.pages: dict[Place, bytes] = {}
        self.full = False
        self._next = 0

    def put(self, data: bytes | list[bytes]) -> Place | None:
        if self.full:
            return None
        data = data if isinstance(data, bytes) else b"".join(data)
        self._next += 1
        place = self._next, len(data), 0
        self.pages[place] = data
        return place

    def get(self, place: Place) -> bytes:
        return self.pages[place]

    def pieces(self, place: Place) -> Iterator[bytes]:
        """Pieces of a size that no part has."""
        data = self.get(place)
        yield from (data[at : at + 1000] for at in range(0, len(data), 1000))

    def drop(self, place: Place) -> None:
        del self.pages[place]


def pager(limit_bytes: int = 0, shelf: MemoryShelf | None = None) -> Pager:
    """A pager that completes everything at once."""
    return Pager(shelf or MemoryShelf(), limit_bytes, _do, _do, dict.fromkeys(COUNTERS, 0))


def _do(work: Work) -> None:
    work()
