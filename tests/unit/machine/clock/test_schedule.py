"""The schedule by which queues are checked for expired messages."""

import itertools
import random

import pytest

from broker.machine.machine import Machine
from broker.machine.queueing import queue_limits
from broker.machine.schedule import NEVER_US, Schedule
from broker.machine.state import Queue, State
from tests.support.three_machines import Rig


def taken(schedule: Schedule, now_us: int) -> list[int]:
    found = []
    while (number := schedule.take(now_us)) is not None:
        found.append(number)
    return found


def test_the_earliest_time_counts_until_it_is_taken() -> None:
    schedule = Schedule()
    for number, at_us in ((1, 30), (2, 10), (1, 20), (3, 20), (2, 40), (4, 5)):
        schedule.note(number, at_us)
    schedule.forget(4)
    assert schedule.next_us == 10
    assert taken(schedule, 9) == []
    assert taken(schedule, 20) == [2, 1, 3]
    assert schedule.next_us == NEVER_US
    schedule.note(2, 40)
    assert schedule.times == {2: 40}
    schedule.note(1, NEVER_US)
    assert schedule.times == {2: 40}


def test_the_schedule_agrees_with_a_plain_table_of_times() -> None:
    """Over many rounds, with more superseded entries than the schedule keeps."""
    dice = random.Random(7)
    schedule, times = Schedule(), dict[int, int]()
    for now_us in range(0, 4_000, 50):
        for _ in range(200):
            number, at_us = dice.randrange(20), now_us + dice.randrange(5_000)
            schedule.note(number, at_us)
            times[number] = min(at_us, times.get(number, NEVER_US))
        gone = dice.randrange(20)
        schedule.forget(gone)
        times.pop(gone, None)
        due = sorted((at, number) for number, at in times.items() if at <= now_us)
        assert taken(schedule, now_us) == [number for _, number in due]
        for _, number in due:
            del times[number]
        assert schedule.times == times


def test_a_tick_checks_only_queues_that_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once checked every queue in which something could expire."""
    looked: list[str] = []

    def watched(state: State, queue: Queue, count_max: int) -> int:
        looked.append(queue.name)
        return queue_limits.expire(state, queue, count_max)

    monkeypatch.setattr("broker.machine.handlers.sessions.expire", watched)
    rig = Rig()
    client = rig.client()
    for number in range(5):
        client.queue(f"q{number}", {"x-message-ttl": 1000 + 60_000 * number})
        client.publish(f"q{number}", b"m")
    client.get("q1")
    rig.pass_time(1_000_000)
    assert looked == ["q0"] * 3, "once on each member"
    assert [rig.depth(f"q{number}") for number in range(5)] == [0, 0, 1, 1, 1]


def test_one_tick_checks_a_bounded_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues with no message left count too; a restored member does the same as the others."""
    monkeypatch.setattr("broker.machine.handlers.sessions.EXPIRED_PER_TICK_MAX", 2)
    rig = Rig()
    client = rig.client()
    for number in range(6):
        client.queue(f"q{number}", {"x-message-ttl": 1000})
        client.publish(f"q{number}", b"m")
        if number % 2:
            client.get(f"q{number}")
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    for at_us in (300_000, 600_000, 900_000, 1_200_000, 1_500_000):
        for member in "abc":
            rig.tick(member, at_us)
    scheduled = [len(rig.machine.expiry.times)]
    while rig.machine.expiry.times:
        rig.tick("a", rig.machine.now_us)
        scheduled.append(len(rig.machine.expiry.times))
    assert [rig.depth(f"q{number}") for number in range(6)] == [0] * 6
    assert all(a - b <= 2 for a, b in itertools.pairwise(scheduled))
    assert list(rig.machines["b"].snapshot()) == list(rig.machine.snapshot())
