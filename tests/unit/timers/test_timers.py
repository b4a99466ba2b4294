"""Duties of members as time passes: ticks, when and how many.

Decision: docs/decisions/0020-messages-expire-late-rather-than-early.md.
"""

import pytest

from broker.exit_codes import Exit
from broker.machine import commands as c
from broker.machine.command_codec import pack_blob
from broker.machine.machine import Machine
from broker.replication.controller import Controller
from broker.replication.replica import Replica
from broker.timers.timers import SHUTDOWN_WAIT_S, Timers
from tests.support.scripted_views import Bus
from vsync.primary.component import Primary

BEAT_S = 0.05
EXPIRES_IN_A_SECOND = b"\x01\x00\x041000"  # one second to live
EXPIRES_IN_AN_HOUR = b"\x01\x00\x073600000"


class Silent:
    """Refuses nobody."""

    def wake(self, now: float) -> None:
        """Nothing to do."""


class Cluster:
    """Three members, each with its own clock, whose duties run twenty times a second."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.now = 100.0
        for name in "abc":
            self.bus.start(name)
        self.timers: dict[str, Timers] = {}
        for name in "abc":
            self.renew(name)
        self.ahead_s = dict.fromkeys("abc", 0.0)
        self.stopped_with: list[tuple[str, Exit, str]] = []
        self.conn = 0
        self.bus.change("a b c")

    def renew(self, name: str) -> None:
        """Start the duties of a new incarnation."""

        def stopped(code: Exit, reason: str) -> None:
            if name not in [gone for gone, _, _ in self.stopped_with]:
                self.stopped_with.append((name, code, reason))

        self.timers[name] = Timers(self.bus.cores[name], Silent(), stopped, self.now)

    def pass_time(self, seconds: float) -> int:
        """The number of commands ordered in that time."""
        before = self.position
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            for name, timers in self.timers.items():
                timers.wake(self.now + self.ahead_s[name])
            self.bus.run("a b c")
            for name, timers in self.timers.items():
                timers.ticker.turn(self.now + self.ahead_s[name], busy=False)
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
        self.bus.cores["a"].submit(
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
    cluster.publish(EXPIRES_IN_A_SECOND)
    assert cluster.pass_time(1.0) > 0
    cluster.pass_time(0.5)
    assert cluster.depth == 0
    assert cluster.pass_time(5) == 0


def test_each_member_ticks_when_something_is_due(cluster: Cluster) -> None:
    """Before that it ticks twice a second."""
    cluster.publish(EXPIRES_IN_A_SECOND)
    assert cluster.pass_time(0.95) == 3 * 2
    assert cluster.depth == 1
    assert 2 <= cluster.pass_time(0.15) <= 3
    assert cluster.depth == 0


def test_a_distant_deadline_causes_two_ticks_a_second(cluster: Cluster) -> None:
    cluster.publish(EXPIRES_IN_AN_HOUR)
    cluster.pass_time(1)  # nobody knows yet how distant it is
    assert 54 <= cluster.pass_time(10) <= 60


def test_time_advances_with_the_clocks(cluster: Cluster) -> None:
    """However rare the ticks are, no time is lost."""
    cluster.publish(EXPIRES_IN_AN_HOUR)
    machine = cluster.bus.cores["b"].replica.machine
    for seconds in (0.5, 10.0):
        cluster.pass_time(seconds)
        before = machine.now_us
        cluster.pass_time(10.0)
        assert machine.now_us - before == pytest.approx(10e6, abs=600_000)


def test_a_message_lives_as_long_as_it_should(cluster: Cluster) -> None:
    """G17: never shorter, and little longer."""
    cluster.ahead_s = {"a": 8.0, "b": -8.0, "c": 0.0}
    for pause in (0.0, 3.0, 0.33):
        cluster.pass_time(pause)
        cluster.publish(EXPIRES_IN_A_SECOND)
        cluster.pass_time(0.95)
        assert cluster.depth == 1
        cluster.pass_time(0.15)
        assert cluster.depth == 0


def test_a_message_sent_while_ticks_are_rare_lives_no_second_longer(
    cluster: Cluster,
) -> None:
    """G17: between two turns of the members the last message went and another one came."""
    cluster.publish(EXPIRES_IN_AN_HOUR)
    cluster.pass_time(5.9)
    cluster.bus.cores["a"].submit([c.QueuePurge(c.QUEUE_PURGE, cluster.conn, 1, "q", False)])
    cluster.publish(EXPIRES_IN_A_SECOND)
    cluster.pass_time(0.95)
    assert cluster.depth == 1
    cluster.pass_time(0.6)  # nobody told the machine that clients are busy
    assert cluster.depth == 0


@pytest.mark.parametrize("wild_s", [1e8, -1e2])
def test_one_wild_clock_changes_nothing(cluster: Cluster, wild_s: float) -> None:
    """G17."""
    cluster.publish(EXPIRES_IN_A_SECOND)
    cluster.pass_time(0.4)
    cluster.ahead_s["b"] = wild_s
    cluster.pass_time(0.55)
    assert cluster.depth == 1
    cluster.pass_time(0.55)
    assert cluster.depth == 0


def test_a_joiner_whose_state_ends_with_the_shutdown_stops_too(cluster: Cluster) -> None:
    """The received state contains the shutdown already, so the joiner never applies it itself."""
    bus = cluster.bus
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    cluster.renew("c")
    bus.change("a b c")
    bus.cores["a"].submit([c.Shutdown(c.SHUTDOWN, "the end")])
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
    assert not bus.cores["c"].submissions.open, "a command after the end would be ordered"


def test_what_follows_a_shutdown_that_not_all_have_on_disk_is_applied_by_nobody(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member may still write a checkpoint then. What one that has yet to apply the shutdown
    orders meanwhile would be applied by those alone whose time is over."""
    core = cluster.bus.cores["a"]
    monkeypatch.setattr(core.primary, "durable_everywhere", lambda: core.shutdown_position - 1)
    core.submit([c.Shutdown(c.SHUTDOWN, "the end")])
    cluster.bus.run("a b c")
    cluster.pass_time(SHUTDOWN_WAIT_S - 0.2)
    assert "a" not in [name for name, _, _ in cluster.stopped_with]
    assert core.shutdown_position
    cluster.pass_time(0.4)
    said = "the whole cluster was shut down, not all members in time"
    assert ("a", Exit.OK, said) in cluster.stopped_with
    assert core.shutdown_overdue, "the store would be marked clean"
    assert core.shutdown_position, "an arbitrator would not be stopped, nor a shared store ended"
    before = core.replica.history
    session = cluster.bus.cores["b"].submissions.session
    late = pack_blob(session, 1, 99, [c.ConnectionOpen(c.CONNECTION_OPEN, 9, "/", "guest", "x:9")])
    cluster.bus.deliver("a", cluster.bus.cores["b"].me, Primary.wrap(late))
    cluster.pass_time(1.0)
    assert core.replica.history == before


