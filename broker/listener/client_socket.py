"""One accepted socket: its TLS handshake, then AMQP or management, by the first bytes."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Protocol, cast

from broker.frontend.connections import ClientLink
from broker.frontend.encryption import Encryption
from broker.frontend.management import Managed, ManagementSession
from broker.listener.connection_limits import Admission
from broker.listener.tls import encryption_of
from broker.listener.tls_transport import TlsTransport
from vsync.admin.protocol import PREAMBLE

WRITE_BUFFER_HIGH = 1 << 20
"""With more unsent output than this a client reads too slowly: its own input waits."""
MANAGEMENT_IDLE_S = 60.0
"""A management connection is for one question, or a few."""
TLS_RECORD = b"\x16\x03"


class Clients(Protocol):
    """Where AMQP clients are served (`broker.frontend.connections.Connections`)."""

    def connect(
        self, peer: str, transport: asyncio.Transport, encryption: Encryption | None = None
    ) -> ClientLink:
        """A socket is ready."""


class Served(Protocol):
    """The member behind the port."""

    @property
    def clients(self) -> Clients:
        """Where AMQP clients are served."""

    @property
    def operations(self) -> Managed:
        """The operations behind management requests."""


class Listening(Protocol):
    """The listener, as a socket sees it."""

    @property
    def member(self) -> Served:
        """The member that serves."""

    def accept(self, one: ClientSocket, host: str) -> Admission | None:
        """Count the connection; None: it is refused, which is logged."""

    def tls_transport(self, raw: asyncio.Transport) -> TlsTransport:
        """A TLS handshake begins, with the certificate in force."""

    def secured(self) -> None:
        """The handshake is done."""

    def not_secured(self, peer: str, error: ssl.SSLError) -> None:
        """The handshake failed, or TLS was broken later."""

    def opened(self, one: Admission) -> None:
        """The client has logged in."""

    def closed(self, one: Admission) -> None:
        """The connection is gone."""

    def log(self, kind: str, text: str) -> None:
        """Log a line, unless there are too many of its kind."""


class ClientSocket(asyncio.Protocol):
    """One client socket: AMQP or management, by its first bytes."""

    def __init__(self, listener: Listening, *, tls: bool) -> None:
        self._listener, self._tls = listener, tls
        self.peer = "unknown"
        self.transport: asyncio.Transport | None = None
        self._secure: TlsTransport | None = None
        self._encryption: Encryption | None = None
        self._admission: Admission | None = None
        self._first = b""
        self._link: ClientLink | None = None
        self._management: ManagementSession | None = None
        self._asked_at = 0.0
        self._is_full = False  # its answers wait until it reads them
        self._reads = True  # requests

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        # Not every loop's transport derives from asyncio.Transport (uvloop's does not).
        self.transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        host = ""
        if isinstance(name, tuple):
            host, self.peer = str(name[0]), f"{name[0]}:{name[1]}"
        self._admission = self._listener.accept(self, host)
        if self._admission is None:
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        if self._tls:
            self.transport = self._secure = self._listener.tls_transport(self.transport)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived: plain, or decrypted by TLS."""
        tls = self._secure
        if tls is None:
            self._received(data)
            return
        if tls.ended:
            return
        try:
            data = tls.receive(data)
        except ssl.SSLError as error:
            self._listener.not_secured(self.peer, error)
            tls.close()
            return
        if tls.is_open and self._encryption is None:
            self._encryption = encryption_of(tls.connection)
            self._listener.secured()
        if data:
            self._received(data)
        if tls.ended:
            tls.close()

    def _received(self, data: bytes) -> None:
        """The first eight bytes decide which protocol it is."""
        if self._link is not None:
            self._link.data_received(data)
            self._look_whether_open(self._link)
        elif self._management is not None:
            self._answer(data)
        else:
            self._first += data
            self._choose()

    def _choose(self) -> None:
        assert self.transport is not None
        if PREAMBLE.startswith(self._first[:8]):
            if len(self._first) >= len(PREAMBLE):
                self._asked_at = time.monotonic()
                self._management = ManagementSession(
                    self._listener.member.operations, self.peer, self._write_answers
                )
                self._answer(self._first[len(PREAMBLE) :])
            return
        if not self._tls and self._first.startswith(TLS_RECORD):
            text = f"client {self.peer} speaks TLS at the port without it; see --tls-port"
            self._listener.log("refused", text)
        self._link = self._listener.member.clients.connect(
            self.peer, self.transport, self._encryption
        )
        self._link.data_received(self._first)
        self._first = b""
        self._look_whether_open(self._link)

    def _look_whether_open(self, link: ClientLink) -> None:
        if self._admission is not None and link.client.conn:
            self._listener.opened(self._admission)

    def _answer(self, data: bytes) -> None:
        assert self._management is not None
        self._write_answers(self._management.data_received(data))

    def _write_answers(self, answers: bytes) -> None:
        """Reply to requests; while one waits no more are read."""
        session, transport = self._management, self.transport
        assert session is not None
        assert transport is not None
        if transport.is_closing():
            return
        if answers:
            self._asked_at = time.monotonic()
            transport.write(answers)
        if session.closing:
            transport.close()
        elif not self._is_full:
            self._read(on=not session.is_waiting)

    def _read(self, *, on: bool) -> None:
        """Stop or resume reading requests."""
        assert self.transport is not None
        if on is self._reads or self.transport.is_closing():
            return
        self._reads = on
        if on:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def overdue(self, now: float) -> bool:
        """Called when the time to log in is over: whether to close the socket for that.

        An AMQP client has its own time limit, and is told why it is closed.
        """
        if self._link is not None:
            self._look_whether_open(self._link)
            return False
        if self._management is not None:
            return now - self._asked_at > MANAGEMENT_IDLE_S
        return True

    def abort(self) -> None:
        """Close it at once."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._admission is not None:
            self._listener.closed(self._admission)
        if self._link is not None:
            self._link.connection_lost()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        if self._link is not None:
            self._link.pause_writing()
        elif self._management is not None:
            self._is_full = True
            self._read(on=False)  # no more answers than it reads

    def resume_writing(self) -> None:
        """The client caught up."""
        if self._link is not None:
            self._link.resume_writing()
        elif self._management is not None:
            self._is_full = False
            self._read(on=not self._management.is_waiting)
