"""Frames between members over pyzmq: one bound PULL socket, one connected PUSH socket per peer.

This module moves whole frames and knows nothing of their content. A frame may be lost, late or
doubled (docs/decisions/0019-any-frame-may-be-lost.md); the ring repairs that, so a send never waits
and a refused send is only counted. Data and token of one member share one connection, hence a token
cannot overtake the data of the member that passed it. With PUSH, unlike PUB, the sender sees the
refusal of each peer.

Two facts of libzmq shape the code. The descriptor of a socket signals *edges*: once it is readable,
the socket must be read until it is empty or asked for its events again, or the next signal never
comes. And a non-blocking send may fail only because libzmq has not yet read its own mailbox (it
does so about once a millisecond); asking for the events makes it read the mailbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Final, Protocol

import zmq

from vsync.errors import VsyncError
from vsync.io.link_monitor import LinkHint, LinkMonitor
from vsync.io.peer_link import Link
from vsync.io.security import Anonymous, Authenticator, KeyRefused, Security

HIGH_WATER_FRAMES: Final = 128
"""Frames that may wait for one peer, on either side: twice the ring's window, so that only a peer
that is far behind loses frames."""
RECONNECT_MS: Final = 20
RECONNECT_MS_MAX: Final = 100
"""A member that comes back is reconnected within this time."""
CONNECT_MS: Final = 300
"""An attempt without an answer is given up and restarted after this time. The kernel would repeat
its own after 1, 3, 7 s and so on, and notice as late that a network is back."""
HANDSHAKE_MS: Final = 2_000
"""A paused peer's kernel still accepts connections; without this bound the link to it would be down
for half a minute after it resumes."""
UNACKNOWLEDGED_MS: Final = 5_000
"""How long the kernel may retransmit on a dead connection before it is closed and reopened."""
IDLE_S: Final = 10
PROBE_S: Final = 5
"""A connection that has brought nothing for so long is asked whether it still exists, so often. Who
receives sends nothing by itself: if a peer lost its power, or gave a connection up while the
network was cut, the connection would otherwise stay open here until this process ends."""

HAIL_MS: Final = 500
"""How long one frame to an address that is no peer may take, including the connection."""

FEW_FRAMES: Final = 3
READS_A_FRAME: Final = 4

SHARED_BYTES_MIN: Final = 8192
"""From this size on a broadcast frame goes to libzmq once: it costs an object, and saves a copy."""

_NOBLOCK: Final = int(zmq.NOBLOCK)
_POLLIN: Final = int(zmq.POLLIN)
_POLLOUT: Final = int(zmq.POLLOUT)


class TransportError(VsyncError):
    """A socket is unavailable: its address is in use, not of this machine, or malformed."""


class Transport(Protocol):
    """The driver's view of a network; every method returns at once."""

    counters: dict[str, int]

    @property
    def address(self) -> str:
        """Address of this member, "host:port", with the port actually bound."""

    def fileno(self) -> int:
        """Return the descriptor to watch for reading. It may signal edges only."""

    def auth_fileno(self) -> int:
        """Return the descriptor that signals authentication requests for `maintain`; -1: none."""

    def watch(
        self, loop: asyncio.AbstractEventLoop, maintain: Callable[[], None], on_hint: LinkHint
    ) -> None:
        """Call `maintain` when a link has events, and `on_hint` when a link breaks or its peer's
        host refuses connections. Lasts until `close`; call it once."""

    def maintain(self, now: float) -> None:
        """Authenticate connections, reload keys, reconnect. Also call it several times a second."""

    def receive(self, limit: int, *, expected: bool = True) -> list[bytes]:
        """Return up to `limit` frames. Fewer than `limit`: the queue was empty. Exactly `limit`:
        call again without waiting for the descriptor. `expected`: there most likely is a frame."""

    def connect(self, address: str) -> None:
        """Make `address` a peer.  Idempotent; raises TransportError for a malformed address."""

    def forget(self, address: str) -> None:
        """Drop the peer and the frames that wait for it.  Idempotent."""

    def send(self, address: str, frame: bytes) -> bool:
        """Send a frame to one peer, connecting if necessary. False: lost, and counted."""

    def hail(self, address: str, frame: bytes) -> None:
        """Send one frame to an address without making it a peer; it may be lost."""

    def broadcast(self, frame: bytes) -> int:
        """Send a frame to every peer; return the number of peers it was queued for."""

    def close(self, linger_ms: int = 0) -> None:
        """Release everything. Waiting frames have at most `linger_ms` to be sent. Idempotent."""


