"""Rings, meshes and stars of clusters, and federated queues: each message once, none in circles."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pika
import pytest

from tests.system.links.federation_support import (
    DURABLE,
    bound,
    exchange,
    federate,
    link,
    links,
    put,
    send,
    settled,
    stop_federating,
    upstream,
    wait_for_bindings,
    wait_for_link,
)
from tests.system.links.support import (
    answered,
    api,
    channel,
    depth,
    publish,
    rows,
    take,
    uri,
    waiting,
)
from tests.system.support.clusters import START_SECONDS, wait_until
from tools.demo.local_cluster import ROOT, BrokerProcess, LocalCluster, command

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]

NAMES = ("north", "south", "west")
Members = dict[str, BrokerProcess]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """Three clusters of one member each that are upstreams of one another."""
    root = tmp_path_factory.mktemp("topologies")
    with ExitStack() as stack:
        found: Members = {}
        for name in NAMES:
            cluster = LocalCluster(root / name, 1, name, management=True)
            stack.enter_context(cluster)
            cluster.start(START_SECONDS)
            found[name] = cluster[0]
        for name, member in found.items():
            for other in found:
                if other != name:
                    upstream(member, other, found[other])
        yield found


def chosen(member: BrokerProcess, name: str, *upstreams: str, hops: int) -> None:
    """A set of upstreams."""
    value = [{"upstream": one, "max-hops": hops} for one in upstreams]
    put(member, f"parameters/federation-upstream-set/%2F/{name}", {"value": value})


def test_in_a_ring_every_cluster_gets_all_once(members: Members) -> None:
    for name, before in zip(NAMES, (NAMES[-1], *NAMES), strict=False):
        chosen(members[name], "ring", before, hops=5)
        exchange(members[name], "ring")
        federate(members[name], "^ring$", federation_upstream_set="ring")
    for name in NAMES:
        wait_for_link(members[name], "ring")
    # A key that only the last cluster binds is passed on by the one between, which has its binding.
    bound(members["west"], "far-ring", "ring", "far")
    wait_for_bindings(members["south"], "ring", "far")
    wait_for_bindings(members["north"], "ring", "far")
    send(members["north"], "ring", "far", range(20))
    assert take(members["west"], "far-ring", 20) == list(range(20))
    for name in NAMES:
        bound(members[name], "all-ring", "ring", "all")
    for name in NAMES:
        # The binding arrives two ways: from the next cluster, and through it from the one after.
        wait_for_bound(members[name], "ring", "all")
    for number, name in enumerate(NAMES):
        send(members[name], "ring", "all", range(10 * number, 10 * number + 10))
    settled(members.values(), "all-ring", 30)
    for name in NAMES:
        assert sorted(take(members[name], "all-ring", 30)) == list(range(30))
    for name in NAMES:
        stop_federating(members[name], "^ring$")


def bound_by_links(member: BrokerProcess, source: str, key: str) -> int:
    """The number of bindings with this key that links of other clusters have made."""
    found = answered(member, "GET", f"exchanges/%2F/{source}/bindings/source")
    assert isinstance(found.body, list)
    return sum(
        row["routing_key"] == key and row["destination_type"] == "exchange" for row in found.body
    )


def wait_for_bound(member: BrokerProcess, source: str, key: str) -> None:
    """Wait until a neighbour is bound for itself, and for the cluster behind it."""
    wait_until(lambda: bound_by_links(member, source, key) == 2, 30, f"bindings of {source}")


def test_in_a_mesh_every_cluster_gets_all_once(members: Members) -> None:
    """All are upstreams of all, and one hop suffices: two would make two copies."""
    for name in NAMES:
        exchange(members[name], "mesh")
        bound(members[name], "meshed", "mesh", "#")
        federate(members[name], "^mesh$")
    for name in NAMES:
        for other in NAMES:
            if other != name:
                wait_for_link(members[name], "mesh", other)
        wait_for_bindings(members[name], "mesh", "#", "#")
    for number, name in enumerate(NAMES):
        send(members[name], "mesh", "a.key", range(10 * number, 10 * number + 10))
    settled(members.values(), "meshed", 30)
    for name in NAMES:
        assert sorted(take(members[name], "meshed", 30)) == list(range(30))
    for name in NAMES:
        stop_federating(members[name], "^mesh$")


def test_in_a_star_the_hub_passes_on(members: Members) -> None:
    chosen(members["south"], "star", "north", "west", hops=2)
    for leaf in ("north", "west"):
        chosen(members[leaf], "star", "south", hops=2)
    for name in NAMES:
        exchange(members[name], "star", "fanout")
        bound(members[name], "starred", "star", "")
        federate(members[name], "^star$", federation_upstream_set="star")
    for name in NAMES:
        wait_for_link(members[name], "star")
    wait_for_bound(members["north"], "star", "")
    wait_for_bound(members["west"], "star", "")
    wait_for_bindings(members["south"], "star", "", "")
    for number, name in enumerate(NAMES):
        send(members[name], "star", "", range(10 * number, 10 * number + 10))
    settled(members.values(), "starred", 30)
    for name in NAMES:
        assert sorted(take(members[name], "starred", 30)) == list(range(30))
    for name in NAMES:
        stop_federating(members[name], "^star$")


def test_headers_show_the_way_and_user_ids_are_trusted_by_option(members: Members) -> None:
    north, south = members["north"], members["south"]
    for name, trust in (("way", False), ("trusted", True)):
        upstream(south, f"{name}-from", north, trust_user_id=trust, exchange=f"{name}-there")
        exchange(south, name)
        bound(south, f"{name}-queue", name, "k")
        federate(south, f"^{name}$", federation_upstream=f"{name}-from")
        wait_for_bindings(north, f"{name}-there", "k")
        with channel(north, confirms=True) as one:
            properties = pika.BasicProperties(user_id="guest", headers={"mine": 1})
            one.basic_publish(f"{name}-there", "k", b"body", properties)
        with channel(south) as one:
            _, properties, body = next(one.consume(f"{name}-queue", auto_ack=True))
            assert body == b"body"
            assert properties.user_id == ("guest" if trust else None)
            (step,) = properties.headers.pop("x-received-from")
            assert properties.headers == {"mine": 1}
            assert (step["cluster-name"], step["vhost"]) == ("north", "/")
            assert step["exchange"] == f"{name}-there"
            assert "guest" not in step["uri"]
            one.cancel()
        stop_federating(south, f"^{name}$")


def test_an_upstream_may_be_another_virtual_host_of_the_same_cluster(members: Members) -> None:
    north = members["north"]
    put(north, "vhosts/other", {})
    put(north, "permissions/other/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    put(north, "parameters/federation-upstream/%2F/beside", {"value": {"uri": "amqp:///other"}})
    exchange(north, "beside")
    bound(north, "beside-queue", "beside", "k")
    federate(north, "^beside$", federation_upstream="beside")
    wait_for_link(north, "beside")
    put(north, "exchanges/other/beside", {"type": "topic", "durable": True})
    body = {"routing_key": "k", "payload": "7", "payload_encoding": "string", "properties": {}}
    published = api(north).ask("POST", "exchanges/other/beside/publish", body)
    assert published.body == {"routed": True}
    assert take(north, "beside-queue", 1) == [7]
    stop_federating(north, "^beside$")


def test_waiting_messages_expire_if_configured(members: Members) -> None:
    north, south = members["north"], members["south"]
    upstream(south, "hasty", north, message_ttl=0, queue="", expires=60_000)
    exchange(south, "hasty")
    federate(south, "^hasty$", federation_upstream="hasty")
    wait_for_link(south, "hasty")
    row = rows(north, "queues")["federation: hasty -> south"]
    arguments = row["arguments"]
    assert isinstance(arguments, dict)
    assert (arguments["x-message-ttl"], arguments["x-expires"]) == (0, 60_000)
    assert row["durable"] is True
    stop_federating(south, "^hasty$")


def test_a_queue_takes_from_its_upstream_only_while_a_consumer_waits(members: Members) -> None:
    north, south = members["north"], members["south"]
    publish(north, "work", range(3000))
    publish(south, "work", ())
    federate(south, "^work$", kind="queues", federation_upstream="north")
    wait_for_link(south, "work")
    time.sleep(1.0)
    assert waiting(north, "work") == 3000, "no consumer takes them here"
    with channel(south) as one:
        one.basic_qos(prefetch_count=10)
        found = []
        for method, _, body in one.consume("work", inactivity_timeout=60):
            assert body is not None
            found.append(int(body))
            one.basic_ack(method.delivery_tag)
            if len(found) == 500:
                break
        one.cancel()
    assert found == list(range(500))
    wait_until(lambda: depth(north, "work") == waiting(north, "work"), 30, "the acknowledgements")
    left = waiting(north, "work") + waiting(south, "work")
    assert left == 2500, "one is lost or there twice"
    settled(north, "work", waiting(north, "work"))
    rest = take(south, "work", 2500)
    assert rest == list(range(500, 3000))
    stop_federating(south, "^work$")


def test_mutual_upstream_queues_move_nothing_in_circles(members: Members) -> None:
    north, south = members["north"], members["south"]
    for member, other in ((north, "south"), (south, "north")):
        publish(member, "both", ())
        federate(member, "^both$", kind="queues", federation_upstream=other)
    for member in (north, south):
        wait_for_link(member, "both")
    publish(north, "both", range(100))
    settled(north, "both", 100)
    assert sorted(take(south, "both", 100)) == list(range(100))
    settled((north, south), "both", 0)
    for member in (north, south):
        stop_federating(member, "^both$")


def qpidctl(member: BrokerProcess, *words: str) -> str:
    """The command's output."""
    asked = [*command("qpidctl"), "--broker", str(member.management), *words]
    return subprocess.run(
        asked, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_mutual_upstream_queues_with_busy_consumers_move_nothing_in_circles(
    members: Members,
) -> None:
    """More wait than the consumers of both take: each message moves at most once."""
    north, south = members["north"], members["south"]
    for member, other in ((north, "south"), (south, "north")):
        publish(member, "busy", ())
        federate(member, "^busy$", kind="queues", federation_upstream=other)
    for member in (north, south):
        wait_for_link(member, "busy")
    with channel(north) as one, channel(south) as other_one:
        for consumer in (one, other_one):
            consumer.basic_qos(prefetch_count=1)
            consumer.basic_consume("busy", lambda *_: None)
        publish(north, "busy", range(300))
        wait_until(lambda: rows(south, "queues")["busy"]["messages_unacknowledged"] == 1, 30, "one")
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            for consumer in (one, other_one):
                consumer.connection.process_data_events(0.1)
        moved = [link(member, "busy").get("forwarded") for member in (north, south)]
    for member in (north, south):
        stop_federating(member, "^busy$")
    found = [
        number for member in (north, south) if (count := waiting(member, "busy"))
        for number in take(member, "busy", count)
    ]  # fmt: skip
    assert sorted(found) == list(range(300))
    assert all(isinstance(count, int) and count <= 300 for count in moved), moved


def test_no_exchange_takes_from_itself(members: Members) -> None:
    """As when all clusters get the same definitions."""
    north = members["north"]
    upstream(north, "itself", north)
    exchange(north, "self")
    bound(north, "self-queue", "self", "#")
    federate(north, "^self$", federation_upstream="itself")
    wait_for_link(north, "self", status="error")
    assert "is the exchange itself" in str(link(north, "self")["error"])
    send(north, "self", "k", range(5))
    settled(north, "self-queue", 5)
    stop_federating(north, "^self$")


def test_a_redeclared_upstream_exchange_is_bound_again(members: Members) -> None:
    north, south = members["north"], members["south"]
    for member in (north, south):
        exchange(member, "anew")
    bound(south, "anew-queue", "anew", "k")
    federate(south, "^anew$", federation_upstream="north")
    wait_for_bindings(north, "anew", "k")
    with channel(north) as one:
        one.exchange_delete("anew")
        one.exchange_declare("anew", "topic", durable=True)
    wait_for_bindings(north, "anew", "k")
    stop_federating(south, "^anew$")


def test_another_list_of_uris_loses_nothing(members: Members) -> None:
    north, south = members["north"], members["south"]
    upstream(south, "listed", north)
    exchange(south, "listed")
    bound(south, "listed-queue", "listed", "#")
    federate(south, "^listed$", federation_upstream="listed")
    wait_for_bindings(north, "listed", "#")
    count = 0
    with channel(north, confirms=True) as one:
        for uris in (2, 3):
            upstream(south, "listed", north, uri=[uri(north)] * uris)
            until = time.monotonic() + 3.0
            while time.monotonic() < until:
                one.basic_publish("listed", "k", str(count).encode(), DURABLE)
                count += 1
                time.sleep(0.01)
    assert take(south, "listed-queue", count) == list(range(count))
    settled(south, "listed-queue", 0)
    stop_federating(south, "^listed$")


def test_operators_see_links_and_restart_them(members: Members) -> None:
    north, south = members["north"], members["south"]
    bad = api(south).ask("PUT", "parameters/federation-upstream/%2F/bad", {"value": {"uri": "x"}})
    assert bad.status == 400
    assert "amqp://" in str(bad.body)
    exchange(south, "seen")
    federate(south, "^seen$", federation_upstream="nobody")
    wait_for_link(south, "seen", status="error")
    assert "there is no federation-upstream 'nobody'" in str(link(south, "seen")["error"])
    put(south, "parameters/federation-upstream/%2F/nobody",
        {"value": {"uri": uri(north, "guest:sesame"), "reconnect-delay": 1}})  # fmt: skip
    wait_until(lambda: "ACCESS_REFUSED" in str(link(south, "seen").get("error")), 30, "a refusal")
    for path in ("federation-links", "federation-links/state/down", "parameters"):
        assert "sesame" not in repr(api(south).get(path)), path
    assert "sesame" not in south.log_path.read_text(encoding="utf-8")
    upstream(south, "nobody", north)
    wait_for_link(south, "seen")
    name = link(south, "seen")["id"]
    again = api(south).ask("DELETE", f"federation-links/vhost/%2F/{name}/south/restart")
    assert again.status == 204
    wait_for_link(south, "seen")
    assert f"{name}\t/\tseen\t\tnobody\t" in qpidctl(south, "federation_status")
    qpidctl(south, "restart_federation_link", str(name))
    wait_for_link(south, "seen")
    nothing = api(south).ask("DELETE", "federation-links/vhost/%2F/0123abcd/restart")
    assert nothing.status == 404
    stop_federating(south, "^seen$")
    wait_until(lambda: not links(south), 20, "the end of all links")
