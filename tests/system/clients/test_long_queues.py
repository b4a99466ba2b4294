"""Queues whose messages wait on disk, at real members: killed ones, and some without a data
directory.

docs/decisions/0057-a-backlog-is-not-memory.md.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError

from tests.system.support.clusters import admitted, wait_until
from tools.client.management import Target
from tools.demo.local_cluster import BrokerProcess, LocalCluster

MESSAGES = 3_000
PAGES = 5
"""Each member has at least this many blocks on disk: 256 messages of 128 bytes are a block."""
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def pages(member: BrokerProcess, name: str) -> int:
    """A member's counter of pages."""
    counters = Target(member.address).ask(op="counters")["counters"]
    assert isinstance(counters, dict)
    value = counters[f"pages.{name}"]
    assert isinstance(value, int)
    return value


def connected(member: BrokerProcess) -> pika.BlockingConnection:
    return admitted(lambda: pika.BlockingConnection(pika.ConnectionParameters(*member.address)))


def publish(cluster: LocalCluster) -> None:
    """Publish numbered messages to the queue `long`; start over if the member that takes them was
    excluded from a view meanwhile."""
    there = False
    while not there:
        with contextlib.suppress(AMQPError), contextlib.closing(connected(cluster[0])) as one:
            channel = one.channel()
            channel.queue_declare("long", durable=True)
            channel.queue_purge("long")
            for number in range(MESSAGES):
                channel.basic_publish("", "long", number.to_bytes(128, "big"), PERSISTENT)
            waiting = partial(channel.queue_declare, "long", passive=True)
            wait_until(lambda: waiting().method.message_count == MESSAGES, 60, "messages")  # noqa: B023
            there = True
        cluster.wait_active()


def consume(cluster: LocalCluster, member: BrokerProcess) -> list[int]:
    """Take all from one member; return the numbers as they arrived, without repeats."""
    numbers: dict[int, None] = {}
    while len(numbers) < MESSAGES:
        with contextlib.suppress(AMQPError), contextlib.closing(connected(member)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=200)
            for method, _, body in channel.consume("long", inactivity_timeout=30):
                assert method is not None, f"{len(numbers)} of {MESSAGES} came"
                assert body is not None
                numbers[int.from_bytes(body, "big")] = None
                channel.basic_ack(method.delivery_tag)
                if len(numbers) == MESSAGES:
                    break
        cluster.wait_active()  # a view change, if there was one, is over
    return list(numbers)


@pytest.mark.parametrize("stores", [True, False], ids=["data directories", "none"])
def test_a_killed_member_with_messages_on_disk_recovers_all(tmp_path: Path, stores: bool) -> None:
    """They come from its store or from the others; its file of pages ended with its process."""
    paging = {"page-memory": "16KiB"}
    with LocalCluster(tmp_path, 3, "paging", stores=stores, extra=paging) as cluster:
        cluster.start()
        publish(cluster)
        for member in cluster.members:
            wait_until(lambda m=member: pages(m, "written") >= PAGES, 60, "pages")  # type: ignore[misc]
            assert pages(member, "held_bytes") > 0
            if stores:
                assert not (member.data_dir / "pages").exists(), "it has no name"
        killed = cluster[2]
        killed.kill()
        cluster.wait_active(cluster.members[:2])
        killed.start()
        cluster.wait_active()
        wait_until(lambda: pages(killed, "written") >= PAGES, 60, "it to write pages again")
        assert consume(cluster, killed) == list(range(MESSAGES))
        for member in cluster.members:
            wait_until(lambda m=member: pages(m, "file_bytes") == 0, 60, "its file")  # type: ignore[misc]
