"""Export and import of all definitions (everything but messages) as one JSON document.

An import merges: existing queues, exchanges and bindings stay as they are, operator definitions are
updated. An error ends it, and earlier changes stay. A user who may import users and permissions
needs no permission for the declarations.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple, cast

from aiohttp.web import StreamResponse

from broker.access.access import SYSTEM, how_to_let_in
from broker.amqp.errors import ProtocolFault
from broker.machine.commands import Table, Value
from broker.machine.digest import canonical
from broker.machine.requests.arguments import queue_type
from broker.machine.state import Exchange, Vhost
from broker.management.access import Identity
from broker.management.amqp_client import AmqpRefused, InternalClient
from broker.management.call import (
    Broker,
    Call,
    Problem,
    Reply,
    Route,
    bad_request,
    flag_field,
    short,
    table_field,
    text_field,
)
from broker.management.json_values import BadJson, Json, Object, table, text_of, to_amqp
from broker.management.listing import stream
from broker.management.resources.bindings import binding_row, bound
from broker.management.resources.definitions import (
    Defined,
    define,
    parameter_row,
    permission_row,
    policy_row,
    topic_rows,
    user_row,
    vhost_values,
)
from broker.management.resources.overview import API_RELEASE
from broker.management.slices import Slices
from broker.release import version
from broker.shovels.upstreams import INTERNAL, PURPOSE

log = logging.getLogger("qpidd.management")

OF_LINKS = "federation: "
"""So begin the names of exchanges that federation links make at their upstream, and bind, for
themselves: they stand in no document, their bindings do."""
BATCH = 64
"""Number of declarations in progress at once."""
VALUES_MAX = 1_000_000
"""The most that an administrator can send: the definitions of some ten thousand queues."""
SERVING_POLL_S = 0.2
LOADER = "--load-definitions"
"""The author of its definitions in the logs."""
VHOST_LIMITS, OPERATOR_POLICIES = "vhost-limits", "operator_policy"
"""The components under which limits and operator policies appear among the parameters."""


# -- out -----------------------------------------------------------------------------------------


def _of_vhosts(call: Call) -> Iterator[tuple[str, Iterator[Object]]]:
    vhosts = call.vhosts()
    names = {vhost.name for vhost in vhosts}
    definitions = call.broker.machine.definitions

    def defined(what: str) -> list[Defined]:
        found = definitions[what].items()
        return [Defined(vhost, name, body) for (vhost, name), body in found if vhost in names]

    def parameters() -> Iterator[Object]:
        for one in defined("parameter"):
            yield parameter_row(call, one, secrets=call.user.administers)
        for one in defined("vhost_limit"):
            yield _as_parameter(one.vhost, VHOST_LIMITS, "limits", table(one.body))
        for one in defined("operator_policy"):
            yield _as_parameter(one.vhost, OPERATOR_POLICIES, one.name, table(one.body))

    yield "parameters", parameters()
    yield "policies", (policy_row(call, one) for one in defined("policy"))
    yield "queues", (row for vhost in vhosts for row in _queues(vhost))
    yield "exchanges", (row for vhost in vhosts for row in _exchanges(vhost))
    yield "bindings", (row for vhost in vhosts for row in _bindings(vhost))


def _as_parameter(vhost: str, component: str, name: str, value: Json) -> Object:
    return {"vhost": vhost, "component": component, "name": name, "value": value}


def _of_cluster(call: Call) -> Iterator[tuple[str, Iterator[Object]]]:
    definitions = call.broker.machine.definitions

    def defined(what: str) -> list[Defined]:
        return [Defined(vhost, name, body) for (vhost, name), body in definitions[what].items()]

    yield "users", (user_row(call, one) for one in defined("user"))
    yield "vhosts", ({"name": one.name, **table(one.body)} for one in defined("vhost"))
    yield "permissions", (permission_row(call, one) for one in defined("permission"))
    topics = defined("topic_permission")
    yield "topic_permissions", (row for one in topics for row in topic_rows(one))
    yield (
        "global_parameters",
        ({"name": one.name, **table(one.body)} for one in defined("global_parameter")),
    )


def _queues(vhost: Vhost) -> Iterator[Object]:
    for queue in list(vhost.queues.values()):
        if queue.owner is None and not queue.deleted:
            yield {
                "name": queue.name, "vhost": vhost.name, "durable": queue.durable,
                "auto_delete": queue.auto_delete, "type": queue_type(queue.arguments),
                "arguments": table(queue.arguments),
            }  # fmt: skip


def _exchanges(vhost: Vhost) -> Iterator[Object]:
    for exchange in list(vhost.exchanges.values()):
        if not _is_given(exchange.name):
            yield {
                "name": exchange.name, "vhost": vhost.name, "type": exchange.type,
                "durable": exchange.durable, "auto_delete": exchange.auto_delete,
                "internal": exchange.internal, "arguments": table(exchange.arguments),
            }  # fmt: skip


def _bindings(vhost: Vhost) -> Iterator[Object]:
    for exchange in list(vhost.exchanges.values()):
        for binding in list(exchange.bindings.values()):
            queue = vhost.queues.get(binding.destination) if binding.to_queue else None
            if queue is None or queue.owner is None:
                row = binding_row(bound(vhost, binding))
                del row["properties_key"]
                yield row


def _is_given(exchange: str) -> bool:
    """Whether every virtual host has it."""
    return exchange == "" or exchange.startswith("amq.")


async def _parts(
    head: Object, lists: Iterator[tuple[str, Iterator[Object]]]
) -> AsyncIterator[bytes]:
    yield text_of(head)[:-1]
    for name, rows in lists:
        yield b"," + text_of(name) + b":["
        separator = b""
        for row in rows:
            yield separator + text_of(row)
            separator = b","
        yield b"]"
    yield b"}"


async def export(call: Call) -> StreamResponse:
    """Everything, or the content of one virtual host."""
    head: Object = {
        "rabbit_version": API_RELEASE, "rabbitmq_version": API_RELEASE,
        "product_name": "qpid-cluster-py", "product_version": version(),
    }  # fmt: skip

    def parts() -> Iterator[tuple[str, Iterator[Object]]]:
        if "vhost" not in call.names:
            yield from _of_cluster(call)
        yield from _of_vhosts(call)

    return await stream(call, _parts(head, parts()))


# -- in ------------------------------------------------------------------------------------------


async def take_in(call: Call) -> Reply:
    """Merge a document into the existing definitions."""
    if "vhost" in call.names:
        call.vhost()
    document = await call.large_json(VALUES_MAX)
    await Import(call.broker, call.user, document, call.names.get("vhost")).run()
    return Reply(204)


class _Declaration(NamedTuple):
    method: str
    args: tuple[Value, ...]
    what: str


class Import:
    """One document being imported; `only`: into this virtual host."""

    def __init__(
        self, broker: Broker, by: Identity, document: Object, only: str | None = None
    ) -> None:
        self._broker, self._by, self._document, self._only = broker, by, document, only
        self._slices = Slices()
        self._entry = ""  # that is looked at

    async def run(self) -> None:
        """Import everything, dependencies first. Raises Problem, which names the entry."""
        try:
            await self._all()
        except (Problem, BadJson, ProtocolFault) as found:
            problem = found if isinstance(found, Problem) else bad_request(str(found))
            place = f"{self._entry}: " if self._entry else ""
            raise Problem(problem.status, problem.error, place + problem.reason) from None

    async def _all(self) -> None:
        if self._only is None:
            await self._cluster()
        await self._of_vhosts()
        for kind, declare in (
            ("exchanges", self._exchange), ("queues", self._queue), ("bindings", self._binding)
        ):  # fmt: skip
            wanted: dict[str, list[_Declaration]] = defaultdict(list)
            for row in self._rows(kind):
                vhost = self._vhost(row)
                found = declare(vhost, row)
                if found is not None:
                    wanted[vhost.name].append(found)
                await self._slices.step()
            for name, declarations in wanted.items():
                await self._declare(name, declarations)
        await self._links()
        self._hint()

    def _hint(self) -> None:
        """Say which imported virtual hosts no administrator may enter, and what to do."""
        definitions = self._broker.machine.definitions
        administrators = [
            name
            for (_, name), body in definitions["user"].items()
            if "administrator" in cast("tuple[str, ...]", body.get("tags", ()))
        ]
        for vhost in [text_field(row, "name") for row in self._rows("vhosts")]:
            if not any((vhost, name) in definitions["permission"] for name in administrators):
                user = min(administrators, default="NAME")
                log.warning("definitions were taken in: %s", how_to_let_in(user, vhost))

    def _rows(self, kind: str) -> Iterator[Object]:
        found = self._document.get(kind, [])
        if not isinstance(found, list):
            raise bad_request(f"{kind} is not a list of objects")
        for place, row in enumerate(found):
            self._entry = f"{kind}[{place}]"
            if not isinstance(row, dict):
                raise bad_request("is not an object")
            yield row
        self._entry = ""

    def _name_of_vhost(self, row: Object) -> str:
        """The one in the path, if there is one: a document may be of another."""
        return self._only if self._only is not None else text_field(row, "vhost", "/")

    def _vhost(self, row: Object) -> Vhost:
        name = self._name_of_vhost(row)
        vhost = self._broker.machine.vhosts.get(name)
        if vhost is None:
            raise bad_request(f"there is no vhost '{name}' for '{row.get('name', '')}'")
        return vhost

    # -- what operators define ---------------------------------------------------------------

    async def _define(self, what: str, vhost: str, name: str, body: Table) -> None:
        try:
            await define(self._broker, self._by, what, vhost, name, body)
        except Problem as problem:
            raise Problem(
                problem.status, problem.error, f"{what} '{name}': {problem.reason}"
            ) from None

    async def _cluster(self) -> None:
        for row in self._rows("vhosts"):
            await self._define("vhost", "", text_field(row, "name"), vhost_values(row))
        for row in self._rows("users"):
            name = text_field(row, "name")
            kept = ("password", "password_hash", "hashing_algorithm", "tags")
            body = {key: to_amqp(row[key]) for key in kept if key in row}
            await self._define("user", "", name, {"tags": (), **body})
            limits = row.get("limits")
            if isinstance(limits, dict) and limits:
                await self._define("user_limit", "", name, _amqp_table(limits))
        for row in self._rows("global_parameters"):
            name, value = text_field(row, "name"), to_amqp(row.get("value"))
            if name != "first_administrator":  # who exists here is known here
                await self._define("global_parameter", "", name, {"value": value})
        for kind, what, keys in (
            ("permissions", "permission", ("configure", "write", "read")),
            ("topic_permissions", "topic_permission", ("exchange", "write", "read")),
        ):
            for row in self._rows(kind):
                fields: Table = {key: text_field(row, key) for key in keys}
                vhost = self._name_of_vhost(row)
                await self._define(what, vhost, text_field(row, "user"), fields)

    async def _of_vhosts(self) -> None:
        for row in self._rows("parameters"):
            vhost, name = self._name_of_vhost(row), text_field(row, "name")
            component = text_field(row, "component")
            if component == VHOST_LIMITS:
                limits = _amqp_table(table_field(row, "value"))
                await self._define("vhost_limit", vhost, "limits", limits)
            elif component == OPERATOR_POLICIES:
                value = table_field(row, "value")
                if "definition" in value:
                    value = {**value, "definition": _of_pairs(value["definition"])}
                await self._define("operator_policy", vhost, name, _amqp_table(value))
        for row in self._rows("policies"):
            await self._define("policy", self._name_of_vhost(row), text_field(row, "name"), {
                "pattern": text_field(row, "pattern"),
                "definition": to_amqp(table_field(row, "definition")),
                "priority": to_amqp(row.get("priority", 0)),
                "apply-to": text_field(row, "apply-to", "all"),
            })  # fmt: skip

    async def _links(self) -> None:
        """Shovels and upstreams, last: one that runs makes its queues where they are not there."""
        for row in self._rows("parameters"):
            component = text_field(row, "component")
            if component not in (VHOST_LIMITS, OPERATOR_POLICIES):
                name = f"{component}/{text_field(row, 'name')}"
                value: Table = {"value": to_amqp(row.get("value"))}
                await self._define("parameter", self._name_of_vhost(row), name, value)

    # -- what clients declare ----------------------------------------------------------------

    def _exchange(self, vhost: Vhost, row: Object) -> _Declaration | None:
        name = short(text_field(row, "name"), "the exchange's name")
        if name in vhost.exchanges or _is_given(name):
            return None
        args: tuple[Value, ...] = (
            name, text_field(row, "type", "direct"), False, flag_field(row, "durable", True),
            flag_field(row, "auto_delete"), flag_field(row, "internal"), False,
            to_amqp(table_field(row, "arguments")),
        )  # fmt: skip
        return _Declaration("exchange.declare", args, f"exchange '{name}'")

    def _queue(self, vhost: Vhost, row: Object) -> _Declaration | None:
        name = short(text_field(row, "name"), "the queue's name")
        if name in vhost.queues:
            return None
        arguments = _amqp_table(table_field(row, "arguments"))
        if arguments.get(INTERNAL) == PURPOSE:  # its link makes it again, as it needs it
            return None
        kind = text_field(row, "type", "")
        access = self._broker.clients.gateway.access
        if kind and access.default_queue_type(vhost.name):
            arguments.setdefault("x-queue-type", kind)  # its own, not that of the virtual host
        args: tuple[Value, ...] = (
            name, False, flag_field(row, "durable", True), False, flag_field(row, "auto_delete"),
            False, arguments,
        )  # fmt: skip
        return _Declaration("queue.declare", args, f"queue '{name}'")

    def _binding(self, vhost: Vhost, row: Object) -> _Declaration | None:
        source = short(text_field(row, "source"), "source")
        end = short(text_field(row, "destination"), "destination")
        key = short(text_field(row, "routing_key", ""), "routing_key")
        arguments = _amqp_table(table_field(row, "arguments"))
        to_queue = text_field(row, "destination_type", "queue") in ("queue", "q")
        exchange: Exchange | None = vhost.exchanges.get(source)
        if source == "" or (
            exchange is not None
            and (source, to_queue, end, key, canonical(arguments)) in exchange.bindings
        ):
            return None
        if source.startswith(OF_LINKS) or (end.startswith(OF_LINKS) and not to_queue):
            return None
        method = "queue.bind" if to_queue else "exchange.bind"
        return _Declaration(
            method, (end, source, key, False, arguments), f"binding of '{source}' to '{end}'"
        )

    async def _declare(self, vhost: str, declarations: list[_Declaration]) -> None:
        """Declare several at once: each waits for a turn of the ring and for the disks."""
        purpose = f"management API, definitions loaded by {self._by.name}"
        async with InternalClient(
            self._broker.clients, self._by.address, SYSTEM, vhost, purpose
        ) as client:
            for at in range(0, len(declarations), BATCH):
                batch = declarations[at : at + BATCH]
                what = ""
                try:
                    for one in batch:
                        what = one.what
                        client.tell(one.method, one.args)
                    for one in batch:
                        what = one.what
                        await client.answer()
                except AmqpRefused as refused:
                    text = f"{what} of vhost '{vhost}': {refused.explanation}"
                    raise bad_request(text) from None
                await asyncio.sleep(0)


async def load(broker: Broker, document: Object) -> None:
    """At the start: wait until this member serves, then merge the document."""
    while not broker.controller.serving:  # noqa: ASYNC110 (nothing tells that it does)
        await asyncio.sleep(SERVING_POLL_S)
    by = Identity(LOADER, frozenset({"administrator"}), "127.0.0.1:0")
    await Import(broker, by, document).run()


def _of_pairs(value: Json) -> Json:
    """An object that RabbitMQ's `rabbitmqctl export_definitions` wrote as a list of pairs."""
    if not isinstance(value, list):
        return value
    found: Object = {}
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            return value
        found[pair[0]] = pair[1]
    return found


def _amqp_table(value: Object) -> Table:
    found = to_amqp(value)
    assert isinstance(found, dict)
    return found


ROUTES = (
    Route("definitions", {"GET": export, "POST": take_in}, "administrator"),
    Route("definitions/{vhost}", {"GET": export, "POST": take_in}, "administrator"),
    Route("all-configuration", {"GET": export, "POST": take_in}, "administrator"),
)
