"""Which messages of this member are durable at a majority of their group.

The token carries every member's *mark*: the position up to which that member has everything on
disk. The electorate of a message is the membership of its group at the message's place in the
order. The positions of one member only rise, and members that stay together use the same positions.
So a mark at or above a message's position proves that member's copy, as long as the member has
stayed: the other side of a partition uses the same numbers for other messages. A member that leaves
keeps the mark it had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from vsync.cpg.events import Failed, GroupSent
from vsync.quorum.durable_position import durable_up_to
from vsync.quorum.voter_set import majority
from vsync.types import Member


class _Electorate:
    """The members of one group view, and this member's messages ordered in it."""

    def __init__(self, group: str, members: tuple[Member, ...]) -> None:
        self.group = group
        self.marks = dict.fromkeys(members, 0)
        self.here = set(members)
        self.waiting: deque[tuple[int, int]] = deque()  # (ticket, position), rising

    def update(self, marks: dict[str, int]) -> None:
        """Take the marks of the members that never left."""
        for member in self.here:
            mark = marks.get(member.name, 0)
            if mark > self.marks[member]:
                self.marks[member] = mark

    def durable(self) -> int:
        """Return the position that a majority has on disk."""
        need = majority(len(self.marks))
        return durable_up_to(self.marks, lambda members: len(members) >= need)

    def reachable(self, position: int) -> int:
        """Return how many members have this position on disk, or still may."""
        return sum(1 for m, mark in self.marks.items() if m in self.here or mark >= position)


class Durability:
    """This member's messages that wait for the disks of other members."""

    def __init__(self) -> None:
        self._now: dict[str, _Electorate] = {}  # the current view of each joined group
        self._past: list[_Electorate] = []  # older views, while messages wait in them
        self._marks: dict[str, int] = {}  # as the token of this ring last showed them

    def __len__(self) -> int:
        return sum(len(e.waiting) for e in self._all())

    def _all(self) -> list[_Electorate]:
        return [*self._now.values(), *self._past]

    def add(self, ticket: int, position: int, group: str, members: tuple[Member, ...]) -> None:
        """Add a message of this member that was ordered; `members` are the group's at its place."""
        held = self._now.get(group)
        # A member that left and came back is another voter: look only at members that stayed.
        if held is None or held.here != set(members) or len(held.marks) != len(members):
            if held is not None and held.waiting:
                self._past.append(held)
            held = self._now[group] = _Electorate(group, members)
        # A mark may have arrived before the message was delivered here.
        held.update(self._marks)
        held.waiting.append((ticket, position))

    def on_marks(self, marks: dict[str, int]) -> list[GroupSent]:
        """Take the marks of the token; return what has become durable."""
        self._marks = marks
        found: list[GroupSent] = []
        for electorate in self._all():
            electorate.update(marks)
            if electorate.waiting:
                durable = electorate.durable()
                while electorate.waiting and electorate.waiting[0][1] <= durable:
                    found.append(GroupSent(*electorate.waiting.popleft()))
        self._past = [e for e in self._past if e.waiting]
        return found

    def new_ring(self) -> None:
        """Forget the marks: the same names may be other incarnations in the new ring."""
        self._marks = {}

    def gone(self, members: Iterable[Member], group: str | None = None) -> list[Failed]:
        """These members left the ring, or one group; return what can no longer become durable."""
        found: list[Failed] = []
        lost = frozenset(members)
        for electorate in self._all():
            if group is not None and electorate.group != group:
                continue
            electorate.here -= lost
            need, kept = majority(len(electorate.marks)), deque[tuple[int, int]]()
            for ticket, position in electorate.waiting:
                able = electorate.reachable(position)
                if able >= need:
                    kept.append((ticket, position))
                else:
                    reason = (
                        f"ordered at position {position}, but {need} of {len(electorate.marks)} "
                        f"members must report it durable and at most {able} still can"
                    )
                    found.append(Failed(ticket, position, reason))
            electorate.waiting = kept
        return found

    def close(self, group: str) -> None:
        """This member left the group; its waiting messages keep waiting."""
        held = self._now.pop(group, None)
        if held is not None and held.waiting:
            self._past.append(held)

    def drop(self) -> list[int]:
        """Forget all waiting messages; return their tickets."""
        tickets = [ticket for e in self._all() for ticket, _ in e.waiting]
        self._now, self._past = {}, []
        return tickets