def test_a_start_does_not_take_an_old_shutdown_for_a_new_one(cluster: Cluster) -> None:
    bus = cluster.bus
    bus.cores["a"].submit([c.Shutdown(c.SHUTDOWN, "the end")])
    bus.run("a b c")
    for name in "abc":
        bus.start(name, incarnation=2, keep=True)
        cluster.renew(name)
    cluster.pass_time(0.2)
    bus.change("a b c")
    cluster.pass_time(10)
    assert not cluster.stopped_with
    assert bus.cores["a"].serving


def test_a_member_that_missed_the_shutdown_goes_on_with_those_that_start_again(
    cluster: Cluster,
) -> None:
    """It hung meanwhile. What it receives ends with the shutdown, until it applies the activation
    that follows."""
    bus = cluster.bus
    bus.change("a b")
    bus.change("c")
    bus.cores["a"].submit([c.Shutdown(c.SHUTDOWN, "the end")])
    bus.run("a b")
    for name in "ab":
        bus.start(name, incarnation=2, keep=True)
        cluster.renew(name)
    ended = bus.cores["a"].replica
    chunks, end = list(ended.machine.snapshot()), ended.history
    bus.shells["c"].instant_transfers = False
    bus.change("a b c")
    assert bus.shells["c"].transfers
    core = bus.cores["c"]
    core.state_received(Replica("c", Machine.restore("c", chunks), end), counts=True)
    assert core.replica.machine.shutdown_id
    cluster.pass_time(0.2)
    assert not cluster.stopped_with
    assert core.serving
    assert not core.replica.machine.shutdown_id


