"""Operator definitions over HTTP: virtual hosts, users, permissions, policies, limits.

Each change is one ordered command (`broker/admin/definitions.py`); lists show the replicated state.
The kinds differ in how they are named and shown, so a table describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from aiohttp.web import StreamResponse

from broker.access.access import DEFAULT_QUEUE_TYPE
from broker.machine.commands import Table, Value
from broker.machine.requests.arguments import CLASSIC
from broker.machine.state import Channel
from broker.management.access import Identity
from broker.management.call import (
    Broker,
    Call,
    Handler,
    Problem,
    Reply,
    Route,
    at_any_member,
    bad_request,
    enters,
    key_missing,
    not_found,
    number_field,
    table_field,
    text_field,
)
from broker.management.json_values import Object, figures, from_amqp, table, to_amqp
from broker.management.listing import Listing, chosen
from broker.management.slices import Slices
from broker.shovels.definition import COMPONENT as SHOVEL
from broker.shovels.definition import local_ends, without_passwords
from broker.shovels.replicas import COMPONENT as REPLICA
from broker.shovels.upstreams import UPSTREAM
from broker.statistics.samples import NO_SPANS

ADMINISTRATOR, POLICYMAKER, USER = "administrator", "policymaker", "management"
WORDS = {404: "Object Not Found", 409: "conflict", 503: "service_unavailable"}
LIMITS = "limits"
WITH_URIS = (SHOVEL, UPSTREAM, REPLICA)
"""Components whose parameters name brokers, with passwords."""
VHOST_LIMITS = ("max-connections", "max-queues")
USER_LIMITS = ("max-connections", "max-channels")
OF_OTHER_PATHS = {
    "vhost-limits": "vhost-limits", "operator_policy": "operator-policies", "policy": "policies",
}  # fmt: skip
"""Components that RabbitMQ stores among the parameters, as documents of definitions do."""


async def define(
    broker: Broker,
    by: Identity,
    what: str,
    vhost: str,
    name: str,
    body: Mapping[str, Value] | None,
) -> Reply:
    """Order a definition, or its deletion, and return the result. Everything that arrives over
    HTTP, documents too, passes through here."""
    if what == "parameter" and body is not None and name.partition("/")[0] in WITH_URIS:
        _demand_ends(broker, by, vhost, body.get("value"))
    outcome = await broker.operations.definitions.define(what, vhost, name, body, by.name)
    if not outcome.good:
        word = WORDS.get(outcome.code, "bad_request")
        raise Problem(outcome.code, word, outcome.text)
    return Reply(outcome.code)


def _demand_ends(broker: Broker, by: Identity, vhost: str, value: Value) -> None:
    """Ends of shovels and upstreams at this cluster need no password, and without a user they may
    do everything. So a user who defines one must be able to enter their virtual hosts, and may name
    only itself as their user."""
    if by.administers:
        return
    for uri in local_ends(value):
        where = vhost if uri.vhost is None else uri.vhost
        if not enters(broker, by, where):
            reason = f"User '{by.name}' has no access to vhost '{where}'"
            raise Problem(401, "not_authorised", f"{reason}, which a URI names")
        if uri.user not in ("", by.name):
            reason = f"User '{by.name}' is no administrator, so a URI at this cluster"
            raise Problem(401, "not_authorised", f"{reason} may name no other user")


class Defined(NamedTuple):
    """One definition in a list."""

    vhost: str
    name: str
    body: Table


class Kind(NamedTuple):
    """A kind of definitions over HTTP."""

    what: str
    row: Callable[[Call, Defined], Object]
    body: Callable[[Call, Object], Table] = lambda _, __: {}
    name: Callable[[Call], str] = lambda call: call.names["name"]
    in_vhost: bool = True


def found(call: Call, kind: Kind) -> Iterator[Defined]:
    """The definitions of this kind that the path names and this user may see."""
    vhost, name = call.names.get("vhost"), call.names.get("user")
    for (where, named), body in list(call.broker.machine.definitions[kind.what].items()):
        if vhost is not None and where != vhost:
            continue
        if name is not None and named != name:
            continue
        vhost_of = named if kind is VHOST else where
        if not vhost_of or call.sees(vhost_of):
            yield Defined(where, named, body)


def lister(kind: Kind) -> Handler:
    async def answer(call: Call) -> Reply | StreamResponse:
        demand_named(call)
        return await Listing(
            found(call, kind),
            lambda one: kind.row(call, one),
            lambda one: (one.vhost, one.name),
            lambda one: one.name,
        ).reply(call)

    return answer


def demand_named(call: Call) -> None:
    """Demand that the virtual host and the user in the path exist."""
    if "vhost" in call.names:
        call.vhost()
    if "user" in call.names and ("", call.names["user"]) not in users(call):
        raise not_found()


def users(call: Call) -> Mapping[tuple[str, str], Table]:
    return call.broker.machine.definitions["user"]


def _where(call: Call, kind: Kind) -> tuple[str, str]:
    return (call.names["vhost"] if kind.in_vhost else ""), kind.name(call)


def shower(kind: Kind) -> Handler:
    async def answer(call: Call) -> Reply:
        key = _where(call, kind)
        if kind.in_vhost:
            call.vhost()
        body = call.broker.machine.definitions[kind.what].get(key)
        if body is None:
            raise not_found()
        return chosen(call, kind.row(call, Defined(*key, body)))

    return answer


def putter(kind: Kind) -> Handler:
    async def answer(call: Call) -> Reply:
        if kind.in_vhost:
            call.vhost()
        body = kind.body(call, call.json())
        reply = await define(call.broker, call.user, kind.what, *_where(call, kind), body)
        if kind is VHOST and reply.status == 201:
            await _open_to_its_maker(call)
        return reply

    return answer


async def _open_to_its_maker(call: Call) -> None:
    """A user who creates a virtual host over HTTP may use it, as in RabbitMQ."""
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    if ("", call.user.name) in users(call):
        await define(
            call.broker, call.user, PERMISSION.what, call.names["vhost"], call.user.name, everything
        )


def deleter(kind: Kind) -> Handler:
    async def answer(call: Call) -> Reply:
        if kind.in_vhost:
            call.vhost()
        key = _where(call, kind)
        if key not in call.broker.machine.definitions[kind.what]:
            raise not_found()
        return await define(call.broker, call.user, kind.what, *key, None)

    return answer


def crud(kind: Kind) -> dict[str, Handler]:
    return {"GET": shower(kind), "PUT": putter(kind), "DELETE": deleter(kind)}


# -- virtual hosts -------------------------------------------------------------------------------


def _vhost_row(call: Call, one: Defined) -> Object:
    nodes: Object = dict.fromkeys(call.broker.controller.primary.caught_up_names, "running")
    shown = table(one.body)
    spans = call.spans() if "vhost" in call.names else NO_SPANS  # not in lists
    return {
        "name": one.name,
        "description": shown.get("description", ""),
        "tags": shown.get("tags", []),
        "metadata": {**shown},
        DEFAULT_QUEUE_TYPE: shown.get(DEFAULT_QUEUE_TYPE, CLASSIC),
        "cluster_state": nodes,
        "tracing": False,
        **figures(call.broker.statistics.vhost(one.name, spans)),
    }


def _vhost_body(call: Call, body: Object) -> Table:
    before = call.broker.machine.definitions["vhost"].get(("", call.names["vhost"]), {})
    return {**before, **vhost_values(body)}


def vhost_values(body: Object) -> Table:
    """The values of a virtual host in a body or document, which RabbitMQ repeats as `metadata`."""
    again = body.get("metadata")
    said = {**again, **body} if isinstance(again, dict) else body
    return _values(said, "description", "tags", DEFAULT_QUEUE_TYPE)


def _values(body: Object, *names: str) -> Table:
    return {name: to_amqp(body[name]) for name in names if name in body}


VHOST = Kind("vhost", _vhost_row, _vhost_body, lambda call: call.names["vhost"], False)


async def show_vhost(call: Call) -> Reply:
    call.demand_vhost(call.names["vhost"])
    return await _answered(shower(VHOST), call)


async def _answered(handler: Handler, call: Call) -> Reply:
    reply = await handler(call)
    assert isinstance(reply, Reply)
    return reply


async def start_vhost(call: Call) -> Reply:
    """A virtual host runs wherever a member serves."""
    call.vhost()
    return Reply(204)


# -- users ---------------------------------------------------------------------------------------


def user_row(call: Call, one: Defined) -> Object:
    limits = call.broker.machine.definitions["user_limit"].get(("", one.name), {})
    return {"name": one.name, **table(one.body), "limits": table(limits)}


def _user_body(_call: Call, body: Object) -> Table:
    if "tags" not in body:
        raise key_missing("tags")
    return _values(body, "password", "password_hash", "hashing_algorithm", "tags")


async def users_without_permissions(call: Call) -> Reply:
    permitted = {user for _, user in call.broker.machine.definitions["permission"]}
    return Reply(
        body=[
            user_row(call, Defined("", name, body))
            for (_, name), body in users(call).items()
            if name not in permitted
        ]
    )


async def delete_users(call: Call) -> Reply:
    names = (await call.large_json()).get("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users is not a list of names")
    slices = Slices()
    for name in names:
        assert isinstance(name, str)
        await slices.step()
        if ("", name) in users(call):
            await define(call.broker, call.user, "user", "", name, None)
    return Reply(204)


async def show_user(call: Call) -> Reply:
    """One user, with its clients' statistics."""
    name = call.names["user"]
    body = users(call).get(("", name))
    if body is None:
        raise not_found()
    channels: list[Channel] = []
    slices = Slices()
    for one in list(call.broker.machine.connections.values()):
        if one.user == name:
            channels += one.channels.values()
        await slices.step()
    does = figures(call.broker.statistics.user(name, channels))
    return chosen(call, {**user_row(call, Defined("", name, body)), **does})


