"""Clients' histories among the given logs, and the extent of the members' history."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.verify.checks.canonical_history import Gap, Stretch, gaps, plan, superseded
from tools.verify.checks.lifetimes import all_ended
from tools.verify.checks.views_and_segments import (
    IncarnationId,
    PrimaryView,
    incarnation_of,
    segments_of,
    stopped_in,
)
from tools.verify.clients.check import ClientReport, check_clients
from tools.verify.clients.evidence import EvidenceFile, HistoryExtent, read_evidence
from tools.verify.findings import BadInput
from tools.verify.format.files import first_bytes
from tools.verify.format.records import ROLE_CLIENT, Header, RecordKind
from tools.verify.input.ranges_of_file import FileRange
from tools.verify.input.rows import FAULT, SEGMENT, Row, ends_of
from tools.verify.input.segments import HEADER_BYTES, count_rows, header_of
from tools.verify.input.tables import Unsure, table_of
from tools.verify.input.voters import read_voters
from tools.verify.sql.exchange import ROWS_IN_BIN, Exchange, Tables
from tools.verify.sql.kept import Kept, read_kept

_FOREIGN_TOLD = 3
_NAMED = f"SELECT DISTINCT seq, origin, text FROM kept WHERE kind = {int(RecordKind.QUEUES)}"

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_header(path: Path) -> Header | None:
    """Return the header of a segment; None: it cannot be read."""
    try:
        return header_of(first_bytes(path, HEADER_BYTES), str(path))
    except (OSError, EOFError, zlib.error):
        return None


def split_clients(segments: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return members' segments, and clients'; a damaged one counts as a member's.

    Raises `BadInput` when there are none of members, and for clients of another cluster.
    """
    headers = {path: read_header(path) for path in segments}
    of_clients = {
        path: header for path, header in headers.items() if header and header.role == ROLE_CLIENT
    }
    of_members = [path for path in segments if path not in of_clients]
    if not of_members:
        raise BadInput("these are histories of clients only: name the members' logs as well")
    _refuse_foreign(of_clients, [one for path in of_members if (one := headers[path])])
    return of_members, list(of_clients)


def _refuse_foreign(of_clients: dict[Path, Header], of_members: Sequence[Header]) -> None:
    """Raise `BadInput` for histories of clients of another cluster, which nothing here can explain.

    Names of clusters are reused, so the id decides if both sides know one.
    """
    ids = {one.cluster_id for one in of_members if one.cluster_id}
    names = {one.cluster_name for one in of_members if one.cluster_name}
    foreign = [
        f"{path} is of {one.cluster_name} {one.cluster_id}".rstrip()
        for path, one in of_clients.items()
        if (
            one.cluster_id not in ids
            if one.cluster_id and ids
            else one.cluster_name and names and one.cluster_name not in names
        )
    ]
    if foreign:
        more = f" and {len(foreign) - _FOREIGN_TOLD} more" if len(foreign) > _FOREIGN_TOLD else ""
        known = ", ".join([*sorted(names), *sorted(ids)])
        raise BadInput(
            f"the members are of {known}, and these clients of another "
            f"cluster: {'; '.join(foreign[:_FOREIGN_TOLD])}{more}; leave their histories out"
        )


class ToldHistory(NamedTuple):
    """The canonical history as far as the available files tell it."""

    stretches: list[Stretch]
    extent: HistoryExtent
    unsure: Unsure  # further confirms that members may have sent


def told_history(
    rows: Sequence[Row],
    primaries: dict[int, PrimaryView],
    segments: Sequence[Path],
    *,
    absent: bool = True,
) -> ToldHistory:
    """Return the history that the members' `segments` tell; `rows` are all control rows.

    `absent`: there may be members without an available log.

    Clients are compared with everything available, including settled segments: a client's
    operations have no position by which the part before a verified point could be left out.
    """
    files = {str(path) for path in segments}
    stretches = plan(rows, primaries, files)
    missing = gaps(stretches)
    last = stretches[-1].last if stretches else 0
    recorded = max((row.position or 0 for row in rows if row.kind == SEGMENT), default=0)
    if stretches and recorded > last and plan(rows, primaries)[-1].last > last:
        missing.append(Gap(last + 1, recorded))
    extent = extent_of(rows, missing)
    unsure: Unsure | None = None
    if extent.from_start and not absent:
        unsure = unsure_confirms(rows, primaries, files)
    extent = extent._replace(
        confirms=unsure is not None,
        sole=not absent and not superseded(rows, primaries),
        lost_ends=_lost_ends(rows, primaries),
    )
    return ToldHistory(stretches, extent, unsure or {})


