"""Fresh lies that all members tell alike: each is found at its place, with its promise.

So is what a broken broker does, or it is listed among what no log could show.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("duckdb")

from tests.system.verify.corruption.broken_brokers import FAULTS, NO_FAULTS, Fault
from tests.system.verify.corruption.fresh_lies import (
    BROKEN_BY_LIES,
    IN_QUEUES,
    IN_VIEWS,
    QueueLie,
)
from tests.system.verify.corruption.further_lies import ViewLie
from tests.system.verify.corruption.more_lies import IN_QUEUES as SMALL_LIES
from tests.system.verify.corruption.more_lies import SmallLie
from tests.system.verify.support.checks_without_spark import contract_findings, rows_in
from tests.system.verify.support.eventful_history import eventful_history
from tests.system.verify.support.make_logs import good_history
from tests.system.verify.support.make_moves import MoveMaker
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.contract.job import RULES
from tools.verify.contract.rules import Breach


@cache
def _recorded() -> MoveMaker:
    return eventful_history()


def test_the_truth_is_consistent() -> None:
    assert _recorded().breaches() == []


@cache
def _after(lie: QueueLie) -> tuple[tuple[str, int], list[Breach]]:
    """Return the required findings and the actual ones."""
    maker = _recorded().copy()
    assert isinstance(maker, MoveMaker)
    return lie(maker), maker.breaches()


@pytest.mark.lies
@pytest.mark.parametrize("lie", IN_QUEUES, ids=lambda lie: lie.__name__)
def test_a_lie_about_queues_is_found(lie: QueueLie) -> None:
    expected, breaches = _after(lie)
    found = [(RULES[one.rule].promise, one.position) for one in breaches]
    assert expected in found
    assert min(where for _, where in found) == expected[1]


@pytest.mark.lies
@pytest.mark.parametrize("lie", SMALL_LIES, ids=lambda lie: lie.__name__)
def test_a_lie_of_a_small_history_is_found_or_listed(lie: SmallLie) -> None:
    maker, expected = lie()
    found = [(RULES[one.rule].promise, one.position) for one in maker.breaches()]
    assert found[:1] == ([] if expected is None else [expected])


@cache
def _broken_by(fault: Fault) -> tuple[int, list[Breach]]:
    """Return where a broken broker must be found, and the actual findings."""
    maker = MoveMaker()
    with pytest.MonkeyPatch.context() as patch:
        where = fault(maker, patch)
    maker.end()
    return where, maker.breaches()


@pytest.mark.lies
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_broken_broker_is_found_or_listed(fault: Fault) -> None:
    where, breaches = _broken_by(fault)
    found = [(RULES[one.rule].promise, one.position) for one in breaches]
    assert found[:1] == ([(FAULTS[fault], where)] if FAULTS[fault] else [])


@pytest.mark.parametrize("history", NO_FAULTS, ids=lambda history: history.__name__)
def test_nobody_is_accused_of_what_a_broker_may_do(history: Callable[[MoveMaker], None]) -> None:
    maker = MoveMaker()
    history(maker)
    maker.end()
    assert maker.breaches() == []


@pytest.mark.lies
@pytest.mark.parametrize("lie", IN_VIEWS, ids=lambda lie: lie.__name__)
def test_a_lie_about_views_is_found(
    lie: ViewLie, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    maker = good_history(4)
    expected = lie(maker)
    maker.write(tmp_path, 1 << 30)
    rows = rows_in(sorted(tmp_path.rglob("*.qml")))
    control = check_control_rows(rows)
    found = [(one.property, one.position) for one in control.findings]
    if expected not in found:
        contract = contract_findings(rows, control.epochs)
        found += [(one.property, one.position) for one in contract]
    assert expected in found


@pytest.mark.lies
def test_each_new_rule_is_broken_by_a_lie() -> None:
    broken = {one.rule for lie in IN_QUEUES for one in _after(lie)[1]}
    broken |= {one.rule for fault in FAULTS for one in _broken_by(fault)[1]}
    assert BROKEN_BY_LIES - broken == set()
