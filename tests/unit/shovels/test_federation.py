"""Which federation links exist by the state, and what their processes are told of this side."""

from __future__ import annotations

import base64
from typing import NoReturn

import pytest

from broker.amqp.fields import decode_table
from broker.machine import commands as c
from broker.machine.commands import Table
from broker.machine.queueing import bindings
from broker.machine.state import Binding, BindingId
from broker.shovels.definition import BadShovel, Shovel
from broker.shovels.federation import (
    ALONE_LOOKS,
    LINKS_MAX,
    LOOK_S,
    Change,
    Federation,
    LocalSide,
    _Bindings,
)
from broker.shovels.upstreams import QUEUE_PREFETCH
from tests.support.three_machines import Client, Rig


class World:
    """A machine with an upstream `far`, and the links that follow."""

    def __init__(self) -> None:
        self.client = Rig().client()
        self.rig, self.now = self.client.rig, 0.0
        self.federation = Federation(lambda: "near", lambda: self.rig.machine)
        self.parameter("federation-upstream/far", {"uri": "amqp://far"})

    def parameter(self, name: str, value: c.Value) -> None:
        assert self.rig.define("parameter", "/", name, {"value": value})[0] < 300

    def policy(self, pattern: str, apply_to: str = "all", **definition: c.Value) -> None:
        keys = {key.replace("_", "-"): one for key, one in definition.items()}
        body: Table = {
            "pattern": pattern, "definition": keys or {"federation-upstream": "far"},
            "priority": 0, "apply-to": apply_to,
        }  # fmt: skip
        assert self.rig.define("policy", "/", "p", body)[0] < 300

    def links(self) -> dict[tuple[str, ...], Shovel | BadShovel]:
        self.now += LOOK_S + 0.1
        return dict(self.federation.links(self.now))

    def side(self, *key: str) -> LocalSide:
        shovel = self.links()[key]
        assert isinstance(shovel, Shovel)
        found = self.federation.local_side(shovel)
        assert found is not None
        return found


def test_each_matching_name_and_upstream_has_a_link() -> None:
    world = World()
    world.client.exchange("x1", "topic")
    world.client.exchange("y", "topic")
    world.client.queue("x2")
    assert world.links() == {}
    world.policy("^x")
    assert list(world.links()) == [("/", "exchange", "x1", "far"), ("/", "queue", "x2", "far")]
    world.parameter("federation-upstream/other", {"uri": "amqp://other"})
    world.policy("^x", "queues", federation_upstream_set="all")
    assert list(world.links()) == [("/", "queue", "x2", "far"), ("/", "queue", "x2", "other")]
    world.rig.define("policy", "/", "p", None)
    assert world.links() == {}


def test_private_objects_and_those_of_links_are_not_federated() -> None:
    world = World()
    world.client.exchange("internal", "fanout", internal=True)
    world.client.queue("mine", exclusive=True)
    world.client.queue("told", {"x-queue-type": "stream"})
    assert world.rig.has_queue("told")
    world.client.queue("federation: x -> y", {"x-internal-purpose": "federation"})
    world.policy("")
    names = {key[2] for key in world.links()}
    assert names == {"amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"}


def test_a_link_is_the_same_object_until_something_changes() -> None:
    world = World()
    world.client.exchange("x", "topic")
    world.policy("^x$")
    key = ("/", "exchange", "x", "far")
    before = world.links()[key]
    world.client.exchange("other", "topic")
    world.parameter("shovel-like/y", {})
    assert world.links()[key] is before
    world.parameter("federation-upstream/far", {"uri": "amqp://far", "max-hops": 2})
    assert world.links()[key] is not before
    changed = world.links()[key]
    world.client.delete_exchange("x")
    world.client.exchange("x", "fanout")
    assert world.links()[key] != changed, "it is declared at the upstream as it is here"


def test_a_link_follows_an_exchange_to_another_virtual_host() -> None:
    """If the exchange left one and came to the other between two looks, nothing changed: the old
    link remained, and the new one never began."""
    world = World()
    other = world.rig.client(vhost="v")
    uri: Table = {"value": {"uri": "amqp://far"}}
    assert world.rig.define("parameter", "v", "federation-upstream/far", uri)[0] < 300
    body: Table = {"pattern": "^x$", "definition": {"federation-upstream": "far"}, "priority": 0,
                   "apply-to": "all"}  # fmt: skip
    assert world.rig.define("policy", "v", "p", body)[0] < 300
    world.policy("^x$")
    world.client.exchange("x", "topic")
    assert list(world.links()) == [("/", "exchange", "x", "far")]
    world.client.delete_exchange("x")
    other.exchange("x", "topic")
    assert list(world.links()) == [("v", "exchange", "x", "far")]


