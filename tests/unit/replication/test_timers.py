"""What members do because time passes: ticks, when and how many.

Decision: docs/decisions/0008-time-is-the-progress-of-a-majority-of-clocks.md.
"""

import pytest

from broker.exit_codes import Exit
from broker.machine import commands as c
from broker.replication.timers import Timers
from tests.support.scripted_views import Bus

BEAT_S = 0.05
MORTAL_S = b"\x01\x00\x041000"  # a second to live
MORTAL_H = b"\x01\x00\x073600000"


class Silent:
    """Nobody to be turned away by."""

    def wake(self, now: float) -> None:
        """Nothing to look at."""


class Cluster:
    """Three members whose duties are called twenty times a second, each with a clock of its own."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.now = 100.0
        for name in "abc":
            self.bus.start(name)
        self.timers: dict[str, Timers] = {}
        for name in "abc":
            self.renew(name)
        self.ahead_us = dict.fromkeys("abc", 0)
        self.stopped_with: list[tuple[str, Exit, str]] = []
        self.conn = 0
        self.bus.change("a b c")

    def renew(self, name: str) -> None:
        """The duties of a new life."""

        def stopped(code: Exit, reason: str) -> None:
            if name not in [gone for gone, _, _ in self.stopped_with]:
                self.stopped_with.append((name, code, reason))

        self.timers[name] = Timers(self.bus.cores[name], Silent(), stopped, self.now)

    def pass_time(self, seconds: float) -> int:
        """How many commands were ordered meanwhile."""
        before = self.position
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            for name, timers in self.timers.items():
                self.bus.shells[name].date_us = int(self.now * 1e6) + self.ahead_us[name]
                timers.wake(self.now)
            self.bus.run("a b c")
        return self.position - before

    @property
    def position(self) -> int:
        return self.bus.cores["a"].replica.history.position

    @property
    def depth(self) -> int:
        queue = self.bus.cores["b"].replica.machine.vhosts["/"].queues["q"]
        return len(queue.ready)

    def publish(self, properties: bytes) -> None:
        self.conn = n = self.conn + 1
        self.bus.cores["a"].admit(
            [
                c.ConnectionOpen(c.CONNECTION_OPEN, n, "/", "guest", "x:1"),
                c.ChannelOpen(c.CHANNEL_OPEN, n, 1),
                c.QueueDeclare(c.QUEUE_DECLARE, n, 1, "q", False, True, False, False, False, {}),
                c.Publish(c.PUBLISH, n, 1, 1, "", "q", 0, properties, b"m"),
            ]
        )
        self.bus.run("a b c")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_no_tick_without_a_deadline(cluster: Cluster) -> None:
    assert cluster.pass_time(5) == 0
    cluster.publish(MORTAL_S)
    assert cluster.pass_time(1.0) > 0
    cluster.pass_time(0.5)
    assert cluster.depth == 0
    assert cluster.pass_time(5) == 0


def test_each_member_ticks_ten_times_a_second_and_no_more(cluster: Cluster) -> None:
    cluster.publish(MORTAL_S)
    assert 20 <= cluster.pass_time(1.0) <= 30


def test_a_deadline_far_away_is_worth_a_tick_a_second(cluster: Cluster) -> None:
    cluster.publish(MORTAL_H)
    cluster.pass_time(1)  # nobody knows yet how far away it is
    assert 27 <= cluster.pass_time(10) <= 30


def test_a_message_lives_as_long_as_it_should(cluster: Cluster) -> None:
    """G17: never shorter, and a little longer at most."""
    cluster.ahead_us = {"a": 8_000_000, "b": -8_000_000, "c": 0}
    for pause in (0.0, 3.0, 0.33):
        cluster.pass_time(pause)
        cluster.publish(MORTAL_S)
        cluster.pass_time(0.95)
        assert cluster.depth == 1
        cluster.pass_time(0.35)
        assert cluster.depth == 0


def test_a_time_that_stood_for_a_moment_is_not_told_as_gone(cluster: Cluster) -> None:
    """G17: between two looks of the members the last message went and another one came."""
    cluster.publish(MORTAL_H)
    cluster.pass_time(5.9)
    cluster.bus.cores["a"].admit([c.QueuePurge(c.QUEUE_PURGE, cluster.conn, 1, "q", False)])
    cluster.publish(MORTAL_S)
    cluster.pass_time(0.95)
    assert cluster.depth == 1
    cluster.pass_time(0.35)
    assert cluster.depth == 0


@pytest.mark.parametrize("wild_us", [10**14, -(10**8)])
def test_one_wild_clock_changes_nothing(cluster: Cluster, wild_us: int) -> None:
    """G17."""
    cluster.publish(MORTAL_S)
    cluster.pass_time(0.4)
    cluster.ahead_us["b"] = wild_us
    cluster.pass_time(0.55)
    assert cluster.depth == 1
    cluster.pass_time(0.35)
    assert cluster.depth == 0


def test_a_joiner_whose_state_ends_with_the_shutdown_stops_too(cluster: Cluster) -> None:
    """What it received holds the shutdown already, so it never applies it itself."""
    bus = cluster.bus
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    cluster.renew("c")
    bus.change("a b c")
    bus.cores["a"].admit([c.Shutdown(c.SHUTDOWN, "the end")])
    bus.run("a b c")
    cluster.pass_time(0.1)
    assert [name for name, _, _ in cluster.stopped_with] == ["a", "b"]
    assert bus.shells["c"].transfers
    bus.shells["c"].finish_transfer(bus.cores["a"].me)
    bus.run("a b c")
    cluster.pass_time(0.1)
    name, code, reason = cluster.stopped_with[2]
    assert (name, code, reason) == ("c", Exit.OK, "the whole cluster was shut down")
    assert bus.cores["c"].shutdown_position == bus.cores["a"].shutdown_position
    assert bus.cores["c"].replica.shutdown_id == "the end"


def test_a_start_does_not_take_an_old_shutdown_for_a_new_one(cluster: Cluster) -> None:
    bus = cluster.bus
    bus.cores["a"].admit([c.Shutdown(c.SHUTDOWN, "the end")])
    bus.run("a b c")
    for name in "abc":
        bus.start(name, incarnation=2, keep=True)
        cluster.renew(name)
    cluster.pass_time(0.2)
    bus.change("a b c")
    cluster.pass_time(10)
    assert not cluster.stopped_with
    assert bus.cores["a"].serving


def test_a_tick_under_way_is_not_doubled(cluster: Cluster) -> None:
    cluster.publish(MORTAL_S)
    cluster.pass_time(0.3)
    before = len(cluster.bus.queue)
    for _ in range(10):  # nothing is ordered
        cluster.now += BEAT_S
        cluster.bus.shells["a"].date_us = int(cluster.now * 1e6)
        cluster.timers["a"].wake(cluster.now)
    assert len(cluster.bus.queue) - before <= 1
