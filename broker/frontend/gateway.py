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

Standby: in an active-passive cluster the shell calls `stand_by` at the backups, which let in nobody
but operators.
Decision: docs/decisions/0066-the-active-member-is-ordered.md.

Back-pressure: the shell sets `gateway.paused` when the submission queue is full, and `large_paused`
when it is of parts of large messages, and reads a socket only while `client.may_be_read`, checked
once per turn: not that of a publisher while `paused` or `fenced`, not that of who sends large
messages while `large_paused`, and not that of a client that does not read its output. It reports
every change with `client.reading(active, now)`: a client that is not read is then not taken for
silent, and our heartbeats are still sent.

Alarm: the shell passes the reason to `gateway.block`, or nothing. While there is one, publishes and
what follows them on their channels wait in the client; the rest goes on. Only a client of which too
much waits is not read.
Decision: docs/decisions/0022-alarms-are-ordered.md.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from broker.access.access import SYSTEM, Access, Rights, how_to_let_in
from broker.access.asked_rights import AskedRights, Origin
from broker.access.auth_server import Answer, AuthQuestion
from broker.access.backends import HTTP, Login, ToAsk
from broker.access.login_delays import LONGEST_S
from broker.access.logins import Claim, LoginChecks
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


def _is_operator(client: Client) -> bool:
    """Whether it may use a member that only stands by: it is of this process (the management API,
    a shovel), or an administrator's that says it means to, by Qpid's property."""
    says_so = client.connection.client_properties.get("qpid.ha-admin") in (True, 1)
    return bool(client.purpose) or (says_so and "administrator" in client.login.tags)


class _Verdict(NamedTuple):
    """What becomes of a login, and is told at `due`, or as soon as it is known if that is later."""

    due: float
    user: str
    note: str
    login: Login | None
    old: str
    """Why what refuses it may be old, so that the client is to try again; empty: it is not."""


