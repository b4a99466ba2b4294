"""G38: one broker at a time leads a shared store, and has everything confirmed by those before it.

Invariant: each token belongs to one incarnation, is taken before that does anything, and is higher
than the token of the store that it copied. In the order of tokens the states with which leaders
begin never fall, and each is at or beyond everything confirmed under any earlier token. Where two
leaders go by one clock, the later one begins after the lease of the earlier one is over. Under a
token that was lost or given up nothing is applied or confirmed any more (`input.parse`, within a
segment).

Commands that a leader applied but did not confirm may be at positions that its successor used for
others: it was stopped there, and nobody was told. A log without LEASE is of a store that is not, or
was not yet, shared. Nothing is checked about such a log, unless it follows others in its directory
that have LEASE.

Over LEASE, START, VIEW, ACTIVE and SEGMENT rows, which are few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, groupby
from pathlib import Path
from typing import NamedTuple

from tools.verify.checks.lifetimes import BEYOND_ALL, Incarnation
from tools.verify.checks.views_and_segments import (
    IncarnationId,
    incarnation_in,
    records_by_incarnation,
    segments_of,
)
from tools.verify.findings import Finding
from tools.verify.format.records import GIVEN_UP, TAKEN, RecordKind
from tools.verify.input.rows import SEGMENT, Row, ends_of


class Term(NamedTuple):
    """One incarnation that led a shared store; times are microseconds of its clock."""

    token: int
    incarnation: int
    member: str
    owner: str
    source: int
    clock: str
    at_us: int
    until_us: int  # as far as its log tells
    begins: int  # the position of its initial state, -1 = unknown
    confirmed: int  # the highest position that it confirmed, -1 = none

    @property
    def who(self) -> str:
        return f"incarnation {self.incarnation} of {self.member}"

    def broke(self, position: int, what: str) -> Finding:
        return Finding("G38", self.member, self.incarnation, position, what)


def check_leases(rows: list[Row], incarnations: Sequence[Incarnation]) -> Iterator[Finding]:
    """Yield contradictions to one leader at a time, one for each leader and position; nothing
    without LEASE records."""
    yield from _check_each(rows)
    terms = terms_of(rows, incarnations)
    found = sorted(
        [*_check_pairs(terms), *_check_sources(terms)],
        key=lambda one: (one.position, one.member, one.incarnation, one.what),
    )
    for _, same in groupby(found, key=lambda one: one[:4]):
        yield next(same)


def _check_sources(terms: list[Term]) -> Iterator[Finding]:
    for one in terms:
        if one.source >= one.token:
            of = f"the store of token {one.source}, which is none before it"
            yield one.broke(one.begins, f"took token {one.token} and {of}")


def _check_pairs(terms: list[Term]) -> Iterator[Finding]:
    for former, later in combinations(sorted(terms), 2):
        token, before = later.token, former.token
        if token == before:
            if former[:3] != later[:3]:  # otherwise it says so itself
                what = f"took token {token} ({later.owner}), which {former.who} took"
                yield later.broke(later.begins, f"{what} ({former.owner})")
            continue
        if 0 <= later.begins < former.begins:
            what = f"token {token} was taken at position {later.begins}: tokens fell back"
            yield former.broke(former.begins, f"took token {before} with this state, and {what}")
        if 0 <= later.begins < former.confirmed:
            what = (
                f"confirmed under token {before}, but {later.who} began with token {token} and "
                f"what was there at position {later.begins}"
            )
            yield former.broke(former.confirmed, what)
        overlap_us = former.until_us - later.at_us
        if later.clock and former.clock == later.clock and overlap_us > 0:
            what = (
                f"took token {token} {overlap_us} us before the lease of token {before} "
                f"({former.who}) was over, by the clock of both"
            )
            yield later.broke(later.begins, what)


def overtaken_at_once(rows: list[Row]) -> dict[IncarnationId, str]:
    """Return leaders that a later one overtook before anything of theirs was kept or confirmed, and
    how.

    Such a leader was stopped at its beginning, and its successor began with the same state. It may
    have formed the epoch that is its successor's, with other commands in it. It told nobody, so its
    log must be left out.
    """
    begun: dict[tuple[int, bytes], dict[int, IncarnationId]] = defaultdict(dict)
    for key, records in records_by_incarnation(rows):
        token = next((row.seq for row in records if row.text == TAKEN and _is_lease(row)), None)
        if token is not None and records[0].kind == RecordKind.START:
            state = records[0].reached, bytes(records[0].chain or b"")
            begun[state][token] = key
    confirmed = {
        incarnation_in(row) for row in rows if row.kind == SEGMENT and ends_of(row).confirms
    }
    return {
        one: f"{one[0]} (incarnation {one[1]}): took token {token} and confirmed nothing before "
        f"token {max(leaders)} was taken with the same state: its log is left out"
        for leaders in begun.values()
        for token, one in leaders.items()
        if token < max(leaders) and one not in confirmed
    }


def _is_lease(row: Row) -> bool:
    return row.kind == RecordKind.LEASE


def terms_of(rows: list[Row], incarnations: Sequence[Incarnation]) -> list[Term]:
    """Return the incarnations that took a token."""
    confirmed: dict[IncarnationId, int] = {
        (one.member, one.number): max([sums.confirmed for sums in one.epochs.values()], default=-1)
        for one in incarnations
    }
    terms: list[Term] = []
    for (member, incarnation), records in records_by_incarnation(rows):
        first, leases = records[0], [row for row in records if _is_lease(row)]
        begins = first.reached if first.kind == RecordKind.START else -1
        # The last record knows of renewals, and of an end before the granted time was over.
        until = _times(leases[-1])[1] if leases else 0
        last = confirmed.get((member, incarnation), -1)
        terms += [
            Term(
                row.seq or 0, incarnation, member, row.origin or "", row.ring_seq or 0,
                row.ring_rep or "", _times(row)[0], until, begins, last,
            )
            for row in leases if row.text == TAKEN
        ]  # fmt: skip
    return terms


def _times(row: Row) -> tuple[int, int]:
    at_us, until_us = row.positions or (0, 0)
    return at_us, until_us


def _check_each(rows: list[Row]) -> Iterator[Finding]:
    """Yield leaders without a token, or with more than one, or that continued in the segments after
    their end."""
    known: dict[Path, int] = {}  # by directory, the first incarnation that recorded a token
    for row in rows:
        if _is_lease(row):
            place = Path(row.file).parent
            known[place] = min(row.incarnation, known.get(place, row.incarnation))
    segments = segments_of(rows)
    for key, records in records_by_incarnation(rows):
        first = records[0]
        leases = [row for row in records if _is_lease(row)]
        taken = [row for row in leases if row.text == TAKEN]
        acts = [row for row in records if row.kind in (RecordKind.VIEW, RecordKind.ACTIVE)]
        led = key[1] >= known.get(Path(first.file).parent, BEYOND_ALL) and not first.segment
        # A log that a crash cut off before it did anything need not say so.
        if led and acts and (not taken or taken[0].lsn > acts[0].lsn):
            what = "leads a shared store, and its log does not say first by which token"
            yield Finding("G38", *key, first.reached, what)
        for row in leases:
            again = row.text == TAKEN and row is not taken[0]
            if again or (taken and (row.seq, row.origin) != (taken[0].seq, taken[0].origin)):
                what = (
                    f"took token {taken[0].seq} ({taken[0].origin}), and says of token {row.seq} "
                    f"({row.origin}) that it was {row.text}"
                )
                yield Finding("G38", *key, row.reached, what)
            at_us, until_us = _times(row)
            if row.text == GIVEN_UP and until_us > at_us:
                what = f"gave up token {row.seq}, and keeps it for {until_us - at_us} us"
                yield Finding("G38", *key, row.reached, what)
        over = next((row for row in leases if row.text != TAKEN), None)
        for later in segments[key]:
            runs = ends_of(later).runs
            if over is not None and later.segment > over.segment and runs:
                what = f"goes on in {later.file}, after token {over.seq} was {over.text}"
                yield Finding("G38", *key, runs[0].first, what)
