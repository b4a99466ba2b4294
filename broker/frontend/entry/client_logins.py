"""Identifies clients by a password, a certificate, or a server's answer.

A server's answer comes later. The client waits until then, and is not read meanwhile.
Decision: docs/decisions/0040-a-server-is-asked-over-http.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from broker.access.access import SYSTEM, Rights
from broker.access.asked_rights import AskedRights, Origin
from broker.access.auth_server import Answer, AuthQuestion
from broker.access.backends import HTTP, Login, ToAsk
from broker.access.login_delays import LONGEST_S
from broker.access.logins import Claim, LoginChecks
from broker.amqp import errors
from broker.amqp.errors import ProtocolFault
from broker.amqp.handshake import MECHANISMS, Credentials
from broker.frontend.client import Client, Port
from broker.frontend.dispatch import on_events, release
from broker.frontend.entry.admission import Admission, refuse

SLOWED = " Logins have failed from there before, so this answer came late."


def host_of(peer: str) -> str:
    """Return the host of "host:port"."""
    return peer.rpartition(":")[0]


class _Verdict(NamedTuple):
    """The verdict on a login, sent at `due`, or as soon as it is known if that is later."""

    due: float
    user: str
    note: str
    login: Login | None
    old: str
    """Why the refusal may rest on old data, so that the client should try again; empty: it does
    not."""


class ClientLogins:
    """The logins of one member's clients, and the questions to servers about them."""

    def __init__(
        self, port: Port, admission: Admission, on_work: Callable[[], None],
        *, cert_login_from: str, anonymous_user: str,
    ) -> None:  # fmt: skip
        """`on_work`: a server has answered, so that there may be commands or output."""
        self.now = 0.0
        self.checks = LoginChecks(port.access)
        self.mechanisms: tuple[str, ...] = (
            (*MECHANISMS, "ANONYMOUS") if anonymous_user else MECHANISMS
        )
        self._port, self._admission, self._on_work = port, admission, on_work
        self._cert_login_from, self._anonymous_user = cert_login_from, anonymous_user
        self._judged: dict[Client, _Verdict] = {}  # whose login is known or told later
        self._early: dict[Client, Credentials] = {}  # they wait for the member's first session
        self._asking: dict[Client, set[AuthQuestion]] = {}
        """The clients that wait until a server has answered all these questions."""

    def forget(self, client: Client) -> None:
        """Forget a client that is gone."""
        self._judged.pop(client, None)
        self._early.pop(client, None)
        self._asking.pop(client, None)

    # -- by what it brings -----------------------------------------------------------------------

    def authenticate(self, credentials: Credentials, client: Client) -> str | None:
        """Return the client's user; "": no user; None: the client is told later."""
        if self._admission.begins:
            self._early[client] = credentials
            return None
        user, password, mechanism = credentials
        if mechanism == "EXTERNAL":
            user = client.connection.claimed = self._certificate_user(client)
        elif mechanism == "ANONYMOUS":
            user = self._anonymous_user
        port, address, may_be_old = self._port, host_of(client.peer), self._admission.may_be_old
        delay_s = self.checks.turn_s(address, user, self.now)
        if delay_s is None:
            text = f"too many logins have failed from {address}: try again in {LONGEST_S:g} s"
            port.note("slowed", f"client {client.peer}: login of '{user}' is not looked at: {text}")
            raise ProtocolFault(errors.ACCESS_REFUSED, text)
        proven = mechanism in ("EXTERNAL", "ANONYMOUS")
        claim = Claim(user, None if proven else password, address, client.is_local)
        login = self.checks.judge(claim, self.now, partial(self._login_known, client))
        if login is not None and not login.backend and not delay_s and may_be_old:
            # The client is to try another member, or this one again.
            raise ProtocolFault(errors.CONNECTION_FORCED, may_be_old)
        if delay_s:
            text = f"logins have failed from {address}: this one is answered {delay_s:g} s late"
            port.note("slowed", f"client {client.peer}: login of '{user}': {text}")
        if login is None or delay_s:
            note = SLOWED if delay_s else ""
            old = may_be_old if port.access.asks_members else ""
            self._judged[client] = _Verdict(self.now + delay_s, user, note, login, old)
            port.mark_writable(client)  # whether it is read is looked at with its output
            return None
        client.login = login
        return user if login.backend else ""

    def _login_known(self, client: Client, login: Login, now: float) -> None:
        """Take a server's answer to a client's login."""
        verdict = self._judged.get(client)
        if verdict is None:
            return
        asks_members = self._port.access.asks_members
        old = verdict.old or (self._admission.may_be_old if asks_members else "")
        self._judged[client] = verdict._replace(login=login, old=old)
        self.tell_due(now)
        self._on_work()

    def tell_due(self, now: float) -> None:
        """Send the verdicts that are due, and judge logins that came before the first session."""
        if self._early and not self._admission.begins:
            early, self._early = self._early, {}
            for client, credentials in early.items():
                self._port.mark_writable(client)
                on_events(client, client.connection.judge(credentials, now))
        for client, verdict in list(self._judged.items()):
            login = verdict.login
            if login is None or verdict.due > now:
                continue
            del self._judged[client]
            self._port.mark_writable(client)
            if verdict.old and not login.backend:
                refuse(client, verdict.old)
                continue
            client.login = login
            user = verdict.user if login.backend else ""
            on_events(client, client.connection.logged_in(user, now, verdict.note))

    def _certificate_user(self, client: Client) -> str:
        """Return the user of a client's certificate; empty: no user."""
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

    # -- by a server that is asked ---------------------------------------------------------------

    def rights_of(self, client: Client, user: str, vhost: str) -> Rights:
        """Return the client's rights there, according to the back end that let it in."""
        access, login = self._port.access, client.login
        if login.backend != HTTP or access.server is None:
            # Shovels act for the broker, too, but what they move is others'.
            announces = user == SYSTEM and client.unlimited
            return Rights(access, user, vhost, announces=announces)
        origin = Origin(login.tags, host_of(client.peer))
        return AskedRights(access, user, vhost, access.server, origin, client.told)

    def ask(self, client: Client, questions: Collection[AuthQuestion]) -> None:
        """Examine the client's kept events again when a server has answered all questions."""
        server = self._port.access.server
        assert server is not None
        self._asking[client] = set(questions)
        self._port.mark_writable(client)  # whether it is read is looked at with its output
        for question in questions:
            server.ask(question, partial(self._answered, client, question))

    def _answered(self, client: Client, question: AuthQuestion, answer: Answer, _: float) -> None:
        """Take an answer; examine the waiting events again once all their answers are known."""
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
        self._port.mark_writable(client)
        self._on_work()

    def login_by(self, client: Client, secret: str) -> Login | None:
        """Judge a login with this secret; None: a server is being asked, as by `ask`."""
        user = client.connection.user
        found = self._port.access.login(user, secret, is_local=client.is_local)
        if isinstance(found, ToAsk):
            answer = client.told.pop(found.question, None)
            if answer is None:
                self.ask(client, (found.question,))
                return None
            found = found.decided(answer)
            if answer.fault:
                return found  # nobody is slowed because the server is
        if not found.backend:
            self.checks.delays.failed(host_of(client.peer), user, self.now)
            text = f"user '{user}' presented a new secret, and it is not this user's password"
            self._port.note("refused", f"client {client.peer}: {text}")
        return found
