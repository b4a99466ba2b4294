"""Progress of live logs: how far all members are, and news from the checks of control rows.

Pure. The part read of an incarnation is one segment to the checks; each look renews its SEGMENT
row. Only the last views are held (`bygone`), and of the incarnations those that were in them; so
memory grows neither with traffic nor with time.

A position is *verified* when every member of the newest primary view has reached it: then each of
them, and the activations that supersede others, were read up to there. That is the watermark: it
comes from the logs, and no clock is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tools.verify.checks import lifetimes, views_and_segments
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.checks.views_and_segments import IncarnationId, incarnation_of
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import SEGMENT, Row, ends_of
from tools.verify.live import bygone

KEPT = 4096
"""The number of verified positions still held, because votes and late members refer to them."""


QUIET_TAKES = 8
"""The number of looks without an incarnation after which no more of it comes, because each look
takes everything unread."""


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
    unknown: list[str] = field(default_factory=list)  # where logs have no beginning, or a hole

    @property
    def unverified(self) -> int:
        """Return how many positions are not verified yet."""
        return max(self.newest - max(self.verified, 0), 0)


class ClusterProgress:
    """State of the followed cluster; takes the control rows of each look, in order."""

    def __init__(self) -> None:
        self._segments: dict[tuple[str, int, int, str], Row] = {}  # SEGMENT rows
        self._ends: dict[IncarnationId, Row] = {}  # of each incarnation the last of these
        self._rows: list[Row] = []  # of views, and faults
        self._primary: Row | None = None  # the ACTIVE of the newest
        self._horizon: bygone.Horizon | None = None  # older parts are not held
        self._takes = 0
        self._heard: dict[IncarnationId, int] = {}  # the last take that had something of it
        self._reported: set[tuple[str, ...]] = set()
        self._differing: set[tuple[str, ...]] = set()  # in the last look
        self._waiting: set[tuple[str, ...]] = set()
        self.verified = -1  # all live members have reached this position
        self.begin_inactive: list[str] = []  # files at whose beginning the member was in no primary
        self.cutoffs: dict[int, int] = {}  # by epoch, after which a later one superseded it
        self.first_epoch = 0  # of the rows held
        self.gone: dict[str, int] = {}  # by member, the last incarnation that is not held
        self.records = 0

    def take(self, rows: Iterable[Row]) -> None:
        """Take the control rows of a look."""
        self._takes += 1
        for row in sorted(rows, key=lambda row: (row.member, row.incarnation, row.lsn)):
            if row.incarnation <= self.gone.get(row.member, -1):
                continue
            self._heard[row.member, row.incarnation] = self._takes
            if row.kind == SEGMENT:
                key = row.member, row.incarnation, row.segment, row.file
                before = self._segments.get(key)
                self.records += ends_of(row).records
                self.records -= 0 if before is None else ends_of(before).records
                self._segments[key] = row
                continue
            if row.kind == RecordKind.ACTIVE and _epoch(row) > _epoch(self._primary):
                self._primary = row
            self._rows.append(row)
        views_and_segments.check_input([*self._segments.values(), *self._rows])
        self._ends = _ends_of(self._segments)
        self.verified = max(self.verified, self._watermark())
        self._horizon = bygone.horizon_of(self._rows, self._horizon)
        if self._horizon is not None:
            self._release(self._horizon, self.verified - KEPT)

    def begin(self) -> int:
        """Return the first position at which no incarnation's log is missing."""
        firsts = lifetimes.first_positions(list(self._segments.values())).values()
        return max((first for first in firsts if first < lifetimes.BEYOND_ALL), default=0)

    def check(self) -> list[Finding]:
        """Return the new findings about incarnations, views and primaries.

        The logs of members are not read at one instant, so what one of them seems to lack may just
        not have been read yet: it is reported when the next call still finds it.
        """
        control = check_control_rows([*self._segments.values(), *self._rows], live=True)
        self.begin_inactive, self.cutoffs = control.begin_inactive, control.cutoffs
        now = {_key(found): found for found in control.evidence}
        fresh = [found for key, found in now.items() if self._is_new(key)]
        seen = {_key(found): found for found in control.views if self._is_due(found)}
        again = (key for key in seen if key in self._waiting)
        fresh += [seen[key] for key in again if self._is_new(key)]
        self._waiting = set(seen)
        return fresh

    def new_differences(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the new differences between members.

        Only the first of each incarnation and promise, because everything after it differs too;
        another one only after a look without any.
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
        ends = self._ends
        newest = max((row.reached for row in ends.values()), default=-1)
        latest = max((row.time_us or 0 for row in ends.values()), default=0)
        present = self._primary_members()
        lags = [
            MemberLag(
                *key,
                row.reached,
                max(newest - row.reached, 0),
                max(latest - (row.time_us or 0), 0) / 1e6,
                key in present,
            )
            for key, row in sorted({key[0]: (key, ends[key]) for key in sorted(ends)}.values())
        ]
        missing = sorted(present - ends.keys())
        absent = [f"{name} (incarnation {number})" for name, number in missing]
        return LogProgress(newest, self.verified, lags, absent, list(self._unknown()))

    def _unknown(self) -> Iterator[str]:
        by_incarnation = views_and_segments.segments_of(self._segments.values())
        for (member, incarnation), segments in by_incarnation.items():
            for row in segments:
                what = "is not known"
                if ends_of(row).behind_dropped:
                    what = "was dropped by its member, as its options say"
                elif row is not segments[0]:
                    continue
                if row.segment > 0:
                    who = f"{member} (incarnation {incarnation})"
                    yield f"{who}: what was before segment {row.segment} {what}"

    def _is_new(self, key: tuple[str, ...]) -> bool:
        if key in self._reported:
            return False
        self._reported.add(key)
        return True

    def _is_due(self, found: Finding) -> bool:
        """Whether a finding can be reported: for G2 once its position was reached.

        Before that, a SNAPSHOT that replaced the state may just not have been read yet.
        """
        if found.property != "G2":
            return True
        row = self._ends.get((found.member, found.incarnation))
        return row is not None and row.reached >= found.position

    def _primary_members(self) -> set[IncarnationId]:
        """Return the members of the newest primary view."""
        named = self._primary.names if self._primary is not None else None
        return set(map(incarnation_of, named or []))

    def _watermark(self) -> int:
        ends = self._ends
        reached = [ends[key].reached for key in self._primary_members() if key in ends]
        return min(reached, default=-1)

    def _release(self, horizon: bygone.Horizon, position: int) -> None:
        """Release everything behind the horizon that decided nothing beyond this position."""
        newest = {key[0]: key for key in sorted(self._ends)}.values()
        self.first_epoch = bygone.first_held_epoch(self._segments.values(), horizon, position)
        for key, row in self._ends.items():
            quiet = self._takes - self._heard.get(key, 0) > QUIET_TAKES
            last_epoch = max(ends_of(row).epochs, default=0)
            if key not in newest and quiet and last_epoch < self.first_epoch:
                self.gone[key[0]] = max(key[1], self.gone.get(key[0], -1))
                self._heard.pop(key, None)
        self._segments = {
            key: bygone.without_epochs_before(row, self.first_epoch)
            for key, row in self._segments.items()
            if key[1] > self.gone.get(key[0], -1)
        }
        self._ends = _ends_of(self._segments)
        self._rows = bygone.recent_rows(
            [row for row in self._rows if row.incarnation > self.gone.get(row.member, -1)], horizon
        )


def _ends_of(segments: dict[tuple[str, int, int, str], Row]) -> dict[IncarnationId, Row]:
    """Return of each incarnation the last SEGMENT row, or the last that knows its position."""
    ends: dict[IncarnationId, Row] = {}
    for (member, incarnation, *_), row in sorted(segments.items()):
        if row.reached >= 0 or (member, incarnation) not in ends:
            ends[member, incarnation] = row
    return ends


def _epoch(row: Row | None) -> int:
    return -1 if row is None else row.epoch or 0


def _key(found: Finding) -> tuple[str, ...]:
    """A fault of a log has the position that the log, which continues, has reached."""
    where = "" if found.property == "LOG" else str(found.position)
    return found.property, found.member, str(found.incarnation), where, found.what
