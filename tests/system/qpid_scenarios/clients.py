"""Clients of a cluster's members, with one function for each of their usual steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.system.support.clusters import admitted, wait_until
from tools.demo.local_cluster import LocalCluster


class Clients:
    """Connections to the members of a cluster, closed at the end."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._opened: list[pika.BlockingConnection] = []

    def channel(self, member: int | None = None, *, confirms: bool = True) -> BlockingChannel:
        """A channel on its own connection, to this member, or to any that admits clients."""
        to = self.cluster.members if member is None else [self.cluster[member]]
        listed = [
            pika.ConnectionParameters(*one.address, heartbeat=0, socket_timeout=5) for one in to
        ]
        connection = admitted(lambda: pika.BlockingConnection(listed))
        self._opened.append(connection)
        channel: BlockingChannel = connection.channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    def close(self) -> None:
        """Close all connections, also to dead members."""
        for connection in self._opened:
            with contextlib.suppress(pika.exceptions.AMQPError):
                if connection.is_open:
                    connection.close()
        self._opened.clear()


@contextlib.contextmanager
def clients_of(cluster: LocalCluster) -> Iterator[Clients]:
    """Connections for one block."""
    clients = Clients(cluster)
    try:
        yield clients
    except BaseException:
        cluster.close()  # a member without a majority does not reply to a close
        raise
    finally:
        clients.close()


def send(channel: BlockingChannel, queue: str, *bodies: bytes, **properties: object) -> None:
    """Publish persistent messages to a queue; with confirms, wait for each."""
    for body in bodies:
        given = pika.BasicProperties(delivery_mode=2, **properties)
        channel.basic_publish("", queue, body, given)


def take(channel: BlockingChannel, queue: str, count: int | None = None) -> list[bytes]:
    """Get and acknowledge this many messages, or all."""
    found: list[bytes] = []
    while len(found) != count:
        method, _, body = channel.basic_get(queue)
        if method is None or body is None:
            break
        channel.basic_ack(method.delivery_tag)
        found.append(body)
    return found


def hold(channel: BlockingChannel, queue: str, count: int) -> list[int]:
    """Get this many messages without acknowledging them; return their delivery tags."""
    tags = []
    for _ in range(count):
        method, _, _ = channel.basic_get(queue)
        assert method is not None
        tags.append(method.delivery_tag)
    return tags


def count_of(channel: BlockingChannel, queue: str) -> int:
    """The number of ready messages in a queue."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def closing_code(attempt: Callable[[], object]) -> int:
    """The code with which the broker closes the channel on which this is attempted."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        attempt()
    return int(refused.value.reply_code)


def hear(channel: BlockingChannel, all_came: Callable[[], bool]) -> None:
    """Let a consumer's connection read until all messages have arrived."""

    def came() -> bool:
        channel.connection.process_data_events(0.05)
        return all_came()

    wait_until(came, 60, "deliveries")
