"""The path of messages and bindings over links: what a link adds, and where it ends."""

from __future__ import annotations

from base64 import b64encode
from types import SimpleNamespace
from typing import cast

import pytest

from broker.amqp import codec
from broker.amqp.fields import Value, encode_table
from broker.machine.commands import Table
from broker.shovels.definition import Link, Shovel
from broker.shovels.upstreams import link_of, parse_upstream
from tools.cli.failures import ToolError
from tools.client.amqp_client import AmqpConnection, BrokerRefused, Delivery
from tools.shovel.content import Content, Outgoing
from tools.shovel.doubts import Doubts
from tools.shovel.received_from import Way
from tools.shovel.upstream import NoSuchType, UpstreamExchange

STEP = {"uri": "amqp://far", "exchange": "x", "cluster-name": "far", "vhost": "/"}


def link(kind: str = "exchange", hops: int = 2, *, trust: bool = False) -> Shovel:
    uri = "amqp://me:secret@far?heartbeat=5"
    upstream = parse_upstream("far", {"uri": uri, "trust-user-id": trust})
    of = Link(kind, "x", "far", "x", "near", hops, upstream.trusts_user_ids, True, "topic")
    return link_of(upstream, "/", of)


def sent(shovel: Shovel, headers: Table, **properties: Value) -> Outgoing | None:
    content = Content(
        shovel, "near", Doubts({}), numbers=True, frame_max=131_072, way=Way(shovel, "far", "/")
    )
    told: Table = {**headers, "x-queue-id": "id/1", "x-queue-sequence": 7}
    packed = codec.encode_properties({"headers": told, **properties})
    return content.of(Delivery(1, False, "elsewhere", "key", packed, b"body"))


def step(cluster: str, vhost: str = "/") -> Table:
    return {"cluster-name": cluster, "vhost": vhost}


def way_of(message: Outgoing | None) -> Value:
    assert message is not None
    assert message.properties.count(b"x-received-from") == 1, "the next broker may read the first"
    headers = codec.decode_properties(message.properties)["headers"]
    assert isinstance(headers, dict)
    return headers["x-received-from"]


def test_a_message_gets_the_upstream_in_front_and_a_number() -> None:
    message = sent(link(), {"mine": 1})
    assert message is not None
    assert (message.exchange, message.key, message.place) == ("x", "key", 7)
    assert message.producer.startswith("shovel-")
    assert way_of(message) == (STEP,)
    assert way_of(sent(link(), {"x-received-from": (step("west"),)})) == (STEP, step("west"))


@pytest.mark.parametrize(
    "way", [(step("near"),), (step("west"), step("east")), (step("near"), step("west"))]
)
def test_a_message_that_was_here_or_used_its_hops_is_dropped(way: tuple[Table, ...]) -> None:
    assert sent(link(), {"x-received-from": way}) is None
    assert sent(link("queue"), {"x-received-from": way}) is not None, (
        "a message of a queue would be lost"
    )


def test_other_virtual_hosts_of_this_cluster_are_other_places() -> None:
    assert sent(link(), {"x-received-from": (step("near", "other"),)}) is not None


def test_moving_between_two_queues_does_not_lengthen_the_path() -> None:
    shovel = link("queue")
    first = way_of(sent(shovel, {}))
    assert way_of(sent(shovel, {"x-received-from": first})) == first


def test_a_user_is_kept_only_if_the_upstream_is_trusted() -> None:
    for trust in (False, True):
        message = sent(link(trust=trust), {}, user_id="me", message_id="m")
        assert message is not None
        found = codec.decode_properties(message.properties)
        assert found.get("user_id") == ("me" if trust else None)
        assert found["message_id"] == "m"


