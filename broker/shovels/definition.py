"""The definition of a shovel: the value of a parameter of the component `shovel`, validated.

The keys are those of RabbitMQ's dynamic shovels, including older names without `src-` and `dest-`.
An unknown key is refused, because an operator would believe in a key that is silently ignored. Each
fault is one sentence, which holds no password.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import cast

from broker.amqp.codec import encode_properties
from broker.amqp.fields import Value, encode_table
from broker.shovels.amqp_uri import AmqpUri, BadUri, bare, obfuscated, parse_uri
from vsync.types import record

COMPONENT = "shovel"
PREFETCH, PREFETCH_MAX = 1000, 65_535
RECONNECT_S, RECONNECT_MAX_S = 5, 86_400
REPLICA = "replica"
"""Marks the key of a replica."""
NEVER, QUEUE_LENGTH = -1, -2
"""Values of `Shovel.delete_after`."""
ON_CONFIRM, ON_PUBLISH, NO_ACK = ACK_MODES = "on-confirm", "on-publish", "no-ack"
URIS_MAX = 16
SHOVELS_MAX = 200
"""Per cluster: each is a process of some 25 MB."""
NAME_BYTES_MAX = 255
TABLE_BYTES_MAX = 64 * 1024
"""Half of the largest frame, which holds the whole table and everything beside it."""
OLD_NAMES = {
    "prefetch-count": "src-prefetch-count", "delete-after": "src-delete-after",
    "publish-properties": "dest-publish-properties",
    "add-forward-headers": "dest-add-forward-headers",
    "add-timestamp-header": "dest-add-timestamp-header",
}  # fmt: skip
_PROPERTIES = {
    "content_type": str, "content_encoding": str, "headers": dict, "delivery_mode": int,
    "priority": int, "correlation_id": str, "reply_to": str, "expiration": str, "message_id": str,
    "timestamp": int, "type": str, "user_id": str, "app_id": str, "cluster_id": str,
}  # fmt: skip
Table = dict[str, Value]


class BadShovel(ValueError):
    """A definition is invalid; the text says which key and why."""


class NotDefined(BadShovel):
    """A named object does not exist, or no longer does."""


@record
class Link:
    """What a federation link does beyond moving messages (broker/shovels/upstreams.py)."""

    kind: str
    """`exchange` or `queue`."""
    name: str
    """Name of the federated object here."""
    upstream: str
    resource: str
    """The name of the exchange or queue there."""
    cluster: str
    """This cluster's name, by which loops are detected."""
    max_hops: int
    trusts_user_ids: bool
    cleans_up: bool
    """Whether the objects it created at the upstream are deleted with it."""
    exchange_type: str = ""
    durable: bool = True
    auto_delete: bool = False
    arguments: Table = field(default_factory=dict)
    """Arguments of the exchange, which is created at the upstream if it does not exist."""

    def row(self) -> dict[str, object]:
        """Return its part of a list of links, by RabbitMQ's names."""
        return {
            self.kind: self.name, f"upstream_{self.kind}": self.resource, "type": self.kind,
            "upstream": self.upstream,
        }  # fmt: skip


@record
class Shovel:
    """A shovel as defined."""

    vhost: str
    name: str
    source_uris: tuple[str, ...]
    destination_uris: tuple[str, ...]
    source_queue: str
    """Empty: its own queue is bound to `source_exchange`."""
    source_exchange: str
    source_key: str
    source_queue_arguments: Table
    consumer_arguments: Table
    prefetch: int
    delete_after: int
    """A number of messages, or one of the two above."""
    destination_queue: str
    destination_exchange: str | None
    """None: a message's own exchange, unless there is a queue."""
    destination_key: str | None
    """None: a message's own key, unless there is a queue."""
    destination_queue_arguments: Table
    publish_properties: Table
    forward_headers: bool
    timestamp_header: bool
    ack_mode: str
    reconnect_s: int
    value: Mapping[str, object]
    """The value it was parsed from."""
    link: Link | None = None
    """Further work of a federation link."""
    is_replica: bool = False
    """It moves nothing: the destination is kept the same as the source (replicas.py)."""

    @property
    def key(self) -> tuple[str, ...]:
        """Its key: virtual host and name; for a link also what it feeds, and from where."""
        if self.is_replica:
            return self.vhost, REPLICA, self.name
        if self.link is None:
            return self.vhost, self.name
        return self.vhost, self.link.kind, self.link.name, self.link.upstream

    @property
    def title(self) -> str:
        """A title for logs and lists of connections."""
        if self.is_replica:
            return f"copy of queue '{self.source_queue}' as '{self.name}' of vhost '{self.vhost}'"
        if self.link is None:
            return f"shovel '{self.name}' of vhost '{self.vhost}'"
        link = self.link
        return (
            f"federation link of {link.kind} '{link.name}' of vhost '{self.vhost}' to upstream "
            f"'{link.upstream}'"
        )

    @property
    def connection_name(self) -> str:
        """The name of its connections, as in RabbitMQ."""
        if self.is_replica:
            return f"Replica {self.name}"
        if self.link is None:
            return f"Shovel {self.name}"
        return f"Federation link (upstream: {self.link.upstream}, {self.link.kind}: {self.name})"

    def row(self) -> dict[str, object]:
        """Return its row in a list, by RabbitMQ's names."""
        if self.link is not None:
            return {"vhost": self.vhost, **self.link.row(), "uri": bare(self.source_uris[0])}
        if self.is_replica:
            return {
                "queue": self.name, "vhost": self.vhost, "src_queue": self.source_queue,
                "src_uri": bare(self.source_uris[0]),
            }  # fmt: skip
        row: dict[str, object] = {
            "name": self.name, "vhost": self.vhost, "type": "dynamic",
            "src_uri": bare(self.source_uris[0]), "src_protocol": "amqp091",
            "dest_uri": bare(self.destination_uris[0]), "dest_protocol": "amqp091",
        }  # fmt: skip
        optional = {
            "src_queue": self.source_queue, "src_exchange": self.source_exchange,
            "src_exchange_key": self.source_key, "dest_queue": self.destination_queue,
            "dest_exchange": self.destination_exchange, "dest_exchange_key": self.destination_key,
        }  # fmt: skip
        return row | {name: value for name, value in optional.items() if value}


