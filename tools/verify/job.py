"""The whole check: read the logs, run every check, count what was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker.memberlog.records import RecordKind
from tools.verify.checks import (
    confirms,
    difference_search,
    digest_votes,
    lifetimes,
    total_order,
    views_and_segments,
)
from tools.verify.checks.control_checks import judge_control
from tools.verify.clients import histories
from tools.verify.contract.rules import REPLAYED
from tools.verify.coverage import blind, touched
from tools.verify.findings import BadInput, Finding
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.segments import find_segments
from tools.verify.live import checkpoint
from tools.verify.report.result import Counts, Report
from tools.verify.report.timeline import tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a check is to do besides checking."""

    story: bool = False  # also tell what happened over time
    since: Path | None = None  # a verified point to begin from
    save: Path | None = None  # where to write the point that was reached
    export: Path | None = None  # a new directory for the closed segments as Parquet
    replay: int | None = REPLAYED  # segments for the second model; None: all


def verify(spark: SparkSession, places: list[Path], wishes: Wishes = Wishes()) -> Report:
    """Check the logs at `places`; `BadInput` when there is nothing that could be judged."""
    from pyspark import StorageLevel

    from tools.verify.input.source import read_table

    if wishes.export is not None and wishes.export.exists():
        raise BadInput(f"{wishes.export} exists already: name a new directory to export to")
    segments, told = histories.apart(find_segments(places))
    found = len(segments)
    saved: list[Row] = []
    if wishes.since is not None:
        saved = checkpoint.load(wishes.since)
        segments = checkpoint.unread(segments, saved)
        if not segments:
            raise BadInput(f"there is nothing newer than {wishes.since} in these logs")
    scan = read_table(spark, "scan", segments).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        report, rows = _verify(scan, segments, told, saved, wishes)
        if wishes.since is not None:
            skipped = found - len(segments)
            report.notes.append(f"{skipped} segments were verified before and not read again")
        if wishes.save is not None:
            report.notes.append(_save(wishes.save, report, rows))
        if wishes.export is not None:
            report.notes.append(_export(spark, rows, wishes.export))
        return report
    finally:
        scan.unpersist()


def _save(path: Path, report: Report, rows: list[Row]) -> str:
    if not report.consistent:
        return f"{path} was not written: what is not consistent is no point to begin from"
    settled, position = checkpoint.save(path, rows)
    return f"{path}: {settled} segments need not be read again; all members have {position} on disk"


def _export(spark: SparkSession, rows: list[Row], directory: Path) -> str:
    """Write the records of closed segments as Parquet, a directory for each member and life."""
    from pyspark.sql import functions as f

    from tools.verify.input.source import read_records

    files = [
        row.file
        for row in rows
        if row.kind == SEGMENT and views_and_segments.ends_of(row)["closed"]
    ]
    records = read_records(spark, [Path(file) for file in files])
    kept = records.filter(f.col("kind") < SEGMENT)
    kept.write.partitionBy("member", "incarnation").parquet(str(directory))
    return f"{directory}: the records of closed segments as Parquet"


def _verify(
    scan: DataFrame, segments: list[Path], told: list[Path], saved: list[Row], wishes: Wishes
) -> tuple[Report, list[Row]]:
    """Collect what grows with views and segments; let Spark aggregate what grows with traffic."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    from tools.verify.contract import job as contract
    from tools.verify.input.source import read_records

    kinds = [int(kind) for kind in views_and_segments.CONTROL_KINDS]
    vote, odd = f.col("kind") == int(RecordKind.VOTE), f.col("text") != digest_votes.AGREED
    controlled = scan.filter(f.col("kind").isin(kinds) | (vote & odd)).select(*Row._fields)
    read = [Row(*row) for row in controlled.collect()]
    if voted := digest_votes.odd_positions(read):
        others = scan.filter(vote & ~odd & f.col("position").isin(voted))
        read += [Row(*row) for row in others.select(*Row._fields).collect()]
    rows = saved + read
    judged = judge_control(rows)
    epochs, begin_inactive = judged.epochs, judged.begin_inactive
    begins = lifetimes.begins(read)
    settled = [row.position or 0 for row in saved if row.kind == SEGMENT]
    begin = max([p for p in begins.values() if p < lifetimes.NOWHERE] + settled, default=0)
    findings = judged.evidence
    found = difference_search.find_doubts(scan, begin_inactive)
    batches, positions = found.batches, found.positions
    if found.records is not None:
        doubtful = found.records.persist(StorageLevel.MEMORY_AND_DISK)
        differences = total_order.find_differences(doubtful, begin_inactive, judged.cuts, begin)
        batches += differences.batches
        positions += differences.positions
        findings += total_order.describe_differences(
            doubtful, differences, begin_inactive, judged.cuts
        )
        doubtful.unpersist()
    if not batches and not saved:
        raise BadInput("the logs hold no batch: nothing was applied, so nothing can be shown")
    findings += judged.views
    if any(life.unpaired for life in judged.lives):
        findings += confirms.check_unpaired(scan, begins)
    spark = scan.sparkSession
    findings += confirms.check_gaps(lambda: read_records(spark, segments), findings)
    contracted = contract.check_contract(spark, read, epochs, wishes.replay)
    for lack in blind(judged.lives, contracted):
        raise BadInput(f"the check itself failed: {lack}")
    findings += contract.explain(spark, contracted, read)
    judged.notes.extend(contract.limits(contracted))
    heard = histories.check_histories(
        scan, told, segments, read, contracted.stretches, contracted.gaps
    )
    if heard is not None:
        findings += heard.findings
        judged.notes.extend(heard.notes)
    findings.sort(key=_importance)
    counts = Counts(
        members=len({life.member for life in judged.lives}),
        lives=len(judged.lives),
        segments=len(segments),
        bytes=sum(path.stat().st_size for path in segments),
        records=sum(life.records for life in judged.lives),
        batches=batches,
        positions=positions,
        publishes=sum(life.publishes for life in judged.lives),
        confirms=sum(life.confirms for life in judged.lives),
        views=len(
            {views_and_segments.ring_of(r) for r in rows if r.kind == RecordKind.VIEW and r.flag}
        ),
        epochs=len(epochs),
    )
    story = tell(scan, rows) if wishes.story else None
    checks = touched(rows, judged.lives, batches, contracted)
    checks += heard.touched() if heard is not None else []
    return Report(counts, findings, judged.notes, story, heard, checks), rows


def _importance(finding: Finding) -> tuple[bool, int, str]:
    """Damage first, as it may explain the rest; then by position, the earliest first."""
    return (finding.property != "LOG", finding.position, finding.property)
