"""G8, G9: what was confirmed is in every later epoch, and was a publish of this member's clients.

Across segments and members: looked up in Spark, and only where something is suspect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.verify.checks.views_and_segments import IncarnationId
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import ACCEPTED, UNPAIRED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

FINDINGS_MAX = 20

# `begins`: incarnations that were not read from their beginning; what was published before it
# cannot be looked up.
_UNFOUNDED = f"""
    with told as (
        select member, incarnation, segment, explode(positions) as position
        from {{given}} where kind = {UNPAIRED}
    ), accepted as (
        select member, incarnation, segment, explode(positions) as position
        from {{given}} where kind = {ACCEPTED}
    )
    select member, incarnation, position from told
    where not exists (
        select 1 from accepted where accepted.member = told.member
            and accepted.incarnation = told.incarnation and accepted.position = told.position
            and accepted.segment < told.segment
    ) and not exists (
        select 1 from {{begins}} as begins where begins.member = told.member
            and begins.incarnation = told.incarnation and told.position < begins.begin
    )
    order by position limit {FINDINGS_MAX}
"""
_LOST = f"""
    with confirmed as (
        select member, explode(positions) as position
        from {{given}} where kind = {int(RecordKind.CONFIRM)}
    )
    select gap, min(struct(position, member)) as first
    from confirmed join {{gaps}} on position between begin and until
    group by gap order by gap
"""


def check_unpaired(records: DataFrame, begins: dict[IncarnationId, int]) -> list[Finding]:
    """G9: a confirm names an accepted publish of this incarnation that was applied before.

    `begins` has the first position of incarnations that were not read from their beginning.
    """
    spark = records.sparkSession
    known = [(*incarnation, begin) for incarnation, begin in begins.items()]
    unread = spark.createDataFrame(known, "member string, incarnation bigint, begin bigint")
    rows = spark.sql(_UNFOUNDED, given=records, begins=unread).collect()
    what = "confirmed, but this member applied no accepted publish of its own there before"
    return [Finding("G9", row.member, row.incarnation, row.position, what) for row in rows]


def check_gaps(records: Callable[[], DataFrame], findings: list[Finding]) -> list[Finding]:
    """G8: of positions that a member lacks, which were confirmed by any member.

    `records` are read only if a position is missing, and once for all gaps: nothing else needs each
    single confirm.
    """
    gaps = [found for found in findings if "missing" in found.what and found.property == "G1"]
    gaps = gaps[:FINDINGS_MAX]
    if not gaps:
        return []
    given = records()
    bounds = given.sparkSession.createDataFrame(
        [(number, gap.position, gap.until) for number, gap in enumerate(gaps)],
        "gap int, begin bigint, until bigint",
    )
    return [
        Finding(
            "G8", gaps[row.gap].member, gaps[row.gap].incarnation, row.first.position,
            f"the publish that {row.first.member} confirmed is not applied here",
        )
        for row in given.sparkSession.sql(_LOST, given=given, gaps=bounds).collect()
    ]  # fmt: skip
