"""The filter values of a stream's messages, as a column of hashes.

The column has eight bytes for each message, from the first one with a value on. Finding the next
message for a reader is a search for eight bytes, so skipped messages are never read, least of all
from disk.
Decision: docs/decisions/0079-a-stream-is-read-at-offsets.md.
"""

from xxhash import xxh3_64_intdigest

_WIDTH = 8
NONE = bytes(_WIDTH)
"""The entry of a message without a value."""


def entry_of(value: str | bytes) -> bytes:
    """The column's entry for a value."""
    raw = value.encode() if isinstance(value, str) else value
    return (xxh3_64_intdigest(raw) or 1).to_bytes(_WIDTH, "little")


class FilterColumn:
    """The column of one stream; the kept messages sometimes begin later than the column."""

    __slots__ = ("_entries", "begin")

    def __init__(self) -> None:
        self.begin = 0  # the offset of the first entry; no message before it has a value
        self._entries = bytearray()

    def __bool__(self) -> bool:
        """Whether any message may have a value."""
        return bool(self._entries)

    def note(self, first: int, offset: int, entry: bytes) -> None:
        """A message came at this offset, the next one; `first` is the first that is kept."""
        entries = self._entries
        if entries and self.begin < first:
            gone = min(first - self.begin, len(entries) // _WIDTH)
            del entries[: gone * _WIDTH]
            self.begin += gone
        if not entries:
            if entry == NONE:
                return
            self.begin = offset
        entries += entry

    def at(self, offset: int) -> bytes:
        """Return the entry of an offset that is kept."""
        place = (offset - self.begin) * _WIDTH
        is_there = self._entries and place >= 0
        return bytes(self._entries[place : place + _WIDTH]) if is_there else NONE

    def next_match(self, wanted: tuple[bytes, ...], start: int, end: int) -> int:
        """Return the first offset from `start` on with one of these; `end`: none before that."""
        begin, entries = self.begin, self._entries
        if not entries or start < begin:
            if NONE in wanted or not entries:
                return start if NONE in wanted else end
            start = min(begin, end)
        low, best = (start - begin) * _WIDTH, (end - begin) * _WIDTH
        for entry in wanted:
            place = entries.find(entry, low, best)
            while place >= 0 and place % _WIDTH:  # it is half of one and half of the next
                place = entries.find(entry, place + 1, best)
            if place >= 0:
                best = place
        return begin + best // _WIDTH
