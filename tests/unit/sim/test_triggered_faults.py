"""Faults triggered by phases and view changes, and checks over all members at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.broker.stack import BrokerStack
from tests.sim.run.campaign import options_for, plan_of, run_plan
from tests.sim.world.cores import make_node
from tests.sim.world.random_tape import Tape
from tests.sim.world.sequence_numbers import Numbers
from vsync.totem.node import Node
from vsync.types import Guarantee, Member


def test_late_frames_and_outages_hit_members_that_form_a_ring() -> None:
    """In phases that random times seldom hit."""
    plan = plan_of(3, options_for("ring"))
    plan = replace(plan, faults=("late", "outage", "strike"), steps_min=1500, steps_max=2000)
    result = run_plan(plan, options_for("ring"))
    assert result.ok, result.violations
    pairs = result.world.pairs
    assert all(pairs["late", stage] for stage in ("gather", "commit", "recovery"))
    assert result.faults["outage"] > 1


def test_a_shutdown_of_all_ends_members_and_they_begin_again() -> None:
    """G14: what is ordered behind it is applied by all of them or by none."""
    options = options_for("oracle")
    plan = replace(plan_of(8, options), faults=("shutdown", "pause"), names=("a", "b", "c"))
    plan = replace(plan, steps_min=4000, steps_max=4000, calm_s=0.2, token_timeout_ms=100)
    result = run_plan(plan, options)
    assert result.ok, result.violations
    assert result.faults["shutdown"]
    assert isinstance(result.world.stack, BrokerStack)
    assert result.world.stack.judge.counters["ended_clean"]


def test_a_number_that_nobody_issued_is_found() -> None:
    """The only member of a ring makes one frame; the token counts two."""
    me = Member("a", 1, "a:1")
    node = make_node(me, replace(plan_of(9, options_for("ring")), faults=()), Tape(1).random)
    assert isinstance(node, Node)
    node.start(0.0)
    node.wake(1.0)
    node.submit(b"x", 1.0, Guarantee.SAFE)
    node.wake(2.0)
    numbers = Numbers()
    numbers.look(node)
    assert node.membership.current is not None
    assert node.membership.current.forwarded == 1
    node.membership.current.forwarded = 2
    with pytest.raises(AssertionError, match="1 were given out"):
        numbers.look(node)
