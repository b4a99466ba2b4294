"""Plans of a view from its members' state reports: what `tests/scenarios/primary` does not tell."""

from __future__ import annotations

from vsync.primary.events import StateReport
from vsync.primary.state_exchange import PlanVerdict, make_plan, refuse
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


def test_a_new_cluster_gets_the_newest_version_that_all_its_members_execute() -> None:
    reports = {
        member: state_report(filled=False)._replace(version_min=low, version_max=high)
        for member, low, high in ((A, 3, 5), (B, 2, 4))
    }
    reports[C] = state_report(filled=False)._replace(arbitrator=True)  # executes nothing
    assert make_plan((A, B, C), reports).version == 4


def test_who_does_not_execute_the_version_in_force_never_joins() -> None:
    """It would compute something else from the first command that works otherwise."""
    here = state_report(9, 2)._replace(version=4, version_min=2, version_max=5)
    reports = {A: here, B: here}
    for low, high, fits in ((4, 4, True), (1, 9, True), (1, 3, False), (5, 6, False)):
        newcomer = state_report(filled=False)._replace(version_min=low, version_max=high)
        plan = make_plan((A, B, C), {**reports, C: newcomer})
        assert plan.version == 4
        assert (refuse(C, newcomer, plan) == "") == fits, (low, high)
        assert not refuse(A, here, plan)
        assert fits or f"executes versions {low} to {high}" in refuse(C, newcomer, plan)
