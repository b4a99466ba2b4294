"""Parts of one file: at which positions, behind which of the states that it tells of.

Behind a state positions rise one by one.  A life that is given a state which lies before what it
had applied (SNAPSHOT) tells of the same positions again, perhaps of the same items.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker.memberlog.records import Record, Snapshot, Start

ANY = -1


class FileRange(NamedTuple):
    """Positions `first` to `last` behind the state of this number; 0 is what stands in a file
    before any, as the segment before went on.
    """

    first: int
    last: int
    state: int = ANY


class RangeCursor:
    """Where one is in a file, record by record: which of its parts count here."""

    def __init__(self, ranges: Iterable[FileRange]) -> None:
        self._ranges = sorted(ranges)
        self._state = 0
        self.ranges: list[tuple[int, int]] = []
        self._select()

    def advance(self, record: Record) -> bool:
        """Take the next record; return whether it begins behind a new state."""
        if not isinstance(record, Start | Snapshot):
            return False
        self._state += 1
        self._select()
        return True

    def covers(self, position: int) -> bool:
        """Whether a part holds this position here."""
        return any(first <= position <= last for first, last in self.ranges)

    def _select(self) -> None:
        self.ranges = [
            (first, last) for first, last, state in self._ranges if state in (ANY, self._state)
        ]
