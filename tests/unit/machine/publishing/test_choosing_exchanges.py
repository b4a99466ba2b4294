"""Exchanges that choose one binding for each message, by a hash or at random."""

from collections import Counter

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import ChannelError, ConnectionError_
from broker.machine.machine import Machine
from broker.machine.publishing.routing import find_route
from broker.machine.requests.exchange_types import WEIGHT_MAX
from broker.machine.requests.properties import property_of
from broker.machine.state import Route
from tests.support.three_machines import Client, Rig

KINDS = ("x-consistent-hash", "x-modulus-hash", "x-random")
COUNT = 300


def client_with(kind: str, *queues: str, weight: str = "1", **arguments: c.Value) -> Client:
    client = Rig().client()
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    assert client.exchange("x", kind, named) == c.OK
    for queue in queues:
        client.queue(queue)
        assert client.bind(queue, "x", weight) == c.OK
    return client


def depths(client: Client) -> dict[str, int]:
    queues = client.rig.machine.vhosts["/"].queues
    return {name: len(queue.ready) for name, queue in queues.items()}


def where(client: Client, key: str, properties: bytes = b"\x00\x00", turn: int = 0) -> str:
    """Returns the queue that a message would go to, without publishing it."""
    vhost = client.rig.machine.vhosts["/"]
    route = find_route(vhost, vhost.exchanges["x"], (key,), properties, turn)
    assert isinstance(route, Route)
    (queue,) = route.queues
    return queue.name


def spread(client: Client) -> Counter[str]:
    return Counter(where(client, f"key {number}", turn=number) for number in range(COUNT))


def refusal(client: Client) -> tuple[int, str]:
    (error,) = client.rig.effects
    assert isinstance(error, ChannelError | ConnectionError_)
    return error.code, error.text


@pytest.mark.parametrize("kind", KINDS)
def test_each_message_goes_to_one_queue_and_every_queue_gets_its_share(kind: str) -> None:
    found = spread(client_with(kind, "a", "b", "c"))
    assert sum(found.values()) == COUNT
    assert min(found.values()) > COUNT // 6


def test_weights_set_the_shares() -> None:
    client = client_with("x-consistent-hash", "a")
    client.queue("b")
    client.bind("b", "x", "4")
    found = spread(client)
    assert found["b"] > 2 * found["a"]


@pytest.mark.parametrize("kind", ["x-consistent-hash", "x-modulus-hash"])
def test_a_key_always_goes_the_same_way_even_after_a_restore(kind: str) -> None:
    client = client_with(kind, "a", "b", "c")
    rig = client.rig
    for _ in range(5):
        client.publish("the same", exchange="x")
    assert sorted(depths(client).values()) == [0, 0, 5]
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    for number in range(10):
        client.publish(str(number), exchange="x")  # the rig compares the roots


def test_random_choices_vary_for_one_key_and_agree_after_a_restore() -> None:
    client = client_with("x-random", "a", "b", "c")
    rig = client.rig
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    for _ in range(20):
        client.publish("the same", exchange="x")
    assert min(depths(client).values()) > 1


def test_random_choices_vary_within_a_transaction() -> None:
    client = client_with("x-random", "a", "b", "c")
    client.commit([c.TxPublish("x", "k", c.PERSISTENT, b"", b"") for _ in range(100)])
    assert min(depths(client).values()) > 10


def test_a_new_queue_moves_few_keys() -> None:
    client = client_with("x-consistent-hash", "a", "b", "c")
    before = {key: where(client, key) for key in map(str, range(100))}
    client.queue("d")
    client.bind("d", "x", "1")
    moved = Counter(queue for key, old in before.items() if (queue := where(client, key)) != old)
    assert set(moved) == {"d"}
    assert 10 < moved["d"] < 45
    client.unbind("d", "x", "1")
    assert all(where(client, key) == old for key, old in before.items())


