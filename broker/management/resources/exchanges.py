"""Exchanges over HTTP: listed from the replicated state, changed through AMQP."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp.web import StreamResponse

from broker.amqp.fields import Value
from broker.machine.policies.choice import policies_of_exchange
from broker.machine.state import Exchange, Vhost, ready_count
from broker.management.call import (
    Call,
    Reply,
    Route,
    flag_field,
    not_found,
    short,
    table_field,
    text_field,
)
from broker.management.json_values import Object, figures, table, to_amqp
from broker.management.listing import Listing, chosen
from broker.statistics.samples import NO_SPANS, Spans

DEFAULT_NAME = "amq.default"
"""The default exchange in a path, because its own name is empty."""


def exchange_row(call: Call, vhost: Vhost, exchange: Exchange, spans: Spans = NO_SPANS) -> Object:
    policy, _ = policies_of_exchange(vhost, exchange)
    delayed = vhost.delays.get(exchange.name)
    return {
        "arguments": table(exchange.arguments),
        "auto_delete": exchange.auto_delete,
        "durable": exchange.durable,
        "internal": exchange.internal,
        "name": exchange.name,
        "policy": policy.name if policy is not None else None,
        "type": exchange.type,
        "vhost": vhost.name,
        **({"messages_delayed": ready_count(delayed)} if delayed is not None else {}),
        **figures(call.broker.statistics.exchange(exchange, spans)),
    }


def _exchanges(call: Call) -> Iterator[tuple[Vhost, Exchange]]:
    for vhost in call.vhosts():
        for exchange in list(vhost.exchanges.values()):
            yield vhost, exchange


async def list_exchanges(call: Call) -> Reply | StreamResponse:
    return await Listing(
        _exchanges(call),
        lambda one: exchange_row(call, *one),
        lambda one: (one[0].name, one[1].name),
        lambda one: one[1].name,
    ).reply(call)


def exchange_of(call: Call, part: str = "exchange") -> tuple[Vhost, Exchange]:
    """The exchange in the path."""
    vhost, name = call.vhost(), call.names[part]
    exchange = vhost.exchanges.get("" if name == DEFAULT_NAME else name)
    if exchange is None:
        raise not_found()
    return vhost, exchange


async def show_exchange(call: Call) -> Reply:
    row = exchange_row(call, *exchange_of(call), call.spans())
    return chosen(call, row | {"incoming": [], "outgoing": []})  # rates of the mode "detailed"


async def put_exchange(call: Call) -> Reply:
    """Declare it; repeating an identical declaration is no error, a different one is."""
    vhost, name = call.vhost(), call.names["exchange"]
    body = call.json()
    args: tuple[Value, ...] = (
        short(name, "the exchange's name"),
        short(text_field(body, "type", "direct"), "its type"), False,
        flag_field(body, "durable", True), flag_field(body, "auto_delete"),
        flag_field(body, "internal"), False, to_amqp(table_field(body, "arguments")),
    )  # fmt: skip
    there = name in vhost.exchanges
    async with call.amqp(vhost.name) as client:
        await client.call("exchange.declare", args)
    return Reply(204 if there else 201)


async def delete_exchange(call: Call) -> Reply:
    vhost, exchange = exchange_of(call)
    async with call.amqp(vhost.name) as client:
        await client.call("exchange.delete", (exchange.name, call.flag("if-unused"), False))
    return Reply(204)


ROUTES = (
    Route("exchanges", {"GET": list_exchanges}),
    Route("exchanges/{vhost}", {"GET": list_exchanges}),
    Route(
        "exchanges/{vhost}/{exchange}",
        {"GET": show_exchange, "PUT": put_exchange, "DELETE": delete_exchange},
    ),
)