USERS = Kind("user", user_row, _user_body, lambda call: call.names["user"], False)


# -- permissions ---------------------------------------------------------------------------------


def permission_row(_call: Call, one: Defined) -> Object:
    return {"user": one.name, "vhost": one.vhost, **table(one.body)}


def _texts(*names: str) -> Callable[[Call, Object], Table]:
    return lambda _, body: {name: text_field(body, name) for name in names}


def topic_rows(one: Defined) -> list[Object]:
    rows: list[Object] = []
    for exchange, permission in one.body.items():
        assert isinstance(permission, dict)
        rows.append(
            {"user": one.name, "vhost": one.vhost, "exchange": exchange, **table(permission)}
        )
    return rows


PERMISSION = Kind(
    "permission", permission_row, _texts("configure", "write", "read"),
    lambda call: call.names["user"],
)  # fmt: skip
TOPIC = Kind(
    "topic_permission", lambda _, __: {}, _texts("exchange", "write", "read"),
    lambda call: call.names["user"],
)  # fmt: skip


async def list_topics(call: Call) -> Reply:
    """For each user one permission per exchange."""
    demand_named(call)
    exchange = call.names.get("exchange")
    rows = [
        row for one in found(call, TOPIC) for row in topic_rows(one)
        if exchange in (None, row["exchange"])
    ]  # fmt: skip
    if "vhost" in call.names and "user" in call.names and not rows:
        raise not_found()
    return Reply(body=rows)


