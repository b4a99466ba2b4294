"""Qpid's cluster scenarios with deaths, stops and restarts, under their names."""

from __future__ import annotations

import re
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.exit_codes import Exit
from store.api import Marker
from store.lmdb_environment import inspect
from tests.system.clients.test_full_disks import alarms, publish_until_blocked
from tests.system.qpid_scenarios.clients import (
    clients_of,
    closing_code,
    count_of,
    hear,
    send,
    take,
)
from tests.system.support.clusters import running_cluster, wait_until
from tests.system.support.small_disks import mounted
from tests.system.test_cluster_faults import status_word
from tests.system.test_start_rules import reason_of, ring_of, run_typed
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]

LAST_MAN = {
    "cluster-last-man-standing": "yes",
    "cluster-last-man-standing-window": "500",
    "cluster-auto-tie-breaker": "lowest",
}


def by_ring(cluster: LocalCluster) -> list[BrokerProcess]:
    """The members in the order of a tie breaker, the lowest first."""
    return sorted(cluster.members, key=ring_of)


def marker_of(member: BrokerProcess) -> Marker:
    return inspect(member.data_dir / "store").marker


def known_hosts(member: BrokerProcess) -> set[str]:
    """The addresses of clients that a member announces."""
    return {one.url for one in member.status().members if one.state == "ACTIVE"}


def url_of(member: BrokerProcess) -> str:
    return f"amqp:tcp:{member.address}"


class Listener:
    """A client that bound its own queue to `amq.failover`, and the messages it got there."""

    def __init__(self, channel: BlockingChannel) -> None:
        self.channel = channel
        self.heard: list[list[str]] = []
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.failover")
        channel.basic_consume(queue, self._on_update, auto_ack=True)

    def _on_update(
        self, _channel: object, _method: object, properties: pika.BasicProperties, body: bytes
    ) -> None:
        assert body == b""
        assert properties.headers is not None
        self.heard.append(properties.headers["amq.failover"])

    def hears_of(self, *members: BrokerProcess) -> None:
        """Wait until it has been told of exactly these members."""
        urls = sorted(url_of(member) for member in members)
        hear(self.channel, lambda: bool(self.heard) and sorted(self.heard[-1]) == urls)


def test_amqfailover_visible(tmp_path: Path) -> None:
    """A client that binds a queue to amq.failover gets the members' addresses at once, and again
    when one dies and when it is back, even if that one publishes for all; so does a client that
    binds later.  testConnectionKnownHosts: by this exchange, as AMQP 0-9-1 reserves the field of
    open-ok.
    """
    with (
        LocalCluster(tmp_path, 3, management=True) as cluster, clients_of(cluster) as clients
    ):  # fmt: skip
        cluster.start()
        first, second, third = by_ring(cluster)
        listener = Listener(clients.channel(cluster.members.index(third)))
        listener.hears_of(first, second, third)
        assert "amq.failover" in run_typed(f"qpid-stat -e {second.management}")
        first.kill()
        listener.hears_of(second, third)
        late = Listener(clients.channel(cluster.members.index(second)))
        late.hears_of(second, third)
        heard = len(listener.heard)
        first.start()
        cluster.wait_active()
        listener.hears_of(first, second, third)
        late.hears_of(first, second, third)
        assert len(listener.heard) > heard
        channel = clients.channel(cluster.members.index(first))
        assert closing_code(lambda: channel.basic_publish("amq.failover", "", b"false")) == 403


def test_solo_store_clean(tmp_path: Path) -> None:
    """A killed single broker starts with its data; store_loaded: so does one that was stopped."""
    with running_cluster(tmp_path, 1) as cluster, clients_of(cluster) as clients:
        channel = clients.channel(0)
        channel.queue_declare("kept", durable=True)
        send(channel, "kept", b"1")
        cluster[0].kill()
        assert marker_of(cluster[0]) is Marker.DIRTY
        cluster.start()
        send(clients.channel(0), "kept", b"2")
        clients.close()
        assert cluster[0].terminate() == Exit.OK
        assert marker_of(cluster[0]) is Marker.CLEAN
        cluster.start()
        assert take(clients.channel(0), "kept") == [b"1", b"2"]


