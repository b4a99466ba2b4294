"""Every check that needs no Spark, over segments that are parsed in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.verify.checks.canonical_history import gaps, plan
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.checks.views_and_segments import PrimaryView
from tools.verify.contract.explain import ContextLine, describe_breaches, find_context
from tools.verify.contract.job import merge, tasks_for
from tools.verify.contract.message_lifecycle import LifecycleCheck, check_recoveries
from tools.verify.contract.rules import Breach
from tools.verify.contract.segment import check_segment, moves_within
from tools.verify.contract.segment_rules import HighWater
from tools.verify.contract.sorting import arrange, split_into_bins
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.moves import Ints, Moves, join
from tools.verify.input.parse import parse_segment
from tools.verify.input.rows import Row
from tools.verify.input.segments import read_bytes, records_in

COMPARED = slice(Row._fields.index("chain"), Row._fields.index("outcomes") + 1)


def rows_in(files: Iterable[Path]) -> list[Row]:
    """Parse segments."""
    return [row for file in files for row in parse_segment(read_bytes(file), str(file))]


def findings_without_spark(rows: list[Row]) -> list[Finding]:
    """Return the findings that need no comparison of batches; `BadInput` as the check raises it."""
    return check_control_rows(rows).findings


def difference_findings(rows: list[Row], cutoffs: dict[int, int]) -> list[Finding]:
    """Return where members differ in what they applied, which the check aggregates in Spark; those
    that went on without a primary are left out.
    """
    first: dict[tuple[int, int], Row] = {}
    found: list[Finding] = []
    for row in rows:
        if row.kind != RecordKind.BATCH or row.flag is False:
            continue
        assert row.last is not None
        assert row.decided is not None
        superseded = row.last > cutoffs.get(row.decided, row.last)
        one = first.setdefault((row.last, row.decided if superseded else 0), row)
        if one[COMPARED] != row[COMPARED]:
            what = f"what was applied up to there differs from {one.file}"
            found.append(Finding("G14", row.member, row.incarnation, row.last, what))
    return found


def contract_findings(rows: list[Row], primaries: dict[int, PrimaryView]) -> list[Finding]:
    """Return the findings of the queue contract; all segments are checked and replayed."""
    stretches = plan(rows, primaries)
    tasks = tasks_for(rows, stretches, everywhere=True)
    breaches_found: list[tuple[Breach, int]] = []
    high_waters: list[HighWater] = []
    moves: list[Moves] = []
    for task in tasks:
        records = list(records_in(task.file))
        following = records_in(task.following) if task.following else ()
        result = check_segment(records, following, task.ranges)
        breaches_found += result.breaches
        high_waters += result.high_waters
        moves += moves_within(records, task.ranges)
    lifecycles = LifecycleCheck(gap.first << 20 for gap in gaps(stretches))
    lifecycles.take(*sort(join(moves)))
    lifecycles.finish()
    found = [
        *lifecycles.breaches,
        *check_recoveries(lifecycles.recoveries),
        *check_high_waters(high_waters),
    ]
    breaches = merge([*breaches_found, *((breach, 1) for breach in found)])
    wanted = [breach for breach, _ in breaches]
    lines: list[ContextLine] = []
    for task in tasks if wanted else ():
        lines += find_context(records_in(task.file), task.ranges, wanted)
    return describe_breaches(breaches, lines, rows)


def check_high_waters(high_waters: Iterable[HighWater]) -> Iterator[Breach]:
    """G12 from one range of the history to the next, which the check does in SQL."""
    highest: dict[tuple[str, int], int] = {}
    for one in sorted(high_waters, key=lambda high_water: high_water.position):
        key = one.what, one.of
        before = highest.get(key, -1)
        if one.first <= before and not (one.what == "published" and one.first == 1):
            yield one.breach()
        restarts = one.what == "published"
        highest[key] = one.highest if restarts else max(before, one.highest)


def sort(moves: Moves) -> tuple[Ints, Moves]:
    """Return all moves sorted, with a single share per queue."""
    return arrange(piece for _, piece in split_into_bins(moves, 1))
