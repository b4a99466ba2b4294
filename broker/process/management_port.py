"""The management API of one member: its port, taken early, and what it shows, given later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from broker.listener.client_listener import PortTaken, bind_sentence
from broker.management.access import Logins
from broker.management.amqp_client import AmqpRefused
from broker.management.call import Broker, Problem
from broker.management.json_values import BadJson, Object, parse
from broker.management.resources.transfer import load
from broker.management.server import ManagementServer
from broker.options.management import ManagementOptions
from broker.process.member import BrokerMember
from broker.statistics.endpoint import MetricsPort, Pages
from broker.statistics.metrics import Metrics

log = logging.getLogger("qpidd")


Listening = tuple[str, str, int]
"""A port that listens: the protocol as RabbitMQ names it, the address, the number."""


class BadDefinitions(Exception):
    """The file of definitions cannot be read; the text says why."""


class ManagementPort:
    """A listener that may be none: the API is off, or another program has the default port."""

    def __init__(self, options: ManagementOptions, cluster: str) -> None:
        self._options, self._cluster = options, cluster
        self._metrics = MetricsPort(options.interface, options.prometheus)
        self._server: ManagementServer | None = None
        self._port = 0
        self._document: Object | None = None
        self._loading: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Read the definitions, and take the port.

        Raises BadDefinitions, and PortTaken; a port that nobody chose is no reason not to start.
        """
        options = self._options
        if options.definitions is not None:
            self._document = _read(options.definitions)
        await self._take_metrics()
        if options.port is None:
            return
        server = ManagementServer()
        try:
            self._port = await server.listen(options.interface, options.port)
        except OSError as error:
            said = bind_sentence(options.interface, options.port, "--management-port", error)
            why = f"the management API {said}"
            if options.chosen:
                raise PortTaken(why) from error
            log.warning("%s; it is off until then", why)
            return
        self._server = server

    async def _take_metrics(self) -> None:
        try:
            await self._metrics.take()
        except OSError as error:
            options = self._options
            assert options.prometheus is not None  # else no port was taken
            where = options.interface, options.prometheus
            said = bind_sentence(*where, "--prometheus-port", error)
            raise PortTaken(f"the port for metrics {said}") from error

    async def serve(self, member: BrokerMember, clients: Sequence[Listening]) -> None:
        """Show this member, whose clients come to these ports, from here on."""
        name = member.controller.me.name
        metrics = Metrics(member.observation, member.clients, name, self._cluster or name)
        pages = Pages(metrics)
        await self._metrics.serve(pages)
        if self._server is None:
            return
        where = self._options.interface
        listeners = (*clients, ("http", where, self._port), *self._metrics.listening())
        broker = Broker(
            member.controller,
            member.clients,
            member.operations,
            self._cluster,
            listeners,
            member.observation.statistics,
            pages,
        )

        if self._document is not None:
            self._loading = asyncio.create_task(self._load(broker, self._document))
        if self._server is None:
            return

        async def check(user: str, password: str, address: str) -> tuple[str, ...] | None:
            await asyncio.sleep(member.clients.login_delay_s(user, address))
            return member.clients.login(user, password, address)

        await self._server.serve(
            broker, Logins(check, lambda: member.clients.gateway.access.version)
        )
        log.info("management API on http://%s:%d/", where, self._port)

    async def _load(self, broker: Broker, document: Object) -> None:
        file = self._options.definitions
        try:
            await load(broker, document)
        except (Problem, AmqpRefused, BadJson) as refused:
            log.error("--load-definitions %s: %s; what came before it is done", file, refused)
        else:
            log.info("--load-definitions: %s is loaded", file)

    async def close(self) -> None:
        """End it."""
        if self._loading is not None:
            self._loading.cancel()
        await self._metrics.close()
        if self._server is not None:
            await self._server.close()


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
