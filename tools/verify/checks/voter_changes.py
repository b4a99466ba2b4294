"""G7: voters change by an ordered command only: no primary chooses the set that it is counted by.

A group that was cut off and makes itself voters has a majority of these.  So the voters of a
primary are those of an earlier one, or a VOTERS command was carried out in between.  Where
positions in between are in no log at hand, that is not known.  Pure Python over ACTIVE and SEGMENT
rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tools.verify.checks.views_and_segments import IncarnationId, ends_of, runs_of
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import SEGMENT, Row, Run


class _Primary(NamedTuple):
    """What most records of an epoch say of its voters, and after which position it began."""

    epoch: int
    base: int
    voters: tuple[str, ...]
    counted_at: int
    """What its members had applied when they were counted: the voters are those of this position.
    What they decided then, of an earlier view's undecided items, is behind it, up to the base."""


def check_voter_changes(rows: list[Row]) -> Iterator[Finding]:
    """Yield each primary with other voters than before, where no command changed them."""
    reports: dict[int, list[Row]] = defaultdict(list)
    changed_at: set[int] = set()
    recorded: list[Run] = []
    runs: dict[IncarnationId, list[Run]] = defaultdict(list)
    for row in rows:
        if row.kind == RecordKind.ACTIVE:
            reports[row.epoch or 0].append(row)
        elif row.kind == SEGMENT:
            ends = ends_of(row)
            changed_at.update(ends["voters_at"])
            recorded += runs_of(row)
            runs[row.member, row.incarnation] += runs_of(row)
    earlier: list[_Primary] = []
    for epoch in sorted(reports):
        primary = _primary(epoch, reports[epoch], runs)
        known = [one for one in earlier if one.base <= primary.base]
        if primary.base > 0 and known and known[-1].voters != primary.voters:
            since = min(one.counted_at for one in known if one.voters == known[-1].voters)
            ordered = any(since < position <= primary.base for position in changed_at)
            if not ordered and _covers(recorded, since + 1, primary.base):
                yield _finding(reports[epoch], primary, known[-1])
        earlier.append(primary)


def _primary(epoch: int, reports: list[Row], runs: Mapping[IncarnationId, list[Run]]) -> _Primary:
    voters = Counter(tuple(row.voters or []) for row in reports).most_common(1)[0][0]
    bases = Counter(row.position for row in reports if row.position)
    base = bases.most_common(1)[0][0] if bases else 0
    fresh = {name.rstrip("+") for name in reports[0].names or [] if name.endswith("+")}
    counted_at = [
        min([run.first - 1 for run in runs[key] if run.decided >= epoch], default=base)
        for key in ((row.member, row.incarnation) for row in reports if row.position == base)
        if f"{key[0]}/{key[1]}" not in fresh  # they get the others' positions, decided or not
    ]
    return _Primary(epoch, base, voters, min(base, max(counted_at, default=base)))


def _covers(runs: list[Run], first: int, last: int) -> bool:
    """Whether each of these positions is in one of the runs."""
    for run in sorted(runs):
        if run.first > first:
            break
        first = max(first, run.last + 1)
    return first > last


def _finding(reports: list[Row], primary: _Primary, before: _Primary) -> Finding:
    row = next(row for row in reports if tuple(row.voters or []) == primary.voters)
    what = (
        f"the primary of epoch {primary.epoch} has the voters {', '.join(primary.voters)}, that of "
        f"epoch {before.epoch} had {', '.join(before.voters)}, and no command changed them"
    )
    return Finding("G7", row.member, row.incarnation, primary.base, what)
