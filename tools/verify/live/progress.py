"""Progress of live logs: incarnations joined from what was read of them, and how far all are.

Pure.  What is read of an incarnation in one look is a segment to the parser (its assumptions
at the beginning are compared with the state before), and is merged into one row per incarnation
here.  Of views the last ones are held (`bygone`), of incarnations those that were in them: so this
grows neither with traffic nor with time.

A position is *verified* when every member of the newest primary view has reached it: then each of
them, and the activations that supersede others, were read up to there.  That is the watermark: it
comes from the logs, and no clock is read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tools.verify.checks import lifetimes, views_and_segments
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.checks.views_and_segments import IncarnationId, ends_of, incarnation_of
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import FAULT, SEGMENT, Row, SegmentEnds, append_run, merge_sums
from tools.verify.live import bygone

KEPT = 4096
"""Verified positions that are still held: votes and late members refer to them again."""


QUIET_TAKES = 8
"""Looks without an incarnation after which no more of it comes: each has what is unread."""

FAULTS_MAX = 100
"""Faults of one incarnation that are kept: a log that is damaged goes on to be."""


class MemberLag(NamedTuple):
    """How far one incarnation is behind the newest position of any member."""

    member: str
    incarnation: int
    position: int
    behind: int  # positions
    seconds: float  # between the stamps of its last batch and of the newest
    live: bool  # a member of the newest primary view


@dataclass(slots=True)
class LogProgress:
    """How far the logs are, and are verified; -1 = nothing yet."""

    newest: int = -1
    verified: int = -1
    lags: list[MemberLag] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)  # in the primary view, but no log at hand

    @property
    def unverified(self) -> int:
        """Return how many positions are not verified yet."""
        return max(self.newest - max(self.verified, 0), 0)


class ClusterProgress:
    """State of the followed cluster; takes the control rows of each look, in order."""

    def __init__(self) -> None:
        # By incarnation, one SEGMENT row of all that was read.
        self._ends: dict[IncarnationId, Row] = {}
        self._carry: dict[IncarnationId, lifetimes.CarriedState] = {}
        self._rows: list[Row] = []  # of views, and faults
        self._faults: Counter[IncarnationId] = Counter()
        self._primary: Row | None = None  # the ACTIVE of the newest
        self._horizon: bygone.Horizon | None = None  # what is behind it is not held
        self._takes = 0
        self._heard: dict[IncarnationId, int] = {}  # the last take that had something of it
        self._gone: dict[str, int] = {}  # by member, the last incarnation that is not held
        self._inactive: dict[str, int] = {}  # files that begin outside of a primary: last position
        self._reported: set[tuple[str, ...]] = set()
        self._differing: set[tuple[str, ...]] = set()  # in the last look
        self._waiting: set[tuple[str, ...]] = set()
        self._verified = -1
        self.records = 0

    @property
    def begin_inactive(self) -> list[str]:
        """Return the files at whose beginning the member was in no primary."""
        return sorted(self._inactive)

    def take(self, rows: Iterable[Row]) -> None:
        """Take the control rows of a look."""
        self._takes += 1
        for row in sorted(rows, key=lambda row: (row.member, row.incarnation, row.lsn)):
            if row.incarnation <= self._gone.get(row.member, -1):
                continue
            self._heard[row.member, row.incarnation] = self._takes
            if row.kind == SEGMENT:
                self._join(row)
            else:
                if row.kind in (RecordKind.VIEW, RecordKind.ACTIVE):
                    row = self._with_position(row)
                if row.kind == RecordKind.ACTIVE and _epoch(row) > _epoch(self._primary):
                    self._primary = row
                self._rows.append(row)
        views_and_segments.check_input([*self._ends.values(), *self._rows])
        self._verified = max(self._verified, self._watermark())
        kept = self._verified - KEPT
        self._inactive = {file: last for file, last in self._inactive.items() if last >= kept}
        self._horizon = bygone.horizon_of(self._rows, self._horizon)
        if self._horizon is not None:
            self._release(self._horizon, kept)

    def verified(self) -> int:
        """Return the position that all live members have reached."""
        return self._verified

    def cutoffs(self) -> dict[int, int]:
        """Return, by epoch, the position after which a later one superseded it."""
        ends = self._ends.values()
        return views_and_segments.cutoffs(
            ends, views_and_segments.epoch_bases(ends, views_and_segments.primaries(self._rows))
        )

    def begin(self) -> int:
        """Return the first position at which no incarnation's log is missing."""
        firsts = lifetimes.first_positions(list(self._ends.values())).values()
        return max((first for first in firsts if first < lifetimes.BEYOND_ALL), default=0)

    def check(self) -> list[Finding]:
        """Return the new findings about incarnations, views and primaries.

        The logs of members are not read at one instant, so what one of them seems to lack may just
        not have been read: it is reported when the next call still finds it.
        """
        control = check_control_rows([*self._ends.values(), *self._rows], live=True)
        now = {_key(found): found for found in control.evidence}
        fresh = [found for key, found in now.items() if self._is_new(key)]
        seen = {_key(found): found for found in control.views if self._is_due(found)}
        again = (key for key in seen if key in self._waiting)
        fresh += [seen[key] for key in again if self._is_new(key)]
        self._waiting = set(seen)
        return fresh

    def new_differences(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the new differences between members.

        The first of each incarnation and promise, as all that follows differs too; another one only
        after a look without any.
        """
        now: dict[tuple[str, ...], Finding] = {}
        for found in findings:
            now.setdefault((found.property, found.member, str(found.incarnation)), found)
        fresh = [
            found
            for key, found in now.items()
            if key not in self._differing and self._is_new((*key, str(found.position)))
        ]
        self._differing = set(now)
        return fresh

    def progress(self) -> LogProgress:
        """Return how far all members are."""
        newest = max((_position(row) for row in self._ends.values()), default=-1)
        latest = max((row.time_us or 0 for row in self._ends.values()), default=0)
        present = self._primary_members()
        lags = [
            MemberLag(
                *key,
                _position(row),
                max(newest - _position(row), 0),
                max(latest - (row.time_us or 0), 0) / 1e6,
                key in present,
            )
            for key, row in sorted(self._last_incarnations().items())
        ]
        missing = sorted(present - self._ends.keys())
        absent = [f"{name} (incarnation {number})" for name, number in missing]
        return LogProgress(newest, self._verified, lags, absent)

    def _is_new(self, key: tuple[str, ...]) -> bool:
        if key in self._reported:
            return False
        self._reported.add(key)
        return True

    def _is_due(self, found: Finding) -> bool:
        """Whether a finding can be reported: for G2 when its position was reached.

        Before that, a SNAPSHOT that replaced the state may just not have been read.
        """
        if found.property != "G2":
            return True
        row = self._ends.get((found.member, found.incarnation))
        return row is not None and _position(row) >= found.position

    def _last_incarnations(self) -> dict[IncarnationId, Row]:
        """Return the newest incarnation of each member."""
        newest = {key[0]: key for key in sorted(self._ends)}
        return {key: self._ends[key] for key in newest.values()}

    def _primary_members(self) -> set[IncarnationId]:
        """Return the members of the newest primary view."""
        named = self._primary.names if self._primary is not None else None
        return set(map(incarnation_of, named or []))

    def _watermark(self) -> int:
        reached = [
            _position(self._ends[key]) for key in self._primary_members() if key in self._ends
        ]
        return min(reached, default=-1)

    def _join(self, row: Row) -> None:
        """Merge what was read of an incarnation now into what was read of it before."""
        key = row.member, row.incarnation
        ends = ends_of(row)
        before = self._ends.get(key)
        carry = self._carry.get(key)
        follows = before is not None or row.segment == 0
        if before is None or carry is None:
            # There is nothing to compare its beginning with.
            carry, merged = lifetimes.CarriedState(), row
        else:
            if any(ends["cluster"]):
                views_and_segments.check_input([before, row])
            merged = _merged(before, ends_of(before), row, ends)
            for what in _discontinuities(before, row):
                self._fault(key, "LOG", _position(row), what)
            for promise, position, until, what in carry.check(ends):
                self._fault(key, promise, position, what, until)
        if follows and carry.active is False and ends["epochs"]:
            self._inactive[row.file] = _position(row)
        self._carry[key] = carry.after_segment(row, ends, follows)
        position_reached = self._carry[key].position_reached
        self._ends[key] = merged._replace(position=position_reached)
        self.records += ends["records"]

    def _release(self, horizon: bygone.Horizon, position: int) -> None:
        """Release what is behind the horizon, and decided nothing beyond this position."""
        newest = self._last_incarnations()
        epoch = bygone.first_held_epoch(self._ends.values(), horizon, position)
        for key, row in list(self._ends.items()):
            quiet = self._takes - self._heard.get(key, 0) > QUIET_TAKES
            if key not in newest and quiet and bygone.last_epoch(row) < epoch:
                self._gone[key[0]] = max(key[1], self._gone.get(key[0], -1))
                del self._ends[key], self._carry[key]
                self._faults.pop(key, None)
                self._heard.pop(key, None)
        held = [row for row in self._rows if (row.member, row.incarnation) in self._ends]
        self._rows = bygone.recent_rows(held, horizon)
        self._ends = {
            key: bygone.without_epochs_before(row, epoch) for key, row in self._ends.items()
        }

    def _with_position(self, row: Row) -> Row:
        """Return a VIEW or ACTIVE with the position and durable mark of earlier looks."""
        before = self._ends.get((row.member, row.incarnation))
        carry = self._carry.get((row.member, row.incarnation))
        if before is None or carry is None:
            return row
        if row.kind == RecordKind.VIEW and _position(row) < 0:
            row = row._replace(position=carry.position_reached)
        return row._replace(seq=max(ends_of(before)["durable"], -1 if row.seq is None else row.seq))

    def _fault(
        self, key: IncarnationId, promise: str, position: int, what: str, until: int = -1
    ) -> None:
        self._faults[key] += 1
        if self._faults[key] > FAULTS_MAX:
            return
        row = Row("", *key, 0, 0, FAULT, origin=promise, text=what, position=position, last=until)
        self._rows.append(row)


def _discontinuities(before: Row, after: Row) -> Iterable[str]:
    """Yield how the part read now does not continue the one read before."""
    earlier, later = ends_of(before), ends_of(after)
    if earlier["torn_tail"] and later["records"]:
        yield f"{before.file} ends in the middle of a record, but {after.file} follows it"
    elif later["records"] and later["first_lsn"] != before.lsn + 1 and before.lsn >= 0:
        yield f"{after.file} begins with lsn {later['first_lsn']} after lsn {before.lsn}"
    elif later["prev_link"] and later["prev_link"] != earlier["link"]:
        yield f"{after.file} does not continue the last record of {before.file}"
    elif later["prev_link"] and not earlier["closed"]:
        yield f"{before.file} has no closing record, but {after.file} follows it"


def _merged(before: Row, one: SegmentEnds, after: Row, two: SegmentEnds) -> Row:
    """Return one row for both: its beginning from the first, its end from the second."""
    epochs = dict(one["epochs"])
    for name, sums in two["epochs"].items():
        epochs[name] = merge_sums(epochs.get(name, sums), sums)
    runs = views_and_segments.runs_of(before)
    for run in views_and_segments.runs_of(after):
        append_run(runs, run)
    ends: SegmentEnds = {
        **one,
        "cluster": one["cluster"] if one["cluster"][1] else two["cluster"],
        "link": two["link"] or one["link"],
        "torn_tail": two["torn_tail"],
        "closed": two["closed"],
        "epochs": epochs,
        "runs": runs,
        "voters_at": one["voters_at"] + two["voters_at"],
        "activations": one["activations"] + two["activations"],
        "roles": one["roles"] + two["roles"],
        "origins": _merged_origins(one["origins"], two["origins"]),
        "durable": max(one["durable"], two["durable"]),
        "records": one["records"] + two["records"],
        "confirms": one["confirms"] + two["confirms"],
        "publishes": one["publishes"] + two["publishes"],
        "unpaired": one["unpaired"] + two["unpaired"],
        "unjudged": one["unjudged"] + two["unjudged"],
    }
    lsn = after.lsn if after.lsn >= 0 else before.lsn
    time_us = max(before.time_us or 0, after.time_us or 0)
    return before._replace(
        file=after.file, lsn=lsn, position=after.position, text=json.dumps(ends), time_us=time_us
    )


Origins = dict[str, dict[str, int]]


def _merged_origins(one: Origins, two: Origins) -> Origins:
    """Return by epoch who submitted, with the first position in either."""
    return {epoch: two.get(epoch, {}) | one.get(epoch, {}) for epoch in dict.fromkeys([*one, *two])}


def _epoch(row: Row | None) -> int:
    return -1 if row is None else row.epoch or 0


def _position(row: Row) -> int:
    return -1 if row.position is None else row.position


def _key(found: Finding) -> tuple[str, ...]:
    return found.property, found.member, str(found.incarnation), str(found.position), found.what
