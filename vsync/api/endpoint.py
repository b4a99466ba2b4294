"""The listener for queries of the tools: a Unix socket, or a TCP port on the loopback interface.

There is no login: a Unix socket is open to its own user, a TCP port to every user of the machine.
Any other address is refused. Brokers serve the same queries on their client port, with a login.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from vsync.admin.protocol import PREAMBLE, Op, QuerySession
from vsync.errors import ConfigError
from vsync.io.transport import TransportError, parse_address

UNIX = "unix:"
SESSIONS_MAX = 32


class Endpoint:
    """Listens until `close`. The tools connect to `address`."""

    def __init__(self, place: str, ops: Mapping[str, Op]) -> None:
        self.address = place
        self.sessions: set[asyncio.Transport] = set()
        self._ops = ops
        self._server: asyncio.Server | None = None
        if not place.startswith(UNIX):
            host, _ = parse_address(place)
            if host != "localhost" and not _is_loopback(host):
                raise ConfigError(
                    f"manage={place!r}: there is no login there, so it must be an address of this "
                    f"machine only, such as 127.0.0.1:0, or unix:/a/path"
                )

    async def open(self) -> None:
        """Listen. Raises TransportError when the address is not available."""
        loop = asyncio.get_running_loop()
        try:
            if self.address.startswith(UNIX):
                path = Path(self.address.removeprefix(UNIX))
                await _remove_stale(path)
                before = os.umask(0o177)
                try:
                    self._server = await loop.create_unix_server(self._connect, str(path))
                finally:
                    os.umask(before)
            else:
                host, port = parse_address(self.address)
                self._server = await loop.create_server(self._connect, host, port)
                real = self._server.sockets[0].getsockname()[1]
                self.address = f"[{host}]:{real}" if ":" in host else f"{host}:{real}"
        except OSError as error:
            reason = error.strerror or str(error)
            raise TransportError(f"cannot answer questions on {self.address}: {reason}") from None

    def _connect(self) -> _Connection:
        return _Connection(self, self._ops)

    def close(self) -> None:
        """Stop listening.  Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
            for transport in list(self.sessions):
                transport.close()
            if self.address.startswith(UNIX):
                with contextlib.suppress(OSError):
                    Path(self.address.removeprefix(UNIX)).unlink()


async def _remove_stale(path: Path) -> None:
    """Remove the socket of a killed process; TransportError when a running one listens on it."""
    try:
        _, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        with contextlib.suppress(OSError):
            _unlink_socket(path)
        return
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    raise TransportError(f"cannot answer questions on {UNIX}{path}: another program does")


def _unlink_socket(path: Path) -> None:
    if path.is_socket():
        path.unlink()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Connection(asyncio.Protocol):
    """One connection of a tool."""

    def __init__(self, endpoint: Endpoint, ops: Mapping[str, Op]) -> None:
        self._endpoint = endpoint
        self._session = QuerySession(ops)
        self._first = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._endpoint.sessions.add(self._transport)
        if len(self._endpoint.sessions) > SESSIONS_MAX:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if len(self._first) < len(PREAMBLE):
            self._first += data
            data = self._first[len(PREAMBLE) :]
            if not PREAMBLE.startswith(self._first[: len(PREAMBLE)]):
                self._transport.abort()  # not a client of this protocol
                return
        if data:
            self._transport.write(self._session.data_received(data))
        if self._session.closing:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._endpoint.sessions.discard(self._transport)