def name_in(component: str, parameter: str) -> str | None:
    """Return the name of a parameter `COMPONENT/NAME`; None if it is of another component."""
    of, _, name = parameter.partition("/")
    return name if of == component else None


def parse_shovel(vhost: str, name: str, value: object) -> Shovel:
    """Parse the value of the parameter. Raises BadShovel."""
    if not name.isprintable():
        raise BadShovel("its name has a character that cannot be printed: define it by another one")
    if not isinstance(value, Mapping):
        raise BadShovel("the value of a shovel is a JSON object with keys such as 'src-uri'")
    reader = Reader(value)
    shovel = Shovel(
        vhost, name, reader.uris("src-uri"), reader.uris("dest-uri"),
        reader.name("src-queue"), reader.name("src-exchange"), reader.name("src-exchange-key"),
        reader.table("src-queue-args"), reader.table("src-consumer-args"),
        reader.number("src-prefetch-count", PREFETCH, 0, PREFETCH_MAX),
        reader.delete_after(), reader.name("dest-queue"), reader.optional_name("dest-exchange"),
        reader.optional_name("dest-exchange-key"), reader.table("dest-queue-args"),
        reader.properties("dest-publish-properties"), reader.flag("dest-add-forward-headers"),
        reader.flag("dest-add-timestamp-header"), reader.choice("ack-mode", ACK_MODES),
        reader.number("reconnect-delay", RECONNECT_S, 0, RECONNECT_MAX_S), value,
    )  # fmt: skip
    for key in ("src-protocol", "dest-protocol"):
        reader.choice(key, ("amqp091",), "; other protocols are not spoken by shovels here")
    reader.end()
    _check_ends(shovel)
    return shovel


def _check_ends(shovel: Shovel) -> None:
    if bool(shovel.source_queue) == bool(shovel.source_exchange):
        raise BadShovel("give either 'src-queue' or 'src-exchange'")
    if shovel.source_key and not shovel.source_exchange:
        raise BadShovel("'src-exchange-key' needs 'src-exchange'")
    if shovel.destination_queue and shovel.destination_exchange is not None:
        raise BadShovel("give either 'dest-queue' or 'dest-exchange', not both")
    if shovel.destination_queue and shovel.destination_key is not None:
        raise BadShovel("'dest-exchange-key' does not go with 'dest-queue'")
    if shovel.ack_mode == NO_ACK and shovel.delete_after != NEVER:
        raise BadShovel(
            "'src-delete-after' does not go with 'ack-mode' no-ack: what else comes is lost"
        )
    if shovel.source_exchange and shovel.delete_after == QUEUE_LENGTH:
        raise BadShovel("'src-delete-after' queue-length needs 'src-queue'")


