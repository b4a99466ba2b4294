"""Every check that needs no Spark, over segments that are parsed in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tools.verify.checks.control_checks import ControlResult, check_control_rows
from tools.verify.checks.views_and_segments import PrimaryView
from tools.verify.contract.job import check_contract, explain
from tools.verify.coverage import unexamined
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.parse import parse_segment
from tools.verify.input.rows import Row
from tools.verify.input.segments import read_bytes

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
    found = check_contract(None, rows, primaries, everywhere=True)
    assert list(unexamined((), found)) == []
    return explain(None, found, rows)


def all_findings(rows: list[Row], control: ControlResult) -> list[Finding]:
    """Return what the check finds in members' logs, be they small or large."""
    found = control.findings + difference_findings(rows, control.cutoffs)
    return found + contract_findings(rows, control.epochs)
