"""Export and import of all definitions (everything but messages) as one JSON document.

An import merges: existing queues, exchanges and bindings stay as they are, operator definitions are
updated. An entry that is refused prevents no other: the refusals are told together at the end. A
user who may import users and permissions needs no permission for the declarations.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple, cast

from aiohttp.web import StreamResponse

from broker.access.access import SYSTEM, how_to_let_in
from broker.amqp.errors import CONNECTION_FORCED, ProtocolFault
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
TOLD_MAX = 1000
"""The most refused entries that are named."""
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
    call.vhosts()  # refused before anything is sent
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
    entry: str
    method: str
    args: tuple[Value, ...]
    what: str


class EntriesRefused(Problem):
    """Entries of a document that were refused, each with its reason; all others are defined."""

    def __init__(self, refused: list[str]) -> None:
        told = refused[:TOLD_MAX]
        if len(refused) > TOLD_MAX:
            told.append(f"and {len(refused) - TOLD_MAX} more")
        if len(refused) == 1:
            reason = f"{refused[0]}; everything else is defined"
        else:
            head = f"{len(refused)} entries are refused, everything else is defined:"
            reason = "\n".join([head, *told])
        super().__init__(400, "bad_request", reason)
        self.more = {"refused": [*told]}


class Import:
    """One document being imported; `only`: into this virtual host."""

    def __init__(
        self, broker: Broker, by: Identity, document: Object, only: str | None = None
    ) -> None:
        self._broker, self._by, self._document, self._only = broker, by, document, only
        self._slices = Slices()
        self._refused: dict[str, str] = {}  # entries, with the reasons
        self._entry = ""  # that is looked at
        self._wanted: dict[str, list[_Declaration]] = defaultdict(list)

    async def run(self) -> None:
        """Import everything that can be, dependencies first. Raises `EntriesRefused`; any other
        Problem has ended it."""
        if self._only is None:
            await self._cluster()
        await self._of_vhosts()
        for kind, declare in (
            ("exchanges", self._exchange), ("queues", self._queue), ("bindings", self._binding)
        ):  # fmt: skip
            await self._each(kind, declare)
            wanted, self._wanted = self._wanted, defaultdict(list)
            for name, declarations in wanted.items():
                await self._declare(name, declarations)
        await self._each("parameters", self._link)
        self._hint()
        if self._refused:
            raise EntriesRefused([f"{entry}: {why}" for entry, why in self._refused.items()])

    def _hint(self) -> None:
        """Say which imported virtual hosts no administrator may enter, and what to do."""
        definitions = self._broker.machine.definitions
        administrators = [
            name
            for (_, name), body in definitions["user"].items()
            if "administrator" in cast("tuple[str, ...]", body.get("tags", ()))
        ]
        rows = self._document.get("vhosts")
        rows = rows if isinstance(rows, list) else []
        named = [row.get("name") for row in rows if isinstance(row, dict)]
        vhosts = self._broker.machine.vhosts
        for vhost in [name for name in named if isinstance(name, str) and name in vhosts]:
            if not any((vhost, name) in definitions["permission"] for name in administrators):
                user = min(administrators, default="NAME")
                log.warning("definitions were taken in: %s", how_to_let_in(user, vhost))

    async def _each(self, kind: str, take: Callable[[Object], Awaitable[None]]) -> None:
        found = self._document.get(kind, [])
        if not isinstance(found, list):
            self._refuse(kind, bad_request("is not a list of objects"))
            return
        for place, row in enumerate(found):
            self._entry = f"{kind}[{place}]"
            try:
                if not isinstance(row, dict):
                    raise bad_request("is not an object")
                await take(row)
            except (Problem, BadJson, ProtocolFault) as why:
                self._refuse(self._entry, why)
            await self._slices.step()

    def _refuse(self, entry: str, why: Problem | BadJson | ProtocolFault) -> None:
        """Note it. Raises what would refuse all that follows, too."""
        if not isinstance(why, Problem):
            why = bad_request(str(why))
        if why.status >= 500:
            raise Problem(why.status, why.error, f"{entry}: {why.reason}") from None
        reason = "; ".join(part for line in why.reason.split("\n") if (part := line.strip()))
        self._refused.setdefault(entry, reason)  # parameters are looked at twice

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
        await self._each("vhosts", self._vhost_itself)
        await self._each("users", self._user)
        await self._each("global_parameters", self._global_parameter)
        await self._each("permissions", self._permission)
        await self._each("topic_permissions", self._topic_permission)

    async def _vhost_itself(self, row: Object) -> None:
        await self._define("vhost", "", text_field(row, "name"), vhost_values(row))

    async def _user(self, row: Object) -> None:
        name = text_field(row, "name")
        kept = ("password", "password_hash", "hashing_algorithm", "tags")
        body = {key: to_amqp(row[key]) for key in kept if key in row}
        await self._define("user", "", name, {"tags": (), **body})
        limits = row.get("limits")
        if isinstance(limits, dict) and limits:
            await self._define("user_limit", "", name, _amqp_table(limits))

    async def _global_parameter(self, row: Object) -> None:
        name, value = text_field(row, "name"), to_amqp(row.get("value"))
        if name != "first_administrator":  # who exists here is known here
            await self._define("global_parameter", "", name, {"value": value})

    async def _permission(
        self, row: Object, what: str = "permission", on: str = "configure"
    ) -> None:
        fields: Table = {key: text_field(row, key) for key in (on, "write", "read")}
        await self._define(what, self._name_of_vhost(row), text_field(row, "user"), fields)

    async def _topic_permission(self, row: Object) -> None:
        await self._permission(row, "topic_permission", "exchange")

    async def _of_vhosts(self) -> None:
        await self._each("parameters", self._limit_or_operator_policy)
        await self._each("policies", self._policy)

    async def _limit_or_operator_policy(self, row: Object) -> None:
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

    async def _policy(self, row: Object) -> None:
        await self._define("policy", self._name_of_vhost(row), text_field(row, "name"), {
            "pattern": text_field(row, "pattern"),
            "definition": to_amqp(table_field(row, "definition")),
            "priority": to_amqp(row.get("priority", 0)),
            "apply-to": text_field(row, "apply-to", "all"),
        })  # fmt: skip

    async def _link(self, row: Object) -> None:
        """Shovels and upstreams, last: one that runs makes its queues where they are not there."""
        component = text_field(row, "component")
        if component not in (VHOST_LIMITS, OPERATOR_POLICIES):
            name = f"{component}/{text_field(row, 'name')}"
            value: Table = {"value": to_amqp(row.get("value"))}
            await self._define("parameter", self._name_of_vhost(row), name, value)

    # -- what clients declare ----------------------------------------------------------------

    def _want(self, vhost: Vhost, method: str, args: tuple[Value, ...], what: str) -> None:
        self._wanted[vhost.name].append(_Declaration(self._entry, method, args, what))

    async def _exchange(self, row: Object) -> None:
        vhost = self._vhost(row)
        name = short(text_field(row, "name"), "the exchange's name")
        if name in vhost.exchanges or _is_given(name):
            return
        args: tuple[Value, ...] = (
            name, text_field(row, "type", "direct"), False, flag_field(row, "durable", True),
            flag_field(row, "auto_delete"), flag_field(row, "internal"), False,
            to_amqp(table_field(row, "arguments")),
        )  # fmt: skip
        self._want(vhost, "exchange.declare", args, f"exchange '{name}'")

    async def _queue(self, row: Object) -> None:
        vhost = self._vhost(row)
        name = short(text_field(row, "name"), "the queue's name")
        if name in vhost.queues:
            return
        arguments = _amqp_table(table_field(row, "arguments"))
        if arguments.get(INTERNAL) == PURPOSE:  # its link makes it again, as it needs it
            return
        kind = text_field(row, "type", "")
        access = self._broker.clients.gateway.access
        if kind and access.default_queue_type(vhost.name):
            arguments.setdefault("x-queue-type", kind)  # its own, not that of the virtual host
        args: tuple[Value, ...] = (
            name, False, flag_field(row, "durable", True), False, flag_field(row, "auto_delete"),
            False, arguments,
        )  # fmt: skip
        self._want(vhost, "queue.declare", args, f"queue '{name}'")

    async def _binding(self, row: Object) -> None:
        vhost = self._vhost(row)
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
            return
        if source.startswith(OF_LINKS) or (end.startswith(OF_LINKS) and not to_queue):
            return
        method = "queue.bind" if to_queue else "exchange.bind"
        what = f"binding of '{source}' to '{end}'"
        self._want(vhost, method, (end, source, key, False, arguments), what)

    async def _declare(self, vhost: str, declarations: list[_Declaration]) -> None:
        """Declare several at once: each waits for a turn of the ring and for the disks. A refusal
        closes the channel, so those behind it are declared again, by ever more at once; or the
        connection, before it is known whether it is about the first of them: then each is declared
        by itself."""
        purpose = f"management API, definitions loaded by {self._by.name}"
        at, size = 0, BATCH
        while at < len(declarations):
            async with InternalClient(
                self._broker.clients, self._by.address, SYSTEM, vhost, purpose
            ) as client:
                while at < len(declarations):
                    batch = declarations[at : at + size]
                    done, why = await _answers(client, batch)
                    at += done
                    if why is None:
                        size = min(2 * size, BATCH)
                        await asyncio.sleep(0)
                        continue
                    self._broker.demand_serving()  # else all that follows is refused, too
                    if size == 1 or not client.closed:
                        one = batch[done]
                        text = f"{one.what} of vhost '{vhost}': {why.explanation}"
                        self._refuse(one.entry, bad_request(text))
                        at += 1
                    size = 1
                    if client.closed:
                        break
                    await client.reopen()


async def _answers(
    client: InternalClient, batch: list[_Declaration]
) -> tuple[int, AmqpRefused | None]:
    """Declare these; return how many were, and why not the next."""
    told, why = 0, None
    for one in batch:
        try:
            client.tell(one.method, one.args)
        except AmqpRefused as refused:  # it cannot be written as AMQP
            why = refused
            break
        told += 1
    for done in range(told):
        try:
            await client.answer()
        except AmqpRefused as refused:
            return done, refused
    return told, why


async def load(broker: Broker, document: Object) -> None:
    """At the start: wait until this member serves, then merge the document; if a view change ends
    that half-way, as members that come later cause, merge it again."""
    by = Identity(LOADER, frozenset({"administrator"}), "127.0.0.1:0")
    while True:
        if broker.controller.serving:
            try:
                return await Import(broker, by, document).run()
            except (Problem, AmqpRefused) as refused:
                code = refused.status if isinstance(refused, Problem) else refused.code
                if code not in (503, CONNECTION_FORCED):
                    raise
        await asyncio.sleep(SERVING_POLL_S)


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
