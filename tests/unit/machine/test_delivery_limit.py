"""The delivery limit: how often a message may return before it is dead-lettered."""

from unittest.mock import Mock

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import DeliverEffect, GetOk
from broker.machine.machine import Machine
from broker.machine.move_log import FLAG, GIVEN_UP, MOVE
from broker.machine.queueing import queue as queueing
from broker.machine.requests.properties import headers_of
from tests.support.three_machines import STEP_US, Client, Rig

ARGUMENTS: c.Table = {
    "x-delivery-limit": 2,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "grave",
}


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.queue("grave")
    client.queue("q", ARGUMENTS)
    client.publish("q", b"m")
    return client


def get_and_return(client: Client) -> c.Value:
    """The count that the client was sent with the message."""
    client.get("q")
    got = client.got()
    assert isinstance(got, GetOk)
    assert client.nack(got.delivery_tag) == c.OK
    return headers_of(got.properties).get("x-delivery-count")


def test_the_limit_counts_returns_and_the_client_sees_the_count(client: Client) -> None:
    assert [get_and_return(client) for _ in range(2)] == [0, 1]
    client.consume("q", "t", 1)
    (delivery,) = [one for one in client.rig.effects if isinstance(one, DeliverEffect)]
    assert headers_of(delivery.properties) == {"x-delivery-count": 2}
    client.nack(delivery.delivery_tag)
    assert not client.deliveries()
    assert GIVEN_UP | FLAG in [row[0] for row in MOVE.iter_unpack(client.rig.moves)]
    client.get("grave")
    got = client.got()
    assert isinstance(got, GetOk)
    assert headers_of(got.properties)["x-first-death-reason"] == "delivery_limit"


def test_messages_held_by_a_closed_channel_count_too(client: Client) -> None:
    for chan in range(2, 5):
        other = client.channel(chan)
        other.get("q")
        other.close_channel()
    assert (client.rig.depth("q"), client.rig.depth("grave")) == (0, 1)


def test_a_return_of_a_no_ack_delivery_does_not_count(
    client: Client,
) -> None:
    """The client never received it. RabbitMQ settles such a message when it is handed over."""
    for _ in range(4):
        other = client.channel(2)
        other.consume("q", no_ack=True)
        other.close_channel()
        third = client.channel(3)
        third.get("q", no_ack=True)
        third.close_channel()
    assert (client.rig.depth("q"), client.rig.depth("grave")) == (1, 0)
    assert get_and_return(client) == 0


def test_the_loss_of_a_member_does_not_count(client: Client) -> None:
    rig = client.rig
    watcher = rig.client("b")
    for _ in range(4):
        lost = rig.client("c")
        lost.get("q")
        rig.activate("c")
    assert (rig.depth("q"), rig.depth("grave")) == (1, 0)
    assert get_and_return(watcher) == 0


def test_counts_leave_with_their_messages(client: Client) -> None:
    """Counts are in snapshots. A cold start drops them, because it numbers messages anew."""
    rig = client.rig
    queue = rig.machine.vhosts["/"].queues["q"]
    get_and_return(client)
    assert list(queue.returns.values()) == [1]
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    client.get("q")
    rig.machines["c"] = Machine.restore("c", rig.machine.snapshot())
    assert list(rig.machines["c"].vhosts["/"].queues["q"].returns.values()) == [1]
    client.ack(2)
    assert not queue.returns
    for end in ("purge", "delete", "cold"):
        client.queue("q", ARGUMENTS)
        client.publish("q", b"m")
        get_and_return(client)
        assert rig.machine.vhosts["/"].queues["q"].returns
        if end == "cold":
            rig.activate(cold=True)
        else:
            assert getattr(client, end)("q") == c.OK
    queue = rig.machine.vhosts["/"].queues["q"]
    assert not queue.returns
    assert len(queue.ready) == 1


