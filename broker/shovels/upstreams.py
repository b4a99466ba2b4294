"""Upstreams of federation: the parameters that name brokers to link to, and the resulting links.

`federation-upstream` names a broker and how it is linked. `federation-upstream-set` names several
of them, each with settings of its own for the set if needed. The keys are RabbitMQ's; an unknown
key is refused, because an operator would believe in a key that is silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from broker.amqp.fields import Value
from broker.shovels.amqp_uri import parse_uri
from broker.shovels.definition import (
    ACK_MODES,
    NAME_BYTES_MAX,
    PREFETCH_MAX,
    RECONNECT_MAX_S,
    RECONNECT_S,
    BadShovel,
    Link,
    NotDefined,
    Reader,
    Shovel,
    Table,
    parse_shovel,
)
from vsync.types import record

UPSTREAM, UPSTREAM_SET = "federation-upstream", "federation-upstream-set"
ALL = "all"
"""The implicit set of all upstreams of a virtual host."""
PREFETCH, QUEUE_PREFETCH = 4000, 1000
"""For an exchange's link the most messages that are ever in progress, because fewer are slower over
a long distance; for a queue's link fewer, because those are taken from consumers at the upstream.
"""
HOPS_MAX = 1000
TIME_MAX_MS = (1 << 32) - 1
UPSTREAMS_MAX = 100
"""Upstreams in a set."""
LOWER_PRIORITY = -1
"""Priority of the consumer of a queue's link, so that consumers at the upstream are served first. A
link requests nothing for consumers with this priority; otherwise two links would hand messages to
each other for nobody."""
INTERNAL, PURPOSE = "x-internal-purpose", "federation"
"""An argument of queues created by links, which are not federated themselves."""
EXCHANGE, QUEUE = "exchange", "queue"
_WITHOUT_EFFECT: dict[str, tuple[type, ...]] = {
    "ha-policy": (str,), "bind-nowait": (bool,), "channel-use-mode": (str,), "consumer-tag": (str,),
}  # fmt: skip
"""Every queue is on every member; bindings are never waited for; each end has one channel, and its
consumer has the only tag."""


@record
class Upstream:
    """A broker to link to, as defined."""

    name: str
    uris: tuple[str, ...]
    exchange: str
    """Its name there; empty: the same as here."""
    queue: str
    prefetch: int
    """-1: depends on what is linked."""
    reconnect_s: int
    ack_mode: str
    trusts_user_ids: bool
    max_hops: int
    expires_ms: int
    """The queue there is deleted after this time without a link; 0: never."""
    ttl_ms: int
    """Messages there are dropped after this time; -1: never."""
    queue_type: str
    cleans_up: bool


def parse_upstream(name: str, value: object) -> Upstream:
    """Parse the value of a parameter `federation-upstream`. Raises BadShovel."""
    if not name.isprintable():
        raise BadShovel("its name has a character that cannot be printed: define it by another one")
    if not isinstance(value, Mapping):
        raise BadShovel("the value of an upstream is a JSON object with keys such as 'uri'")
    reader = Reader(value, {})
    uris = reader.uris("uri")
    found = _shared(name, uris, reader)
    reader.end()
    return found


def _shared(name: str, uris: tuple[str, ...], reader: Reader) -> Upstream:
    """Settings of an upstream that a set may override."""
    upstream = Upstream(
        name, uris, reader.name("exchange"), reader.name("queue"),
        reader.number("prefetch-count", -1, 0, PREFETCH_MAX),
        reader.number("reconnect-delay", RECONNECT_S, 0, RECONNECT_MAX_S),
        reader.choice("ack-mode", ACK_MODES), reader.flag("trust-user-id"),
        reader.number("max-hops", 1, 1, HOPS_MAX), reader.number("expires", 0, 0, TIME_MAX_MS),
        reader.number("message-ttl", -1, 0, TIME_MAX_MS),
        reader.choice("queue-type", ("", "classic", "quorum")),
        reader.choice("resource-cleanup-mode", ("default", "never")) == "default",
    )  # fmt: skip
    for key, kinds in _WITHOUT_EFFECT.items():
        reader.without_effect(key, kinds)
    return upstream


def parse_set(name: str, value: object) -> tuple[Table, ...]:
    """Parse the value of a parameter `federation-upstream-set`. Raises BadShovel."""
    if name == ALL:
        raise BadShovel(f"the set '{ALL}' is that of all upstreams: give this one another name")
    if not isinstance(value, list | tuple) or not 0 < len(value) <= UPSTREAMS_MAX:
        raise BadShovel(
            f'a set is a list of 1 to {UPSTREAMS_MAX} objects such as {{"upstream": "NAME"}}'
        )
    seen: set[str] = set()
    for one in value:
        if not isinstance(one, Mapping):
            raise BadShovel('each upstream of a set is an object, {"upstream": "NAME"}')
        reader = Reader(one, {})
        upstream = reader.name("upstream")
        if not upstream:
            raise BadShovel("'upstream' is missing in an object of the list: the name of one")
        if upstream in seen:
            raise BadShovel(
                f"upstream '{upstream}' is named twice: for another exchange or queue of that "
                "cluster define an upstream of another name"
            )
        seen.add(upstream)
        _shared(name, (), reader)
        reader.end()
    return tuple(cast("list[Table]", value))


# -- what comes of it ----------------------------------------------------------------------------


def chosen_upstreams(
    defined: Mapping[str, Value], sets: Mapping[str, Value], definition: Mapping[str, Value]
) -> dict[str, Upstream | BadShovel]:
    """Return the upstreams that a policy names, by their names."""
    one = definition.get(UPSTREAM)
    named = definition.get(UPSTREAM_SET)
    asked: list[Table]
    if isinstance(one, str):
        asked = [{"upstream": one}]
    elif named == ALL:
        asked = [{"upstream": name} for name in defined]
    elif isinstance(named, str) and named in sets:
        try:
            asked = list(parse_set(named, sets[named]))
        except BadShovel as bad:
            return {f"set {named}": bad}
    elif isinstance(named, str):
        return {f"set {named}": NotDefined(f"there is no {UPSTREAM_SET} '{named}' in its vhost")}
    else:
        return {}
    found: dict[str, Upstream | BadShovel] = {}
    for entry in asked:
        name = str(entry["upstream"])
        try:
            if name not in defined:
                raise NotDefined(f"there is no {UPSTREAM} '{name}' in its vhost")
            own = defined[name]
            others = {key: value for key, value in entry.items() if key != "upstream"}
            found[name] = parse_upstream(name, {**own, **others} if isinstance(own, dict) else own)
        except BadShovel as bad:
            found[name] = bad
    return found


def upstream_queue(resource: str, upstream_vhost: str | None, vhost: str, link: Link) -> str:
    """The queue at the upstream in which messages for this link wait, by RabbitMQ's name."""
    at = link.cluster
    if upstream_vhost != vhost:
        at = f"{at}:{vhost}:{link.name}"
    elif link.name != resource:
        at = f"{at}:{link.name}"
    return f"federation: {resource} -> {at}"


