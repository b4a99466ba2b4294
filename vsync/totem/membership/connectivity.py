"""Who hears whom: my own ears, and what others say of theirs.

Members tell in each JOIN and MERGE whom they heard lately (a *row*).  Two members are *linked* when
each says that it hears the other.  A new view is always a clique of linked members, and a ring is
given up for a larger one only if all of that are linked already: so links that are broken, in one
direction or both, exclude a member once and not again and again.

Only cliques that contain me matter here, and all rows of those I have first hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vsync.types import Member

STEPS_MAX = 2000
"""Of the search for the largest clique; after that the best so far.  Only networks with dozens of
broken links get there, and what they lose is size, never agreement."""
KNOWN_MAX = 256


class ReceptionReport(NamedTuple):
    """What one member said last."""

    hears: frozenset[Member]
    size: int  # members of its view; 1 while it has none
    at: float


class Connectivity:
    """All that I know about links, each fact for `memory` seconds."""

    def __init__(self, me: Member, memory: float) -> None:
        self._me = me
        self._memory = memory
        self._at: dict[Member, float] = {}
        self._rows: dict[Member, ReceptionReport] = {}
        self._announced: tuple[Member, ...] = ()
        self.reachable: tuple[Member, ...] = ()

    def heard(self, member: Member, now: float) -> bool:
        """A frame of that life came; True if that is news."""
        last = self._at.get(member)
        self._at[member] = now
        if last is not None and now - last <= self._memory:
            return False
        # A newer life ends the older ones; the receiver has checked that this is the newest.
        older = [m for m in self._at if m.name == member.name and m != member]
        self.forget(older)
        while len(self._at) > KNOWN_MAX:
            self.forget([next(iter(self._at))])
        return True

    def told(self, member: Member, hears: Iterable[Member], size: int, now: float) -> bool:
        """Take the row of a member that was heard; True if it says something new."""
        if member not in self._at:
            return False
        row = ReceptionReport(frozenset(hears), size, now)
        last = self._rows.get(member)
        self._rows[member] = row
        return last is None or last[:2] != row[:2] or now - last.at > self._memory

    def forget(self, members: Iterable[Member]) -> None:
        """These are gone for good, or said farewell."""
        for member in members:
            self._at.pop(member, None)
            self._rows.pop(member, None)

    def ears(self, now: float) -> tuple[Member, ...]:
        """Whom I hear: my own row."""
        return tuple(sorted(m for m, at in self._at.items() if now - at <= self._memory))

    def announce(self, now: float) -> tuple[Member, ...]:
        """My own row, to be sent to all now."""
        self._announced = self.ears(now)
        return self._announced

    def news(self, now: float) -> bool:
        """Is my own row another one than all were sent last?"""
        return self.ears(now) != self._announced

    def linked(self, now: float) -> dict[Member, ReceptionReport]:
        """My neighbours: members that I hear, and that say that they hear me."""
        found = [
            (member, row)
            for member, row in self._rows.items()
            if now - row.at <= self._memory
            and now - self._at[member] <= self._memory
            and self._me in row.hears
        ]
        return dict(sorted(found))

    def complete(self, members: Iterable[Member], now: float) -> bool:
        """Is each of these linked with each other, as far as I know?"""
        rows, wanted = self.linked(now), frozenset(members)
        others = wanted - {self._me}
        return all(m in rows and wanted <= rows[m].hears | {m} for m in others)

    def witnessed(self, members: Iterable[Member], now: float) -> bool:
        """Is each of these alive by somebody's word, mine or that of one whom I hear?"""
        heard = {m for m, at in self._at.items() if now - at <= self._memory}
        missing = set(members) - heard - {self._me}
        for member in heard & self._rows.keys() if missing else ():
            row = self._rows[member]
            if now - row.at <= self._memory:
                missing -= row.hears
        return not missing

    def clique(self, members: Iterable[Member], now: float) -> tuple[Member, ...]:
        """The largest part of these that are all linked, with me; the first such in order."""
        rows, wanted = self.linked(now), frozenset(members)
        return largest_clique(self._me, [m for m in rows if m in wanted], _among(rows))

    def known(self, now: float) -> tuple[Member, ...]:
        """Everybody that I hear, or that somebody whom I hear hears."""
        found = set(self.ears(now))
        for row in self._rows.values():
            if now - row.at <= self._memory:
                found |= row.hears
        return tuple(sorted(found - {self._me}))

    def newly_known(self, now: float) -> tuple[Member, ...] | None:
        """Everybody known now, if that changed since the last call: the shell must reach them."""
        known = self.known(now)
        if known == self.reachable:
            return None
        self.reachable = known
        return known

    def gain(
        self, size: int, size_max: int, without: Iterable[Member], now: float
    ) -> tuple[Member, ...]:
        """A clique with me that is larger than the present view of each of its members, or ().

        My own view has `size` members.  So each view that is given up for another is given up for
        a larger one, and while links stay as they are this ends.
        """
        skipped = frozenset(without)
        rows = {m: row for m, row in self.linked(now).items() if m not in skipped}
        if len(rows) < size:
            return ()
        sizes = {size, *(row.size for row in rows.values() if row.size > size)}
        for bound in sorted((s for s in sizes if s < size_max), reverse=True):
            found = largest_clique(
                self._me, [m for m, row in rows.items() if row.size <= bound], _among(rows)
            )
            if len(found) > bound:
                return found
        return ()


def _among(rows: dict[Member, ReceptionReport]) -> Callable[[Member, Member], bool]:
    return lambda a, b: b in rows[a].hears and a in rows[b].hears


def largest_clique(
    me: Member, neighbours: Sequence[Member], linked: Callable[[Member, Member], bool]
) -> tuple[Member, ...]:
    """The largest set of `me` and neighbours that are all linked, sorted; of equals, the first."""
    best: tuple[Member, ...] = (me,)
    steps = 0

    def extend(chosen: tuple[Member, ...], left: list[Member]) -> None:
        nonlocal best, steps
        if len(chosen) > len(best):
            best = chosen
        for index, member in enumerate(left):
            steps += 1
            if steps > STEPS_MAX or len(chosen) + len(left) - index <= len(best):
                return
            extend((*chosen, member), [m for m in left[index + 1 :] if linked(member, m)])

    extend((me,), sorted(neighbours))
    return tuple(sorted(best))
