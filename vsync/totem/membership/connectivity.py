"""Tracks which members receive each other's frames, and finds cliques of those that do.

Each JOIN and MERGE carries a *reception report*: the members that its sender recently received
frames from. Two members are *linked* if each reports the other. A new view is always a clique of
linked members, and a ring is given up for a larger one only if the members of the larger one are
already all linked. So links that are broken, in one direction or both, exclude a member once and
not repeatedly.

Only cliques that contain this member matter here, and it has their members' reports first hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vsync.types import Member

STEPS_MAX = 2000
"""Limit of the search for the largest clique; beyond it the best so far is taken. Only networks
with dozens of broken links reach it, and it costs them view size, never agreement."""
KNOWN_MAX = 256


class ReceptionReport(NamedTuple):
    """The last report of one member."""

    reception: frozenset[Member]
    size: int  # members of its view; 1 while it has none
    at: float


class Connectivity:
    """One member's knowledge of links; each fact is kept for `memory` seconds."""

    def __init__(self, me: Member, memory: float) -> None:
        self._me = me
        self._memory = memory
        self._last_frame: dict[Member, float] = {}
        self._reports: dict[Member, ReceptionReport] = {}
        self._announced: tuple[Member, ...] = ()  # the own report as it was sent last
        self.reachable: tuple[Member, ...] = ()  # as `newly_known` returned it last

    def on_frame(self, member: Member, now: float) -> bool:
        """A frame of this incarnation arrived; True if there was none within `memory`."""
        last = self._last_frame.get(member)
        self._last_frame[member] = now
        if last is not None and now - last <= self._memory:
            return False
        # A newer incarnation replaces the older ones; the caller checked that this is the newest.
        older = [m for m in self._last_frame if m.name == member.name and m != member]
        self.forget(older)
        while len(self._last_frame) > KNOWN_MAX:
            self.forget([next(iter(self._last_frame))])
        return True

    def on_report(self, member: Member, reception: Iterable[Member], size: int, now: float) -> bool:
        """Take a member's report; True if it differs from the last one, or the last one expired."""
        if member not in self._last_frame:
            return False
        report = ReceptionReport(frozenset(reception), size, now)
        last = self._reports.get(member)
        self._reports[member] = report
        return last is None or last[:2] != report[:2] or now - last.at > self._memory

    def forget(self, members: Iterable[Member]) -> None:
        """These are gone for good, or left."""
        for member in members:
            self._last_frame.pop(member, None)
            self._reports.pop(member, None)

    def heard(self) -> dict[Member, float]:
        """The time of the last frame of each member."""
        return self._last_frame

    def reception(self, now: float) -> tuple[Member, ...]:
        """The members that frames recently came from: this member's own report."""
        return tuple(sorted(m for m, at in self._last_frame.items() if now - at <= self._memory))

    def announce(self, now: float) -> tuple[Member, ...]:
        """This member's own report, which the caller sends to all."""
        self._announced = self.reception(now)
        return self._announced

    def changed(self, now: float) -> bool:
        """Does this member's own report differ from the one announced last?"""
        return self.reception(now) != self._announced

    def linked(self, now: float) -> dict[Member, ReceptionReport]:
        """Members linked with this one: received from, and their reports name this member."""
        found = [
            (member, report)
            for member, report in self._reports.items()
            if now - report.at <= self._memory
            and now - self._last_frame[member] <= self._memory
            and self._me in report.reception
        ]
        return dict(sorted(found))

    def complete(self, members: Iterable[Member], now: float) -> bool:
        """Is each of these linked with each other, by the reports so far?"""
        reports, wanted = self.linked(now), frozenset(members)
        others = wanted - {self._me}
        return all(m in reports and wanted <= reports[m].reception | {m} for m in others)

    def all_received(self, members: Iterable[Member], now: float) -> bool:
        """Was each of these received from, by this member or by one that it receives from?"""
        on_frame = {m for m, at in self._last_frame.items() if now - at <= self._memory}
        missing = set(members) - on_frame - {self._me}
        for member in on_frame & self._reports.keys() if missing else ():
            report = self._reports[member]
            if now - report.at <= self._memory:
                missing -= report.reception
        return not missing

    def clique(self, members: Iterable[Member], now: float) -> tuple[Member, ...]:
        """The largest clique among these that contains this member; of equals, the first."""
        reports, wanted = self.linked(now), frozenset(members)
        return largest_clique(self._me, [m for m in reports if m in wanted], _among(reports))

    def known(self, now: float) -> tuple[Member, ...]:
        """Members received from, by this member or by one that it receives from."""
        found = set(self.reception(now))
        for report in self._reports.values():
            if now - report.at <= self._memory:
                found |= report.reception
        return tuple(sorted(found - {self._me}))

    def newly_known(self, now: float) -> tuple[Member, ...] | None:
        """The known members if they changed since the last call: the shell must reach them."""
        known = self.known(now)
        if known == self.reachable:
            return None
        self.reachable = known
        return known

    def gain(
        self, size: int, size_max: int, without: Iterable[Member], now: float
    ) -> tuple[Member, ...]:
        """A clique with this member that is larger than the present view of each of its members.

        Or (), if there is none. This member's own view has `size` members. So each view is given up
        only for a larger one, and while links do not change this ends.
        """
        skipped = frozenset(without)
        reports = {m: report for m, report in self.linked(now).items() if m not in skipped}
        if len(reports) < size:
            return ()
        sizes = {size, *(report.size for report in reports.values() if report.size > size)}
        for bound in sorted((s for s in sizes if s < size_max), reverse=True):
            found = largest_clique(
                self._me,
                [m for m, report in reports.items() if report.size <= bound],
                _among(reports),
            )
            if len(found) > bound:
                return found
        return ()


def _among(reports: dict[Member, ReceptionReport]) -> Callable[[Member, Member], bool]:
    return lambda a, b: b in reports[a].reception and a in reports[b].reception


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
