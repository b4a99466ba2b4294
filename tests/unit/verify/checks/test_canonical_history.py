"""Canonical history: which file is the source of which positions, where logs hold several
histories.

Each case was a false finding in the logs of a simulated cluster.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.machine import commands as c
from broker.memberlog.records import (
    Active,
    Batch,
    Checkpoint,
    ConfirmRecord,
    Decided,
    Durable,
    Inactive,
    Queues,
    RecordKind,
    Snapshot,
    Start,
    ViewSeen,
)
from broker.replication.chain import History
from tests.system.verify.support.checks_without_spark import (
    contract_findings,
    findings_without_spark,
    rows_in,
)
from tests.system.verify.support.make_logs import LogMaker, root_of
from tests.system.verify.support.make_moves import INCARNATIONS, MoveMaker
from tools.verify.checks.canonical_history import Gap, Stretch, epoch_bounds, gaps, plan
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.checks.views_and_segments import PrimaryView
from tools.verify.findings import Finding
from tools.verify.input.ranges_of_file import ANY
from tools.verify.input.rows import SEGMENT, EpochSums, Row, Run, SegmentEnds, in_json
from tools.verify.job import verify

LONG, SHORT = b"l" * 16, b"s" * 16


def segment(
    member: str, *runs: tuple[int, ...], ordered: dict[int, int] | None = None, incarnation: int = 1
) -> Row:
    """Return the row of a segment with these runs. `decided` gives by epoch the first position that
    was ordered in it after another epoch had decided that position."""
    ends = SegmentEnds()
    ends.runs = [Run(first, last, decided, ANY) for first, last, decided in runs]
    for epoch, first in (ordered or {one[2]: one[0] for one in runs}).items():
        ends.epochs[epoch] = EpochSums(first, first)
    row = Row(f"{member}.{incarnation}.qml", member, incarnation, 0, 9, SEGMENT)
    return row._replace(text=in_json(ends))


def start(member: str, position: int, chain: bytes, epoch: int) -> Row:
    """Return the row of an incarnation that started with this state."""
    row = Row(f"{member}.2.qml", member, 2, 0, 1, RecordKind.START, epoch=epoch, position=position)
    return row._replace(chain=chain)


def primary(epoch: int, base: int, chain: bytes) -> PrimaryView:
    """Return a primary that started from this state."""
    return PrimaryView(epoch, epoch, "a", base, chain, ("a/2",), ("a", "b", "c"), False)


def test_a_bypassed_epoch_is_no_source() -> None:
    """Oracle seed 267: a went on to 74 alone, b and c started again from 48, then a's history
    survived."""
    primaries = {8: primary(8, 46, b""), 10: primary(10, 48, SHORT), 11: primary(11, 74, LONG)}
    rows = [segment("a", (1, 48, 8), (75, 80, 11)), segment("b", (1, 48, 8), (49, 49, 10))]
    unknown = plan(rows, primaries)
    assert Stretch("b.1.qml", 49, 49) in unknown
    rows.append(start("a", 74, LONG, 8))
    planned = plan(rows, primaries)
    assert planned == [Stretch("a.1.qml", 1, 48), Stretch("a.1.qml", 75, 80)]
    assert gaps(planned) == [Gap(49, 74)]
    rows[-1] = start("a", 74, LONG, 10)  # a state of epoch 10 includes what epoch 9 ordered
    assert plan(rows, primaries) == unknown


def test_a_first_epoch_of_which_nothing_is_left_is_superseded() -> None:
    """Broker seed 630007: a started a cluster alone in epoch 3, lost all of it before it was on
    disk, and started again in epoch 4. Both epochs begin at 1 and were compared with each other."""
    rows = [segment("a", (1, 14, 3), incarnation=4), segment("a", (1, 11, 4), incarnation=9)]
    bounds = epoch_bounds(rows, {})
    assert bounds.bases == {3: 0, 4: 0}
    assert bounds.cutoffs == {3: 0}
    assert plan(rows, {}) == [Stretch(rows[1].file, 1, 11)]


def test_an_epoch_without_active_records_began_before_its_activation() -> None:
    """Oracle seed 1228: b went on alone to 564 in epoch 9. a and c, at 556, ordered the activation
    of epoch 11 at 557 and lost their view; the primary of epoch 18 decided it."""
    primaries = {9: primary(9, 474, SHORT), 18: primary(18, 557, LONG)}
    rows = [
        segment("a", (475, 556, 9)),
        segment("b", (475, 564, 9)),
        segment("a", (557, 635, 18), ordered={11: 557, 18: 558}, incarnation=2),
    ]
    bounds = epoch_bounds(rows, primaries)
    assert bounds.bases == {9: 474, 11: 556, 18: 557}
    assert bounds.cutoffs == {9: 556, 11: 557}
    a, b, c = (row.file for row in rows)
    planned = plan(rows, primaries)
    assert planned in ([Stretch(one, 475, 556), Stretch(c, 557, 635)] for one in (a, b))
    # From the base of epoch 18 alone, 557 belongs to epoch 9, and b's batch is cut there.
    rows[-1] = segment("a", (557, 635, 18), incarnation=2)
    assert epoch_bounds(rows, primaries).cutoffs == {9: 557}


def test_a_last_batch_that_was_not_on_disk_is_no_source() -> None:
    """Oracle seed 324: incarnation 3 applied 43 in epoch 8 and lost it; incarnation 5 ordered the
    activation of epoch 11 at 43, and epoch 12 decided that."""
    primaries = {8: primary(8, 41, SHORT), 12: primary(12, 43, LONG)}
    rows = [
        segment("a", (1, 40, 7), (41, 43, 8), incarnation=3),
        segment("a", (43, 69, 12), ordered={11: 43, 12: 44}, incarnation=5),
    ]
    planned = plan(rows, primaries)
    assert planned[-2:] == [Stretch("a.3.qml", 41, 42), Stretch("a.5.qml", 43, 69)]
    assert gaps(planned) == []


def test_decisions_of_an_epoch_without_other_records_are_superseded_too() -> None:
    """Oracle seed 2443: c applied 221 to 223, which epoch 41 had decided, and crashed before its
    activation; a and b had 179 on their disks."""
    primaries = {40: primary(40, 86, SHORT), 46: primary(46, 179, LONG)}
    rows = [
        segment("a", (87, 223, 40)),
        segment("c", (87, 220, 40), (221, 223, 41), ordered={40: 87}),
        segment("a", (180, 204, 46), incarnation=2),
    ]
    assert epoch_bounds(rows, primaries).cutoffs == {40: 179, 41: 179}
    planned = plan(rows, primaries)
    assert planned == [Stretch("a.1.qml", 87, 179), Stretch("a.2.qml", 180, 204)]
    assert gaps(planned) == [Gap(1, 86)]


def test_positions_a_bypassed_epoch_decided_and_never_ordered_are_superseded() -> None:
    """Broker seed 8760002: epoch 25 began at 263 and reached 337 on b alone. In epoch 27, c and a
    decided the rest of a's epoch 23 and crashed; then all continued from b's state."""
    primaries = {23: primary(23, 262, SHORT), 25: primary(25, 263, SHORT)}
    primaries[34] = primary(34, 337, LONG)
    rows = [
        segment("a", (263, 297, 23)),
        segment("b", (264, 337, 25)),
        segment("c", (264, 264, 27), ordered={23: 264}),
        segment("c", (338, 502, 34), incarnation=2),
    ]
    assert epoch_bounds(rows, primaries).cutoffs == {23: 263, 25: 337, 27: 337}
    rows.append(start("b", 337, LONG, 25))
    assert epoch_bounds(rows, primaries).cutoffs == {23: 263, 25: 337, 27: 263}


def test_an_epoch_known_only_by_its_state_supersedes_earlier_positions() -> None:
    """Broker seed 8900053: a went on to 2630 in epoch 22, with 2592 on its disk. At 2593 it had the
    activation of epoch 23 on disk but not in its log, as it crashed again."""
    primaries = {22: primary(22, 2451, SHORT), 24: primary(24, 2593, LONG)}
    rows = [
        segment("a", (2452, 2630, 22)),
        segment("a", (2594, 2633, 24), incarnation=3),
        start("a", 2593, LONG, 23),
    ]
    assert epoch_bounds(rows, primaries).cutoffs == {22: 2592, 23: 2593}
    assert gaps(plan(rows, primaries)) == [Gap(1, 2451), Gap(2593, 2593)]
    rows[-1] = start("a", 2593, LONG, 22)
    assert epoch_bounds(rows, primaries).cutoffs == {22: 2593}


def test_a_state_of_an_epoch_in_no_log_is_superseded_like_any_other() -> None:
    """Broker seed 8900809: c had the activation of epoch 4 on its disk and in no log, and started
    with it until it met epoch 6, which a and b had started from an earlier state."""
    primaries = {3: primary(3, 600, LONG), 6: primary(6, 687, SHORT)}
    rows = [segment("a", (601, 687, 3), (688, 900, 6)), start("c", 688, LONG, 4)]
    assert epoch_bounds(rows, primaries).cutoffs[4] == 687


def test_positions_of_a_lone_member_in_an_unlogged_epoch_are_a_gap() -> None:
    """Broker seed 8900528: a went on to 2049 in epoch 6, had 1977 on its disk, and applied more in
    epoch 7. Epoch 7 is known only by the state with which the next epoch began."""
    primaries = {6: primary(6, 1566, SHORT), 8: primary(8, 1985, LONG)}
    began = start("a", 1977, SHORT, 6)
    again = start("a", 1985, LONG, 7)._replace(file="a.3.qml", incarnation=3)
    rows = [
        segment("a", (1567, 2049, 6)), segment("a", (1986, 2090, 8), incarnation=3), began, again,
    ]  # fmt: skip
    assert gaps(plan(rows, primaries))[1:] == [Gap(1978, 1985)]
    rows[2] = began._replace(position=1566)
    assert gaps(plan(rows, primaries)) == [Gap(1, 1985)], "nothing of epoch 6 is known to remain"


def test_the_first_batch_after_a_transfer_bounds_the_base_of_an_epoch() -> None:
    """Only members that had the state before record the base; for others the first batch is
    used."""
    late = primary(9, 0, b"")
    rows = [segment("a", (30, 40, 9)), segment("b", (20, 40, 9))]
    assert epoch_bounds(rows, {9: late}).bases == {9: 19}
    assert epoch_bounds([segment("a", (1, 40, 9))], {9: late}).bases == {9: 0}


def bypassed_epoch(first: int) -> LogMaker:
    """Epoch 1 confirms some commands. Then a's second incarnation and c order from the state
    `first` on. Those commands belong to epoch 2 and are decided in epoch 3, which alone has an
    ACTIVE."""
    a, b, c1, a2 = ("a", 1), ("b", 1), ("c", 1), ("a", 2)
    maker = LogMaker()
    for incarnation in (a, b, c1):
        maker.start(incarnation)
    maker.view(1, a, b, c1)
    maker.activate(a, b, c1)
    states = [maker.history]
    for _ in range(2):
        maker.traffic(1, a, b, c1)
        states.append(maker.history)
    taken = maker.blob_no
    alone = maker.item("b", bytes([c.PUBLISH, c.PUBLISH]), b)
    maker.logs[b].append(Durable(alone.first_position + 1))
    maker.leave(c1)
    maker.history, maker.blob_no = states[first], taken
    maker.start(a2, maker.history)
    maker.view(2, a2, c1)
    maker.epoch = 2
    late = [maker.item("a", bytes([c.ACTIVATE])), maker.item("a", bytes([c.PUBLISH] * 9))]
    for incarnation in (a2, c1):
        maker.logs[incarnation].append(ViewSeen(*maker.ring, False, (a2, c1)))
        maker.logs[incarnation].append(Inactive("view ended"))
    maker.view(3, a2, c1)
    for incarnation in (a2, c1):
        if incarnation == c1 and first < 2:
            h = states[first]
            maker.logs[incarnation].append(Snapshot(h.epoch, h.position, h.chain, root_of(h), "a"))
        maker.logs[incarnation] += [Decided(3), *late]
    maker.activate(a2, c1)
    maker.traffic(2, a2, c1)
    maker.stop(a2, c1)
    return maker


def findings_of(maker: LogMaker, directory: Path) -> list[Finding]:
    """Return the findings of the checks that need no Spark."""
    maker.write(directory, 1 << 30)
    rows = rows_in(sorted(directory.rglob("*.qml")))
    return findings_without_spark(rows) + contract_findings(rows, check_control_rows(rows).epochs)


def test_a_command_applied_by_one_member_alone_is_not_lost(tmp_path: Path) -> None:
    assert findings_of(bypassed_epoch(2), tmp_path) == []


def test_a_loss_in_an_epoch_without_active_records_is_found(tmp_path: Path) -> None:
    """G8: the base of epoch 3 is beyond what epoch 1 confirmed; the base of epoch 2, whose commands
    it decided, is before it."""
    (found,) = [f for f in findings_of(bypassed_epoch(1), tmp_path) if f.property == "G8"]
    assert "confirmed in epoch 1, but the primary of epoch 2 starts before it" in found.what


def crashed_again_and_again() -> tuple[LogMaker, History]:
    """Epoch 1 reaches a position that a does not have on disk. a has there the activation of epoch
    2, then that of epoch 3, each on its disk alone when it crashed again. Return the logs, and the
    state with the first of these activations."""
    maker = LogMaker(("a",))
    maker.start(("a", 1))
    maker.view(1, ("a", 1))
    maker.activate(("a", 1))
    maker.traffic(2, ("a", 1))
    states = [maker.history]
    maker.item("a", bytes([c.PUBLISH]), ("a", 1))
    maker.history = states[0]
    for maker.epoch in (2, 3):
        maker.item("a", bytes([c.ACTIVATE]))
        states.append(maker.history)
    for incarnation, state in enumerate(states, 2):
        maker.start(("a", incarnation), state)
    maker.view(2, ("a", 4))
    maker.activate(("a", 4))
    maker.traffic(2, ("a", 4))
    maker.stop(("a", 4))
    return maker, states[1]


def found_in(maker: LogMaker, directory: Path) -> list[tuple[str, str, int]]:
    """Return promise, member and position of each finding of the whole check."""
    maker.write(directory)
    return [(one.property, one.member, one.position) for one in verify(None, [directory]).findings]


def test_each_state_of_a_lone_member_supersedes_earlier_positions(
    tmp_path: Path,
) -> None:
    """Broker seed 204074400012: a had the activations of epochs 16 and 17 on its disk, at 943 and
    944, and in no log; its log held another 943, of epoch 13."""
    assert found_in(crashed_again_and_again()[0], tmp_path) == []


def test_a_state_that_contradicts_the_log_is_found(tmp_path: Path) -> None:
    """In the same logs: a state that is not part of the surviving history; a state of an epoch
    whose log has something else; and a state before which a confirmed command was lost."""
    maker, state = crashed_again_and_again()
    apart = maker.copy()
    for incarnation in (3, 4):
        apart.logs["a", incarnation][0] = Start(2, state.position, b"x" * 16, 1)
    assert ("G14", "a", state.position) in found_in(apart, tmp_path / "no part")
    same = maker.copy()
    same.start(("a", 3), replace(state, epoch=1))
    assert ("G14", "a", state.position) in found_in(same, tmp_path / "same epoch")
    lost = maker.copy()
    confirmed = ConfirmRecord(1, state.position, (state.position,))
    lost.logs["a", 1] += [Durable(state.position), confirmed]
    assert ("G8", "a", state.position) in found_in(lost, tmp_path / "confirmed")


def state_before_the_last_ack() -> MoveMaker:
    """a applies an ack, receives the state before it, and applies the ack again, in one segment."""
    maker = MoveMaker()
    one, two = maker.rig.client("a"), maker.rig.client("b")
    one.queue("q")
    for i in range(4):
        one.publish("q", b"%d" % i, no=i + 1)
    two.qos(2)
    two.consume("q", "ct")
    maker.checkpoint()
    before, root = maker.history, maker.machine.root()
    two.ack(1)
    maker.rig.activate("a", "b", "c")
    two.ack(2)
    maker.end()
    records = maker.logs[INCARNATIONS[0]]
    named = [record for record in records if isinstance(record, Queues)]
    (checkpoint,) = [
        r for r in records if isinstance(r, Checkpoint) and r.position == before.position
    ]
    again = [r for r in records if isinstance(r, Batch) and r.first_position == before.position + 1]
    given = Snapshot(before.epoch, before.position, before.chain, root, "b")
    actives = [at for at, record in enumerate(records) if isinstance(record, Active)]
    records[actives[1] : actives[1]] = [given, *named, checkpoint, Decided(2), *again]
    return maker


def test_a_command_applied_again_after_a_transferred_state_counts_once(
    tmp_path: Path,
) -> None:
    """Oracle seed 1484: a had applied 269, but c's view ended earlier; c was the donor with 268."""
    maker = state_before_the_last_ack()
    assert findings_of(maker, tmp_path) == []
    rows = rows_in(sorted(tmp_path.rglob("*.qml")))
    planned = plan(rows, check_control_rows(rows).epochs)
    assert [one.state for one in planned] == [1, 2]
