"""The whole check: read the logs, run every check, count what was looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from broker.memberlog.records import Kind
from tools.verify import confirms, control, identity, lives, point
from tools.verify.findings import PROPERTIES, BadInput, Finding
from tools.verify.judge import judge_control
from tools.verify.rows import SEGMENT, Row
from tools.verify.segments import find_segments
from tools.verify.story import Story, tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(slots=True)
class Counts:
    """What was looked at: a check that saw nothing proves nothing."""

    members: int = 0
    lives: int = 0
    segments: int = 0
    bytes: int = 0
    records: int = 0
    batches: int = 0
    positions: int = 0
    publishes: int = 0
    confirms: int = 0
    views: int = 0
    epochs: int = 0


@dataclass(slots=True)
class Report:
    """The verdict with its evidence."""

    counts: Counts = field(default_factory=Counts)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    story: Story | None = None  # for pictures, where they were asked for

    @property
    def consistent(self) -> bool:
        """Whether no promise was seen broken."""
        return not self.findings

    def as_document(self) -> dict[str, object]:
        """Return the report as plain values for JSON."""
        return {
            "consistent": self.consistent,
            "counts": asdict(self.counts),
            "findings": [
                {**finding._asdict(), "title": PROPERTIES[finding.property]}
                for finding in self.findings
            ],
            "notes": self.notes,
        }


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a check is to do besides checking."""

    story: bool = False  # also tell what happened over time
    since: Path | None = None  # a verified point to begin from
    save: Path | None = None  # where to write the point that was reached
    export: Path | None = None  # a new directory for the closed segments as Parquet


def verify(spark: SparkSession, places: list[Path], wishes: Wishes = Wishes()) -> Report:
    """Check the logs at `places`; `BadInput` when there is nothing that could be judged."""
    from pyspark import StorageLevel

    from tools.verify.source import read_records

    if wishes.export is not None and wishes.export.exists():
        raise BadInput(f"{wishes.export} exists already: name a new directory to export to")
    segments = find_segments(places)
    found = len(segments)
    saved: list[Row] = []
    if wishes.since is not None:
        saved = point.load(wishes.since)
        segments = point.unread(segments, saved)
        if not segments:
            raise BadInput(f"there is nothing newer than {wishes.since} in these logs")
    records = read_records(spark, segments).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        report, rows = _verify(records, segments, saved, wishes.story)
        if wishes.since is not None:
            skipped = found - len(segments)
            report.notes.append(f"{skipped} segments were verified before and not read again")
        if wishes.save is not None:
            report.notes.append(_save(wishes.save, report, rows))
        if wishes.export is not None:
            report.notes.append(_export(records, rows, wishes.export))
        return report
    finally:
        records.unpersist()


def _save(path: Path, report: Report, rows: list[Row]) -> str:
    if not report.consistent:
        return f"{path} was not written: what is not consistent is no point to begin from"
    settled, position = point.save(path, rows)
    return f"{path}: {settled} segments need not be read again; all members have {position} on disk"


def _export(records: DataFrame, rows: list[Row], directory: Path) -> str:
    """Write the records of closed segments as Parquet, a directory for each member and life."""
    from pyspark.sql import functions as f

    files = [row.file for row in rows if row.kind == SEGMENT and control.ends_of(row)["closed"]]
    kept = records.filter((f.col("kind") < SEGMENT) & f.col("file").isin(files))
    kept.write.partitionBy("member", "incarnation").parquet(str(directory))
    return f"{directory}: the records of closed segments as Parquet"


def _verify(
    records: DataFrame, segments: list[Path], saved: list[Row], story: bool
) -> tuple[Report, list[Row]]:
    """Collect what grows with views and segments; let Spark aggregate what grows with traffic."""
    from pyspark.sql import functions as f

    kinds = [int(kind) for kind in control.CONTROL_KINDS]
    read = [Row(*row) for row in records.filter(f.col("kind").isin(kinds)).collect()]
    rows = saved + read
    judged = judge_control(rows)
    epochs, begin_inactive = judged.epochs, judged.begin_inactive
    begins = lives.begins(read)
    settled = [row.position or 0 for row in saved if row.kind == SEGMENT]
    begin = max([p for p in begins.values() if p < lives.NOWHERE] + settled, default=0)
    differences = identity.find_differences(records, begin_inactive, epochs, begin)
    if not differences.batches and not saved:
        raise BadInput("the logs hold no batch: nothing was applied, so nothing can be shown")
    findings = judged.evidence
    findings += identity.describe_differences(records, differences, begin_inactive, epochs)
    findings += judged.views
    if any(life.unpaired for life in judged.lives):
        findings += confirms.check_unpaired(records, begins)
    findings += confirms.check_gaps(records, findings)
    findings.sort(key=_importance)
    counts = Counts(
        members=len({life.member for life in judged.lives}),
        lives=len(judged.lives),
        segments=len(segments),
        bytes=sum(path.stat().st_size for path in segments),
        records=sum(life.records for life in judged.lives),
        batches=differences.batches,
        positions=differences.positions,
        publishes=sum(life.publishes for life in judged.lives),
        confirms=sum(life.confirms for life in judged.lives),
        views=len({control.ring_of(r) for r in rows if r.kind == Kind.VIEW and r.flag}),
        epochs=len(epochs),
    )
    return Report(counts, findings, judged.notes, tell(records, rows) if story else None), rows


def _importance(finding: Finding) -> tuple[bool, int, str]:
    """Damage first, as it may explain the rest; then by position, the earliest first."""
    return (finding.property != "LOG", finding.position, finding.property)
