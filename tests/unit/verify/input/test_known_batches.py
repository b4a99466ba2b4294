"""A batch that several logs contain is decoded once, and judged in each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.support.verifylogs import write_logs
from tools.verify.input.batch_summaries import BatchDecoder
from tools.verify.input.parse import scan_segment
from tools.verify.input.rows import FAULT, Row, Sums
from tools.verify.input.segments import find_segments

LOGS = 3


def scanned(segments: list[Path], decoder: BatchDecoder | None) -> list[Row | Sums]:
    return [row for one in segments for row in scan_segment(one.read_bytes(), one.name, decoder)]


@pytest.mark.parametrize("known", [7, 1 << 17])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_rows_are_those_of_each_log_alone(tmp_path: Path, seed: int, known: int) -> None:
    write_logs(tmp_path, 3000, seed)
    segments = find_segments([tmp_path])
    assert len(segments) == LOGS
    assert scanned(segments, BatchDecoder(known)) == scanned(segments, None)


def test_the_chain_is_judged_in_each_log(tmp_path: Path) -> None:
    """A log without one batch has the later ones on another chain."""
    write_logs(tmp_path, 300, 1)
    first, second, _ = find_segments([tmp_path])
    data = second.read_bytes()
    cut = [row for row in scan_segment(data, "b") if isinstance(row, Sums)]
    without = data[: cut[0].begins] + data[cut[0].ends :]
    decoder = BatchDecoder(1 << 17)
    list(scan_segment(first.read_bytes(), "a", decoder))
    faults = [row for row in scan_segment(without, "b", decoder) if row.kind == FAULT]
    assert faults == [row for row in scan_segment(without, "b") if row.kind == FAULT]
    assert faults