async def delete_topic(call: Call) -> Reply:
    """Delete the permission for one exchange."""
    await list_topics(call)
    key = call.names["vhost"], call.names["user"]
    return await define(
        call.broker, call.user, TOPIC.what, *key, {"exchange": call.names["exchange"]}
    )


# -- policies and parameters ---------------------------------------------------------------------


def policy_row(_call: Call, one: Defined) -> Object:
    return {"vhost": one.vhost, "name": one.name, **table(one.body)}


def _policy_body(_call: Call, body: Object) -> Table:
    if "definition" not in body:
        raise key_missing("definition")
    return {
        "pattern": text_field(body, "pattern"),
        "definition": to_amqp(table_field(body, "definition")),
        "priority": number_field(body, "priority", 0),
        "apply-to": text_field(body, "apply-to", "all"),
    }


POLICY = Kind("policy", policy_row, _policy_body)
OPERATOR_POLICY = Kind("operator_policy", policy_row, _policy_body)


def parameter_row(_call: Call, one: Defined, *, secrets: bool = False) -> Object:
    """`secrets`: including the passwords in URIs, so that it can be defined again."""
    component, _, name = one.name.partition("/")
    plain = secrets or component not in WITH_URIS
    value = from_amqp(one.body["value"] if plain else without_passwords(one.body["value"]))
    return {"vhost": one.vhost, "component": component, "name": name, "value": value}


