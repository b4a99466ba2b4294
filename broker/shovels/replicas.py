"""Queue replicas: queues kept the same as queues of brokers outside the cluster.

A parameter `queue-replica/NAME` makes the queue NAME hold the messages of a queue elsewhere,
waiting or unacknowledged, until the parameter is deleted: then it is an ordinary queue. The member
that copies, and its attempts, are chosen as for shovels; `tools/shovel/copier` does the copying.
Decision: docs/decisions/0096-a-replica-holds-what-its-source-holds.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker.access.access import REPLICA
from broker.machine.state import Consumer, Queue, Vhost
from broker.shovels.amqp_uri import parse_uri
from broker.shovels.definition import (
    RECONNECT_MAX_S,
    RECONNECT_S,
    BadShovel,
    Reader,
    Shovel,
    parse_shovel,
)

COMPONENT = REPLICA
REPLICAS_MAX = 100
"""Per cluster: each is a process of some 25 MB."""

Row = dict[str, object]


class Stopping:
    """Replicas that were stopped, and whose queues nobody can consume from yet, because the copying
    attempt is about to leave."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], tuple[Row, Consumer]] = {}

    def begin(
        self, key: tuple[str, str], listed: Sequence[Row], vhosts: Mapping[str, Vhost]
    ) -> None:
        """The replica of this virtual host and name, one of those listed, was stopped."""
        queue = _find(vhosts, key)
        row = next((one for one in listed if (one["vhost"], one["queue"]) == key), None)
        if row is not None and queue is not None and queue.exclusive_consumer:
            copier = next(iter(queue.consumers.values()))
            left = {"state": "stopping", "level": False, "behind": "", "reason": ""}
            self._held[key] = {**row, **left}, copier

    def rows(self, listed: Sequence[Row], vhosts: Mapping[str, Vhost]) -> list[Row]:
        """Add those still held to the existing replicas."""
        there = {(row["vhost"], row["queue"]) for row in listed}
        shown = [*listed]
        for key, (row, copier) in [*self._held.items()]:
            queue = _find(vhosts, key)
            if key in there:
                continue  # it is ordered, and not yet in force
            if queue is None or all(one is not copier for one in queue.consumers.values()):
                del self._held[key]
            else:
                shown.append(row)
        return shown


def _find(vhosts: Mapping[str, Vhost], key: tuple[str, str]) -> Queue | None:
    vhost, name = key
    return vhosts[vhost].queues.get(name) if vhost in vhosts else None


def parse_replica(vhost: str, name: str, value: object) -> Shovel:
    """Parse the value of the parameter. Raises BadShovel."""
    if not name or name.startswith("amq."):
        raise BadShovel("its name is that of the queue here, which does not begin with 'amq.'")
    if not isinstance(value, Mapping):
        raise BadShovel("the value of a replica is a JSON object with keys such as 'src-uri'")
    reader = Reader(value, {})
    uris = reader.uris("src-uri")
    source = reader.name("src-queue") or name
    given = {
        "src-uri": uris, "dest-uri": "amqp://", "src-queue": source, "dest-queue": name,
        "dest-queue-args": reader.table("queue-args"),
        "reconnect-delay": reader.number("reconnect-delay", RECONNECT_S, 1, RECONNECT_MAX_S),
    }  # fmt: skip
    reader.end()
    for uri in map(parse_uri, uris):
        if uri.address is None and (uri.vhost or vhost, source) == (vhost, name):
            raise BadShovel("'src-uri': that is the queue itself; name a broker, as amqp://HOST")
    return replace(parse_shovel(vhost, name, given), is_replica=True)
