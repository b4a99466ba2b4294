"""G7, G25: voters, and the active member, change only by an ordered command: no primary chooses the
set by which it is counted.

A partitioned group that makes itself the voters has a majority of them. So the voters of a primary
are those of an earlier one, or a VOTERS command was executed in between. Where the positions in
between are in no available log, the answer is unknown. Pure Python over ACTIVE and SEGMENT rows.

One of a pair that continues alone does choose a set, by the vote that belongs to no machine: the
same set with the other one away. Both must not do so (G28): then one history was set aside.

G25: commands change the active member, too. A member takes that role only while nobody has it. Its
holder gives it up, or it ends with the session of its holder: when a primary without that
incarnation is activated, or with a received state. That a member which is in no primary confirms
nothing is G7, so this is about the order alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tools.verify.checks.views_and_segments import (
    IncarnationId,
    PrimaryView,
    covers,
    incarnation_in,
    runs_of,
)
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import SEGMENT, Activated, RoleChange, Row, Run, ends_of

Event = Activated | RoleChange


def check_voter_changes(rows: list[Row], primaries: Mapping[int, PrimaryView]) -> Iterator[Finding]:
    """Yield each primary with other voters than before if no command changed them.

    Its voters are those at the position that its members had applied when they were counted; items
    of an earlier view that were undecided then come after that position, up to the base.
    """
    reports: dict[int, list[Row]] = defaultdict(list)
    changed_at: set[int] = set()
    runs: dict[IncarnationId, list[Run]] = defaultdict(list)
    for row in rows:
        if row.kind == RecordKind.ACTIVE:
            reports[row.epoch or 0].append(row)
        elif row.kind == SEGMENT:
            changed_at.update(ends_of(row).voters_at)
            runs[incarnation_in(row)] += ends_of(row).runs
    recorded = [run for of_one in runs.values() for run in of_one]
    earlier: list[tuple[PrimaryView, int]] = []  # with the position at which it was counted
    for epoch, primary in primaries.items():
        known = [one for one in earlier if one[0].base <= primary.base]
        before = known[-1][0] if known else primary
        if primary.base > 0 and before.voters != primary.voters:
            since = min(at for one, at in known if one.voters == before.voters)
            ordered = any(since < position <= primary.base for position in changed_at)
            went = _goes_on_alone(primary.voters, before.voters)
            if not ordered and not went and covers(recorded, since + 1, primary.base):
                row = next(r for r in reports[epoch] if tuple(r.voters or []) == primary.voters)
                what = (
                    f"the primary of epoch {epoch} has the voters {', '.join(primary.voters)}, "
                    f"that of epoch {before.epoch} had {', '.join(before.voters)}, and no command "
                    "changed them"
                )
                yield Finding("G7", *incarnation_in(row), primary.base, what)
        # A fresh member, with a "+" there, gets the others' positions, decided or not.
        counted_at = [
            min([run.first - 1 for run in runs[key] if run.decided >= epoch], default=primary.base)
            for key in (incarnation_in(r) for r in reports[epoch] if r.position == primary.base)
            if "{}/{}".format(*key) in primary.members
        ]
        earlier.append((primary, min(primary.base, max(counted_at, default=primary.base))))


def check_pairs(rows: list[Row]) -> Iterator[Finding]:
    """Yield each primary of one of a pair alone, after the other one had continued alone too.

    In between the other one counts again, by a VOTERS command, or else it was absent.
    """
    changed_at = {
        position for row in rows if row.kind == SEGMENT for position in ends_of(row).voters_at
    }
    alone: dict[str, int] = {}  # who continued alone, after which position
    seen: set[tuple[int, str]] = set()
    active = [row for row in rows if row.kind == RecordKind.ACTIVE]
    for row in sorted(active, key=lambda row: (row.epoch or 0, row.member, row.incarnation)):
        name, base = _alone_in(tuple(row.voters or ())), row.position or 0
        if not name:
            alone.clear()
            continue
        if (row.epoch or 0, name) in seen:
            continue
        seen.add((row.epoch or 0, name))
        for other, since in list(alone.items()):
            if other == name:
                continue
            del alone[other]
            if not any(since < position <= base for position in changed_at):
                what = (
                    f"{name} went on alone in epoch {row.epoch}, and {other} had gone on alone "
                    "before: what one of the two confirmed since then was set aside (exception 1 "
                    "of G28)"
                )
                yield Finding("G7", *incarnation_in(row), base, what)
        alone[name] = base


def _alone_in(voters: tuple[str, ...]) -> str:
    """The member of a pair that these voters leave alone; empty: they are not such voters."""
    away = [term.partition("=")[2] for term in voters if term.startswith("@away=")]
    names = [term for term in voters if not term.startswith("@")]
    is_pair = any(term.startswith("@pair=") for term in voters)
    if not is_pair or len(names) != 2 or len(away) != 1:  # "->" would count as a name
        return ""
    return next((name for name in names if name != away[0]), "")


def _goes_on_alone(voters: tuple[str, ...], before: tuple[str, ...]) -> bool:
    """Whether these are the voters before, except that one of a pair is away.

    It was counted before, or was about to be counted again.
    """
    name, latest = _alone_in(voters), before
    if "->" in before:
        latest = before[before.index("->") + 1 :]
    return bool(name) and _of_both(voters) == _of_both(latest) and f"@away={name}" not in before


def _of_both(voters: tuple[str, ...]) -> list[str]:
    """The terms of a pair, whichever member is away."""
    return [term for term in voters if not term.startswith("@away=") and term != "@declared"]


def promotions(rows: list[Row]) -> set[int]:
    """Return the positions at which a member took the role."""
    return {
        one.position
        for row in rows if row.kind == SEGMENT
        for one in ends_of(row).roles if one.took
    }  # fmt: skip


def check_active_member(
    rows: list[Row], primaries: Mapping[int, PrimaryView], cutoffs: Mapping[int, int]
) -> Iterator[Finding]:
    """Yield each change of the role that its holder, or the lack of one, does not allow."""
    events, recorded = _events(rows, cutoffs)
    if not any(isinstance(event, RoleChange) for event in events):
        return
    holder: str | None = None  # name and incarnation; "": nobody; None: not known
    since = seen = -1
    for event, row in sorted(events.items(), key=lambda pair: pair[0].position):
        if not covers(recorded, seen + 1, event.position):
            holder = None
        seen = event.position
        if isinstance(event, Activated):
            primary = primaries.get(event.epoch)
            if primary is None:
                holder = None
            elif primary.cold or holder not in (None, *primary.members):  # fresh ones have a "+"
                holder = ""
            continue
        what = _not_allowed(event, holder, since)
        if what:
            yield Finding("G25", *incarnation_in(row), event.position, what)
        holder, since = "", event.position
        if event.took:
            holder = _incarnation(event, primaries)


def _events(rows: list[Row], cutoffs: Mapping[int, int]) -> tuple[dict[Event, Row], list[Run]]:
    """Return the events of the role, once each, and the positions that logs contain."""
    events: dict[Event, Row] = {}
    for row in (row for row in rows if row.kind == SEGMENT):
        ends = ends_of(row)
        began = [one._replace(chain_before="") for one in ends.activations]
        found: list[Event] = [*began, *ends.roles]
        for event in found:
            if event.position <= cutoffs.get(event.epoch, event.position):
                events.setdefault(event, row)
    return events, [run for _, run in runs_of(rows)]


def _incarnation(change: RoleChange, primaries: Mapping[int, PrimaryView]) -> str | None:
    """The member as primaries after this one name it: no longer fresh."""
    primary = primaries.get(change.epoch)
    names = primary.members if primary is not None else ()
    found = (one.rstrip("+") for one in names if one.rsplit("/", 1)[0] == change.member)
    return next(found, None)


def _not_allowed(change: RoleChange, holder: str | None, since: int) -> str:
    """Return how this change contradicts the holder of the role; "" if not, as far as known."""
    if holder is None:
        return ""
    name = holder.rsplit("/", 1)[0]
    if change.took and holder:
        return f"{change.member} was promoted while {name} was active, since position {since}"
    if not change.took and name != change.member:
        return f"{change.member} gave up the role, which {name or 'nobody'} had"
    return ""
