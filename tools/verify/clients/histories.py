"""Clients' histories among the logs at hand, and the extent of the members' history."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broker.memberlog.records import ROLE_CLIENT, RecordKind
from tools.verify.checks.canonical_history import Gap, Stretch, gaps, plan
from tools.verify.checks.views_and_segments import IncarnationId, PrimaryView
from tools.verify.clients.check import ClientReport, check_clients
from tools.verify.clients.lookup import FINDINGS_MAX, HistoryExtent
from tools.verify.findings import BadInput, Finding
from tools.verify.input.rows import FAULT, SEGMENT, Row
from tools.verify.input.segments import HEADER_BYTES, header_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def is_history(path: Path) -> bool:
    """Whether this is a segment of a client; a damaged one counts as a member's."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = header_of(file.read(HEADER_BYTES), str(path))
    except (OSError, EOFError):
        return False
    return header is not None and header.role == ROLE_CLIENT


def split_clients(segments: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return members' segments, and clients'; `BadInput` when there are no members'."""
    client_segments = {path: is_history(path) for path in segments}
    of_members = [path for path in segments if not client_segments[path]]
    if not of_members:
        raise BadInput("these are histories of clients only: name the members' logs as well")
    return of_members, [path for path in segments if client_segments[path]]


class ToldHistory(NamedTuple):
    """The canonical history as far as the files at hand tell it."""

    stretches: list[Stretch]
    extent: HistoryExtent


def told_history(
    rows: Sequence[Row], primaries: dict[int, PrimaryView], segments: Sequence[Path]
) -> ToldHistory:
    """Return what the members' `segments` at hand tell; `rows` are the control rows of all.

    Clients are compared with all that is at hand, settled segments too: what clients did has no
    position by which the part before a verified point could be left out.
    """
    stretches = plan(rows, primaries, {str(path) for path in segments})
    missing = gaps(stretches)
    last = stretches[-1].last if stretches else 0
    recorded = max((row.position or 0 for row in rows if row.kind == SEGMENT), default=0)
    if stretches and recorded > last and plan(rows, primaries)[-1].last > last:
        missing.append(Gap(last + 1, recorded))
    return ToldHistory(stretches, extent_of(rows, missing))


def check_histories(
    scan: DataFrame,
    client_segments: Sequence[Path],
    segments: Sequence[Path],
    settled: Sequence[Path],
    told: ToldHistory,
) -> ClientReport | None:
    """Check clients' histories against the canonical history; None when there is no client.

    `told` is that of the members' `segments`; `scan` has a row for each name of a queue in them,
    but for those that were `settled` before.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    from tools.verify.input.source import read_table

    if not client_segments:
        return None
    spark = scan.sparkSession
    if settled:
        scan = scan.union(read_table(spark, "scan", list(settled)))
    names = scan.filter(f.col("kind") == int(RecordKind.QUEUES)).select(
        f.col("seq").alias("queue"), f.col("text").alias("name")
    )
    clients = read_table(spark, "clients", list(client_segments)).persist(
        StorageLevel.MEMORY_AND_DISK
    )
    history = read_table(spark, "moves", list(segments), told.stretches)
    history = history.persist(StorageLevel.MEMORY_AND_DISK)
    damage = read_table(spark, "scan", list(client_segments)).filter(f.col("kind") == FAULT)
    findings = [
        Finding("LOG", f"{row.member} (a client)", row.incarnation, -1, row.text)
        for row in damage.limit(FINDINGS_MAX).collect()
    ]
    try:
        moves = read_table(spark, "moves", list(segments))
        report = check_clients(clients, moves, history, names.distinct(), told.extent)
        return report._replace(findings=findings + report.findings)
    finally:
        history.unpersist()
        clients.unpersist()


def extent_of(rows: Iterable[Row], gaps: Iterable[Gap]) -> HistoryExtent:
    """Return how much of the history the members' logs hold.

    Its end is known only if the last incarnation of each member stopped in order.
    """
    stopped: dict[str, dict[IncarnationId, bool]] = {}
    for row in rows:
        ended = stopped.setdefault(row.member, {})
        key = row.member, row.incarnation
        ended[key] = ended.get(key, False) or row.kind == RecordKind.STOP
    end = all(ended[max(ended)] for ended in stopped.values())
    missing = list(gaps)
    return HistoryExtent(
        begin=all(gap.first > 1 for gap in missing),
        end=end and bool(stopped),
        whole=all(gap.first == 1 for gap in missing),
    )