class ZmqTransport:
    """Transport over TCP. Belongs to one thread; owns its context, so closing frees all sockets.

    When bound to all interfaces it needs the `host` at which the others reach this member.
    """

    def __init__(
        self, bind: str, max_frame_bytes: int, host: str = "", security: Security | None = None
    ) -> None:
        local, port = resolve(bind)
        if local in ("0.0.0.0", "::") and not host:
            message = f"no member can connect to {bind}: bind to one address, or name the host"
            raise TransportError(message)
        self.counters: dict[str, int] = {
            "frames_sent": 0,
            "frames_received": 0,
            "bytes_sent": 0,
            "bytes_received": 0,
            "sends_lost": 0,
            "sends_to_nowhere": 0,
            "dials_repeated": 0,
            "hails": 0,
        }
        self._frame_bytes_max = max_frame_bytes
        self._peers: dict[str, Link] = {}
        self._monitor: LinkMonitor | None = None
        self.security: Security = security if security is not None else Anonymous()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._auth = (
            Authenticator(self._context, self.security) if self.security.authenticates else None
        )
        self._pull = self._context.socket(zmq.PULL)
        _prepare(self._pull)
        self.security.listen(self._pull)
        if self._auth is not None:
            self._auth.guard(self._pull)
            self.counters |= self._auth.counters
            self._auth.counters = self.counters
        self._pull.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self._pull.setsockopt(zmq.TCP_KEEPALIVE_IDLE, IDLE_S)
        self._pull.setsockopt(zmq.TCP_KEEPALIVE_INTVL, PROBE_S)
        self._pull.setsockopt(zmq.RCVHWM, HIGH_WATER_FRAMES)
        self._pull.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self._pull.setsockopt(zmq.IPV6, int(":" in local))
        try:
            self._pull.bind(f"tcp://{_join(local, port)}")
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(not_listening(bind, error)) from None
        bound = self._pull.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")
        self._address = _join(host, parse_address(bound)[1]) if host else bound

    @property
    def address(self) -> str:
        return self._address

    @property
    def peers(self) -> tuple[str, ...]:
        """The addresses that receive a broadcast, in the order in which they were connected."""
        return tuple(self._peers)

    def fileno(self) -> int:
        return int(self._pull.getsockopt(zmq.FD))

    @property
    def refusals(self) -> dict[str, KeyRefused]:
        """Peers that were reached and refused the connection, with their reasons."""
        return {a: peer.refusal for a, peer in self._peers.items() if peer.refusal is not None}

    def reached(self, address: str) -> bool:
        """Return whether a peer is connected, or answered with a refusal."""
        peer = self._peers.get(address)
        return peer is not None and (peer.up or peer.refusal is not None)

    def auth_fileno(self) -> int:
        return -1 if self._auth is None else self._auth.fileno()

    def watch(
        self, loop: asyncio.AbstractEventLoop, maintain: Callable[[], None], on_hint: LinkHint
    ) -> None:
        self._monitor = LinkMonitor(loop, maintain, on_hint, self.counters)
        for peer in self._peers.values():
            self._monitor.watch(peer.address, peer.fileno())

    def maintain(self, now: float) -> None:
        if self._auth is not None:
            self._auth.reply()
        self.security.refresh(now)
        dial: list[Link] = []
        for peer in tuple(self._peers.values()):
            if peer.maintain(now):
                dial.append(peer)
            if self._monitor is not None:
                self._monitor.update(peer.address, peer.broken, peer.breaks)
        for peer in dial:
            self.counters["dials_repeated"] += 1
            try:
                self._unwatch(peer.address)
                peer.replace()
                self._dial(peer)
            except (zmq.ZMQError, TransportError):  # no socket to be had: a send tries again
                self._peers.pop(peer.address)

    def receive(self, limit: int, *, expected: bool = True) -> list[bytes]:
        # Reading from an empty queue costs an exception, 5 us; asking for the events costs 2 us.
        # Usually there is one frame when this is called, a lone token: so read, then ask, and let a
        # burst end with the exception. Copying 16-32 KiB costs less than tracking a zmq.Frame.
        frames: list[bytes] = []
        pull, binds = self._pull, self.security.binds
        try:
            # A frame under a false name counts as read but not as received: hence a second bound.
            for reads in range(READS_A_FRAME * limit):
                if (0 < reads < FEW_FRAMES or not expected) and not _readable(pull):
                    break
                if binds:
                    self._receive_bound(frames)
                else:
                    frames.append(pull.recv(_NOBLOCK))
                if len(frames) == limit:
                    break
        except zmq.Again:
            pass
        if frames:
            self.counters["frames_received"] += len(frames)
            self.counters["bytes_received"] += sum(map(len, frames))
        return frames

    def _receive_bound(self, frames: list[bytes]) -> None:
        """Read one message; keep it if its sender owns the key of its connection."""
        message = self._pull.recv(_NOBLOCK, copy=False)
        frame = message.bytes
        if code := self.security.check(str(message.get("User-Id")), frame):
            self.counters[code] = self.counters.get(code, 0) + 1
        else:
            frames.append(frame)

    def connect(self, address: str) -> None:
        if address in self._peers or address == self._address:
            return
        parse_address(address)
        peer = Link(self._context, address, self.security)
        self._dial(peer)
        self._peers[address] = peer

    def _dial(self, peer: Link) -> None:
        push, address = peer.push, peer.address
        _prepare(push)
        push.setsockopt(zmq.SNDHWM, HIGH_WATER_FRAMES)
        # Without IMMEDIATE frames would queue for a peer that is down and reach its successor.
        push.setsockopt(zmq.IMMEDIATE, 1)
        push.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        push.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        push.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        push.setsockopt(zmq.IPV6, int(":" in parse_address(address)[0]))
        try:
            peer.dial()
        except zmq.ZMQError as error:
            peer.close(0)
            message = f"cannot send ring frames to {address}: {error.strerror or error}"
            raise TransportError(message) from None
        if self._monitor is not None:
            self._monitor.watch(address, peer.fileno())

    def _unwatch(self, address: str) -> None:
        if self._monitor is not None:
            self._monitor.forget(address)

    def forget(self, address: str) -> None:
        peer = self._peers.pop(address, None)
        if peer is not None:
            self._unwatch(address)
            peer.close(0)

    def send(self, address: str, frame: bytes) -> bool:
        peer = self._peers.get(address)
        if peer is None:
            with contextlib.suppress(TransportError):  # its address is malformed: counted below
                self.connect(address)
            peer = self._peers.get(address)
            if peer is None:
                self.counters["sends_to_nowhere"] += 1
                return False
        return self._send(peer, frame)

    def hail(self, address: str, frame: bytes) -> None:
        if address in self._peers:
            self.send(address, frame)
            return
        self.counters["hails"] += 1
        link = Link(self._context, address, self.security)
        # The frame waits for the connection, and libzmq drops both when the linger time is over.
        try:
            parse_address(address)
            _prepare(link.push)
            link.dial()
            link.push.send(frame, _NOBLOCK)
        except (TransportError, zmq.ZMQError):
            self.counters["sends_to_nowhere"] += 1
            link.close(0)
        else:
            link.close(HAIL_MS)

    def broadcast(self, frame: bytes) -> int:
        # libzmq gets one copy of a large frame for all peers: two of 32 KB cost four times as much.
        shared = frame if len(frame) < SHARED_BYTES_MIN else zmq.Frame(frame, copy=True)
        return sum([self._send(peer, shared) for peer in self._peers.values()])

    def close(self, linger_ms: int = 0) -> None:
        if self._context.closed:
            return
        for peer in self._peers.values():
            self._unwatch(peer.address)
            peer.close(linger_ms)
        self._peers.clear()
        if self._auth is not None:
            self._auth.close()
        self._pull.close(0)
        self._context.term()

    def _send(self, peer: Link, frame: bytes | zmq.Frame) -> bool:
        assert len(frame) <= self._frame_bytes_max, f"a frame of {len(frame)} bytes"
        # Once refused, ask before the next attempt: saves the exception for a peer that is down.
        if peer.refused and not _writable(peer.push):
            self.counters["sends_lost"] += 1
            return False
        try:
            peer.push.send(frame, _NOBLOCK)
        except zmq.Again:
            if not _writable(peer.push) or not _retry(peer.push, frame):
                peer.refused = True
                self.counters["sends_lost"] += 1
                return False
        peer.refused = False
        self.counters["frames_sent"] += 1
        self.counters["bytes_sent"] += len(frame)
        return True


