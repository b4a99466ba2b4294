"""The saved checkpoint: which segments it settles, and that a check from there finds the same."""

from __future__ import annotations

import os
import time
from copy import copy
from pathlib import Path

import pytest

from broker.memberlog.archive import VERIFIED, archive_segments
from broker.memberlog.records import Durable
from broker.memberlog.segments import PACKED, open_segment
from broker.options.retention import Policy
from tests.system.verify.support.make_logs import good_history
from tests.system.verify.test_segments import rows_of
from tools.verify.checks import lifetimes, views_and_segments
from tools.verify.findings import BadInput
from tools.verify.input import segments
from tools.verify.input.parse import parse_segment
from tools.verify.input.rows import SEGMENT, Row, ends_of, in_json
from tools.verify.job import CheckOptions, verify
from tools.verify.live import checkpoint


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def control_rows(directory: Path) -> list[Row]:
    """Return what the driver collects from all segments."""
    return [row for row in rows_of(directory) if row.kind in views_and_segments.CONTROL_KINDS]


def test_continuing_collects_the_same_rows_as_a_full_check(tmp_path: Path) -> None:
    maker = good_history(40)
    a = "a", 1
    maker.logs[a] = [r for r in maker.logs[a] if not (isinstance(r, Durable) and r.position > 200)]
    maker.write(tmp_path / "logs", segment_bytes=2000)
    everything = control_rows(tmp_path / "logs")
    file = tmp_path / "point"
    settled, position = checkpoint.save(file, everything)
    assert position == 200
    assert 4 < settled < len([row for row in everything if row.kind == SEGMENT])
    saved = checkpoint.load(file)
    assert max(row.position or 0 for row in saved if row.kind == SEGMENT) <= position
    left, _ = checkpoint.unread(sorted((tmp_path / "logs").rglob("*.qml")), saved)
    again = saved + [
        row
        for path in left
        for row in parse_segment(path.read_bytes(), str(path))
        if row.kind in views_and_segments.CONTROL_KINDS
    ]
    assert sorted(again, key=repr) == sorted(everything, key=repr)
    assert lifetimes.join_segments(again)[:2] == lifetimes.join_segments(everything)[:2]


def test_positions_that_one_member_lacks_on_disk_are_not_settled(tmp_path: Path) -> None:
    maker = good_history(40)
    b = "b", 1
    maker.logs[b] = [r for r in maker.logs[b] if not isinstance(r, Durable)]
    maker.write(tmp_path / "logs", segment_bytes=2000)
    assert checkpoint.save(tmp_path / "point", control_rows(tmp_path / "logs")) == (0, 0)


def test_an_open_segment_and_what_follows_it_is_not_settled(tmp_path: Path) -> None:
    good_history(40).write(tmp_path / "logs", segment_bytes=2000)
    rows = control_rows(tmp_path / "logs")
    count, _ = checkpoint.save(tmp_path / "point", rows)
    of_a = [row for row in rows if row.kind == SEGMENT and (row.member, row.segment) == ("a", 1)]
    ends = copy(ends_of(of_a[0]))
    ends.closed = False
    opened = [row._replace(text=in_json(ends)) if row == of_a[0] else row for row in rows]
    assert checkpoint.save(tmp_path / "point", opened)[0] < count
    saved = [row for row in checkpoint.load(tmp_path / "point") if row.kind == SEGMENT]
    assert [row.segment for row in saved if row.member == "a"] == [0]


def test_an_archived_segment_may_be_missing(tmp_path: Path) -> None:
    good_history(40).write(tmp_path / "logs", segment_bytes=2000)
    checkpoint.save(tmp_path / "point", control_rows(tmp_path / "logs"))
    saved = checkpoint.load(tmp_path / "point")
    paths = sorted((tmp_path / "logs").rglob("*.qml"))
    left, _ = checkpoint.unread(paths, saved)
    kept = [path for path in paths if path in left]
    assert checkpoint.unread(kept, saved)[0] == kept