def check_histories(
    spark: SparkSession | None,
    scan: Kept,
    client_segments: Sequence[Path],
    segments: Sequence[Path],
    settled: Sequence[Path],
    told: ToldHistory,
) -> ClientReport | None:
    """Check clients' histories against the canonical history; None if there is no client.

    `told` is the history of the members' `segments`; `scan` has a row for each name of a queue in
    them, except in those that were `settled` before.
    """
    if not client_segments:
        return None
    kept = [scan]
    if settled:
        kept.append(read_kept(spark, "scan", list(settled)))
    named = {tuple(row.values()) for one in kept for row in one.ask(_NAMED).to_pylist()}
    numbers = sorted({(number, name) for number, _, name in named})
    names = table_of(numbers, "queue bigint, name string")
    ranges: dict[str, list[FileRange]] = {str(file): [] for file in segments}
    for stretch in told.stretches:
        ranges[stretch.file].append(stretch.file_range)
    of_clients = [EvidenceFile(str(file), True) for file in client_segments]
    of_members = [EvidenceFile(file, False, some, told.unsure) for file, some in ranges.items()]
    whole = [EvidenceFile(file, False) for file in ranges]

    def run(exchange: Exchange, everywhere: bool) -> Tables:
        return exchange.run(spark, whole if everywhere else of_clients + of_members, read_evidence)

    extent = told.extent._replace(routes=len({vhost for _, vhost, _ in named}) == 1)
    sources = {stretch.file for stretch in told.stretches}
    bins = -(-count_rows([*client_segments, *sources]) // ROWS_IN_BIN)  # each fits into memory
    return check_clients(run, names, extent, bins)


def extent_of(rows: Sequence[Row], gaps: Iterable[Gap]) -> HistoryExtent:
    """Return how much of the history the members' logs hold.

    Its end is known only if the last incarnation of each member stopped in order.
    """
    firsts = [gap.first for gap in gaps]
    complete = all(first == 1 for first in firsts)
    return HistoryExtent(1 not in firsts, bool(rows) and all_ended(rows), complete)


def unsure_confirms(
    rows: Sequence[Row], primaries: dict[int, PrimaryView], files: Container[str]
) -> Unsure | None:
    """Return where the files may lack confirms of members; None: anywhere.

    A member writes to its clients before it records that, so confirms sent just before it was
    killed, or its power failed, are not in its log. It confirms its submissions in the order of
    positions. If a member ended without STOP, its confirms above the last recorded one are unsure,
    in all epochs that it was in, and in those whose members no log names.
    """
    if any(row.kind == FAULT for row in rows):
        return None
    by_incarnation = segments_of(rows)
    if not by_incarnation.keys() >= _logging(primaries):
        return None
    stopped = stopped_in(rows)
    ended: dict[IncarnationId, int] = {}  # the last confirm
    epochs = set(primaries)
    for incarnation, of in by_incarnation.items():
        if {row.segment for row in of} != set(range(len(of))):
            return None
        if not all(row.file in files for row in of):
            return None
        sums = [ends_of(row).epochs for row in of]
        epochs.update(*sums)
        if incarnation not in stopped:
            ended[incarnation] = max(
                (one.confirmed for some in sums for one in some.values()), default=-1
            )
    unsure: dict[tuple[str, int], int] = {}
    for epoch in epochs:
        view = primaries.get(epoch)
        there = ended.keys() if view is None else set(map(incarnation_of, view.members))
        for member, number in there & ended.keys():
            last = ended[member, number]
            unsure[member, epoch] = min(last, unsure.get((member, epoch), last))
    return unsure


def _lost_ends(rows: Sequence[Row], primaries: dict[int, PrimaryView]) -> bool:
    """Return whether members may have sent clients messages that neither a log nor a later primary
    has: a member ended without STOP, and the next primary was a cold start, in which no member
    carried over a state.

    Messages that are safe in a view are applied and sent to consumers before they are durable, and
    the end of a log is lost with the power.
    """
    stopped = stopped_in(rows)
    known = sorted(primaries)
    return any(
        primaries[after].cold
        for epoch, after in pairwise(known)
        for member in primaries[epoch].members
        if incarnation_of(member) not in stopped
    )


def _logging(primaries: dict[int, PrimaryView]) -> set[IncarnationId]:
    """Return the members of a primary, without arbitrators, which keep no log."""
    return {
        incarnation_of(name)
        for view in primaries.values()
        for name in view.members
        if incarnation_of(name)[0] not in read_voters(view.voters).arbitrators
    }
