"""Exchanges for links of other clusters: what has been there does not go back."""

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import ChannelError
from broker.machine.requests.exchange_types import FEDERATION_UPSTREAM
from tests.support.three_machines import Client, Rig

ARGUMENTS: c.Table = {
    "x-max-hops": 2, "x-downstream-name": "south", "x-downstream-vhost": "/",
}  # fmt: skip


def linked() -> Client:
    """An exchange `x` with a queue `here` of its own, and a link's exchange with its queue."""
    client = Rig().client()
    assert client.exchange("x", "topic") == c.OK
    client.queue("here")
    client.bind("here", "x", "#")
    assert client.exchange("link", FEDERATION_UPSTREAM, ARGUMENTS, internal=True) == c.OK
    client.queue("there")
    client.bind("there", "link")
    client.bind_exchange("link", "x", "eu.#")
    return client


def step(cluster: str, vhost: str = "/") -> c.Value:
    return {"cluster-name": cluster, "vhost": vhost}


def publish(client: Client, key: str, way: c.Value = None) -> None:
    headers: c.Table = {} if way is None else {"x-received-from": way}
    client.publish(key, b"m", "x", properties=codec.encode_properties({"headers": headers}))


@pytest.mark.parametrize(
    ("way", "goes"),
    [
        (None, True),
        ((), True),
        ("no list", True),
        ((step("north"),), True),
        ((step("north"), step("west")), False),  # two hops
        ((step("south"),), False),
        ((step("south", "other"),), True),
        (("nonsense", 7), False),
    ],
)
def test_what_has_been_there_or_made_its_hops_does_not_go(way: c.Value, goes: bool) -> None:
    client = linked()
    for _ in range(2):  # the second one would come from the cache of routes
        publish(client, "eu.fr")
        publish(client, "eu.fr", way)
    assert client.rig.depth("here") == 4
    assert client.rig.depth("there") == (4 if goes else 2)


def test_what_does_not_go_takes_no_other_way() -> None:
    client = linked()
    client.queue("astray")
    client.exchange("else", "fanout")
    client.bind("astray", "else")
    client.rig.define("policy", "/", "p", {
        "pattern": "^link$", "definition": {"alternate-exchange": "else"}, "priority": 0,
        "apply-to": "all",
    })  # fmt: skip
    publish(client, "eu.fr", (step("south"),))
    assert client.rig.depth("astray") == 0


@pytest.mark.parametrize(
    "change", [{"x-max-hops": 0}, {"x-max-hops": "2"}, {"x-downstream-name": 7},
               {"x-downstream-vhost": 7}]
)  # fmt: skip
def test_one_that_nobody_can_go_by_is_refused(change: c.Table) -> None:
    client = Rig().client()
    assert client.exchange("link", FEDERATION_UPSTREAM, {**ARGUMENTS, **change}) != c.OK
    (error,) = client.rig.effects
    assert isinstance(error, ChannelError)
    assert error.code == 406
    assert "x-" in error.text


def test_bindings_are_counted_as_they_come_and_go() -> None:
    client = linked()
    exchange = client.rig.machine.vhosts["/"].exchanges["x"]
    before = exchange.changes
    client.bind("here", "x", "#")  # is there already
    assert exchange.changes == before
    client.bind("here", "x", "other")
    client.unbind("here", "x", "other")
    assert exchange.changes == before + 2
    client.delete("here")
    assert exchange.changes == before + 3
