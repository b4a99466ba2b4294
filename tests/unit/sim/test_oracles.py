"""Oracles other than log checkers can fail, too: liveness, primary views, brokers.

`test_checkers.py` does the same for the rules of extended virtual synchrony;
docs/reference/simulator-oracles.md lists every property with its checker and the test here that
shows it fire.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest

from broker.replication.chain import History
from broker.replication.replica import Applied, Item
from tests.sim.broker.judge import BrokerJudge, Node
from tests.sim.checkers.primary import Judge
from tests.sim.run.plan import make_plan
from tests.sim.run.runner import Result, Runner
from tests.sim.stacks.groups import Conf, GroupJudge, Passed, Place
from tests.sim.stacks.primary import Replica
from tests.sim.stacks.ring import Plain
from tests.sim.stacks.stack import PlainStack
from tests.sim.stacks.toy_log import Image, ToyLog
from tests.sim.world.member import SimMember, Upper
from tests.sim.world.perfect_core import FakeCore
from tests.sim.world.tap import HEADER, Core, Tap
from tests.sim.world.trace import Trace
from tests.support.stores.memory import MemoryDisk
from vsync.cpg.events import GroupView, Level
from vsync.primary.component import Primary
from vsync.primary.events import Activated, Activation
from vsync.primary.state_exchange import ZERO_CHAIN, Plan
from vsync.totem.phases import Phase
from vsync.types import Guarantee, Member, RingId

PLAN = next(
    plan
    for seed in range(1000)
    if (plan := make_plan(seed, only=())).load_gap_s == 0.5
    and len(plan.names) == 3
    and plan.queue_frames > 20  # the fake resends this many at once
)
SHORT = 10 + HEADER.size  # what the repair submits, as the core sees it
LARGE = 2 * PLAN.frame_bytes_max + HEADER.size  # the last message that the drain submits
R1, R2 = RingId(1, "a", 1), RingId(2, "a", 1)


# -- liveness -------------------------------------------------------------------------------------


def run(core: type[FakeCore], upper: type[Plain] = Plain) -> Result:
    class Stack(PlainStack):
        def make(self, member: SimMember, tap: Tap) -> Upper:
            return upper(tap)

    def make_core(me: Member, plan: object, chance: random.Random) -> Core:
        return core(me, PLAN, chance)

    return Runner(PLAN, make_core, Stack(), Trace(keep_all=False, frames=False)).run()


class Aimless(FakeCore):
    """Never leaves gathering."""

    def start(self, now: float) -> None:
        super().start(now)
        self.phase = Phase.GATHER


class Deaf(FakeCore):
    """Accepts what is submitted and never sends it."""

    def submit(
        self, payload: bytes, now: float, guarantee: Guarantee, *, urgent: bool = True
    ) -> bool:
        return True


class DeafAtTheEnd(FakeCore):
    """Loses the last message that the drain submits."""

    def submit(
        self, payload: bytes, now: float, guarantee: Guarantee, *, urgent: bool = True
    ) -> bool:
        large = len(payload) == LARGE
        return large or super().submit(payload, now, guarantee, urgent=urgent)


class Brittle(FakeCore):
    """Leaves its ring when asked to send anything a second time."""

    def submit(
        self, payload: bytes, now: float, guarantee: Guarantee, *, urgent: bool = True
    ) -> bool:
        if len(payload) == SHORT and self.index == 1:  # such as only the repair submits
            self.ring = R2
        return super().submit(payload, now, guarantee)


class Restless(FakeCore):
    """Leaves its ring when everything is over."""

    def wake(self, now: float) -> None:
        super().wake(now)
        if self.delivered and len(self.order) == self.delivered and now > self.until:
            self.ring = R2

    until = 0.0


class Unready(Plain):
    """The layer above the ring never starts."""

    @property
    def ready(self) -> bool:
        return False


class Late(Plain):
    """Submits a while after it is asked, as clients of brokers do."""

    def __init__(self, tap: Tap) -> None:
        super().__init__(tap)
        self.asked: list[tuple[float, bytes, Guarantee]] = []

    @property
    def ready(self) -> bool:
        return not self.asked

    def submit(self, payload: bytes, now: float, guarantee: Guarantee) -> bool:
        self.asked.append((now, payload, guarantee))
        return True

    def pump(self, now: float) -> None:
        while self.asked and self.asked[0][0] < now:
            _, payload, guarantee = self.asked.pop(0)
            super().submit(payload, now, guarantee)


class Failing(FakeCore):
    """Runs into a bug of its own."""

    def drained(self, now: float) -> None:
        raise ValueError("a bug")


@pytest.mark.parametrize(
    ("core", "upper", "rule"),
    [
        (Aimless, Plain, "L1"),
        (Deaf, Plain, "L2"),
        (FakeCore, Unready, "L4"),
        (Brittle, Plain, "L5"),
        (Brittle, Late, "L5"),
        (DeafAtTheEnd, Late, "L2"),
        (Failing, Plain, "crash"),
    ],
)
def test_a_run_that_never_becomes_quiet_fails(
    core: type[FakeCore], upper: type[Plain], rule: str
) -> None:
    assert rule in {violation.rule for violation in run(core, upper).violations}


def test_leaving_a_ring_without_a_fault_is_found() -> None:
    """L3: the ring settles, everything is delivered, and then a member leaves."""
    quiet = run(FakeCore)
    assert quiet.ok
    Restless.until = quiet.virtual_s - 1.0  # within the quiet period of two seconds
    assert "L3" in {violation.rule for violation in run(Restless).violations}


# -- primary views over the toy log ---------------------------------------------------------------


def primary(ring: RingId, level: str) -> Primary:
    """The part of a primary layer that the judge reads."""
    facts = SimpleNamespace(caught_up_names=frozenset(level), active=True, ring=ring)
    return cast("Primary", facts)


def entering(ring: RingId, epoch: int, cold: bool = False) -> Activated:
    a = Member("a", 1, "a:1")
    return Activated(ring, 1, a, Activation(epoch, (), cold, ("a", "b", "c"), "id"), True)


def log_of(*payloads: bytes, epoch: int = 1) -> ToyLog:
    log = ToyLog(Image())
    for payload in payloads:
        log.apply(epoch, payload)
    return log


def rules(judge: Judge | BrokerJudge) -> set[str]:
    return {violation.promise for violation in judge.violations}


def test_two_primary_views_of_one_epoch_are_found() -> None:
    """P1 (G7): one epoch, two rings."""
    judge = Judge()
    judge.activated("a", entering(R1, 1), log_of(), primary(R1, "ab"))
    judge.activated("c", entering(R2, 1), log_of(), primary(R2, "c"))
    assert "G7" in rules(judge)


def test_successive_primary_views_share_a_voter() -> None:
    """P1 (G7): two epochs whose level voters have no member in common may overlap in time."""
    judge = Judge()
    judge.activated("a", entering(R1, 1), log_of(), primary(R1, "a"))
    judge.activated("b", entering(R2, 2), log_of(), primary(R2, "b"))
    judge.finish()
    assert "G7" in rules(judge)


def test_a_confirmed_entry_missing_in_the_next_primary_is_found() -> None:
    """P2 (G8): at the activation, when another is applied, and when another is confirmed."""
    judge = Judge()
    judge.confirmed("a", 1, log_of(b"x"))
    judge.activated("b", entering(R2, 2), log_of(), primary(R2, "b"))
    assert "G8" in rules(judge)
    other = Judge()
    other.confirmed("a", 1, log_of(b"x"))
    other.applied("b", log_of(b"y", epoch=2))
    assert "G8" in rules(other)
    other = Judge()
    other.confirmed("a", 1, log_of(b"x"))
    other.confirmed("b", 1, log_of(b"y", epoch=2))
    assert "G8" in rules(other)


def plan_from(position: int, chain: bytes) -> Plan:
    """The part of a plan that the judges read."""
    donor = Member("a", 1, "a:1")
    facts = SimpleNamespace(donor=donor, epoch=2, position=position, order=chain, chain=chain)
    return cast("Plan", facts)


def test_a_plan_whose_base_lacks_confirmed_entries_is_found() -> None:
    """P2 (G8): before any member is brought to that base, or dies on the way."""
    for confirmed, wrong in ((1, False), (2, True)):
        log = log_of(b"x", b"y")
        judge = Judge()
        judge.replicas["a"] = cast("Replica", SimpleNamespace(log=log))
        judge.confirmed("c", confirmed, log)
        order = log.order_at(1)
        assert order is not None
        judge.planned("b", plan_from(1, order))
        assert rules(judge) == ({"G8"} if wrong else set())


def test_an_applied_entry_that_is_forgotten_is_found() -> None:
    """The undecided suffix (G11): a member that applied it may have replied about it."""
    judge = Judge()
    judge.applied("a", log_of(b"x", b"y"))
    judge.activated("b", entering(R2, 2), log_of(b"x"), primary(R2, "b"))
    assert "G11" in rules(judge)


# -- brokers --------------------------------------------------------------------------------------

NOTHING = Applied(Item(1, R1, 1, "a", b""), 1, b"", b"", b"", 1, 1, 0, b"", [])


def applied(
    judge: BrokerJudge, who: str, chain: bytes, root: int = 1, epoch: int = 1, parent: bytes = b""
) -> Node:
    now = History(epoch, 1, chain, chain)
    judge.applied(who, parent or ZERO_CHAIN, NOTHING, now, root)
    return judge.nodes[chain]


def test_two_states_after_one_history_are_found() -> None:
    """G14."""
    judge = BrokerJudge()
    applied(judge, "a", b"x", root=1)
    applied(judge, "b", b"x", root=2)
    assert "G14" in rules(judge)


def test_two_orders_in_one_epoch_are_found() -> None:
    """G1."""
    judge = BrokerJudge()
    applied(judge, "a", b"x")
    applied(judge, "b", b"y")
    assert "G1" in rules(judge)


def test_a_confirm_without_a_majority_is_found() -> None:
    """G9: the disks are asked, not the members."""
    judge = BrokerJudge()
    node = applied(judge, "a", b"x")
    judge.released("a", node, ("a", "b", "c"), lambda name: [MemoryDisk()])
    assert "G9" in rules(judge)


def test_a_broker_that_forgets_a_confirmed_entry_is_found() -> None:
    """G8: at the next activation, and when another entry takes its place."""
    judge = BrokerJudge()
    judge.confirmed = applied(judge, "a", b"x")
    judge.activated("b", entering(R2, 2), History(), frozenset("b"))
    assert "G8" in rules(judge)
    judge = BrokerJudge()
    judge.confirmed = applied(judge, "a", b"x")
    applied(judge, "b", b"y", epoch=2)
    assert "G8" in rules(judge)


def test_a_broker_that_plans_without_confirmed_entries_is_found() -> None:
    """G8: the base of a plan includes them, whatever a member holds unstable."""
    judge = BrokerJudge()
    judge.confirmed = applied(judge, "a", b"x")
    judge.planned("b", plan_from(1, b"x"))
    assert not rules(judge)
    judge.planned("b", plan_from(0, ZERO_CHAIN))
    assert "G8" in rules(judge)


def test_clean_stores_of_one_shutdown_on_two_histories_are_found() -> None:
    """G14: they may end at two positions, if a view changed in between, but not on two lines."""
    judge = BrokerJudge()
    ends = [applied(judge, name, body) for name, body in (("a", b"x"), ("b", b"y"))]
    for name, node, found in (("a", 0, False), ("b", 0, False), ("c", 1, True)):
        judge.ended_clean(name, "the end", History(1, 1, ends[node].chain, ends[node].order))
        assert ("G14" in rules(judge)) == found


# -- groups ---------------------------------------------------------------------------------------

A, B = Member("a", 1, "a:1"), Member("b", 1, "b:1")
ONE = Place("all", ("a", 1), b"1", Level.AGREED, (A, B))
TWO = ONE._replace(number=b"2")


def test_groups_that_disagree_are_found() -> None:
    """CPG's G1: lists, order, what members that moved together saw, and no message twice."""
    judge = GroupJudge()
    conf = Conf(R1, (A, B))
    judge.message(("a", 1), conf, 1, ONE)
    judge.message(("b", 1), conf, 1, TWO)
    judge.message(("a", 1), conf, 1, ONE)
    judge.listed(("a", 1), conf, GroupView("all", (A, B), (), (), 2))
    judge.listed(("b", 1), conf, GroupView("all", (A,), (), (), 2))
    judge.message(("a", 1), conf, 3, ONE)
    for me in (("a", 1), ("b", 1)):
        judge.passed[me] = [Passed(R1, R2, (A, B))]
    found = {violation.rule for violation in judge.finish()}
    assert found == {"V-order", "V-once", "V-list", "V-same"}
