"""Delivery: which consumer gets which message, credit, and settlement."""

import pytest

from broker.machine import commands as c
from broker.machine.effects import Confirm, DeliverEffect, GetOk, Reply, Return
from tests.support.three_machines import Client, Rig


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.queue("q")
    return client


def fill(client: Client, count: int, queue: str = "q") -> None:
    for number in range(1, count + 1):
        client.publish(queue, b"%d" % number)


def test_only_the_member_that_owns_the_connection_has_effects(client: Client) -> None:
    client.consume("q")
    machines = client.rig.machines
    for name, machine in machines.items():
        machine.apply(99, client.session, 0, c.Publish(14, 1, 1, 0, "", "q", 0, b"", b"x"))
        assert bool(machine.take_effects()) == (name == "a")


def test_consume_replies_before_it_delivers(client: Client) -> None:
    fill(client, 2)
    assert client.consume("q") == c.OK
    assert [type(one) for one in client.rig.effects] == [Reply, DeliverEffect, DeliverEffect]
    assert client.replies() == [("basic.consume-ok", ("t",), False)]
    assert client.deliveries() == [(1, b"1", False), (2, b"2", False)]


def test_prefetch_is_the_credit_of_a_consumer(client: Client) -> None:
    client.consume("q", prefetch=2)
    fill(client, 3)
    assert client.rig.depth("q") == 1
    assert client.ack(1) == c.OK
    assert client.deliveries() == [(3, b"3", False)]


def test_without_a_prefetch_credit_is_still_bounded(client: Client) -> None:
    machine = client.rig.machine
    client.consume("q")
    assert [consumer.limit for consumer in machine.vhosts["/"].queues["q"].service] == [2000]


def test_round_robin_among_those_with_credit(client: Client) -> None:
    client.consume("q", "one", prefetch=2)
    client.consume("q", "two", prefetch=1)
    client.consume("q", "three", prefetch=1)
    tags = []
    for number in range(5):
        client.publish("q", b"%d" % number)
        tags += [one.consumer_tag for one in client.rig.effects if isinstance(one, DeliverEffect)]
    assert tags == ["one", "two", "three", "one"]
    client.ack(2)
    assert [one.consumer_tag for one in client.rig.effects if isinstance(one, DeliverEffect)] == [
        "two"
    ]


def test_shared_limit_of_a_channel(client: Client) -> None:
    client.queue("r")
    client.qos(1)
    client.consume("q", "one")
    client.consume("r", "two")
    client.publish("q", b"1")
    client.publish("r", b"2")
    assert client.deliveries() == []
    client.ack(1)
    assert client.deliveries() == [(2, b"2", False)]
    client.publish("q", b"3")
    assert client.deliveries() == []
    client.qos(0)
    assert client.deliveries() == [(3, b"3", False)]
    assert client.qos(5, shared=False) == c.OK
    assert client.replies() == [("basic.qos-ok", (), False)]


def test_no_ack_deliveries_are_settled_when_their_member_reports_them_sent(client: Client) -> None:
    client.consume("q", no_ack=True)
    fill(client, 3)
    assert client.rig.machine.vhosts["/"].queues["q"].unacked == 3
    assert client.ack(1) == 406
    client.channel(1)
    client.consume("q", no_ack=True)
    assert [redelivered for _, _, redelivered in client.deliveries()] == [True] * 3
    client.sent(2)
    client.sent(1)
    client.close_channel()
    assert client.rig.depth("q") == 1


def test_reports_of_sent_messages_are_the_credit_of_no_ack_consumers(client: Client) -> None:
    client.consume("q", no_ack=True)
    consumer = client.rig.machine.vhosts["/"].queues["q"].service[0]
    for machine in client.rig.machines.values():
        machine.vhosts["/"].queues["q"].service[0].limit = 2
    fill(client, 4)
    assert consumer.outstanding == 2
    client.sent(1)
    assert client.deliveries() == [(3, b"3", False)]
    client.sent(3)
    assert client.deliveries() == [(4, b"4", False)]