def test_persistent_restart(tmp_path: Path) -> None:
    """One of three is killed and returns; then all are stopped with `-k` and started (G8).

    restart_clean: they start one by one.  testConnectionKnownHosts on the way: each member lists
    the members that are there, after each death and join.
    """
    with running_cluster(tmp_path) as cluster, clients_of(cluster) as clients:
        everywhere = {url_of(member) for member in cluster.members}
        assert [known_hosts(member) for member in cluster.members] == [everywhere] * 3
        channel = clients.channel(0)
        channel.queue_declare("kept", durable=True)
        send(channel, "kept", b"1")
        cluster[1].kill()
        cluster.wait_active([cluster[0], cluster[2]])
        for survivor in (cluster[0], cluster[2]):
            assert known_hosts(survivor) == everywhere - {url_of(cluster[1])}
        send(channel, "kept", b"2")
        cluster[1].start()
        cluster.wait_active()
        assert [known_hosts(member) for member in cluster.members] == [everywhere] * 3
        send(clients.channel(1), "kept", b"3")
        clients.close()
        run_typed(f"qpid-cluster -k -f {cluster[1].address}")
        assert cluster.wait_stopped() == [Exit.OK] * 3
        assert [marker_of(member) for member in cluster.members] == [Marker.CLEAN] * 3
        for member in cluster.members:
            member.start()
            wait_until(lambda at=member: status_word(at) != "silent", 20, "a start")  # type: ignore[misc]
        cluster.wait_active()
        assert take(clients.channel(1), "kept") == [b"1", b"2", b"3"]


def test_last_store_clean(tmp_path: Path) -> None:
    """In the sequence 1, 3, 1, 2, 1 only the last member of all ends clean, and may start alone.

    Also persistent_partial_failure: two die, the last one stops cleanly, all start from it.
    """
    with (
        LocalCluster(tmp_path, 3, "last", extra=LAST_MAN) as cluster,
        clients_of(cluster) as clients,
    ):
        last, second, third = by_ring(cluster)
        cluster.start()
        channel = clients.channel(cluster.members.index(last))
        channel.queue_declare("kept", durable=True)
        send(channel, "kept", b"of three")
        assert third.terminate() == Exit.OK
        until_away(last, third)
        assert second.terminate() == Exit.OK
        cluster.wait_active([last])
        send(channel, "kept", b"of one")
        assert [marker_of(one) for one in (second, third)] == [Marker.DIRTY] * 2
        clients.close()
        assert last.terminate() == Exit.OK
        assert marker_of(last) is Marker.CLEAN
        second.start()  # the tie breaker is the other one's, and this one missed a message
        wait_until(lambda: "FOR GOOD" in reason_of(second), 30, "the refusal")
        assert status_word(second) == "INQUORATE"
        assert second.terminate() == Exit.OK
        last.start()
        cluster.wait_active([last])
        assert marker_of(last) is Marker.DIRTY
        second.start()
        cluster.wait_active([last, second])
        send(clients.channel(cluster.members.index(second)), "kept", b"of two")
        second.kill()
        cluster.wait_active([last])
        clients.close()
        run_typed(f"qpid-cluster -k -f {last.address}")
        assert last.wait() == Exit.OK
        assert marker_of(second) is Marker.DIRTY
        assert marker_of(last) is Marker.CLEAN
        cluster.start()
        channel = clients.channel(cluster.members.index(third))
        assert take(channel, "kept") == [b"of three", b"of one", b"of two"]


def until_away(member: BrokerProcess, gone: BrokerProcess) -> None:
    """Wait for the change by which an absent member no longer counts."""

    def is_so() -> bool:
        terms = member.status().raw["voter_set"]
        assert isinstance(terms, list)
        return f"@away={ring_of(gone)}" in terms and "->" not in terms

    wait_until(is_so, 30, "the change of the voters")


