"""Every check that needs no Spark, over segments that are parsed in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tools.verify.conduct import Reach, judge_reaches
from tools.verify.contract import merge, tasks_for
from tools.verify.control import Primary
from tools.verify.fates import FateWalk, judge_recoveries
from tools.verify.findings import Finding
from tools.verify.judge import judge_control
from tools.verify.moves import Moves, join
from tools.verify.parse import parse_segment
from tools.verify.reading import records_in
from tools.verify.rows import Row
from tools.verify.rules import Breach
from tools.verify.segments import read_bytes
from tools.verify.sorting import sort
from tools.verify.telling import Line, look_around, tell
from tools.verify.walk import moves_within, walk
from tools.verify.witness import gaps, plan


def rows_in(files: Iterable[Path]) -> list[Row]:
    """Parse segments."""
    return [row for file in files for row in parse_segment(read_bytes(file), str(file))]


def sparkless_findings(rows: list[Row]) -> list[Finding]:
    """Return what shows without comparing the batches of members; `BadInput` as the check says."""
    return judge_control(rows).findings


def contract_findings(rows: list[Row], primaries: dict[int, Primary]) -> list[Finding]:
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