def link_of(upstream: Upstream, vhost: str, link: Link) -> Shovel:
    """The shovel that implements such a link. Raises BadShovel."""
    prefetch = upstream.prefetch
    if prefetch < 0:
        prefetch = QUEUE_PREFETCH if link.kind == QUEUE else PREFETCH
    value: dict[str, object] = {
        "src-uri": upstream.uris, "dest-uri": "amqp://", "ack-mode": upstream.ack_mode,
        "src-prefetch-count": prefetch, "reconnect-delay": upstream.reconnect_s,
    }  # fmt: skip
    if link.kind == QUEUE:
        value |= {
            "src-queue": link.resource, "dest-queue": link.name,
            "src-consumer-args": {"x-priority": LOWER_PRIORITY},
        }  # fmt: skip
    else:
        from_vhost = parse_uri(upstream.uris[0]).vhost
        queue = upstream_queue(link.resource, from_vhost or vhost, vhost, link)
        if len(f"{queue} A".encode()) > NAME_BYTES_MAX:  # the link's exchange there
            raise BadShovel(f"the names of cluster, vhost and exchange are too long: '{queue}'")
        arguments: Table = {INTERNAL: PURPOSE, "x-single-active-consumer": True}
        if upstream.expires_ms:
            arguments["x-expires"] = upstream.expires_ms
        if upstream.ttl_ms >= 0:
            arguments["x-message-ttl"] = upstream.ttl_ms
        if upstream.queue_type:
            arguments["x-queue-type"] = upstream.queue_type
        value |= {"src-queue": queue, "src-queue-args": arguments, "dest-exchange": link.name}
    return replace(parse_shovel(vhost, link.name, value), link=link)
