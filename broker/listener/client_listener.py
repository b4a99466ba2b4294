"""The client ports: bound before the store is touched, opened when the member serves.

Each new connection takes the TLS files and limits in force when it arrives, so both can be changed
while the broker runs; open connections keep theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import socket
import ssl
import stat
import time
from pathlib import Path

from broker.access.acl_file import Acl, BadAclFile, read_acl
from broker.access.backends import Backends, BadUserFile, FileUser, read_users
from broker.listener.client_socket import ClientSocket, Served
from broker.listener.connection_limits import Admission, ConnectionLimits, NotLetIn
from broker.listener.http_wire import HttpWire
from broker.listener.ports import Port, bind, bind_sentence
from broker.listener.ports import PortTaken as PortTaken
from broker.listener.tls import ServerTls, server_tls, tls_reason
from broker.listener.tls import TlsFileError as TlsFileError
from broker.listener.tls_transport import TlsTransport
from broker.options.access import AccessOptions
from broker.options.client_ports import ClientLimits, TlsOptions
from broker.rationed_log import RationedLog

log = logging.getLogger("qpidd.client")

BACKLOG = 512
SWEEP_S = 0.25
OPEN_FILES_WANTED = 65_536
LEVELS = {"connected": logging.INFO, "disconnected": logging.INFO}
"""Levels of log lines about clients, by kind; all other kinds are warnings."""
LIMITED_BY = {
    "refused_full": "--max-connections", "refused_of_address": "--connection-limit-per-ip",
    "refused_negotiating": "--max-negotiating",
}  # fmt: skip
"""The option of each limit."""


_ANYWHERE = re.compile(r"(?<=:)(?:0\.0\.0\.0|\[::\])(?=:\d)")
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that belong to nobody (RFC 5737, RFC 3849): choosing a route to them sends nothing."""


class AccessFileError(Exception):
    """A file of users or rules is unusable; the text names option, file and line."""


