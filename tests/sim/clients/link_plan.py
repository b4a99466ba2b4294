"""The links of a run: one shovel, two, of which the first may feed the second, or a link of
federation, of either kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from broker.shovels.definition import NO_ACK, ON_CONFIRM, ON_PUBLISH
from tests.sim.world.random_tape import Tape
from tools.shovel.mover import TAG

CLUSTER = "here"
"""The name of the cluster, as links have it."""
SOURCE, SECOND, DESTINATION = TAG, "shovel of the second", "shovelled"
FAR, NEAR = "far", "near"
"""An exchange, and the one that is fed from it."""
LINK_QUEUE = f"federation: {FAR} -> {CLUSTER}:{NEAR}"
SOURCES = (SOURCE, SECOND, LINK_QUEUE)
"""The first is always there."""
SHOVEL, EXCHANGE_LINK, QUEUE_LINK = "shovel", "exchange", "queue"
KEYS = ("red", "green", "blue")
"""The keys of publishes to the exchange."""
SPARED = "shovel|federation"
"""Prefixes of the queues from which operators let nothing be dropped."""
KEYS_OF = {
    SHOVEL: (("/", "mover"), ("/", "second")),
    EXCHANGE_LINK: (("/", "exchange", NEAR, "up"),),
    QUEUE_LINK: (("/", "queue", DESTINATION, "up"),),
}
SHOVEL_NAMES = {SOURCE: "shovel/mover", SECOND: "shovel/second"}
UPSTREAM_NAME = "federation-upstream/up"
ELSEWHERE, HERE = "amqp://elsewhere", "amqp://"


class LinkPlan(NamedTuple):
    """The plan of a whole run: every member defines the same links."""

    used: bool
    kind: str
    shovels: dict[str, Table]
    """By their sources."""
    upstream: Table

    @classmethod
    def draw(cls, tape: Tape, *, chained: bool) -> LinkPlan:
        """Draw the plan: most runs have no links.  `chained`: two shovels are one behind the
        other."""
        used = tape.chance(0.2)
        places = (HERE, ELSEWHERE), (ELSEWHERE, HERE), (HERE, HERE)
        source, destination = tape.pick(places)
        prefetch = tape.pick((1, 3, 20, 1000))
        kind = EXCHANGE_LINK if tape.fork("kind").chance(0.4) else SHOVEL
        if kind == SHOVEL and tape.fork("queue link").chance(0.3):
            kind = QUEUE_LINK
        mode = tape.fork("mode").pick((ON_CONFIRM, ON_CONFIRM, ON_CONFIRM, ON_PUBLISH, NO_ACK))
        common: Table = {"ack-mode": mode, "reconnect-delay": 1}
        shovel: Table = {
            "src-uri": source, "src-queue": SOURCE, "dest-uri": destination,
            "dest-queue": DESTINATION, "src-prefetch-count": prefetch, **common,
        }  # fmt: skip
        shovels = {SOURCE: shovel}
        second = tape.fork("second")
        if second.chance(0.4) or chained:
            src, dest = second.pick(places)
            other: Table = {"src-uri": src, "src-queue": SECOND, "dest-uri": dest}
            shovels[SECOND] = {**shovel, **other}
        if chained:
            shovel["dest-queue"] = SECOND
        of = {"exchange": FAR} if kind == EXCHANGE_LINK else {"queue": SOURCE}
        upstream: Table = {"uri": source, "prefetch-count": prefetch, **of, **common}
        return cls(used, kind, shovels, upstream)

    @property
    def follows_bindings(self) -> bool:
        """Whether bindings made here are made elsewhere too."""
        return self.kind == EXCHANGE_LINK

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys by which members know the links."""
        return KEYS_OF[self.kind][: len(self.shovels)]

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that a publisher declares."""
        sources = tuple(self.shovels) if self.kind == SHOVEL else (SOURCE,)
        return (*sources, DESTINATION)

    def define(self, conn: int, requests: Iterator[int]) -> list[Command]:
        """Define the links, by a publisher that has declared the queues."""
        if self.kind == SHOVEL:
            return [
                _parameter(next(requests), SHOVEL_NAMES[source], shovel)
                for source, shovel in self.shovels.items()
            ]
        name, applies_to = (NEAR, "exchanges") if self.follows_bindings else (DESTINATION, "queues")
        policy: dict[str, Value] = {
            "pattern": f"^{name}$", "definition": {"federation-upstream": "up"},
            "apply-to": applies_to, "priority": 9,
        }  # fmt: skip
        return [
            *(
                ExchangeDeclare(
                    EXCHANGE_DECLARE, conn, 1, name, "direct", False, True, False, False, True, {}
                )
                for name in (FAR, NEAR)
                if self.follows_bindings
            ),
            _parameter(next(requests), UPSTREAM_NAME, self.upstream),
            Define(DEFINE, next(requests), "sim", "policy", "/", "federated", policy),
        ]  # fmt: skip

    def change(self, conn: int, tape: Tape) -> Command:
        """Add or remove a binding at the exchange that is fed."""
        key = tape.pick(KEYS)
        if tape.chance(0.65):
            return QueueBind(QUEUE_BIND, conn, 1, DESTINATION, NEAR, key, True, {})
        return QueueUnbind(QUEUE_UNBIND, conn, 1, DESTINATION, NEAR, key, False, {})

    def message(self, properties: bytes, body: bytes, tape: Tape) -> Publish:
        """A message to be moved; its properties say that it is persistent, so that its forwarder
        knows."""
        said = decode_properties(properties or b"\0\0")
        properties = encode_properties({**said, "delivery_mode": 2})
        exchange, key = "", SOURCE
        if self.follows_bindings:
            exchange, key = FAR, tape.pick(KEYS)
        elif self.kind == SHOVEL and len(self.shovels) > 1:
            key = tape.pick(tuple(self.shovels))
        return Publish(PUBLISH, 0, 1, 0, exchange, key, PERSISTENT, properties, body)


def _parameter(request: int, name: str, value: Table) -> Define:
    return Define(DEFINE, request, "sim", "parameter", "/", name, {"value": value})


def definition_of(state: State, source: str) -> Mapping[str, object]:
    """Return the definition of the link that moves messages from this queue."""
    for name in (SHOVEL_NAMES.get(source, ""), UPSTREAM_NAME):
        body = state.definitions["parameter"].get(("/", name))
        value = body["value"] if body is not None else None
        if isinstance(value, dict):
            return value
    return {}


def fed_by(state: State, source: str) -> str:
    """Return the queue to which the link from this queue brings messages."""
    return str(definition_of(state, source).get("dest-queue", DESTINATION))


def is_in_order(definition: Mapping[str, object]) -> bool:
    """Whether G24 or G27 promises the order of the queue even when a link breaks: a remote source
    returns messages under way to a shovel only when it notices, and a link takes from a queue only
    now and then."""
    return "exchange" in definition or definition.get("src-uri") == HERE


def is_moved(vhost: Vhost, kind: str) -> bool:
    """Whether nothing waits to be moved, and the exchange elsewhere is bound as the one here is.
    From a federated queue only messages are taken for which somebody here waits."""
    waiting = [
        queue for queue in map(vhost.queues.get, SOURCES)
        if queue is not None and (queue.unacked or (kind != QUEUE_LINK and ready_count(queue)))
    ]  # fmt: skip
    here, there = (
        {one.key for one in exchange.bindings.values()} if exchange is not None else set()
        for exchange in (vhost.exchanges.get(NEAR), vhost.exchanges.get(FAR))
    )
    return not waiting and here == there
