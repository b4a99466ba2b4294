"""Durable position of a set of members, computed from the mark of each.

A member's mark is sent with the token (`Marks`): the position up to which it has everything on its
disk.  Which sets of members are enough is the caller's rule: a quorate set of voters, or a majority
of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

M = TypeVar("M")


def durable_up_to(marks: Mapping[M, int], enough: Callable[[set[M]], bool]) -> int:
    """Return the largest position that all members of some sufficient set have reached; else 0.

    `marks` holds only members that count.  `enough` must be monotone: more members never make a set
    insufficient, so for each position the largest set that reached it decides.
    """
    for position in sorted(set(marks.values()), reverse=True):
        if enough({member for member, mark in marks.items() if mark >= position}):
            return position
    return 0
