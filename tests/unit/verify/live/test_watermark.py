"""The follower compares up to the position that all live members reached: that one too, and
nothing behind it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("duckdb")

from broker.memberlog.records import Batch
from tests.system.verify.support.make_logs import LogMaker, good_history
from tools.verify.findings import Finding
from tools.verify.live.follow import Follower

A, B = ("a", 1), ("b", 1)


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def whose_last_item_differs() -> LogMaker:
    """A history in which b computed another state with the last item of all."""
    maker = good_history(2)
    at = max(i for i, one in enumerate(maker.logs[B]) if isinstance(one, Batch))
    last = maker.logs[B][at]
    assert isinstance(last, Batch)
    maker.logs[B][at] = last._replace(root=last.root ^ 1)
    return maker


def followed(logs: Path) -> tuple[list[Finding], int]:
    """Return all findings of a follower, and the position that it verified."""
    follower = Follower([logs], [])
    results = [result for _ in range(5) for result in follower.look()]
    return [one for result in results for one in result.findings], results[-1].progress.verified


def test_the_last_position_of_all_is_compared(tmp_path: Path) -> None:
    maker = whose_last_item_differs()
    maker.write(tmp_path)
    found, verified = followed(tmp_path)
    assert verified == maker.history.position
    assert [(one.property, one.member, one.position) for one in found] == [("G14", "b", verified)]


def test_what_a_live_member_has_not_reached_is_not_compared_yet(tmp_path: Path) -> None:
    maker = whose_last_item_differs()
    at = max(i for i, one in enumerate(maker.logs[A]) if isinstance(one, Batch))
    del maker.logs[A][at:]
    maker.write(tmp_path)
    found, verified = followed(tmp_path)
    assert verified < maker.history.position
    assert found == []