def acl_in(path: Path | None) -> Acl | None:
    """Return the rules of a file; blocks. Raises AccessFileError."""
    if path is None:
        return None
    try:
        return read_acl(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise AccessFileError(f"--acl-file {path}: {error.strerror or error}") from error
    except (BadAclFile, UnicodeDecodeError) as bad:
        raise AccessFileError(f"--acl-file {path}: {bad}") from bad


def users_in(path: Path | None) -> dict[str, FileUser]:
    """Return the users of a file; blocks. Raises AccessFileError."""
    if path is None:
        return {}
    try:
        if path.stat().st_mode & stat.S_IRWXO:
            why = f"everybody can read or write it; run: chmod o= {path}"
            raise AccessFileError(f"--auth-file {path}: {why}")
        return read_users(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise AccessFileError(f"--auth-file {path}: {error.strerror or error}") from error
    except (BadUserFile, UnicodeDecodeError) as bad:
        raise AccessFileError(f"--auth-file {path}: {bad}") from bad


class ClientListener:
    """All client ports of one member."""

    def __init__(self, limits: ClientLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = ConnectionLimits(limits, raise_open_files())
        self.tls: ServerTls | None = None
        self.backends = Backends()
        self._auth: HttpWire | None = None
        self.log = RationedLog(_write, time.monotonic)
        self._loop = loop
        self._member: Served | None = None
        self._ports: list[Port] = []
        self._sockets: dict[Admission, ClientSocket] = {}
        self._counters = {"tls_handshakes": 0, "tls_handshakes_failed": 0}
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def member(self) -> Served:
        """The member that serves."""
        assert self._member is not None
        return self._member

    @property
    def negotiate_s(self) -> float:
        """How long a client may take to log in."""
        return self.limits.limits.negotiate_s

    @property
    def counters(self) -> dict[str, int]:
        """Return the counters kept here; the caller adds the prefix `listener.`."""
        return {
            **self._counters, **self.limits.counters,
            "negotiating": self.limits.negotiating, "sockets": self.limits.connections,
        }  # fmt: skip

    def refused(self) -> int:
        """How many connections the limits refused."""
        return sum(self.limits.counters[name] for name in LIMITED_BY)

    def begin_tls(self, options: TlsOptions) -> None:
        """Read the files at the start. Raises TlsFileError."""
        self.tls = server_tls(options)
        log.info("TLS: %s", self.tls.describe())
        if self.tls.warning:
            log.warning("TLS: %s", self.tls.warning)

    def begin_access(self, options: AccessOptions) -> None:
        """Read the files of users and rules at the start, and prepare to ask a server.

        Raises AccessFileError, TlsFileError.
        """
        users, acl = users_in(options.user_file), acl_in(options.acl_file)
        server = None
        if options.http is not None:
            self._auth = HttpWire(options.http, self._loop, self.log)
            server = self._auth.server
        self.backends = Backends(options.backends, users, acl, server)
        if acl is not None:
            log.info("rules in place of permissions, in %s: %d", options.acl_file, len(acl))
        if options.user_file is not None:
            log.info("users in %s: %d", options.user_file, len(users))

    async def bind(self, host: str, port: int, *, tls: bool = False) -> int:
        """Bind the port and return its number; nobody is served yet. Raises PortTaken."""
        try:
            bound = await bind(lambda: ClientSocket(self, tls=tls), host, port, BACKLOG)
        except OSError as error:
            option = "--tls-port" if tls else "--port"
            raise PortTaken(bind_sentence(host, port, option, error)) from error
        self._ports.append(bound)
        return bound.number

    async def serve(self, member: Served) -> None:
        """Let clients in. Raises PortTaken."""
        self._member = member
        for port in self._ports:
            await port.open(BACKLOG)
        self._sweep()

    async def close(self) -> None:
        """Release the ports; connections are not touched."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._auth is not None:
            await self._auth.close()
        for port in self._ports:
            port.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                for port in self._ports:
                    await port.wait_closed()

    # -- called by sockets (`Listening`) ---------------------------------------------------------

    def accept(self, one: ClientSocket, host: str) -> Admission | None:
        """Count the connection; None: it is refused, which is logged."""
        found = self.limits.accept(host, time.monotonic())
        if isinstance(found, NotLetIn):
            option = LIMITED_BY[found.counter]
            self.log("refused", f"client {one.peer} is not let in: {found.reason} ({option})")
            return None
        self._sockets[found] = one
        return found

    def opened(self, one: Admission) -> None:
        """The client has logged in."""
        self.limits.opened(one)

    def closed(self, one: Admission) -> None:
        """The connection is gone."""
        self.limits.closed(one)
        self._sockets.pop(one, None)

    def tls_context(self) -> ssl.SSLContext:
        """Return the context that encrypts new connections; TLS is in use."""
        assert self.tls is not None
        return self.tls.context

    def tls_transport(self, raw: asyncio.Transport) -> TlsTransport:
        """A TLS handshake begins, with the certificate in force."""
        assert self.tls is not None
        return TlsTransport(raw, self.tls.context)

    def secured(self) -> None:
        """The handshake is done."""
        self._counters["tls_handshakes"] += 1

    def not_secured(self, peer: str, error: ssl.SSLError) -> None:
        """The handshake failed, or TLS was broken later."""
        self._counters["tls_handshakes_failed"] += 1
        self.log("tls", f"client {peer}: TLS failed: {tls_reason(error)}")

    def _sweep(self) -> None:
        """End connections that negotiate for too long."""
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)
        now = time.monotonic()
        for admission in self.limits.overdue(now):
            one = self._sockets.get(admission)
            if one is not None and one.overdue(now):
                self.limits.counters["negotiation_timeouts"] += 1
                seconds = self.limits.limits.negotiate_s
                self.log("slow", f"client {one.peer} is closed: it said nothing in {seconds:g} s")
                one.abort()
        self.log.wake()


def _write(kind: str, text: str) -> None:
    log.log(LEVELS.get(kind, logging.WARNING), "%s", text)


def reachable(url: str) -> str:
    """The URL for others. 0.0.0.0 and :: are no addresses for a client: in their place it has the
    address by which this machine reaches other networks, or its name."""
    return _ANYWHERE.sub(lambda match: _own_address(match[0]), url)


def _own_address(anywhere: str) -> str:
    families = [socket.AF_INET6, socket.AF_INET] if anywhere == "[::]" else [socket.AF_INET]
    for family in families:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as tried:
                tried.connect((_ELSEWHERE[family], 9))
                found = str(tried.getsockname()[0])
        except OSError:  # no route to other networks
            continue
        return f"[{found}]" if family == socket.AF_INET6 else found
    return socket.gethostname()


def raise_open_files() -> int:
    """Raise this process's limit of open files as far as it may; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return OPEN_FILES_WANTED if soft == resource.RLIM_INFINITY else soft
