"""Findings must not depend on where segments end.

No Spark: this process parses and joins the segments, with a cut after every record, after some, and
after none.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.verify.corruption.corrupt_logs import WITHIN_INCARNATIONS, Corruption
from tests.system.verify.support.checks_without_spark import findings_without_spark, rows_in
from tests.system.verify.support.make_logs import LogMaker, good_history
from tools.verify.checks import lifetimes, views_and_segments
from tools.verify.findings import Finding
from tools.verify.input.rows import Row

SIZES = [1, 700, 1 << 20]


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def rows_of(directory: Path) -> list[Row]:
    """Parse all segments below a directory."""
    return rows_in(sorted(directory.rglob("*.qml")))


def findings_of(maker: LogMaker, directory: Path, segment_bytes: int) -> list[Finding]:
    """Write the logs and run every check that needs no Spark."""
    maker.write(directory, segment_bytes)
    return findings_without_spark(rows_of(directory))


@pytest.mark.parametrize("segment_bytes", SIZES)
def test_a_correct_history_has_no_findings(tmp_path: Path, segment_bytes: int) -> None:
    assert findings_of(good_history(), tmp_path, segment_bytes) == []


@pytest.mark.parametrize("corrupt", WITHIN_INCARNATIONS, ids=lambda corrupt: corrupt.__name__)
@pytest.mark.parametrize("segment_bytes", SIZES)
def test_a_broken_promise_shows_wherever_segments_end(
    tmp_path: Path, corrupt: Corruption, segment_bytes: int
) -> None:
    maker = good_history()
    expected = corrupt(maker)
    found = findings_of(maker, tmp_path, segment_bytes)
    assert expected in [(f.property, f.member, f.position) for f in found], found


@pytest.mark.parametrize("segment_bytes", [200, 700])
def test_archived_segments_are_unknown_not_wrong(tmp_path: Path, segment_bytes: int) -> None:
    good_history().write(tmp_path, segment_bytes)
    by_incarnation: dict[str, list[list[Row]]] = {}
    for path in sorted(tmp_path.rglob("*.qml")):
        by_incarnation.setdefault(path.name.rsplit(".", 2)[0], []).append(rows_in([path]))
    for archived in range(1, max(map(len, by_incarnation.values()))):
        for of in ("", "a", "b", "c"):
            rows = [
                row
                for one, segments in by_incarnation.items()
                for segment in (segments[archived:] if one.startswith(of) else segments)
                for row in segment
            ]
            assert findings_without_spark(rows) == []


@pytest.mark.parametrize("segment_bytes", [1, 700])
def test_a_missing_segment_is_named(tmp_path: Path, segment_bytes: int) -> None:
    good_history().write(tmp_path, segment_bytes)
    paths = sorted((tmp_path / "b").iterdir())
    paths[2].unlink()
    found = list(views_and_segments.check_segments(rows_of(tmp_path)))
    assert [f.property for f in found if isinstance(f, Finding)] == ["LOG"]
    assert "segment 2 is missing" in str(found)


def test_confirms_find_their_publish_across_segments(tmp_path: Path) -> None:
    good_history().write(tmp_path, 1)
    joined, _, _ = lifetimes.join_segments(rows_of(tmp_path))
    assert sum(one.unpaired for one in joined) == sum(one.confirms for one in joined) > 0
    good_history().write(tmp_path / "whole", 1 << 20)
    joined, _, _ = lifetimes.join_segments(rows_of(tmp_path / "whole"))
    assert sum(one.unpaired for one in joined) == 0
