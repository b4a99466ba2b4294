"""Closed segments have a closing record, and no record follows it (LOG)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.memberlog.codec import MAGIC, NO_LINK, encode, frame, next_link
from broker.memberlog.reader import read_segment
from broker.memberlog.records import End, Header, Inactive, Record
from tests.system.verify.support.checks_without_spark import findings_without_spark, rows_in
from tests.system.verify.support.make_logs import good_history
from tools.verify.findings import Finding


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Correct logs, each in a few segments."""
    good_history().write(tmp_path, 1800)
    return tmp_path


def findings_of(logs: Path) -> list[Finding]:
    return findings_without_spark(rows_in(sorted(logs.rglob("*.qml"))))


def rewrite(paths: list[Path], number: int, *more: Record) -> Path:
    """Rewrite a log without the END of one segment, or with more records after it."""
    link, lsn = NO_LINK, 0
    for at, path in enumerate(paths):
        records = [entry.record for entry in read_segment(path.read_bytes(), path.name)]
        assert isinstance(records[-1], End)
        if at == number:
            records = [*records, *more] if more else records[:-1]
        out = bytearray(MAGIC)
        for record in records:
            if isinstance(record, Header):
                record = record._replace(prev_link=link)
            payload = encode(lsn, record)
            link, lsn = next_link(link, payload), lsn + 1
            out += frame(payload, link)
        path.write_bytes(out)
    return paths[number]


def test_a_segment_followed_by_another_was_closed(logs: Path) -> None:
    paths = sorted((logs / "b").iterdir())
    path = rewrite(paths, 0)
    found = findings_of(logs)
    assert [f[:3] for f in found] == [("LOG", "b", 1)]
    assert found[0].what == f"{path} has no closing record, but {paths[1]} follows it"


def test_an_orderly_stop_closes_the_last_segment(logs: Path) -> None:
    paths = sorted((logs / "b").iterdir())
    path = rewrite(paths, len(paths) - 1)
    found = findings_of(logs)
    assert [f[:3] for f in found] == [("LOG", "b", 1)]
    assert found[0].what == f"stopped in order, but {path} has no closing record"


def test_a_crash_leaves_no_closing_record(logs: Path) -> None:
    paths = sorted((logs / "c").glob("c.1.*"))
    rewrite(paths, len(paths) - 1)
    assert findings_of(logs) == []


def test_a_torn_closing_record_is_unknown(logs: Path) -> None:
    path = max((logs / "b").iterdir())
    path.write_bytes(path.read_bytes()[:-5])
    assert findings_of(logs) == []


@pytest.mark.parametrize("number", [0, -1])
def test_no_record_follows_a_closing_record(logs: Path, number: int) -> None:
    paths = sorted((logs / "b").iterdir())
    path = rewrite(paths, range(len(paths))[number], Inactive("again"))
    found = findings_of(logs)
    assert {f[:3] for f in found} == {("LOG", "b", 1)}
    assert f"{path} goes on behind its closing record" in [f.what for f in found]
