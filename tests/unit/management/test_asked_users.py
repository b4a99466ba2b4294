"""The API on a member whose users come from a server: logins, virtual hosts, and operations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from broker.admin.operator_logins import OperatorLogins
from broker.management.access import Logins
from tests.support.auth_wire import AuthWire
from tests.support.management.member import ApiMember, Http

PATIENCE_S = 60.0
ADA, BOB = "ada:secret", "bob:hidden"


class Server(AuthWire):
    """Answers at once: ada is an administrator, bob may manage in one virtual host."""

    def send(self, number: int, question: object) -> None:
        super().send(number, question)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(self._reply)

    def _reply(self) -> None:
        if self.sent:
            self.answer_first(self._say(self.questions()[0]))

    def _say(self, one: dict[str, str]) -> str:
        if one["about"] == "user":
            good = f"{one['username']}:{one['password']}"
            return {ADA: "allow administrator", BOB: "allow management"}.get(good, "deny")
        return "allow" if one["username"] == "ada" or one["vhost"] == "his" else "deny"


def run(work: Callable[[Http, Server], Awaitable[None]]) -> None:
    async def serve() -> None:
        wire = Server()
        async with Http() as http:
            member = ApiMember(wire.backends())
            for name in ("his", "another"):
                member.define("vhost", "", name, {"description": "", "tags": ()})
            check = OperatorLogins(member.gateway).in_turn
            logins = Logins(check, lambda: member.gateway.access.version)
            await http.server.serve(member.broker, logins)
            await asyncio.wait_for(work(http, wire), PATIENCE_S)

    asyncio.run(serve())


def test_the_server_decides_who_may_use_the_api_and_with_which_tags() -> None:
    async def work(http: Http, wire: Server) -> None:
        found = await http.ask("GET", "/api/whoami", login=ADA)
        assert json.loads(found.body) == {"name": "ada", "tags": ["administrator"]}
        assert {one.about for one in wire.all} == {"user"}, "it may see them all"
        assert (await http.ask("GET", "/api/whoami", login="ada:wrong")).status == 401
        assert (await http.ask("GET", "/api/users", login=BOB)).status == 401
        asked = len(wire.all)
        assert (await http.ask("GET", "/api/whoami", login=ADA)).status == 200
        assert len(wire.all) == asked, "a page of ten requests asks once"

    run(work)


def test_a_user_of_the_server_sees_the_virtual_hosts_it_may_enter() -> None:
    async def work(http: Http, _: Server) -> None:
        for login, vhosts in ((ADA, ["/", "another", "his"]), (BOB, ["his"])):
            found = await http.ask("GET", "/api/vhosts", login=login)
            assert sorted(one["name"] for one in json.loads(found.body)) == vhosts
        assert (await http.ask("GET", "/api/queues/his", login=BOB)).status == 200
        assert (await http.ask("GET", "/api/queues/another", login=BOB)).status == 401

    run(work)


def test_operations_for_a_user_of_the_server_are_asked_of_the_server() -> None:
    async def work(http: Http, wire: Server) -> None:
        queue = json.dumps({"durable": True})
        assert (await http.ask("PUT", "/api/queues/his/q", queue, ADA)).status == 201
        asked = dict(wire.all[-1].fields)
        assert (asked["permission"], asked["name"], asked["tags"]) == (
            "configure", "q", "administrator"
        )  # fmt: skip
        assert (await http.ask("DELETE", "/api/queues/his/q", login=ADA)).status == 204

    run(work)
