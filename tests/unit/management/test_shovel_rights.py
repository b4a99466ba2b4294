"""Whose messages a shovel may move: its ends in this cluster ask for no password."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from tests.support.gateway_loop import PERMISSIONS
from tests.support.management.member import ApiMember, Http

FAR = "amqp://far"


def member() -> ApiMember:
    """`ada` sets policies and may enter A and C; a user who also monitors sees all; `root` may
    all."""
    made = ApiMember()
    for name in ("A", "B", "C"):
        made.define("vhost", "", name, {"description": "", "tags": ()})
    tags = {"ada": ("policymaker",), "eve": ("policymaker", "monitoring"),
            "root": ("administrator",)}  # fmt: skip
    for user, of_user in tags.items():
        made.define("user", "", user, made.hashed("pw", *of_user))
    for user, vhost in (("ada", "A"), ("ada", "C"), ("eve", "A")):
        made.define("permission", vhost, user, dict.fromkeys(PERMISSIONS, "^$"))
    return made


@pytest.mark.parametrize(
    ("user", "source", "status", "said"),
    [
        ("ada", "amqp://", 201, ""),
        ("ada", "amqp:///C", 201, ""),
        ("ada", "amqp://ada@/C", 201, ""),
        ("ada", "amqp:///B", 401, "no access to vhost 'B'"),
        ("ada", "amqp://ada@/B", 401, "no access to vhost 'B'"),
        ("ada", [FAR, "amqp:///B"], 401, "no access to vhost 'B'"),
        ("ada", "amqp://root@/A", 401, "may name no other user"),
        ("ada", "amqp://root@", 401, "may name no other user"),
        ("ada", "amqp://%72oot@", 401, "may name no other user"),
        ("eve", "amqp:///B", 401, "no access to vhost 'B'"),
        ("eve", "amqp://root@/A", 401, "may name no other user"),
        ("root", "amqp:///B", 201, ""),
        ("root", "amqp://ada@/B", 201, ""),
    ],
)
def test_a_definition_reaches_no_farther_than_the_user_who_sets_it(
    user: str, source: str | Sequence[str], status: int, said: str
) -> None:
    async def run() -> None:
        async with Http() as http:
            made = member()
            await http.serve(made)
            for ends in ((source, FAR), (FAR, source)):
                value = {"src-uri": ends[0], "src-queue": "a", "dest-uri": ends[1],
                         "dest-queue": "b"}  # fmt: skip
                before = repr(made.machine.definitions)
                path = f"/api/parameters/shovel/A/{'in' if ends[0] == FAR else 'out'}"
                found = await http.ask("PUT", path, json.dumps({"value": value}), f"{user}:pw")
                assert (found.status, said in found.body.decode()) == (status, True), found
                if status == 401:
                    assert repr(made.machine.definitions) == before
            path = "/api/parameters/federation-upstream/A/up"
            body = json.dumps({"value": {"uri": source}})
            found = await http.ask("PUT", path, body, f"{user}:pw")
            assert (found.status, said in found.body.decode()) == (status, True), found

    asyncio.run(run())


def test_documents_of_definitions_need_an_administrator() -> None:
    async def run() -> None:
        async with Http() as http:
            made = member()
            await http.serve(made)
            before = repr(made.machine.definitions)
            for path in ("definitions", "definitions/A", "all-configuration"):
                found = await http.ask("POST", f"/api/{path}", "{}", "eve:pw")
                assert found.status == 401
            assert repr(made.machine.definitions) == before

    asyncio.run(run())


def test_an_administrator_reads_a_parameter_as_it_was_written() -> None:
    """Terraform compares the two, and scripts write back what they have read. Whoever else may read
    parameters, and lists, see no password."""
    value = {"src-uri": ["amqp://u:sesame@far"], "src-queue": "a", "dest-uri": "amqp://",
             "dest-queue": "b"}  # fmt: skip

    async def run() -> None:
        async with Http() as http:
            await http.serve(member())
            path = "/api/parameters/shovel/A/s"
            body = json.dumps({"value": value})
            assert (await http.ask("PUT", path, body, "root:pw")).status == 201
            found = json.loads((await http.ask("GET", path, login="root:pw")).body)
            assert found["value"] == value
            for one, user in ((path, "ada"), (path, "eve"), ("/api/parameters", "root")):
                reply = await http.ask("GET", one, login=f"{user}:pw")
                assert (reply.status, b"sesame" in reply.body) == (200, False)
                assert b"u:***@far" in reply.body

    asyncio.run(run())
