"""What moves messages in a run: a shovel between two queues, or a link of federation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker.amqp.codec import decode_properties, encode_properties
from broker.machine.commands import (
    DEFINE,
    EXCHANGE_DECLARE,
    PERSISTENT,
    PUBLISH,
    QUEUE_BIND,
    QUEUE_UNBIND,
    Command,
    Define,
    ExchangeDeclare,
    Publish,
    QueueBind,
    QueueUnbind,
    Table,
    Value,
)
from broker.machine.state import State, Vhost, ready_count
from tests.sim.world.random_tape import Tape
from tools.shovel.mover import TAG

CLUSTER = "here"
"""The name of the cluster, as links have it."""
SOURCE, DESTINATION = TAG, "shovelled"
"""The audit takes the name of a queue from the tags of its consumers."""
FAR, NEAR = "far", "near"
"""An exchange, and the one that is fed from it."""
LINK_QUEUE = f"federation: {FAR} -> {CLUSTER}:{NEAR}"
SOURCES = (SOURCE, LINK_QUEUE)
"""Either of these is there."""
KEYS = ("red", "green", "blue")
"""Of what is published at the exchange."""
SPARED = "shovel|federation"
"""How the names of queues begin of which operators let nothing be dropped."""
SHOVEL_KEY, LINK_KEY = ("/", "mover"), ("/", "exchange", NEAR, "up")
SHOVEL_NAME, UPSTREAM_NAME = "shovel/mover", "federation-upstream/up"
ELSEWHERE, HERE = "amqp://elsewhere", "amqp://"


class LinkPlan(NamedTuple):
    """Of a whole run: every member defines the same."""

    used: bool
    federates: bool
    shovel: Table
    upstream: Table

    @classmethod
    def draw(cls, tape: Tape) -> LinkPlan:
        """By chance: most runs have none."""
        used = tape.chance(0.2)
        source, destination = tape.pick(((HERE, ELSEWHERE), (ELSEWHERE, HERE), (HERE, HERE)))
        prefetch = tape.pick((1, 3, 20, 1000))
        shovel: Table = {
            "src-uri": source, "src-queue": SOURCE, "dest-uri": destination,
            "dest-queue": DESTINATION, "src-prefetch-count": prefetch, "reconnect-delay": 1,
        }  # fmt: skip
        upstream: Table = {
            "uri": source, "exchange": FAR, "prefetch-count": prefetch, "reconnect-delay": 1
        }  # fmt: skip
        return cls(used, tape.fork("kind").chance(0.4), shovel, upstream)

    @property
    def key(self) -> tuple[str, ...]:
        """By which members know what moves the messages."""
        return LINK_KEY if self.federates else SHOVEL_KEY

    def define(self, conn: int, requests: Iterator[int]) -> list[Command]:
        """By a publisher that has declared both queues."""
        if not self.federates:
            return [_parameter(next(requests), SHOVEL_NAME, self.shovel)]
        policy: dict[str, Value] = {
            "pattern": f"^{NEAR}$", "definition": {"federation-upstream": "up"},
            "apply-to": "exchanges", "priority": 9,
        }  # fmt: skip
        return [
            *(
                ExchangeDeclare(
                    EXCHANGE_DECLARE, conn, 1, name, "direct", False, True, False, False, True, {}
                )
                for name in (FAR, NEAR)
            ),
            _parameter(next(requests), UPSTREAM_NAME, self.upstream),
            Define(DEFINE, next(requests), "sim", "policy", "/", "federated", policy),
        ]  # fmt: skip

    def change(self, conn: int, tape: Tape) -> Command:
        """A binding comes or goes at the exchange that is fed."""
        key = tape.pick(KEYS)
        if tape.chance(0.65):
            return QueueBind(QUEUE_BIND, conn, 1, DESTINATION, NEAR, key, True, {})
        return QueueUnbind(QUEUE_UNBIND, conn, 1, DESTINATION, NEAR, key, False, {})

    def message(self, properties: bytes, body: bytes, tape: Tape) -> Publish:
        """One that is to be moved; it says in its properties that it is persistent, so that who
        passes it on knows."""
        said = decode_properties(properties or b"\0\0")
        properties = encode_properties({**said, "delivery_mode": 2})
        exchange, key = (FAR, tape.pick(KEYS)) if self.federates else ("", SOURCE)
        return Publish(PUBLISH, 0, 1, 0, exchange, key, PERSISTENT, properties, body)


def _parameter(request: int, name: str, value: Table) -> Define:
    return Define(DEFINE, request, "sim", "parameter", "/", name, {"value": value})


def is_in_order(state: State) -> bool:
    """Whether G24 or G27 promises the order of the queue also when a link breaks: to a shovel a
    source elsewhere gives back what was under way when it notices."""
    body = state.definitions["parameter"].get(("/", SHOVEL_NAME))
    value = body["value"] if body is not None else None
    return not isinstance(value, dict) or value["src-uri"] == HERE


def is_moved(vhost: Vhost) -> bool:
    """Whether nothing waits to be moved, and the exchange elsewhere is bound as that here is."""
    waiting = [
        queue for queue in map(vhost.queues.get, SOURCES)
        if queue is not None and (ready_count(queue) or queue.unacked)
    ]  # fmt: skip
    here, there = (
        {one.key for one in exchange.bindings.values()} if exchange is not None else set()
        for exchange in (vhost.exchanges.get(NEAR), vhost.exchanges.get(FAR))
    )
    return not waiting and here == there
