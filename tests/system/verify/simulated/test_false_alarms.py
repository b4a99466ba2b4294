"""The search for false alarms: sweeps that resume where they stopped, and logs that tests leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.evidence.left_logs import LeftLogs
from tests.system.verify.corruption import false_alarms
from tests.system.verify.corruption.corrupt_logs import drop_a_batch
from tests.system.verify.corruption.false_alarms import APART, Outcome, append, read_ledger
from tests.system.verify.support.make_logs import LogMaker, good_history
from tools.demo.local_cluster import BrokerProcess

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

CLEAN = Outcome("broker", 1, {"positions": 1000})
ALARM = Outcome("broker", 2, {"positions": 500}, ["G1 ..."])
TWO = Outcome("broker", 3, unjudged=APART)


@pytest.mark.parametrize(("seeds", "status"), [("1-1", 0), ("1-3", 1), ("3", 0)])
def test_seeds_in_the_ledger_are_not_run_again(
    seeds: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(false_alarms, "get_context", None)  # nothing may run
    ledger = tmp_path / "ledger"
    for outcome in (CLEAN, ALARM, TWO):
        append(ledger, outcome)
    with ledger.open("a") as file:
        file.write('{"stack": "broker", "se')  # cut off
    assert list(read_ledger(ledger).values()) == [CLEAN, ALARM, TWO]
    assert false_alarms.main(["--seeds", seeds, "--ledger", str(ledger)]) == status
    said = capsys.readouterr().out
    if seeds == "1-3":
        assert "seed 2 of broker: 1 findings\n    G1 ..." in said
        assert "2 clusters, 1 alarms, 1,500 positions; 1 not judged: both went on alone" in said


def left(
    root: Path, change: Callable[[LogMaker], object], *options: str, excused: bool
) -> list[str]:
    """Return the findings on the logs of a cluster that a test started there."""
    maker = good_history()
    change(maker)
    maker.write(root / "a")
    logs = LeftLogs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerProcess, "start", lambda _: None)
        logs.watch(patch)
        logs.excused = excused
        BrokerProcess("b" if options else "a", root, 1, options).start()
    wrong = logs.judge()
    assert logs.judged == (not excused)
    return wrong


def test_logs_left_by_a_test_are_judged(tmp_path: Path) -> None:
    assert left(tmp_path / "well", lambda _: None, excused=False) == []
    wrong = left(tmp_path / "ill", drop_a_batch, excused=False)
    assert any(one.startswith(f"{tmp_path / 'ill'}: G1 ") for one in wrong)
    assert left(tmp_path / "told", drop_a_batch, excused=True) == []
    shared = tmp_path / "shared"
    of_it = left(shared, drop_a_batch, "--shared-store", str(shared / "a"), excused=False)
    assert any(one.startswith(f"{shared}: G1 ") for one in of_it), "they lie in the store"
