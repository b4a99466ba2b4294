"""Links and shovels between our cluster and a real RabbitMQ, run by either of them.

Skipped where RabbitMQ is not installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.bench.compare.rabbitmq import RabbitCluster, scripts
from tests.system.links.federation_support import (
    DURABLE,
    bindings_of_links,
    bound,
    exchange,
    federate,
    put,
    send,
    settled,
    stop_federating,
    unbind,
    wait_for_link,
)
from tests.system.links.support import (
    channel,
    define,
    end,
    publish,
    take,
    take_by,
    uri,
    wait_for_state,
    waiting,
)
from tests.system.support.clusters import START_SECONDS, wait_until
from tools.cli.failures import ToolError
from tools.demo.local_cluster import LocalCluster

SBIN: Path | None = None
LACKING = ""
try:
    SBIN = scripts()
except ToolError as lacking:
    LACKING = str(lacking)
pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(SBIN is None, reason=LACKING),
]
COUNT = 200
Both = tuple[LocalCluster, RabbitCluster]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Two members, and a node of RabbitMQ with its plug-ins."""
    assert SBIN is not None
    root = tmp_path_factory.mktemp("rabbit")
    plugins = "rabbitmq_federation", "rabbitmq_shovel"
    with LocalCluster(root / "ours", 2, "ours", management=True) as ours:
        rabbit = RabbitCluster(root / "theirs", SBIN, 1, plugins)
        try:
            ours.start(START_SECONDS)
            put(ours[0], "parameters/federation-upstream/%2F/rabbit",
                {"value": {"uri": at(rabbit), "reconnect-delay": 1}})  # fmt: skip
            yield ours, rabbit
        finally:
            rabbit.close()


def at(rabbit: RabbitCluster) -> str:
    return f"amqp://guest:guest@{rabbit.addresses[0]}/%2F"


