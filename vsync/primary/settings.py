"""Operator settings that must be equal at all members, compared from their state reports. Pure.

A member that starts is compared with the members that have run; if there are none, with those that
have a state; otherwise with all members present. So a newcomer gives way to the members before it.
Members of equal standing that differ wait for each other, because nobody can tell which of them is
right. All differences are reported at once, each with both values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Protocol

from vsync.primary.events import StateReport
from vsync.quorum.voter_set import Terms, parse
from vsync.types import Member

SIZE = "cluster-size"
"""The name of `StateReport.size` for operators."""


class Settings(Protocol):
    """The settings of a member that are compared; a state report and a door card both have them."""

    @property
    def size(self) -> int:
        """The number of members it was configured with."""

    @property
    def settings(self) -> tuple[tuple[str, str, bool], ...]:
        """(name, value, whether it must be equal)."""


def standard(reports: Mapping[Member, StateReport]) -> list[Member]:
    """Return the members whose settings others are compared with, in order of their names."""
    everyone = sorted(reports)
    ran = [m for m in everyone if reports[m].ran]
    return ran or [m for m in everyone if reports[m].position or reports[m].holders] or everyone


def settings_refusal(me: Member, reports: Mapping[Member, StateReport], voters: Terms) -> str:
    """Return how a member that starts differs from those that it joins; empty: not at all."""
    guides = standard(reports)
    mine = reports[me]
    if me in guides or mine.ran:
        return ""
    sizes = {reports[m].size for m in guides}
    return differences(mine, reports[guides[0]], guides[0].name, sizes, voters)


def differences(
    mine: Settings, guide: Settings, who: str, sizes: Collection[int], voters: Terms
) -> str:
    """Return how a member that starts differs from `guide`, called `who`; empty: not at all.

    The size may be any of `sizes`, and also the present number of voters: after a change of the
    voters the option files are updated one by one.
    """
    rows = _differences(mine, guide, who, must=True)
    if mine.size not in {*sizes, len(parse(voters).data_names)}:
        rows.insert(0, f"{SIZE} is {mine.size} here and {guide.size} at {who}")
    if not rows:
        return ""
    return f"settings differ that must be equal: {'; '.join(rows)}; give all members the same"


def disagreement(reports: Mapping[Member, StateReport]) -> str:
    """Return how members that have not run differ, none of which is right; empty: not at all."""
    guides = standard(reports)
    if any(reports[m].ran for m in guides):
        return ""
    values = {m: {name: value for name, value, must in reports[m].settings if must} for m in guides}
    if not any(reports[m].position or reports[m].holders for m in guides):
        for m in guides:  # from then on nothing depends on it
            values[m][SIZE] = str(reports[m].size)
    rows = []
    for name in sorted({name for m in guides for name in values[m]}):
        # An arbitrator, and an older release, know fewer.
        by_value = sorted((values[m][name], m.name) for m in guides if name in values[m])
        groups = [(v, ", ".join(n for _, n in g)) for v, g in groupby(by_value, lambda one: one[0])]
        if len(groups) > 1:
            rows.append(f"{name} is {' and '.join(f'{v} at {who}' for v, who in groups)}")
    if not rows:
        return ""
    return f"settings differ that must be equal: {'; '.join(rows)}; waiting for all to be the same"


def advice(me: Member, reports: Mapping[Member, StateReport]) -> list[str]:
    """Return which of the settings that should be equal differ between this member and others."""
    if me not in reports:
        return []
    mine = reports[me]
    return [
        row
        for m in sorted(reports)
        if m != me
        for row in _differences(mine, reports[m], m.name, must=False)
    ]


def _differences(mine: Settings, other: Settings, who: str, *, must: bool) -> list[str]:
    """The settings that both know, with different values."""
    here = {name: value for name, value, needed in mine.settings if needed is must}
    there = {name: value for name, value, needed in other.settings if needed is must}
    return [
        f"{name} is {here[name]} here and {there[name]} at {who}"
        for name in sorted(here.keys() & there.keys())
        if here[name] != there[name]
    ]
