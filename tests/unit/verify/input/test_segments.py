"""Which segments are read, and how they are shared out among tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.verify.findings import BadInput
from tools.verify.input.segments import TASK_BYTES, dropped_before, find_segments, share_out


def sized(directory: Path, *sizes: int) -> list[Path]:
    """Make files of these sizes, without writing them."""
    paths = []
    for number, size in enumerate(sizes):
        path = directory / f"a.1.{number:06d}.qml"
        with path.open("wb") as file:
            file.truncate(size)
        paths.append(path)
    return paths


def test_directories_files_and_globs_each_file_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "memberlog").mkdir(parents=True)
        sized(tmp_path / name / "memberlog", 1, 1)
    (tmp_path / "two" / "other.txt").write_text("x")
    everything = sorted(tmp_path.rglob("*.qml"))
    assert find_segments([tmp_path]) == everything
    assert find_segments([tmp_path / "*" / "memberlog"]) == everything
    assert find_segments([tmp_path / "one" / "memberlog" / "*.000001.qml"]) == [everything[1]]
    assert find_segments([tmp_path, tmp_path / "one", everything[0]]) == everything


@pytest.mark.parametrize("place", ["no", "no*", "empty"])
def test_a_place_without_logs_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"does not exist|there is no member log"):
        find_segments([tmp_path / place])


def test_small_segments_share_a_task_and_large_ones_have_their_own(tmp_path: Path) -> None:
    half = TASK_BYTES // 2
    paths = sized(tmp_path, half, half, half, 4 * TASK_BYTES, half)
    shares = share_out(paths, 1)
    assert [len(share) for share in shares] == [2, 1, 1, 1]
    assert [path for share in shares for path in share] == paths


def test_few_bytes_are_still_shared_among_the_cores(tmp_path: Path) -> None:
    paths = sized(tmp_path, *[1000] * 40)
    assert len(share_out(paths, 4)) == 4
    assert len(share_out(paths[:1], 4)) == 1
    assert len(share_out(sized(tmp_path, 0, 0), 4)) == 1


def test_what_members_dropped_is_said(tmp_path: Path) -> None:
    sized(tmp_path, 1, 1)
    assert dropped_before(find_segments([tmp_path])) == []
    note = tmp_path / "dropped"
    note.write_text('{"a_5672.1": [4, 2], "a_5672.2": [0, 0]}')
    first, second = dropped_before(find_segments([tmp_path]))
    assert first.startswith("a_5672 (incarnation 1): segments up to 4 were dropped")
    assert "2 of them never verified" in first
    assert "all of them verified" in second
    note.write_text("[1]")
    (what,) = dropped_before(find_segments([tmp_path]))
    assert "does not say what was dropped" in what
