"""Canonical history: for each position one file of all members' logs that records it.

All members record the same moves, and `total_order` compares them; so the queue contract is checked
once, over one source for each position.  Positions that a later primary superseded are left out;
those that no file records are gaps.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from tools.verify.checks.lifetimes import BEYOND_ALL
from tools.verify.checks.views_and_segments import (
    PrimaryView,
    cutoffs,
    epoch_bases,
    epochs_in_states,
    epochs_of_bases,
    records_by_incarnation,
)
from tools.verify.format.records import RecordKind
from tools.verify.input.ranges_of_file import ANY, FileRange
from tools.verify.input.rows import FAULT, SEGMENT, Row, Run, ends_of


class Stretch(NamedTuple):
    """Positions `first` to `last`, as `file` records them after the state of this number."""

    file: str
    first: int
    last: int
    state: int = ANY

    @property
    def file_range(self) -> FileRange:
        """Return which range of its file it is."""
        return FileRange(self.first, self.last, self.state)


class Gap(NamedTuple):
    """Positions that no file records."""

    first: int
    last: int


def plan(
    rows: Iterable[Row], primaries: dict[int, PrimaryView], at_hand: Container[str] | None = None
) -> list[Stretch]:
    """Return one source for each recorded position, ascending; few files rather than many.

    A damaged file is a source only where there is no other; `at_hand` are the files that can be
    sources, None: all.
    """
    rows = list(rows)
    lowest = _ends(rows, primaries)
    damaged: set[str] = set()
    recorded: list[tuple[str, Run]] = []
    for row in rows:
        if row.kind == FAULT:
            damaged.add(row.file)
        elif row.kind == SEGMENT and (at_hand is None or row.file in at_hand):
            for run in ends_of(row).runs:
                last = min(run.last, lowest.get(run.decided, run.last))
                recorded.append((row.file, run._replace(last=last)))
    runs = (
        (run.first, file in damaged, -run.last, file, run.state)
        for file, run in recorded
        if run.first <= run.last
    )
    return _cover(sorted(runs))


def superseded(rows: Sequence[Row], primaries: dict[int, PrimaryView]) -> bool:
    """Return whether a log has anything that a later primary superseded."""
    lowest = _ends(rows, primaries)
    runs = (run for row in rows if row.kind == SEGMENT for run in ends_of(row).runs)
    return any(run.last > lowest.get(run.decided, run.last) for run in runs)


def _ends(rows: Sequence[Row], primaries: dict[int, PrimaryView]) -> dict[int, int]:
    """Return, by epoch, the last position of it that no later primary superseded."""
    bases = epoch_bases(rows, primaries)
    lowest = cutoffs(rows, bases, primaries)
    # Positions do not show the epochs that a later primary bypassed: of two histories side by side
    # the surviving one may be the longer one.
    for epoch, known in epochs_of_bases(rows, primaries).items():
        for one in bases:
            if known < one < epoch:
                lowest[one] = min(bases[one], lowest.get(one, bases[one]))
    for known in epochs_in_states(rows, primaries):
        held = _held_before(list(rows), known)
        lowest |= {one: min(held, lowest.get(one, held)) for one in bases if one < known}
    return lowest


def _held_before(rows: list[Row], epoch: int) -> int:
    """Return up to where a member surely held the history as it is, before it entered an epoch of
    which it alone tells: what it had when it began that life.  No log has what it applied then."""
    earlier, held = dict[str, int](), BEYOND_ALL
    for member, _, records in records_by_incarnation(rows):
        first = records[0]
        if first.kind != RecordKind.START:
            earlier.pop(member, None)
        elif (first.epoch or 0) < epoch:
            earlier[member] = first.position or 0
        elif first.epoch == epoch:
            held = min(held, earlier.pop(member, BEYOND_ALL))
    return held


def _cover(runs: list[tuple[int, bool, int, str, int]]) -> list[Stretch]:
    """Cover the positions of ascending runs (first, damaged, -last, file, state) from the left.

    Of an incarnation that records a position twice (see `ranges_of_file`) one record is used.
    """
    stretches: list[Stretch] = []
    reached = 0  # all up to here is covered, or recorded nowhere
    waiting: list[tuple[bool, int, str, int]] = []  # without `first`: begun, and not used up
    at = 0
    while at < len(runs) or waiting:
        while at < len(runs) and runs[at][0] <= reached + 1:
            waiting.append(runs[at][1:])
            at += 1
        waiting = [run for run in waiting if -run[1] > reached]
        if not waiting:
            if at < len(runs):
                reached = runs[at][0] - 1
            continue
        is_damaged, negative_last, file, state = min(waiting)
        until = -negative_last
        if is_damaged and at < len(runs):  # only up to where an undamaged one may begin
            until = min(until, max(reached + 1, runs[at][0] - 1))
        stretches.append(Stretch(file, reached + 1, until, state))
        reached = until
    return stretches


def gaps(stretches: list[Stretch]) -> list[Gap]:
    """Return the positions from 1 on that no stretch covers."""
    found: list[Gap] = []
    reached = 0
    for stretch in stretches:
        if stretch.first > reached + 1:
            found.append(Gap(reached + 1, stretch.first - 1))
        reached = stretch.last
    return found
