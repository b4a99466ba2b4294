"""Lies that change more than a single field: each is found, and the right promise is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from tests.system.verify.corruption.further_lies import IN_QUEUES, IN_VIEWS, QueueLie, ViewLie
from tests.system.verify.corruption.more_lies import IN_VIEWS as MORE_IN_VIEWS
from tests.system.verify.support.checks_without_spark import contract_findings, rows_in
from tests.system.verify.support.make_logs import LogMaker, good_history
from tests.system.verify.support.make_moves import MoveMaker
from tests.system.verify.support.recorded_history import plain_history
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.input.rows import UNPAIRED

VIEWS = good_history(4)
QUEUES = plain_history()


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def audit(maker: LogMaker, directory: Path) -> Iterator[tuple[str, int]]:
    """Yield promise and position of all findings, those of the costly queue contract last;
    "unpaired" where Spark must look further."""
    maker.write(directory, 1 << 30)
    rows = rows_in(sorted(directory.rglob("*.qml")))
    control = check_control_rows(rows)
    yield from ((one.property, one.position) for one in control.findings)
    for row in rows:
        if row.kind == UNPAIRED:
            yield "unpaired", (row.positions or [])[0]
    found = contract_findings(rows, control.epochs)
    yield from ((one.property, one.position) for one in found)


@pytest.mark.parametrize("maker", [VIEWS, QUEUES], ids=["views", "queues"])
def test_the_truth_is_consistent(maker: LogMaker, tmp_path: Path) -> None:
    assert list(audit(maker, tmp_path)) == []


@pytest.mark.turns(20)
@pytest.mark.lies
@pytest.mark.parametrize("lie", [*IN_VIEWS, *MORE_IN_VIEWS], ids=lambda lie: lie.__name__)
def test_a_lie_about_views_is_found(lie: ViewLie, tmp_path: Path) -> None:
    maker = VIEWS.copy()
    expected = lie(maker)
    assert expected in audit(maker, tmp_path)


@pytest.mark.turns(5)
@pytest.mark.lies
@pytest.mark.parametrize("lie", IN_QUEUES, ids=lambda lie: lie.__name__)
def test_a_lie_about_queues_is_found(lie: QueueLie, tmp_path: Path) -> None:
    maker = QUEUES.copy()
    assert isinstance(maker, MoveMaker)
    expected = lie(maker)
    assert expected in audit(maker, tmp_path)


def test_there_are_as_many_lies_as_requested() -> None:
    names = [lie.__name__ for lie in (*IN_VIEWS, *MORE_IN_VIEWS, *IN_QUEUES)]
    assert len(set(names)) == len(names) >= 45