def _value_body(_call: Call, body: Object) -> Table:
    if "value" not in body:
        raise key_missing("value")
    return {"value": to_amqp(body["value"])}


def _parameter_name(call: Call) -> str:
    component = call.names["component"]
    if "/" in component:
        raise bad_request("the name of a component has no slash")
    if path := OF_OTHER_PATHS.get(component):
        # If exported, these would be imported as definitions for which only administrators have the
        # right.
        raise bad_request(f"{component} is no component of parameters: use /api/{path}")
    return f"{call.names['component']}/{call.names['name']}"


PARAMETER = Kind(
    "parameter",
    # Tools read what they have written, to see whether it is still so, or to change a part of it.
    lambda call, one: parameter_row(call, one, secrets=call.user.administers),
    _value_body,
    _parameter_name,
)
GLOBAL = Kind(
    "global_parameter",
    lambda _, one: {"name": one.name, "value": from_amqp(one.body["value"])},
    _value_body,
    in_vhost=False,
)


async def list_parameters(call: Call) -> Reply | StreamResponse:
    demand_named(call)
    component = call.names.get("component")
    return await Listing(
        (one for one in found(call, PARAMETER)
         if component is None or one.name.partition("/")[0] == component),
        lambda one: parameter_row(call, one),
        lambda one: (one.name.partition("/"), one.vhost),
        lambda one: one.name.partition("/")[2],
    ).reply(call)  # fmt: skip


# -- limits --------------------------------------------------------------------------------------


async def list_vhost_limits(call: Call) -> Reply:
    demand_named(call)
    limits = found(call, Kind("vhost_limit", policy_row))
    return Reply(body=[{"vhost": one.vhost, "value": table(one.body)} for one in limits])


async def list_user_limits(call: Call) -> Reply:
    demand_named(call)
    limits = found(call, Kind("user_limit", policy_row, in_vhost=False))
    return Reply(body=[{"user": one.name, "value": table(one.body)} for one in limits])


def limiter(what: str, known: tuple[str, ...]) -> Handler:
    """Set or drop one limit; the others of the same virtual host or user stay."""

    async def answer(call: Call) -> Reply:
        demand_named(call)
        key = (call.names["vhost"], LIMITS) if "vhost" in call.names else ("", call.names["user"])
        limits: dict[str, Value] = dict(call.broker.machine.definitions[what].get(key, {}))
        name = call.names["name"]
        if name not in known:
            raise bad_request(f"there is no limit '{name}', but {' and '.join(known)}")
        if call.request.method == "DELETE":
            if limits.pop(name, None) is None:
                return Reply(204)  # as in RabbitMQ: there is no such limit, as requested
        else:
            limits[name] = number_field(call.json(), "value")
        await define(call.broker, call.user, what, *key, limits or None)
        return Reply(204)

    return answer


