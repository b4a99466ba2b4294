"""The work that an origin expects a command to cost (G15)."""

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.commands import Command
from broker.machine.limits import KEY_WORK
from broker.replication.weight import weight
from tests.support.three_machines import EMPTY, Client, Rig


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    for number in range(5):
        client.queue(f"q{number}")
        client.bind(f"q{number}", "amq.fanout")
    client.bind("q0", "amq.topic", "a.*")
    client.consume("q0")
    for _ in range(3):
        client.publish("q0")
        client.publish("q1")
    return client


def cost(client: Client, command: Command) -> int:
    return weight(client.rig.machine, client.session, command)


def publish(exchange: str, key: str = "k") -> Command:
    return c.Publish(c.PUBLISH, 1, 1, 0, exchange, key, 0, EMPTY, b"")


def test_a_publish_weighs_the_queues_it_reaches_cached_or_not(client: Client) -> None:
    assert cost(client, publish("", "q0")) == 0
    assert cost(client, publish("nowhere")) == 0
    assert cost(client, publish("amq.fanout")) == 5, "no route cached: all that could match"
    client.publish("k", exchange="amq.fanout")
    assert cost(client, publish("amq.fanout")) == 4
    assert cost(client, publish("amq.topic", "a.b")) == 1


def test_a_direct_exchange_bound_to_others_may_reach_any_queue(client: Client) -> None:
    client.bind_exchange("amq.fanout", "amq.direct", "k")
    assert cost(client, publish("amq.direct", "other")) == 0
    assert cost(client, publish("amq.direct", "k")) >= 5


@pytest.mark.parametrize("kind", ["x-random", "x-consistent-hash", "headers", "fanout", "topic"])
def test_queues_reached_through_other_exchanges_count(client: Client, kind: str) -> None:
    """Routes that depend on more than the key are not cached: each publish would count as one."""
    client.exchange("first", kind, {"hash-header": "h"} if "hash" in kind else None)
    client.exchange("second", "x-random")
    client.bind("q0", "first", "1")
    assert cost(client, publish("first", "1")) == 1
    client.bind_exchange("second", "first", "1")
    client.bind_exchange("first", "second", "round")
    client.bind_exchange("amq.fanout", "second")
    assert cost(client, publish("first", "1")) >= 5
    client.unbind_exchange("amq.fanout", "second")
    assert cost(client, publish("first", "1")) < 5


def test_a_commit_weighs_all_its_publishes_and_settlements(client: Client) -> None:
    publishes = (c.TxPublish("amq.fanout", "x", 0, EMPTY, b""),) * 2
    assert cost(client, c.TxCommit(c.TX_COMMIT, 1, 1, publishes, ())) == 10
    settles = (c.TxSettle(0, True, c.TX_ACK),)
    assert cost(client, c.TxCommit(c.TX_COMMIT, 1, 1, (), settles)) == 3


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_a_publish_weighs_what_its_copies_reach(client: Client, header: str) -> None:
    """A short key can reach thousands of queues: many such publishes in one item would
    block all."""
    client.bind("q1", "amq.direct", "many")
    client.bind("q2", "amq.direct", "many")
    keys = ("many", "many", "none")
    properties = codec.encode_properties({"headers": {header: keys}})
    command = c.Publish(c.PUBLISH, 1, 1, 0, "amq.direct", "none", 0, properties, b"")
    assert cost(client, command) == 2 + KEY_WORK
    client.publish("none", exchange="amq.direct", properties=properties)
    assert cost(client, command) == 1 + KEY_WORK, "cached: the queues beyond the first"
    client.bind("q3", "amq.direct", "other")
    publishes = (c.TxPublish("amq.direct", "none", 0, properties, b""),) * 2
    assert cost(client, c.TxCommit(c.TX_COMMIT, 1, 1, publishes, ())) == 2 * (2 + KEY_WORK)
    wrong = codec.encode_properties({"headers": {header: "many"}})
    assert cost(client, c.Publish(c.PUBLISH, 1, 1, 0, "amq.direct", "", 0, wrong, b"")) == 0


def test_settlements_and_closes_weigh_what_is_held(client: Client) -> None:
    assert cost(client, c.Ack(c.ACK, 1, 1, 1, False)) == 0
    assert cost(client, c.Ack(c.ACK, 1, 1, 3, True)) == 3
    assert cost(client, c.Nack(c.NACK, 1, 1, 0, True, True)) == 3
    assert cost(client, c.Recover(c.RECOVER, 1, 1, True)) == 3
    assert cost(client, c.ChannelClose(c.CHANNEL_CLOSE, 1, 1)) == 4
    assert cost(client, c.ConnectionClose(c.CONNECTION_CLOSE, 1)) == 4
    consume = c.Consume(c.CONSUME, 1, 1, "q1", "u", False, False, False, False, {}, 0)
    assert cost(client, consume) == 3
    assert cost(client, c.QueueDelete(c.QUEUE_DELETE, 1, 1, "q0", False, False, False)) == 3
    assert cost(client, c.ExchangeDelete(c.EXCHANGE_DELETE, 1, 1, "amq.fanout", False, False)) == 5


def test_unknown_objects_weigh_nothing(client: Client) -> None:
    assert cost(client, c.Ack(c.ACK, 9, 1, 1, True)) == 0
    assert cost(client, c.ConnectionClose(c.CONNECTION_CLOSE, 9)) == 0
    assert cost(client, c.Tick(c.TICK, 0, 0, 0)) == 0
