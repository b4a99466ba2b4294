"""Plans of a view from its members' state reports: what `tests/scenarios/primary` does not tell."""

from __future__ import annotations

from vsync.primary.events import StateReport
from vsync.primary.state_exchange import PlanVerdict, make_plan
from vsync.types import Member

A, B, C = (Member(n, 1, f"{n}:1") for n in "abc")


def state_report(
    position: int = 0,
    epoch: int = 0,
    *,
    filled: bool = True,
    chain: bytes = b"x" * 16,
    ran: bool = False,
    patient: bool = False,
    size: int = 3,
) -> StateReport:
    return StateReport(
        filled, ran, ran, patient, "c1" if filled else "", "p", ("a", "b", "c") if filled else (),
        size, epoch, epoch, position, chain, chain, "",
    )  # fmt: skip


def test_a_patient_member_delays_the_first_start() -> None:
    empty, patient = (
        state_report(filled=False, size=1),
        state_report(filled=False, size=1, patient=True),
    )
    assert make_plan((A,), {A: patient}).verdict is PlanVerdict.WAIT
    assert make_plan((A,), {A: empty}).verdict is PlanVerdict.FORM


def test_members_at_the_same_point_have_caught_up_and_another_chain_has_not() -> None:
    states = {A: state_report(9, 2), B: state_report(9, 2), C: state_report(9, 2, chain=b"z" * 16)}
    plan = make_plan((A, B, C), states)
    assert plan.caught_up == {A, B}


def test_a_restart_waits_a_moment_for_all_voters_but_a_running_cluster_does_not() -> None:
    """Who starts a second late would need a whole transfer for the one position it missed."""
    patient, other = state_report(9, 2, patient=True), state_report(9, 2)
    waiting = make_plan((A, B), {A: patient, B: other})
    assert waiting.verdict is PlanVerdict.WAIT
    assert "moment" in waiting.reason
    assert make_plan((A, B), {A: other, B: other}).verdict is PlanVerdict.RESUME
    assert make_plan((A, B, C), {A: patient, B: other, C: patient}).verdict is PlanVerdict.RESUME
    running = state_report(9, 2, ran=True)
    assert make_plan((A, B), {A: running, B: patient}).verdict is PlanVerdict.RESUME
