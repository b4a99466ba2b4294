"""The gather phase: its sets, which joins count, and that it ends."""

from __future__ import annotations

import random
from unittest.mock import Mock

import pytest

from tests.support.ring.virtual_network import Net
from vsync.errors import ProtocolBug
from vsync.totem.config import RingConfig
from vsync.totem.context import Timer
from vsync.totem.membership.commit import CommitPhase, first_commit
from vsync.totem.membership.gather_sets import GatherSets, JoinOutcome
from vsync.totem.membership.merge import BackedOff
from vsync.totem.node import Node
from vsync.totem.phases import MOVES, Phase, Reason, after
from vsync.types import Member, RingId
from vsync.wire.membership_codec import MEMBERS_MAX
from vsync.wire.messages import FrameKind, Join, Merge

A, B, C, D = (Member(n, 1, f"{n}:1") for n in "abcd")


def join(
    *proc: Member, failed: tuple[Member, ...] = (), seq: int = 1, reception: tuple[Member, ...] = ()
) -> Join:
    return Join(tuple(sorted(proc)), failed, seq, False, reception)


def test_equal_sets_are_agreement() -> None:
    gather = GatherSets(A, (A, B))
    assert not gather.consensus()
    assert gather.absorb(B, join(A, B)) is JoinOutcome.AGREED
    assert gather.consensus()
    assert gather.candidates() == (A, B)


def test_a_subset_changes_nothing_and_a_superset_starts_over() -> None:
    gather = GatherSets(A, (A, B))
    assert gather.absorb(B, join(B)) is JoinOutcome.SUBSET
    gather.absorb(B, join(A, B))
    assert gather.absorb(C, join(C)) is JoinOutcome.CHANGED
    assert gather.candidates() == (A, B, C)
    assert not gather.consensus()


def test_21_failed_sets_count_only_from_members_of_the_old_ring() -> None:
    gather = GatherSets(A, (A, B, C))
    assert gather.absorb(D, join(A, B, C, D, failed=(C,))) is JoinOutcome.CHANGED
    assert gather.candidates() == (A, B, C, D)
    assert gather.absorb(B, join(A, B, C, D, failed=(C,))) is JoinOutcome.CHANGED
    assert gather.candidates() == (A, B, D)


def test_a_member_that_fails_this_one_is_failed_and_ignored() -> None:
    gather = GatherSets(A, (A, B))
    assert gather.absorb(B, join(A, B, failed=(A,))) is JoinOutcome.CHANGED
    assert gather.candidates() == (A,)
    assert gather.consensus()
    assert gather.absorb(B, join(A, B, C)) is JoinOutcome.FROM_FAILED


def test_22_a_member_never_fails_itself() -> None:
    gather = GatherSets(A, (A, B))
    assert not gather.fail((A,))
    gather.fail((B,))
    gather.absorb(C, join(A, B, C, failed=(A, B)))
    gather.invariants()
    assert gather.candidates() == (A,)


def test_24_a_leave_notice_fails_its_sender_and_is_not_agreement() -> None:
    gather = GatherSets(A, (A, B, C))
    bye = Join((A, C), (B,), 1, True)
    assert gather.absorb(B, bye) is JoinOutcome.CHANGED
    assert gather.absorb(B, bye) is JoinOutcome.LEFT_ALREADY
    assert gather.absorb(D, Join((A,), (D,), 1, True)) is JoinOutcome.LEFT_ALREADY
    assert gather.candidates() == (A, C)


def test_12_a_newer_incarnation_replaces_the_older() -> None:
    young = B._replace(incarnation=7)
    gather = GatherSets(A, (A, B))
    assert gather.absorb(young, join(young)) is JoinOutcome.CHANGED
    assert gather.candidates() == (A, young)
    other = GatherSets(young, (), (A, B))
    assert other.candidates() == (A, young)


def test_12_a_late_frame_of_an_old_incarnation_ends_no_newer_one() -> None:
    young = B._replace(incarnation=7)
    gather = GatherSets(A, (A, young))
    assert not gather.fail_former(B)
    assert gather.fail_former(young._replace(incarnation=8))
    assert gather.candidates() == (A,)


