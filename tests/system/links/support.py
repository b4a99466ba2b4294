"""Two clusters and a shovel: what the tests of links have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast
from urllib.parse import quote

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.system.management.http import Api
from tests.system.support.clusters import admitted, wait_until
from tools.demo.local_cluster import BrokerProcess

ARRIVAL_S = 90.0


def api(member: BrokerProcess) -> Api:
    """The management API of a member."""
    assert member.management is not None
    return Api(member.management)


def uri(member: BrokerProcess, user: str = "guest:guest") -> str:
    """Where a shovel finds a member."""
    return f"amqp://{user}@{member.address}/%2F"


@contextmanager
def channel(member: BrokerProcess) -> Iterator[BlockingChannel]:
    """A channel that confirms, at one member."""
    host, port = member.address
    parameters = pika.ConnectionParameters(host, port)
    connection = admitted(lambda: pika.BlockingConnection(parameters))
    try:
        found = connection.channel()
        found.confirm_delivery()
        yield found
    finally:
        if connection.is_open:
            connection.close()


def publish(member: BrokerProcess, queue: str, numbers: Sequence[int]) -> None:
    """Durable messages with these numbers as their bodies."""
    durable = pika.BasicProperties(delivery_mode=2)
    with channel(member) as one:
        one.queue_declare(queue, durable=True)
        for number in numbers:
            one.basic_publish("", queue, str(number).encode(), durable)


def waiting(member: BrokerProcess, queue: str) -> int:
    """How many messages a queue holds ready; none where there is no queue."""
    rows = api(member).rows("queues")
    row = rows.get(queue, {})
    return cast("int", row.get("messages_ready", 0))


def take(member: BrokerProcess, queue: str, count: int) -> list[int]:
    """Take so many messages out of a queue, in order."""
    found: list[int] = []
    with channel(member) as one:
        for _, _, body in one.consume(queue, auto_ack=True, inactivity_timeout=ARRIVAL_S):
            assert body is not None, f"{len(found)} of {count} came"
            found.append(int(body))
            if len(found) == count:
                break
        one.cancel()
    return found


def define(member: BrokerProcess, name: str, **value: object) -> None:
    """A shovel of the virtual host `/`; `_` in keys stands for `-`."""
    body = {"value": {key.replace("_", "-"): one for key, one in value.items()}}
    answered = api(member).ask("PUT", f"parameters/shovel/%2F/{quote(name, safe='')}", body)
    assert answered.status in (201, 204), answered


def shovel(member: BrokerProcess, name: str) -> dict[str, object]:
    """Its row; empty where there is none."""
    return api(member).rows("shovels").get(name, {})


def wait_for_state(member: BrokerProcess, name: str, state: str, seconds: float = 30.0) -> None:
    """Until the row says so."""
    wait_until(
        lambda: shovel(member, name).get("state") == state, seconds, f"shovel {name}: {state}"
    )
