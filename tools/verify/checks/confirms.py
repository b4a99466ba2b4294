"""G8, G9: a confirmed message is in every later epoch, was a publish of this member's clients, and
was on the disks of a majority before.

Across segments and members. Publishes are looked up only where something is suspect, in SQL. A
CONFIRM names the durable mark: the position that a majority of the primary's members had reported
to have on disk. A member records its position (DURABLE) before it reports it, and reports it on the
token. So anything it reported in a primary it recorded before that view ended. The highest mark of
each primary is compared with the positions that its members had recorded by then, or at an orderly
stop; for members with neither, or with an incomplete log, the answer is unknown. Pure Python over
ACTIVE, VIEW, STOP and SEGMENT rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tools.verify.checks.lifetimes import Incarnation, first_positions
from tools.verify.checks.view_changes import incomplete
from tools.verify.checks.views_and_segments import (
    IncarnationId,
    PrimaryView,
    incarnation_of,
    records_by_incarnation,
    segments_of,
    voters_of,
)
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import ACCEPTED, UNPAIRED, Row, ends_of
from tools.verify.input.voters import Voters
from tools.verify.sql.kept import Kept

FINDINGS_MAX = 20
UNKNOWN = 1 << 64  # above every position
AT_STOP = -1  # in place of an epoch

# A publish is left by its segment, and told once by a later one, without a received state between.
# `begins`: incarnations that were not read from their beginning; their earlier publishes cannot be
# looked up.
_UNFOUNDED = f"""
    WITH named AS (
        SELECT member, incarnation, lsn, kind = {UNPAIRED} AS told, explode(positions) AS position
        FROM kept WHERE kind IN ({UNPAIRED}, {ACCEPTED})
    ), paired AS (
        SELECT *, LAG(CASE WHEN NOT told THEN lsn END) OVER (
            PARTITION BY member, incarnation, position ORDER BY lsn, told) AS accepted_at
        FROM named
    )
    SELECT member, incarnation, position FROM paired
    WHERE told AND (accepted_at IS NULL OR EXISTS (
        SELECT 1 FROM kept WHERE kept.kind = {int(RecordKind.SNAPSHOT)}
            AND kept.member = paired.member AND kept.incarnation = paired.incarnation
            AND kept.lsn BETWEEN paired.accepted_at AND paired.lsn
    )) AND NOT EXISTS (
        SELECT 1 FROM begins WHERE begins.member = paired.member
            AND begins.incarnation = paired.incarnation AND paired.position < begins.since
    )
    ORDER BY position LIMIT {FINDINGS_MAX}
"""
_LOST = f"""
    SELECT gap, MIN(position) AS position, MIN_BY(member, position) AS member
    FROM (
        SELECT member, explode(positions) AS position
        FROM kept WHERE kind = {int(RecordKind.CONFIRM)}
    ) AS confirmed JOIN gaps ON position BETWEEN since AND until
    GROUP BY gap ORDER BY gap
"""


def check_unpaired(scan: Kept, begins: dict[IncarnationId, int]) -> list[Finding]:
    """G9: a confirm names an accepted publish of this incarnation that was applied before.

    `begins` has the first position of incarnations that were not read from their beginning.
    """
    from tools.verify.input.tables import table_of

    known = [(*incarnation, since) for incarnation, since in begins.items()]
    unread = table_of(known, "member string, incarnation bigint, since bigint")
    what = "confirmed, but this member applied no accepted publish of its own there before"
    return [
        Finding("G9", row["member"], row["incarnation"], row["position"], what)
        for row in scan.ask(_UNFOUNDED, begins=unread).to_pylist()
    ]


def check_gaps(records: Callable[[], Kept], findings: list[Finding]) -> list[Finding]:
    """G8: positions that a member lacks and that any member confirmed.

    `records` are read only if a position is missing, and once for all gaps: nothing else needs
    every single confirm.
    """
    from tools.verify.input.tables import table_of

    gaps = [found for found in findings if "missing" in found.what and found.property == "G1"]
    gaps = gaps[:FINDINGS_MAX]
    if not gaps:
        return []
    bounds = [(number, gap.position, gap.until) for number, gap in enumerate(gaps)]
    lost = records().ask(_LOST, gaps=table_of(bounds, "gap bigint, since bigint, until bigint"))
    return [
        Finding(
            "G8", gaps[row["gap"]].member, gaps[row["gap"]].incarnation, row["position"],
            f"the publish that {row['member']} confirmed is not applied here",
        )
        for row in lost.to_pylist()
    ]  # fmt: skip


def check_marks(
    rows: list[Row], incarnations: list[Incarnation], primaries: dict[int, PrimaryView]
) -> Iterator[Finding]:
    """G9: no durable mark is above the position that a majority had on disk in that primary."""
    noted = _durable_at_view_end(rows)
    for incarnation in incarnations:
        for epoch, sums in sorted(incarnation.epochs.items()):
            mark, primary = sums.mark, primaries.get(epoch)
            if mark < 0 or primary is None:
                continue
            disks = {
                one[0]: of.get(epoch, of.get(AT_STOP, UNKNOWN))
                for one in map(incarnation_of, primary.members)
                for of in [noted.get(one, {})]
            }
            reached = max(_reached(one, disks) for one in voters_of(epoch, primaries))
            if mark > reached:
                what = (
                    f"took position {mark} for durable at a majority in epoch {epoch}, but what "
                    f"was on disk by then is {_listed(disks)}"
                )
                yield Finding("G9", incarnation.member, incarnation.number, reached + 1, what, mark)


def _reached(voters: Voters, disks: dict[str, int]) -> int:
    """Return the highest position that a quorate set may have on disk; 0: none."""
    held = {**disks, **dict.fromkeys(voters.arbitrators, UNKNOWN)}
    for position in sorted(set(held.values()), reverse=True):
        if voters.is_majority([name for name, at in held.items() if at >= position]):
            return position
    return 0


def _durable_at_view_end(rows: list[Row]) -> dict[IncarnationId, dict[int, int]]:
    """Return, by incarnation and epoch, the recorded durable position when that view ended.

    An orderly stop ends the last one, and any that only others recorded. There is no entry where
    neither was recorded or parts of the log are missing.
    """
    left_out = incomplete(rows) | first_positions(rows).keys()
    at_segment_end = {  # last lsn of a segment, durable
        key: [(row.lsn, ends_of(row).durable) for row in segments]
        for key, segments in segments_of(rows).items()
    }
    noted: dict[IncarnationId, dict[int, int]] = {}
    for key, records in records_by_incarnation(rows):
        if key in left_out:
            continue
        ends: dict[int, int] = {}
        epoch: int | None = None
        for row in records:
            if row.kind == RecordKind.ACTIVE:
                epoch = row.epoch
            elif row.kind == RecordKind.VIEW and epoch is not None:
                earlier = [durable for lsn, durable in at_segment_end.get(key, []) if lsn < row.lsn]
                ends[epoch] = UNKNOWN if row.seq is None else max([row.seq, *earlier])
                epoch = None
            elif row.kind == RecordKind.STOP:
                ends[AT_STOP] = max(durable for _, durable in at_segment_end[key])
        noted[key] = ends
    return noted


def _listed(disks: dict[str, int]) -> str:
    return ", ".join(
        f"{'unknown' if at >= UNKNOWN else max(at, 0)} at {name}"
        for name, at in sorted(disks.items())
    )