def test_a_member_may_drop_only_what_a_checkpoint_settles(tmp_path: Path) -> None:
    maker, a = good_history(40), ("a", 1)
    maker.logs[a] = [r for r in maker.logs[a] if not (isinstance(r, Durable) and r.position > 200)]
    maker.write(tmp_path / "logs", segment_bytes=2000)
    everything = control_rows(tmp_path / "logs")
    count, _ = checkpoint.save(tmp_path / "point", everything)
    policy = Policy(keep_s=1)
    dropped = 0
    for member in "abc":
        directory = tmp_path / "logs" / member
        (directory / VERIFIED).write_bytes((tmp_path / "point").read_bytes())
        done = list(archive_segments(directory, "", policy, time.time() + 9))
        dropped += sum(did.what == "dropped" for did in done)
        assert {did.what for did in done} <= {"compressed", "dropped", "kept unverified"}
    assert dropped == count > 4
    left = [path for path in (tmp_path / "logs").rglob("*.qml*") if path.name != VERIFIED]
    saved = checkpoint.load(tmp_path / "point")
    assert sorted(checkpoint.unread(left, saved)[0]) == sorted(left)
    again = saved + [
        row
        for path in segments.find_segments([tmp_path / "logs"])
        for row in parse_segment(open_segment(path), str(path).removesuffix(PACKED))
        if row.kind in views_and_segments.CONTROL_KINDS
    ]
    assert sorted(again, key=repr) == sorted(everything, key=repr)


@pytest.mark.parametrize("noted", [True, False])
def test_unverified_segments_dropped_after_a_checkpoint_are_reported(
    tmp_path: Path, noted: bool
) -> None:
    """It is a hole only where the member's own account lacks the segment."""
    maker, a = good_history(40), ("a", 1)
    maker.logs[a] = [r for r in maker.logs[a] if not (isinstance(r, Durable) and r.position > 200)]
    maker.write(tmp_path / "logs", segment_bytes=2000)
    point = tmp_path / "point"
    checkpoint.save(point, control_rows(tmp_path / "logs"))
    settled = [row for row in checkpoint.load(point) if row.kind == SEGMENT and row.member == "a"]
    next_one = settled[-1].segment + 1
    directory = tmp_path / "logs" / "a"
    for path in sorted(directory.glob("*.qml"))[: next_one + 1]:
        path.unlink()
    (directory / "dropped").write_text(f'{{"a.1": [{next_one}, 1]}}' if noted else "{}")
    report = verify(None, [tmp_path / "logs"], CheckOptions(since=point))
    holes = [str(one) for one in report.findings]
    if noted:
        assert holes == []
        assert any("1 of them never verified" in note for note in report.notes)
    else:
        assert any(f"segment {next_one} is missing" in one for one in holes)


def test_another_log_in_place_of_a_verified_one_is_refused(tmp_path: Path) -> None:
    good_history(40).write(tmp_path / "logs", segment_bytes=2000)
    checkpoint.save(tmp_path / "point", control_rows(tmp_path / "logs"))
    good_history(40).write(tmp_path / "other", segment_bytes=2000, cluster="c2")
    with pytest.raises(BadInput, match="is not the segment that was verified"):
        checkpoint.unread(
            sorted((tmp_path / "other").rglob("*.qml")), checkpoint.load(tmp_path / "point")
        )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 1, "rows": [1]}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(BadInput, match="is not a verified point"):
        checkpoint.load(tmp_path / "x")


@pytest.mark.parametrize("version", [0, 2])
def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    (tmp_path / "x").write_text(f'{{"version": {version}, "rows": []}}')
    what = f"version {version}; this release reads version 1: check once without --since"
    with pytest.raises(BadInput, match=what):
        checkpoint.load(tmp_path / "x")
    with pytest.raises(BadInput, match="No such file"):
        checkpoint.load(tmp_path / "no")


def test_incarnations_that_are_not_read_from_their_beginning(tmp_path: Path) -> None:
    good_history(40).write(tmp_path, segment_bytes=2000)
    rows = control_rows(tmp_path)
    assert lifetimes.first_positions(rows) == {}
    later = [row for row in rows if not (row.member == "a" and row.segment < 2)]
    found = lifetimes.first_positions(later)
    assert list(found) == [("a", 1)]
    assert 0 < found["a", 1] < 1 << 62
