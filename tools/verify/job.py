"""The full check: read the logs, run every check, count what was examined."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.verify import absent_logs
from tools.verify.checks import (
    confirms,
    difference_search,
    digest_votes,
    lifetimes,
    views_and_segments,
)
from tools.verify.checks.control_checks import ControlResult, check_control_rows, overtaken_in
from tools.verify.clients import histories
from tools.verify.coverage import measure_coverage, unexamined
from tools.verify.findings import BadInput, Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.segments import Dropped, mark_dropped, pinned_segments, size_of
from tools.verify.live import checkpoint
from tools.verify.report.result import Counts, Report
from tools.verify.report.timeline import build_timeline
from tools.verify.sql.kept import Kept, computed_once, read_kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CheckOptions:
    timeline: bool = False  # also build a timeline, for pictures
    since: Path | None = None  # a saved checkpoint to begin from
    save: Path | None = None  # where to save the checkpoint that was reached
    export: Path | None = None  # a new directory for the records as Parquet
    everywhere: bool = False  # the queue contract in the logs of all members


class LogsAtHand(NamedTuple):
    segments: list[Path]  # of members, to be checked
    settled: list[Path]  # of members, verified before
    of_clients: list[Path]


def verify(
    spark: SparkSession | None, places: list[Path], options: CheckOptions = CheckOptions()
) -> Report:
    """Check the logs at `places`, as they are now, without Spark in this process; `BadInput` when
    there can be no verdict.
    """
    with pinned_segments(places) as (found, dropped):
        report = _verify_segments(spark, found, dropped, options)
        report.notes += dropped.notes
        return report


def _verify_segments(
    spark: SparkSession | None, files: list[Path], dropped: Dropped, options: CheckOptions
) -> Report:
    segments, client_segments = histories.split_clients(files)
    found = list(segments)
    saved: list[Row] = []
    if options.since is not None:
        segments, saved = checkpoint.unread(found, checkpoint.load(options.since))
        if not segments:
            raise BadInput(f"there is nothing newer than {options.since} in these logs")
    with computed_once(read_kept(spark, "scan", segments)) as scan:
        read = list(mark_dropped(_collect_control_rows(scan), dropped))
        if overtaken := overtaken_in(read):
            silent = {
                row.file for row in read if views_and_segments.incarnation_in(row) in overtaken
            }
            left = [one for one in files if str(one) not in silent]
            report = _verify_segments(spark, left, dropped, options)
            report.notes += overtaken.values()
            return report
        logs = LogsAtHand(segments, [one for one in found if one not in segments], client_segments)
        report, rows = _verify(spark, scan, read, logs, saved, options)
        if options.since is not None:
            report.notes.append(_skipped(logs))
        if options.save is not None:
            report.notes.append(_save(options.save, report, rows))
        if options.export is not None:
            assert spark is not None
            report.notes.append(_export(spark, rows, options.export))
        return report


def _skipped(logs: LogsAtHand) -> str:
    what = f"{len(logs.settled)} segments were verified before and not read again"
    return f"{what}, but for the comparison with clients" if logs.of_clients else what


def _save(path: Path, report: Report, rows: list[Row]) -> str:
    if not report.consistent:
        return f"{path} was not written: what is not consistent is no point to begin from"
    settled, position = checkpoint.save(path, rows)
    return f"{path}: {settled} segments need not be read again; all members have {position} on disk"


def _export(spark: SparkSession, rows: list[Row], directory: Path) -> str:
    """Write the records of all segments as Parquet, partitioned by member and incarnation."""
    from pyspark.sql import functions as f

    from tools.verify.input.source import read_table

    files = [row.file for row in rows if row.kind == SEGMENT]
    records = read_table(spark, "records", [Path(file) for file in files])
    kept = records.filter(f.col("kind") < SEGMENT)
    kept.write.partitionBy("member", "incarnation").parquet(str(directory))
    return f"{directory}: the records of {len(files)} segments as Parquet"


def _verify(
    spark: SparkSession | None,
    scan: Kept,
    read: list[Row],
    logs: LogsAtHand,
    saved: list[Row],
    options: CheckOptions,
) -> tuple[Report, list[Row]]:
    """Run all checks; return the report, and all control rows."""
    from tools.verify.contract import job as contract
    from tools.verify.contract.segment import ALL_TIME, Slices

    segments = logs.segments
    rows = saved + read
    control = check_control_rows(rows)
    begins = lifetimes.first_positions(read)
    settled = [row.position or 0 for row in saved if row.kind == SEGMENT]
    begin = max([p for p in begins.values() if p < lifetimes.BEYOND_ALL] + settled, default=0)
    batches, positions, differences = difference_search.compare_members(spark, scan, control, begin)
    if not batches and not saved:
        raise BadInput("the logs hold no batch: nothing was applied, so nothing can be shown")
    findings = control.evidence + differences + control.views
    if any(one.unpaired for one in control.incarnations):
        findings += confirms.check_unpaired(scan, begins)
    findings += confirms.check_gaps(lambda: read_kept(spark, "records", segments), findings)
    timeline = build_timeline(scan, rows) if options.timeline else None
    contract_result = contract.check_contract(
        spark, read, control.epochs, everywhere=options.everywhere,
        slices=ALL_TIME if timeline is None else Slices(timeline.begin_us, timeline.slice_us),
    )  # fmt: skip
    if timeline is not None:
        timeline.count_moves(contract_result.traffic)
    for lack in unexamined(control.incarnations, contract_result):
        raise BadInput(f"the check itself failed: {lack}")
    findings += contract.explain(spark, contract_result, read)
    notes = [*control.notes, *contract.limits(contract_result, saved)]
    checks = measure_coverage(rows, control.incarnations, batches, contract_result)
    all_segments = segments + logs.settled
    absent = absent_logs.find_absent(rows)
    client_report = histories.check_histories(
        spark, scan, logs.of_clients, all_segments, logs.settled,
        histories.told_history(rows, control.epochs, all_segments, absent=bool(absent.members)),
    )  # fmt: skip
    if client_report is not None:
        findings += client_report.findings
        notes += client_report.notes
        checks += client_report.coverage()
    findings.sort(key=_importance)
    if not findings and not absent.enough:
        raise BadInput(absent.reason())
    notes = absent.notes() + notes
    counts = _count(segments, rows, control, batches, positions)
    return Report(counts, findings, notes, timeline, client_report, checks), rows


def _collect_control_rows(scan: Kept) -> list[Row]:
    """Collect the rows that grow with views and segments, and the votes of disputed positions."""
    kinds = ", ".join(str(int(kind)) for kind in views_and_segments.CONTROL_KINDS)
    vote, agreed = f"kind = {int(RecordKind.VOTE)}", f"text = '{digest_votes.AGREED}'"
    rows = _rows(scan, f"kind IN ({kinds}) OR {vote} AND NOT {agreed}")
    if voted := digest_votes.disputed_positions(rows):
        rows += _rows(scan, f"{vote} AND {agreed} AND position IN ({', '.join(map(str, voted))})")
    return rows


def _rows(scan: Kept, condition: str) -> list[Row]:
    found = scan.ask(f"SELECT {', '.join(Row._fields)} FROM kept WHERE {condition}")
    rows = [Row(**row) for row in found.to_pylist()]
    return sorted(rows, key=lambda row: row.file)  # of one file, as they were written


def _count(
    segments: list[Path], rows: list[Row], control: ControlResult, batches: int, positions: int
) -> Counts:
    views = {views_and_segments.ring_of(r) for r in rows if r.kind == RecordKind.VIEW and r.flag}
    return Counts(
        members=len({one.member for one in control.incarnations}),
        lives=len(control.incarnations),
        segments=len(segments),
        bytes=sum(map(size_of, segments)),
        records=sum(one.records for one in control.incarnations),
        batches=batches,
        positions=positions,
        publishes=sum(one.publishes for one in control.incarnations),
        confirms=sum(one.confirms for one in control.incarnations),
        views=len(views),
        epochs=len(control.epochs),
    )


def _importance(finding: Finding) -> tuple[bool, int, str]:
    """Damage first, because it may explain the rest; then by position, the earliest first."""
    return (finding.property != "LOG", finding.position, finding.property)
