"""A cluster of real brokers whose members die, stop, sleep, or are started wrongly."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.exit_codes import Exit
from tests.system.support.clusters import admitted, running_cluster, wait_until
from tools.client.management import ManagementError, Target
from tools.demo.local_cluster import BrokerProcess, LocalCluster, command

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

QUEUE = "work"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


opened: list[pika.BlockingConnection] = []


@pytest.fixture(autouse=True)
def closed_connections() -> Iterator[None]:
    """Close the connections that a test opened, also those to brokers that it killed."""
    yield
    for connection in opened:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()
    opened.clear()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path) as running:
        yield running


def connect(member: BrokerProcess) -> pika.BlockingConnection:
    """Try once to connect."""
    parameters = pika.ConnectionParameters(member.address.host, member.address.port)
    return pika.BlockingConnection(parameters)


def channel_of(member: BrokerProcess) -> BlockingChannel:
    connection = admitted(lambda: connect(member))
    opened.append(connection)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(QUEUE, durable=True)
    return channel


def publish(channel: BlockingChannel, first: int, last: int) -> None:
    """Publish and wait for each confirm."""
    for number in range(first, last + 1):
        channel.basic_publish("", QUEUE, b"%d" % number, PERSISTENT)


def contents(member: BrokerProcess) -> list[tuple[int, bool]]:
    """Empty the queue: (number, redelivered) in order."""
    channel = channel_of(member)
    found: list[tuple[int, bool]] = []
    while True:
        method, _, body = channel.basic_get(QUEUE, auto_ack=False)
        if method is None:
            channel.connection.close()
            return found
        assert body is not None
        found.append((int(body), bool(method.redelivered)))
        channel.basic_ack(method.delivery_tag)


def status_word(member: BrokerProcess) -> str:
    try:
        return member.status().status
    except ManagementError:
        return "silent"


def test_all_members_killed_at_once_lose_nothing_confirmed(cluster: LocalCluster) -> None:
    """G8, G9: kill -9 of all three at once; every confirmed message is back, in order, flagged."""
    publish(channel_of(cluster[0]), 1, 200)
    for member in cluster.members:
        member.kill()
    cluster.start()
    found = contents(cluster[1])
    assert [number for number, _ in found] == list(range(1, 201))
    assert all(redelivered for _, redelivered in found)


def test_a_clean_stop_of_all_brings_everything_back(cluster: LocalCluster) -> None:
    """G8: qpid-cluster -k -f; durable queues and persistent messages return exactly."""
    channel = channel_of(cluster[0])
    publish(channel, 1, 50)
    channel.basic_publish("", QUEUE, b"999", pika.BasicProperties(delivery_mode=1))
    address = str(cluster[2].address)
    subprocess.run([*command("qpid-cluster"), "-k", "-f", address], check=True, timeout=100)
    assert cluster.wait_stopped() == [Exit.OK] * 3
    cluster.start()
    assert [number for number, _ in contents(cluster[0])] == list(range(1, 51))


def test_two_of_three_continue_and_the_third_catches_up(
    cluster: LocalCluster,
) -> None:
    """G7, G8: the killed member fetches what it missed and continues with its own store."""
    publish(channel_of(cluster[0]), 1, 20)
    cluster[2].kill()
    cluster.wait_active([cluster[0], cluster[1]])
    publish(channel_of(cluster[1]), 21, 40)
    cluster[2].start()
    cluster.wait_active()
    assert [number for number, _ in contents(cluster[2])] == list(range(1, 41))
    assert not (cluster[2].data_dir / "_cluster.bak.0001").exists()
    assert not list(cluster[2].data_dir.glob("store.joining.*"))


@pytest.mark.slow
def test_a_wiped_member_is_refilled(cluster: LocalCluster) -> None:
    """An empty store has no vote until the primary has filled it."""
    publish(channel_of(cluster[0]), 1, 20)
    cluster[1].kill()
    shutil.rmtree(cluster[1].data_dir)
    cluster[1].start()
    cluster.wait_active()
    cluster[0].kill()
    cluster.wait_active([cluster[1], cluster[2]])
    assert [number for number, _ in contents(cluster[1])] == list(range(1, 21))


def test_a_minority_serves_nobody_and_recovers_by_itself(cluster: LocalCluster) -> None:
    """G7, G15: a minority refuses clients with a reason; no restart is needed afterwards."""
    publish(channel_of(cluster[0]), 1, 5)
    cluster[0].kill()
    cluster[1].kill()
    alone = cluster[2]
    wait_until(lambda: status_word(alone) == "INQUORATE", 20, "the minority to notice")
    assert "missing" in str(alone.status().raw["reason"])
    with pytest.raises(pika.exceptions.AMQPError, match="320"):
        connect(alone)
    cluster[1].start()
    cluster.wait_active([cluster[1], cluster[2]])
    assert [number for number, _ in contents(alone)] == list(range(1, 6))


@pytest.mark.slow
def test_a_sleeping_member_is_excluded_and_returns(cluster: LocalCluster) -> None:
    """G7: SIGSTOP for longer than the token timeout; the others continue, and the sleeper
    rejoins."""
    publish(channel_of(cluster[0]), 1, 10)
    sleeper = cluster[2]
    sleeper.signal(signal.SIGSTOP)
    try:
        cluster.wait_active([cluster[0], cluster[1]])
        publish(channel_of(cluster[0]), 11, 20)
    finally:
        sleeper.signal(signal.SIGCONT)
    cluster.wait_active()
    assert [number for number, _ in contents(sleeper)] == list(range(1, 21))


def test_unacked_messages_of_a_dead_member_are_redelivered_in_place(
    cluster: LocalCluster,
) -> None:
    """G11, G12: the consumer's member dies; its messages are redelivered, first and flagged."""
    publish(channel_of(cluster[0]), 1, 10)
    holder = channel_of(cluster[2])
    holder.basic_qos(prefetch_count=4)
    taken = []
    for method, _, body in holder.consume(QUEUE, inactivity_timeout=10):
        assert method is not None
        taken.append(int(body))
        if len(taken) == 4:
            break
    cluster[2].kill()
    cluster.wait_active([cluster[0], cluster[1]])
    assert contents(cluster[0]) == [(n, n <= 4) for n in range(1, 11)]


