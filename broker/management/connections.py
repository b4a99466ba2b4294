"""The connections of an HTTP port: admission, and how long each may keep its place.

The TLS handshake is made here. With the event loops' own TLS the client's address would be unknown
until the handshake is done, so one address could take all places with sockets that never send a
byte.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from broker.listener.connection_limits import Admission, ConnectionLimits, NotLetIn
from broker.listener.ports import Port, bind
from broker.listener.tls_transport import TlsTransport
from broker.management.json_values import text_of
from broker.options.client_ports import ClientLimits
from broker.rationed_log import RationedLog

log = logging.getLogger("qpidd.management")

HEAD_BYTES_MAX = 16 * 1024
HANDSHAKE_S = 5.0
HANDSHAKES_MAX = 256
IDLE_S = 30.0
"""From connecting, or a reply, to the complete head of the next request."""
READING_S = 300.0
"""After that: time to read what was sent; the close waits for it."""
BACKLOG = 128
REAP_S = 1.0

Replies = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpConnections:
    """The listeners of one HTTP service and all their connections, up to a limit."""

    def __init__(self, reply: Replies, connections: int, of_address: int) -> None:
        self.limits = ConnectionLimits(
            ClientLimits(connections, of_address, HANDSHAKES_MAX, HANDSHAKE_S)
        )
        self.counters = self.limits.counters
        self.counters.update(handshakes_failed=0, reaped=0)
        self._reply = reply
        self._log = RationedLog(lambda _, text: log.warning("%s", text), time.monotonic)
        self._server = web.Server(
            self._handle,
            access_log=None,
            logger=_to_log(self._log),
            auto_decompress=False,  # a small body could become a very large one
            keepalive_timeout=IDLE_S,
            max_line_size=HEAD_BYTES_MAX,
            max_field_size=HEAD_BYTES_MAX,
            lingering_time=2.0,
        )
        self._sockets: dict[Admission, HttpSocket] = {}
        self._of_handler: dict[asyncio.BaseProtocol, HttpSocket] = {}
        self._ports: list[Port] = []
        self._reaper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Bind a port, and return it. Raises OSError when it is taken."""
        bound = await bind(lambda: HttpSocket(self, tls), host, port, BACKLOG)
        self._ports.append(bound)
        return bound.number

    async def serve(self) -> None:
        """Let clients in. Raises PortTaken."""
        for port in self._ports:
            await port.open(BACKLOG)
        if self._reaper is None:
            self._reap()

    async def close(self) -> None:
        """End all connections."""
        if self._reaper is not None:
            self._reaper.cancel()
        for port in self._ports:
            port.close()
        await self._server.shutdown(0.5)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        one = self._of_handler.get(request.protocol)
        if one is None:
            raise ConnectionResetError  # it went before its request was looked at
        one.wait(inf)  # a request has its own time
        try:
            return await self._reply(request)
        finally:
            one.wait(asyncio.get_running_loop().time() + IDLE_S)

    def _reap(self) -> None:
        """Close connections whose handshake or next request is not complete in time."""
        loop = asyncio.get_running_loop()
        self._reaper = loop.call_later(REAP_S, self._reap)
        now = loop.time()
        for admission in self.limits.overdue(now):
            self.counters["negotiation_timeouts"] += 1
            self._sockets[admission].abort()
        for one in list(self._sockets.values()):
            if one.due < now:
                self.counters["reaped"] += 1
                one.end(now + READING_S)
        self._log.wake()

    # -- called by sockets -----------------------------------------------------------------------

    def accept(self, one: HttpSocket, host: str) -> Admission | NotLetIn:
        """Count the connection, or return why it is refused."""
        found = self.limits.accept(host, asyncio.get_running_loop().time())
        if isinstance(found, Admission):
            self._sockets[found] = one
        else:
            self._log("refused", f"a client at {host} is not let in: {found.reason}")
        return found

    def opened(self, one: HttpSocket, admission: Admission) -> asyncio.Protocol:
        """Its handshake, if any, is done: return the protocol that reads its requests."""
        self.limits.opened(admission)
        handler = self._server()
        self._of_handler[handler] = one
        one.wait(asyncio.get_running_loop().time() + IDLE_S)
        return handler

    def closed(self, admission: Admission, handler: asyncio.Protocol | None) -> None:
        """The connection is gone."""
        self.limits.closed(admission)
        del self._sockets[admission]
        if handler is not None:
            del self._of_handler[handler]


