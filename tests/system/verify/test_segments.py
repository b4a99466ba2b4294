"""What a life shows must not depend on where its segments end.

No Spark here: segments are parsed and joined in this process, with a cut after every record, after
some, and after none.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.verify.corruption.corrupt_logs import WITHIN_LIVES, Spoil
from tests.system.verify.support.checks_without_spark import rows_in, sparkless_findings
from tests.system.verify.support.make_logs import LogMaker, good_story
from tools.verify.checks import lifetimes, views_and_segments
from tools.verify.findings import Finding
from tools.verify.input.rows import Row

SIZES = [1, 700, 1 << 20]


@pytest.fixture(autouse=True)
def _disk_is_not_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def rows_of(directory: Path) -> list[Row]:
    """Parse all segments below a directory."""
    return rows_in(sorted(directory.rglob("*.qml")))


def findings_of(maker: LogMaker, directory: Path, segment_bytes: int) -> list[Finding]:
    """Write the logs and run every check that needs no Spark."""
    maker.write(directory, segment_bytes)
    return sparkless_findings(rows_of(directory))


@pytest.mark.parametrize("segment_bytes", SIZES)
def test_a_good_story_shows_nothing(tmp_path: Path, segment_bytes: int) -> None:
    assert findings_of(good_story(), tmp_path, segment_bytes) == []


@pytest.mark.parametrize("spoil", WITHIN_LIVES, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("segment_bytes", SIZES)
def test_a_broken_promise_shows_wherever_segments_end(
    tmp_path: Path, spoil: Spoil, segment_bytes: int
) -> None:
    maker = good_story()
    expected = spoil(maker)
    found = findings_of(maker, tmp_path, segment_bytes)
    assert expected in [(f.property, f.member, f.position) for f in found], found


@pytest.mark.parametrize("segment_bytes", [200, 700])
def test_segments_that_were_archived_are_unknown_not_wrong(
    tmp_path: Path, segment_bytes: int
) -> None:
    good_story().write(tmp_path, segment_bytes)
    by_life: dict[str, list[list[Row]]] = {}
    for path in sorted(tmp_path.rglob("*.qml")):
        by_life.setdefault(path.name.rsplit(".", 2)[0], []).append(rows_in([path]))
    for archived in range(1, max(map(len, by_life.values()))):
        for of in ("", "a", "b", "c"):
            rows = [
                row
                for life, segments in by_life.items()
                for segment in (segments[archived:] if life.startswith(of) else segments)
                for row in segment
            ]
            assert sparkless_findings(rows) == []


@pytest.mark.parametrize("segment_bytes", [1, 700])
def test_a_missing_segment_is_named(tmp_path: Path, segment_bytes: int) -> None:
    good_story().write(tmp_path, segment_bytes)
    paths = sorted((tmp_path / "b").iterdir())
    paths[2].unlink()
    found = list(views_and_segments.check_segments(rows_of(tmp_path)))
    assert [f.property for f in found if isinstance(f, Finding)] == ["LOG"]
    assert "segment 2 is missing" in str(found)


def test_confirms_find_their_publish_across_segments(tmp_path: Path) -> None:
    good_story().write(tmp_path, 1)
    joined, _, _ = lifetimes.join_segments(rows_of(tmp_path))
    assert sum(life.unpaired for life in joined) == sum(life.confirms for life in joined) > 0
    good_story().write(tmp_path / "whole", 1 << 20)
    joined, _, _ = lifetimes.join_segments(rows_of(tmp_path / "whole"))
    assert sum(life.unpaired for life in joined) == 0
