"""One member with its management API on a real port, without ring, store and other processes.

Everything between the HTTP socket and the machine is a broker's own: listener, logins, routes, the
client without a socket, gateway, permissions, definitions.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import NamedTuple, cast

import aiohttp
from aiohttp import web
from yarl import URL

from broker.access.backends import Backends, Login
from broker.admin.definitions import Definitions
from broker.admin.operations import Operations
from broker.admin.operator_logins import OperatorLogins
from broker.findings.member_findings import MemberFindings
from broker.frontend.connections import ClientPorts, Connections, Options
from broker.frontend.gateway import Gateway
from broker.frontend.outbox import Outbox
from broker.machine import commands as c
from broker.management.access import Logins
from broker.management.call import Broker
from broker.management.server import ManagementServer
from broker.options.access import AccessOptions
from broker.options.client_ports import ClientLimits
from broker.replication.controller import Controller
from broker.shovels.federation import Federation
from broker.shovels.handover import Attempt
from broker.shovels.supervisor import Event, Job, Shovels
from broker.statistics.endpoint import Pages
from broker.statistics.figures import FIGURES
from broker.statistics.members import MemberFigures
from broker.statistics.observation import Observation
from broker.statistics.statistics import Statistics
from tests.support.gateway_loop import Loop
from tests.support.observed import MEMBERS
from tests.support.three_machines import Client, Rig

PEER = "10.0.0.1:7000"


class Answered(NamedTuple):
    """One reply."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class ApiMember(Loop):
    """The member; its clients' requests are applied in the next turn of the event loop."""

    def __init__(self, backends: Backends | None = None) -> None:
        self.asked: list[tuple[object, ...]] = []  # of operations that concern members
        self._due = False
        self._later: list[c.Command] = []
        options = SimpleNamespace(
            cluster_name="test", access=AccessOptions(), clients=ClientLimits()
        )
        self.connections = Connections(
            "a", cast("Options", options), self.on_work, lambda _s, _call: None,
            cast("ClientPorts", SimpleNamespace(
                log=lambda _, text: self.log.append(text), negotiate_s=10.0,
                backends=backends)),
            lambda defined: self.definitions.done(defined), lambda: self.machine,
        )  # fmt: skip
        super().__init__()
        self.connections.may_reply = True
        controller = self._controller()
        self.definitions = Definitions(controller)
        self.statistics = Statistics(
            controller,
            MemberFigures(
                MEMBERS[0], controller.primary, lambda: self.gateway.session,
                lambda: self.machine.connections, lambda: dict.fromkeys(FIGURES, 1.0), list,
                lambda _to, _payload: None,
            ),
            lambda: 0,
        )  # fmt: skip
        self.shovels = Shovels(
            MEMBERS[0].name, lambda: self.machine, lambda: True, self._begin_shovel,
            lambda _: None, lambda _: None, lambda: 1_700_000_000_000,
            Federation(lambda: "test", lambda: self.machine),
        )  # fmt: skip
        self.broker = Broker(
            controller, self.connections, cast("Operations", self._operations()), "test",
            (("amqp", "127.0.0.1", 5672),), self.statistics,
            cast("Pages", SimpleNamespace(reply=_metrics)), self.shovels, self._findings(),
        )  # fmt: skip

    def _begin_shovel(self, job: Job, _on_event: Callable[[Event], None]) -> Attempt:
        self.asked.append(("shovel", job.shovel.name))
        return cast("Attempt", SimpleNamespace(stop=lambda *, at_once: None, ended=True))

    def make_parts(self, cert_login_from: str) -> tuple[Gateway, Outbox]:
        """The parts of its connections."""
        del cert_login_from
        return self.connections.gateway, self.connections.outbox

    def _controller(self) -> Controller:
        primary = SimpleNamespace(
            caught_up_names=frozenset("a"), mark=SimpleNamespace(without_data=frozenset()),
            members=MEMBERS[:1], active=True, labels=dict,
        )  # fmt: skip
        found = SimpleNamespace(
            me=MEMBERS[0], serving=True, halted="", reason="", primary=primary,
            label="amqp:tcp:127.0.0.1:5672",
            replica=SimpleNamespace(machine=self.machine), submit=self._submit,
            submissions=SimpleNamespace(session=self.gateway.session),
            promise=SimpleNamespace(voters=("a",)),
        )  # fmt: skip
        return cast("Controller", found)

    def _operations(self) -> SimpleNamespace:
        def ask(what: str) -> object:
            return lambda *given, **more: self.asked.append((what, *given, *more.values()))

        member = {"id": "a", "state": "ACTIVE", "voter": True, "votes": 1, "arbitrator": False,
                  "url": "", "position": 1, "local": True}  # fmt: skip
        return SimpleNamespace(
            definitions=self.definitions, disconnect=ask("disconnect"), drain=ask("drain"),
            stop_member=ask("stop"), status=lambda: {"members": [member], "drained": []},
        )  # fmt: skip

    def _findings(self) -> MemberFindings:
        observed = SimpleNamespace(
            statistics=self.statistics, machine=self.machine, local_alarms=lambda: ({}, "", "")
        )
        return MemberFindings(
            self._operations().status,
            cast("Observation", observed),
            self.shovels,
            lambda: 0,
            "test",
        )

    # -- the loop of the member ------------------------------------------------------------------

    def on_work(self) -> None:
        """There is work to do."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _submit(self, commands: list[c.Command]) -> None:
        self._later += commands
        self.on_work()

    def _turn(self) -> None:
        self._due = False
        commands, self._later = self._later, []
        for command in commands:
            self.apply(self.gateway.session, command)
        self.outbox.release(self.position)
        self.turn()

    def write(self) -> None:
        """Write as a member does after each turn."""
        self.connections.flush(may_reply=True)

    def client(self, user: str, vhost: str, peer: str = PEER, conn: int = 1000) -> Client:
        """A connected client with an open channel."""
        session = self.gateway.session
        opened = c.ConnectionOpen(c.CONNECTION_OPEN, conn, vhost, user, peer)
        assert self.apply(session, opened) == c.OK
        return Client(cast("Rig", self), session, conn, 0).channel(1)


async def _metrics(_request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="")


class Http:
    """The API of a member, and a client of it: `async with`."""

    def __init__(self, server: ManagementServer | None = None) -> None:
        self.server = server or ManagementServer()
        self.port = 0

    async def __aenter__(self) -> Http:
        self.port = await self.server.connections.listen("127.0.0.1", 0)
        self._session = aiohttp.ClientSession()
        return self

    async def serve(self, member: ApiMember) -> None:
        """Serve this member from here on."""

        async def check(user: str, password: str, address: str) -> Login:
            login = OperatorLogins(member.gateway).judge(user, password, address, lambda *_: None)
            assert login is not None
            return login

        await self.server.serve(member.broker, Logins(check, lambda: member.gateway.access.version))

    async def ask(
        self, method: str, path: str, body: str | bytes | None = None, login: str = ""
    ) -> Answered:
        """Send one request; `login` is USER:PASSWORD."""
        headers = {"Content-Type": "application/json"}
        if login:
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        url = f"http://127.0.0.1:{self.port}{path}"
        content = body.encode() if isinstance(body, str) else body or b""
        async with self._session.request(
            method, URL(url, encoded=True), data=io.BytesIO(content), headers=headers
        ) as reply:
            return Answered(reply.status, await reply.read(), dict(reply.headers))

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self.server.connections.close()
