"""Exchanges for links of other clusters: a message does not return to a cluster it has passed."""

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
    """An exchange `x` with its own queue `here`, and the exchange of a link with its queue
    `there`."""
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
def test_messages_that_passed_the_cluster_or_used_their_hops_are_not_sent(
    way: c.Value, goes: bool
) -> None:
    client = linked()
    for _ in range(2):  # the second publish uses the route cache
        publish(client, "eu.fr")
        publish(client, "eu.fr", way)
    assert client.rig.depth("here") == 4
    assert client.rig.depth("there") == (4 if goes else 2)


def test_a_message_that_is_not_sent_takes_no_alternate_exchange() -> None:
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
def test_invalid_arguments_of_a_link_are_refused(change: c.Table) -> None:
    client = Rig().client()
    assert client.exchange("link", FEDERATION_UPSTREAM, {**ARGUMENTS, **change}) != c.OK
    (error,) = client.rig.effects
    assert isinstance(error, ChannelError)
    assert error.code == 406
    assert "x-" in error.text


def test_changes_of_bindings_are_counted() -> None:
    client = linked()
    exchange = client.rig.machine.vhosts["/"].exchanges["x"]
    before = exchange.changes
    client.bind("here", "x", "#")  # already bound
    assert exchange.changes == before
    client.bind("here", "x", "other")
    client.unbind("here", "x", "other")
    assert exchange.changes == before + 2
    client.delete("here")
    assert exchange.changes == before + 3