def test_the_hash_may_be_of_a_header() -> None:
    client = client_with("x-consistent-hash", "a", "b", "c", hash_header="who")
    by_header = {
        who: {where(client, str(n), codec.encode_properties({"headers": {"who": who}}))
              for n in range(5)}
        for who in map(str, range(20))
    }  # fmt: skip
    assert all(len(queues) == 1 for queues in by_header.values())
    assert len(set.union(*by_header.values())) == 3
    assert len({where(client, str(n)) for n in range(10)}) == 1, "no message has the header"


@pytest.mark.parametrize("name", ["correlation_id", "message_id", "timestamp"])
def test_the_hash_may_be_of_a_property(name: str) -> None:
    client = client_with("x-consistent-hash", "a", "b", "c", hash_property=name)
    found = set()
    for number in range(20):
        value: c.Value = number if name == "timestamp" else str(number)
        whole: c.Table = {"headers": {"a": 1}, "priority": 3, "expiration": "60000", name: value}
        properties = codec.encode_properties(whole)
        assert len(property_of(properties, name)) == (8 if name == "timestamp" else len(str(value)))
        (queue,) = {where(client, key, properties) for key in ("k", "l", "m")}
        found.add(queue)
    assert len(found) == 3


def test_an_absent_property_hashes_as_empty() -> None:
    properties = codec.encode_properties({"correlation_id": "c", "message_id": "m"})
    assert property_of(properties, "correlation_id") == b"c"
    assert property_of(properties, "message_id") == b"m"
    assert property_of(properties, "timestamp") == property_of(b"", "timestamp") == b""
    assert property_of(properties[:-2], "message_id") == b""


def test_of_two_bindings_to_a_queue_the_first_counts() -> None:
    client = client_with("x-consistent-hash", "a", "b")
    client.bind("a", "x", "1000")
    assert spread(client)["b"] > COUNT // 3


def test_an_unbound_exchange_uses_its_alternate_exchange() -> None:
    client = client_with("x-random", alternate_exchange="amq.fanout")
    client.queue("q")
    client.bind("q", "amq.fanout")
    client.publish("k", exchange="x")
    assert depths(client) == {"q": 1}
    assert client_with("x-modulus-hash").publish("k", exchange="x") == c.UNROUTABLE


def test_they_route_to_exchanges_and_route_dead_letters() -> None:
    client = client_with("x-random", "a")
    client.bind_exchange("amq.fanout", "x", "")
    client.queue("behind")
    client.bind("behind", "amq.fanout")
    client.queue("dying", {"x-dead-letter-exchange": "x", "x-max-length": 0})
    for _ in range(20):
        client.publish("dying")
    found = depths(client)
    assert found["a"] + found["behind"] == 20
    assert min(found["a"], found["behind"]) > 3


def test_a_message_with_several_keys_goes_to_one_queue_and_so_does_its_dead_letter() -> None:
    client = client_with("x-random", "a", "b", "c")
    client.queue("dying", {"x-dead-letter-exchange": "x", "x-max-length": 0})
    copied = codec.encode_properties({"headers": {"CC": ("one", "two")}})
    for exchange, key in (("x", "k"), ("", "dying")):
        before = sum(depths(client).values())
        client.publish(key, exchange=exchange, properties=copied)
        assert sum(depths(client).values()) - before == 1


@pytest.mark.parametrize(
    ("key", "word"),
    [
        *((key, f'must be an integer: <<"{key}">>') for key in ("", "many", "1.5", "²", "--1")),
        *((key, "must be greater than 0") for key in ("0", "-1", "000")),
        *((key, "must be at most 1000000") for key in (str(WEIGHT_MAX + 1), "9" * 30)),
    ],
)
def test_an_invalid_weight_is_refused(key: str, word: str) -> None:
    client = client_with("x-consistent-hash")
    client.queue("q")
    assert client.bind("q", "x", key) == 406
    code, text = refusal(client)
    assert (code, f"The binding key {word}; it is the weight" in text) == (406, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"hash-header": "h", "hash-property": "message_id"}, "mutually exclusive"),
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-header": 5}, "no name of a header: '5'"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: c.Table, said: str) -> None:
    client = Rig().client()
    assert client.exchange("x", "x-consistent-hash", arguments) == 406
    assert said in refusal(client)[1]
