"""A chain of checks, each since the one before, over logs that grow: none may find anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.verify.support.growing_logs import GrowingCluster
from tools.verify.job import CheckOptions, verify

STEPS = 20


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_checks_in_a_row_find_nothing(tmp_path: Path) -> None:
    """With clients, whose histories are complete, while settled segments are left out (issue
    16)."""
    cluster, point = GrowingCluster(tmp_path / "logs"), None
    read: list[int] = []
    for number in range(1, STEPS + 1):
        for _ in range(8):
            cluster.publish()
        for _ in range(6):
            cluster.take()
        if number % 6 == 0:
            cluster.lose_consumer()
        elif number % 3 == 0:
            cluster.activate()
        cluster.step()
        options = CheckOptions(since=point, save=tmp_path / f"point-{number}")
        report = verify(None, [tmp_path / "logs"], options)
        assert report.findings == [], f"check {number}"
        assert report.clients is not None
        read.append(report.counts.segments)
        point = options.save
    assert max(read) <= 2 * len(cluster.members) + 3 < 3 * STEPS, "settled segments are left out"
    cluster.writes.published(cluster.published + 1, b"never sent")
    cluster.writes.confirmed(cluster.published + 1)
    cluster.publish()
    cluster.step()
    found = verify(None, [tmp_path / "logs"], CheckOptions(since=point)).findings
    assert {one.property for one in found} == {"G8"}
