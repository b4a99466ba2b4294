"""G8, G9 over whole epochs: what was confirmed is in the next primary and on a majority's disks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from broker.memberlog.records import Kind
from tools.verify.control import Primary
from tools.verify.findings import Finding
from tools.verify.parse import Row
from tools.verify.traffic import confirmed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Highest(NamedTuple):
    """The highest position that was confirmed in an epoch, and by whom."""

    epoch: int
    position: int
    member: str
    incarnation: int


def highest_confirmed(context: DataFrame) -> list[Highest]:
    """Aggregate the confirms to one row per epoch."""
    from pyspark.sql import functions as f

    best = f.max(f.struct("confirmed", "member", "incarnation")).alias("best")
    rows = confirmed(context).groupBy("epoch").agg(best).collect()
    return sorted(
        Highest(row.epoch, row.best.confirmed, row.best.member, row.best.incarnation)
        for row in rows
    )


def durable_positions(records: DataFrame) -> dict[str, int]:
    """Aggregate what each member knew to be on its own disk, over all its lives."""
    from pyspark.sql import functions as f

    kinds = [int(Kind.DURABLE), int(Kind.START), int(Kind.SNAPSHOT)]
    own = records.filter(f.col("kind").isin(*kinds))
    rows = own.groupBy("member").agg(f.max("position").alias("reached")).collect()
    return {row.member: row.reached for row in rows}


def check_next_primary(confirms: list[Highest], primaries: dict[int, Primary]) -> Iterator[Finding]:
    """G8: each primary starts at or beyond everything that earlier ones confirmed."""
    for epoch, primary in primaries.items():
        earlier = [highest for highest in confirms if highest.epoch < epoch]
        if not earlier:
            continue
        worst = max(earlier, key=lambda highest: highest.position)
        if primary.base < worst.position:
            what = (
                f"confirmed in epoch {worst.epoch}, but the primary of epoch {epoch} "
                f"({primary}) starts before it"
            )
            yield Finding("G8", worst.member, worst.incarnation, worst.position, what)


def check_majority(
    confirms: list[Highest],
    primaries: dict[int, Primary],
    durable: dict[str, int],
    control: list[Row],
) -> Iterator[Finding]:
    """G9: a majority of the voters says that it is on disk, or its log ends too early to know."""
    ended = {(row.member, row.incarnation) for row in control if row.kind == Kind.STOP}
    lives = {(row.member, row.incarnation) for row in control if row.kind == Kind.START}
    unknown = {member for member, incarnation in lives - ended}
    for highest in confirms:
        primary = primaries.get(highest.epoch)
        if primary is None:
            continue
        voters = primary.voters
        silent = {voter for voter in voters if voter in unknown or voter not in durable}
        have = {voter for voter in voters if durable.get(voter, -1) >= highest.position}
        if len(have | silent) <= len(voters) // 2:
            what = (
                f"confirmed in epoch {highest.epoch}, but on the disks of only {len(have)} "
                f"of {len(voters)} voters"
            )
            yield Finding("G9", highest.member, highest.incarnation, highest.position, what)
