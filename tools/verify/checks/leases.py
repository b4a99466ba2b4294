"""G38: one broker at a time leads a shared store, and has all that those before it confirmed.

Invariant: each token is one incarnation's, taken before it does anything, and higher than that of
the store which it copied.  In the order of tokens the states with which leaders begin never fall,
each of them is at or beyond all that was confirmed under any earlier token, and where two go by one
clock the later one begins when the lease of the earlier one is over.  Under a token that was lost
or given up nothing is applied or confirmed any more (`input.parse`, within a segment).

What a leader applied and did not confirm may stand beside its successor's positions: it was stopped
there, and nobody was told.  A log without LEASE is of an older release, or of a store that is not
shared: of these nothing is said, but of one that follows others in its directory which have it.

Over LEASE, START, VIEW, ACTIVE and SEGMENT rows, which are few.  The rules between leaders are
SELECTs, of DuckDB and Spark SQL alike, over `terms`: a row for each incarnation that took a token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.verify.checks.lifetimes import BEYOND_ALL, Incarnation
from tools.verify.checks.views_and_segments import (
    IncarnationId,
    records_by_incarnation,
    segments_of,
)
from tools.verify.findings import Finding
from tools.verify.format.records import TAKEN, RecordKind
from tools.verify.input.rows import SEGMENT, Row, ends_of
from tools.verify.sql.statements import Statements, answer


class Term(NamedTuple):
    """One incarnation that led a shared store; times are microseconds of its clock."""

    member: str
    incarnation: int
    token: int
    owner: str
    source: int
    clock: str
    at_us: int
    until_us: int  # as far as its log tells
    begins: int  # the position of the state that it began with, -1 = not known
    confirmed: int  # the highest position that it confirmed, -1 = none


COLUMNS = (
    "member string, incarnation bigint, token bigint, owner string, source bigint, clock string, "
    "at_us bigint, until_us bigint, begins bigint, confirmed bigint"
)
STATEMENTS: Statements = {
    "beside": """
        SELECT later.*, former.token AS former, former.member AS whose,
            former.incarnation AS which, former.owner AS former_owner, former.begins AS began,
            former.confirmed AS told,
            CASE WHEN former.clock = later.clock AND later.clock <> ''
                 THEN former.until_us - later.at_us ELSE 0 END AS overlap_us
        FROM terms AS former JOIN terms AS later ON former.token < later.token
            OR former.token = later.token AND (former.incarnation < later.incarnation
            OR former.incarnation = later.incarnation AND former.member < later.member)""",
    "broken": """
        SELECT member, incarnation, begins AS position, CONCAT(
            'took token ', token, ' (', owner, '), which incarnation ', which, ' of ', whose,
            ' took (', former_owner, ')') AS what
        FROM beside WHERE former = token
        UNION ALL
        SELECT whose, which, began, CONCAT(
            'took token ', former, ' with this state, and token ', token, ' was taken at position ',
            begins, ': tokens fell back')
        FROM beside WHERE former < token AND began > begins AND begins >= 0
        UNION ALL
        SELECT whose, which, told, CONCAT(
            'confirmed under token ', former, ', but incarnation ', incarnation, ' of ', member,
            ' began with token ', token, ' and what was there at position ', begins)
        FROM beside WHERE former < token AND told > begins AND begins >= 0
        UNION ALL
        SELECT member, incarnation, begins, CONCAT(
            'took token ', token, ' ', overlap_us, ' us before the lease of token ', former,
            ' (incarnation ', which, ' of ', whose, ') was over, by the clock of both')
        FROM beside WHERE former < token AND overlap_us > 0
        UNION ALL
        SELECT member, incarnation, begins, CONCAT(
            'took token ', token, ' and the store of token ', source, ', which is none before it')
        FROM terms WHERE source >= token""",
    "first_of_each": """
        SELECT member, incarnation, position, what FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY member, incarnation, position ORDER BY what) AS n FROM broken)
        WHERE n = 1 ORDER BY position, member, incarnation""",
}


def check_leases(rows: list[Row], incarnations: Sequence[Incarnation]) -> Iterator[Finding]:
    """Yield what contradicts that one led at a time; nothing where no LEASE is."""
    if not any(map(_is_lease, rows)):
        return
    yield from _check_each(rows)
    from tools.verify.input.tables import table_of

    terms = table_of(terms_of(rows, incarnations), COLUMNS)
    found = answer(STATEMENTS, {"terms": terms}, ["first_of_each"])["first_of_each"]
    for row in found.to_pylist():
        yield Finding("G38", row["member"], row["incarnation"], row["position"], row["what"])


def overtaken_at_once(rows: list[Row]) -> dict[IncarnationId, str]:
    """Return whom a later leader overtook before anything of it was kept or confirmed, and how.

    It was stopped at its beginning, and its successor began with the same state: it may have formed
    the epoch that is its successor's, with other commands in it.  It told nobody, so its log is to
    be left out.
    """
    begun: dict[tuple[int, bytes], dict[int, IncarnationId]] = defaultdict(dict)
    for member, incarnation, records in records_by_incarnation(rows):
        token = next((row.seq for row in records if row.text == TAKEN and _is_lease(row)), None)
        if token is not None and records[0].kind == RecordKind.START:
            state = records[0].reached, bytes(records[0].chain or b"")
            begun[state][token] = member, incarnation
    confirmed = {
        (row.member, row.incarnation)
        for row in rows if row.kind == SEGMENT and ends_of(row).confirms
    }  # fmt: skip
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
    """Return who took a token."""
    confirmed: dict[IncarnationId, int] = {
        (one.member, one.number): max([sums.confirmed for sums in one.epochs.values()], default=-1)
        for one in incarnations
    }
    terms: list[Term] = []
    for member, incarnation, records in records_by_incarnation(rows):
        leases = [row for row in records if _is_lease(row)]
        begins = [row.reached for row in records[:1] if row.kind == RecordKind.START]
        until = max((_times(row)[1] for row in leases), default=0)
        terms += [
            Term(
                member, incarnation, row.seq or 0, row.origin or "", row.ring_seq or 0,
                row.ring_rep or "", _times(row)[0], until, max(begins, default=-1),
                confirmed.get((member, incarnation), -1),
            )
            for row in leases if row.text == TAKEN
        ]  # fmt: skip
    return terms


def _times(row: Row) -> tuple[int, int]:
    at_us, until_us = row.positions or (0, 0)
    return at_us, until_us


def _check_each(rows: list[Row]) -> Iterator[Finding]:
    """Yield who led by no token, or by more than one, or went on in the segments behind its end."""
    known: dict[Path, int] = {}  # by directory, the first incarnation that recorded a token
    for row in rows:
        if _is_lease(row):
            place = Path(row.file).parent
            known[place] = min(row.incarnation, known.get(place, row.incarnation))
    segments = segments_of(rows)
    for member, incarnation, records in records_by_incarnation(rows):
        first = records[0]
        leases = [row for row in records if _is_lease(row)]
        taken = [row for row in leases if row.text == TAKEN]
        acts = [row for row in records if row.kind in (RecordKind.VIEW, RecordKind.ACTIVE)]
        led = incarnation >= known.get(Path(first.file).parent, BEYOND_ALL) and not first.segment
        # A log that a crash cut off before it did anything need not say so.
        if led and acts and (not taken or taken[0].lsn > acts[0].lsn):
            what = "leads a shared store, and its log does not say first by which token"
            yield Finding("G38", member, incarnation, first.reached, what)
        for row in leases:
            again = row.text == TAKEN and row is not taken[0]
            if again or (taken and (row.seq, row.origin) != (taken[0].seq, taken[0].origin)):
                what = (
                    f"took token {taken[0].seq} ({taken[0].origin}), and says of token {row.seq} "
                    f"({row.origin}) that it was {row.text}"
                )
                yield Finding("G38", member, incarnation, row.reached, what)
        over = next((row for row in leases if row.text != TAKEN), None)
        for later in segments[member, incarnation]:
            runs = ends_of(later).runs
            if over is not None and later.segment > over.segment and runs:
                what = f"goes on in {later.file}, after token {over.seq} was {over.text}"
                yield Finding("G38", member, incarnation, runs[0].first, what)
