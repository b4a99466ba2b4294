"""Queues that somebody should look at are noted in the sweep, told apart by what is wrong."""

from __future__ import annotations

from broker.statistics.noted_queues import NAMED_MAX, Few, NotedQueue
from broker.statistics.sampler import MINUTE_S
from tests.support.observed import Observed


def names(few: Few) -> list[tuple[str, int]]:
    return [(one.name, one.messages) for one in few.longest()]


def grown(seen: Observed) -> tuple[int, int]:
    """Of the only queue: how many messages wait, and came in the last minute."""
    (noted,) = seen.statistics.sampler.noted.untaken.longest()
    return noted.messages, noted.grew


def test_nobody_consumes_or_only_looks() -> None:
    seen = Observed()
    client = seen.rig.client()
    for name in ("parked", "empty", "taken", "log"):
        client.queue(name, arguments={"x-queue-type": "stream"} if name == "log" else {})
    client.consume("taken", "t")
    for name in ("parked", "parked", "taken", "log"):
        client.publish(name)
    seen.sweep()
    assert names(seen.statistics.sampler.noted.untaken) == [("parked", 2)]
    assert seen.statistics.sampler.noted.stuck.count == 0


def test_a_queue_that_grows_says_how_much_came_lately() -> None:
    seen = Observed()
    client = seen.rig.client()
    client.queue("parked")
    seen.sweep()
    for _ in range(10):
        client.publish("parked")
        client.publish("parked")
        seen.sweep()
    assert grown(seen) == (20, 20)


def test_who_published_a_minute_ago_and_no_more_is_not_said_to_publish() -> None:
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
    client.publish("q")
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


def test_only_the_longest_are_named_and_all_are_counted() -> None:
    few = Few()
    for number in (3, 9, 1, 7, 5, 8, 2):
        few.add(NotedQueue(number, -number, "/", f"q{number}"))
    assert few.count == 7
    assert [one.messages for one in few.longest()] == [9, 8, 7, 5, 3]
    assert len(few.longest()) == NAMED_MAX
