"""Our broker beside RabbitMQ; tests that need one are skipped where none is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.amqp.fields import Value
from broker.amqp.spec import METHODS
from tests.differential import lockstep, program, wire
from tests.differential.__main__ import compare, two_brokers
from tests.differential.peers import Side
from tests.differential.program import Program, Step
from tests.differential.rules import RULES, Difference, rule_of
from tests.support.amqp_peer import method
from tests.system.links.test_rabbitmq import LACKING, SBIN
from tools.demo.local_cluster import LocalCluster

WITH_RABBITMQ = pytest.mark.skipif(SBIN is None, reason=LACKING)
PAGE = Path(__file__).parents[2] / "docs/COMPATIBILITY.md"


def test_every_intended_difference_is_documented() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    lost = [
        words for words in (*(r.words for r in RULES), *wire.MEANT.values()) if words not in page
    ]
    assert not lost
    assert wire.MEANT.keys() <= wire.CASES.keys()


def test_programs_depend_on_their_seeds_and_can_be_sent() -> None:
    seen = set()
    for seed in range(300):
        whole = program.program(seed)
        assert whole == program.program(seed)
        for step in whole.steps:
            seen.add(step.what)
            if step.what in METHODS:
                method(1, step.what, *step.args)
    assert {"publish", "settle", "drop", "tx.commit", "exchange.bind", "policy"} <= seen


def test_a_program_is_shrunk_to_the_difference() -> None:
    table: dict[str, Value] = {"a": 1, "b": 2}
    steps = tuple(Step(1, 1, "queue.declare", (f"q{n}", table)) for n in range(30))

    def differs(fewer: Program) -> bool:
        left = {step.args[0]: step.args[1] for step in fewer.steps}
        wanted = left.get("q23")
        return "q7" in left and isinstance(wanted, dict) and "b" in wanted

    small = lockstep.shrink(Program(steps), differs)
    assert [step.args for step in small.steps] == [("q7", {}), ("q23", {"b": 2})]


@pytest.mark.parametrize(
    ("queue", "counts", "meant"),
    [("~q3", (1, 2), True), ("~q3", (2, 1), False), ("~q1", (4, 3), True), ("~q1", (3, 4), False)],
)
def test_what_expires_in_a_priority_queue_may_be_counted_there(
    queue: str, counts: tuple[int, int], *, meant: bool
) -> None:
    """Seed 700893: RabbitMQ 3.10.8 keeps it until its turn, ours sends it to `~q1` at once."""
    table: dict[str, Value] = {"x-max-priority": 1, "x-dead-letter-exchange": "~x2"}
    before = (
        Step(1, 1, "queue.declare", ("~q3", False, False, False, False, False, table)),
        Step(1, 1, "publish", ("~x2", "a", False, False, {"expiration": "0"}, "m")),
    )
    look = Step(9, 1, "queue.declare", (queue, True, False, False, False, False, {}))
    ours, theirs = ([f"9.1 replies: queue.declare-ok ('{queue}', {n}, 0)"] for n in counts)
    seen = Difference(look, ours, theirs, before=before)
    assert (rule_of(seen) is not None) is meant
    assert rule_of(seen._replace(before=before[1:])) is None


class Forgetful(lockstep.Lockstep):
    """A second broker that never learns that a message is mandatory."""

    def send(self, side: Side, step: Step) -> None:
        if step.what == "publish" and side.address == self.addresses[1]:
            step = step._replace(args=(*step.args[:2], False, *step.args[3:]))
        super().send(side, step)


@pytest.mark.slow
@pytest.mark.system
def test_a_broker_that_ignores_mandatory_is_noticed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        both = [
            stack.enter_context(
                LocalCluster(tmp_path / name, 1, name, stores=False, management=True)
            )
            for name in ("one", "other")
        ]
        for cluster in both:
            cluster.start()
        addresses = both[0][0].address, both[1][0].address
        apis = [cluster[0].management for cluster in both]
        alike, forgetful = (kind(*addresses, apis) for kind in (lockstep.Lockstep, Forgetful))
        seeds = range(1, 6)
        assert not compare(alike, seeds)
        found = [seed for seed in seeds if forgetful.holds(program.program(seed))]
        whole = program.program(found[0])
        difference = forgetful.holds(whole)
        assert difference is not None
        small = forgetful.smallest(whole, difference)
        assert "basic.return" in str(forgetful.holds(small))
        assert len(small.steps) <= 3
        assert not alike.holds(small)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lockstep.Lockstep]:
    assert SBIN is not None
    with ExitStack() as stack:
        yield two_brokers(stack, tmp_path_factory.mktemp("differential"), SBIN)


@WITH_RABBITMQ
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(300)
def test_programs_at_both(brokers: lockstep.Lockstep) -> None:
    assert compare(brokers, range(1, 31)) == []


@WITH_RABBITMQ
@pytest.mark.slow
@pytest.mark.system
def test_frames_at_both(brokers: lockstep.Lockstep) -> None:
    assert [str(one) for one in brokers.wire()] == []
