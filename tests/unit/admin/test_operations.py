"""Requests of operators that a member refuses, and what it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.admin.operations import Operations
from vsync.admin.protocol import QueryRefused
from vsync.primary.events import PrimaryPhase
from vsync.types import Member

HERE = "3 of 3 voters here"


def refusal(phase: PrimaryPhase, reason: str, *, halted: str = "") -> str:
    operations = Operations.__new__(Operations)
    operations._controller = cast(
        "Any",
        SimpleNamespace(
            serving=False, halted=halted, reason=halted or reason,
            primary=SimpleNamespace(phase=phase),
        ),
    )  # fmt: skip
    with pytest.raises(QueryRefused) as refused:
        operations.connections()
    assert refused.value.code == "not-active"
    return str(refused.value)


@pytest.mark.parametrize("phase", [PrimaryPhase.CATCHING_UP, PrimaryPhase.ACTIVE])
def test_a_quorate_member_that_does_not_serve_yet_says_when_it_will(phase: PrimaryPhase) -> None:
    """The count of voters alone sounded like a reason to be active."""
    assert refusal(phase, HERE).endswith(
        f"{HERE}; it takes commands as soon as it has caught up with this view"
    )


def test_other_reasons_stand_alone() -> None:
    lone = "1 of 3 voters here, 2 needed"
    assert refusal(PrimaryPhase.INQUORATE, lone).endswith(lone)
    assert refusal(PrimaryPhase.APART, "the view is changing").endswith("the view is changing")
    ended = "another member has a newer state"
    assert refusal(PrimaryPhase.ACTIVE, HERE, halted=ended).endswith(ended)


def test_only_who_was_there_is_stopped_after_a_shutdown_of_all() -> None:
    """A member that hung before it ended stopped the others, which had begun again meanwhile."""
    done, joining, arbitrator = (Member(name, 1, f"{name}:1") for name in ("b", "c", "x"))
    again = [one._replace(incarnation=2) for one in (done, arbitrator)]
    primary = SimpleNamespace(
        caught_up_names={"b"}, mark=SimpleNamespace(without_data=frozenset("x")),
        members=(done, joining, arbitrator),
    )  # fmt: skip
    operations = Operations.__new__(Operations)
    operations._controller = cast("Any", SimpleNamespace(primary=primary))
    stopped: list[Member] = []
    operations._send_direct = lambda to, _: stopped.append(to)
    present = primary.members
    operations.stop_members_without_state(present)
    assert stopped == [joining, arbitrator]
    primary.members, primary.caught_up_names = (*again, joining), set()
    operations.stop_members_without_state(present)
    assert stopped == [joining, arbitrator, joining]
