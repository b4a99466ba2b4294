"""The structure of replies of RabbitMQ's management API: recorded there, requested here.

    python -m tests.system.management.as_rabbitmq.scene HOST:PORT HOST:PORT

records it from a RabbitMQ with the user guest (AMQP, management API), all of its feature flags on,
and `collect_statistics_interval = 1000`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pika

from broker.options.addresses import Address
from tests.system.management.http import Api, seg

RECORDED = Path(__file__).with_name("keys_3_10.json")
SETTLED_S = 8.0
"""RabbitMQ's statistics are complete by then."""
DEFINED = {
    "vhosts/keys": {"description": "d", "tags": "a,b"},
    "users/keys": {"password": "x", "tags": "monitoring"},
    "permissions/keys/guest": {"configure": ".*", "write": ".*", "read": ".*"},
    "permissions/keys/keys": {"configure": ".*", "write": ".*", "read": ".*"},
    "topic-permissions/keys/keys": {"exchange": "amq.topic", "write": ".*", "read": ".*"},
    "vhost-limits/keys/max-queues": {"value": 100},
    "user-limits/keys/max-channels": {"value": 100},
    "policies/keys/p": {
        "pattern": "^plain$",
        "definition": {"max-length": 9},
        "apply-to": "queues",
    },
    "operator-policies/keys/o": {"pattern": "^plain$", "definition": {"expires": 3_600_000}},
    "global-parameters/keys": {"name": "keys", "value": {"a": 1}},
    "parameters/federation-upstream/keys/up": {"value": {"uri": "amqp://localhost:1"}},
}
PATHS = [
    "overview",
    "whoami",
    "cluster-name",
    "feature-flags",
    "nodes",
    "definitions/keys",
    "channels",
    "consumers/keys",
    "exchanges/keys/tree",
    "exchanges/keys/tree/bindings/source",
    "queues/keys/plain",
    "queues/keys/many",
    "queues/keys/log",
    "queues/keys/plain/bindings",
    "bindings/keys",
    "vhosts/keys",
    "vhosts/keys/permissions",
    "vhosts/keys/topic-permissions",
    "vhosts/keys/connections",
    "users/keys",
    "users/keys/permissions",
    "permissions/keys/keys",
    "topic-permissions/keys/keys",
    "policies/keys/p",
    "operator-policies/keys/o",
    "parameters/federation-upstream/keys/up",
    "global-parameters/keys",
    "vhost-limits/keys",
    "user-limits/keys",
    "aliveness-test/keys",
    "health/checks/alarms",
    "health/checks/local-alarms",
    "health/checks/virtual-hosts",
    "health/checks/protocol-listener/amqp",
]


class Scene:
    """A virtual host with one of everything, and a client that uses it."""

    def __init__(self, amqp: Address, api: Api) -> None:
        self.api = api
        for path, body in DEFINED.items():
            answered = api.ask("PUT", path, body)
            assert answered.status in (201, 204), (path, answered)
        parameters = pika.ConnectionParameters(*amqp, "keys", heartbeat=600)
        parameters.client_properties = {"connection_name": "scene"}
        self.connection = pika.BlockingConnection(parameters)
        self._declare()
        self._use()

    def _declare(self) -> None:
        channel = self.connection.channel()
        alternate = {"alternate-exchange": "amq.fanout"}
        channel.exchange_declare("tree", "topic", durable=True, arguments=alternate)
        channel.exchange_bind("amq.fanout", "tree", "c")
        for name, kind in (("plain", "classic"), ("many", "quorum"), ("log", "stream")):
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
            channel.queue_bind(name, "tree", f"{name}.#", {"z": 1})

    def _use(self) -> None:
        out = self.connection.channel()
        out.confirm_delivery()
        for name in ("plain", "plain", "plain", "plain", "many", "log"):
            out.basic_publish("tree", f"{name}.x", b"m", pika.BasicProperties(delivery_mode=2))
        transaction, takes, shares = (self.connection.channel() for _ in range(3))
        transaction.tx_select()
        for channel in (transaction, takes):
            method, _, _ = channel.basic_get("plain")
            channel.basic_ack(method.delivery_tag)
        transaction.basic_publish("", "plain", b"not committed")
        takes.basic_get("plain", auto_ack=True)
        for name in ("plain", "many", "log"):
            consumer = self.connection.channel()
            consumer.basic_qos(prefetch_count=3)
            consumer.basic_consume(name, lambda *_: None, consumer_tag=name)
        shares.basic_qos(prefetch_count=9, global_qos=True)

    def wait(self, seconds: float) -> None:
        """Wait until statistics have arrived."""
        self.connection.process_data_events(seconds)

    def keys(self) -> dict[str, list[str]]:
        """The structure of each reply, by path."""
        node = str(self.api.row("overview")["node"])
        [connection] = self.api.rows("vhosts/keys/connections")
        paths = {path: path for path in PATHS}
        paths["nodes/N"] = f"nodes/{seg(node)}"
        paths["nodes/N/memory"] = f"nodes/{seg(node)}/memory"
        paths["connections/C"] = f"connections/{seg(connection)}"
        paths["channels/C"] = f"channels/{seg(f'{connection} (2)')}"
        found = {
            name: sorted({key.replace(node, "NODE") for key in keys(self.api.get(path))})
            for name, path in paths.items()
        }
        wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        answered = self.api.ask("POST", "queues/keys/many/get", wanted)
        return found | {"queues/V/Q/get": sorted(set(keys(answered.body)))}

    def close(self) -> None:
        """Remove everything."""
        self.connection.close()
        for path in ("vhosts/keys", "users/keys", "global-parameters/keys"):
            assert self.api.ask("DELETE", path).status == 204


def keys(value: object, above: str = "") -> Iterator[str]:
    """Return the paths of all leaves, and of empty lists and objects: `a.b[].c`."""
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from keys(one, f"{above}.{name}" if above else name)
    elif isinstance(value, list) and value:
        for one in value:
            yield from keys(one, f"{above}[]")
    else:
        yield above


def main() -> None:
    """Record the replies' structure."""
    amqp, api = (
        Address(one.rpartition(":")[0], int(one.rpartition(":")[2])) for one in sys.argv[1:]
    )
    scene = Scene(amqp, Api(api))
    until = time.monotonic() + SETTLED_S
    while time.monotonic() < until:
        scene.wait(0.5)
    RECORDED.write_text(json.dumps(scene.keys(), indent=0) + "\n")
    scene.close()


if __name__ == "__main__":
    main()
