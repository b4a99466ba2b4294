"""The management API of one member: its port is taken early, its content given later."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from broker.findings.member_findings import MemberFindings
from broker.frontend.gateway import Gateway
from broker.listener.client_listener import ClientListener
from broker.listener.ports import PortTaken, bind_sentence
from broker.listener.tls import ServerTls
from broker.management.access import Logins
from broker.management.amqp_client import AmqpRefused
from broker.management.call import Broker, Problem
from broker.management.connections import HttpConnections
from broker.management.json_values import BadJson, Object, parse
from broker.management.resources.transfer import load
from broker.management.server import ManagementServer
from broker.options.management import ManagementOptions
from broker.process.member import BrokerMember
from broker.shovels.followed import Followers as Followers
from broker.shovels.supervisor import Shovels as Shovels
from broker.statistics.endpoint import Pages
from broker.statistics.metrics import Metrics

log = logging.getLogger("qpidd")


MakeShovels = Callable[..., Shovels]
"""Makes a member's shovels; the starter of the broker knows how to start a shovel's process."""
Listening = tuple[str, str, int]
"""A listening port: the protocol by RabbitMQ's name, the address, the number."""


SCRAPERS_MAX = 64
"""Connections to the port for metrics; one address may have half of them."""


class BadDefinitions(Exception):
    """The file of definitions is unreadable; the text says why."""


