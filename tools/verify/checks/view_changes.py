"""G6, G7, G20: a view has the same members in all logs, members that moved together into the next
view agree on that, a primary has the members of its view, and in a cold start none of them had a
state.

The end of a regular view is recorded as a *transitional* one (extended virtual synchrony): the
members of the old view that move together into the next one. A member that shares both views but
was in another one in between did not move together. Pure Python over VIEW and ACTIVE records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tools.verify.checks.views_and_segments import (
    IncarnationId,
    Ring,
    incarnation_in,
    incarnation_of,
    position_at,
    records_by_incarnation,
    ring_of,
    segments_of,
    split_by_majority,
)
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import FAULT, Row

Report = tuple[tuple[str, ...], Row]  # members, and the record that has them


class ViewChange(NamedTuple):
    """Move of one incarnation from a regular view to the next, as it recorded it."""

    before: Row
    transitional: Row | None  # None: not recorded, or wrongly
    after: Row


def check_view_changes(rows: list[Row]) -> Iterator[Finding]:
    """G6: a transitional view holds exactly the members that move together."""
    left_out = incomplete(rows)
    changes: list[ViewChange] = []
    for key, records in records_by_incarnation(rows):
        if key in left_out:
            continue  # the missing part may hold a view that explains the others
        for one in _view_changes(records):
            if isinstance(one, ViewChange):
                changes.append(one)
            else:
                yield _found(rows, *one)
    # By view entered and member: the view it left.
    arrived: dict[Ring, dict[str, Ring]] = defaultdict(dict)
    for before, _, after in changes:
        arrived[ring_of(after)][_member(after)] = ring_of(before)
    by_way: dict[tuple[Ring, Ring], list[Report]] = defaultdict(list)
    for before, row, after in changes:
        if row is None:
            continue
        what = _refuted(before, row, after, arrived[ring_of(after)])
        if what:
            yield _found(rows, row, what)
        else:
            by_way[ring_of(before), ring_of(after)].append((_names(row), row))
    for (left, entered), reports in by_way.items():
        way = f"from view {_view(left)} to {_view(entered)} came"
        yield from _disagreements(rows, way, reports)


def _found(rows: list[Row], row: Row, what: str, promise: str = "G6") -> Finding:
    return Finding(promise, *incarnation_in(row), position_at(rows, row), what)


def _disagreements(rows: list[Row], subject: str, reports: list[Report]) -> Iterator[Finding]:
    """Yield the logs that say of a view, or a way, other members than most of them."""
    (usual, reference), others = split_by_majority(reports)
    for names, row in others:
        what = f"{subject} {_listed(names)} here and {_listed(usual)} at {reference.member}"
        yield _found(rows, row, what)


def incomplete(rows: list[Row]) -> set[IncarnationId]:
    """Return the incarnations whose log is damaged or lacks a segment in the middle."""
    found = {incarnation_in(row) for row in rows if row.kind == FAULT and row.origin == "LOG"}
    for key, segments in segments_of(rows).items():
        numbers = {row.segment for row in segments}
        if max(numbers) - min(numbers) >= len(numbers):
            found.add(key)
    return found


def check_views(rows: list[Row]) -> Iterator[Finding]:
    """G6, G7: a log's records of views are possible, and all logs agree about a view.

    A member is in a view once and as its newest incarnation, the representative is among the
    members, numbers rise, and a primary has the members of its view. All logs may agree on
    something else.
    """
    begun = {incarnation_in(row) for row in rows if row.segment <= 0}
    holes = incomplete(rows)
    reported: dict[Ring, list[Report]] = defaultdict(list)
    for key, records in records_by_incarnation(rows):
        for one in _impossible(records, begun=key in begun, whole=key not in holes):
            yield _found(rows, *one)
        for row in records:
            if row.kind == RecordKind.VIEW and row.flag:
                reported[ring_of(row)].append((_names(row), row))
    for ring, reports in reported.items():
        yield from _disagreements(rows, f"view {_view(ring)} is", reports)
    yield from _check_cold(rows)


def _impossible(records: list[Row], *, begun: bool, whole: bool) -> Iterator[tuple[Row, str, str]]:
    """Yield row, text and promise of records that are impossible in one log.

    `begun`: it is available from its first segment on; `whole`: nothing is missing after that. A
    view without a record in such a log was not installed.
    """
    view: Row | None = None
    highest = -1
    installed: set[Ring] = set()
    activated: set[Ring] = set()
    newest: dict[str, int] = {}  # incarnation by name, as the views so far had it
    for row in records:
        if row.kind == RecordKind.VIEW and row.flag:
            for what in _impossible_view(row, newest):
                yield row, what, "G6"
            if (row.ring_seq or 0) <= highest:
                yield row, f"view {_ring(row)} follows a view with number {highest}", "G6"
            for name, number in map(incarnation_of, row.names or []):
                newest[name] = max(number, newest.get(name, number))
            view, highest = row, max(highest, row.ring_seq or 0)
            installed.add(ring_of(row))
        elif row.kind == RecordKind.ACTIVE:
            if ring_of(row) not in installed and whole and (installed or begun):
                what = f"active in view {_ring(row)}, which this member never installed"
                yield row, what, "G6"
            if ring_of(row) in activated:
                yield row, f"view {_ring(row)} is a second primary, of epoch {row.epoch}", "G7"
            activated.add(ring_of(row))
            named = tuple(sorted(name.rstrip("+") for name in row.names or []))
            if view is not None and _ring(row) == _ring(view) and named != _names(view):
                there = _listed(_names(view))
                what = f"the primary of epoch {row.epoch} is {_listed(named)}, in a view of {there}"
                yield row, what, "G7"


def _impossible_view(view: Row, newest: dict[str, int]) -> Iterator[str]:
    members = [incarnation_of(name) for name in view.names or []]
    names = [name for name, _ in members]
    ring = f"view {_ring(view)}"
    if _member(view) not in _names(view):
        yield f"{ring} does not contain the member itself"
    if view.ring_rep not in names:
        yield f"{ring} is {_listed(_names(view))}, without its representative"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{ring} has {name} twice: {_listed(_names(view))}"
    for name, number in members:
        if number < newest.get(name, number):
            yield f"{ring} has {name}/{number}, after a view with {name}/{newest[name]}"


def _check_cold(rows: list[Row]) -> Iterator[Finding]:
    """G20: in a cold start nobody carried its state over, or messages would have been lost."""
    active = [row for row in rows if row.kind == RecordKind.ACTIVE]
    begun: dict[IncarnationId, int] = {}  # the first epoch that it was active in
    for row in active:
        key, epoch = incarnation_in(row), row.epoch or 0
        begun[key] = min(epoch, begun.get(key, epoch))
    cold = {row.epoch or 0: row for row in reversed(active) if row.flag}
    for epoch, row in sorted(cold.items()):
        for name in row.names or []:
            first = begun.get(incarnation_of(name), epoch)
            if first < epoch and not name.endswith("+"):
                what = (
                    f"the primary of epoch {epoch} calls itself a cold start, but {name} was in "
                    f"that of epoch {first} and has its state from there"
                )
                yield Finding("G20", *incarnation_in(row), row.position or 0, what)
                break


def _view_changes(records: list[Row]) -> Iterator[ViewChange | tuple[Row, str]]:
    """Yield the view changes of an incarnation, and (row, text) for faults in its own log.

    A log that is not available from its beginning may begin with the end of a view.
    """
    from_beginning = records[0].kind == RecordKind.START
    regular: Row | None = None
    transitional: Row | None = None
    closed = False  # the end of the regular view was recorded
    for row in (row for row in records if row.kind == RecordKind.VIEW):
        if row.flag and regular is not None:
            if not closed:
                what = f"view {_ring(row)} follows {_ring(regular)}, whose end is not recorded"
                yield row, what
            yield ViewChange(regular, transitional, row)
        if row.flag:
            regular, transitional, closed = row, None, False
            continue
        again = f"the end of view {_ring(row)} is recorded again" if closed else ""
        what = again or _misplaced(row, regular, from_beginning=from_beginning)
        if what:
            yield row, what
        elif regular is not None:
            transitional = row
        closed = True


def _misplaced(row: Row, regular: Row | None, *, from_beginning: bool) -> str:
    """Return how a transitional view contradicts the records before it; "" when it does not."""
    names = set(_names(row))
    if _member(row) not in names:
        return f"the end of view {_ring(row)} does not contain the member itself"
    if regular is None:
        return f"the end of view {_ring(row)} is recorded, but not its beginning" * from_beginning
    if _ring(row) != _ring(regular):
        return f"the end of view {_ring(row)} is recorded in view {_ring(regular)}"
    if outsiders := names - set(_names(regular)):
        return f"{_listed(outsiders)} came along from view {_ring(row)} without being in it"
    return ""


def _refuted(before: Row, row: Row, after: Row, arrived: dict[str, Ring]) -> str:
    """Return how other logs, or the next view, contradict a transitional view; "" when not."""
    names, left = set(_names(row)), ring_of(before)
    way = f"from view {_ring(before)} to {_ring(after)}"
    if strangers := names - set(_names(after)):
        return f"{_listed(strangers)} came along {way} without being in that"
    if others := {name for name in names if arrived.get(name, left) != left}:
        return f"{_listed(others)} did not come along {way}, but by another view"
    if missing := {name for name, ring in arrived.items() if ring == left} - names:
        return f"{_listed(missing)} came along {way} as well"
    return ""


def _names(row: Row) -> tuple[str, ...]:
    return tuple(sorted(row.names or []))


def _member(row: Row) -> str:
    return f"{row.member}/{row.incarnation}"


def _ring(row: Row) -> str:
    return f"{row.ring_seq}.{row.ring_rep}"


def _view(ring: Ring) -> str:
    return f"{ring[0]}.{ring[1]}"


def _listed(names: set[str] | tuple[str, ...]) -> str:
    return "{" + ", ".join(sorted(names)) + "}"
