"""Every check that needs no Spark, over segments that are parsed in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tools.verify.checks.canonical_history import gaps, plan
from tools.verify.checks.control_checks import judge_control
from tools.verify.checks.views_and_segments import PrimaryView
from tools.verify.contract.explain import Line, look_around, tell
from tools.verify.contract.job import merge, tasks_for
from tools.verify.contract.message_lifecycle import FateWalk, judge_recoveries
from tools.verify.contract.rules import Breach
from tools.verify.contract.segment import moves_within, walk
from tools.verify.contract.segment_rules import Reach, judge_reaches
from tools.verify.contract.sorting import sort
from tools.verify.findings import Finding
from tools.verify.input.moves import Moves, join
from tools.verify.input.parse import parse_segment
from tools.verify.input.rows import Row
from tools.verify.input.segments import read_bytes, records_in


def rows_in(files: Iterable[Path]) -> list[Row]:
    """Parse segments."""
    return [row for file in files for row in parse_segment(read_bytes(file), str(file))]


def sparkless_findings(rows: list[Row]) -> list[Finding]:
    """Return what shows without comparing the batches of members; `BadInput` as the check says."""
    return judge_control(rows).findings


def contract_findings(rows: list[Row], primaries: dict[int, PrimaryView]) -> list[Finding]:
    """Return what the queue contract says; all segments are walked through and replayed."""
    stretches = plan(rows, primaries)
    tasks = tasks_for(rows, stretches, None)
    told: list[tuple[Breach, int]] = []
    reaches: list[Reach] = []
    parts: list[Moves] = []
    for task in tasks:
        records = list(records_in(task.file))
        following = records_in(task.following) if task.following else ()
        walked = walk(records, following, task.parts, replay=True)
        told += walked.breaches
        reaches += walked.reaches
        parts += moves_within(records, task.parts)
    fates = FateWalk(gap.first << 20 for gap in gaps(stretches))
    fates.take(*sort(join(parts)))
    fates.finish()
    found = [*fates.breaches, *judge_recoveries(fates.recoveries), *judge_reaches(reaches)]
    breaches = merge([*told, *((breach, 1) for breach in found)])
    wanted = [breach for breach, _ in breaches]
    lines: list[Line] = []
    for task in tasks if wanted else ():
        lines += look_around(records_in(task.file), task.parts, wanted)
    return tell(breaches, lines, rows)
