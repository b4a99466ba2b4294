"""The minority that disagrees about a view or a primary is named, even if it recorded first (G6,
G7).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.memberlog.records import Active, Inactive, Snapshot, ViewSeen
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.make_logs import LogMaker, good_history, of_three, root_of
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.checks.lifetimes import BEYOND_ALL, first_positions
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import Row

A, B, C = ("a", 1), ("b", 1), ("c", 1)


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


def test_logs_that_differ_about_who_came_along_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c crashed on the way: no log of its own says that it came, or did not."""
    maker = of_three()
    for incarnation, came in ((A, (A, B, C)), (B, (A, B))):
        maker.logs[incarnation] += [
            ViewSeen(1, "a", False, came), Inactive("view ended"), ViewSeen(2, "a", True, (A, B, C))
        ]  # fmt: skip
    (found,) = findings_of(maker, tmp_path, monkeypatch)
    assert found[:2] == ("G6", "b")
    assert found.what == "from view 1.a to 2.a came {a/1, b/1} here and {a/1, b/1, c/1} at a"


def test_a_primary_without_any_view_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = of_three()
    maker.logs[B] = [one for one in maker.logs[B] if not isinstance(one, ViewSeen)]
    (found,) = findings_of(maker, tmp_path, monkeypatch)
    assert found[:2] == ("G6", "b")
    assert found.what == "active in view 1.a, which this member never installed"


def one_behind() -> LogMaker:
    """c lacks an item of the first primary, and goes on with the state of the others."""
    maker = of_three()
    maker.traffic(1, A, B)
    maker.leave(A, B, C)
    maker.view(2, A, B, C)
    maker.activate(A, B, C, fresh=(C,))
    held = maker.history
    state = Snapshot(held.epoch, held.position, held.chain, root_of(held), "a")
    maker.logs[C].append(state)
    maker.leave(A, B, C)
    maker.view(3, A, B, C)
    maker.activate(A, B, C)
    maker.stop(A, B, C)
    return maker


def told_in_short_segments(
    maker: LogMaker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Row]:
    """Write each record into a segment of its own, and read them."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    maker.write(directory, 1)
    return rows_in(sorted(directory.rglob("*.qml")))


MEMBERS_COME_AND_GO = [partial(good_history, 1), one_behind]


@pytest.mark.parametrize("history", MEMBERS_COME_AND_GO)
def test_nobody_is_accused_wherever_a_log_begins_or_ends(
    history: Callable[[], LogMaker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first segments were dropped, or a crash lost the last ones: what they had is unknown."""
    rows = told_in_short_segments(history(), tmp_path, monkeypatch)
    for at in sorted({(one.member, one.incarnation, one.segment) for one in rows}):
        if not at[2]:
            continue
        others = [one for one in rows if (one.member, one.incarnation) != at[:2]]
        own = [one for one in rows if (one.member, one.incarnation) == at[:2]]
        begun = check_control_rows([*others, *(one for one in own if one.segment >= at[2])])
        assert begun.findings == []
        assert any(f"the log begins with segment {at[2]};" in note for note in begun.notes)
        ended = check_control_rows([*others, *(one for one in own if one.segment < at[2])])
        assert ended.findings == []


@pytest.mark.parametrize("history", MEMBERS_COME_AND_GO)
def test_a_missing_segment_may_have_what_explains_others(
    history: Callable[[], LogMaker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hole is reported, and nothing is concluded from what is not there: the check said that a
    member had never installed the view of which the hole had the record (G6)."""
    rows = told_in_short_segments(history(), tmp_path, monkeypatch)
    for file in sorted({one.file for one in rows}):
        found = check_control_rows([one for one in rows if one.file != file]).findings
        assert {one.property for one in found} <= {"LOG"}


def test_a_log_without_its_beginning_is_known_from_its_first_item_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = told_in_short_segments(one_behind(), tmp_path, monkeypatch)
    assert first_positions(rows) == {}
    applied = [one for one in rows if one.kind == RecordKind.BATCH and one.member == "b"]
    for before, one in pairwise(applied):
        held = [row for row in rows if row.member != "b" or row.segment > before.segment]
        assert first_positions(held) == {B: one.position}
    held = [row for row in rows if row.member != "b" or row.segment > applied[-1].segment]
    assert first_positions(held) == {B: BEYOND_ALL}


def test_who_receives_a_state_in_a_cold_start_carries_none_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G20: c was in the primary before, and gets the state of the others: nothing of it is lost."""
    for fresh in (False, True):
        maker = of_three()
        maker.leave(A, B, C)
        maker.view(2, A, B, C)
        maker.activate(A, B, C)
        members = (("a", 5, False), ("b", 5, False), ("c", 1, fresh))
        for incarnation in (A, B, C):
            records = maker.logs[incarnation]
            at, active = [(i, r) for i, r in enumerate(records) if isinstance(r, Active)][-1]
            records[at] = active._replace(cold=True, members=members)
        found = findings_of(maker, tmp_path / str(fresh), monkeypatch)
        assert ("G20" in {one.property for one in found}) is not fresh
