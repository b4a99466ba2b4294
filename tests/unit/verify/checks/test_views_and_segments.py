"""The minority that disagrees about a view or a primary is named, even if it recorded first (G6,
G7).
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.memberlog.records import Active, ViewSeen
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.make_logs import LogMaker, good_history
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.findings import Finding

A, C = ("a", 1), ("c", 1)


def findings_of(maker: LogMaker, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Return the findings in the control records."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    maker.write(directory, 1 << 20)
    return check_control_rows(rows_in(sorted(directory.rglob("*.qml")))).findings


@pytest.mark.parametrize("incarnation", [A, C])
def test_the_minority_about_a_view_is_named(
    incarnation: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = good_history(3)
    records = maker.logs[incarnation]
    at, seen = next((i, r) for i, r in enumerate(records) if isinstance(r, ViewSeen))
    members = [*seen.members, ("d", 1)]
    records[at] = seen._replace(members=tuple(members))
    found = [one for one in findings_of(maker, tmp_path, monkeypatch) if one.property == "G6"]
    assert [one.member for one in found] == [incarnation[0]]
    assert "d/1" in found[0].what


@pytest.mark.parametrize("incarnation", [A, C])
def test_the_minority_about_a_primary_is_named(
    incarnation: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = good_history(3)
    records = maker.logs[incarnation]
    at, active = next((i, r) for i, r in enumerate(records) if isinstance(r, Active))
    records[at] = active._replace(voters=("a", "b", "c", "x"))
    found = [one for one in findings_of(maker, tmp_path, monkeypatch) if one.property == "G7"]
    assert {one.member for one in found} == {incarnation[0]}
    assert "a second primary in epoch 1" in found[0].what
