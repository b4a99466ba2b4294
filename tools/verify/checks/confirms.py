"""G8, G9: what was confirmed is in every later epoch, and was a publish of this member's clients.

Across segments and members: looked up only where something is suspect.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.verify.checks.views_and_segments import IncarnationId
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import ACCEPTED, EARLY, UNPAIRED
from tools.verify.sql.kept import Kept

FINDINGS_MAX = 20

# `begins`: incarnations that were not read from their beginning; what was published before it
# cannot be looked up.
_UNFOUNDED = f"""
    WITH told AS (
        SELECT member, incarnation, segment, explode(positions) AS position
        FROM kept WHERE kind = {UNPAIRED}
    ), accepted AS (
        SELECT member, incarnation, segment, explode(positions) AS position
        FROM kept WHERE kind = {ACCEPTED}
    )
    SELECT member, incarnation, position FROM told
    WHERE NOT EXISTS (
        SELECT 1 FROM accepted WHERE accepted.member = told.member
            AND accepted.incarnation = told.incarnation AND accepted.position = told.position
            AND accepted.segment < told.segment
    ) AND NOT EXISTS (
        SELECT 1 FROM begins WHERE begins.member = told.member
            AND begins.incarnation = told.incarnation AND told.position < begins.since
    )
    ORDER BY position LIMIT {FINDINGS_MAX}
"""
_EARLY = f"""
    SELECT member, incarnation, explode(positions) AS position FROM kept WHERE kind = {EARLY}"""
_PERSISTENT = f"""
    SELECT DISTINCT early.member, early.incarnation, position
    FROM early JOIN kept USING (position) WHERE op = 1 AND kept.flag
    ORDER BY position LIMIT {FINDINGS_MAX}"""
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


def check_early(scan: Kept, moves: Callable[[], Kept]) -> list[Finding]:
    """G9: what is confirmed above the durable mark is transient, as its PUBLISHED says."""
    early = scan.ask(_EARLY)
    return [
        Finding("G9", row["member"], row["incarnation"], row["position"], "a persistent message is "
                "confirmed above the durable mark, as if it were transient")
        for row in moves().ask(_PERSISTENT, early=early).to_pylist()
    ]  # fmt: skip


def check_gaps(records: Callable[[], Kept], findings: list[Finding]) -> list[Finding]:
    """G8: of positions that a member lacks, which were confirmed by any member.

    `records` are read only if a position is missing, and once for all gaps: nothing else needs each
    single confirm.
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
