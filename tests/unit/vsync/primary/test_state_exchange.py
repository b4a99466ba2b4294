"""Plans of a view from its members' state reports: the cases that
`tests/scenarios/primary` lacks."""

from __future__ import annotations

import msgpack

from vsync.primary.events import STATE, StateReport, decode
from vsync.primary.state_exchange import PlanVerdict, make_plan, refuse
from vsync.types import Member, RingId

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


def test_a_later_releases_report_may_have_more_fields() -> None:
    ring, report = RingId(4, "a", 1), state_report(9, 2)
    payload = msgpack.packb((tuple(ring), (*report, "new", 7)))
    assert decode(STATE, STATE + payload) == (ring, report)


def test_a_patient_member_delays_the_first_start() -> None:
    empty, patient = (
        state_report(filled=False, size=1),
        state_report(filled=False, size=1, patient=True),
    )
    assert make_plan((A,), {A: patient}).verdict is PlanVerdict.WAIT
    assert make_plan((A,), {A: empty}).verdict is PlanVerdict.FORM


def test_members_at_the_same_point_have_caught_up_but_not_another_chain() -> None:
    states = {A: state_report(9, 2), B: state_report(9, 2), C: state_report(9, 2, chain=b"z" * 16)}
    plan = make_plan((A, B, C), states)
    assert plan.caught_up == {A, B}


def test_a_restart_waits_briefly_for_all_voters_a_running_cluster_not() -> None:
    """A member that starts a second late would need a whole transfer for the one position
    it missed."""
    patient, other = state_report(9, 2, patient=True), state_report(9, 2)
    waiting = make_plan((A, B), {A: patient, B: other})
    assert waiting.verdict is PlanVerdict.WAIT
    assert "moment" in waiting.reason
    assert make_plan((A, B), {A: other, B: other}).verdict is PlanVerdict.RESUME
    assert make_plan((A, B, C), {A: patient, B: other, C: patient}).verdict is PlanVerdict.RESUME
    running = state_report(9, 2, ran=True)
    assert make_plan((A, B), {A: running, B: patient}).verdict is PlanVerdict.RESUME


def test_a_new_cluster_gets_the_newest_version_all_members_execute() -> None:
    reports = {
        member: state_report(filled=False)._replace(version_min=low, version_max=high)
        for member, low, high in ((A, 3, 5), (B, 2, 4))
    }
    reports[C] = state_report(filled=False)._replace(arbitrator=True)  # executes nothing
    assert make_plan((A, B, C), reports).version == 4


def test_a_member_that_cannot_execute_the_current_version_never_joins() -> None:
    """It would compute other results from the first command that the version changed."""
    here = state_report(9, 2)._replace(version=4, version_min=2, version_max=5)
    reports = {A: here, B: here}
    for low, high, fits in ((4, 4, True), (1, 9, True), (1, 3, False), (5, 6, False)):
        newcomer = state_report(filled=False)._replace(version_min=low, version_max=high)
        plan = make_plan((A, B, C), {**reports, C: newcomer})
        assert plan.version == 4
        assert (refuse(C, newcomer, plan) == "") == fits, (low, high)
        assert not refuse(A, here, plan)
        assert fits or f"executes versions {low} to {high}" in refuse(C, newcomer, plan)


def test_a_store_of_another_cluster_is_refused_in_the_manuals_words() -> None:
    ours, other = state_report(9, 2, ran=True), state_report(30, 7)._replace(cluster_id="c2")
    reports = {A: ours, B: ours, C: other}
    plan = make_plan((A, B, C), reports)
    assert refuse(C, other, plan).startswith(
        "Cluster-ID mismatch. Stores belong to different clusters: this store belongs to cluster c2"
    )
    assert refuse(A, ours, plan) == ""


def test_stores_without_a_vote_alone_recover_nothing() -> None:
    barred, empty = state_report(9, 2, filled=False), state_report(filled=False)
    plan = make_plan((A, B, C), {A: barred, B: empty, C: empty})
    assert plan.verdict is PlanVerdict.WAIT
    assert plan.reason.startswith("Cannot recover, no clean store")
    assert "the store of a has no vote" in plan.reason


