"""The local half of clients, on the way in: bytes of many clients into one batch of commands.

It knows no socket, no loop and no clock. How its shell calls it:

    gateway = Gateway(member, access=..., new_name=..., limits=..., log=...)
    outbox = Outbox(gateway)

    client = gateway.connect("192.0.2.1:50123", is_local, now)  # a socket was accepted
    gateway.data_received(client, data, now)   # never raises; replies collect in the client
    gateway.connection_lost(client)      # the socket is gone, whoever closed it; nothing after it
    client.next_timer(), gateway.wake(client, now)  # heartbeats and time limits
    client.reading(active, now)          # whenever the shell stops or resumes to read the socket

    once per turn of the loop:
        commands = gateway.take_commands()         # all connections, in order of arrival;
                                                   # pack and submit them for gateway.session
        positions = outbox.flush()                 # see there
        for client in gateway.take_writable():     # whoever has something to send, or has ended
            data = client.take_output()            # only while the transport takes more: what
                                                   # is taken counts as sent (SENT commands)
            transport.write(data)
            if client.wants_close: transport.close()

A client that is not taken in a turn because its transport is full keeps its output; call
`take_output` when the transport drains, or name it again with `gateway.mark_writable(client)`.

Session: `session_started(session)` when this member's session begins (the effect SessionStarted
reports it too, whichever comes first). Connections of an older session are closed with 320 and are
gone for the machine, so they send no commands; what they had in the batch is dropped. Before the
first session, and while the outbox is fenced, no connection is admitted: open is refused with 320,
so that the client tries the next member on its list. But while the fence may be gone in a moment
(the member's lease is over, or the view is changing: the shell passes `soon` to `admit_waiting`), a
new client waits to be admitted or refused, for `WAIT_S` at most.

Back-pressure: the shell sets `gateway.paused` when the submission queue is full, and reads a socket
only while `client.may_be_read`, checked once per turn: not that of a publisher while `paused` or
`fenced`, and not that of a client that does not read its output. It reports every change with
`client.reading(active, now)`: a client that is not read is then not taken for silent, and our
heartbeats are still sent.

Alarm: the shell passes the reason to `gateway.block`, or nothing. While there is one, publishes and
what follows them on their channels wait in the client; the rest goes on. Only a client of which too
much waits is not read.
Decision: docs/decisions/0022-alarms-are-ordered.md.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

from broker.access.access import SYSTEM, Access, how_to_let_in
from broker.access.login_delays import LONGEST_S, LoginDelays
from broker.amqp import errors
from broker.amqp.errors import ProtocolFault, reply_text
from broker.amqp.handshake import MECHANISMS, Credentials, Limits, ServerIdentity
from broker.frontend.client import Client
from broker.frontend.dispatch import on_events, release
from broker.frontend.encryption import Encryption
from broker.machine.commands import Command
from broker.machine.effects import Defined
from broker.machine.state import Held
from broker.options.access import SOURCES

WAIT_S = 2.0
"""How long a client waits to be admitted or refused: longer than the token timeout, the forming of
a ring and the activation of its view take together, and less than any client waits."""

SLOWED = " Logins have failed from there before, so this answer came late."


def random_name(prefix: str) -> str:
    """A name that nobody else will think of: 128 random bits."""
    return prefix + base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()


def host_of(peer: str) -> str:
    """The host of "host:port"."""
    return peer.rpartition(":")[0]


class Gateway:
    """All clients of one member. See the module's text for how it is called."""

    def __init__(
        self,
        member: str,
        *,
        cluster: str = "",
        access: Access,
        limits: Limits | None = None,
        new_name: Callable[[str], str] = random_name,
        log: Callable[[str, str], None] | None = None,
        on_defined: Callable[[Defined], None] | None = None,
        cert_login_from: str = SOURCES[0],
        anonymous_user: str = "",
    ) -> None:
        self.member = member
        self.session = 0
        self.fenced = True  # kept by the outbox
        self.fenced_briefly = False  # fenced, but that may be over in a moment
        self.paused = False  # kept by the shell
        self.drained = ""  # why no client is let in, by an operator's wish
        self.alarm = ""
        self.clients: dict[int, Client] = {}  # those that the machine knows, by connection number
        self.commands: list[Command] = []
        self.counters = dict.fromkeys(
            (
                "connections", "opened", "closed", "faults", "refused", "publishes", "bytes_in",
                "blocked", "slowed",
            ),
            0,
        )  # fmt: skip
        self.new_name = new_name
        self.access = access
        self.limits = limits or Limits()
        self._cert_login_from, self._anonymous_user = cert_login_from, anonymous_user
        self.mechanisms: tuple[str, ...] = (
            (*MECHANISMS, "ANONYMOUS") if anonymous_user else MECHANISMS
        )
        self.on_defined = on_defined or (lambda _: None)
        self.identity = ServerIdentity(member=member, cluster=cluster)

        self._access_version = (0, 0, 0)  # of what was looked at last
        self._log = log
        self._everyone: dict[Client, None] = {}
        self._writable: dict[Client, None] = {}
        self._drained: dict[Client, None] = {}
        self._waiting: dict[Client, None] = {}  # to be admitted
        self._judged: dict[Client, tuple[float, str]] = {}
        """Whose verdict is known and told later: when, and who it is (empty: refused)."""
        self._last_conn = 0
        self._now = 0.0
        self.login_delays = LoginDelays()

    # -- clients ---------------------------------------------------------------------------------

    def connect(
        self, peer: str, is_local: bool, now: float, encryption: Encryption | None = None
    ) -> Client:
        """A new connection. `is_local`: from this machine's loopback address; `encryption`: of a
        TLS connection, with the certificate that the client was verified by."""
        self.counters["connections"] += 1

        def authenticate(credentials: Credentials) -> str | None:
            return self._authenticate(credentials, client)

        client = Client(self, peer, authenticate, now, encryption)
        client.is_local = is_local
        self._everyone[client] = None
        return client

    def data_received(self, client: Client, data: bytes, now: float) -> None:
        """Bytes from its socket."""
        self.counters["bytes_in"] += len(data)
        self._now = now
        on_events(client, client.connection.receive(data, now))

    def wake(self, client: Client, now: float) -> None:
        """Called at or after `client.next_timer()`."""
        on_events(client, client.connection.wake(now))

    def connection_lost(self, client: Client) -> None:
        """Its socket is gone."""
        if client.conn_was:
            why = client.end_reason or "it closed its socket without closing the connection"
            self.tell("disconnected", f"{client.describe()} disconnected: {why}")
        client.deregister()
        for clients in (self._everyone, self._writable, self._drained, self._waiting):
            clients.pop(client, None)
        self._judged.pop(client, None)
        self.counters["closed"] += 1

    def _authenticate(self, credentials: Credentials, client: Client) -> str | None:
        user, password, mechanism = credentials
        if mechanism == "EXTERNAL":
            user = self._certificate_user(client)
        elif mechanism == "ANONYMOUS":
            user = self._anonymous_user
        address, delays = host_of(client.peer), self.login_delays
        delay_s = delays.turn_s(address, user, self._now)
        if delay_s is None:
            text = f"too many logins have failed from {address}: try again in {LONGEST_S:g} s"
            self.note("slowed", f"client {client.peer}: login of '{user}' is not looked at: {text}")
            raise ProtocolFault(errors.ACCESS_REFUSED, text)
        if mechanism in ("EXTERNAL", "ANONYMOUS"):
            good = self.access.login_without_password(user, is_local=client.is_local)
        else:
            good = self.access.login(user, password, is_local=client.is_local)
        if not good and self.access.has_state:
            delays.failed(address, user, self._now)
        if not good and not delay_s and (self.fenced or not self.session):
            # What is known of users here may be old, or nothing: the client is to try another one.
            raise ProtocolFault(errors.CONNECTION_FORCED, self._inactive)
        client.backend = good
        verdict = user if good else ""
        if delay_s:
            text = f"logins have failed from {address}: this one is answered {delay_s:g} s late"
            self.note("slowed", f"client {client.peer}: login of '{user}': {text}")
            self._judged[client] = (self._now + delay_s, verdict)
            return None
        return verdict

    def _certificate_user(self, client: Client) -> str:
        """Who a client is by its certificate; empty: nobody."""
        encryption = client.encryption
        certificate = encryption.certificate if encryption is not None else None
        if certificate is None:
            return ""
        match self._cert_login_from:
            case "distinguished-name":
                return certificate.subject
            case "common-name":
                return certificate.common_name
            case kind:
                return certificate.alternative({"dns": "DNS", "uri": "URI"}.get(kind, kind))

    def follow_definitions(self) -> None:
        """Once per turn: when definitions have changed, forget what was allowed, and close the
        connections whose user or virtual host was deleted."""
        if self.access.version == self._access_version:
            return
        self._access_version = self.access.version
        if self.fenced:
            self._access_version = (0, 0, 0)  # what is known here may be old: look again
            return
        for client in list(self.clients.values()):
            rights = client.rights
            rights.forget()
            if not self.access.has_vhost(rights.vhost):
                client.send_away(f"vhost '{rights.vhost}' is deleted")
            elif rights.user != SYSTEM and not self.access.knows(rights.user, client.backend):
                client.send_away(f"user '{rights.user}' is deleted")

    def take_commands(self) -> list[Command]:
        """What clients sent since the last call, in order of arrival, for `session`."""
        commands, self.commands = self.commands, []
        return commands

    def take_writable(self) -> list[Client]:
        """The clients that have output to send, or that have ended."""
        clients = list(self._writable)
        self._writable.clear()
        return clients

    def take_drained(self) -> list[Client]:
        """For the outbox."""
        clients = list(self._drained)
        self._drained.clear()
        return clients

    @property
    def has_work(self) -> bool:
        """Whether another turn has something to do."""
        return bool(self.commands or self._writable or self._drained)

    # -- what the whole member decides -----------------------------------------------------------

    def session_started(self, session: int) -> None:
        """This member's session begins: whatever belonged to an older one is over."""
        if session == self.session:
            return
        self.session = session
        self.commands = []
        text = "the member that served this connection has left the cluster and joined it again"
        for client in list(self.clients.values()):
            client.force_close(text)
        self.clients.clear()

    def block(self, alarm: str) -> None:
        """Take no publishes while there is an alarm; clients that publish are told."""
        before, self.alarm = self.alarm, alarm
        if alarm and not before:
            for client in self.clients.values():
                if client.is_publisher:
                    client.tell_blocked()
        elif before and not alarm:
            for client in list(self._everyone):
                client.tell_unblocked()
                if not client.kept.holds_all:
                    release(client)

    def name_cluster(self, cluster_id: str) -> None:
        """Say so to clients that come from now on."""
        self.identity = self.identity._replace(cluster_id=cluster_id)

    def set_negotiate_time(self, seconds: float) -> None:
        """How long a client may take to log in, of those that come from now on."""
        self.limits = self.limits._replace(handshake_s=seconds)

    def drop_all(self, reason: str) -> None:
        """The member stops: every connection is closed with the reason."""
        for client in list(self._everyone):
            client.force_close(reason)

    def drain(self, reason: str) -> None:
        """Close every connection and let no more in, for this reason; empty: let clients in."""
        self.drained = reason
        for client in list(self._everyone) if reason else ():
            client.send_away(reason)

    def disconnect(self, peer: str, reason: str) -> None:
        """Close the connection from `peer`."""
        for client in [one for one in self._everyone if one.peer == peer]:
            client.send_away(reason)

    def admit_waiting(self, *, soon: bool) -> None:
        """Once per turn, before `take_writable`: admit or refuse those that wait, unless the fence
        may be gone `soon`."""
        self.fenced_briefly = self.fenced and soon
        if self._waiting and not self.fenced_briefly:
            waiting, self._waiting = self._waiting, {}
            for client in waiting:
                release(client)

    def refuse_overdue(self, now: float) -> None:
        """Refuse whoever has waited for too long; tell the verdicts that are due."""
        for client in [one for one, (due, _) in self._judged.items() if due <= now]:
            _, user = self._judged.pop(client)
            on_events(client, client.connection.logged_in(user, now, SLOWED))
            self.mark_writable(client)
        for client in [one for one in self._waiting if now - one.connected_at > WAIT_S]:
            del self._waiting[client]
            if client.kept.holds_all:  # its connection was not ended while it waited
                self._refuse_inactive(client)

    # -- for clients (see `Port`) ----------------------------------------------------------------

    def mark_writable(self, client: Client) -> None:
        self._writable[client] = None

    def mark_drained(self, client: Client) -> None:
        self._drained[client] = None

    def admit(self, client: Client, user: str, vhost: str) -> int | None:
        if self.drained:
            client.send_away(self.drained)
            return 0
        if self.session and self.fenced and self.fenced_briefly:
            self._waiting[client] = None
            return None
        if not self.session or self.fenced:
            self._refuse_inactive(client)
            return 0
        if client.backend and not self.access.knows(user, client.backend):
            text = reply_text(errors.NOT_ALLOWED, f"user '{user}' is deleted")
            client.refuse(errors.NOT_ALLOWED, text)
            return 0
        if refusal := self.access.refuses_open(user, vhost, self._not_ordered):
            client.refuse(errors.NOT_ALLOWED, reply_text(errors.NOT_ALLOWED, refusal))
            if self.access.has_vhost(vhost) and not self.access.may_enter(user, vhost):
                self.tell("no rights", how_to_let_in(user, vhost))
            return 0
        if not client.backend:  # it is trusted to be this user
            client.backend = self.access.login_without_password(user, is_local=True)
        self._last_conn += 1
        self.clients[self._last_conn] = client
        self.counters["opened"] += 1
        client.conn_was = self._last_conn
        client.vhost = vhost
        self.tell("connected", f"{client.describe()} connected")
        return self._last_conn

    def outstanding(self, conn: int, channel: int) -> dict[int, Held]:
        return self.access.outstanding(self.session, conn, channel)

    def is_secret_of(self, client: Client, secret: str) -> bool:
        user = client.connection.user
        good = self.access.login(user, secret, is_local=client.is_local)
        client.backend = good or client.backend
        if not good:
            self.login_delays.failed(host_of(client.peer), user, self._now)
            text = f"user '{user}' presented a new secret, and it is not this user's password"
            self.note("refused", f"client {client.peer}: {text}")
        return bool(good)

    def _not_ordered(self) -> list[tuple[str, str]]:
        """User and virtual host of the clients that the machine does not count yet."""
        return [
            (client.rights.user, client.rights.vhost)
            for conn, client in self.clients.items()
            if not self.access.is_ordered(self.session, conn)
        ]

    def _refuse_inactive(self, client: Client) -> None:
        text = reply_text(errors.CONNECTION_FORCED, self._inactive)
        client.refuse(errors.CONNECTION_FORCED, text)

    @property
    def _inactive(self) -> str:
        return f"member '{self.member}' is not part of the primary view at this time"

    def note(self, counter: str, text: str) -> None:
        """One fact for the log, and its counter. Clients cannot break the line with their names."""
        self.counters[counter] += 1
        self.tell(counter, text)

    def tell(self, kind: str, text: str) -> None:
        """One line for the log, of a kind."""
        if self._log is not None:
            self._log(kind, text if text.isprintable() else repr(text)[1:-1])
