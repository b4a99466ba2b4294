"""Consumers that hold a delivery for too long lose their channel, with RabbitMQ's message."""

from types import SimpleNamespace
from typing import cast

import pytest

from broker.machine import commands as c
from broker.timers.consumer_timeouts import CHANNELS_MAX, LOOK_S, MARKS_MAX, ConsumerTimeouts
from broker.timers.ticker import Clocked
from tests.support.gateway_loop import Loop, Peer

WORDS = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel {} timed out. Timeout value used: "
    "{} ms. This timeout value can be configured, see consumers doc guide to learn more"
)


class Timed:
    """A member with clients, and a clock."""

    def __init__(self, default_s: float = 30.0) -> None:
        self.loop, self.now = Loop(), 100.0
        self.core = SimpleNamespace(
            replica=SimpleNamespace(machine=self.loop.machine), serving=True
        )
        self.timeouts = ConsumerTimeouts(
            cast("Clocked", self.core), self.loop.gateway.refuse_channel, default_s
        )

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += LOOK_S / 2
            self.timeouts.wake(self.now)
            self.loop.turn()

    def consumer(self, queue: str, arguments: c.Table | None = None) -> Peer:
        peer = self.loop.connect().open(1, 2)
        declared = peer.call(
            1, "queue.declare", queue, False, False, False, False, False, arguments or {}
        )
        assert declared[0][0] == "queue.declare-ok", declared
        peer.call(2, "basic.consume", queue, "", False, False, False, False, {})
        return peer


def test_a_timeout_closes_the_channel_and_requeues_its_messages() -> None:
    timed = Timed()
    holder = timed.consumer("q", {"x-consumer-timeout": 5000})
    holder.publish(1, "q", b"m")
    timed.wait(4.5)
    assert [one.method for one in holder.take()] == ["basic.deliver"] * 0
    timed.wait(1.5)
    (closed,) = holder.take()
    assert (closed.method, closed.args) == ("channel.close", (406, WORDS.format(2, 5000), 0, 0))
    (got,) = holder.send_method("basic.get", "q", True)
    assert (got.method, got.args[1]) == ("basic.get-ok", True)
    assert holder.call(2, "channel.close-ok") == []
    holder.open(2)


def test_a_consumer_that_acknowledges_in_time_is_left_alone() -> None:
    timed = Timed(default_s=5.0)
    client = timed.consumer("q")
    for tag in range(1, 8):
        client.publish(1, "q", b"m")
        client.publish(1, "q", b"m")
        timed.wait(2.0)
        client.call(2, "basic.ack", 2 * tag, True)
    assert all(one.method == "basic.deliver" for one in client.take())


def test_deliveries_of_a_channel_that_was_opened_again_have_their_whole_time() -> None:
    """Their tags begin at 1 again, below those of the closed channel of the same number."""
    timed = Timed(default_s=10.0)
    client = timed.consumer("q")
    for _ in range(20):
        client.publish(1, "q", b"m")
    timed.wait(8.0)
    client.call(2, "basic.ack", 19, True)
    client.call(2, "channel.close", 200, "again", 0, 0)
    client.open(2)
    client.call(2, "basic.consume", "q", "", False, False, False, False, {})
    client.take()
    timed.wait(9.0)
    assert client.take() == []
    timed.wait(2.0)
    (closed,) = client.take()
    assert closed.args[:2] == (406, WORDS.format(2, 10_000))


def test_a_channel_of_another_members_client_is_that_members_to_close() -> None:
    """A client here may have a connection and a channel of the same numbers."""
    timed = Timed(default_s=10.0)
    client = timed.consumer("q")
    client.publish(1, "q", b"m")
    for channel in timed.loop.machine.channels.values():
        channel.local = False
    client.take()
    timed.wait(20.0)
    assert client.take() == []


def test_times_of_channels_that_are_gone_are_forgotten() -> None:
    timed = Timed(default_s=10.0)
    client = timed.consumer("q")
    client.publish(1, "q", b"m")
    timed.wait(1.0)
    assert len(timed.timeouts._times) == 1
    client.call(2, "channel.close", 200, "done", 0, 0)
    timed.wait(1.0)
    assert not timed.timeouts._times


def test_one_old_delivery_among_many_settled_ones_is_found() -> None:
    """Later deliveries do not hide it, and the memory for times is bounded."""
    timed = Timed(default_s=8.0)
    client = timed.consumer("q")
    client.publish(1, "q", b"held")
    for tag in range(2, 16):
        client.publish(1, "q", b"m")
        client.call(2, "basic.ack", tag, False)
        timed.wait(LOOK_S)
        assert all(len(one.marks) <= MARKS_MAX + 2 for one in timed.timeouts._times.values())
    client.take()
    timed.wait(2.0)
    (closed,) = client.take()
    assert closed.args[:2] == (406, WORDS.format(2, 8000))