def test_links_beyond_the_limit_of_processes_are_reported_as_stopped() -> None:
    world = World()
    for number in range(LINKS_MAX + 2):
        world.client.queue(f"q{number}")
    world.policy("^q")
    bad = [one for one in world.links().values() if isinstance(one, BadShovel)]
    assert len(bad) == 2
    assert "more than" in str(bad[0])
    machine = world.rig.machine
    queues = machine.vhosts["/"].queues
    for name in list(queues):  # as a member may have them that joined later
        queues[name] = queues.pop(name)
    queues["q0"] = queues.pop("q0")
    links = Federation(lambda: "near", lambda: machine).links(1.0)
    assert [key for key, one in links.items() if isinstance(one, BadShovel)] == [
        ("/", "queue", "q98", "far"), ("/", "queue", "q99", "far"),
    ]  # fmt: skip


def test_changes_of_bindings_are_reported() -> None:
    world = World()
    client = world.client
    client.exchange("x", "topic")
    client.queue("q")
    client.queue("r")
    client.bind("q", "x", "a")
    client.bind("r", "x", "a")  # the same for an upstream
    world.policy("^x$")
    side = world.side("/", "exchange", "x", "far")
    first = side.change()
    assert first is not None
    assert (keys(first, "bind"), first["unbind"]) == ([("a", {})], [])
    assert side.change() is None
    client.unbind("r", "x", "a")
    assert side.change() is None, "another queue has the same binding"
    client.bind("q", "x", "b", {"x": 7})
    client.unbind("q", "x", "a")
    second = side.change()
    assert second is not None
    assert keys(second, "bind") == [("b", {"x": 7})]
    assert keys(second, "unbind") == [("a", {})]
    assert isinstance(side, _Bindings)
    assert [key for key, _ in side._counts] == ["b"], "a key that is gone takes no memory"
    client.delete("q")
    third = side.change()
    assert third is not None
    assert keys(third, "unbind") == [("b", {"x": 7})]
    client.delete_exchange("x")
    assert side.change() is None


class Unlisted(dict[BindingId, Binding]):
    """Bindings that nobody may iterate over: there may be 20,000 of them, ten times a second."""

    def values(self) -> NoReturn:
        raise AssertionError("all of them were looked at")

    __iter__ = items = keys = values


def test_a_report_costs_the_changes_and_not_the_bindings() -> None:
    world = World()
    client = world.client
    client.exchange("x", "topic")
    for queue in ("q", "r"):
        client.queue(queue)
        client.bind(queue, "x", "a")
    world.policy("^x$")
    sides = [world.side("/", "exchange", "x", "far") for _ in range(2)]
    for side in sides:
        assert side.change() is not None
    exchange = world.rig.machine.vhosts["/"].exchanges["x"]

    def change_of(side: LocalSide) -> Change:
        bindings, exchange.bindings = exchange.bindings, Unlisted(exchange.bindings)
        change = side.change()
        exchange.bindings = bindings
        assert change is not None
        return change

    client.unbind("q", "x", "a")
    client.bind("q", "x", "b")
    client.bind("q", "x", "gone")
    client.unbind("q", "x", "gone")
    for side in sides:
        change = change_of(side)
        assert (keys(change, "bind"), keys(change, "unbind")) == ([("b", {})], [])
    client.unbind("r", "x", "a")
    client.bind("r", "x", "b")
    change = change_of(sides[0])
    assert (keys(change, "bind"), keys(change, "unbind")) == ([], [("a", {})])


def test_more_changes_than_are_recorded_are_found_by_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bindings, "CHANGES_KEPT", 5)
    world = World()
    client = world.client
    client.exchange("x", "topic")
    client.queue("q")
    client.bind("q", "x", "old")
    world.policy("^x$")
    side = world.side("/", "exchange", "x", "far")
    assert side.change() is not None
    client.unbind("q", "x", "old")
    names = [str(number) for number in range(8)]
    for name in names:
        client.bind("q", "x", name)
    change = side.change()
    assert change is not None
    assert [key for key, _ in keys(change, "bind")] == names
    assert keys(change, "unbind") == [("old", {})]


