"""All checks that need no Spark, over segments that this process parses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tools.verify.checks.control_checks import check_control_rows
from tools.verify.checks.views_and_segments import PrimaryView
from tools.verify.contract.job import check_contract, explain
from tools.verify.coverage import unexamined
from tools.verify.findings import Finding
from tools.verify.input.parse import parse_segment
from tools.verify.input.rows import Row
from tools.verify.input.segments import read_bytes


def rows_in(files: Iterable[Path]) -> list[Row]:
    """Parse segments."""
    return [row for file in files for row in parse_segment(read_bytes(file), str(file))]


def findings_without_spark(rows: list[Row]) -> list[Finding]:
    """Return the findings of all but the comparison of batches; raises `BadInput` as the check
    does."""
    return check_control_rows(rows).findings


def contract_findings(rows: list[Row], primaries: dict[int, PrimaryView]) -> list[Finding]:
    """Return the findings of the queue contract; all segments are checked and replayed."""
    found = check_contract(None, rows, primaries, everywhere=True)
    assert list(unexamined((), found)) == []
    return explain(None, found, rows)
