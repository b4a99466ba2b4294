"""Which file tells what happened where: one history out of logs of which some tell another one."""

from __future__ import annotations

import json
from pathlib import Path

from broker.memberlog.records import Kind
from tests.sim.campaign import Options, run_seed
from tests.system.sparkless import contract_findings, rows_in
from tools.verify.control import Primary
from tools.verify.findings import Finding
from tools.verify.judge import judge_control
from tools.verify.rows import SEGMENT, Row
from tools.verify.witness import Gap, Stretch, gaps, plan

LONG, SHORT = b"l" * 16, b"s" * 16


def segment(member: str, *runs: tuple[int, int, int]) -> Row:
    """Return the row of a segment with these runs: first and last position, and who decided."""
    row = Row(f"{member}.qml", member, 1, 0, 9, SEGMENT)
    return row._replace(text=json.dumps({"runs": runs}))


def start(member: str, position: int, chain: bytes, epoch: int) -> Row:
    """Return the row of a life that began with this state."""
    row = Row(f"{member}.qml", member, 2, 0, 1, Kind.START, epoch=epoch, position=position)
    return row._replace(chain=chain)


def primary(epoch: int, base: int, chain: bytes) -> Primary:
    """Return a primary that began from this state."""
    return Primary(epoch, epoch, "a", base, chain, ("a/2",), ("a", "b", "c"), False)


def test_an_epoch_that_was_passed_over_is_no_witness() -> None:
    """G20: a went on to 74 alone, b and c began again from 48, then a's history was taken up."""
    primaries = {8: primary(8, 46, b""), 10: primary(10, 48, SHORT), 11: primary(11, 74, LONG)}
    rows = [segment("a", (1, 48, 8), (75, 80, 11)), segment("b", (1, 48, 8), (49, 49, 10))]
    unknown = plan(rows, primaries)
    assert Stretch("b.qml", 49, 49) in unknown
    rows.append(start("a", 74, LONG, 8))
    told = plan(rows, primaries)
    assert told == [Stretch("a.qml", 1, 48), Stretch("a.qml", 75, 80)]
    assert gaps(told) == [Gap(49, 74)]
    rows[-1] = start("a", 74, LONG, 10)  # a state of epoch 10 holds what that ordered
    assert plan(rows, primaries) == unknown


def accused(seed: int, logs: Path) -> list[Finding]:
    """Return what is found in the logs of a simulated cluster that kept its promises."""
    assert run_seed(seed, Options(stack="oracle", memberlog=str(logs))).ok
    rows = rows_in(sorted(logs.rglob("*.qml")))
    judged = judge_control(rows)
    return judged.findings + contract_findings(rows, judged.epochs)


def test_a_cold_start_that_nobody_took_up_accuses_nobody(tmp_path: Path) -> None:
    """G20: a simulated cluster that was accused wrongly once."""
    assert accused(267, tmp_path) == []


def test_a_last_batch_that_was_not_on_disk_is_no_witness(tmp_path: Path) -> None:
    """G20: life 3 applied 43 and lost it, life 5 ordered another 43; epoch 12 began from that."""
    assert accused(324, tmp_path) == []