@pytest.mark.logs_tell_of_it("an operator declares a loss: the new primary has no old majority")
def test_a_survivor_that_may_not_start_alone_is_told_the_command(tmp_path: Path) -> None:
    """All but one are stopped with SIGTERM, then it too; if its voters do not let it start, it says
    so."""
    with running_cluster(tmp_path) as cluster, clients_of(cluster) as clients:
        channel = clients.channel(2)
        channel.queue_declare("kept", durable=True)
        send(channel, "kept", b"1", b"2")
        clients.close()
        for member in cluster.members[:2]:
            assert member.terminate() == Exit.OK
        alone = cluster[2]
        wait_until(lambda: status_word(alone) == "INQUORATE", 20, "the last one to notice")
        assert alone.terminate() == Exit.OK
        assert marker_of(alone) is Marker.DIRTY
        alone.start()
        wait_until(lambda: "FOR GOOD" in reason_of(alone), 30, "the advice")
        assert status_word(alone) == "INQUORATE"
        printed = re.search(r"run: (qpid-cluster-store .*) - then start it again", reason_of(alone))
        assert printed is not None
        assert alone.terminate() == Exit.OK
        run_typed(printed[1])
        alone.start()
        cluster.wait_active([alone])
        assert take(clients.channel(2), "kept") == [b"1", b"2"]


def test_two_of_four_die_at_once_and_then_a_client_errs(tmp_path: Path) -> None:
    """The error is the client's alone: its channel ends, and the cluster continues (G4, G7).

    ClusterFailover.cpp on the way: the exclusive queue of a client whose member died may be
    declared again, by a client of another member.
    """
    tie_breaker = {"cluster-auto-tie-breaker": "lowest"}
    with (
        LocalCluster(tmp_path, 4, "four", extra=tie_breaker) as cluster,
        clients_of(cluster) as clients,
    ):
        cluster.start()
        first, second, third, fourth = (cluster.members.index(one) for one in by_ring(cluster))
        channel = clients.channel(first)
        channel.queue_declare("kept", durable=True)
        send(channel, "kept", b"before")
        clients.channel(fourth).queue_declare("lost with its owner", exclusive=True)
        other = clients.channel(first)
        assert (
            closing_code(lambda: other.queue_declare("lost with its owner", exclusive=True)) == 405
        )
        for dying in (third, fourth):
            cluster[dying].kill()
        cluster.wait_active([cluster[first], cluster[second]])
        wrong = [clients.channel(first), clients.channel(second)]
        for one in wrong:
            assert closing_code(lambda: send(one, "kept", b"", expiration="soon")) == 406  # noqa: B023
        other = clients.channel(second)
        assert closing_code(lambda: other.queue_declare("nowhere", passive=True)) == 404
        clients.channel(second).queue_declare("lost with its owner", exclusive=True)
        send(channel, "kept", b"after")
        cluster.start()
        clients.channel(fourth)
        assert take(clients.channel(fourth), "kept") == [b"before", b"after"]


def test_blocked_queue_delete(tmp_path: Path) -> None:
    """A blocked publisher continues when the messages that fill the disks are deleted elsewhere
    (G21)."""
    with (
        mounted([tmp_path / "broker-1"]),
        running_cluster(tmp_path) as cluster,
        clients_of(cluster) as clients,
    ):
        assert publish_until_blocked(cluster) > 100
        blocked = clients.channel(0, confirms=False)
        blocked.queue_declare("next", durable=True)
        send(blocked, "next", b"waits")
        blocked.connection.process_data_events(0.5)
        wait_until(lambda: "low on disk" in alarms(cluster[2]), 20, "the alarm at another member")
        other = clients.channel(2)
        assert count_of(other, "next") == 0
        other.queue_delete("q")
        wait_until(lambda: count_of(other, "next") == 1, 30, "the publisher to continue")
        assert take(other, "next") == [b"waits"]
        wait_until(lambda: alarms(cluster[1]) == "[]", 20, "the end of the alarm at the third")
