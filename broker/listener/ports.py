"""Ports of this member: bound before the store is touched, opened when the member serves."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import socket
from collections.abc import Callable, Sequence

log = logging.getLogger("qpidd.client")

LOOPBACK_6 = "::1"
BESIDE = {"127.0.0.1": LOOPBACK_6, "::": "0.0.0.0"}
"""The address that is served beside this one."""


class PortTaken(Exception):
    """A port is unavailable; the text says what to do."""


class Port:
    """A port of this member: at one address, or at two that belong together.

    127.0.0.1 has ::1 beside it where the machine has that: programs that look up `localhost` may
    try it first and only. :: has 0.0.0.0 beside it, so that it means all addresses.
    """

    def __init__(self, servers: Sequence[asyncio.Server]) -> None:
        self._servers = servers

    @property
    def number(self) -> int:
        """The number of the port."""
        return _number(self._servers[0])

    async def open(self, backlog: int) -> None:
        """Let clients in. Raises PortTaken.

        Two brokers that start at one time, or two options of one broker, can bind the same port,
        and only the first of them can listen there. uvloop hides that error, so it is provoked
        here.
        """
        for server in self._servers:
            for bound in server.sockets:
                host, port = bound.getsockname()[:2]
                with socket.socket(fileno=os.dup(bound.fileno())) as same:
                    try:
                        same.listen(backlog)
                    except OSError as error:
                        if host != LOOPBACK_6 or server is self._servers[0]:
                            raise PortTaken(bind_sentence(host, port, "port", error)) from error
                        _not_beside(port, error)
                        server.close()
                        break
            else:
                await server.start_serving()

    def close(self) -> None:
        """Release the port; connections are not touched."""
        for server in self._servers:
            server.close()

    async def wait_closed(self) -> None:
        """Return when its connections are gone."""
        for server in self._servers:
            await server.wait_closed()


async def bind(
    make: Callable[[], asyncio.BaseProtocol], host: str, port: int, backlog: int
) -> Port:
    """Bind a port; nobody is let in yet. Raises OSError when it is taken."""
    create = functools.partial(
        asyncio.get_running_loop().create_server, make, backlog=backlog, start_serving=False
    )
    servers = [await create(host, port)]
    if beside := BESIDE.get(host):
        number = _number(servers[0])
        try:
            servers.append(await create(beside, number))
        except OSError as error:
            if beside != LOOPBACK_6:
                servers[0].close()
                raise
            _not_beside(number, error)
    return Port([server for server in servers if server.sockets])


def _number(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


def _not_beside(port: int, error: OSError) -> None:
    if error.errno == errno.EADDRINUSE:  # otherwise the machine has no such address
        log.warning(
            "another program listens on [%s]:%d: whoever looks up localhost may reach it instead",
            LOOPBACK_6, port,
        )  # fmt: skip


def bind_sentence(host: str, port: int, option: str, error: OSError) -> str:
    """Why a port is unavailable, and what to do."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    what = f"cannot listen on {where}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{what}: another program listens there; stop it, or give another {option}"
        case errno.EADDRNOTAVAIL | None:  # asyncio's own errors, which have no number
            return f"{what}: this machine has no such address; set --interface to one of its own"
        case errno.EACCES:
            return f"{what}: not permitted to this user; give a {option} from 1024 on"
        case _:
            pass
    if isinstance(error, socket.gaierror):
        return f"{what}: the name cannot be resolved; give an address to --interface"
    return f"{what}: {error.strerror or error}"
