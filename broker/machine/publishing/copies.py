"""Further routing keys of a message: those that its sender names in the headers CC and BCC.

The message goes to all queues that any of its keys reaches at its exchange, once to each. BCC is
taken out before anybody else sees the message. Decision:
docs/decisions/0048-arguments-that-nobody-knows-are-taken.md.
"""

from typing import NamedTuple

from broker.machine.limits import FANOUT_MAX, ROUTE_WORK_MAX
from broker.machine.queueing.routing import bound_keys, find_route
from broker.machine.requests.properties import HAS_HEADERS, decode_value, raw_headers, with_headers
from broker.machine.requests.refusals import Refusal, invalid_header, too_much
from broker.machine.state import Queue, Route, Vhost

KEY_WORK = 3
"""Units of looking for one more route, beside what the route itself takes."""
_KINDS = {
    ord("S"): "longstr", ord("F"): "table", ord("t"): "bool", ord("V"): "void", ord("x"): "binary",
    ord("T"): "timestamp", ord("D"): "decimal", ord("f"): "float", ord("d"): "double",
    ord("l"): "long",
}  # fmt: skip
"""As RabbitMQ names them in its refusal; the others are whole numbers."""


class Copies(NamedTuple):
    """What the headers say."""

    properties: bytes  # without BCC
    keys: tuple[str, ...]  # of CC
    blind: tuple[str, ...]  # of BCC


def may_name_copies(properties: bytes) -> bool:
    """Whether it is worth to look into the headers: in most messages it is not."""
    return (
        len(properties) > 2
        and properties[0] & (HAS_HEADERS >> 8) != 0
        and (b"\x02CC" in properties or b"\x03BCC" in properties)
    )


def copies_of(properties: bytes) -> Copies | Refusal:
    """Of equal names the last one counts. What is no text in a list is left out."""
    entries = raw_headers(properties)
    keys: dict[str, tuple[str, ...]] = {"CC": (), "BCC": ()}
    for name, _, raw in entries:
        if name in keys:
            value = decode_value(raw)
            if not isinstance(value, tuple):
                return invalid_header(name, _KINDS.get(raw[0], "signedint"))
            keys[name] = tuple(key for key in value if isinstance(key, str))
    if any(name == "BCC" for name, _, _ in entries):
        properties = without_header(properties, "BCC")
    return Copies(properties, keys["CC"], keys["BCC"])


def without_header(properties: bytes, name: str) -> bytes:
    kept = [one for one in raw_headers(properties) if one[0] != name]
    return with_headers(properties, kept, keep_expiration=True)


def widened(
    vhost: Vhost, route: Route, keys: tuple[str, ...], properties: bytes, turn: int
) -> Route | Refusal:
    """The same route, and in addition the queues that these keys reach at its exchange."""
    bound, bound_work = bound_keys(vhost, route.source, (route.key, *keys), properties, turn)
    queues: dict[int, Queue] = {queue.number: queue for queue in route.queues}
    if bound and route.key not in bound:  # it went to the alternate exchange alone
        queues = {}
    work = route.work + bound_work
    for key in dict.fromkeys(bound or keys):
        found = vhost.routes.get((route.exchange, key))
        if found is None:
            looked_for = find_route(vhost, route.source, key, properties, turn)
            if isinstance(looked_for, Refusal):
                return looked_for
            found = looked_for
        queues.update((queue.number, queue) for queue in found.queues)
        work += KEY_WORK + found.work
        if work > ROUTE_WORK_MAX:
            return too_much(
                "work to route a message by its key and those of CC and BCC", work, ROUTE_WORK_MAX,
                "name fewer keys, or spread the bindings over several exchanges",
            )  # fmt: skip
    if len(queues) > FANOUT_MAX:
        return too_much(
            "queues that a message reaches by its key and those of CC and BCC", len(queues),
            FANOUT_MAX, "spread them over several exchanges, and publish to each",
        )  # fmt: skip
    reached = tuple(queues[number] for number in sorted(queues))
    durable = any(queue.durable for queue in reached)
    streams = any(queue.stream is not None for queue in reached)
    return route._replace(queues=reached, durable=durable, streams=streams, work=work)
