"""Permissions over HTTP: every path and method as every kind of user, all cells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from broker.machine.state import ready_count
from broker.management.routes import ROUTES
from tests.support.management.demands import (
    DEMANDS,
    ENTER,
    EXCHANGE,
    NAMES,
    OTHER_EXCHANGE,
    OTHER_QUEUE,
    OWN,
    QUEUE,
    SEE,
    SUBJECT,
    VHOST,
    Demand,
)  # fmt: skip
from tests.support.management.member import PEER, ApiMember, Http

TAGS = ("", "management", "policymaker", "monitoring", "administrator")
GIVES = {
    "": TAGS, "management": TAGS[1:], "policymaker": ("policymaker", "administrator"),
    "monitoring": ("monitoring", "administrator"), "administrator": ("administrator",),
}  # fmt: skip
"""The tags of those who have the rights of a tag."""
PERMISSIONS: dict[str, dict[str, str] | None] = {
    "none": None,
    "empty": {"configure": "^$", "write": "^$", "read": "^$"},
    "configure": {"configure": ".*", "write": "^$", "read": "^$"},
    "write": {"configure": "^$", "write": ".*", "read": "^$"},
    "read": {"configure": "^$", "write": "^$", "read": ".*"},
    "all": {"configure": ".*", "write": ".*", "read": ".*"},
}
"""In the virtual host of the path."""
ANY = ("none", "empty")
"""Where only matters whether there is a permission."""
STRANGERS = ("", "asker:wrong", "nobody:pw")


class Asker(NamedTuple):
    """The requesting user."""

    tag: str
    permission: str

    @property
    def monitors(self) -> bool:
        return self.tag in GIVES["monitoring"]

    @property
    def may(self) -> frozenset[str]:
        given = PERMISSIONS[self.permission] or {}
        return frozenset(what for what, pattern in given.items() if pattern == ".*")


def member(asker: Asker) -> ApiMember:
    """A member with one of everything, and the requesting user."""
    made = ApiMember()
    for name in (VHOST, "empty"):
        made.define("vhost", "", name, {"description": "", "tags": ()})
    made.define("user", "", SUBJECT, made.hashed("pw"))
    made.define("user", "", "asker", made.hashed("pw", *filter(None, [asker.tag])))
    given = PERMISSIONS[asker.permission]
    if given is not None:
        made.define("permission", VHOST, "asker", dict(given))
    made.define("permission", VHOST, SUBJECT, {"configure": "", "write": "", "read": ""})
    made.define("topic_permission", VHOST, SUBJECT, {
        "exchange": "amq.topic", "write": "", "read": ""
    })  # fmt: skip
    for kind in ("policy", "operator_policy"):
        made.define(kind, VHOST, "kept", {
            "pattern": "^nothing$", "definition": {"max-length": 1}, "priority": 0,
            "apply-to": "all",
        })  # fmt: skip
    made.define("parameter", VHOST, "shown/kept", {"value": 1})
    made.define("parameter", VHOST, "shovel/moving", {"value": {
        "src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b",
    }})  # fmt: skip
    made.define("parameter", VHOST, "federation-upstream/far", {"value": {"uri": "amqp://far"}})
    made.define("policy", VHOST, "linked", {
        "pattern": "^amq.fanout$", "definition": {"federation-upstream": "far"}, "priority": 0,
        "apply-to": "exchanges",
    })  # fmt: skip
    made.define("global_parameter", "", "set", {"value": 1})
    made.define("vhost_limit", VHOST, "limits", {"max-queues": 100})
    made.define("user_limit", "", SUBJECT, {"max-connections": 100})
    client = made.client(SUBJECT, VHOST)
    client.queue(QUEUE)
    client.queue(OTHER_QUEUE)
    client.exchange(EXCHANGE)
    client.exchange(OTHER_EXCHANGE, "fanout")
    client.bind(QUEUE, EXCHANGE, "key")
    client.bind_exchange(OTHER_EXCHANGE, EXCHANGE, "key")
    client.publish(QUEUE, b"x")
    return made


def kept(made: ApiMember) -> tuple[object, ...]:
    """The state that nobody may change without permission."""
    vhost = made.machine.vhosts.get(VHOST)
    return (
        repr(made.machine.definitions), list(made.asked),
        vhost and [(name, ready_count(one)) for name, one in vhost.queues.items()],
        vhost and [(name, len(one.bindings)) for name, one in vhost.exchanges.items()],
    )  # fmt: skip


def expected(one: Demand, who: Asker) -> int:
    """The status that the table promises this user."""
    if who.tag not in GIVES[one.tag]:
        return 401
    enters = who.permission != "none"
    if one.vhost == SEE and not (enters or who.monitors):
        return 401
    if one.vhost == ENTER and not (enters and who.may >= set(one.amqp)):
        return 401
    over_all = "monitoring" if one.method == "GET" else "administrator"
    if one.vhost == OWN and who.tag not in GIVES[over_all]:
        if who.monitors:
            return 401
        return one.good if "username" in one.path else 404  # as if there were none
    return one.good


def changes(one: Demand, who: Asker) -> bool:
    """Whether this request may change something."""
    if one.path.startswith("aliveness-test/"):  # it declares a queue, whatever it may do after that
        return who.permission in ("configure", "all")
    if one.method == "GET" or expected(one, who) != one.good:
        return False
    return one.vhost != OWN or who.tag == "administrator"


def path_of(one: Demand, made: ApiMember) -> str:
    names = {**NAMES, "props": "key", **dict(one.names)}
    if one.path.startswith("connections/{name}"):
        names["name"] = PEER
    names["channel"] = f"{PEER} -> 127.0.0.1:5672 (1)"
    parts = [
        quote(names[part[1:-1]], safe="") if part.startswith("{") else part
        for part in one.path.split("/")
    ]
    return "/api/" + "/".join(parts)


def askers() -> Iterator[Asker]:
    for tag, permission in product(TAGS, PERMISSIONS):
        yield Asker(tag, permission)


async def ask_all(who: Asker) -> list[str]:
    """The differences from the table."""
    wrong: list[str] = []
    async with Http() as http:
        made = member(who)
        await http.serve(made)
        for one in DEMANDS:
            if who.permission not in ANY and not one.amqp:
                continue  # nothing checks this permission
            path, before = path_of(one, made), kept(made)
            found = await http.ask(one.method, path, one.body, "asker:pw")
            wanted = expected(one, who)
            if found.status != wanted:
                wrong.append(f"{who}: {one.method} {path}: {found.status} is not {wanted}: "
                             f"{found.body[:200]!r}")  # fmt: skip
            sees = who.permission != "none" or who.monitors
            if not sees and QUEUE.encode() in found.body:
                wrong.append(f"{who}: {one.method} {path} shows what is not theirs")
            if not changes(one, who) and kept(made) != before:
                wrong.append(f"{who}: {one.method} {path} changed something")
            if kept(made) != before:
                made = member(who)
                await http.serve(made)
    return wrong


def test_every_path_and_method_is_in_the_table() -> None:
    routes = {(method, route.path) for route in ROUTES for method in route.handlers}
    assert {(one.method, one.path) for one in DEMANDS} == routes
    assert len(DEMANDS) == len(routes)


def test_each_kind_of_user_may_do_exactly_what_the_table_says() -> None:
    async def run() -> list[str]:
        return [line for who in askers() for line in await ask_all(who)]

    assert asyncio.run(run()) == []


def test_only_the_orchestrators_checks_need_no_login() -> None:
    async def run() -> None:
        async with Http() as http:
            made = member(Asker("administrator", "all"))
            await http.serve(made)
            before = kept(made)
            for one, login in product(DEMANDS, STRANGERS):
                path = path_of(one, made)
                found = await http.ask(one.method, path, one.body, login)
                wanted = 200 if one.tag == "" and not login else 401
                assert found.status == wanted, (login, one, found)
                asks = found.headers.get("WWW-Authenticate")
                assert (asks is not None) is (wanted == 401 and not login), (login, one)
            assert kept(made) == before

    asyncio.run(run())


def test_metrics_are_for_users_who_monitor() -> None:
    async def run() -> None:
        async with Http() as http:
            for tag, path in product(TAGS, ("/metrics", "/metrics/per-object")):
                who = Asker(tag, "all")
                await http.serve(member(who))
                found = await http.ask("GET", path, login="asker:pw")
                assert found.status == (200 if who.monitors else 401), (tag, path)
                assert (await http.ask("GET", path)).status == 401

    asyncio.run(run())


def test_a_user_sees_and_ends_its_own_connection() -> None:
    async def run() -> None:
        async with Http() as http:
            made = member(Asker("management", "all"))
            await http.serve(made)
            made.client("asker", VHOST, "10.0.0.2:7000", 1001)
            path = f"/api/connections/{quote('10.0.0.2:7000')}"
            assert (await http.ask("GET", path, login="asker:pw")).status == 200
            assert (await http.ask("DELETE", path, login="asker:pw")).status == 204
            assert made.asked == [("disconnect", "10.0.0.2:7000", "a", "")]

    asyncio.run(run())


def test_a_deleted_virtual_host_is_shown_to_nobody_while_it_goes() -> None:
    """Its content stays until its last connection has ended."""

    async def run() -> list[Demand]:
        async with Http() as http:
            made = member(Asker("administrator", "all"))
            await http.serve(made)
            made.define("vhost", "", VHOST, None)
            assert EXCHANGE in made.machine.vhosts[VHOST].exchanges
            for path in ("vhosts", "queues", "exchanges", "bindings", "overview", "definitions"):
                found = await http.ask("GET", f"/api/{path}", login="asker:pw")
                assert (found.status, VHOST.encode() in found.body) == (200, False), path
            shown = []
            for one in DEMANDS:
                defines = one.path == "vhosts/{vhost}" and one.method != "GET"
                if "{vhost}" in one.path and not defines:
                    found = await http.ask(one.method, path_of(one, made), one.body, "asker:pw")
                    shown += [one] * (found.status != 404)
            return shown

    assert asyncio.run(run()) == []


def test_a_member_outside_of_the_primary_view_answers_nothing_from_its_state() -> None:
    async def run() -> None:
        async with Http() as http:
            made = member(Asker("administrator", "all"))
            await http.serve(made)
            core: Any = made.broker.controller
            core.serving, before = False, kept(made)
            of_primary = {one.path for one in ROUTES if one.of_primary}
            for one in DEMANDS:
                found = await http.ask(one.method, path_of(one, made), one.body, "asker:pw")
                assert found.status == 503 or one.path not in of_primary, one
            made.asked.clear()  # an operator may drain or stop it
            assert kept(made) == before

    asyncio.run(run())


@pytest.mark.parametrize("tag", ["management", "monitoring", "administrator"])
def test_connections_are_those_of_the_path_that_the_user_may_see(tag: str) -> None:
    """And an administrator ends no others than it names."""
    mine, elsewhere = "10.0.0.2:7000", "10.0.0.3:7000"

    async def run() -> None:
        async with Http() as http:
            made = member(Asker(tag, "all"))
            await http.serve(made)
            made.client("asker", VHOST, mine, 1001)
            made.client("asker", "empty", elsewhere, 1002)

            async def named(path: str) -> set[str]:
                found = await http.ask("GET", f"/api/{path}", login="asker:pw")
                return {one["name"].partition(" -> ")[0] for one in json.loads(found.body)}

            theirs = {PEER} if tag != "management" else set()
            assert await named("connections") == {mine, elsewhere} | theirs
            assert await named(f"vhosts/{VHOST}/connections") == {mine} | theirs
            assert await named("connections/username/asker") == {mine, elsewhere}
            assert await named(f"connections/username/{SUBJECT}") == theirs
            overview = json.loads((await http.ask("GET", "/api/overview", login="asker:pw")).body)
            assert overview["object_totals"]["connections"] == 2 + len(theirs)
            assert bool(overview["churn_rates"]) is (tag != "management")
            await http.ask("DELETE", "/api/connections/username/asker", login="asker:pw")
            assert [one[1] for one in made.asked] == [mine, elsewhere]
            await http.ask("DELETE", f"/api/connections/username/{SUBJECT}", login="asker:pw")
            ended = [one[1] for one in made.asked]
            assert ended == [mine, elsewhere] + [PEER] * (tag == "administrator")

    asyncio.run(run())
