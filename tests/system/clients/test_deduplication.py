"""G26: clients that lose their broker send again with keys, and a queue takes each message once."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from tests.system.clients.test_clients_python import pika_connection
from tests.system.support.clusters import running_cluster
from tools.demo.local_cluster import LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]
COUNT = 60
READ = 20


def publish(cluster: LocalCluster, member: int, count: int) -> int:
    """Publish the first of these messages, all confirmed; return the length of the queue then."""
    with pika_connection(cluster[member]) as connection:
        channel = connection.channel()
        once = {"x-message-deduplication": True}
        channel.queue_declare("once", durable=True, arguments=once)
        channel.confirm_delivery()
        for number in range(count):
            known_as = pika.BasicProperties(delivery_mode=2, message_id=str(number))
            channel.basic_publish("", "once", b"%d" % number, known_as, mandatory=True)
        return int(channel.queue_declare("once", passive=True).method.message_count)


def read(cluster: LocalCluster, member: int, count: int) -> None:
    with pika_connection(cluster[member]) as connection:
        channel = connection.channel()
        for _ in range(count):
            method, _properties, _body = channel.basic_get("once")
            assert method is not None
            channel.basic_ack(method.delivery_tag)
        # Replies come in order, so the acks before this one are applied.
        channel.queue_declare("once", passive=True)


def test_repeated_messages_are_taken_once_whichever_member_dies(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        assert publish(cluster, 0, COUNT) == COUNT
        read(cluster, 0, READ)
        cluster[0].kill()
        assert publish(cluster, 1, COUNT) == COUNT - READ
        assert publish(cluster, 2, COUNT + 1) == COUNT - READ + 1


def test_the_keys_are_on_disk(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        assert publish(cluster, 0, COUNT) == COUNT
        for member in cluster.members:
            member.kill()
        cluster.start()
        assert publish(cluster, 1, COUNT) == COUNT
