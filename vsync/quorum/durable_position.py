"""The durable position of a set of members, computed from the mark of each.

The token carries each member's mark (`Marks`): the position up to which it has everything on disk.
The caller says which sets of members are enough: a quorate set of voters, or a majority of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

M = TypeVar("M")


def durable_up_to(marks: Mapping[M, int], enough: Callable[[set[M]], bool]) -> int:
    """Return the largest position that all members of some sufficient set have reached, or 0.

    `marks` holds only members that count. `enough` must be monotone: adding members never makes a
    set insufficient. So for each position the largest set that reached it decides.
    """
    for position in sorted(set(marks.values()), reverse=True):
        if enough({member for member, mark in marks.items() if mark >= position}):
            return position
    return 0