class Reader:
    """The keys of a definition, each of which is taken once."""

    def __init__(
        self, value: Mapping[str, object], old_names: Mapping[str, str] = OLD_NAMES
    ) -> None:
        self._rest: dict[str, object] = {}
        for key, one in value.items():
            name = old_names.get(key, key)
            if name in self._rest:
                old = next(old for old, new in old_names.items() if new == name)
                raise BadShovel(f"'{old}' is the older name of '{name}': give one of them")
            if one is not None:  # tools send this for unset keys
                self._rest[name] = one

    def end(self) -> None:
        for key in self._rest:
            raise BadShovel(f"there is no key '{key}'")

    def uris(self, key: str) -> tuple[str, ...]:
        found = self._rest.pop(key, None)
        if found is None:
            raise BadShovel(f"'{key}' is missing")
        uris = (found,) if isinstance(found, str) else found
        if not isinstance(uris, list | tuple) or not all(isinstance(one, str) for one in uris):
            raise BadShovel(f"'{key}' is a URI, or a list of URIs")
        texts = tuple(cast("list[str]", uris))
        if not 0 < len(texts) <= URIS_MAX:
            raise BadShovel(f"'{key}' is a list of 1 to {URIS_MAX} URIs")
        for text in texts:
            try:
                parse_uri(text)
            except BadUri as bad:
                raise BadShovel(f"'{key}': {bad}") from None
        return texts

    def name(self, key: str) -> str:
        return self.optional_name(key) or ""

    def optional_name(self, key: str) -> str | None:
        found = self._rest.pop(key, None)
        if found is not None and (
            not isinstance(found, str) or len(found.encode()) > NAME_BYTES_MAX
        ):
            raise BadShovel(f"'{key}' is a name of {NAME_BYTES_MAX} bytes at most")
        return found

    def flag(self, key: str) -> bool:
        found = self._rest.pop(key, False)
        if not isinstance(found, bool):
            raise BadShovel(f"'{key}' is true or false")
        return found

    def number(self, key: str, default: int, low: int, high: int) -> int:
        found = self._rest.pop(key, None)
        if found is None:
            return default
        if type(found) is not int or not low <= found <= high:
            raise BadShovel(f"'{key}' is a whole number from {low} to {high}")
        return found

    def choice(self, key: str, known: tuple[str, ...], hint: str = "") -> str:
        found = self._rest.pop(key, known[0])
        if not isinstance(found, str) or found not in known:
            raise BadShovel(f"'{key}' is {' or '.join(known)}{hint}")
        return found

    def without_effect(self, key: str, kinds: tuple[type, ...]) -> None:
        """Take a key that changes nothing here, but must be valid as elsewhere."""
        found = self._rest.pop(key, None)
        if found is not None and type(found) not in kinds:
            raise BadShovel(f"'{key}' is {_WORDS[kinds[0]]}")

    def delete_after(self) -> int:
        found = self._rest.pop("src-delete-after", "never")
        if found == "never":
            return NEVER
        if found == "queue-length":
            return QUEUE_LENGTH
        if type(found) is not int or not 0 < found < 1 << 53:
            raise BadShovel("'src-delete-after' is never, queue-length or a number of messages")
        return found

    def table(self, key: str) -> Table:
        found = self._rest.pop(key, {})
        if found in ([], ()):  # an empty object, as some tools write it
            return {}
        if not isinstance(found, dict):
            raise BadShovel(f"'{key}' is an object")
        table = cast("Table", _amqp(found))
        try:
            size = len(encode_table(table))
        except (OverflowError, ValueError):
            raise BadShovel(
                f"'{key}': AMQP has names of 255 bytes at most, and whole numbers of 64 bits"
            ) from None
        if size > TABLE_BYTES_MAX:
            raise BadShovel(f"'{key}' has {size} bytes in AMQP, more than {TABLE_BYTES_MAX}")
        return table

    def properties(self, key: str) -> Table:
        found = self.table(key)
        for name, value in found.items():
            kind = _PROPERTIES.get(name)
            if kind is None:
                known = ", ".join(_PROPERTIES)
                raise BadShovel(f"'{key}': there is no property '{name}', but {known}")
            if type(value) is not kind:
                raise BadShovel(f"'{key}': '{name}' is {_WORDS[kind]}")
        if found.get("delivery_mode", 1) not in (1, 2):
            raise BadShovel(f"'{key}': 'delivery_mode' is 1 or 2")
        try:
            encode_properties(found)
        except (OverflowError, ValueError):
            raise BadShovel(f"'{key}': a value does not fit into its property") from None
        return found


_WORDS: dict[type, str] = {
    str: "a text", int: "a whole number", dict: "an object", bool: "true or false",
}  # fmt: skip


def _amqp(value: object) -> Value:
    """Convert a value of JSON or of a field table to one of a field table."""
    match value:
        case Mapping():
            return {str(name): _amqp(one) for name, one in value.items()}
        case list() | tuple():
            return tuple(_amqp(one) for one in value)
        case _:
            return cast("Value", value)


def local_ends(value: Value) -> list[AmqpUri]:
    """The URIs of a definition that point to this cluster; invalid URIs are refused elsewhere."""
    found = value if isinstance(value, dict) else {}
    uris: list[AmqpUri] = []
    for key in ("src-uri", "dest-uri", "uri"):
        given = found.get(key)
        for text in given if isinstance(given, tuple | list) else (given,):
            with contextlib.suppress(BadUri):
                uris.append(parse_uri(text if isinstance(text, str) else ""))
    return [uri for uri in uris if uri.address is None]


def without_passwords(value: Value) -> Value:
    """The value of a parameter for lists: its URIs are shown without passwords."""
    if isinstance(value, dict):
        return {
            key: _each(one, obfuscated) if key.endswith("uri") else one
            for key, one in value.items()
        }
    return value


def _each(value: Value, change: Callable[[str], str]) -> Value:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_each(one, change) for one in value)
    return value


def ends(shovel: Shovel, attempt: int) -> tuple[AmqpUri, AmqpUri]:
    """The addresses for its attempt of this number: lists of URIs are tried in turn."""
    source, destination = (
        uris[attempt % len(uris)] for uris in (shovel.source_uris, shovel.destination_uris)
    )
    return parse_uri(source), parse_uri(destination)