class MetricsPort:
    """The metrics pages on a separate port, without a login, like RabbitMQ's 15692; may be
    absent.
    """

    def __init__(self, interface: str, port: int | None) -> None:
        self._interface, self._port = interface, port
        self._pages: Pages | None = None
        self._taken: int | None = None
        self.connections = HttpConnections(self._reply, SCRAPERS_MAX, SCRAPERS_MAX // 2)

    async def take(self) -> None:
        """Bind the port. Raises OSError if it is unavailable."""
        if self._port is not None:
            self._taken = await self.connections.listen(self._interface, self._port)

    async def serve(self, pages: Pages) -> None:
        """Begin to answer."""
        self._pages = pages
        if self._taken is not None:
            await self.connections.serve()
            log.info("metrics on http://%s:%d/metrics", self._interface, self._taken)

    def listening(self) -> tuple[tuple[str, str, int], ...]:
        """The port, in the form of a list of listeners; empty if there is none."""
        if self._taken is None:
            return ()
        return (("http/prometheus", self._interface, self._taken),)

    async def close(self) -> None:
        """End."""
        await self.connections.close()

    async def _reply(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._pages is not None
        return await self._pages.reply(request)


class ManagementPort:
    """A listener that may be absent: the API is off, or another program has the default port."""

    def __init__(self, options: ManagementOptions, cluster: str) -> None:
        self._options, self._cluster = options, cluster
        self._metrics = MetricsPort(options.interface, options.prometheus)
        self._server: ManagementServer | None = None
        self._ports: list[Listening] = []
        self._document: Object | None = None
        self._loading: asyncio.Task[None] | None = None
        self._unloaded: tuple[str, str] | None = None

    async def take(self, tls: Callable[[], ssl.SSLContext]) -> None:
        """Read the definitions, and bind the ports; `tls` returns the context in force.

        Raises BadDefinitions, and PortTaken; a default port that is taken does not prevent the
        start.
        """
        options = self._options
        if options.definitions is not None:
            self._document = _read(options.definitions)
        await self._take_metrics()
        server = ManagementServer()
        if options.port is not None:
            await self._listen(server, "http", options.port, chosen=options.chosen)
        if options.tls_port is not None:
            await self._listen(server, "https", options.tls_port, chosen=True, tls=follow(tls))
        if self._ports:
            self._server = server

    async def _listen(
        self,
        server: ManagementServer,
        scheme: str,
        port: int,
        *,
        chosen: bool,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, option = self._options.interface, f"--management-{'tls-' * bool(tls)}port"
        try:
            self._ports.append((scheme, host, await server.connections.listen(host, port, tls)))
        except OSError as error:
            why = f"the management API {bind_sentence(host, port, option, error)}"
            if chosen:
                raise PortTaken(why) from error
            log.warning("%s; it is off until then", why)

    async def _take_metrics(self) -> None:
        try:
            await self._metrics.take()
        except OSError as error:
            options = self._options
            assert options.prometheus is not None  # otherwise no port was bound
            where = options.interface, options.prometheus
            said = bind_sentence(*where, "--prometheus-port", error)
            raise PortTaken(f"the port for metrics {said}") from error

    async def serve(
        self,
        member: BrokerMember,
        shovels: Shovels,
        clients: Sequence[Listening],
        listener: ClientListener,
        not_taken: Callable[[], str],
    ) -> None:
        """From here on show this member, whose clients come to these ports. Raises PortTaken."""
        name = member.controller.me.name
        member.observation.watch_ports(lambda: _ends_at(listener.tls), listener.refused)
        findings = MemberFindings(
            member.operations.status, member.observation, shovels,
            lambda: time.time_ns() // 1_000_000, self._cluster or name, lambda: self._unloaded,
            not_taken,
        )  # fmt: skip
        metrics = Metrics(
            member.observation, member.clients, name, self._cluster or name,
            lambda: self._server.counted() if self._server is not None else {},
            lambda: shovels.counters,
            findings.counts,
        )  # fmt: skip
        pages = Pages(metrics)
        await self._metrics.serve(pages)
        listeners = (*clients, *self._ports, *self._metrics.listening())
        broker = Broker(
            member.controller,
            member.clients,
            member.operations,
            self._cluster,
            listeners,
            member.observation.statistics,
            pages,
            shovels,
            findings,
            lambda: listener.tls,
        )

        if self._document is not None:
            gateway = member.clients.gateway
            gateway.admission.loading = (
                f"member '{name}' is loading its definitions: try again in a moment"
            )
            self._loading = asyncio.create_task(self._load(broker, self._document, gateway))
        if self._server is None:
            return
        access = member.clients.gateway.access
        logins = Logins(member.operations.logins.in_turn, lambda: access.version)
        await self._server.serve(broker, logins)
        for scheme, where, port in self._ports:
            log.info("management API on %s://%s:%d/", scheme, where, port)

    async def _load(self, broker: Broker, document: Object, gateway: Gateway) -> None:
        """Load the definitions. Until that is done a client that may not enter is told to try
        again, because it may be allowed then."""
        file = self._options.definitions
        try:
            await load(broker, document)
        except (Problem, AmqpRefused, BadJson) as refused:
            first, *others = str(refused).split("\n")
            self._unloaded = str(file), " ".join([first, *others[:1], *["..."] * (len(others) > 1)])
            for line in (first, *others):
                log.error("--load-definitions %s: %s", file, line)
        else:
            log.info("--load-definitions: %s is loaded", file)
        finally:
            gateway.admission.loading = ""

    async def close(self) -> None:
        """Close it."""
        if self._loading is not None:
            self._loading.cancel()
        await self._metrics.close()
        if self._server is not None:
            await self._server.connections.close()


def follow(tls: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A context for browsers and tools that requests no certificate from them, and presents the one
    in force, also after SIGHUP."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION

    def show(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = tls()

    context.sni_callback = show  # called for each client, whether or not it names a host
    return context


def _ends_at(tls: ServerTls | None) -> float:
    """When the certificate for clients ends; 0 if there is none, or it cannot be read back."""
    return (tls.ends_at if tls is not None else None) or 0.0


def _read(path: Path) -> Object:
    try:
        found = parse(path.read_bytes())
    except OSError as error:
        raise BadDefinitions(f"--load-definitions {path}: {error.strerror or error}") from error
    except BadJson as bad:
        raise BadDefinitions(f"--load-definitions {path}: {bad}") from bad
    if not isinstance(found, dict):
        raise BadDefinitions(f"--load-definitions {path}: it is no JSON object")
    return found
