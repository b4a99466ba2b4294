"""The whole check: read the logs, run every check, count what was looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from broker.memberlog.records import Kind
from tools.verify import control, durability, identity, traffic
from tools.verify.findings import PROPERTIES, BadInput, Finding
from tools.verify.frames import find_segments, in_context, read_records
from tools.verify.parse import SEGMENT, Row

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


def verify(spark: SparkSession, places: list[Path]) -> Report:
    """Check the logs at `places`; `BadInput` when there is nothing that could be judged."""
    from pyspark import StorageLevel

    segments = find_segments(places)
    records = read_records(spark, segments).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        return _verify(records, segments)
    finally:
        records.unpersist()


def _verify(records: DataFrame, segments: list[Path]) -> Report:
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    kinds = [int(kind) for kind in control.CONTROL_KINDS]
    rows = [Row(*row) for row in records.filter(f.col("kind").isin(kinds)).collect()]
    control.check_input(rows)
    differences = identity.find_differences(records)
    if not differences.batches:
        raise BadInput("the logs hold no batch: nothing was applied, so nothing can be shown")
    report = Report()
    for said in control.check_segments(rows):
        if isinstance(said, Finding):
            report.findings.append(said)
        else:
            report.notes.append(said)
    report.findings += identity.describe_differences(records, differences)
    report.findings += control.check_views(rows)
    report.findings += control.check_primaries(rows)
    context = in_context(records).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        report.findings += traffic.collect_findings(
            traffic.sequence(context),
            traffic.primary_only(context),
            traffic.anchors(records),
            traffic.synchrony(context),
            traffic.confirms(context),
            traffic.kept(context),
        )
        epochs = control.primaries(rows)
        highest = durability.highest_confirmed(context)
        report.findings += durability.check_next_primary(highest, epochs)
        durable = durability.durable_positions(records)
        report.findings += durability.check_majority(highest, epochs, durable, rows)
        confirms, publishes = _confirms_and_publishes(records)
    finally:
        context.unpersist()
    report.findings.sort(key=_importance)
    ends = [row for row in rows if row.kind == SEGMENT]
    report.counts = Counts(
        members=len({row.member for row in ends}),
        lives=len({(row.member, row.incarnation) for row in ends}),
        segments=len(segments),
        bytes=sum(path.stat().st_size for path in segments),
        records=control.count_records(rows),
        batches=differences.batches,
        positions=differences.positions,
        publishes=publishes,
        confirms=confirms,
        views=len({(r.ring_seq, r.ring_rep) for r in rows if r.kind == Kind.VIEW and r.flag}),
        epochs=len(epochs),
    )
    return report


def _confirms_and_publishes(records: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as f

    size = f.coalesce(f.size("positions"), f.lit(0))
    is_confirm = f.col("kind") == int(Kind.CONFIRM)
    row = records.agg(
        f.sum(f.when(is_confirm, size)), f.sum(f.when(f.col("kind") == int(Kind.BATCH), size))
    ).collect()[0]
    return row[0] or 0, row[1] or 0


def _importance(finding: Finding) -> tuple[int, int, str]:
    """Damage first, as it may explain the rest; then by position, the earliest first."""
    return (finding.property != "LOG", finding.position, finding.property)