def test_the_sets_are_bounded() -> None:
    gather = GatherSets(A, (A,))
    crowd = tuple(Member(f"m{i}", 1, "") for i in range(MEMBERS_MAX))
    assert gather.absorb(B, join(*crowd)) is JoinOutcome.TOO_MANY
    for member in crowd:
        gather.add(member)
    assert len(gather.proc) == MEMBERS_MAX


def test_any_order_of_joins_ends_in_the_same_sets() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        everybody = [Member(n, 1, "") for n in "abcdef"]
        gathers = {
            m: GatherSets(m, everybody[:3] if m in everybody[:3] else (m,)) for m in everybody
        }
        for _ in range(400):
            sender, to = rng.sample(everybody, 2)
            gathers[to].absorb(sender, gathers[sender].join(1, ()))
        assert all(g.consensus() for g in gathers.values())
        assert len({g.candidates() for g in gathers.values()}) == 1


def test_back_off_doubles_up_to_a_limit_and_resets_after_a_while() -> None:
    backed_off = BackedOff(0.2, 1.0)
    waits = []
    now = 0.0
    for _ in range(5):
        backed_off.add(B, now)
        start = now
        while backed_off.has(B, now):
            now += 0.01
        waits.append(round(now - start, 1))
    assert waits == [0.2, 0.4, 0.8, 1.0, 1.0]
    backed_off.reset((B,), now + 0.1)  # in a ring, but one that ended just now
    backed_off.add(B, now + 0.1)
    assert backed_off.has(B, now + 1.0)
    now += 1.1
    backed_off.reset((B,), now + 3.0)
    backed_off.add(B, now + 3.0)
    assert not backed_off.has(B, now + 3.3)
    for i in range(1000):
        backed_off.add(Member(f"m{i}", 1, ""), now)
    assert len(backed_off._until) <= 256


def test_a_join_beyond_the_agreed_sets_ends_the_attempt_before_recovery() -> None:
    """Its sender refuses the commit token; waiting for the refusal would take a token timeout."""
    sets = GatherSets(A, (A, B, C))
    forming = CommitPhase(first_commit(RingId(9, "a", 1), (A, B, C)), A, Mock())
    beyond = (join(A, B, C, failed=(C,)), join(A, B, C, D))
    for message in beyond:
        assert forming.broken_by(B, message, sets, recovering=False)
        assert not forming.broken_by(B, message, sets, recovering=True)
        assert not forming.broken_by(D, message, sets, recovering=False)
    assert not forming.broken_by(B, join(A, B, C), sets, recovering=False)
    assert forming.broken_by(B, join(A, B, C, seq=9), sets, recovering=True)


# -- the node's gates -------------------------------------------------------------------------


def receive(net: Net, to: str, sender: Member, message: Join | Merge) -> None:
    other = Node(sender, "test", net.config, random.Random(1))
    net.nodes[to].receive(other.codec.encode(message), net.now)
    net.flush(to)


def test_19_a_join_that_rejects_this_member_does_not_break_its_ring() -> None:
    net = Net("abc")
    net.settle("abc")
    me = net.nodes["a"].me
    receive(net, "a", D, join(D, me, failed=(me,), seq=9))
    assert net.nodes["a"].phase is Phase.OPERATIONAL
    assert net.nodes["a"].counters["join_rejects_me"] == 1


def test_20_a_members_join_breaks_the_ring_even_without_news() -> None:
    net = Net("abc")
    net.settle("abc")
    receive(net, "a", net.nodes["b"].me, join(*net.nodes["a"].members, seq=9))
    assert net.nodes["a"].phase is Phase.GATHER
    net.settle("abc")


def test_a_restarted_member_that_agrees_in_its_first_join_forms_one_ring() -> None:
    """It may know the ring's sets from late joins; two commit tokens stopped the member."""
    net = Net("ab")
    net.settle("ab")
    a, old = net.nodes["a"], net.nodes["b"].me
    net.crash("b")
    young = old._replace(incarnation=9)
    receive(net, "a", young, join(a.me, old, young, failed=(old,), seq=9, reception=(a.me,)))
    assert a.phase is Phase.COMMIT
    assert a.membership.commit is not None
    assert a.membership.commit.members == (a.me, young)