def keys(change: dict[str, object], what: str) -> list[tuple[str, Table]]:
    rows = change[what]
    assert isinstance(rows, list)
    found = []
    for key, arguments in rows:
        raw = base64.b64decode(arguments)
        found.append((key, decode_table(raw, 0, len(raw))[0]))
    return found


def test_an_exchange_without_bindings_is_reported_at_the_start() -> None:
    world = World()
    world.client.exchange("x", "topic")
    world.policy("^x$")
    assert world.side("/", "exchange", "x", "far").change() == {"bind": [], "unbind": []}


def consumer(client: Client, chan: int, prefetch: int, priority: int = 0) -> Client:
    other = client.channel(chan)
    other.consume("q", "t", prefetch, {"x-priority": priority})
    return other


def settled_side(world: World, prefetch: int = 0) -> LocalSide:
    """Of a queue `q`, after enough checks that the wait for another link is over."""
    more: Table = {"prefetch-count": prefetch} if prefetch else {}
    world.client.queue("q")
    world.parameter("federation-upstream/far", {"uri": "amqp://far", **more})
    world.policy("^q$")
    side = world.side("/", "queue", "q", "far")
    assert side.change() == {"wanted": 0}
    waits = consumer(world.client, 2, 1)
    assert side.change() == {"wanted": 1}, "as many as it may hold at first"
    for _ in range(ALONE_LOOKS - 1):
        assert side.change() is None
    assert side.change() == {"wanted": prefetch or QUEUE_PREFETCH}
    waits.cancel()
    assert side.change() == {"wanted": 0}
    return side


def test_a_queue_wants_messages_while_a_client_consumer_waits() -> None:
    world = World()
    client = world.client
    side = settled_side(world, 12)
    linked = consumer(client, 3, 10, -1)
    assert side.change() is None, "the consumer of another cluster's link"
    linked.cancel()
    assert side.change() is None
    one = consumer(client, 4, 1)
    assert side.change() == {"wanted": 1}
    told = [side.change() for _ in range(ALONE_LOOKS)]
    assert told == [None] * (ALONE_LOOKS - 1) + [{"wanted": 12}]
    client.publish("q", b"1")
    client.publish("q", b"2")
    client.publish("q", b"3")
    assert side.change() is None, "some messages wait, but not many"
    client.publish("q", b"4")
    assert side.change() == {"wanted": 0}
    for tag in (1, 2, 3):
        one.ack(tag)
    assert side.change() is None, "the consumer holds one message and cannot take another"
    one.ack(4)
    assert side.change() == {"wanted": 12}
    one.cancel()
    assert side.change() == {"wanted": 0}


def test_a_queue_with_links_of_others_stocks_nothing() -> None:
    """Otherwise two clusters pass the same messages back and forth for as long as their consumers
    work."""
    world = World()
    client = world.client
    side = settled_side(world)
    one = consumer(client, 3, 1)
    assert side.change() == {"wanted": QUEUE_PREFETCH}
    client.publish("q", b"1")
    assert side.change() is None, "no other link takes from it"
    linked = consumer(client, 4, 10, -1)
    assert side.change() == {"wanted": 0}
    one.ack(1)
    assert side.change() == {"wanted": 1}, (
        "as many as its consumers hold, so that few messages cross"
    )
    two = consumer(client, 5, 7)
    assert side.change() == {"wanted": 8}
    client.channel(6).consume("q", "t", no_ack=True)
    assert side.change() == {"wanted": QUEUE_PREFETCH}, "a consumer that holds any number"
    two.cancel()
    linked.cancel()


def test_a_consumer_holds_no_more_than_its_channel_may() -> None:
    """What a link requests beyond that waits here, while others could take it at the upstream."""
    world = World()
    world.client.queue("q")
    world.policy("^q$")
    side = world.side("/", "queue", "q", "far")
    assert side.change() == {"wanted": 0}
    other = world.client.channel(2)
    other.qos(2, shared=True)
    other.consume("q", "t", 9)
    assert side.change() == {"wanted": 2}


def test_a_link_asks_for_few_until_no_other_is_known_to_take() -> None:
    """Both sides of a pair begin to want at once, and the consumer of the other link appears a
    moment later: 300 messages would cross three times in that moment."""
    world = World()
    client = world.client
    client.queue("q")
    world.policy("^q$")
    side = world.side("/", "queue", "q", "far")
    assert side.change() == {"wanted": 0}
    consumer(client, 2, 3)
    assert side.change() == {"wanted": 3}
    consumer(client, 3, 10, -1)
    for _ in range(2 * ALONE_LOOKS):
        assert side.change() is None, "another link takes from the queue"
