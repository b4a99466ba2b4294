"""Durable marks above what a majority had on disk (G9), and cases in which that is unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.memberlog.records import Durable, Inactive
from tests.system.verify.corruption.corrupt_logs import at, last_of_epoch, raise_the_durable_mark
from tests.system.verify.support.checks_without_spark import findings_without_spark, rows_in
from tests.system.verify.support.make_logs import LogMaker, good_history
from tools.verify.findings import Finding

A, B = ("a", 1), ("b", 1)


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def write(maker: LogMaker, directory: Path) -> list[Path]:
    maker.write(directory, 700)
    return sorted(directory.rglob("*.qml"))


def findings_of(paths: list[Path]) -> list[Finding]:
    return findings_without_spark(rows_in(paths))


def test_the_finding_names_the_range_and_the_durable_positions(tmp_path: Path) -> None:
    maker = good_history()
    reached = last_of_epoch(maker, B, Durable, 1)
    assert isinstance(reached, Durable)
    at_most = reached.position
    raise_the_durable_mark(maker)
    (found,) = findings_of(write(maker, tmp_path))
    assert found[:4] == ("G9", "b", 1, at_most + 1)
    assert found.until == at_most + 3
    assert f"is {at_most} at a, {at_most} at b, unknown at c" in found.what


def test_a_member_that_crashed_in_that_primary_may_have_stored_more(tmp_path: Path) -> None:
    maker = good_history()
    raise_the_durable_mark(maker)
    del maker.logs[A][at(maker, A, Inactive) - 1 :]  # with the end of its view
    found = findings_of(write(maker, tmp_path))
    assert [f for f in found if f.property == "G9"] == []


def test_a_member_that_crashed_after_that_view_had_recorded_all(tmp_path: Path) -> None:
    """A mark travels on the token, and the token of that ring is gone."""
    maker = good_history()
    raise_the_durable_mark(maker)
    ends = at(maker, A, Inactive)
    reached = last_of_epoch(maker, A, Durable, 1)
    assert isinstance(reached, Durable)
    maker.logs[A][ends:] = [reached._replace(position=reached.position + 1)]  # no longer missing
    (found,) = [f for f in findings_of(write(maker, tmp_path)) if f.property == "G9"]
    assert f"is {reached.position} at a, {reached.position} at b, unknown at c" in found.what


def test_a_log_without_its_beginning_may_have_recorded_it(tmp_path: Path) -> None:
    """The durable record of a may be in the archived segment."""
    maker = good_history()
    raise_the_durable_mark(maker)
    paths = write(maker, tmp_path)
    assert paths[0].name == "a.1.000000.qml"
    assert findings_of(paths[1:]) == []


def test_a_member_without_the_durable_record_that_it_reported(tmp_path: Path) -> None:
    """Of two remaining members, each must have what both confirm."""
    maker = good_history()
    last = last_of_epoch(maker, B, Durable, 2)
    maker.logs[B] = [record for record in maker.logs[B] if record is not last]
    found = findings_of(write(maker, tmp_path))
    assert {f.property for f in found} == {"G9"}
    assert all(" at b" in f.what for f in found)