class _Reports(logging.Handler):
    """Takes the library's reports of failed requests. It would write a traceback whenever a client
    sends no HTTP or closes its connection, and quote the request, with its password."""

    def __init__(self, rationed: RationedLog) -> None:
        super().__init__()
        self._rationed = rationed

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, _OF_CLIENTS):
            why = "it closed the connection" if isinstance(error, OSError) else "it is no HTTP"
            self._rationed("malformed", f"{record.getMessage()}: {why}")
        else:
            log.error("%s", record.getMessage(), exc_info=record.exc_info)


_OF_CLIENTS = (HttpProcessingError, web.RequestPayloadError, OSError)


def _to_log(rationed: RationedLog) -> logging.Logger:
    """Return the logger for the library; no other logger gets its records."""
    found = logging.Logger("qpidd.management.http", logging.WARNING)
    found.addHandler(_Reports(rationed))
    return found


class HttpSocket(asyncio.Protocol):
    """One accepted socket: its TLS, if any, between the socket and its handler."""

    def __init__(self, owner: HttpConnections, tls: ssl.SSLContext | None) -> None:
        self.due = inf
        """When it is closed, unless something arrives before."""
        self._owner, self._context = owner, tls
        self._admission: Admission | None = None
        self._raw: asyncio.Transport | None = None
        self._tls: TlsTransport | None = None
        self._handler: asyncio.Protocol | None = None
        self._ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        # Not every loop's transport derives from asyncio.Transport (uvloop's does not).
        self._raw = raw = cast("asyncio.Transport", transport)
        found = self._owner.accept(self, host_of(raw))
        if isinstance(found, Admission):
            self._admission = found
            if self._context is None:
                self._open(found, raw)
            else:
                self._tls = TlsTransport(raw, self._context)
        elif self._context is None:
            refuse(raw, found.reason)
        else:
            raw.abort()  # before its handshake it would not understand a message

    def _open(self, admission: Admission, transport: asyncio.Transport) -> None:
        self._handler = self._owner.opened(self, admission)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived: plain, or decrypted by TLS."""
        tls = self._tls
        if tls is None:
            if self._handler is not None:
                self._handler.data_received(data)
            return
        if tls.is_closing() or tls.ended:
            return
        try:
            plain = tls.receive(data)
        except ssl.SSLError:
            if not tls.is_open:
                self._owner.counters["handshakes_failed"] += 1
            tls.close()
            return
        if tls.is_open and self._handler is None:
            assert self._admission is not None
            self._open(self._admission, tls)
        if plain and self._handler is not None:
            self._handler.data_received(plain)
        if tls.ended:
            tls.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._handler is not None:
            self._handler.connection_lost(exc)
        if self._admission is not None:
            self._owner.closed(self._admission, self._handler)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The client caught up."""
        if self._handler is not None:
            self._handler.resume_writing()

    def wait(self, until: float) -> None:
        """Close it then, unless it is given more time before."""
        if not self._ending:
            self.due = until

    def end(self, until: float) -> None:
        """Close it once its client has read the waiting output; a second call closes at once."""
        if self._ending:
            self.abort()
            return
        self._ending, self.due = True, until
        assert isinstance(self._handler, RequestHandler)
        self._handler.force_close()

    def abort(self) -> None:
        """Close it at once."""
        assert self._raw is not None
        self._raw.abort()


def refuse(transport: asyncio.Transport, reason: str) -> None:
    """Tell a client why it is refused, and close."""
    body = text_of({"error": "too_many_connections", "reason": reason})
    transport.write(
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    transport.close()


def host_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other side."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else "unknown"
