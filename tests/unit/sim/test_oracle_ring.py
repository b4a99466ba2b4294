"""The oracle's ring may be hostile, but only in ways in which a real ring could be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tests.sim.run.plan import make_plan
from tests.sim.stacks.oracle import Oracle, OracleCore
from tests.sim.world.world import World
from vsync.totem.events import Marks
from vsync.types import Guarantee, Member

A, B = Member("a", 1, "1"), Member("b", 1, "2")


def ring_of_two() -> tuple[Oracle, OracleCore, OracleCore]:
    """Two members in one ring, which only the test changes."""
    oracle = Oracle(make_plan(1))
    cores = [OracleCore(oracle, one) for one in (A, B)]
    for core in cores:
        core.start(0.0)
    taps = {core.me.name: SimpleNamespace(tap=SimpleNamespace(core=core)) for core in cores}
    oracle.world = cast("World", SimpleNamespace(members=taps, healed=False, outside=()))
    oracle.change_at = 1e9
    oracle._join(cores)
    return oracle, cores[0], cores[1]


def shown_to(core: OracleCore, oracle: Oracle) -> dict[str, int]:
    """Return the marks that a member has received after many visits."""
    for _ in range(50):
        oracle.visit(core, 1.0)
    return next((dict(out.marks) for out in reversed(core.take()) if isinstance(out, Marks)), {})


def test_a_member_sees_marks_only_of_its_own_ring() -> None:
    """Seed 1650: c, left behind in a ring, learnt in the next ring what b had on its disk."""
    oracle, a, b = ring_of_two()
    a.set_mark(3, 0.0)
    b.set_mark(4, 0.0)
    assert shown_to(a, oracle) == {"a": 3, "b": 4}
    oracle._join([b])
    a.set_mark(6, 0.0)
    b.set_mark(7, 0.0)
    assert shown_to(a, oracle) == {"a": 6, "b": 4}


def test_a_mark_is_visible_once_all_have_delivered_what_it_covers() -> None:
    """As on a token (`tests/unit/vsync/quorum/test_marks.py`)."""
    oracle, a, b = ring_of_two()
    ring = a.current
    assert ring is not None
    assert a.submit(b"x", 0.0, Guarantee.SAFE)
    while not a.delivered:
        oracle.visit(a, 1.0)
        oracle.visit(b, 1.0)
        b.delivered = 0  # it is slow
    a.set_mark(5, 0.0)
    assert shown_to(a, oracle).get("a", 0) == 0
    while not b.delivered:
        oracle.visit(b, 1.0)
    assert shown_to(a, oracle)["a"] == 5
