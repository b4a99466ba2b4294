"""What a view may do with the standings of its members (G7, G8)."""

from __future__ import annotations

from vsync.primary.events import StateReport
from vsync.primary.state_exchange import ZERO_CHAIN, PlanVerdict, make_plan
from vsync.types import Member

A, B, C, D, E = (Member(n, 1, f"{n}:1") for n in "abcde")
VOTERS = ("a", "b", "c")


def state_report(
    position: int = 0,
    epoch: int = 0,
    *,
    filled: bool = True,
    chain: bytes = b"x" * 16,
    cluster: str = "c1",
    promised: int = 0,
    ran: bool = False,
    patient: bool = False,
    size: int = 3,
    proposal: str = "p",
) -> StateReport:
    return StateReport(
        filled, ran, ran, patient, cluster if filled else "", proposal,
        VOTERS if filled else (), size, promised or epoch, epoch, position, chain, chain, "",
    )  # fmt: skip


def test_first_start_waits_for_all_members_and_then_forms() -> None:
    empty = state_report(filled=False)
    waiting = make_plan((A, B), {A: empty, B: empty})
    assert waiting.verdict is PlanVerdict.WAIT
    plan = make_plan((A, B, C), dict.fromkeys((A, B, C), empty))
    assert plan.verdict is PlanVerdict.FORM
    assert plan.voters == VOTERS
    assert plan.epoch == 1
    assert plan.caught_up == {A, B, C}
    assert (plan.position, plan.chain) == (0, ZERO_CHAIN)


def test_a_patient_member_delays_the_first_start() -> None:
    empty, patient = (
        state_report(filled=False, size=1),
        state_report(filled=False, size=1, patient=True),
    )
    assert make_plan((A,), {A: patient}).verdict is PlanVerdict.WAIT
    assert make_plan((A,), {A: empty}).verdict is PlanVerdict.FORM


def test_the_largest_epoch_and_position_is_the_donor() -> None:
    """G8: epoch before position, so a longer history of a superseded epoch loses."""
    plan = make_plan(
        (A, B, C),
        {A: state_report(90, 5), B: state_report(80, 6, chain=b"y" * 16), C: state_report(70, 5)},
    )
    assert plan.verdict is PlanVerdict.RESUME
    assert plan.donor == B
    assert plan.caught_up == {B}
    assert plan.epoch == 7


def test_members_at_the_same_point_are_level_and_another_chain_is_not() -> None:
    states = {A: state_report(9, 2), B: state_report(9, 2), C: state_report(9, 2, chain=b"z" * 16)}
    plan = make_plan((A, B, C), states)
    assert plan.caught_up == {A, B}


def test_a_minority_is_inquorate_and_says_who_is_missing() -> None:
    """G7: one of three voters, even with a stranger beside it, is no primary."""
    plan = make_plan((A, D), {A: state_report(5, 1), D: state_report(filled=False)})
    assert plan.verdict is PlanVerdict.INQUORATE
    assert "missing: b, c" in plan.reason


def test_an_empty_voter_does_not_count() -> None:
    """G8: a wiped disk must not complete a majority."""
    plan = make_plan((A, B), {A: state_report(5, 1), B: state_report(filled=False)})
    assert plan.verdict is PlanVerdict.INQUORATE


def test_a_first_start_that_was_cut_short_may_be_repeated_by_all() -> None:
    states = {A: state_report(0, 0), B: state_report(filled=False), C: state_report(filled=False)}
    assert make_plan((A, B, C), states).verdict is PlanVerdict.FORM
    assert make_plan((A, B), {m: states[m] for m in (A, B)}).verdict is PlanVerdict.WAIT


def test_a_first_start_is_not_repeated_without_those_who_may_have_begun_to_serve() -> None:
    """G7, G8: found by `tests.sim.explore`: b and c may serve, a only promised; a, d and
    another newcomer must not form a second cluster of the same name."""
    empty = state_report(filled=False)
    plan = make_plan((A, D, E), {A: state_report(0, 0, promised=1), D: empty, E: empty})
    assert plan.verdict is PlanVerdict.WAIT
    assert "waiting" in plan.reason
    assert "b, c" in plan.reason


def test_a_running_cluster_beats_a_larger_one_on_disk() -> None:
    """A newcomer with a foreign store is told so; the running members keep going."""
    states = {
        A: state_report(5, 1, ran=True),
        B: state_report(5, 1, ran=True),
        C: state_report(900, 9, cluster="other"),
    }
    plan = make_plan((A, B, C), states)
    assert plan.cluster_id == "c1"
    assert plan.foreign == {C}
    assert plan.verdict is PlanVerdict.RESUME


def test_the_next_epoch_exceeds_every_promise() -> None:
    plan = make_plan((A, B), {A: state_report(5, 1, promised=8), B: state_report(5, 1)})
    assert plan.epoch == 9


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


def test_a_store_that_a_broken_off_first_start_named_is_a_newcomers() -> None:
    """Scenario B5, seed 2007: D was named by a first start that never happened, the others formed
    the cluster by the next one, without D. D's store holds nothing: it is no other cluster's."""
    formed = state_report(5, 2, cluster="real", ran=True)
    plan = make_plan(
        (A, B, C, D), {A: formed, B: formed, C: formed, D: state_report(cluster="void")}
    )
    assert plan.verdict is PlanVerdict.RESUME
    assert plan.cluster_id == "real"
    assert plan.foreign == frozenset()
    assert D not in plan.caught_up


def test_stores_that_hold_something_beat_any_number_of_named_ones() -> None:
    """Scenario B5 the other way round: the few with a history are not the foreigners."""
    void = state_report(cluster="void")
    plan = make_plan((A, B, C), {A: state_report(5, 2, cluster="real"), B: void, C: void})
    assert plan.cluster_id == "real"
    assert plan.verdict is PlanVerdict.INQUORATE
    assert plan.foreign == frozenset()