def parse_address(address: str) -> tuple[str, int]:
    """Split "host:port" or "[v6]:port". Raises TransportError with what is wrong."""
    host, colon, digits = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    port = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 5 else -1
    if not colon or not bare or (":" in bare) != bracketed or any(map(_odd, bare)):
        message = f"{address!r} is not a ring address: expected host:port"
        raise TransportError(message)
    if not 0 <= port <= 65_535:
        message = f"{address!r} is not a ring address: port must be a number up to 65535"
        raise TransportError(message)
    return bare, port


def resolve(address: str) -> tuple[str, int]:
    """Like parse_address, with the host as a number, because libzmq binds to numbers only."""
    host, port = parse_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TransportError(not_listening(address, error)) from None
    return str(found[0][4][0]), port


def not_listening(address: str, error: OSError | zmq.ZMQError) -> str:
    """Return, in a sentence, why there is no socket at an address, and what to do."""
    what = f"cannot listen for ring frames on {address}"
    if isinstance(error, socket.gaierror):
        return f"{what}: the name cannot be resolved; give the number of this machine's address"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{what}: another program listens there; stop it, or give another address"
        case errno.EADDRNOTAVAIL | errno.ENODEV:
            return f"{what}: this machine has no such address; give one of its own"
        case errno.EACCES:
            return f"{what}: not permitted to this user; give a port from 1024 on"
        case _:
            return f"{what}: {error.strerror or error}"


def _odd(character: str) -> bool:
    return not (character.isascii() and (character.isalnum() or character in ".-_:%"))


def _join(host: str, port: int) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return f"{bracketed}:{port or '*'}"


def _prepare(zsocket: zmq.Socket[bytes]) -> None:
    zsocket.setsockopt(zmq.LINGER, 0)
    zsocket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    zsocket.setsockopt(zmq.TCP_MAXRT, UNACKNOWLEDGED_MS)


def _readable(pull: zmq.Socket[bytes]) -> bool:
    """Like the option EVENTS, which the binding reads three times as slowly."""
    return bool(zmq.zmq_poll([(pull, _POLLIN)], 0))


def _writable(push: zmq.Socket[bytes]) -> bool:
    return bool(int(push.getsockopt(zmq.EVENTS)) & _POLLOUT)


def _retry(push: zmq.Socket[bytes], frame: bytes | zmq.Frame) -> bool:
    try:
        push.send(frame, _NOBLOCK)
    except zmq.Again:
        return False
    return True
