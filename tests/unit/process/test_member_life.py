"""The state of a member as operators see it, and what it tells them without a majority."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from broker.exit_codes import Exit
from broker.process.member_life import ADVICE_S, LifeState, MemberLife
from vsync.io.discovery import TOLD_AFTER_S
from vsync.primary.events import PrimaryPhase
from vsync.types import Member

A, B = Member("a", 1, "a:1"), Member("b", 1, "b:1")


class Life:
    """A member of three voters, with all that decides its state settable."""

    def __init__(self, *, cman: bool = False, data_dir: Path | None = Path("/var/my data")) -> None:
        self.primary = SimpleNamespace(
            phase=PrimaryPhase.APART, reason="1 of 3 voters here", has_caught_up=True,
            lacks_its_peer=False, members=(A, B), active=False,
            reports={}, newest=lambda: (A, SimpleNamespace(position=7, state_epoch=2)),
        )  # fmt: skip
        self.core = SimpleNamespace(
            me=A, primary=self.primary, serving=False, transfer_donor="", halted="", ran=False,
            promise=SimpleNamespace(cluster_id="c", voters=("a", "b", "c")),
        )  # fmt: skip
        self.stopping, self.stopped = False, list[tuple[Exit, str]]()
        self.progress = self.lack = ""
        self.holds("a")
        options: Any = SimpleNamespace(data_dir=data_dir, cman=cman)
        core: Any = self.core
        nothing: Any = SimpleNamespace()
        self.life = MemberLife(
            options, core, nothing, nothing, lambda *end: self.stopped.append(end),
            stopping=lambda: self.stopping, progress=lambda: self.progress, lack=lambda: self.lack,
        )  # fmt: skip
        self.refusal = self.life._join_refusal = Mock()

    def holds(self, *names: str) -> None:
        """Of these voters the view has a state."""
        here = {Member(one, 1, ""): SimpleNamespace(filled=True) for one in names}
        self.primary.reports = {**here, Member("c", 1, ""): SimpleNamespace(filled=False)}

    def without_majority(self, *, for_s: float) -> str:
        """Return the reason that is shown after so long without one."""
        self.primary.phase = PrimaryPhase.INQUORATE
        self.life.wake(100.0)
        self.life.wake(100.0 + for_s)
        return self.life.reason


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "INIT"),
        ({"ran": True}, "STALLED"),
        ({"phase": PrimaryPhase.ACTIVE, "ran": True}, "CATCHUP"),
        ({"phase": PrimaryPhase.CATCHING_UP}, "CATCHUP"),
        ({"phase": PrimaryPhase.ACTIVE, "halted": "outvoted", "ran": True}, "STALLED"),
        ({"phase": PrimaryPhase.ACTIVE, "transfer_donor": "b"}, "JOINER"),
        ({"phase": PrimaryPhase.ACTIVE, "transfer_donor": "b", "progress": "half"}, "UPDATEE"),
        ({"phase": PrimaryPhase.ACTIVE, "serving": True}, "READY"),
        ({"phase": PrimaryPhase.ACTIVE, "serving": True, "has_caught_up": False}, "CATCHUP"),
        ({"serving": True, "stopping": True}, "LEFT"),
    ],
)
def test_each_state(facts: dict[str, object], state: str) -> None:
    one = Life()
    for name, value in facts.items():
        (of,) = (of for of in (one.primary, one.core, one) if hasattr(of, name))
        setattr(of, name, value)
    assert one.life.status() == {"member_state": state}
    assert one.life.prefix() == f"cluster(a {state}) "


def test_a_change_of_state_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    one = Life()
    with caplog.at_level(logging.INFO, "qpidd"):
        for _ in range(2):
            one.life.wake(1.0)
        one.stopping = True
        one.life.wake(2.0)
    assert caplog.messages == ["INIT, was PRE_INIT", "LEFT, was INIT"]
    assert one.life.state is LifeState.LEFT


def test_a_lasting_lack_of_a_majority_brings_advice(caplog: pytest.LogCaptureFixture) -> None:
    one = Life()
    assert one.without_majority(for_s=ADVICE_S) == "", "most absences are shorter"
    said = one.without_majority(for_s=2 * ADVICE_S)
    assert said.startswith("1 of 3 voters here. This has been so since ")
    assert "is that of a, position 7 of epoch 2;" in said
    assert "stop this broker, run: qpid-cluster-store -c --sole-voter '/var/my data' -" in said
    one.life.wake(300.0)
    assert caplog.messages.count(said) == 1
    one.primary.phase = PrimaryPhase.ACTIVE
    one.life.wake(301.0)
    assert one.life.reason == ""
    one.primary.phase = PrimaryPhase.INQUORATE
    one.life.wake(302.0)
    assert one.life.reason == "", "it is missing for a moment only, once more"


@pytest.mark.parametrize("why", ["all are here", "a majority", "no state", "a pair"])
def test_no_advice_where_it_would_be_wrong(why: str) -> None:
    one = Life()
    if why == "all are here":
        one.core.promise.voters = ("a",)
    elif why == "a majority":  # of the voters, and the reason is another one
        one.holds("a", "b")
    elif why == "no state":
        one.primary.newest = lambda: None
    else:
        one.primary.lacks_its_peer = True
    assert one.without_majority(for_s=2 * ADVICE_S) == ""


@pytest.mark.parametrize("where", ["another member's", "a temporary one"])
def test_advice_names_only_a_directory_that_it_knows(where: str) -> None:
    one = Life(data_dir=None) if where == "a temporary one" else Life()
    holder = B if where == "another member's" else A
    one.primary.newest = lambda: (holder, SimpleNamespace(position=7, state_epoch=2))
    said = one.without_majority(for_s=2 * ADVICE_S)
    assert f"stop the broker {holder.name}, run: " in said
    assert "--sole-voter DIR (its --data-dir) -" in said


@pytest.mark.parametrize("phase", [PrimaryPhase.INQUORATE, PrimaryPhase.EXCHANGE])
@pytest.mark.parametrize("cluster_id", ["", "c"])
def test_a_first_start_names_who_cannot_be_reached(phase: PrimaryPhase, cluster_id: str) -> None:
    one = Life()
    one.lack, one.primary.newest = "there is no connection to b", lambda: None
    one.primary.phase, one.core.promise.cluster_id = phase, cluster_id
    for second in range(int(TOLD_AFTER_S) + 2):
        one.life.wake(float(second))
    waits = phase is PrimaryPhase.INQUORATE and not cluster_id
    assert one.life.reason == f"1 of 3 voters here; {one.lack}" * waits
    assert one.refusal.wake.call_count == int(TOLD_AFTER_S) + 2


def test_progress_comes_before_advice() -> None:
    one = Life()
    one.progress = "half of the state"
    assert one.without_majority(for_s=2 * ADVICE_S) == "half of the state"


@pytest.mark.parametrize("cman", [True, False])
def test_with_cman_a_member_that_lost_its_quorum_stops(
    caplog: pytest.LogCaptureFixture, *, cman: bool
) -> None:
    one = Life(cman=cman)
    with caplog.at_level(logging.INFO, "qpidd"):
        one.without_majority(for_s=0.1)
    assert caplog.messages.count("Waiting for cluster quorum.") == int(cman)
    one.primary.phase, one.core.ran = PrimaryPhase.ACTIVE, True
    one.life.wake(101.0)
    assert one.stopped == []
    one.primary.phase = PrimaryPhase.INQUORATE
    one.life.wake(102.0)
    assert one.stopped == [(Exit.QUORUM, "Lost contact with cluster quorum.")] * cman
