"""Ranges of places in a queue: first and last of each, ascending, none touching the next.

However long a queue is, its waiting messages are nearly always one range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

Ranges: TypeAlias = list[tuple[int, int]]


def ranges_of(places: Iterable[int]) -> Ranges:
    """The ranges of these ascending places; duplicates are allowed."""
    found: Ranges = []
    for place in places:
        if found and place <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(place, found[-1][1])
        else:
            found.append((place, place))
    return found


def union(*several: Ranges) -> Ranges:
    """Places in at least one of them."""
    found: Ranges = []
    for first, last in sorted(one for ranges in several for one in ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Places in the first and not in the second."""
    found: Ranges = []
    at = 0
    for first, last in ranges:
        while at < len(others) and others[at][1] < first:
            at += 1
        begin, other = first, at
        while other < len(others) and others[other][0] <= last:
            if others[other][0] > begin:
                found.append((begin, others[other][0] - 1))
            begin = others[other][1] + 1
            other += 1
        if begin <= last:
            found.append((begin, last))
    return found


def count(ranges: Ranges) -> int:
    """The number of places in them."""
    return sum(last - first + 1 for first, last in ranges)


def places(ranges: Ranges) -> Iterator[int]:
    """Each single place."""
    for first, last in ranges:
        yield from range(first, last + 1)


def as_text(ranges: Sequence[tuple[int, int]]) -> str:
    """The form in headers and arguments: `0-99,120`."""
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in ranges)


def parse(text: str) -> Ranges:
    """Parse the output of `as_text`. Raises ValueError."""
    found: Ranges = []
    for one in text.split(",") if text else ():
        first, dash, last = one.partition("-")
        found.append((int(first), int(last) if dash else int(first)))
        if found[-1][0] > found[-1][1] or (len(found) > 1 and found[-2][1] >= found[-1][0]):
            raise ValueError(f"'{one}' is no range behind the one before it")
    return found
