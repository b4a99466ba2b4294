"""A connection of the API until a handler of requests has it: counted from its accepted socket on.

Over TLS it has its handshake here, and stays between the socket and its handler afterwards.  The
event loops' own TLS would tell nobody whose handshake it is before it is done, so that one address
could have all places with sockets that never say a word.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, cast

from broker.access.login_delays import source_of
from broker.listener.tls_transport import TlsTransport
from broker.management.json_values import text_of

HANDSHAKE_S = 5.0
HANDSHAKES_MAX = 256
HANDSHAKES_OF_ADDRESS_MAX = 32
"""One address leaves room for others; a browser opens six connections at once."""


class Door(NamedTuple):
    """What an entrance asks of the listener."""

    full: Callable[[], str]
    """Why nobody more is let in; empty: there is room."""
    enter: Callable[[asyncio.Transport, str], asyncio.Protocol | None]
    """The handler of a connection whose handshake is done, of this address; None: too many."""
    failed: Callable[[], None]
    """A handshake came to nothing."""


class Handshakes:
    """TLS handshakes that are not done: how many, of whom, and until when each may take."""

    def __init__(self) -> None:
        self._until: dict[Entrance, float] = {}
        self._of_source: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, one: Entrance, now: float) -> bool:
        """Count it, if there is room for it."""
        if len(self) >= HANDSHAKES_MAX or self._of_source[one.source] >= HANDSHAKES_OF_ADDRESS_MAX:
            return False
        self._until[one] = now + HANDSHAKE_S
        self._of_source[one.source] += 1
        return True

    def end(self, one: Entrance) -> None:
        """It is done, or its socket is gone; harmless when that is known already."""
        if self._until.pop(one, None) is not None:
            self._of_source -= Counter((one.source,))

    def reap(self, now: float) -> int:
        """Close those that take too long; return how many."""
        late = [one for one, until in self._until.items() if until < now]
        for one in late:
            self.end(one)
            one.abort()
        return len(late)


class Entrance(asyncio.Protocol):
    """One accepted socket of the API."""

    def __init__(self, door: Door, handshakes: Handshakes, tls: ssl.SSLContext | None) -> None:
        self.source = "unknown"
        self._door, self._handshakes, self._context = door, handshakes, tls
        self._raw: asyncio.Transport | None = None
        self._tls: TlsTransport | None = None
        self._handler: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        # Not every loop's transport derives from asyncio.Transport (uvloop's does not).
        self._raw = raw = cast("asyncio.Transport", transport)
        self.source = source_of(host_of(raw))
        reason = self._door.full()
        if self._context is None:
            handler = None if refused(raw, reason) else self._door.enter(raw, self.source)
            if handler is not None:
                raw.set_protocol(handler)
                handler.connection_made(raw)
        elif reason or not self._handshakes.begin(self, asyncio.get_running_loop().time()):
            self._door.failed()
            raw.abort()  # what it may be told, it would not understand before its handshake
        else:
            self._tls = TlsTransport(raw, self._context)

    def data_received(self, data: bytes) -> None:
        """Bytes of TLS came."""
        tls = self._tls
        if tls is None or tls.is_closing() or tls.ended:
            return
        try:
            plain = tls.receive(data)
        except ssl.SSLError:
            if not tls.is_open:
                self._door.failed()
            tls.close()
            return
        if tls.is_open and self._handler is None:
            self._handshakes.end(self)
            self._handler = self._door.enter(tls, self.source)
            if self._handler is None:
                return
            self._handler.connection_made(tls)
        if plain and self._handler is not None:
            self._handler.data_received(plain)
        if tls.ended:
            tls.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._handshakes.end(self)
        if self._handler is not None:
            self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The client caught up."""
        if self._handler is not None:
            self._handler.resume_writing()

    def abort(self) -> None:
        """Close it at once."""
        assert self._raw is not None
        self._raw.abort()


def refused(transport: asyncio.Transport, reason: str) -> bool:
    """If there is a reason against a connection: tell it, and close."""
    if not reason:
        return False
    body = text_of({"error": "too_many_connections", "reason": reason})
    transport.write(
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    transport.close()
    return True


def host_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other side."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else "unknown"
