"""The simulator itself: it is repeatable, its faults happen, and it finds a wrong core."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.sim.clients.replicas import _Followed
from tests.sim.run.plan import Plan, make_plan
from tests.sim.run.runner import Result, Runner
from tests.sim.stacks.stack import PlainStack
from tests.sim.world.perfect_core import FakeCore
from tests.sim.world.tap import Core
from tests.sim.world.trace import Trace
from vsync.totem.events import Deliver, Output
from vsync.types import Guarantee, Member

# Three members on fast links that all have something to send, and have sent it soon: a message that
# a wrong core never delivers is not waited for long.
SEED, OTHER = 21, 1


def run(plan: Plan, core: type[FakeCore] = FakeCore) -> Result:
    def make_core(me: Member, plan: Plan, chance: random.Random) -> Core:
        return core(me, plan, chance)

    return Runner(plan, make_core, PlainStack(), Trace(keep_all=False, frames=False)).run()


def calm_plan(seed: int = SEED) -> Plan:
    return make_plan(seed, only=())


class Corrupting(FakeCore):
    """Delivers a payload with a changed byte, now and then, on the last member."""

    def tampered(self, d: Deliver) -> list[Output]:
        return [d._replace(payloads=[p[:-1] + b"?" for p in d.payloads])]

    def take(self) -> list[Output]:
        out: list[Output] = []
        for output in super().take():
            late = isinstance(output, Deliver) and output.seq % 50 == 49
            if late and isinstance(output, Deliver) and self.index == len(self.members) - 1:
                out += self.tampered(output)
            else:
                out.append(output)
        return out


class Dropping(Corrupting):
    """Omits a delivery."""

    def tampered(self, d: Deliver) -> list[Output]:
        return []


class Repeating(Corrupting):
    """Delivers twice."""

    def tampered(self, d: Deliver) -> list[Output]:
        return [d, d]


class Mislabelling(Corrupting):
    """Marks a delivery as transitional that is not."""

    def tampered(self, d: Deliver) -> list[Output]:
        return [d._replace(transitional=True)]


class Forging(Corrupting):
    """Names another sender."""

    def tampered(self, d: Deliver) -> list[Output]:
        return [d._replace(sender=self.members[self.members.index(d.sender) - 1])]


class Hurrying(Corrupting):
    """Marks as agreed what was requested as safe, and the reverse."""

    def tampered(self, d: Deliver) -> list[Output]:
        return [d._replace(guarantee=Guarantee(3 - d.guarantee))]


def test_a_right_core_passes() -> None:
    """On a perfect network the fake keeps all promises that can be asked of it."""
    result = run(calm_plan())
    assert [str(v) for v in result.violations] == []
    assert result.steps >= 5000
    assert result.messages > 20


def test_one_seed_is_one_run() -> None:
    """The same seed gives the same trace hash, another seed another."""
    first, again, other = (run(calm_plan(seed)).trace.hash() for seed in (SEED, SEED, OTHER))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("core", "rule"),
    [
        (Corrupting, "B1"),
        (Dropping, "O2"),
        (Repeating, "B2"),
        (Mislabelling, "B4"),
        (Forging, "O1"),
        (Hurrying, "B1"),
    ],
)
def test_a_wrong_core_is_found(core: type[FakeCore], rule: str) -> None:
    """What a core does wrong is found from the outside, through the whole simulator."""
    found = {violation.rule for violation in run(calm_plan(), core).violations}
    assert rule in found


def test_faults_reach_the_core() -> None:
    """The fake cannot survive a crash: the simulator must notice broken promises."""
    seed = next(s for s in range(999) if "crash" in (p := make_plan(s)).faults and len(p.names) > 2)
    result = run(make_plan(seed, only=("crash",)))
    assert result.faults["crash"] > 0
    assert not result.ok


def test_a_plan_is_drawn_before_faults_are_removed() -> None:
    """Shrinking a seed changes nothing but the faults."""
    for seed in range(50):
        whole, bare = make_plan(seed), make_plan(seed, only=())
        assert (whole.names, whole.chaos_s) == (bare.names, bare.chaos_s)
        assert bare.faults == ()
        assert set(make_plan(seed, without=("crash",)).faults) == set(whole.faults) - {"crash"}


def test_a_member_that_stays_cut_off_is_no_longer_followed() -> None:
    """On a real connection, heartbeats would end it."""
    upper = SimpleNamespace(
        name="d", dead=False, stopping=False, clients=SimpleNamespace(session=3),
        world=SimpleNamespace(outside=set()),
        controller=SimpleNamespace(replica=SimpleNamespace(machine=None)),
    )  # fmt: skip
    followed = _Followed(cast("Any", upper))
    assert not followed.is_lost
    upper.world.outside.add("d")
    assert followed.is_lost