class Source:
    """A connection that records what is sent."""

    def __init__(self, *exchanges: str, filters: bool = True) -> None:
        self.exchanges = set(exchanges)
        self.unknown_types: set[Value] = set() if filters else {"x-federation-upstream"}
        self.did: list[tuple[Value, ...]] = []
        self.out, self.opened = bytearray(), 0
        self.owner: Value = None
        self.counts = 5, 0
        self.refuses_owner = False

    def call(self, name: str, args: tuple[Value, ...], _answer: str) -> tuple[Value, ...]:
        match name:
            case "exchange.declare":
                if args[2] and args[0] not in self.exchanges:
                    raise BrokerRefused(404, "NOT_FOUND")
                if args[1] in self.unknown_types:
                    raise BrokerRefused(503, "COMMAND_INVALID")
                if str(args[0]).endswith(" owner"):
                    claimed = cast("Table", args[7])["alternate-exchange"]
                    if self.refuses_owner:
                        raise BrokerRefused(403, "ACCESS_REFUSED")
                    if self.owner not in (None, claimed):
                        raise BrokerRefused(406, "PRECONDITION_FAILED")
                    self.owner = claimed
                elif not args[2]:
                    self.exchanges.add(str(args[0]))
                    self.did.append((name, args[0], args[1]))
            case "exchange.delete":
                if str(args[0]).endswith(" owner"):
                    self.owner = None
                if args[0] in self.exchanges:
                    self.exchanges.remove(str(args[0]))
                    self.did.append((name, args[0]))
            case "queue.delete":
                self.did.append((name, *args))
            case _:
                self.did.append((name, args[0]))
        return ("", *self.counts)

    def send(self, name: str, args: tuple[Value, ...]) -> None:
        self.did.append((name, *args[:3], args[4]))

    def open_channel(self) -> None:
        self.opened += 1


def row(key: str, arguments: Table) -> list[str]:
    return [key, b64encode(encode_table(arguments)).decode()]


MINE = {"cluster-name": "near", "vhost": "/", "exchange": "x", "hops": 2}
QUEUE = "federation: x -> near"


def test_what_a_link_declares_there_outlives_it_or_goes_with_it() -> None:
    """The queue is durable and stays, with all that comes while the link is down."""
    declared: dict[Value, tuple[Value, ...]] = {}

    def call(name: str, args: tuple[Value, ...], _: str) -> tuple[Value, ...]:
        if name == "exchange.declare" and args[2]:
            raise BrokerRefused(404, "NOT_FOUND")
        declared[name, args[0]] = args[1:7]
        return "", 0, 0

    source = SimpleNamespace(call=call, open_channel=lambda: None)
    upstream = UpstreamExchange(link(), "far", "/", {"bind": [], "unbind": []})
    upstream.prepare(cast("AmqpConnection", source))
    # passive, durable, exclusive, auto-delete, nowait
    assert declared["queue.declare", QUEUE][:5] == (False, True, False, False, False)
    # type, passive, durable, auto-delete, internal, nowait
    assert declared["exchange.declare", "x"] == ("topic", False, True, False, False, False)
    assert declared["exchange.declare", f"{QUEUE} A"] == (
        "x-federation-upstream", False, True, True, True, False
    )  # fmt: skip


def prepared(source: Source, *bound: list[str]) -> UpstreamExchange:
    upstream = UpstreamExchange(link(), "far", "/", {"bind": list(bound), "unbind": []})
    assert upstream.prepare(cast("AmqpConnection", source)) == (QUEUE, 5)
    return upstream


def test_missing_objects_are_declared_and_bound_before_the_queue() -> None:
    source = Source()
    prepared(source, row("k", {"a": 1}))
    assert source.did == [
        ("exchange.declare", "x", "topic"),
        ("queue.declare", QUEUE),
        ("exchange.declare", f"{QUEUE} A", "x-federation-upstream"),
        ("exchange.bind", f"{QUEUE} A", "x", "k", {"a": 1, "x-bound-from": (MINE,)}),
        ("queue.bind", QUEUE),
    ]


@pytest.mark.parametrize(
    ("there", "made", "deleted"),
    [(("A",), "B", ("A",)), (("B",), "A", ("B",)), (("A", "B"), "B", ("B", "A"))],
)
def test_an_exchange_of_an_earlier_attempt_is_replaced(
    there: tuple[str, ...], made: str, deleted: tuple[str, ...]
) -> None:
    source = Source("x", *(f"{QUEUE} {one}" for one in there))
    prepared(source)
    assert ("exchange.declare", f"{QUEUE} {made}", "x-federation-upstream") in source.did
    gone = [one[1] for one in source.did if one[0] == "exchange.delete"]
    assert gone == [f"{QUEUE} {one}" for one in deleted]
    if made not in deleted:
        assert source.did[-1][0] == "exchange.delete", "once the new one is bound"


