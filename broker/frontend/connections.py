"""The sockets of clients: between their transports and the gateway and outbox of this member.

The gateway and the outbox know no sockets; this module knows nothing of AMQP. It moves bytes,
keeps slow readers from filling memory, and stops reading publishers while the ring has no room.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from broker.access.access import Access
from broker.access.backends import Backends, Login
from broker.amqp.handshake import Limits, announced
from broker.frontend.channel import ChannelFacts
from broker.frontend.client import Client
from broker.frontend.encryption import Encryption
from broker.frontend.entry.admission import is_ordinary
from broker.frontend.gateway import Gateway
from broker.frontend.outbox import Outbox
from broker.histogram import Histogram
from broker.machine.commands import Command
from broker.machine.effects import Defined, Effect
from broker.machine.state import State
from broker.options.access import AccessOptions
from broker.options.client_ports import ClientLimits

CLIENT_TEXTS = ("product", "version", "platform", "information", "connection_name")
"""The client properties that operators are shown."""
CLIENT_TEXT_MAX = 256
PIECE_BYTES_MAX = 1 << 20
"""Output goes to a transport in pieces of this size, as the client reads it, because a transport
copies the bytes that its socket does not take."""
DRAIN_S = 30.0
"""How long a client may take to read the reason after its connection was closed."""
LOOK_S = 0.05
"""The interval for checking whether anything came from clients, while that is watched."""
LINGER_S = 5.0
"""How long input is then still read and dropped, until the client closes its side: closing at once
with unread input resets the connection, and a client that is writing gets an error instead of the
last replies."""


def is_loopback(peer: str) -> bool:
    """Whether `peer` ("host:port") is this machine."""
    try:
        return ipaddress.ip_address(peer.rsplit(":", 1)[0].strip("[]")).is_loopback
    except ValueError:
        return False


HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
"""A frame that needs no reply, but that the client's kernel acknowledges."""
GRAIN_MS = 20
"""The kernel's clock is no finer."""
_TIMES = struct.Struct("<52xII")
"""In `tcp_info`: milliseconds since data, and since an acknowledgement, last came."""
_TCP_INFO = getattr(socket, "TCP_INFO", None)


class Options(Protocol):
    """The operator's options that concern clients."""

    @property
    def cluster_name(self) -> str:
        """The name of the cluster."""

    @property
    def access(self) -> AccessOptions:
        """How clients log in."""

    @property
    def clients(self) -> ClientLimits:
        """The limits for clients."""


class ClientPorts(Protocol):
    """The ports that clients connect to."""

    @property
    def counters(self) -> dict[str, int]:
        """Return the ports' counters."""

    @property
    def negotiate_s(self) -> float:
        """How long a client may take to log in."""

    @property
    def backends(self) -> Backends:
        """The back ends that know the users."""

    @property
    def log(self) -> Callable[[str, str], None]:
        """A log about clients, by kind of line and text, that clients cannot flood."""


