"""G8, G17, G20: delayed messages arrive in time and once, whichever members die meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pika
import pytest

from tests.system.clients.test_clients_python import pika_connection
from tests.system.support.clusters import running_cluster
from tools.demo.local_cluster import LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]
COUNT = 60


def publish(cluster: LocalCluster, least_ms: int) -> dict[bytes, float]:
    """Publish messages with different delays; return the earliest time at which each may arrive."""
    with pika_connection(cluster[0]) as connection:
        channel = connection.channel()
        arguments = {"x-delayed-type": "direct"}
        channel.exchange_declare("late", "x-delayed-message", durable=True, arguments=arguments)
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "late", "k")
        channel.confirm_delivery()
        due: dict[bytes, float] = {}
        for number in range(COUNT):
            delay_ms = least_ms + 37 * number % 1_000
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay_ms})
            body = b"%d" % number
            due[body] = time.monotonic() + delay_ms / 1e3
            channel.basic_publish("late", "k", body, properties)
        return due


def receive(cluster: LocalCluster) -> dict[bytes, float]:
    """Take all of them; return the time at which each arrived."""
    with pika_connection(cluster[2]) as connection:
        channel = connection.channel()
        came: dict[bytes, float] = {}
        for method, _properties, body in channel.consume("q", inactivity_timeout=60):
            assert method is not None, f"{COUNT - len(came)} messages did not arrive"
            assert body not in came
            came[body] = time.monotonic()
            channel.basic_ack(method.delivery_tag)
            if len(came) == COUNT:
                return came
    raise AssertionError


def test_they_arrive_after_their_member_was_killed(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        due = publish(cluster, 5_000)
        cluster[0].kill()
        came = receive(cluster)
    early = {body: due[body] - at for body, at in came.items() if at < due[body]}
    assert not early


def test_they_arrive_after_all_members_were_killed(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        due = publish(cluster, 5_000)
        for member in cluster.members:
            member.kill()
        cluster.start()
        came = receive(cluster)
    assert all(at >= due[body] for body, at in came.items())