def test_a_received_shutdown_ends_nobody_while_the_view_changes(cluster: Cluster) -> None:
    """The epoch is that of the view before, and those of the next one may have started again."""
    core = cluster.bus.cores["a"]
    cluster.bus.transitional("a b c")
    cluster.bus.view("a b c")
    assert core.primary.epoch == core.replica.history.epoch
    assert not core.primary.active
    core.replica.machine.shutdown_id = "of a run that ended"
    cluster.timers["a"].wake(cluster.now + BEAT_S)
    assert not core.shutdown_position


def received_the_end(cluster: Cluster) -> Controller:
    """C has received the shutdown with its state just as the view ended, and has not looked yet."""
    bus = cluster.bus
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    cluster.renew("c")
    bus.change("a b c")
    bus.cores["a"].submit([c.Shutdown(c.SHUTDOWN, "the end")])
    bus.run("a b c")
    bus.shells["c"].finish_transfer(bus.cores["a"].me)
    bus.run("a b c")
    bus.transitional("c")
    bus.view("c")
    bus.run("c")
    core = bus.cores["c"]
    assert core.replica.machine.shutdown_id
    assert not core.primary.active
    return core


def looks(cluster: Cluster, name: str, seconds: float) -> tuple[Exit, str] | None:
    """Let this member's duties run; return how it was stopped."""
    for _ in range(round(seconds / BEAT_S)):
        cluster.now += BEAT_S
        cluster.timers[name].wake(cluster.now)
        cluster.bus.run(name)
    return {gone: (code, why) for gone, code, why in cluster.stopped_with}.get(name)


def test_one_that_received_the_shutdown_as_its_view_ended_does_not_wait_for_the_others(
    cluster: Cluster,
) -> None:
    received_the_end(cluster)
    assert looks(cluster, "c", SHUTDOWN_WAIT_S) is None
    said = "the whole cluster was shut down; its primary view has ended"
    assert looks(cluster, "c", 0.3) == (Exit.OK, said)


def test_one_that_received_the_shutdown_and_hung_meets_those_that_have_begun_again(
    cluster: Cluster,
) -> None:
    """They are there before its patience is over, and it goes on with them."""
    bus = cluster.bus
    core = received_the_end(cluster)
    assert looks(cluster, "c", SHUTDOWN_WAIT_S - 1) is None
    bus.start("a", incarnation=2, keep=True)
    bus.transitional("c")
    bus.view("a c")
    assert looks(cluster, "c", SHUTDOWN_WAIT_S + 1) is None, "a has yet to report its state"
    bus.change("c")
    assert looks(cluster, "c", SHUTDOWN_WAIT_S - 1) is None, "its patience began anew"
    cluster.renew("a")
    bus.change("a c")
    cluster.pass_time(0.1)
    assert core.serving
    assert not core.replica.machine.shutdown_id


def test_a_start_after_a_shutdown_waits_alone(cluster: Cluster) -> None:
    """Its store ends with the shutdown, and it was in no view of that run."""
    bus = cluster.bus
    bus.cores["a"].submit([c.Shutdown(c.SHUTDOWN, "the end")])
    bus.run("a b c")
    bus.start("c", incarnation=2, keep=True)
    cluster.renew("c")
    bus.transitional("c")
    bus.view("c")
    assert looks(cluster, "c", 3 * SHUTDOWN_WAIT_S) is None


@pytest.mark.parametrize("half_way", [True, False])
def test_a_shutdown_half_removed_by_an_item_ends_nobody(cluster: Cluster, half_way: bool) -> None:
    """An activation that waits for a page has not yet removed the previous run's shutdown."""
    core = cluster.bus.cores["a"]
    core.replica.half_way = half_way
    core.replica.machine.shutdown_id = "of the run before"
    cluster.pass_time(0.2)
    assert bool(core.shutdown_position) is not half_way
    assert bool(cluster.stopped_with) is not half_way


def test_a_tick_under_way_is_not_repeated(cluster: Cluster) -> None:
    cluster.publish(EXPIRES_IN_A_SECOND)
    cluster.pass_time(0.3)
    before = len(cluster.bus.queue)
    for _ in range(10):  # nothing is ordered
        cluster.now += BEAT_S
        cluster.timers["a"].wake(cluster.now)
    assert len(cluster.bus.queue) - before <= 1
