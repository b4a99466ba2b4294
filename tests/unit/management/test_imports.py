"""Imports of definitions: what is told of refused entries, and what an import may not depend on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from broker.admin.definitions import Outcome
from broker.machine.commands import Value
from broker.management import server
from broker.management.access import Identity
from broker.management.amqp_client import AmqpRefused
from broker.management.call import Broker, Problem
from broker.management.json_values import Json, Object
from broker.management.resources import transfer
from broker.management.resources.transfer import Import
from tests.support.gateway_loop import PERMISSIONS, Loop
from tests.support.management.member import ApiMember, Http

ADMIN = "guest:guest"


def test_the_hint_names_the_command_that_grants_access(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    for name in ("shut", "open"):
        loop.define("vhost", "", name, {"description": "", "tags": ()})
    loop.define("user", "", "ada", Loop.hashed("x", "administrator"))
    loop.define("permission", "open", "ada", dict.fromkeys(PERMISSIONS, ".*"))
    broker = cast("Broker", SimpleNamespace(machine=loop.machine))
    by = Identity("ada", frozenset({"administrator"}), "127.0.0.1:1")
    document: Object = {"vhosts": [{"name": "shut"}, {"name": "open"}]}
    Import(broker, by, document)._hint()
    (record,) = caplog.records
    assert record.getMessage().endswith("qpidctl set_permissions -p shut ada '.*' '.*' '.*'")


def imported(member: ApiMember, document: Object) -> list[str]:
    """The names of the refused entries."""

    async def run() -> list[str]:
        async with Http() as http:
            await http.serve(member)
            found = await http.ask("POST", "/api/definitions", json.dumps(document), ADMIN)
            if found.status == 204:
                return []
            assert found.status == 400, found
            return [one.partition(":")[0] for one in json.loads(found.body)["refused"]]

    return asyncio.run(run())


def test_only_entries_that_are_at_fault_are_named_and_all_others_are_defined() -> None:
    """The refusal of an exchange type closes the connection, ahead of the answers before it."""
    member = ApiMember()
    types = ["direct", "x-unknown", "topic", "fanout", "headers", "fanout", "x-unknown", "direct"]
    exchanges: list[Json] = [{"name": f"e{n}", "type": kind} for n, kind in enumerate(types)]
    large: Json = {"x": "x" * 200_000}
    queues: list[Json] = [
        {"name": f"q{n}", "arguments": large if n == 70 else {}} for n in range(150)
    ]
    found = imported(member, {"exchanges": exchanges, "queues": queues})
    assert found == ["exchanges[1]", "exchanges[6]", "queues[70]"]
    vhost = member.machine.vhosts["/"]
    assert {f"e{n}" for n in range(8)} - set(vhost.exchanges) == {"e1", "e6"}
    assert {f"q{n}" for n in range(150)} - set(vhost.queues) == {"q70"}


def test_what_exists_stays_as_it_is() -> None:
    """An import merges: another form of a queue or an exchange is no reason to refuse it."""
    member = ApiMember()
    document: Object = {
        "queues": [{"name": "q", "arguments": {"x-max-length": 5}}],
        "exchanges": [{"name": "x", "type": "topic"}],
    }
    assert imported(member, document) == []
    other: Object = {"queues": [{"name": "q"}], "exchanges": [{"name": "x", "type": "fanout"}]}
    assert imported(member, other) == []
    vhost = member.machine.vhosts["/"]
    assert vhost.queues["q"].arguments == {"x-max-length": 5}
    assert vhost.exchanges["x"].type == "topic"


def test_the_definitions_of_a_virtual_host_can_be_imported_into_another() -> None:
    """Without the exclusive queues, which are those of its clients, and what is bound to them."""
    member = ApiMember()
    member.define("vhost", "", "copy", {"description": "", "tags": ()})
    client = member.client("guest", "/")
    for name in ("own", "kept"):
        client.queue(name, exclusive=name == "own")
        client.bind(name, "amq.topic", "k")
    rows: Object = {"parameters": [{"vhost": "/", "component": "c", "name": "p", "value": 1}],
                    "policies": [{"vhost": "/", "name": "p", "pattern": "^z", "priority": 0,
                                  "definition": {"max-length": 1}}]}  # fmt: skip
    assert imported(member, rows) == []

    async def run() -> list[Object]:
        async with Http() as http:
            await http.serve(member)
            found = await http.ask("GET", "/api/definitions/%2F", login=ADMIN)
            document = found.body.decode()
            answered = await http.ask("POST", "/api/definitions/copy", document, ADMIN)
            assert answered.status == 204, answered
            again = await http.ask("GET", "/api/definitions/copy", login=ADMIN)
            return [json.loads(document), json.loads(again.body)]

    there, copied = asyncio.run(run())
    for kind in ("queues", "bindings", "parameters", "policies"):
        of_copy = cast("list[Object]", copied[kind])
        assert [{**row, "vhost": "/"} for row in of_copy] == there[kind]
        assert len(of_copy) == 1, kind


def test_refused_entries_share_a_connection() -> None:
    member = ApiMember()
    queues: list[Json] = [
        {"name": f"q{n}", "arguments": {} if n % 10 else {"x-max-length": "x"}} for n in range(100)
    ]
    found = imported(member, {"queues": queues})
    assert found == [f"queues[{n}]" for n in range(0, 100, 10)]
    assert len(member.machine.vhosts["/"].queues) == 90
    assert member.gateway.counters["opened"] == 1


def test_limits_of_clients_do_not_hold_up_operators() -> None:
    """A virtual host full of clients, or closed to them, can be filled, cleared and repaired."""
    member = ApiMember()
    member.define("vhost_limit", "/", "limits", {"max-connections": 0})
    member.define("user_limit", "", "guest", {"max-connections": 0, "max-channels": 0})
    assert imported(member, {"queues": [{"name": "q"}]}) == []

    async def run() -> list[int]:
        async with Http() as http:
            await http.serve(member)
            found = [
                await http.ask("PUT", "/api/queues/%2F/other", "{}", ADMIN),
                await http.ask("DELETE", "/api/queues/%2F/q/contents", login=ADMIN),
                await http.ask("DELETE", "/api/queues/%2F/q", login=ADMIN),
            ]
            return [one.status for one in found]

    assert asyncio.run(run()) == [201, 204, 204]


def test_definitions_of_the_start_are_loaded_again_after_a_view_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members start one after the other: each causes a view change, which ends the load of those
    that serve already."""
    monkeypatch.setattr(transfer, "SERVING_POLL_S", 0.0)
    member = ApiMember()
    controller = cast("SimpleNamespace", member.broker.controller)
    define, defined = member.definitions.define, list[str]()

    async def disturbed(
        what: str, vhost: str, name: str, body: Mapping[str, Value] | None, by: str
    ) -> Outcome:
        defined.append(name)
        if len(defined) == 2:
            controller.serving = False
            asyncio.get_running_loop().call_later(0.01, setattr, controller, "serving", True)
        return await define(what, vhost, name, body, by)

    monkeypatch.setattr(member.definitions, "define", disturbed)
    users: list[Json] = [{"name": name, "tags": "", "password": "x"} for name in "abc"]
    asyncio.run(transfer.load(member.broker, {"users": users, "queues": [{"name": "q"}]}))
    assert {("", name) for name in "abc"} <= member.machine.definitions["user"].keys()
    assert "q" in member.machine.vhosts["/"].queues
    assert defined == list("ababc")


