"""Publishers blocked by an alarm, and other work during the alarm (G21)."""

import pytest

from broker.amqp import codec
from broker.amqp.fields import Table, Value
from broker.frontend.client import KEPT_BYTES_MAX
from tests.support.amqp_peer import method, publish
from tests.support.gateway_loop import Loop, Peer

ALARM = "low on disk: 1 MB free at a"


def said(peer: Peer) -> list[tuple[Value, ...]]:
    return [(one.method, *one.args) for one in peer.take()]


def with_queue(loop: Loop) -> Peer:
    peer = loop.connect().open(1, 2)
    peer.call(1, "queue.declare", "q", False, True, False, False, False, {})
    peer.call(1, "confirm.select", False)
    return peer


def depth(loop: Loop) -> int:
    return len(loop.machine.vhosts["/"].queues["q"].ready)


def test_publishes_wait_and_are_taken_in_order_after_the_alarm() -> None:
    loop = Loop()
    peer = with_queue(loop)
    loop.gateway.block(ALARM)
    assert [one.method for one in peer.send(publish(1, "", "q", b"1"))] == ["connection.blocked"]
    assert peer.send(publish(1, "", "q", b"2")) == []
    assert depth(loop) == 0
    loop.gateway.block("")
    loop.turn()
    assert [one[0] for one in said(peer)] == ["connection.unblocked", "basic.ack"]
    assert [message[-1] for message in loop.machine.vhosts["/"].queues["q"].ready] == [b"1", b"2"]


def test_earlier_publishers_are_notified_at_once_and_once_with_the_reason() -> None:
    loop = Loop()
    peer, other = with_queue(loop), loop.connect().open(1)
    peer.send(publish(1, "", "q"))
    peer.take(), other.take()
    loop.gateway.block(ALARM)
    loop.gateway.block(ALARM + ", and 1 more")
    loop.turn()
    assert said(peer) == [("connection.blocked", ALARM)]
    assert said(other) == []
    loop.gateway.block("")
    loop.turn()
    assert said(peer) == [("connection.unblocked",)]
    assert said(other) == []


def test_a_client_without_the_capability_waits_too() -> None:
    loop = Loop()
    with_queue(loop)
    peer = loop.connect(properties={}).open(1)
    loop.gateway.block(ALARM)
    assert peer.send(publish(1, "", "q")) == []
    assert depth(loop) == 0
    loop.gateway.block("")
    loop.turn()
    assert said(peer) == []
    assert depth(loop) == 1


def test_a_client_that_connects_during_the_alarm_is_notified_at_its_first_publish() -> None:
    loop = Loop()
    with_queue(loop)
    loop.gateway.block(ALARM)
    peer = loop.connect()
    assert "connection.blocked" not in [one[0] for one in said(peer)]
    sent = peer.send(method(1, "channel.open"), publish(1, "", "q"))
    assert [one.method for one in sent] == ["channel.open-ok", "connection.blocked"]
    assert depth(loop) == 0


def test_a_blocked_connection_may_consume_purge_and_delete() -> None:
    loop = Loop()
    peer = with_queue(loop)
    for _ in range(3):
        peer.send(publish(1, "", "q"))
    loop.gateway.block(ALARM)
    peer.send(publish(1, "", "q"))
    got = peer.send(method(2, "basic.consume", "q", "t", False, False, False, False, {}))
    assert [one.method for one in got] == ["basic.consume-ok", *["basic.deliver"] * 3]
    peer.send(method(2, "basic.ack", 3, True))
    assert loop.machine.vhosts["/"].queues["q"].unacked == 0
    assert peer.call(2, "queue.purge", "q", False) == [("queue.purge-ok", 0)]
    assert peer.call(2, "queue.delete", "q", False, False, False)[0][0] == "queue.delete-ok"
    assert peer.client.may_be_read


def test_methods_after_a_publish_on_its_channel_and_a_close_wait_with_it() -> None:
    loop = Loop()
    peer = with_queue(loop)
    loop.gateway.block(ALARM)
    peer.send(publish(1, "", "q", b"kept"))
    assert peer.call(1, "channel.close", 200, "", 0, 0) == []
    assert peer.call(0, "connection.close", 200, "", 0, 0) == []
    loop.gateway.block("")
    loop.turn()
    assert depth(loop) == 1
    assert peer.client.wants_close


def test_a_flood_is_not_read_until_the_alarm_is_over() -> None:
    loop = Loop()
    peer = with_queue(loop)
    loop.gateway.block(ALARM)
    peer.send(publish(1, "", "q", b"x" * KEPT_BYTES_MAX))
    assert not peer.client.may_be_read
    loop.gateway.block("")
    loop.turn()
    assert peer.client.may_be_read
    assert depth(loop) == 1


@pytest.mark.parametrize("what", ["headers", "arguments"])
def test_a_flood_of_large_headers_or_arguments_is_not_read_either(what: str) -> None:
    loop = Loop()
    peer = with_queue(loop)
    loop.gateway.block(ALARM)
    large: Table = {"large": ({"text": "x" * 50_000}, b"x" * 50_000)}
    one = publish(1, "", "q", b"", codec.encode_properties({"headers": large}))
    if what == "arguments":
        one = method(1, "queue.declare", "q", False, False, False, False, False, large)
    peer.send(publish(1, "", "q"))
    for _ in range(KEPT_BYTES_MAX // 100_000 + 1):
        peer.send(one)
    assert not peer.client.may_be_read


def test_a_lost_connection_drops_its_waiting_publishes() -> None:
    loop = Loop()
    peer = with_queue(loop)
    loop.gateway.block(ALARM)
    peer.send(publish(1, "", "q"))
    loop.gateway.connection_lost(peer.client)
    loop.gateway.block("")
    loop.turn()
    assert depth(loop) == 0


def test_publishes_waiting_on_a_channel_the_machine_closes_free_their_room() -> None:
    loop = Loop()
    peer = with_queue(loop)
    loop.gateway.block(ALARM)
    flood = publish(1, "", "q", b"x" * KEPT_BYTES_MAX)
    peer.send(method(1, "basic.get", "no such queue", False) + flood)
    assert peer.client.may_be_read
    loop.gateway.block("")
    loop.turn()
    assert depth(loop) == 0


def test_a_channel_that_waited_in_one_alarm_does_not_wait_in_the_next_unless_it_publishes() -> None:
    loop = Loop()
    peer = with_queue(loop)
    loop.gateway.block(ALARM)
    peer.publish(1, "q", b"x")
    loop.gateway.block("")
    loop.turn()
    loop.gateway.block(ALARM)
    loop.turn()
    peer.take()
    assert peer.call(1, "basic.get", "q", True) == [("basic.get-ok", 1, False, "", "q", 0)]
