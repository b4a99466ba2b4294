"""G6: how lives came from one view into the next, and who is said to have come along.

A ring tells of the end of a view by a *transitional* one (extended virtual synchrony): of the view
before, those that come along into the next one by the same way.  Who shares both views but was in
another one in between did not come along.  Pure Python over VIEW records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from broker.memberlog.records import RecordKind
from tools.verify.checks.views_and_segments import Life, Ring, lives_of, odd_ones, ring_of, stood
from tools.verify.findings import Finding
from tools.verify.input.rows import FAULT, SEGMENT, Row


class Passage(NamedTuple):
    """One life went from one regular view to the next, as it tells."""

    before: Row
    along: Row | None  # the transitional view; None: not told, or told wrongly
    after: Row

    @property
    def between(self) -> tuple[Ring, Ring]:
        """Return which views these are."""
        return ring_of(self.before), ring_of(self.after)


def check_passages(rows: list[Row]) -> Iterator[Finding]:
    """G6: a transitional view holds exactly the members that move together."""
    broken = damaged(rows)
    told: list[Passage] = []
    for member, incarnation, records in lives_of(rows):
        if (member, incarnation) in broken:
            continue  # what is missing may be the view that explains the others
        for one in _passages(records, shown=records[0].kind == RecordKind.START):
            if isinstance(one, Passage):
                told.append(one)
            else:
                row, what = one
                yield Finding("G6", member, incarnation, stood(rows, row), what)
    came: dict[Ring, dict[str, Ring]] = defaultdict(dict)  # into a view, by whom, from which one
    for passage in told:
        before, after = passage.between
        came[after][_life(passage.after)] = before
    by_way: dict[tuple[Ring, Ring], list[tuple[tuple[str, ...], Row]]] = defaultdict(list)
    for passage in told:
        if passage.along is None:
            continue
        what = _refuted(passage, came[passage.between[1]])
        if what:
            row = passage.along
            yield Finding("G6", row.member, row.incarnation, stood(rows, row), what)
        else:
            by_way[passage.between].append((_names(passage.along), passage.along))
    for (before, after), tellers in by_way.items():
        usual, others = odd_ones(tellers)
        for names, row in others:
            what = (
                f"from view {_view(before)} to {_view(after)} came {_listed(names)} here and "
                f"{_listed(usual[0])} at {usual[1].member}"
            )
            yield Finding("G6", row.member, row.incarnation, stood(rows, row), what)


def damaged(rows: list[Row]) -> set[Life]:
    """Return the lives of which something in the middle is not at hand."""
    faults = (row for row in rows if row.kind == FAULT and row.origin == "LOG")
    found = {(row.member, row.incarnation) for row in faults}
    numbers: dict[Life, set[int]] = defaultdict(set)
    for row in rows:
        if row.kind == SEGMENT:
            numbers[row.member, row.incarnation].add(row.segment)
    gaps = (life for life, of in numbers.items() if max(of) - min(of) >= len(of))
    return found.union(gaps)


def _passages(records: list[Row], *, shown: bool) -> Iterator[Passage | tuple[Row, str]]:
    """Yield how a life went from view to view, and what is wrong with that by itself.

    `shown`: its log is there from the beginning.
    """
    regular: Row | None = None
    along: Row | None = None
    closed = False  # the end of the regular view was told
    for row in records:
        if row.kind != RecordKind.VIEW:
            continue
        if row.flag:
            if regular is not None:
                if not closed:
                    what = f"view {_ring(row)} follows {_ring(regular)}, whose end is not told"
                    yield row, what
                yield Passage(regular, along, row)
            regular, along, closed = row, None, False
            continue
        what = _misplaced(row, regular, shown=shown, closed=closed)
        if what:
            yield row, what
        elif regular is not None:
            along = row
        closed = True


def _misplaced(row: Row, regular: Row | None, *, shown: bool, closed: bool) -> str:
    """Return how a transitional view is wrong by what its life told before; empty: it is not."""
    if closed:
        return f"the end of view {_ring(row)} is told again"
    names = set(_names(row))
    if _life(row) not in names:
        return f"the members that come along from view {_ring(row)} are said to be others"
    if regular is None:
        return f"the end of view {_ring(row)} is told, which this member never saw" * shown
    if (row.ring_seq, row.ring_rep) != (regular.ring_seq, regular.ring_rep):
        return f"the end of view {_ring(row)} is told in view {_ring(regular)}"
    strangers = names - set(_names(regular))
    if strangers:
        return f"{_listed(strangers)} came along from view {_ring(row)} without being in it"
    return ""


def _refuted(passage: Passage, came: dict[str, Ring]) -> str:
    """Return how others' logs, or the view that follows, contradict who came along."""
    assert passage.along is not None
    names, there = set(_names(passage.along)), set(_names(passage.after))
    before, after = passage.between
    way = f"from view {_view(before)} to {_view(after)}"
    if names - there:
        return f"{_listed(names - there)} came along {way} without being in that"
    others = {name for name in names if came.get(name, before) != before}
    if others:
        return f"{_listed(others)} did not come along {way}, but by another view"
    missing = {name for name, ring in came.items() if ring == before} - names
    if missing:
        return f"{_listed(missing)} came along {way} as well"
    return ""


def _names(row: Row) -> tuple[str, ...]:
    return tuple(sorted(row.names or []))


def _life(row: Row) -> str:
    return f"{row.member}/{row.incarnation}"


def _ring(row: Row) -> str:
    return f"{row.ring_seq}.{row.ring_rep}"


def _view(ring: Ring) -> str:
    return f"{ring[0]}.{ring[1]}"


def _listed(names: set[str] | tuple[str, ...]) -> str:
    return "{" + ", ".join(sorted(names)) + "}"
