"""The queue contract in Spark: the same findings as without, explained (G11-G13, G20)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("numpy")

from tests.system.verify.corruption.contract_violations import (
    cold_start_loses_a_persistent_one,
    delivered_to_two_at_once,
    older_one_is_overtaken,
    publish_becomes_nothing,
)
from tests.system.verify.support.recorded_history import plain_history
from tests.system.verify.support.spark_session import shared_session
from tools.verify.contract.job import BY_MESSAGE, RULES
from tools.verify.findings import BadInput
from tools.verify.job import CheckOptions, verify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, as the disk is not the subject."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_every_check_examines_a_correct_history(tmp_path: Path) -> None:
    plain_history().write_all(tmp_path)
    report = verify(shared_session(), [tmp_path], CheckOptions())
    assert report.findings == []
    rows = {one.check: one.rows for one in report.checks}
    assert rows.pop("durable at a majority") > 0
    assert rows.pop("votes") == 0  # these machines never disagreed
    assert rows.pop("who is active") == 0  # all took clients
    assert rows.pop("who leads") == 0  # each has its own store
    not_in_it = {"C1 repeats", "H3 expiry", "H3 groups", "H3 kept groups"}
    assert {check for check, count in rows.items() if not count} <= not_in_it
    assert not any("second model" in note for note in report.notes)


def test_violations_in_all_logs_are_found_and_explained(tmp_path: Path) -> None:
    maker = plain_history()
    expected = {
        violation(maker)
        for violation in (
            publish_becomes_nothing, delivered_to_two_at_once, older_one_is_overtaken,
            cold_start_loses_a_persistent_one,
        )
    }  # fmt: skip
    maker.write_all(tmp_path)
    report = verify(shared_session(), [tmp_path])
    for rule, position in expected:
        matching = [
            one
            for one in report.findings
            if (one.property, one.position) == (RULES[rule].promise, position)
            and RULES[rule].sentence in one.what
        ]
        assert matching, f"{rule} at {position}: {[*map(str, report.findings)]}"
        assert "in the log of a, b, c" in matching[0].what
    held = next(one for one in report.findings if one.property == "G13")
    assert held.queue == "/ q"
    assert "by a NACK from b" in held.what
    assert any("DELIVERED" in line for line in held.around)


def test_a_check_that_lost_rows_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_history().write_all(tmp_path)
    lossy = BY_MESSAGE["linked"].replace("BETWEEN 2 AND", "BETWEEN 3 AND")
    monkeypatch.setitem(BY_MESSAGE, "linked", lossy)
    with pytest.raises(BadInput, match="were judged beside one another"):
        verify(shared_session(), [tmp_path])
