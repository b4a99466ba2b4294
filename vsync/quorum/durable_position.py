"""How far is it durable, given what each member has on its disk?

Every member's mark rides on the token (`Marks`): the position up to which it has all on its disk.
What set of members is enough is the caller's rule: a quorate set of voters, or a majority of a
group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

M = TypeVar("M")


def durable_up_to(marks: Mapping[M, int], enough: Callable[[set[M]], bool]) -> int:
    """The largest position that all members of some sufficient set have reached; 0 if none.

    `marks` holds those only whose word counts.  `enough` must be monotone: more members never make
    a set insufficient; so for each position the largest set there is decides.
    """
    for position in sorted(set(marks.values()), reverse=True):
        if enough({member for member, mark in marks.items() if mark >= position}):
            return position
    return 0
