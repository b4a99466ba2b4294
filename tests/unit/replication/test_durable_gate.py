"""Acknowledgements of a change wait for its position, and leave in order (G9)."""

from __future__ import annotations

from broker.machine.effects import Confirm, DeliverEffect, Reply
from broker.replication.durable_gate import DurableGate, acknowledges_durable


def test_what_waits_leaves_once_its_position_is_released() -> None:
    gate: DurableGate[str] = DurableGate()
    assert gate.is_open(0)
    assert not gate.is_open(1)
    gate.hold(3, "three")
    gate.hold(5, "five")
    assert not list(gate.take())
    assert gate.release(4)
    assert list(gate.take()) == [(3, "three")]
    assert not gate.release(4)
    assert not gate.release(2)
    assert gate.released == 4
    assert not list(gate.take())
    assert gate.release(5)
    assert list(gate.take()) == [(5, "five")]


def test_a_released_position_stays_released_when_waiting_work_is_dropped() -> None:
    gate: DurableGate[str] = DurableGate()
    gate.release(4)
    gate.hold(5, "five")
    gate.clear()
    gate.release(6)
    assert not list(gate.take())
    assert gate.is_open(6)


def test_nothing_of_another_history_is_released() -> None:
    """G9: it may have other items at the positions that the previous one released."""
    gate: DurableGate[str] = DurableGate()
    gate.release(4)
    gate.hold(5, "five")
    gate.begin_anew()
    assert not gate.is_open(1)
    assert gate.release(3)
    assert gate.is_open(3)
    gate.hold(5, "another five")
    gate.release(5)
    assert list(gate.take()) == [(5, "another five")]


def test_confirms_wait_for_durable_changes_and_deliveries_do_not() -> None:
    assert acknowledges_durable(Confirm(1, 1, 1, False, True))
    assert acknowledges_durable(Reply(1, 1, "queue.declare-ok", (), True))
    assert not acknowledges_durable(Reply(1, 1, "basic.qos-ok", (), False))
    delivery = DeliverEffect(1, 1, "c", 1, False, "", "q", b"", b"", False)
    assert not acknowledges_durable(delivery)
