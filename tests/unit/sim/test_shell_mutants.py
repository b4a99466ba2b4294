"""Ten mistakes in the shell around ring and machine, each with a check that notices it every day.

Some are noticed by seeds of the simulator (`tests/unit/sim/test_mutants.py` runs them), some by
losses of power (`tests/crash/test_crash_points.py`), and the others here, deterministically.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.workloads import MISTAKES
from tests.scenarios.broker_stage import BrokerStage
from tests.scenarios.engine import compare
from tests.sim.mutation.by_hand import SHELL_MUTANTS, broken
from tests.unit.process import test_arbiter
from tests.unit.replication import test_controller, test_received_state
from tests.unit.sim.test_mutants import KILLERS

STORIES = Path(__file__).parents[2] / "scenarios" / "broker"


def _tell(story: str) -> None:
    assert not compare(STORIES / story, BrokerStage(), rewrite=False)


CHECKS: dict[str, Callable[[], None]] = {
    "promise_forgotten_after_a_transfer": (
        test_controller.test_a_promise_survives_a_received_state
    ),
    "installs_before_the_log": (
        test_received_state.test_the_log_records_a_received_state_before_the_member_goes_on
    ),
    "half_a_state_votes": lambda: _tell("half_a_state.txt"),
    "clients_outlive_the_tail": lambda: _tell("half_a_tail.txt"),
    "arbiter_reports_before_its_record": (
        test_arbiter.test_it_reports_an_epoch_once_its_record_is_written
    ),
    "arbiter_promises_before_durable": (
        test_arbiter.test_it_promises_written_epochs_once_all_others_are_silent
    ),
    "arbiter_promises_while_others_reply": (
        test_arbiter.test_it_promises_written_epochs_once_all_others_are_silent
    ),
}

TEN = {
    "promise acknowledged before fsync": (
        "promises_before_durable", "arbiter_promises_before_durable",
    ),
    "promise without lease wait": (
        "promises_while_others_reply", "arbiter_promises_while_others_reply",
    ),
    "speech without lease": ("replies_without_a_lease",),
    "LMDB without sync": ("lmdb_without_sync",),
    "arbitrator's mark before its record": ("arbiter_reports_before_its_record",),
    "joiner reporting undurable positions": ("applied_counts_as_durable",),
    "own promise dropped at store switch": ("promise_dropped_at_the_switch",),
    "directory not fsynced": ("directory_not_synced",),
    "received copy not fsynced": ("received_copy_not_synced",),
    "promise forgotten after a transfer": ("promise_forgotten_after_a_transfer",),
}  # fmt: skip


@pytest.mark.parametrize("name", [mutant.__name__ for mutant in SHELL_MUTANTS])
def test_a_mistake_is_noticed_deterministically(name: str) -> None:
    CHECKS[name]()
    with broken(name), pytest.raises((AssertionError, ValueError)):
        CHECKS[name]()


@pytest.mark.parametrize("mutant", TEN)
def test_all_ten_mistakes_have_a_check(mutant: str) -> None:
    for name in TEN[mutant]:
        assert name in {**KILLERS, **MISTAKES, **CHECKS}
