"""Verdicts of digest votes that do not follow from the states in the logs (G10)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.memberlog.records import Batch, Inactive, Vote
from tests.system.verify.corruption.corrupt_logs import at
from tests.system.verify.support.checks_without_spark import findings_without_spark, rows_in
from tests.system.verify.support.make_logs import IncarnationId, LogMaker, good_history
from tools.verify.findings import Finding

A, B, C, C2 = ("a", 1), ("b", 1), ("c", 1), ("c", 2)


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def findings_of(maker: LogMaker, directory: Path, segment_bytes: int = 1 << 20) -> list[Finding]:
    maker.write(directory, segment_bytes)
    return findings_without_spark(rows_in(sorted(directory.rglob("*.qml"))))


def set_verdict(maker: LogMaker, verdict: str, *logs: IncarnationId, number: int = 0) -> int:
    """Set the verdict of the n-th vote of these incarnations; return the vote's position."""
    position = -1
    for incarnation in logs:
        i = at(maker, incarnation, Vote, number)
        old = maker.logs[incarnation][i]
        assert isinstance(old, Vote)
        position = old.position
        maker.logs[incarnation][i] = old._replace(verdict=verdict)
    return position


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
@pytest.mark.parametrize("word", ["divergent", "undecided"])
def test_one_member_records_another_verdict(tmp_path: Path, word: str, segment_bytes: int) -> None:
    maker = good_history()
    position = set_verdict(maker, word, B)
    found = findings_of(maker, tmp_path, segment_bytes)
    assert {f[:4] for f in found} == {("G10", "b", 1, position)}


@pytest.mark.parametrize("word", ["divergent", "undecided"])
def test_all_record_a_difference_that_did_not_exist(tmp_path: Path, word: str) -> None:
    maker = good_history()
    position = set_verdict(maker, word, A, B, C)
    found = findings_of(maker, tmp_path)
    assert {f[:4] for f in found} == {("G10", incarnation, 1, position) for incarnation in "abc"}
    assert all("held the same state" in f.what for f in found)


def test_a_member_with_a_transferred_state_is_judged_by_the_states(tmp_path: Path) -> None:
    """It did not count all votes, but the states of all voters are known."""
    maker = good_history()
    position = set_verdict(maker, "divergent", C2, number=0)
    assert [f[:4] for f in findings_of(maker, tmp_path)] == [("G10", "c", 2, position)]


def test_an_unknown_verdict(tmp_path: Path) -> None:
    maker = good_history()
    position = set_verdict(maker, "fine", A, B, C)
    found = findings_of(maker, tmp_path)
    assert {f[:4] for f in found} == {("G10", incarnation, 1, position) for incarnation in "abc"}


def test_a_real_difference_is_no_finding_about_votes(tmp_path: Path) -> None:
    """c had another state, and all members record it: the fault is in c's state, which Spark
    compares."""
    maker = good_history()
    set_verdict(maker, "divergent", A, B, C)
    for i, record in enumerate(maker.logs[C]):
        if isinstance(record, Batch):
            maker.logs[C][i] = record._replace(root=record.root ^ 1)
    assert findings_of(maker, tmp_path) == []


def test_a_crash_may_cut_off_verdicts(tmp_path: Path) -> None:
    """a and b record an agreement, then a late voter with another value; c crashed in between."""
    maker = good_history()
    for incarnation in (A, B):
        i = at(maker, incarnation, Vote)
        old = maker.logs[incarnation][i]
        assert isinstance(old, Vote)
        maker.logs[incarnation].insert(i + 1, old._replace(verdict="divergent"))
    del maker.logs[C][at(maker, C, Vote) :]
    assert findings_of(maker, tmp_path) == []


def test_votes_decided_between_two_primaries_are_left_out(tmp_path: Path) -> None:
    maker = good_history()
    i = at(maker, B, Inactive) + 1
    vote = maker.logs[B][at(maker, B, Vote)]
    assert isinstance(vote, Vote)
    maker.logs[B].insert(i, vote._replace(verdict="undecided"))
    assert findings_of(maker, tmp_path) == []
