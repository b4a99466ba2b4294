"""Incarnations compared with each other, in histories with real faults: no finding is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.machine.commands import PUBLISH
from broker.memberlog.reader import read_segment
from broker.memberlog.records import Batch, Decided, Snapshot, ViewSeen
from tests.system.verify.corruption.corrupt_logs import at, flipped, position_before
from tests.system.verify.support.checks_without_spark import findings_without_spark, rows_in
from tests.system.verify.support.make_logs import LogMaker, of_three, root_of
from tools.verify.findings import Finding
from tools.verify.input.rows import SEGMENT

A, B, C = ("a", 1), ("b", 1), ("c", 1)


def findings_of(maker: LogMaker, directory: Path) -> list[Finding]:
    maker.write(directory)
    return findings_without_spark(rows_in(sorted(directory.rglob("*.qml"))))


def given_a_state_on_the_way(given: bool, half_given: bool = False) -> LogMaker:
    """b and c miss a primary; c also missed the end of the one before, and receives a state.

    The oracle's seed 215: the state that c received ends before the base of the primary that it
    then enters, because more of the missed primary's items were decided on the way into that one.
    """
    maker = of_three(2)
    maker.leave(C)
    half = maker.item("a", bytes([PUBLISH]), A, B)  # c never applies it
    maker.item("a", bytes([PUBLISH]), A, B)  # nor this one
    if half_given:
        state = Snapshot(1, half.first_position, half.chain, half.root, "a")
        maker.logs[C].append(state)
    maker.leave(A, B)
    maker.view(2, A, B)
    maker.activate(A, B)
    activation = maker.logs[B].pop()  # b is never active in it
    maker.logs[B].pop()
    h = maker.history
    if given:
        maker.logs[C].append(Snapshot(h.epoch, h.position, h.chain, root_of(h), "a"))
    unstable = [maker.item("b", bytes([PUBLISH]), A), maker.item("a", bytes([PUBLISH]), A)]
    maker.leave(A, B)
    maker.logs[B] += [Decided(3), activation, *unstable]
    maker.logs[C] += [Decided(3), *unstable]
    maker.view(3, A, B, C)
    maker.activate(A, B, C)
    maker.traffic(2, A, B, C)
    maker.stop(A, B, C)
    return maker


def test_a_member_with_a_transferred_state_did_not_move_together(tmp_path: Path) -> None:
    assert findings_of(given_a_state_on_the_way(True), tmp_path) == []


def test_damage_may_hide_a_transfer(tmp_path: Path) -> None:
    given_a_state_on_the_way(True).write(tmp_path, 1 << 20)
    (path,) = (tmp_path / "c").iterdir()
    data = path.read_bytes()
    (hit,) = [e for e in read_segment(data, "c") if isinstance(e.record, Snapshot)]
    path.write_bytes(flipped(data, hit.end - 1))
    found = findings_without_spark(rows_in(sorted(tmp_path.rglob("*.qml"))))
    assert {f.property for f in found} == {"LOG"}


@pytest.mark.parametrize("half_given", [False, True])
def test_without_a_transfer_missing_items_are_a_finding(tmp_path: Path, half_given: bool) -> None:
    found = findings_of(given_a_state_on_the_way(False, half_given), tmp_path)
    assert "G2" in {f.property for f in found if f.member == "c"}


def test_a_segment_may_end_amid_a_primarys_items(tmp_path: Path) -> None:
    """Seed 8730034 of the broker stack: correct in one segment, once a finding in two."""
    maker = LogMaker()
    for incarnation in (A, B, C):
        maker.start(incarnation)
    maker.view(1, A, B)
    maker.activate(A, B)
    maker.traffic(2, A, B)
    maker.leave(A, B)
    maker.view(2, A, B, C)
    maker.activate(A, B, C, fresh=(C,))
    maker.logs[C].pop()  # it is not that far yet
    maker.traffic(4, A, B)
    ordered = [record for record in maker.logs[A] if isinstance(record, Batch)]
    maker.logs[C] += [Decided(2), *ordered]
    for segment_bytes, segments in ((1 << 20, 1), (600, 3)):
        files = tmp_path / str(segment_bytes)
        maker.write(files, segment_bytes)
        rows = rows_in(sorted(files.rglob("*.qml")))
        assert findings_without_spark(rows) == []
        assert [row.member for row in rows if row.kind == SEGMENT].count("c") >= segments
    maker.logs[C] = [Decided(1) if isinstance(one, Decided) else one for one in maker.logs[C]]
    for segment_bytes in (600, 1):
        files = tmp_path / f"late {segment_bytes}"
        maker.write(files, segment_bytes)
        found = findings_without_spark(rows_in(sorted(files.rglob("*.qml"))))
        assert "G7" in {one.property for one in found if one.member == "c"}


def test_a_member_with_a_view_in_between_did_not_move_together(tmp_path: Path) -> None:
    maker = given_a_state_on_the_way(True)
    i = at(maker, C, ViewSeen, 1)
    maker.logs[C][i] = ViewSeen(1, "a", False, (A, B, C))
    (found,) = findings_of(maker, tmp_path)
    assert found[:4] == ("G6", "c", 1, position_before(maker, C, i))
    assert "{a/1, b/1} did not come along from view 1.a to 3.a, but by another view" in found.what