@pytest.mark.parametrize("arguments", [ARGUMENTS, {**ARGUMENTS, "x-max-priority": 3}])
def test_a_purge_hashes_only_the_remaining_counts(
    client: Client, arguments: c.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a million returned messages this took seconds, on all members at once."""
    client.queue("p", arguments)
    for _ in range(5):
        client.publish("p", b"m")
    for _ in range(5):
        client.get("p")
    client.recover()
    client.get("p")
    hashed = Mock(wraps=queueing.returns_element)
    monkeypatch.setattr(queueing, "returns_element", hashed)
    client.purge("p")
    queue = client.rig.machine.vhosts["/"].queues["p"]
    assert list(queue.returns.values()) == [1]
    assert hashed.call_count == len(client.rig.machines)
    client.recover()
    assert list(queue.returns.values()) == [2]


@pytest.mark.parametrize("kind", ["classic", None])
def test_other_queues_without_a_limit_count_nothing(client: Client, kind: c.Value) -> None:
    client.queue("free", {} if kind is None else {"x-queue-type": kind})
    client.publish("free", b"m")
    client.get("free")
    client.nack(1)
    assert not client.rig.machine.vhosts["/"].queues["free"].returns
    client.get("free")
    got = client.got()
    assert isinstance(got, GetOk)
    assert headers_of(got.properties) == {}


def test_a_quorum_queue_counts_even_without_a_limit(client: Client) -> None:
    """As RabbitMQ's does: a consumer that gives up after some attempts reads the header."""
    rig = client.rig
    client.queue("many", {"x-queue-type": "quorum"})
    sent = codec.encode_properties({"headers": {"x-delivery-count": 7, "a": 1}})
    client.publish("many", b"m", properties=sent)
    for count in range(4):
        client.get("many")
        got = client.got()
        assert isinstance(got, GetOk)
        assert headers_of(got.properties) == {"x-delivery-count": count, "a": 1}
        assert client.nack(got.delivery_tag) == c.OK
        rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    policy: c.Table = {
        "pattern": "many", "apply-to": "queues", "priority": 0, "definition": {"delivery-limit": 9},
    }  # fmt: skip
    assert rig.define("policy", "/", "limit", policy)[0] == 201
    assert rig.define("policy", "/", "limit", None)[0] == 204
    assert list(rig.machine.vhosts["/"].queues["many"].returns.values()) == [4]
    client.get("many")
    client.ack(5)
    assert not rig.machine.vhosts["/"].queues["many"].returns


@pytest.mark.parametrize("arguments", [{"x-message-ttl": 100}, {"x-max-length": 1}])
def test_of_what_the_queue_drops_no_count_is_kept(rig: Rig, arguments: c.Table) -> None:
    """A count of each message that was ever dropped would fill the memory."""
    client = rig.client()
    client.queue("dropped", {"x-delivery-limit": 5, **arguments})
    client.publish("dropped", b"m")
    client.get("dropped")
    client.nack(1)
    assert rig.queue("dropped").returns
    client.publish("dropped", b"pushes it out")
    rig.pass_time(STEP_US + 1)
    assert not rig.queue("dropped").returns


def test_of_what_is_acknowledged_in_a_run_no_count_is_kept(rig: Rig) -> None:
    client = rig.client()
    client.queue("acked", {"x-delivery-limit": 5})
    for _ in range(2):
        client.publish("acked")
    client.consume("acked", prefetch=2)
    client.nack(0, multiple=True)
    assert len(rig.queue("acked").returns) == 2
    client.ack(0, multiple=True)
    assert not rig.queue("acked").returns


def test_what_has_no_time_to_live_is_dead_as_it_comes_back(rig: Rig) -> None:
    """As in RabbitMQ: it is delivered at once, or never."""
    client = rig.client()
    client.queue("at once", {"x-message-ttl": 0})
    rig.tick("a", 0, ahead_us=STEP_US)  # by the machine's time it has not expired yet
    client.consume("at once", prefetch=1)
    client.publish("at once", b"m")
    assert len(client.deliveries()) == 1
    client.nack(1)
    assert client.deliveries() == []
    assert rig.depth("at once") == 0