class Gateway:
    """All clients of one member. See the module's text for how it is called."""

    loading = ""
    """Why somebody who may not enter is to try again: users are being loaded."""

    standby_holds = False  # new clients wait for the end of a standby, in no primary view as well
    watches = False  # whether clients come: the other one of a pair is gone
    heard = False  # one came since

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
        self.fenced_briefly = False  # fenced, but that may be over in a moment
        self.paused = self.large_paused = False  # kept by the shell
        self.large_senders: dict[Client, None] = {}
        self.following: dict[Client, None] = {}
        self.drained = ""  # why no client is let in, by an operator's wish
        self.standby = ""  # why only operators are: this member is a backup
        self.standby_briefly = False  # that may be over in a moment, here or elsewhere
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
        self._judged: dict[Client, _Verdict] = {}  # whose login is known or told later
        self._asking: dict[Client, set[AuthQuestion]] = {}
        """Who waits until a server has answered all of this."""
        self._last_conn, self._now = 0, 0.0
        self.logins = LoginChecks(access)
        self._on_work = on_work or (lambda: None)

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
        if client.connection.out:  # heartbeats go out whatever the client waits for
            self.mark_writable(client)

    def connection_lost(self, client: Client) -> None:
        """Its socket is gone."""
        if client.conn_was:
            why = client.end_reason or "it closed its socket without closing the connection"
            self.tell("disconnected", f"{client.describe()} disconnected: {why}")
        client.deregister()
        client.connection.lost()
        for clients in (
            self._everyone,
            self._writable,
            self._drained,
            self._waiting,
            self.large_senders,
            self.following,
        ):
            clients.pop(client, None)
        self._judged.pop(client, None)
        self._asking.pop(client, None)
        self.counters["closed"] += 1

    def _authenticate(self, credentials: Credentials, client: Client) -> str | None:
        user, password, mechanism = credentials
        if mechanism == "EXTERNAL":
            user = self._certificate_user(client)
        elif mechanism == "ANONYMOUS":
            user = self._anonymous_user
        address = host_of(client.peer)
        delay_s = self.logins.turn_s(address, user, self._now)
        if delay_s is None:
            text = f"too many logins have failed from {address}: try again in {LONGEST_S:g} s"
            self.note("slowed", f"client {client.peer}: login of '{user}' is not looked at: {text}")
            raise ProtocolFault(errors.ACCESS_REFUSED, text)
        proven = mechanism in ("EXTERNAL", "ANONYMOUS")
        claim = Claim(user, None if proven else password, address, client.is_local)
        login = self.logins.judge(claim, self._now, partial(self._login_known, client))
        if login is not None and not login.backend and not delay_s and self._may_be_old:
            # The client is to try another member, or this one again.
            raise ProtocolFault(errors.CONNECTION_FORCED, self._may_be_old)
        if delay_s:
            text = f"logins have failed from {address}: this one is answered {delay_s:g} s late"
            self.note("slowed", f"client {client.peer}: login of '{user}': {text}")
        if login is None or delay_s:
            note = SLOWED if delay_s else ""
            old = self._may_be_old if self.access.asks_members else ""
            self._judged[client] = _Verdict(self._now + delay_s, user, note, login, old)
            self.mark_writable(client)  # whether it is read is looked at with its output
            return None
        client.login = login
        return user if login.backend else ""

    def _login_known(self, client: Client, login: Login, now: float) -> None:
        """A server has said who it is."""
        verdict = self._judged.get(client)
        if verdict is None:
            return
        old = verdict.old or (self._may_be_old if self.access.asks_members else "")
        self._judged[client] = verdict._replace(login=login, old=old)
        self.refuse_overdue(now)
        self._on_work()

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
            elif rights.user != SYSTEM and not self.access.knows(rights.user, client.login.backend):
                client.send_away(f"user '{rights.user}' is deleted")

    def take_commands(self) -> list[Command]:
        """What clients sent since the last call, in order of arrival, for `session`."""
        commands, self.commands = self.commands, []
        return commands

    def take_writable(self) -> Collection[Client]:
        """The clients that have output to send, or that have ended."""
        clients, self._writable = self._writable, {}
        return clients

    def take_drained(self) -> Collection[Client]:
        """For the outbox."""
        clients, self._drained = self._drained, {}
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
        self.ending.clear()

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

    def identify(self, cluster_id: str) -> None:
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
        for client in [one for one in self._everyone if not one.stays] if reason else ():
            client.send_away(reason)

    def stand_by(self, reason: str, *, briefly: bool, holds: bool = False) -> None:
        """Send away whoever is no operator, and let no more in, for this reason; empty: let clients
        in. `briefly`: new ones wait, as it will be known in a moment where they belong; `holds`:
        for as long as they may take to log in, whatever becomes of the view."""
        begins = bool(reason) and not self.standby
        self.standby, self.standby_briefly, self.standby_holds = reason, briefly, holds
        for client in list(self.clients.values()) if begins else ():
            if not _is_operator(client):
                client.send_away(reason)

    def disconnect(self, peer: str, reason: str) -> None:
        """Close the connection from `peer`."""
        for client in [one for one in self._everyone if one.peer == peer]:
            client.send_away(reason)

    def admit_waiting(self, *, soon: bool) -> None:
        """Once per turn, before `take_writable`: admit or refuse those that wait, unless the fence
        may be gone `soon`."""
        self.fenced_briefly = self.fenced and soon
        if self._waiting and not (
            self.fenced_briefly or self.standby_briefly or self.standby_holds
        ):
            waiting, self._waiting = self._waiting, {}
            for client in waiting:
                release(client)

    def refuse_overdue(self, now: float) -> None:
        """Refuse whoever has waited for too long; tell the verdicts that are due."""
        for client, verdict in list(self._judged.items()):
            login = verdict.login
            if login is None or verdict.due > now:
                continue
            del self._judged[client]
            self.mark_writable(client)
            if verdict.old and not login.backend:
                text = reply_text(errors.CONNECTION_FORCED, verdict.old)
                client.refuse(errors.CONNECTION_FORCED, text)
                continue
            client.login = login
            user = verdict.user if login.backend else ""
            on_events(client, client.connection.logged_in(user, now, verdict.note))
        wait_s = self.limits.handshake_s if self.standby_holds else WAIT_S
        for client in [one for one in self._waiting if now - one.connected_at > wait_s]:
            del self._waiting[client]
            if client.kept.holds_all:  # its connection was not ended while it waited
                self._refuse_inactive(client)

    def is_gone(self, conn: int) -> bool:
        """Whether nothing of this connection is under way or in the state: what it held is back."""
        here = conn in self.clients or conn in self.ending
        return not here and not self.access.is_ordered(self.session, conn)

    # -- for clients (see `Port`) ----------------------------------------------------------------

    def mark_writable(self, client: Client) -> None:
        self._writable[client] = None

    def mark_drained(self, client: Client) -> None:
        self._drained[client] = None

    def admit(self, client: Client, user: str, vhost: str) -> int | None:
        if self.drained and not client.stays:
            client.send_away(self.drained)
            return 0
        if self.watches and self.is_ordinary(client):
            self.heard = True
            self._on_work()
        if self.session and self.fenced and self.fenced_briefly:
            self._waiting[client] = None
            return None
        if self.standby_holds and self.is_ordinary(client):
            self._waiting[client] = None
            return None
        if self._is_inactive:
            self._refuse_inactive(client)
            return 0
        if self.standby and not _is_operator(client):
            if self.standby_briefly:
                self._waiting[client] = None
                return None
            client.send_away(self.standby)
            return 0
        if client.login.backend and not self.access.knows(user, client.login.backend):
            text = reply_text(errors.NOT_ALLOWED, f"user '{user}' is deleted")
            client.refuse(errors.NOT_ALLOWED, text)
            return 0
        if refusal := self.access.refuses_open(user, vhost, self._not_ordered):
            self._refuse_entry(client, refusal)
            return 0
        refused = client.rights.refuses_entry()
        if refused is None:
            self.ask(client, client.rights.missing)
            return None
        if refused:
            self._refuse_entry(client, refused)
            if client.login.backend != HTTP and not self.loading:
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

    def rights_of(self, client: Client, user: str, vhost: str) -> Rights:
        server, login = self.access.server, client.login
        if login.backend != HTTP or server is None:
            return Rights(self.access, user, vhost)
        origin = Origin(login.tags, host_of(client.peer))
        return AskedRights(self.access, user, vhost, server, origin, client.told)

    def ask(self, client: Client, questions: Collection[AuthQuestion]) -> None:
        server = self.access.server
        assert server is not None
        self._asking[client] = set(questions)
        self.mark_writable(client)  # whether it is read is looked at with its output
        for question in questions:
            server.ask(question, partial(self._answered, client, question))

    def _answered(self, client: Client, question: AuthQuestion, answer: Answer, _: float) -> None:
        """What waits for it is looked at again when all that it takes is known."""
        awaited = self._asking.get(client)
        if awaited is None:
            return  # it is gone
        client.told[question] = answer
        awaited.discard(question)
        if awaited:
            return
        del self._asking[client]
        if client.kept.holds_all:  # its connection was not ended while it waited
            release(client)
        if client not in self._asking:
            client.told.clear()
        self.mark_writable(client)
        self._on_work()

    def login_by(self, client: Client, secret: str) -> Login | None:
        user = client.connection.user
        found = self.access.login(user, secret, is_local=client.is_local)
        if isinstance(found, ToAsk):
            answer = client.told.pop(found.question, None)
            if answer is None:
                self.ask(client, (found.question,))
                return None
            found = found.decided(answer)
            if answer.fault:
                return found  # nobody is slowed because the server is
        if not found.backend:
            self.logins.delays.failed(host_of(client.peer), user, self._now)
            text = f"user '{user}' presented a new secret, and it is not this user's password"
            self.note("refused", f"client {client.peer}: {text}")
        return found

    def _not_ordered(self) -> list[tuple[str, str]]:
        """User and virtual host of the clients that the machine does not count yet."""
        return [
            (client.rights.user, client.rights.vhost)
            for conn, client in self.clients.items()
            if not self.access.is_ordered(self.session, conn)
        ]

    def _refuse_entry(self, client: Client, reason: str) -> None:
        """It may not; while what would allow it may be about to come, it is to try again."""
        code = errors.CONNECTION_FORCED if self.loading else errors.NOT_ALLOWED
        client.refuse(code, reply_text(code, self.loading or reason))

    def _refuse_inactive(self, client: Client) -> None:
        reason = self._may_be_old or self.standby
        client.refuse(errors.CONNECTION_FORCED, reply_text(errors.CONNECTION_FORCED, reason))

    def is_ordinary(self, client: Client) -> bool:
        """Whether it is neither an operator's nor a part of this cluster."""
        return not _is_operator(client) and not client.stays

    def watch(self, *, on: bool) -> None:
        """From here on notice whether clients come; or no more."""
        self.watches, self.heard = on, False

    @property
    def ordinary(self) -> list[Client]:
        """The clients that are connected or wait for that, and are no operators'."""
        everyone = (*self.clients.values(), *self._waiting)
        return [client for client in everyone if self.is_ordinary(client)]

    @property
    def _is_inactive(self) -> bool:
        return self.fenced or not self.session

    @property
    def _may_be_old(self) -> str:
        """Why what is known of users here may be old, or nothing; empty: it is not."""
        return self._inactive if self._is_inactive else self.loading

    @property
    def _inactive(self) -> str:
        return f"member '{self.member}' is not part of the primary view at this time"

    def refuse_channel(self, conn: int, chan: int, code: int, text: str) -> None:
        """Close a channel for what its client has not done."""
        client = self.clients.get(conn)
        if client is not None and chan in client.channels:
            self.note("refused", f"client {client.peer}: {text}")
            client.refuse_channel(chan, code, text)

    def note(self, counter: str, text: str) -> None:
        """One fact for the log, and its counter. Clients cannot break the line with their names."""
        self.counters[counter] += 1
        self.tell(counter, text)

    def tell(self, kind: str, text: str) -> None:
        """One line for the log, of a kind."""
        if self._log is not None:
            self._log(kind, text if text.isprintable() else repr(text)[1:-1])