def claimed(source: Source, own_id: str) -> None:
    here: dict[str, object] = {"bind": [], "unbind": []}
    upstream = UpstreamExchange(link(), "far", "/", here, own_id)
    upstream.prepare(cast("AmqpConnection", source))


def test_two_clusters_of_one_name_do_not_share_a_queue() -> None:
    source = Source("x")
    claimed(source, "one")
    claimed(source, "one")  # another attempt
    for counts in ((5, 0), (0, 1)):
        source.counts, source.did = counts, []
        with pytest.raises(ToolError, match="another cluster that is named 'near', too"):
            claimed(source, "two")
        assert source.did == [("queue.declare", QUEUE)], "nothing of the other cluster is touched"
    source.counts = 0, 0  # no consumer is there, and no message is lost
    claimed(source, "two")
    assert source.owner == "federation: two"
    source.counts, source.refuses_owner = (5, 0), True
    claimed(source, "three")


def test_a_broker_without_such_exchanges_gets_a_fanout() -> None:
    source = Source("x", filters=False)
    upstream = UpstreamExchange(link(), "far", "/", {"bind": [], "unbind": []})
    with pytest.raises(NoSuchType):
        upstream.prepare(cast("AmqpConnection", source))
    upstream.prepare(cast("AmqpConnection", source))
    assert ("exchange.declare", f"{QUEUE} A", "fanout") in source.did
    source.unknown_types.add("fanout")
    with pytest.raises(BrokerRefused):  # a reason for the log, and not another attempt at once
        upstream.prepare(cast("AmqpConnection", source))


@pytest.mark.parametrize(
    ("way", "hops"),
    [
        ((), 2),
        (({**step("south"), "hops": 9},), 2),
        (({**step("south"), "hops": 2},), 1),
        (({**step("south"), "hops": 1},), 0),
        (({**step("far"), "hops": 9},), 0),  # it came from that cluster
        (({**step("south"), "hops": 9}, {**step("far"), "hops": 9}), 0),
        (({**step("south")},), 0),
        (("nonsense",), 0),
    ],
)
def test_a_binding_propagates_for_its_hops_and_not_back(way: tuple[Value, ...], hops: int) -> None:
    source = Source("x")
    arguments: Table = {"x-bound-from": way} if way else {}
    prepared(source, row("k", arguments))
    bound = [one for one in source.did if one[0] == "exchange.bind"]
    if not hops:
        assert not bound
    else:
        ((_, _, _, _, onward),) = bound
        assert onward == {"x-bound-from": ({**MINE, "hops": hops}, *way)}


def test_changes_are_passed_on_once() -> None:
    source = Source("x")
    upstream = prepared(source, row("a", {}))
    source.did.clear()
    change = {"bind": [row("b", {}), row("a", {})], "unbind": [row("c", {})]}
    for _ in range(2):
        upstream.change(cast("AmqpConnection", source), change)
    upstream.change(cast("AmqpConnection", source), {"bind": [], "unbind": [row("a", {})]})
    assert [(one[0], one[3]) for one in source.did] == [
        ("exchange.bind", "b"), ("exchange.unbind", "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 7, 60, 200])
def test_all_bindings_are_renewed_over_time(count: int) -> None:
    source = Source("x")
    upstream = prepared(source, *(row(str(one), {}) for one in range(count)))
    source.did.clear()
    for _ in range(min(count, 60) + 1):
        before = len(source.did)
        upstream.bind_again(cast("AmqpConnection", source))
        assert len(source.did) - before <= 1 + count // 60
    assert {one[3] for one in source.did} == {str(one) for one in range(count)}
    upstream.change(cast("AmqpConnection", source), {"unbind": [row("0", {})]})
    source.did.clear()
    for _ in range(60):
        upstream.bind_again(cast("AmqpConnection", source))
    assert "0" not in {one[3] for one in source.did}


def test_a_removed_link_unbinds_its_queue_and_loses_no_message() -> None:
    source = Source("x")
    upstream = prepared(source)
    assert upstream.clean_up(cast("AmqpConnection", source)) == ""
    assert source.exchanges == {"x"}
    name, queue, if_unused, if_empty, _ = source.did[-1]
    assert "may be left at the upstream" in upstream.left("lost")
    assert (name, queue, if_unused, if_empty) == ("queue.delete", QUEUE, False, True)