def test_a_restarted_member_that_hears_nothing_ends_its_old_incarnation() -> None:
    net = Net("ab")
    net.settle("ab")
    a, old = net.nodes["a"], net.nodes["b"].me
    net.crash("b")
    deaf = a.counters["join_deaf"]
    young = old._replace(incarnation=9)
    receive(net, "a", young, join(young, seq=9))
    assert net.settled("a")
    assert a.counters["join_deaf"] == deaf + 1


def test_gather_does_not_wait_for_the_old_incarnation_of_a_restart() -> None:
    """The first join says that it hears nothing yet, so it is no candidate, but its old incarnation
    is over."""
    net = Net("abc")
    net.settle("abc")
    a, old, c = (net.nodes[name] for name in "abc")
    net.crash("b")
    receive(net, "a", c.me, join(a.me, old.me, c.me, seq=9))
    young = old.me._replace(incarnation=9)
    receive(net, "a", young, join(young, seq=9))
    assert a.membership.gather is not None
    assert a.membership.gather.sets.candidates() == (a.me, c.me)


def test_28_a_join_from_before_the_ring_is_stale() -> None:
    net = Net("abc")
    net.settle("abc")
    receive(net, "a", net.nodes["b"].me, join(*net.nodes["a"].members, seq=0))
    assert net.nodes["a"].phase is Phase.OPERATIONAL
    assert net.nodes["a"].counters["join_stale"] == 1


def test_28_control_frames_queued_during_a_pause_are_dropped() -> None:
    net = Net("abc")
    net.settle("abc")
    net.now += 5.0
    receive(net, "a", D, Merge(RingId(4, "d", 1), (D,), ()))
    receive(net, "a", D, join(D))
    assert net.nodes["a"].counters["control_while_late"] == 2
    net.nodes["a"].drained(net.now)
    receive(net, "a", D, join(D))
    assert net.nodes["a"].counters["control_while_late"] == 3  # its timers are still late


def test_28_they_are_dropped_also_when_the_late_timers_come_first() -> None:
    net = Net("abc")
    net.settle("abc")
    net.now += 5.0
    node = net.nodes["a"]
    node.wake(net.now)
    assert node.phase is Phase.GATHER
    receive(net, "a", D, join(D))
    assert node.counters["control_while_late"] == 1
    node.drained(net.now)
    receive(net, "a", D, join(D, reception=(node.me,)))
    assert D in node.membership.gather.sets.proc  # type: ignore[union-attr]


def test_a_backed_off_member_that_receives_my_frames_is_admitted() -> None:
    """Simulator seed 3249: two members that backed off from each other in turn never merged."""
    net = Net("a")
    net.settle("a")
    node = net.nodes["a"]
    node.membership.merges.backed_off.add(D, net.now)
    reception = (node.me,)
    receive(net, "a", D, Merge(RingId(4, "d", 1), (D,), reception))
    receive(net, "a", D, join(D, reception=reception))
    assert net.settled()
    assert node.counters["foreign_shunned"] == node.counters["join_shunned"] == 1
    receive(net, "a", D, join(D, node.me, reception=reception))
    assert node.counters["join_shunned"] == 2
    node.membership.merges.backed_off.add(D, net.now)
    net.now += 0.001 + 4 * net.config.join_timeout_ms / 1000
    receive(net, "a", D, join(D, reception=reception))
    assert node.counters["join_shunned"] == 3
    receive(net, "a", D, join(D, node.me, reception=reception))
    assert node.phase is not Phase.OPERATIONAL


def test_a_foreign_member_that_does_not_receive_me_gets_an_announcement() -> None:
    net = Net("a")
    net.settle("a")
    node = net.nodes["a"]
    for _ in range(5):
        receive(net, "a", D, join(D))
    assert node.phase is Phase.OPERATIONAL
    assert node.counters["join_no_gain"] == 5
    assert D in node.known_members()


def test_old_joins_on_a_slow_link_do_not_feed_a_storm() -> None:
    """Simulator seed 9154: each late join broke a ring, and each broken ring sent new joins."""
    net = Net("a")
    net.settle("a")
    me = net.nodes["a"].me
    for _ in range(100):
        receive(net, "a", D, join(D, me, reception=(me,)))
        receive(net, "a", D, join(D, me, failed=(me,), reception=(me,)))
    assert len(net.views("a")) <= 3
    net.run(1.0)
    receive(net, "a", D, join(D, me, reception=(me,)))
    assert net.nodes["a"].phase is not Phase.OPERATIONAL


