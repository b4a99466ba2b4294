"""Canonical history: for each position one file of all members' logs that records it.

All members record the same moves, and `total_order` compares them; so the queue contract is checked
once, over one source for each position. Positions superseded by a later primary are left out;
positions that no file records are gaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from typing import NamedTuple

from tools.verify.checks.lifetimes import BEYOND_ALL
from tools.verify.checks.views_and_segments import PrimaryView, records_by_incarnation, runs_of
from tools.verify.format.records import RecordKind
from tools.verify.input.ranges_of_file import ANY, FileRange
from tools.verify.input.rows import FAULT, SEGMENT, Row, ends_of

State = tuple[int, bytes]  # position and chain


class Stretch(NamedTuple):
    """Positions `first` to `last`, as `file` records them after the state of this number."""

    file: str
    first: int
    last: int
    state: int = ANY

    @property
    def file_range(self) -> FileRange:
        return FileRange(self.first, self.last, self.state)


class Gap(NamedTuple):
    """Positions that no file records."""

    first: int
    last: int


def plan(
    rows: Iterable[Row], primaries: dict[int, PrimaryView], at_hand: Container[str] | None = None
) -> list[Stretch]:
    """Return one source for each recorded position, ascending; few files rather than many.

    A damaged file is a source only if there is no other; `at_hand` are the files that can be
    sources, None: all.
    """
    rows = list(rows)
    ends = epoch_bounds(rows, primaries).ends
    damaged = {row.file for row in rows if row.kind == FAULT}
    runs = (
        (run.first, row.file in damaged, -last, row.file, run.state)
        for row, run in runs_of(rows)
        if at_hand is None or row.file in at_hand
        if run.first <= (last := min(run.last, ends.get(run.decided, run.last)))
    )
    return _cover(sorted(runs))


def superseded(rows: Iterable[Row], primaries: dict[int, PrimaryView]) -> bool:
    """Return whether a log has anything superseded by a later primary."""
    rows = list(rows)
    ends = epoch_bounds(rows, primaries).ends
    return any(run.last > ends.get(run.decided, run.last) for _, run in runs_of(rows))


class EpochBounds(NamedTuple):
    """The positions between which an epoch is part of the history; by epoch, as far as known."""

    bases: dict[int, int]  # after which it began, 0 for a first one
    cutoffs: dict[int, int]  # the lowest from which a later one started: beyond it is superseded
    ends: dict[int, int]  # the same, with epochs that a later primary bypassed


def epoch_bounds(rows: Iterable[Row], primaries: dict[int, PrimaryView]) -> EpochBounds:
    """Return the bounds of each epoch known from a log, or from a state.

    An epoch without any ACTIVE record, because its view ended too soon, or with records only of
    members that received its state, may still be part of the history: a later primary decided its
    commands in progress. Its activation is the first command ordered in it. For an epoch that is
    known only by its states the activation is in the first of these at the latest.
    """
    rows = list(rows)
    firsts: dict[int, int] = {}
    decided = {run.decided for _, run in runs_of(rows)}
    states: dict[State, list[int]] = defaultdict(list)  # epochs of these, as incarnations began
    for row in rows:
        if row.kind == SEGMENT:
            for epoch, sums in ends_of(row).epochs.items():
                if sums.first > 0:
                    firsts[epoch] = min(sums.first, firsts.get(epoch, sums.first))
        elif row.kind == RecordKind.START:
            states[_state(row)].append(row.epoch or 0)
    taken = {epoch: (one.base, one.base_chain) for epoch, one in primaries.items() if one.base > 0}
    logged = {epoch: first - 1 for epoch, first in firsts.items()}
    logged |= {epoch: base for epoch, (base, _) in taken.items()}
    in_states = _epochs_in_states(rows, logged, list(taken.values()))
    bases = dict(sorted(({epoch: at - 1 for epoch, at in in_states.items()} | logged).items()))
    cutoffs: dict[int, int] = {}
    cut = BEYOND_ALL
    for epoch in sorted(decided.union(bases, *states.values()), reverse=True):
        if cut < BEYOND_ALL:
            cutoffs[epoch] = cut
        cut = min(cut, bases.get(epoch, cut))
    # A state with which both a primary and an incarnation began holds nothing of the epochs in
    # between. One of them may have decided something at a member that crashed before it reached the
    # commands ordered in it: that is superseded from the beginning of the state's epoch on. And
    # positions do not show which epochs a later primary bypassed: of two histories the surviving
    # one may be longer.
    ends = dict(cutoffs)
    for until, state in taken.items():
        known = min(states.get(state, [until]))
        for epoch in sorted(decided.union(bases)):
            if known < epoch < until and epoch in bases:
                _lower(ends, epoch, bases[epoch])
            elif known < epoch < until and known in bases:
                _lower(cutoffs, epoch, bases[known])
                _lower(ends, epoch, bases[known])
    for known in in_states:
        held = _held_before(rows, known)
        for epoch in bases:
            if epoch < known:
                _lower(ends, epoch, held)
    return EpochBounds(bases, cutoffs, ends)


def _lower(bounds: dict[int, int], epoch: int, to: int) -> None:
    bounds[epoch] = min(to, bounds.get(epoch, to))


def _state(row: Row) -> State:
    return row.position or 0, bytes(row.chain or b"")


def _epochs_in_states(
    rows: list[Row], logged: dict[int, int], taken: list[State]
) -> dict[int, int]:
    """Return the epochs that no log records, known only by states with which incarnations began and
    from which a later primary continued, with the first position of such a state.

    A member that crashes repeatedly continues from state to state, until it receives another
    member's.
    """
    found: dict[int, int] = {}
    by_member: dict[str, dict[int, int]] = defaultdict(dict)
    for (member, _), records in records_by_incarnation(rows):
        first, states = records[0], by_member[member]
        position, epoch = first.position or 0, first.epoch or 0
        if first.kind != RecordKind.START or not position or epoch in logged:
            states.clear()
        else:
            states.setdefault(epoch, position)
            if _state(first) in taken:
                found |= {of: min(at, found.get(of, at)) for of, at in states.items()}
        if any(row.kind == RecordKind.SNAPSHOT for row in records):
            states.clear()
    return found


def _held_before(rows: list[Row], epoch: int) -> int:
    """Return the position up to which a member surely held the present history before it entered an
    epoch that it alone records: what it had when it began that life. No log has what it applied
    then."""
    earlier, held = dict[str, int](), BEYOND_ALL
    for (member, _), (first, *_rest) in records_by_incarnation(rows):
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
