"""The bench of one small message compares builds by calls, so calls must not vary by chance."""

from __future__ import annotations

from pathlib import Path

from tests.bench.parts.turn import run

MESSAGES = 3


def test_calls_are_the_same_in_each_run(tmp_path: Path) -> None:
    first, second = (run(tmp_path / name, MESSAGES, profiled=True) for name in ("first", "second"))
    assert first.calls == second.calls
    assert set(first.calls) == set(first.stages)


def test_each_message_is_confirmed_delivered_and_acked(tmp_path: Path) -> None:
    bench = run(tmp_path / "log", MESSAGES, profiled=False)
    assert bench.clients.confirmed == MESSAGES
    (queue,) = bench.member.controller.replica.machine.vhosts["/"].queues.values()
    assert (queue.tally.deliver, queue.tally.ack) == (MESSAGES, MESSAGES)
