"""Queues that need attention are noted in the sweep, by what is wrong."""

from __future__ import annotations

from broker.machine.commands import Table
from broker.statistics.noted_queues import NAMED_MAX, Few, NotedQueue
from broker.statistics.sampler import MINUTE_S
from tests.support.observed import Observed


def names(few: Few) -> list[tuple[str, int]]:
    return [(one.name, one.messages) for one in few.longest()]


def grown(seen: Observed) -> tuple[int, int]:
    """For the only queue: the messages that wait, and those that came in the last minute."""
    (noted,) = seen.statistics.sampler.noted.untaken.longest()
    return noted.messages, noted.grew


def test_queues_without_consumers_or_with_browsers_only() -> None:
    seen = Observed()
    client = seen.rig.client()
    arguments: dict[str, Table] = {
        "log": {"x-queue-type": "stream"}, "shown": {"qpid.browse-only": True},
    }  # fmt: skip
    for name in ("parked", "empty", "taken", "log", "shown"):
        client.queue(name, arguments=arguments.get(name, {}))
    client.consume("taken", "t")
    client.consume("shown", "b")
    for name in ("parked", "parked", "taken", "log", "shown"):
        client.publish(name)
    seen.sweep()
    assert names(seen.statistics.sampler.noted.untaken) == [("parked", 2), ("shown", 1)]
    assert seen.statistics.sampler.noted.stuck.count == 0


def test_a_growing_queue_reports_its_recent_growth() -> None:
    seen = Observed()
    client = seen.rig.client()
    client.queue("parked")
    seen.sweep()
    for _ in range(10):
        client.publish("parked")
        client.publish("parked")
        seen.sweep()
    assert grown(seen) == (20, 20)


def test_publishing_that_stopped_a_minute_ago_is_not_reported() -> None:
    seen = Observed()
    client = seen.rig.client()
    client.queue("parked")
    seen.sweep()
    for _ in range(8):
        client.publish("parked")
    seen.sweep()
    for _ in range(30):
        seen.sweep()
    assert grown(seen) == (8, 8)
    for _ in range(45):
        seen.sweep()
    assert grown(seen) == (8, 0)


def test_consumers_that_settle_nothing_for_a_minute_are_stuck() -> None:
    seen = Observed()
    client = seen.rig.client()
    client.queue("q")
    seen.sweep()
    client.consume("q", "t", 1)
    for _ in range(3):
        client.publish("q")
    for _ in range(int(MINUTE_S) - 1):
        seen.sweep()
        assert seen.statistics.sampler.noted.stuck.count == 0
    for _ in range(20):
        seen.sweep()
    assert names(seen.statistics.sampler.noted.stuck) == [("q", 1)]
    client.ack(1)
    seen.sweep()
    assert seen.statistics.sampler.noted.stuck.count == 0


def test_only_the_longest_queues_are_named_and_all_are_counted() -> None:
    few = Few()
    for number in (3, 9, 1, 7, 5, 8, 2):
        few.add(NotedQueue(number, -number, "/", f"q{number}"))
    assert few.count == 7
    assert [one.messages for one in few.longest()] == [9, 8, 7, 5, 3]
    assert len(few.longest()) == NAMED_MAX