def test_get_with_and_without_acknowledgement(client: Client) -> None:
    fill(client, 3)
    client.get("q")
    got = client.got()
    assert isinstance(got, GetOk)
    assert (got.delivery_tag, got.message_count, got.body, got.no_ack) == (1, 2, b"1", False)
    client.get("q", no_ack=True)
    assert client.ack(2) == 406
    assert client.rig.depth("q") == 3


def test_acknowledging_many(client: Client) -> None:
    client.consume("q")
    fill(client, 4)
    assert client.ack(3, multiple=True) == c.OK
    assert client.ack(2) == 406
    assert client.error() == "PRECONDITION_FAILED - unknown delivery tag 2"
    again = client.channel(1)
    again.consume("q")
    assert client.deliveries() == [(1, b"4", True)]
    assert again.ack(0, multiple=True) == c.OK
    assert again.ack(0, multiple=True) == c.OK
    assert again.ack(9, multiple=True) == 406


def test_requeued_messages_return_to_their_places(client: Client) -> None:
    fill(client, 5)
    for _ in range(4):
        client.get("q")
    client.nack(3)
    client.nack(1)
    client.ack(2)
    for body in (b"1", b"3", b"5"):
        client.get("q")
        got = client.got()
        assert isinstance(got, GetOk)
        assert (got.body, got.redelivered) == (body, body != b"5")
    assert client.nack(4, multiple=True, requeue=False) == c.OK
    client.close_channel()
    assert client.rig.depth("q") == 3


def test_a_rejected_message_frees_credit(client: Client) -> None:
    client.consume("q", prefetch=1)
    fill(client, 2)
    client.nack(1, requeue=False)
    assert client.deliveries() == [(2, b"2", False)]
    client.nack(2)
    assert client.deliveries() == [(3, b"2", True)]


def test_recover(client: Client) -> None:
    fill(client, 2)
    client.consume("q")
    assert client.recover() == c.OK
    assert client.replies() == [("basic.recover-ok", (), False)]
    assert client.deliveries() == [(3, b"1", True), (4, b"2", True)]
    assert client.recover(requeue=False) == 540


def test_a_closed_channel_returns_its_messages_to_other_consumers(client: Client) -> None:
    other = client.rig.client("b")
    client.consume("q")
    fill(client, 2)
    other.consume("q")
    assert client.close_channel() == c.OK
    assert client.replies() == [("channel.close-ok", (), False)]
    assert other.deliveries() == [(1, b"1", True), (2, b"2", True)]
    assert client.close_channel() == c.IGNORED
    assert client.publish("q") == c.IGNORED


def test_a_cancelled_consumers_messages_stay_with_the_channel(client: Client) -> None:
    client.consume("q", prefetch=2)
    fill(client, 3)
    client.cancel()
    assert client.ack(1) == c.OK
    assert client.deliveries() == []
    client.consume("q", prefetch=1)
    assert client.deliveries() == [(3, b"3", False)]
    assert client.ack(2) == c.OK
    assert client.cancel("never") == c.OK


