"""Every check that needs no Spark, over segments that are parsed in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tools.verify import control, lives
from tools.verify.findings import Finding
from tools.verify.parse import parse_segment
from tools.verify.rows import Row


def rows_in(files: Iterable[Path]) -> list[Row]:
    """Parse segments."""
    return [row for file in files for row in parse_segment(file.read_bytes(), str(file))]


def sparkless_findings(rows: list[Row]) -> list[Finding]:
    """Return what shows without comparing the batches of members; `BadInput` as the check says."""
    control.check_input(rows)
    joined, found, _ = lives.join_segments(rows)
    epochs = control.primaries(rows)
    found += [said for said in control.check_segments(rows) if isinstance(said, Finding)]
    found += control.check_views(rows)
    found += control.check_primaries(rows)
    found += lives.check_synchrony(rows, joined)
    found += lives.check_next_primary(joined, epochs)
    found += lives.check_majority(joined, epochs)
    return found
