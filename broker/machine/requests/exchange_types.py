"""Exchange types beyond AMQP: those that choose one binding, and those for federation links.

`x-consistent-hash` chooses in proportion to the weights given as binding keys, by the routing key
or by what `hash-header` or `hash-property` names; of several bindings to one destination the first
counts. `x-modulus-hash` chooses by the routing key alone, with equal weights. `x-random` goes by
the place of the message in the order, because a machine that all members run has no randomness.

`x-federation-upstream` is declared here by a downstream cluster, which binds it to the exchange
that it federates, and takes from it by a queue. It is a fanout that leaves out messages that have
been at that downstream or have made `x-max-hops` hops: links record a message's way in
`x-received-from`.
Decision: docs/decisions/0076-a-federation-link-is-a-shovel-that-follows-bindings.md.
"""

from bisect import bisect_right
from itertools import accumulate

from broker.machine.commands import Table, Value
from broker.machine.digest import MASK, bytes_hash, item_hash
from broker.machine.requests.properties import headers_of, property_of, raw_headers
from broker.machine.requests.refusals import Refusal, plain, precondition_failed
from broker.machine.state import DELAYED_MESSAGE, Binding, Exchange

CONSISTENT_HASH, MODULUS_HASH, RANDOM = "x-consistent-hash", "x-modulus-hash", "x-random"
CHOOSING = (CONSISTENT_HASH, MODULUS_HASH, RANDOM)
HEADER, PROPERTY = "hash-header", "hash-property"
PROPERTIES = ("correlation_id", "message_id", "timestamp")
WEIGHT_MAX = 1_000_000
FEDERATION_UPSTREAM = "x-federation-upstream"
EXCHANGE_TYPES = (
    "direct", "fanout", "topic", "headers", *CHOOSING, DELAYED_MESSAGE, FEDERATION_UPSTREAM,
)  # fmt: skip
MAX_HOPS, DOWNSTREAM_NAME = "x-max-hops", "x-downstream-name"
DOWNSTREAM_VHOST = "x-downstream-vhost"
RECEIVED_FROM = "x-received-from"
"""A header: the clusters through which a message came, the last one first."""
CLUSTER_NAME, VHOST = "cluster-name", "vhost"


def check_arguments(arguments: Table) -> Refusal | None:
    """Check an x-consistent-hash exchange that is declared."""
    header, of_property = arguments.get(HEADER), arguments.get(PROPERTY)
    if header is not None and of_property is not None:
        return precondition_failed(f"{HEADER} and {PROPERTY} are mutually exclusive")
    if header is not None and (type(header) is not str or not header):
        return precondition_failed(f"{HEADER} is no name of a header: '{plain(header)}'")
    if of_property is not None and of_property not in PROPERTIES:
        known = ", ".join(PROPERTIES)
        return precondition_failed(
            f"Unsupported property: {plain(of_property)}; one of {known} is needed"
        )
    return None


def check_weight(key: str) -> Refusal | None:
    """Check a binding to an x-consistent-hash exchange."""
    digits, what = key.removeprefix("-"), f"; it is the weight of the binding, 1 to {WEIGHT_MAX}"
    if not (digits.isascii() and digits.isdigit()):
        return precondition_failed(f'The binding key must be an integer: <<"{key}">>{what}')
    if digits != key or not digits.strip("0"):
        return precondition_failed(f"The binding key must be greater than 0{what}")
    if len(key) > 9 or int(key) > WEIGHT_MAX:
        return precondition_failed(f"The binding key must be at most {WEIGHT_MAX}{what}")
    return None


def goes_by_key(source: Exchange) -> bool:
    """Whether two messages with the same routing key go the same way."""
    if source.routes_as == CONSISTENT_HASH:
        return HEADER not in source.arguments and PROPERTY not in source.arguments
    return source.routes_as != RANDOM


def chosen(source: Exchange, key: str, properties: bytes, turn: int) -> list[Binding]:
    """The one binding that gets the message; none if there are none. `turn` differs from message to
    message."""
    bindings, ends = source.shares or _shares(source)
    if not bindings:
        return []
    if source.routes_as == RANDOM:
        hashed = item_hash("random", source.name, turn)
    elif source.routes_as == MODULUS_HASH:
        hashed = bytes_hash(key.encode())
    else:
        hashed = bytes_hash(_hashed_value(source.arguments, key, properties))
    return [bindings[bisect_right(ends, _bucket(hashed, ends[-1]))]]


def _shares(source: Exchange) -> tuple[list[Binding], list[int]]:
    """The bindings, and where the buckets of each end; cached until one comes or goes."""
    bindings = list(source.bindings.values())
    weights = [1] * len(bindings)
    if source.routes_as == CONSISTENT_HASH:
        first: dict[tuple[bool, str], Binding] = {}
        for binding in bindings:
            first.setdefault((binding.to_queue, binding.destination), binding)
        bindings = list(first.values())
        weights = [int(binding.key) for binding in bindings]
    source.shares = bindings, list(accumulate(weights))
    return source.shares


def _hashed_value(arguments: Table, key: str, properties: bytes) -> bytes:
    header, of_property = arguments.get(HEADER), arguments.get(PROPERTY)
    if isinstance(header, str):
        values = [value for name, _, value in raw_headers(properties) if name == header]
        return values[-1] if values else b""
    if isinstance(of_property, str):
        return property_of(properties, of_property)
    return key.encode()


def _bucket(hashed: int, count: int) -> int:
    """The bucket, of this many; when one is added, only its share of keys moves there.

    Jump consistent hash (Lamping and Veach, 2014), in whole numbers, which are the same everywhere.
    """
    bucket = following = 0
    while following < count:
        bucket = following
        hashed = (hashed * 2862933555777941757 + 1) & MASK
        following = ((bucket + 1) << 31) // ((hashed >> 33) + 1)
    return bucket


# -- links of federation -------------------------------------------------------------------------


def check_link_arguments(arguments: Table) -> Refusal | None:
    """Check such an exchange that is declared."""
    hops, name = arguments.get(MAX_HOPS), arguments.get(DOWNSTREAM_NAME)
    vhost = arguments.get(DOWNSTREAM_VHOST, "")
    if type(hops) is not int or hops < 1:
        return precondition_failed(f"{FEDERATION_UPSTREAM}: {MAX_HOPS} is no number of 1 or more")
    if type(name) is not str or type(vhost) is not str:
        return precondition_failed(
            f"{FEDERATION_UPSTREAM}: {DOWNSTREAM_NAME} and {DOWNSTREAM_VHOST} are names"
        )
    return None


def may_go_on(exchange: Exchange, properties: bytes) -> bool:
    """Whether the message may go to the downstream of this exchange."""
    way = headers_of(properties).get(RECEIVED_FROM)
    if not isinstance(way, tuple):
        return True
    arguments = exchange.arguments
    hops = arguments.get(MAX_HOPS)
    return (not isinstance(hops, int) or len(way) < hops) and not has_been_at(
        way, arguments.get(DOWNSTREAM_NAME), arguments.get(DOWNSTREAM_VHOST)
    )


def has_been_at(way: tuple[Value, ...], cluster: Value, vhost: Value) -> bool:
    """Whether this virtual host of this cluster is on the message's way; any virtual host if none
    is given."""
    return any(
        isinstance(one, dict) and one.get(CLUSTER_NAME) == cluster
        and (vhost is None or one.get(VHOST) == vhost)
        for one in way
    )  # fmt: skip
