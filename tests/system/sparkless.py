"""Every check that needs no Spark, over segments that are parsed in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tools.verify.findings import Finding
from tools.verify.judge import judge_control
from tools.verify.parse import parse_segment
from tools.verify.rows import Row


def rows_in(files: Iterable[Path]) -> list[Row]:
    """Parse segments."""
    return [row for file in files for row in parse_segment(file.read_bytes(), str(file))]


def sparkless_findings(rows: list[Row]) -> list[Finding]:
    """Return what shows without comparing the batches of members; `BadInput` as the check says."""
    return judge_control(rows).findings
