"""Bindings over HTTP: between an exchange and a queue, or another exchange.

A binding has no name. Its `properties_key`, made of its routing key and a hash of its arguments,
stands in for one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from aiohttp.web import StreamResponse

from broker.amqp.fields import Table
from broker.machine.digest import canonical
from broker.machine.state import Binding, Exchange, Queue, Vhost
from broker.management.call import (
    Call,
    Reply,
    Route,
    bad_request,
    not_found,
    short,
    table_field,
    text_field,
)
from broker.management.json_values import Object, table, to_amqp
from broker.management.listing import Listing, chosen
from broker.management.resources.exchanges import DEFAULT_NAME, exchange_of
from broker.management.resources.queues import queue_of

NO_KEY = "~"


class Bound(NamedTuple):
    """One binding, in its virtual host."""

    vhost: str
    source: str
    to_queue: bool
    destination: str
    key: str
    arguments: Mapping[str, object]
    packed: bytes


def bound(vhost: Vhost, binding: Binding) -> Bound:
    return Bound(vhost.name, *binding[:6])


def by_default(queue: Queue) -> Bound:
    """The binding of every queue to the default exchange, by its name."""
    return Bound(queue.vhost.name, "", True, queue.name, queue.name, {}, canonical({}))


def properties_key(one: Bound) -> str:
    """The stand-in for a binding's name."""
    key = quote_plus(one.key).replace("~", "%7E")
    if not one.arguments:
        return key or NO_KEY
    digest = hashlib.md5(one.packed, usedforsecurity=False).digest()
    return f"{key}{NO_KEY}{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def binding_row(one: Bound) -> Object:
    arguments: Table = dict(one.arguments)  # type: ignore[arg-type]
    return {
        "arguments": table(arguments),
        "destination": one.destination,
        "destination_type": "queue" if one.to_queue else "exchange",
        "properties_key": properties_key(one),
        "routing_key": one.key,
        "source": one.source,
        "vhost": one.vhost,
    }


def _of_vhost(vhost: Vhost) -> Iterator[Bound]:
    for queue in list(vhost.queues.values()):
        yield by_default(queue)
    for exchange in list(vhost.exchanges.values()):
        for binding in list(exchange.bindings.values()):
            yield bound(vhost, binding)


def _of_queue(queue: Queue) -> Iterator[Bound]:
    yield by_default(queue)
    for binding in list(queue.bindings.values()):
        yield bound(queue.vhost, binding)


def _from(vhost: Vhost, exchange: Exchange) -> Iterator[Bound]:
    if exchange.name == "":
        for queue in list(vhost.queues.values()):
            yield by_default(queue)
    for binding in list(exchange.bindings.values()):
        yield bound(vhost, binding)


async def _list(call: Call, found: Iterator[Bound]) -> Reply | StreamResponse:
    return await Listing(
        found,
        binding_row,
        lambda one: (one.vhost, one.source, one.destination, one.key, one.packed),
        lambda one: one.destination,
    ).reply(call)


async def list_bindings(call: Call) -> Reply | StreamResponse:
    vhosts = call.vhosts()
    return await _list(call, (one for vhost in vhosts for one in _of_vhost(vhost)))


async def of_queue(call: Call) -> Reply | StreamResponse:
    return await _list(call, _of_queue(queue_of(call)))


async def of_source(call: Call) -> Reply | StreamResponse:
    return await _list(call, _from(*exchange_of(call)))


async def of_destination(call: Call) -> Reply | StreamResponse:
    vhost, exchange = exchange_of(call)
    found = [bound(vhost, one) for one in exchange.inbound.values()]
    return await _list(call, iter(found))


# -- between two ---------------------------------------------------------------------------------


def _between(call: Call) -> list[Bound]:
    """The bindings between the two ends in the path."""
    vhost, source = exchange_of(call, "source")
    if "queue" in call.names:
        ends = _of_queue(queue_of(call))
    else:
        _, exchange = exchange_of(call, "destination")
        ends = (bound(vhost, one) for one in list(exchange.inbound.values()))
    return [one for one in ends if one.source == source.name]


async def list_between(call: Call) -> Reply | StreamResponse:
    return await _list(call, iter(_between(call)))


def _one(call: Call) -> Bound:
    wanted = call.names["props"]
    found = _between(call)
    for one in found:
        if properties_key(one) == wanted:
            return one
    for one in found:  # for tools that know only the routing key
        if one.key == wanted and not one.arguments:
            return one
    raise not_found()


async def show_binding(call: Call) -> Reply:
    return chosen(call, binding_row(_one(call)))


async def bind(call: Call) -> Reply:
    """Bind; the header Location gives the new path."""
    body = call.json()
    key = short(text_field(body, "routing_key", ""), "routing_key")
    arguments = to_amqp(table_field(body, "arguments"))
    assert isinstance(arguments, dict)
    vhost, source = exchange_of(call, "source")
    to_queue = "queue" in call.names
    end = queue_of(call).name if to_queue else exchange_of(call, "destination")[1].name
    async with call.amqp(vhost.name) as client:
        if to_queue:
            await client.call("queue.bind", (end, source.name, key, False, arguments))
        else:
            await client.call("exchange.bind", (end, source.name, key, False, arguments))
    made = Bound(vhost.name, source.name, to_queue, end, key, arguments, canonical(arguments))
    return Reply(201, headers={"Location": location(made)})


def location(one: Bound) -> str:
    """The path of a binding, from its kind on, as RabbitMQ gives it."""
    kind = "q" if one.to_queue else "e"
    parts = (one.vhost, "e", one.source or DEFAULT_NAME, kind, one.destination, properties_key(one))
    return "/api/bindings/" + "/".join(quote(part, safe="") for part in parts)


async def unbind(call: Call) -> Reply:
    one = _one(call)
    if one.source == "":
        raise bad_request("operation not permitted on the default exchange")
    arguments: Table = dict(one.arguments)  # type: ignore[arg-type]
    async with call.amqp(one.vhost) as client:
        if one.to_queue:
            await client.call("queue.unbind", (one.destination, one.source, one.key, arguments))
        else:
            await client.call(
                "exchange.unbind", (one.destination, one.source, one.key, False, arguments)
            )
    return Reply(204)


ROUTES = (
    Route("bindings", {"GET": list_bindings}),
    Route("bindings/{vhost}", {"GET": list_bindings}),
    Route("bindings/{vhost}/e/{source}/q/{queue}", {"GET": list_between, "POST": bind}),
    Route("bindings/{vhost}/e/{source}/q/{queue}/{props}", {"GET": show_binding, "DELETE": unbind}),
    Route("bindings/{vhost}/e/{source}/e/{destination}", {"GET": list_between, "POST": bind}),
    Route(
        "bindings/{vhost}/e/{source}/e/{destination}/{props}",
        {"GET": show_binding, "DELETE": unbind},
    ),
    Route("queues/{vhost}/{queue}/bindings", {"GET": of_queue}),
    Route("exchanges/{vhost}/{exchange}/bindings/source", {"GET": of_source}),
    Route("exchanges/{vhost}/{exchange}/bindings/destination", {"GET": of_destination}),
)