_VHOST_LIMIT, _USER_LIMIT = limiter("vhost_limit", VHOST_LIMITS), limiter("user_limit", USER_LIMITS)

ROUTES = (
    Route("vhosts", {"GET": lister(VHOST)}),
    Route("vhosts/{vhost}", {"GET": show_vhost}),
    Route("vhosts/{vhost}", {"PUT": putter(VHOST), "DELETE": deleter(VHOST)}, ADMINISTRATOR),
    *at_any_member(Route("vhosts/{vhost}/start/{node}", {"POST": start_vhost}, ADMINISTRATOR)),
    Route("vhosts/{vhost}/permissions", {"GET": lister(PERMISSION)}, ADMINISTRATOR),
    Route("vhosts/{vhost}/topic-permissions", {"GET": list_topics}, ADMINISTRATOR),
    Route("users", {"GET": lister(USERS)}, ADMINISTRATOR),
    Route("users/without-permissions", {"GET": users_without_permissions}, ADMINISTRATOR),
    Route("users/bulk-delete", {"POST": delete_users}, ADMINISTRATOR),
    Route("users/{user}", {**crud(USERS), "GET": show_user}, ADMINISTRATOR),
    Route("users/{user}/permissions", {"GET": lister(PERMISSION)}, ADMINISTRATOR),
    Route("users/{user}/topic-permissions", {"GET": list_topics}, ADMINISTRATOR),
    Route("permissions", {"GET": lister(PERMISSION)}, ADMINISTRATOR),
    Route("permissions/{vhost}/{user}", crud(PERMISSION), ADMINISTRATOR),
    Route("topic-permissions", {"GET": list_topics}, ADMINISTRATOR),
    Route(
        "topic-permissions/{vhost}/{user}",
        {"GET": list_topics, "PUT": putter(TOPIC), "DELETE": deleter(TOPIC)},
        ADMINISTRATOR,
    ),
    Route(
        "topic-permissions/{vhost}/{user}/{exchange}",
        {"GET": list_topics, "PUT": putter(TOPIC), "DELETE": delete_topic},
        ADMINISTRATOR,
    ),
    Route("policies", {"GET": lister(POLICY)}, USER),
    Route("policies/{vhost}", {"GET": lister(POLICY)}, USER),
    Route("policies/{vhost}/{name}", crud(POLICY), POLICYMAKER),
    Route("operator-policies", {"GET": lister(OPERATOR_POLICY)}, USER),
    Route("operator-policies/{vhost}", {"GET": lister(OPERATOR_POLICY)}, USER),
    Route("operator-policies/{vhost}/{name}", crud(OPERATOR_POLICY), ADMINISTRATOR),
    Route("parameters", {"GET": list_parameters}, POLICYMAKER),
    Route("parameters/{component}", {"GET": list_parameters}, POLICYMAKER),
    Route("parameters/{component}/{vhost}", {"GET": list_parameters}, POLICYMAKER),
    Route("parameters/{component}/{vhost}/{name}", crud(PARAMETER), POLICYMAKER),
    Route("global-parameters", {"GET": lister(GLOBAL)}, POLICYMAKER),
    Route("global-parameters/{name}", crud(GLOBAL), ADMINISTRATOR),
    Route("vhost-limits", {"GET": list_vhost_limits}, USER),
    Route("vhost-limits/{vhost}", {"GET": list_vhost_limits}, USER),
    Route(
        "vhost-limits/{vhost}/{name}", {"PUT": _VHOST_LIMIT, "DELETE": _VHOST_LIMIT}, ADMINISTRATOR
    ),
    Route("user-limits", {"GET": list_user_limits}, ADMINISTRATOR),
    Route("user-limits/{user}", {"GET": list_user_limits}, ADMINISTRATOR),
    Route("user-limits/{user}/{name}", {"PUT": _USER_LIMIT, "DELETE": _USER_LIMIT}, ADMINISTRATOR),
)
