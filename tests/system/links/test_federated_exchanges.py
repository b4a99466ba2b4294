"""Federated exchanges between clusters of real processes: one copy, in order, once (G27)."""

from __future__ import annotations

import os
import signal

import pytest

from tests.system.links.federation_support import (
    bindings_of_links,
    bound,
    exchange,
    federate,
    link,
    send,
    settled,
    stop_federating,
    unbind,
    upstream,
    wait_for_bindings,
    wait_for_link,
)
from tests.system.links.support import api, depth, processes, rows, take, waiting
from tests.system.support.clusters import START_SECONDS, wait_until
from tests.system.support.tcp_relay import Relay
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", autouse=True)
def _upstream(clusters: tuple[LocalCluster, ...]) -> None:
    near, far = clusters
    upstream(near[0], "far", far[0])


def runner_of(cluster: LocalCluster, name: str) -> BrokerProcess:
    """The member that runs a link."""
    node = link(cluster[0], name)["node"]
    return next(one for one in cluster.members if api(one).row("overview")["node"] == node)


def test_a_bound_message_arrives_once_for_any_number_of_queues(
    clusters: tuple[LocalCluster, ...],
) -> None:
    near, far = clusters
    exchange(near[0], "news")
    for queue in ("one", "two", "three"):
        bound(near[0], queue, "news", "eu.#")
    federate(near[0], "^news$")
    wait_for_link(near[0], "news")
    for member in near.members:
        wait_for_link(member, "news")
    wait_for_bindings(far[0], "news", "eu.#")
    send(far[0], "news", "eu.fr", range(50))
    send(far[0], "news", "us.ny", range(50, 60))
    for queue in ("one", "two", "three"):
        assert take(near[1], queue, 50) == list(range(50))
        settled(near[1], queue, 0, 0.5)
    row = link(near[2], "news")
    wait_until(lambda: link(near[2], "news")["forwarded"] == 50, 20, "the count of copies")
    assert (row["type"], row["upstream_exchange"], row["upstream"]) == ("exchange", "news", "far")
    assert "guest" not in repr(row)
    stop_federating(near[0], "^news$")
    wait_until(lambda: not link(near[0], "news"), 20, "the end of the link")
    wait_until(lambda: "federation: news -> near" not in rows(far[0], "queues"), 20, "its queue")
    assert bindings_of_links(far[0], "news") == []


def test_added_and_removed_bindings_are_passed_on(clusters: tuple[LocalCluster, ...]) -> None:
    near, far = clusters
    exchange(near[0], "follow")
    federate(near[0], "^follow$")
    wait_for_link(near[0], "follow")
    bound(near[0], "follower", "follow", "a", "b")
    bound(near[1], "other", "follow", "b")
    wait_for_bindings(far[0], "follow", "a", "b")
    unbind(near[2], "follower", "follow", "a")
    wait_for_bindings(far[0], "follow", "b")
    unbind(near[2], "follower", "follow", "b")
    send(far[0], "follow", "a", [1])
    send(far[0], "follow", "b", [2])
    assert take(near[0], "other", 1) == [2]
    settled(near[0], "follower", 0, 1.0)
    unbind(near[2], "other", "follow", "b")
    wait_for_bindings(far[0], "follow")
    stop_federating(near[0], "^follow$")


def test_messages_sent_while_the_link_is_down_arrive_later(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """Bindings removed meanwhile are removed at the upstream, too."""
    near, far = clusters
    exchange(near[0], "later")
    bound(near[0], "late", "later", "keep", "drop")
    federate(near[0], "^later$")
    wait_for_bindings(far[0], "later", "keep", "drop")
    for member in near.members:
        member.kill()
    send(far[0], "later", "keep", range(100))
    near.start(START_SECONDS)
    assert take(near[0], "late", 100) == list(range(100))
    wait_for_link(near[0], "later")
    unbind(near[0], "late", "later", "drop")
    wait_for_bindings(far[0], "later", "keep")
    stop_federating(near[0], "^later$")


def test_the_death_of_its_member_keeps_all_messages_once_in_order(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """G27."""
    near, far = clusters
    count = 4000
    exchange(near[0], "flow", "fanout")
    bound(near[0], "flowing", "flow", "")
    federate(near[0], "^flow$")
    wait_for_bindings(far[0], "flow", "")
    wait_for_link(near[0], "flow")
    first = runner_of(near, "flow")
    others = [member for member in near.members if member is not first]
    send(far[0], "flow", "", range(count))
    wait_until(lambda: waiting(others[0], "flowing") >= 300, 60, "messages to flow")
    first.kill()
    assert waiting(others[0], "flowing") < count, "it was not killed in time"
    assert take(others[0], "flowing", count) == list(range(count))
    wait_for_link(others[0], "flow")
    wait_until(lambda: depth(far[0], "federation: flow -> near") == 0, 30, "the acknowledgements")
    settled(others[0], "flowing", 0)
    first.start()
    near.wait_active(timeout_seconds=START_SECONDS)
    stop_federating(near[0], "^flow$")


def test_a_network_that_goes_silent_keeps_the_order(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """G27: the silence tells neither side that the link is gone, so the upstream waits for the
    previous consumer, and gives the next one nothing until it has that one's messages back."""
    near, far = clusters
    count = 6000
    with Relay(["nobody:1", str(far[0].address)], 1) as relay:
        _, _, door = relay.detours(0).partition("=")
        upstream(near[0], "silent", far[0], uri=f"amqp://guest:guest@{door}?heartbeat=1",
                 prefetch_count=300)  # fmt: skip
        exchange(near[0], "silence", "fanout")
        bound(near[0], "silenced", "silence", "")
        federate(near[0], "^silence$", federation_upstream="silent")
        wait_for_bindings(far[0], "silence", "")
        send(far[0], "silence", "", range(count))
        wait_until(lambda: waiting(near[0], "silenced") >= 300, 60, "messages to flow")
        relay.hold(0, 1)
        before = waiting(near[0], "silenced")
        assert before < count, "it was not cut in time"
        wait_until(
            lambda: "silent for" in str(link(near[0], "silence").get("error")),
            40,
            "the silence to be noticed",
        )
        relay.heal()
        assert take(near[0], "silenced", count) == list(range(count))
        wait_for_link(near[0], "silence")
        settled(near[0], "silenced", 0)
        stop_federating(near[0], "^silence$")
        wait_until(lambda: not link(near[0], "silence"), 20, "the end of the link")


def test_a_repeatedly_killed_process_costs_only_time(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """G27: once and in order, with the current bindings."""
    near, far = clusters
    count = 6000
    exchange(near[0], "killed", "topic")
    bound(near[0], "killing", "killed", "#")
    federate(near[0], "^killed$")
    wait_for_bindings(far[0], "killed", "#")
    send(far[0], "killed", "a", range(count // 2))
    for number in range(3):
        wait_until(lambda: bool(processes(near)), 60, "a process")
        for pid in processes(near):
            os.kill(pid, signal.SIGKILL)
        bound(near[0], "killing", "killed", f"more.{number}")
    send(far[0], "killed", "a", range(count // 2, count))
    assert take(near[0], "killing", count) == list(range(count))
    wait_for_link(near[0], "killed")
    wait_for_bindings(far[0], "killed", "#", "more.0", "more.1", "more.2")
    settled(near[0], "killing", 0)
    stop_federating(near[0], "^killed$")
