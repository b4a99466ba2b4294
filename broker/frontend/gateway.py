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
gone for the machine, so they send no commands; their commands in the batch are dropped.
`broker.frontend.entry.admission` decides which clients are let in at other times, and which wait;
the shell calls `admission.admit_waiting` once per turn, before `take_writable`.

Back-pressure: the shell sets `gateway.paused` when the submission queue is full, and `large_paused`
when it is full of parts of large messages. It reads a socket only while `client.may_be_read`,
checked once per turn: not a publisher's while `paused` or `fenced`, not that of a sender of large
messages while `large_paused`, and not that of a client that does not read its output. It reports
every change with `client.reading(active, now)`: a client that is not read then does not count as
silent, unless `gateway.wake` is told so, and our heartbeats are still sent.

Alarm: the shell passes the reason to `gateway.block`, or nothing. During an alarm, publishes and
everything after them on their channels wait in the client; the rest continues. Only a client with
too much waiting is not read.
Decision: docs/decisions/0022-alarms-are-ordered.md.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Collection

from broker.access.access import SYSTEM, Access, how_to_let_in
from broker.access.backends import HTTP
from broker.amqp import errors
from broker.amqp.errors import reply_text
from broker.amqp.handshake import Limits, ServerIdentity
from broker.frontend.client import Client
from broker.frontend.dispatch import on_events, release
from broker.frontend.encryption import Encryption
from broker.frontend.entry.admission import Admission, Entry, is_operator, is_ordinary, refuse
from broker.frontend.entry.client_logins import ClientLogins
from broker.machine.commands import Command
from broker.machine.effects import Defined
from broker.machine.state import Held
from broker.options.access import SOURCES