class ClientLink:
    """One client's transport and its half in the gateway."""

    def __init__(self, owner: Connections, client: Client, transport: asyncio.Transport) -> None:
        self.client, self.transport = client, transport
        self.full = False  # the transport takes no more for now
        self._ended = False  # the last of the output is written
        self.reading = True
        self._unread_since: float | None = None  # because it does not read either
        self.received = self.sent = 0  # bytes
        self.connected_at_ms = round(time.time() * 1000)  # shown only: the same at each look
        self._rest = memoryview(b"")  # output that was taken and not handed over yet
        self._owner = owner

    @property
    def conn(self) -> int:
        """The machine's number of the connection; 0: it has none."""
        return self.client.conn

    def details(self, now: float) -> dict[str, object]:
        """Return the facts that only this member knows, by RabbitMQ's management names."""
        client, connection = self.client, self.client.connection
        return {
            "connected_s": round(now - client.connected_at),
            "connected_at": self.connected_at_ms,
            "auth_mechanism": connection.mechanism,
            "timeout": connection.heartbeat_s,
            "channel_max": connection.channel_max,
            "frame_max": connection.frame_bytes_max,
            "capabilities": " ".join(announced(connection.client_properties))[:CLIENT_TEXT_MAX],
            **(client.encryption.details() if client.encryption else {"ssl": False}),
            **{
                name: value[:CLIENT_TEXT_MAX]
                for name in CLIENT_TEXTS
                if isinstance(value := connection.client_properties.get(name), str)
            },
        }

    def channels(self) -> Iterator[tuple[int, ChannelFacts]]:
        """Return the facts that only this member knows of the channels, by number."""
        for number, channel in self.client.channels.items():
            yield number, channel.facts()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        self.received += len(data)
        self._owner.gateway.data_received(self.client, data, time.monotonic())
        self._owner.on_work()

    def connection_lost(self) -> None:
        """The socket is gone."""
        self._owner.forget(self)
        self._owner.gateway.connection_lost(self.client)
        self._owner.on_work()

    def pause_writing(self) -> None:
        """The client reads slower than we write: keep its output in the gateway."""
        self.full = True

    def resume_writing(self) -> None:
        """Continue with the output that was kept."""
        self.full = False
        self._owner.gateway.mark_writable(self.client)
        self._owner.on_work()

    def write(self) -> None:
        """Hand over the output; a client that does not read is not read either."""
        if self._ended or self.transport.is_closing():
            return
        ending = self.client.wants_close
        # The last output is short and always goes out; closing then waits for it to drain.
        if self._rest:
            self._write_rest(ending)
        if ending or not self.full:
            data = self._take()
            if data:
                self.sent += len(data)
                self._owner.bytes_out += len(data)
                if len(data) > PIECE_BYTES_MAX:
                    self._rest = memoryview(data)
                    self._write_rest(ending)
                else:
                    self.transport.write(data)
        if ending:
            self._end()
            return
        if self.client.connection.ahead and not self.full:  # more of it in the next turn
            self._owner.gateway.mark_writable(self.client)
            self._owner.on_work()
        self.read(on=self.client.may_be_read)

    def _write_rest(self, ending: bool) -> None:
        """Hand over the taken output, as far as the client reads."""
        while self._rest and (ending or not self.full):
            self.transport.write(self._rest[:PIECE_BYTES_MAX])
            self._rest = self._rest[PIECE_BYTES_MAX:]

    def _end(self) -> None:
        """Close our side; do not wait for a client that never logged in.

        The side that closed the connection also closes the socket: a library that sees our end
        while it still handles our close-ok reports a lost connection (the one for Go does).
        """
        self._ended = True
        by_client = self.client.connection.closed_by_client
        if self.client.conn_was and (by_client or self.transport.can_write_eof()):
            self.read(on=True)
            if not by_client:
                self.transport.write_eof()
            self._owner.later(LINGER_S, self.transport.close)
        else:
            self.transport.close()
        self._owner.later(DRAIN_S, self.transport.abort)

    def _take(self) -> bytes | bytearray:
        client = self.client
        if not self._owner.may_reply:
            return client.connection.take_output()  # nothing that counts as sent
        if client.connection.ahead.held:
            client.connection.release_output()
        return client.take_output()

    def probe(self) -> None:
        """Make the client's kernel answer, if it is there."""
        if not (self._rest or self.full or self._ended or self.transport.is_closing()):
            self.transport.write(HEARTBEAT)

    def is_silent(self, now: float) -> bool:
        """Whether a client that is not read, because it reads nothing itself, has sent nothing for
        two heartbeats either. Looked at twice in each."""
        limit_s = 2 * self.client.connection.heartbeat_s
        if self.reading or not limit_s or self.client.waits_for_us:
            self._unread_since = None
            return False
        if self._unread_since is None:
            self._unread_since = now
        silent_s = now - self._unread_since
        return silent_s >= limit_s and not heard_within(self.transport, limit_s, by_data=True)

    def read(self, *, on: bool) -> None:
        """Stop or resume reading the client."""
        if on is not self.reading and not self.transport.is_closing():
            self.reading = on
            if on:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()
            self.client.reading(on, time.monotonic())


