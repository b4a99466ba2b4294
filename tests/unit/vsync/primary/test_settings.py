"""Settings that all members must share: who is refused, who waits, and what all are told."""

from __future__ import annotations

from vsync.primary.events import StateReport
from vsync.primary.settings import advice, disagreement, settings_refusal
from vsync.primary.state_exchange import PlanVerdict, make_plan
from vsync.types import Member

A, B, C = (Member(n, 1, f"{n}:1") for n in "abc")
VOTERS = ("a", "b", "c")


def member(size: int = 3, *, ran: bool = False, position: int = 0, **settings: str) -> StateReport:
    """A member with this size, and settings; those in capitals must be equal."""
    known = position > 0 or ran
    return StateReport(
        known, ran, ran, False, "c1" if known else "", "p", VOTERS if known else (), size,
        2, 2, position, b"x" * 16, b"x" * 16, "",
        settings=tuple((name, value, name.isupper()) for name, value in settings.items()),
    )  # fmt: skip


def test_a_joiner_is_told_all_differing_settings_with_both_values() -> None:
    running = member(ran=True, position=9, LIMIT="10", DIGESTS="4096", clock="10")
    comer = member(1, LIMIT="20", DIGESTS="1", clock="5")
    reports = {A: running, B: running, C: comer}
    assert settings_refusal(C, reports, VOTERS) == (
        "settings differ that must be equal: cluster-size is 1 here and 3 at a; "
        "DIGESTS is 1 here and 4096 at a; LIMIT is 20 here and 10 at a; give all members the same"
    )
    assert not settings_refusal(A, reports, VOTERS), "running members continue"
    assert make_plan((A, B, C), reports).verdict is PlanVerdict.RESUME


def test_a_member_with_a_state_beats_one_without() -> None:
    reports = {A: member(1), B: member(3, position=9)}
    assert "cluster-size is 1 here and 3 at b" in settings_refusal(A, reports, VOTERS)
    assert not settings_refusal(B, reports, VOTERS)


def test_the_size_may_be_any_running_members_or_the_number_of_voters() -> None:
    """After a change of the voters the option files are updated one by one."""
    reports = {A: member(3, ran=True), B: member(4, ran=True)}
    for size, voters, refused in ((3, VOTERS, False), (4, VOTERS, False), (5, VOTERS, True)):
        assert bool(settings_refusal(C, reports | {C: member(size)}, voters)) is refused
    assert not settings_refusal(C, reports | {C: member(5)}, ("a", "b", "d", "e", "f"))


def test_a_first_start_waits_while_its_members_differ() -> None:
    """It waits for the larger size; the smaller would make a cluster with fewer votes
    than intended."""
    reports = {A: member(3), B: member(1), C: member(3)}
    plan = make_plan((A, B, C), reports)
    assert plan.verdict is PlanVerdict.WAIT
    assert plan.reason == (
        "settings differ that must be equal: cluster-size is 1 at b and 3 at a, c; "
        "waiting for all to be the same"
    )
    assert make_plan((A, B, C), dict.fromkeys((A, B, C), member(3))).verdict is PlanVerdict.FORM


def test_a_restart_waits_while_its_members_differ_except_in_size() -> None:
    reports = {A: member(3, position=9, LIMIT="1"), B: member(1, position=9, LIMIT="1")}
    reports[C] = member(3, position=9, LIMIT="1")
    assert make_plan((A, B, C), reports).verdict is PlanVerdict.RESUME
    reports[C] = member(3, position=9, LIMIT="2")
    plan = make_plan((A, B, C), reports)
    assert plan.verdict is PlanVerdict.WAIT
    assert "LIMIT is 1 at a, b and 2 at c" in plan.reason
    assert not disagreement(reports | {A: member(ran=True)}), "running members decide"


def test_differing_advisory_settings_are_named_and_refuse_nobody() -> None:
    reports = {A: member(ran=True, clock="10"), B: member(clock="5"), C: member(clock="10")}
    assert advice(B, reports) == ["clock is 5 here and 10 at a", "clock is 5 here and 10 at c"]
    assert advice(A, reports) == ["clock is 10 here and 5 at b"]
    assert not settings_refusal(B, reports, VOTERS)
    assert advice(B, {}) == []


def test_an_arbitrator_knows_fewer_settings() -> None:
    arbitrator = member(ran=True)._replace(arbitrator=True)
    assert not settings_refusal(B, {A: arbitrator, B: member(LIMIT="1", clock="1")}, VOTERS)
    assert not disagreement({A: arbitrator._replace(ran=False), B: member(LIMIT="1")})