@contextmanager
def theirs(rabbit: RabbitCluster) -> Iterator[BlockingChannel]:
    """A channel at RabbitMQ."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(*rabbit.addresses[0]))
    yield connection.channel()
    connection.close()


def send_theirs(rabbit: RabbitCluster, source: str, key: str, numbers: Sequence[int]) -> None:
    with theirs(rabbit) as one:
        one.confirm_delivery()
        for number in numbers:
            one.basic_publish(source, key, str(number).encode(), DURABLE)


def take_theirs(rabbit: RabbitCluster, queue: str, count: int) -> list[int]:
    with theirs(rabbit) as one:
        return take_by(one, queue, count)


def told(rabbit: RabbitCluster, *words: str) -> str:
    """Return the output of `rabbitmqctl`, which must succeed."""
    done = rabbit.control("--quiet", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bound_by_links(rabbit: RabbitCluster, source: str) -> list[str]:
    """The keys by which our links are bound there."""
    names = "source_name", "destination_name", "destination_kind", "routing_key"
    rows = [line.split("\t") for line in told(rabbit, "list_bindings", *names).splitlines()]
    return sorted(
        row[3] for row in rows
        if row[0] == source and row[1].startswith("federation: ") and row[2] == "exchange"
    )  # fmt: skip


def test_an_exchange_of_rabbitmq_is_federated_here(both: Both) -> None:
    """Messages bound here arrive once and in order; those of removed bindings do not."""
    ours, rabbit = both
    exchange(ours[0], "news")
    for queue in ("one", "two"):
        bound(ours[0], queue, "news", "eu.#")
    federate(ours[0], "^news$")
    wait_for_link(ours[0], "news")
    wait_until(lambda: bound_by_links(rabbit, "news") == ["eu.#"], 30, "the binding there")
    send_theirs(rabbit, "news", "eu.fr", range(COUNT))
    send_theirs(rabbit, "news", "us.ny", [COUNT])
    for queue in ("one", "two"):
        assert take(ours[1], queue, COUNT) == list(range(COUNT))
        settled(ours[1], queue, 0, 0.5)
        unbind(ours[0], queue, "news", "eu.#")
    bound(ours[0], "one", "news", "us.#")
    wait_until(lambda: bound_by_links(rabbit, "news") == ["us.#"], 30, "the changed binding")
    stop_federating(ours[0], "^news$")
    wait_until(
        lambda: "federation: news" not in told(rabbit, "list_queues", "name"), 30,
        "its queue there to be gone",
    )  # fmt: skip


def test_a_queue_of_rabbitmq_is_federated_here(both: Both) -> None:
    """Its messages arrive while a consumer waits here, and stay there otherwise."""
    ours, rabbit = both
    with theirs(rabbit) as one:
        one.queue_declare("jobs", durable=True)
    send_theirs(rabbit, "", "jobs", range(COUNT))
    with channel(ours[0]) as one:
        one.queue_declare("jobs", durable=True)
    federate(ours[0], "^jobs$", kind="queues")
    wait_for_link(ours[0], "jobs")
    settled(ours[0], "jobs", 0, 1.0)
    assert take(ours[1], "jobs", COUNT) == list(range(COUNT))
    stop_federating(ours[0], "^jobs$")


def test_shovels_of_ours_go_both_ways(both: Both) -> None:
    ours, rabbit = both
    with theirs(rabbit) as one:
        one.queue_declare("out", durable=True)
        one.queue_declare("back", durable=True)
    publish(ours[0], "out", range(COUNT))
    publish(ours[0], "back", ())
    define(ours[0], "out", src_uri="amqp://", src_queue="out", dest_uri=at(rabbit),
           dest_queue="out")  # fmt: skip
    wait_for_state(ours[0], "out", "running")
    assert take_theirs(rabbit, "out", COUNT) == list(range(COUNT))
    end(ours, "out")
    send_theirs(rabbit, "", "back", range(COUNT))
    define(ours[0], "back", src_uri=at(rabbit), src_queue="back", dest_uri="amqp://",
           dest_queue="back")  # fmt: skip
    assert take(ours[1], "back", COUNT) == list(range(COUNT))
    end(ours, "back")


def test_an_exchange_of_ours_is_federated_by_rabbitmq(both: Both) -> None:
    """Its plug-in declares its exchange of type `x-federation-upstream` here."""
    ours, rabbit = both
    exchange(ours[0], "tidings")
    with theirs(rabbit) as one:
        one.exchange_declare("tidings", "topic", durable=True)
        one.queue_declare("heard", durable=True)
        one.queue_bind("heard", "tidings", "eu.#")
    upstream = json.dumps({"uri": uri(ours[0]), "reconnect-delay": 1})
    told(rabbit, "set_parameter", "federation-upstream", "ours", upstream)
    told(rabbit, "set_policy", "--apply-to", "exchanges", "tidings", "^tidings$",
         json.dumps({"federation-upstream": "ours"}))  # fmt: skip
    wait_until(lambda: bindings_of_links(ours[0], "tidings") == ["eu.#"], 60, "the binding here")
    send(ours[1], "tidings", "eu.fr", range(COUNT))
    send(ours[1], "tidings", "us.ny", [COUNT])
    assert take_theirs(rabbit, "heard", COUNT) == list(range(COUNT))
    told(rabbit, "clear_policy", "tidings")


def test_a_shovel_of_rabbitmq_moves_messages_from_and_to_ours(both: Both) -> None:
    ours, rabbit = both
    publish(ours[0], "from-ours", range(COUNT))
    publish(ours[0], "to-ours", ())
    with theirs(rabbit) as one:
        one.queue_declare("between", durable=True)
    for name, source, queue, target, destination in (
        ("there", uri(ours[0]), "from-ours", at(rabbit), "between"),
        ("here", at(rabbit), "between", uri(ours[1]), "to-ours"),
    ):
        value = {
            "src-protocol": "amqp091", "src-uri": source, "src-queue": queue,
            "dest-protocol": "amqp091", "dest-uri": target, "dest-queue": destination,
        }  # fmt: skip
        told(rabbit, "set_parameter", "shovel", name, json.dumps(value))
    wait_until(partial(_holds, ours, "to-ours"), 60, "all of them to return")
    assert take(ours[0], "to-ours", COUNT) == list(range(COUNT))
    for name in ("there", "here"):
        told(rabbit, "clear_parameter", "shovel", name)


def _holds(ours: LocalCluster, queue: str) -> bool:
    return waiting(ours[0], queue) == COUNT