def test_each_queue_has_its_own_limit() -> None:
    timed = Timed(default_s=0.0)
    client = timed.consumer("free")
    client.call(1, "queue.declare", "slow", False, False, False, False, False,
                {"x-consumer-timeout": 20_000})  # fmt: skip
    client.call(2, "basic.consume", "slow", "", False, False, False, False, {})
    client.publish(1, "free", b"m")
    timed.wait(60.0)
    client.publish(1, "slow", b"m")
    client.take()
    timed.wait(18.0)
    assert client.take() == []
    timed.wait(4.0)
    (closed,) = client.take()
    assert closed.args[:2] == (406, WORDS.format(2, 20_000))


def test_the_lower_of_policy_and_argument_counts() -> None:
    timed = Timed()
    timed.loop.define("policy", "/", "p", {
        "pattern": "^q", "definition": {"consumer-timeout": 3000}, "priority": 0,
        "apply-to": "queues",
    })  # fmt: skip
    client = timed.consumer("q", {"x-consumer-timeout": 9000})
    client.publish(1, "q", b"m")
    client.take()
    timed.wait(4.0)
    (closed,) = client.take()
    assert closed.args[:2] == (406, WORDS.format(2, 3000))


def test_time_without_service_does_not_count() -> None:
    timed = Timed(default_s=5.0)
    client = timed.consumer("q")
    client.publish(1, "q", b"m")
    client.take()
    timed.wait(4.0)
    timed.core.serving = False
    timed.wait(60.0)
    timed.core.serving = True
    timed.wait(4.0)
    assert client.take() == []
    timed.wait(2.0)
    assert [one.method for one in client.take()] == ["channel.close"]


def test_many_channels_are_checked_in_steps() -> None:
    timed = Timed(default_s=5.0)
    client = timed.consumer("q")
    client.publish(1, "q", b"m")
    client.take()
    machine = timed.loop.machine
    held = next(key for key, channel in machine.channels.items() if channel.unacked)
    looked: list[tuple[int, int, int]] = []
    timed.timeouts._look = lambda key, *_: looked.append(key)  # type: ignore[method-assign]
    for number in range(3, 3 + 2 * CHANNELS_MAX):
        machine.channels[(*held[:2], number)] = machine.channels[held]
    timed.timeouts.wake(timed.now)
    assert len(looked) == CHANNELS_MAX
    for _ in range(3):
        timed.timeouts.wake(timed.now)
    assert sorted(looked) == sorted(machine.channels)


@pytest.mark.parametrize("value", [0, -1, "5000", True])
def test_an_invalid_argument_is_refused(value: c.Value) -> None:
    peer = Loop().connect().open(1)
    arguments: c.Table = {"x-consumer-timeout": value}
    (refused,) = peer.call(1, "queue.declare", "q", False, False, False, False, False, arguments)
    assert refused[:2] == ("channel.close", 406)
    assert "x-consumer-timeout" in str(refused[2])


def test_a_delivery_whose_consumer_was_cancelled_has_the_limit_of_its_queue() -> None:
    timed = Timed(default_s=0.0)
    holder = timed.consumer("q", {"x-consumer-timeout": 5000})
    holder.publish(1, "q", b"m")
    (channel,) = (one for one in timed.loop.machine.channels.values() if one.consumers)
    holder.call(2, "basic.cancel", next(iter(channel.consumers)), False)
    timed.wait(8.0)
    assert "channel.close" in [one.method for one in holder.take()]


def test_a_message_from_basic_get_has_the_limit_of_its_queue() -> None:
    timed = Timed(default_s=0.0)
    peer = timed.loop.connect().open(1)
    arguments: c.Table = {"x-consumer-timeout": 5000}
    peer.call(1, "queue.declare", "q", False, False, False, False, False, arguments)
    peer.publish(1, "q", b"m")
    peer.call(1, "basic.get", "q", False)
    timed.wait(8.0)
    assert "channel.close" in [one.method for one in peer.take()]


def test_a_long_limit_beside_a_short_one_keeps_few_times() -> None:
    timed = Timed(default_s=0.0)
    holder = timed.consumer("free")
    arguments: c.Table = {"x-consumer-timeout": 1000}
    holder.call(1, "queue.declare", "short", False, False, False, False, False, arguments)
    holder.call(2, "basic.consume", "short", "", False, False, False, False, {})
    holder.publish(1, "free", b"held for ever")
    for tag in range(2, 3 * MARKS_MAX):
        holder.publish(1, "short", b"m")
        holder.call(2, "basic.ack", tag, False)
        timed.wait(LOOK_S)
    (marks,) = timed.timeouts._times.values()
    assert len(marks) <= MARKS_MAX


def test_a_pause_of_the_process_does_not_count() -> None:
    """What clients sent during the pause has been read, but not applied yet."""
    timed = Timed()
    holder = timed.consumer("q", {"x-consumer-timeout": 5000})
    holder.publish(1, "q", b"m")
    timed.wait(1.0)
    timed.now += 10.0
    timed.wait(2.0)
    assert [one.method for one in holder.take()] == []
    timed.wait(3.0)
    assert [one.method for one in holder.take()] == ["channel.close"]