def test_an_import_that_a_view_change_ends_blames_no_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = ApiMember()

    async def lost(*_: object) -> tuple[int, AmqpRefused]:
        cast("SimpleNamespace", member.broker.controller).serving = False
        return 0, AmqpRefused(320, "CONNECTION_FORCED - this member left the primary view")

    monkeypatch.setattr(transfer, "_answers", lost)
    by = Identity("guest", frozenset({"administrator"}), "127.0.0.1:1")
    with pytest.raises(Problem, match="does not serve") as refused:
        asyncio.run(Import(member.broker, by, {"queues": [{"name": "q"}]}).run())
    assert refused.value.status == 503


def test_a_load_ends_with_the_entries_that_are_refused() -> None:
    member = ApiMember()
    with pytest.raises(transfer.EntriesRefused, match="'x'"):
        asyncio.run(transfer.load(member.broker, {"users": [{"name": "x", "tags": 1}]}))


@pytest.mark.parametrize("path", ["definitions", "definitions/%2F", "all-configuration"])
def test_an_import_has_the_time_of_a_long_list(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Each of its definitions may wait for the disks; ended half-way it tells of no refusal."""
    given: list[float] = []
    timeout = asyncio.timeout

    def noted(seconds: float | None) -> asyncio.Timeout:
        given.append(seconds or 0.0)
        return timeout(seconds)

    async def run() -> int:
        async with Http() as http:
            await http.serve(ApiMember())
            monkeypatch.setattr("broker.management.server.asyncio.timeout", noted)
            document = json.dumps({"x": "x" * server.SMALL_BODY_BYTES_MAX})
            return (await http.ask("POST", f"/api/{path}", document, ADMIN)).status

    assert asyncio.run(run()) == 204
    assert server.LONG_S in given