def test_transient_and_persistent_members_do_not_mix() -> None:
    """A first start waits; a member that comes to a running cluster of the other kind
    is refused."""
    disk = state_report(filled=False)
    memory = disk._replace(transient=True)
    plan = make_plan((A, B, C), {A: disk, B: memory, C: disk})
    assert (plan.verdict, plan.reason) == (
        PlanVerdict.WAIT,
        "Mixing transient and persistent brokers in a cluster: b without a data directory, the "
        "others with one",
    )
    for running, comer in (
        (state_report(9, 2, ran=True), memory),
        (state_report(9, 2, ran=True)._replace(transient=True), disk),
        (state_report(9, 2), memory),  # a restart
    ):
        plan = make_plan((A, B, C), {A: running, B: running, C: comer})
        assert plan.verdict is PlanVerdict.RESUME
        assert "Mixing transient and persistent" in refuse(C, comer, plan)
        assert refuse(A, running, plan) == ""
    arbitrator = memory._replace(arbitrator=True)
    assert not make_plan((A, B, C), {A: disk, B: disk, C: arbitrator}).mixed


def test_only_stores_that_each_claim_to_be_last_are_a_shutdown_mismatch() -> None:
    """Stores of two shutdowns in order are not: the newest holds all that the older one holds."""
    old = state_report(9, 2)._replace(shutdown_id="one")
    new = state_report(12, 3)._replace(shutdown_id="two")
    assert make_plan((A, B, C), {A: old, B: new, C: new}).verdict is PlanVerdict.RESUME
    sole_a, sole_b = old._replace(voters=("a",)), new._replace(voters=("b",))
    plan = make_plan((A, B), {A: sole_a, B: sole_b})
    assert plan.verdict is PlanVerdict.INQUORATE
    assert plan.reason.startswith("Shutdown-ID mismatch. Stores were not shut down together")
    assert "each of a and b" in plan.reason
    # The one that was started first runs by now and fills the other.
    running = sole_a._replace(ran=True, state_epoch=4, reach=4)
    assert make_plan((A, B), {A: running, B: sole_b}).verdict is PlanVerdict.RESUME


def test_a_running_members_options_are_older_than_operators_orders() -> None:
    """Otherwise no view after a change of votes would ever be primary again."""
    voters = ("a=2", "b", "c")
    reports = {m: state_report(9, 2, ran=True)._replace(voters=voters) for m in (A, B, C)}
    plan = make_plan((A, B, C), reports)
    asked = reports[C]._replace(requested=("a=3",))
    assert not refuse(C, asked, plan)
    assert "started with 3 votes for a" in refuse(C, asked._replace(ran=False), plan)


def test_options_are_compared_only_with_the_newest_voters() -> None:
    """Seed 640051 of the broker stack: the rule was changed while a member was away. Alone, it
    called its new options wrong, by its own old state; with the old options the others did."""
    behind = state_report(9, 2)._replace(requested=("@expected_votes=4",))
    alone = make_plan((A,), {A: behind})
    assert alone.verdict is PlanVerdict.INQUORATE
    assert not refuse(A, behind, alone)
    with_another = make_plan((A, B), {A: behind, B: state_report(9, 2)})
    assert "--cluster-expected-votes=4" in refuse(A, behind, with_another)
    changed = state_report(12, 2)._replace(voters=("a", "b", "c", "@expected_votes=4"))
    newest = make_plan((A, B, C), {A: behind, B: changed, C: changed})
    assert not refuse(A, behind, newest)


def test_a_repeated_first_start_comes_after_what_was_promised_for_it() -> None:
    """Seed 9107 of the broker stack: a member promised epoch 2, and then epoch 1 of
    another cluster."""
    begun = state_report(0, 0)._replace(promised_epoch=2)
    fresh = state_report(filled=False)
    plan = make_plan((A, B, C), {A: begun, B: fresh, C: fresh})
    assert plan.verdict is PlanVerdict.FORM
    assert plan.epoch == 3