@pytest.mark.slow
def test_a_fourth_broker_serves_but_does_not_vote(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 4, voters=3) as cluster:
        for member in cluster.members[:3]:
            member.start()
        cluster.wait_active(cluster.members[:3])
        cluster[3].start()
        cluster.wait_active()
        status = cluster[3].status()
        assert [one.voter for one in status.members if one.local] == [False]
        publish(channel_of(cluster[3]), 1, 3)
        assert [number for number, _ in contents(cluster[0])] == [1, 2, 3]


@pytest.mark.slow
def test_one_member_is_stopped_through_another(cluster: LocalCluster) -> None:
    status = cluster[0].status()
    victim = next(one for one in status.members if not one.local)
    answer = Target(cluster[0].address).ask(op="stop", id=victim.id)
    assert answer["id"] == victim.id
    wait_until(lambda: sum(not m.alive for m in cluster.members) == 1, 15, "one member to stop")
    gone = next(m for m in cluster.members if not m.alive)
    assert gone.exit_code == Exit.OK
    cluster.wait_active([m for m in cluster.members if m.alive])


def test_members_without_a_list_find_each_other_by_beacons(tmp_path: Path) -> None:
    # Beacons reach every run of this test on the network: a fixed name would join their clusters.
    with LocalCluster(tmp_path, 3, f"beacons-{uuid.uuid4().hex}", beacons=True) as cluster:
        cluster.start()
        publish(channel_of(cluster[0]), 1, 3)
        assert [number for number, _ in contents(cluster[2])] == [1, 2, 3]
