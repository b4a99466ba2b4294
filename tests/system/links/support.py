"""Helpers of the tests of links: two clusters and a shovel."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from urllib.parse import quote

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.system.management.http import Answered, Api
from tests.system.support.clusters import (
    ADMITTED_SECONDS,
    PAUSE_SECONDS,
    START_SECONDS,
    admitted,
    wait_until,
)
from tools.demo.local_cluster import BrokerProcess, LocalCluster

ARRIVAL_S = 90.0


@contextmanager
def near_and_far(root: Path) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """Three members, and one in another cluster, all started."""
    with (
        LocalCluster(root / "near", 3, "near", management=True) as near,
        LocalCluster(root / "far", 1, "far", management=True) as far,
    ):
        near.start(START_SECONDS)
        far.start(START_SECONDS)
        yield near, far


def api(member: BrokerProcess) -> Api:
    """The management API of a member."""
    assert member.management is not None
    return Api(member.management)


def uri(member: BrokerProcess, user: str = "guest:guest") -> str:
    """The address at which a shovel finds a member."""
    return f"amqp://{user}@{member.address}/%2F"


@contextmanager
def channel(member: BrokerProcess, *, confirms: bool = False) -> Iterator[BlockingChannel]:
    """A channel at one member."""
    host, port = member.address
    parameters = pika.ConnectionParameters(host, port)
    connection = admitted(lambda: pika.BlockingConnection(parameters))
    try:
        found = connection.channel()
        if confirms:
            found.confirm_delivery()
        yield found
    finally:
        if connection.is_open:
            connection.close()


def publish(member: BrokerProcess, queue: str, numbers: Sequence[int]) -> None:
    """Publish durable messages with these numbers as bodies; they are in the queue on return."""
    durable = pika.BasicProperties(delivery_mode=2)
    with channel(member) as one:
        one.queue_declare(queue, durable=True)
        one.tx_select()
        for number in numbers:
            one.basic_publish("", queue, str(number).encode(), durable)
        one.tx_commit()


def answered(member: BrokerProcess, method: str, path: str, body: object = None) -> Answered:
    """Return the API's reply; it says 503 while a view changes, as a busy machine may cause."""
    deadline = time.monotonic() + ADMITTED_SECONDS
    while True:
        found = api(member).ask(method, path, body)
        if found.status != 503 or time.monotonic() > deadline:
            return found
        time.sleep(PAUSE_SECONDS)


def rows(member: BrokerProcess, path: str) -> dict[str, dict[str, object]]:
    """A list of the API, by names."""
    found = answered(member, "GET", path)
    assert found.status == 200, (path, found)
    assert isinstance(found.body, list)
    return {row["name"]: row for row in found.body}


def waiting(member: BrokerProcess, queue: str) -> int:
    """The number of ready messages in a queue; none if there is no queue."""
    row = rows(member, "queues").get(queue, {})
    return cast("int", row.get("messages_ready", 0))


def take(member: BrokerProcess, queue: str, count: int) -> list[int]:
    """Take this many messages out of a queue, in order."""
    with channel(member) as one:
        return take_by(one, queue, count)


def take_by(one: BlockingChannel, queue: str, count: int) -> list[int]:
    """The same by a channel of any broker."""
    found: list[int] = []
    for _, _, body in one.consume(queue, auto_ack=True, inactivity_timeout=ARRIVAL_S):
        assert body is not None, f"{len(found)} of {count} came"
        found.append(int(body))
        if len(found) == count:
            break
    one.cancel()
    return found


def define(member: BrokerProcess, name: str, **value: object) -> None:
    """Define a shovel of the virtual host `/`; `_` in keys stands for `-`."""
    body = {"value": {key.replace("_", "-"): one for key, one in value.items()}}
    put = answered(member, "PUT", f"parameters/shovel/%2F/{quote(name, safe='')}", body)
    assert put.status in (201, 204), put


def shovel(member: BrokerProcess, name: str) -> dict[str, object]:
    """The shovel's row; empty if there is none."""
    return rows(member, "shovels").get(name, {})


def wait_for_state(member: BrokerProcess, name: str, state: str, seconds: float = 30.0) -> None:
    """Wait until the row shows this state."""
    wait_until(
        lambda: shovel(member, name).get("state") == state, seconds, f"shovel {name}: {state}"
    )


def end(cluster: LocalCluster, name: str) -> None:
    """Delete a shovel and wait until its process has ended."""

    def gone() -> bool:
        """Retried, as the reply is 503 while a view changes."""
        api(cluster[0]).ask("DELETE", f"shovels/vhost/%2F/{name}")
        return not shovel(cluster[0], name)

    wait_until(gone, 20, "the end of the shovel")
    wait_until(lambda: not processes(cluster), 20, "the end of its process")


def processes(cluster: LocalCluster) -> list[int]:
    """The processes of shovels that members of this cluster have started."""
    parents = {member.pid for member in cluster.members if member.alive}
    found = []
    for one in Path("/proc").iterdir():
        try:
            words = (one / "cmdline").read_bytes().split(b"\0")
            parent = int((one / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if b"tools.shovel" in words and parent in parents:
            found.append(int(one.name))
    return found


def runner_of(cluster: LocalCluster, name: str) -> BrokerProcess:
    """The member that runs a shovel."""
    node = shovel(cluster[0], name)["node"]
    for member in cluster.members:
        overview = api(member).row("overview")
        if overview["node"] == node:
            return member
    raise AssertionError(node)


def depth(member: BrokerProcess, queue: str) -> object:
    """The number of messages in a queue, ready and unacknowledged."""
    return rows(member, "queues")[queue].get("messages")