def random_name(prefix: str) -> str:
    """Return a name that cannot be guessed: 128 random bits."""
    return prefix + base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()


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
        on_work: Callable[[], None] | None = None,
    ) -> None:
        """`on_work`: a server has answered, so that there may be commands or output."""
        self.member = member
        self.session = 0
        self.fenced = True  # kept by the outbox
        self.paused = self.large_paused = False  # kept by the shell
        self.large_senders: dict[Client, None] = {}
        self.following: dict[Client, None] = {}
        self.alarm = ""
        self.clients: dict[int, Client] = {}  # those that the machine knows, by connection number
        self.ending: dict[int, None] = {}  # whose close is not applied yet, by connection number
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
        self.consumer_timeout_s = 0.0  # as an operator has it
        self.on_defined = on_defined or (lambda _: None)
        self.identity = ServerIdentity(member=member, cluster=cluster)

        self._access_version = (0, 0, 0)  # of what was looked at last
        self._log = log
        self._everyone: dict[Client, None] = {}
        self._writable: dict[Client, None] = {}
        self._drained: dict[Client, None] = {}
        self._last_conn = 0
        on_work = on_work or (lambda: None)
        self.admission = Admission(member, self, on_work)
        self.logins = ClientLogins(
            self, self.admission, on_work,
            cert_login_from=cert_login_from, anonymous_user=anonymous_user,
        )  # fmt: skip

    # -- clients ---------------------------------------------------------------------------------

    def connect(
        self, peer: str, is_local: bool, now: float, encryption: Encryption | None = None
    ) -> Client:
        """Take a new connection. `is_local`: from this machine's loopback address; `encryption`: of
        a TLS connection, with the client's verified certificate."""
        self.counters["connections"] += 1
        client = Client(self, peer, now, encryption)
        client.is_local = is_local
        self._everyone[client] = None
        return client

    def data_received(self, client: Client, data: bytes, now: float) -> None:
        """Take bytes from a client's socket."""
        self.counters["bytes_in"] += len(data)
        self.logins.now = now
        on_events(client, client.connection.receive(data, now))

    def wake(self, client: Client, now: float, *, silent: bool = False) -> None:
        """Called at or after `client.next_timer()`. `silent`: nothing has come for two intervals,
        although the client is not read."""
        on_events(client, client.connection.wake(now, silent=silent))
        if client.connection.out:  # heartbeats go out whatever the client waits for
            self.mark_writable(client)

    def connection_lost(self, client: Client) -> None:
        """Take note that a client's socket is gone."""
        if client.conn_was:
            why = client.end_reason or "it closed its socket without closing the connection"
            self.tell("disconnected", f"{client.describe()} disconnected: {why}")
        client.deregister()
        client.connection.lost()
        for clients in (
            self._everyone,
            self._writable,
            self._drained,
            self.admission.waiting,
            self.large_senders,
            self.following,
        ):
            clients.pop(client, None)
        self.logins.forget(client)
        self.counters["closed"] += 1

    def follow_definitions(self) -> None:
        """Once per turn: when definitions have changed, forget earlier permissions, and close the
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
            elif rights.user != SYSTEM and not self.access.knows(rights.user, client.login.backend):
                client.send_away(f"user '{rights.user}' is deleted")

    def take_commands(self) -> list[Command]:
        """Return clients' commands since the last call, in order of arrival, for `session`."""
        commands, self.commands = self.commands, []
        return commands

    def take_writable(self) -> Collection[Client]:
        """Return the clients that have output to send, or have ended."""
        clients, self._writable = self._writable, {}
        return clients

    def take_drained(self) -> Collection[Client]:
        """Return the clients that have room for output again; for the outbox."""
        clients, self._drained = self._drained, {}
        return clients

    @property
    def has_work(self) -> bool:
        """Whether another turn has something to do."""
        return bool(self.commands or self._writable or self._drained)

    # -- what the whole member decides -----------------------------------------------------------

    def session_started(self, session: int) -> None:
        """Begin this member's session, which ends everything that belonged to an older one."""
        if session == self.session:
            return
        self.session = session
        self.commands = []
        text = "the member that served this connection has left the cluster and joined it again"
        for client in list(self.clients.values()):
            client.force_close(text)
        self.clients.clear()
        self.ending.clear()

    def block(self, alarm: str) -> None:
        """Accept no publishes during an alarm; clients that publish are told."""
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

    def identify(self, cluster_id: str) -> None:
        """Tell this id to clients that connect from now on."""
        self.identity = self.identity._replace(cluster_id=cluster_id)

    def set_negotiate_time(self, seconds: float) -> None:
        """Set how long clients that connect from now on may take to log in."""
        self.limits = self.limits._replace(handshake_s=seconds)

    def drop_all(self, reason: str) -> None:
        """Close every connection with the reason, as the member stops."""
        for client in list(self._everyone):
            client.force_close(reason)

    def drain(self, reason: str) -> None:
        """Close every connection and let no more in, for this reason; empty: let clients in."""
        self.admission.drained = reason
        for client in [one for one in self._everyone if not one.stays] if reason else ():
            client.send_away(reason)

    def stand_by(self, reason: str, *, briefly: bool, holds: bool = False) -> None:
        """Disconnect all clients but operators, and let no more in, for this reason; empty: let
        clients in. `briefly`: new clients wait, as their place will be known in a moment; `holds`:
        they wait for as long as they may take to log in, whatever becomes of the view."""
        begins = self.admission.stand_by(reason, briefly=briefly, holds=holds)
        for client in list(self.clients.values()) if begins else ():
            if not is_operator(client):
                client.send_away(reason)

    def disconnect(self, peer: str, reason: str) -> None:
        """Close the connection from `peer`."""
        for client in [one for one in self._everyone if one.peer == peer]:
            client.send_away(reason)

    def refuse_overdue(self, now: float) -> None:
        """Send the verdicts that are due, and refuse clients that have waited too long."""
        self.admission.refuse_overdue(now)
        self.logins.tell_due(now)

    def is_gone(self, conn: int) -> bool:
        """Whether nothing of this connection is under way or in the state: its held messages are
        back in their queues."""
        here = conn in self.clients or conn in self.ending
        return not here and not self.access.is_ordered(self.session, conn)

    # -- for clients (see `Port`) ----------------------------------------------------------------

    def mark_writable(self, client: Client) -> None:
        self._writable[client] = None

    def mark_drained(self, client: Client) -> None:
        self._drained[client] = None

    def admit(self, client: Client, user: str, vhost: str) -> int | None:
        match self.admission.decide(client):
            case Entry.WAITS, _:
                self.admission.waiting[client] = None
                return None
            case Entry.SENT_AWAY, why:
                client.send_away(why)
                return 0
            case Entry.REFUSED, why:
                refuse(client, why)
                return 0
            case Entry.LET_IN, _:
                return self._let_in(client, user, vhost)

    def _let_in(self, client: Client, user: str, vhost: str) -> int | None:
        """Let a client in if its user may enter; None: a server is asked."""
        if client.login.backend and not self.access.knows(user, client.login.backend):
            text = reply_text(errors.NOT_ALLOWED, f"user '{user}' is deleted")
            client.refuse(errors.NOT_ALLOWED, text)
            return 0
        refusal = self.access.refuses_open(
            user, vhost, self._not_ordered, unlimited=client.unlimited
        )
        if refusal:
            self._refuse_entry(client, refusal)
            return 0
        refused = client.rights.refuses_entry()
        if refused is None:
            self.logins.ask(client, client.rights.missing)
            return None
        if refused:
            self._refuse_entry(client, refused)
            if client.login.backend != HTTP and not self.admission.loading:
                self.tell("no rights", how_to_let_in(user, vhost))
            return 0
        if not client.login.backend:  # it is trusted to be this user
            client.login = self.access.keeper(user)
        self._last_conn += 1
        self.clients[self._last_conn] = client
        self.counters["opened"] += 1
        client.conn_was = self._last_conn
        client.vhost = vhost
        self.tell("connected", f"{client.describe()} connected")
        return self._last_conn

    def outstanding(self, conn: int, channel: int) -> dict[int, Held]:
        return self.access.outstanding(self.session, conn, channel)

    def is_idle(self, conn: int, channel: int) -> bool:
        return not self.fenced and self.access.is_idle(self.session, conn, channel)

    def _not_ordered(self) -> list[tuple[str, str]]:
        """Return user and virtual host of the clients that the machine does not count yet."""
        return [
            (client.rights.user, client.rights.vhost)
            for conn, client in self.clients.items()
            if not self.access.is_ordered(self.session, conn)
        ]

    def _refuse_entry(self, client: Client, reason: str) -> None:
        """Refuse a client; tell it to try again while the permission may be about to arrive."""
        loading = self.admission.loading
        code = errors.CONNECTION_FORCED if loading else errors.NOT_ALLOWED
        client.refuse(code, reply_text(code, loading or reason))

    @property
    def ordinary(self) -> list[Client]:
        """Return the clients that are connected or wait for that, except operators'."""
        return [
            one for one in (*self.clients.values(), *self.admission.waiting) if is_ordinary(one)
        ]

    def refuse_channel(self, conn: int, chan: int, code: int, text: str) -> None:
        """Close a channel because of something its client did not do."""
        client = self.clients.get(conn)
        if client is not None and chan in client.channels:
            self.note("refused", f"client {client.peer}: {text}")
            client.refuse_channel(chan, code, text)

    def note(self, counter: str, text: str) -> None:
        """Log one fact, and count it. Clients cannot break the line with their names."""
        self.counters[counter] += 1
        self.tell(counter, text)

    def tell(self, kind: str, text: str) -> None:
        """Log one line of this kind."""
        if self._log is not None:
            self._log(kind, text if text.isprintable() else repr(text)[1:-1])
