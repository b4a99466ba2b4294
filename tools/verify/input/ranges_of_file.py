"""Ranges of one file: positions, and after which of the states recorded in it (START, SNAPSHOT).

After a state positions rise one by one.  An incarnation that is given a state older than what it
had applied records the same positions again, perhaps with the same items.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tools.verify.format.records import Record, Snapshot, Start

ANY = -1


class FileRange(NamedTuple):
    """Positions `first` to `last` after the state of this number.

    State 0 is before any in the file: it continues the segment before.
    """

    first: int
    last: int
    state: int = ANY


class RangeCursor:
    """Cursor over the records of a file: which of its ranges apply at the present record."""

    def __init__(self, ranges: Iterable[FileRange]) -> None:
        self._ranges = sorted(ranges)
        self._state = 0
        self.ranges: list[tuple[int, int]] = []
        self._select()

    def advance(self, record: Record) -> None:
        """Take the next record."""
        if isinstance(record, Start | Snapshot):
            self._state += 1
            self._select()

    def covers(self, position: int) -> bool:
        """Whether a range covers this position here."""
        return any(first <= position <= last for first, last in self.ranges)

    def _select(self) -> None:
        self.ranges = [
            (first, last) for first, last, state in self._ranges if state in (ANY, self._state)
        ]