class Connections:
    """All clients of one member, with their sockets."""

    def __init__(
        self,
        member: str,
        options: Options,
        on_work: Callable[[], None],
        later: Callable[[float, Callable[[], object]], object],
        ports: ClientPorts,
        on_defined: Callable[[Defined], None],
        state: Callable[[], State],
    ) -> None:
        self.on_work, self.later, self._state = on_work, later, state
        self.gateway = Gateway(
            member,
            cluster=options.cluster_name,
            access=Access(state, options.access.loopback_users, ports.backends),
            limits=Limits(
                heartbeat_s=options.clients.heartbeat_s,
                handshake_s=ports.negotiate_s,
                message_bytes_max=options.clients.message_bytes,
            ),
            log=ports.log,
            on_defined=on_defined,
            cert_login_from=options.access.cert_login_from,
            anonymous_user=options.access.anonymous_user,
            on_work=on_work,
        )
        self.gateway.consumer_timeout_s = options.clients.consumer_timeout_s
        self.outbox = Outbox(self.gateway)
        self._links: dict[Client, ClientLink] = {}
        self._paused = False
        self._watched_since = self._look_at = 0.0
        self.may_reply = False
        self.bytes_out = self.confirmed = 0
        self.confirm_took = Histogram()

    @property
    def counters(self) -> dict[str, int]:
        """Return what the gateway counted."""
        own = {"connected": len(self._links), "confirmed": self.confirmed,
               "bytes_out": self.bytes_out}  # fmt: skip
        return {**self.gateway.counters, **own}

    @property
    def auth_counters(self) -> dict[str, int]:
        """Return the counters of the server that is asked about users; empty without one."""
        server = self.gateway.access.server
        return server.counters if server is not None else {}

    def links(self) -> list[ClientLink]:
        """Return the sockets of all clients."""
        return list(self._links.values())

    @property
    def durable_mark(self) -> int:
        """Return the position up to which confirms were released."""
        return self.outbox.durable_position

    def connect(
        self, peer: str, transport: asyncio.Transport, encryption: Encryption | None = None
    ) -> ClientLink:
        """Take an accepted socket, after its TLS handshake if there is one."""
        self.gateway.identify(self._state().cluster_id)
        client = self.gateway.connect(peer, is_loopback(peer), time.monotonic(), encryption)
        link = ClientLink(self, client, transport)
        self._links[client] = link
        return link

    def attach(
        self, peer: str, user: str, purpose: str, transport: asyncio.Transport, login: Login
    ) -> ClientLink:
        """Connect a client of this process, without a socket: `user` is already logged in by this
        login, and the log names the client by its `purpose`."""
        link = self.connect(peer, transport)
        link.client.purpose, link.client.login = purpose, login
        link.client.connection.trust(user)
        return link

    def forget(self, link: ClientLink) -> None:
        """A socket is gone."""
        self._links.pop(link.client, None)

    def disconnect(self, address: str, reason: str) -> None:
        """Close the connection from `address`."""
        self.gateway.disconnect(address, reason)
        self.on_work()

    def drain(self, reason: str) -> None:
        """Close all connections and refuse new ones for this reason; empty: let clients in."""
        self.gateway.drain(reason)
        self.on_work()

    def stand_by(self, reason: str, *, briefly: bool, holds: bool = False) -> None:
        """Let in only operators, and disconnect all others; empty: let clients in."""
        self.gateway.stand_by(reason, briefly=briefly, holds=holds)
        self.on_work()

    # -- looked at by one of a pair --------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether a client other than an operator's is connected."""
        return any(map(is_ordinary, self.gateway.clients.values()))

    def watch(self, *, on: bool) -> None:
        """Start or stop noticing input from clients."""
        self.gateway.admission.watch(on=on)
        self._watched_since = self._look_at = time.monotonic()
        for link in self._ordinary_links() if on else ():
            link.probe()

    def heard(self) -> bool:
        """Whether a client has connected since, or a connected one has sent anything."""
        admission, now = self.gateway.admission, time.monotonic()
        if admission.watches and not admission.heard and now >= self._look_at:
            self._look_at = now + LOOK_S
            passed_s = now - self._watched_since
            admission.heard = any(
                heard_within(link.transport, passed_s) for link in self._ordinary_links()
            )
        return admission.heard

    def _ordinary_links(self) -> list[ClientLink]:
        """Return the ordinary clients' links, including those of clients that wait to be admitted,
        which may have been cut off since they came."""
        links = self._links
        return [links[client] for client in self.gateway.ordinary if client in links]

    def details(self) -> dict[str, dict[str, object]]:
        """Return the facts that only this member knows of its clients, by address."""
        now = time.monotonic()
        return {client.peer: link.details(now) for client, link in self._links.items()}

    def channel(self, conn: int, number: int) -> ChannelFacts | None:
        """Return the facts that only this member knows of a client's channel, if it is open."""
        client = self.gateway.clients.get(conn)
        found = client.channels.get(number) if client is not None else None
        return found.facts() if found is not None else None

    def take_commands(self) -> list[Command]:
        """Return clients' commands since the last turn, in order of arrival."""
        return self.gateway.take_commands()

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        """Carry out the machine's effects."""
        self.outbox.effects(effects)

    def release(self, position: int) -> None:
        """Everything up to `position` is durable on a majority."""
        self.outbox.release(position)

    def session_started(self, session: int) -> None:
        """Connections of an older session are void."""
        self.outbox.session_started(session)

    def set_aside(self) -> None:
        """Make all connections void: the releases so far belong to a discarded history."""
        self.outbox.set_aside()

    def flush(self, *, may_reply: bool, soon: bool = False) -> list[int]:
        """Write the output that is due; return the positions of the publishes that it confirms.

        `soon`: a member that may not reply now may be allowed to in a moment.

        Unless it may reply, the member writes no output of the machine, not even output encoded a
        moment before: a process that was stopped in between continues in another view. Frames of
        the protocol itself (heartbeats, a close) still go out.
        """
        if may_reply is not self.may_reply:
            self._now_may_reply(may_reply)
        self.gateway.follow_definitions()
        self.gateway.admission.admit_waiting(soon=soon)
        if confirmed := self.outbox.flush():
            self.confirmed += len(confirmed)
        if self.outbox.probed:
            now = time.monotonic()
            for at in self.outbox.probed:
                self.confirm_took.observe(now - at)
            self.outbox.probed.clear()
        for client in self.gateway.take_writable():
            link = self._links.get(client)
            if link is not None:
                link.write()
        return confirmed

    def _now_may_reply(self, may_reply: bool) -> None:
        self.may_reply = may_reply
        if may_reply:
            for client in self._links:
                self.gateway.mark_writable(client)
            self.outbox.unfence()
        else:
            for client in self._links:
                if client.conn_was:  # who is not let in yet is told nothing of the machine's
                    client.connection.hold_output()
            self.outbox.fence()

    def throttle(self, *, full: bool, large_full: bool, alarm: str) -> None:
        """Read publishers only while there is room for their messages, and accept no publishes
        during an alarm."""
        gateway = self.gateway
        if alarm != gateway.alarm and not gateway.fenced:
            gateway.block(alarm)
        wait = full or gateway.fenced
        gateway.paused = full
        if large_full or gateway.large_paused:
            gateway.large_paused = large_full
            for client in gateway.large_senders:
                if (link := self._links.get(client)) is not None:
                    link.read(on=client.may_be_read)
        if wait or self._paused:
            for link in self._links.values():
                link.read(on=link.client.may_be_read)
            self._paused = wait

    def wake(self, now: float) -> None:
        """Heartbeats and time limits."""
        self.gateway.refuse_overdue(now)
        for client, link in list(self._links.items()):
            due = client.next_timer()
            if due is not None and due <= now:
                self.gateway.wake(client, now, silent=link.is_silent(now))

    def drop_all(self, reason: str) -> None:
        """Close all connections with the reason."""
        self.gateway.drop_all(reason)
        for link in list(self._links.values()):
            link.full = False
            link.write()
            link.transport.close()


def heard_within(
    transport: asyncio.BaseTransport, seconds: float, *, by_data: bool = False
) -> bool:
    """Return whether the kernel received anything in that time; True also if it cannot tell.
    `by_data`: acknowledgements do not count, as the client's kernel sends them.

    A member of a pair that lost its peer has to know whether its clients are still there, or
    whether it was cut off itself. An open connection proves nothing: it stays open until somebody
    notices. And input may wait unread, because a publisher is not read while its member may not
    reply.
    """
    found = transport.get_extra_info("socket")
    if found is None or _TCP_INFO is None:
        return True
    try:
        data_ms, ack_ms = _TIMES.unpack(
            found.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TIMES.size)
        )
    except OSError:
        return False  # it is closed
    return bool((data_ms if by_data else min(data_ms, ack_ms)) + GRAIN_MS < seconds * 1000)