def test_what_a_deleted_queue_left_at_a_channel_is_not_dead_lettered(client: Client) -> None:
    """G14: a snapshot has nothing of that queue, so a restored member does not know where to."""
    client.queue("grave")
    client.queue("r", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"})
    client.publish("r", b"m")
    client.get("r")
    client.delete("r")
    client.rig.restore()
    assert client.nack(1, requeue=False) == c.OK
    assert client.rig.depth("grave") == 0


def test_exclusive_consumers(client: Client) -> None:
    client.consume("q", exclusive=True)
    assert client.consume("q", "second") == 403
    assert client.error() == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    again = client.channel(1)
    again.consume("q")
    assert again.consume("q", "second", exclusive=True) == 403


def test_a_tag_used_twice_ends_the_connection(client: Client) -> None:
    client.consume("q")
    assert client.consume("q") == 530
    assert client.error() == "NOT_ALLOWED - attempt to reuse consumer tag 't'"
    assert not client.rig.machine.connections


def test_unsupported_consumer_arguments_are_refused(client: Client) -> None:
    assert client.consume("q", arguments={"x-stream-offset": 1}) == 406
    assert client.error().endswith("of queue type rabbit_classic_queue")
    again = client.rig.client()
    assert again.consume("q", arguments={"x-priority": "high"}) == 406


def test_the_failover_argument_of_a_consumer_is_accepted(client: Client) -> None:
    """No queue moves, so there is nothing to cancel: a consumer ends only with its own member."""
    wish: c.Table = {"x-cancel-on-ha-failover": True}
    assert client.consume("q", arguments=wish) == c.OK
    client.rig.activate(members=("a", "c"))
    client.publish("q", b"m")
    assert client.deliveries() == [(1, b"m", False)]


def test_a_second_open_of_a_channel_ends_the_connection(client: Client) -> None:
    assert client.do(c.ChannelOpen(c.CHANNEL_OPEN, client.conn, 1)) == 504
    assert "second 'channel.open' seen" in client.error()


def test_consumers_of_higher_priority_are_served_first(client: Client) -> None:
    client.consume("q", "low", prefetch=5, arguments={"x-priority": -1})
    client.consume("q", "middle", prefetch=1)
    client.consume("q", "high", prefetch=1, arguments={"x-priority": 7})
    client.consume("q", "high too", prefetch=1, arguments={"x-priority": 7})
    tags = []
    for number in range(5):
        client.publish("q", b"%d" % number)
        tags += [one.consumer_tag for one in client.rig.effects if isinstance(one, DeliverEffect)]
    assert tags == ["high", "high too", "middle", "low", "low"]
    client.ack(2)
    client.publish("q", b"next")
    assert [one.consumer_tag for one in client.rig.effects if isinstance(one, DeliverEffect)] == [
        "high too"
    ]


def test_single_active_consumer_and_its_successor(client: Client) -> None:
    client.queue("s", {"x-single-active-consumer": True})
    other = client.rig.client("b")
    client.consume("s", prefetch=1)
    other.consume("s")
    fill(client, 2, "s")
    assert other.deliveries() == []
    client.ack(1)
    assert client.deliveries() == [(2, b"2", False)]
    client.close()
    assert other.deliveries() == [(1, b"2", True)]


def test_confirms_and_returns(client: Client) -> None:
    assert client.publish("q", no=1) == c.OK
    assert client.confirms() == [Confirm(client.conn, 1, 1, True, True)]
    assert client.publish("q", no=2, flags=0) == c.OK
    assert client.confirms() == [Confirm(client.conn, 1, 2, False, True)]
    assert client.publish("none", b"b", no=3, flags=c.MANDATORY) == c.UNROUTABLE
    assert [type(one) for one in client.rig.effects] == [Return, Confirm]
    assert client.returns()[0][2:6] == (312, "NO_ROUTE", "", "none")
    assert client.publish("none") == c.UNROUTABLE
    assert client.rig.effects == []


def test_a_missing_exchange_and_the_immediate_flag_are_refused(client: Client) -> None:
    assert client.publish("k", exchange="x") == 404
    assert client.error() == "NOT_FOUND - no exchange 'x' in vhost '/'"
    assert client.channel(1).publish("q", flags=c.IMMEDIATE) == 540
    assert client.error() == "NOT_IMPLEMENTED - immediate=true"


def test_commands_of_unknown_channels_are_ignored(client: Client) -> None:
    nobody = Client(client.rig, client.session, client.conn, 9)
    attempts = [
        nobody.queue("q"),
        nobody.exchange("x"),
        nobody.delete_exchange("x"),
        nobody.bind("q", "amq.direct"),
        nobody.unbind("q", "amq.direct"),
        nobody.bind_exchange("amq.direct", "amq.fanout"),
        nobody.unbind_exchange("amq.direct", "amq.fanout"),
        nobody.purge("q"),
        nobody.delete("q"),
        nobody.publish("q"),
        nobody.consume("q"),
        nobody.cancel(),
        nobody.get("q"),
        nobody.ack(1),
        nobody.nack(1),
        nobody.recover(),
        nobody.qos(1),
        nobody.sent(1),
        nobody.commit(),
        nobody.close_channel(),
        nobody.do(c.ChannelOpen(c.CHANNEL_OPEN, 77, 1)),
        nobody.do(c.ConnectionClose(c.CONNECTION_CLOSE, 77)),
    ]
    assert set(attempts) == {c.IGNORED}