def test_a_leave_notice_of_a_foreign_member_is_counted() -> None:
    net = Net("abc")
    net.settle("abc")
    receive(net, "a", D, Join((), (D,), 1, True))
    assert net.nodes["a"].counters["leave_stranger"] == 1


def test_a_leave_during_formation_and_from_each_phase() -> None:
    for at in (0.0, 0.0003, 0.0006, 0.0009, 0.0012, 0.0015, 0.002, 0.2):
        net = Net("abc")
        net.run(at)
        net.nodes["b"].leave(net.now)
        net.nodes["b"].leave(net.now)
        net.flush("b")
        net.run(5.0, lambda: net.settled("ac"))  # noqa: B023


def test_a_lost_commit_token_is_sent_again() -> None:
    net = Net("")
    lost: list[bytes] = []

    def drop(_source: str, _to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.COMMIT and len(lost) < 2:
            lost.append(frame)
            return True
        return False

    net.drop = drop
    for name in "abc":
        net.boot(name)
    net.settle("abc", within=1.0)
    assert len(lost) == 2


def test_25_the_first_token_waits_for_the_commit_tokens_second_rotation() -> None:
    """A second copy of the first rotation's last hop does not count: others lack the
    entries yet."""
    net = Net("ab")
    a, b = net.nodes["a"], net.nodes["b"]
    receive_once = a.receive

    def receive_twice(frame: bytes, now: float) -> None:
        receive_once(frame, now)
        if frame[1] == FrameKind.COMMIT:
            receive_once(frame, now)

    a.receive = receive_twice  # type: ignore[method-assign]

    def has_originated() -> bool:
        return a.membership.recovery is not None and a.membership.recovery.originated

    net.run(1.0, has_originated)
    assert b.phase is Phase.RECOVERY
    assert a.counters["commit_again"] >= 1
    net.settle("ab")


def test_a_representative_that_dies_before_its_commit_token() -> None:
    net = Net("abc")
    net.settle("abc")
    net.drop = lambda s, _t, f: s == "a" and f[1] == FrameKind.COMMIT
    net.crash("c")
    net.run(3.0)
    net.crash("a")
    net.boot("d")
    net.settle("bd", within=8.0)


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde", "abcdef"])
@pytest.mark.parametrize("members_max", [1, 2, 3, 4])
def test_more_candidates_than_a_ring_may_have_form_several_rings(
    names: str, members_max: int
) -> None:
    """One more than the limit too: that member was not failed, so nothing changed, again
    and again."""
    net = Net(names, config=RingConfig(members_max=members_max))
    for _ in range(20):
        net.run(0.25)
        assert all(len(n.members) <= members_max for n in net.nodes.values())
    assert max(len(n.members) for n in net.nodes.values()) == min(members_max, len(names))
    rings = {name: node.ring for name, node in net.nodes.items()}
    net.run(2.0)
    assert {name: node.ring for name, node in net.nodes.items()} == rings


# -- the table --------------------------------------------------------------------------------


def test_every_phase_can_be_left_and_every_reason_is_used() -> None:
    assert {p for p, _ in MOVES} == set(Phase) - {Phase.LEFT}
    assert {r for _, r in MOVES} == set(Reason)
    assert set(MOVES.values()) == set(Phase) - {Phase.IDLE}
    for phase in set(Phase) - {Phase.LEFT}:
        assert after(phase, Reason.LEAVE) is Phase.LEFT


def test_a_transition_missing_from_the_table_stops_the_member() -> None:
    with pytest.raises(ProtocolBug, match="OPERATIONAL because of CONSENSUS"):
        after(Phase.OPERATIONAL, Reason.CONSENSUS)
    net = Net("a")
    with pytest.raises(ProtocolBug):
        net.nodes["a"].start(0.0)


def test_late_timers_of_another_phase_do_nothing() -> None:
    net = Net("abc")
    net.settle("abc")
    node = net.nodes["a"]
    node.take()
    for timer in (Timer.JOIN, Timer.LONELY, Timer.CONSENSUS, Timer.SOLO):
        node.context.arm(timer, net.now)
    node.wake(net.now)
    assert node.phase is Phase.OPERATIONAL
    node.invariants()
