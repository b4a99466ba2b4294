"""One request of the API as its handlers see it, with replies and refusals."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from aiohttp.web import BaseRequest, StreamResponse

from broker.admin.operations import Operations
from broker.findings.member_findings import MemberFindings
from broker.frontend.connections import Connections
from broker.listener.tls import ServerTls
from broker.machine.machine import Machine
from broker.machine.state import Vhost
from broker.management import json_reader
from broker.management.access import Identity
from broker.management.amqp_client import InternalClient
from broker.management.json_values import Json, Object, parse
from broker.management.slices import Slices, no_collection
from broker.replication.controller import Controller
from broker.shovels.supervisor import Shovels
from broker.statistics.endpoint import Pages
from broker.statistics.samples import Span, Spans
from broker.statistics.statistics import Statistics
from vsync.types import record

HEADERS = {
    "Server": "qpidd",
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Vary": "accept, accept-encoding, origin",
}
"""Headers of every reply."""


NAME_BYTES_MAX = 255
"""The longest name in AMQP."""
VALUES_MAX = 20_000
"""Values in a body other than a cluster's definitions: reading them takes some milliseconds."""
AT_ONCE_BYTES = 64 * 1024
"""Up to this size a body that may be large is read in one step."""


DIGITS_MAX = 20
"""Longer numbers in the query are not read."""
SECONDS_MAX = 31_536_000
"""The maximum of the parameters that request samples: a year."""


class Problem(Exception):
    """A refusal: an HTTP status, the word that tools look for, and a sentence."""

    headers: Mapping[str, str] = {}
    more: Mapping[str, Json] = {}
    """Further fields of the reply's body."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.error, self.reason = status, error, reason


def bad_request(reason: str) -> Problem:
    return Problem(400, "bad_request", reason)


def key_missing(name: str) -> Problem:
    """RabbitMQ's refusal for a missing field."""
    return bad_request(f"[{{key_missing,{name}}}]")


def not_found(reason: str = "Not Found") -> Problem:
    return Problem(404, "Object Not Found", reason)


def unavailable(reason: str) -> Problem:
    return Problem(503, "service_unavailable", reason)


@record
class Broker:
    """The member behind the API: its readable state, and the ways to change it."""

    controller: Controller
    clients: Connections
    operations: Operations
    cluster: str
    listeners: tuple[tuple[str, str, int], ...]
    """Protocol, address and port of each listener."""
    statistics: Statistics
    metrics: Pages
    shovels: Shovels
    findings: MemberFindings
    tls: Callable[[], ServerTls | None] = lambda: None
    """The current encryption of clients' connections; None: there is no TLS."""

    @property
    def machine(self) -> Machine:
        """The current replicated state; a received state replaces an older one."""
        return self.controller.replica.machine

    @property
    def name(self) -> str:
        """This member, as a node of the API."""
        return self.controller.me.name

    def demand_serving(self) -> None:
        """Refuse a request that only a member of the primary view may answer or carry out."""
        if not self.controller.serving:
            raise unavailable(f"this member does not serve: {self.controller.reason}")


def enters(broker: Broker, user: Identity, vhost: str) -> bool:
    """Whether this user has any rights in a virtual host."""
    if user.vhosts is not None:
        return vhost in user.vhosts
    return broker.clients.gateway.access.may_enter(user.name, vhost)


class Reply(NamedTuple):
    """A reply: a status, and a body if there is one; bytes are JSON already."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = {}


class Call:
    """One authenticated request."""

    def __init__(
        self,
        broker: Broker,
        user: Identity,
        request: BaseRequest,
        names: Mapping[str, str],
        query: Mapping[str, str],
        body: Sequence[bytes],
    ) -> None:
        """`body` is in parts, as received."""
        self.broker, self.user, self.request = broker, user, request
        self.names, self.query, self._body = names, query, body

    # -- what was asked --------------------------------------------------------------------------

    def json(self) -> Object:
        """Return the body, an object; an empty body is an empty object."""
        body = b"".join(self._body)
        return _object(parse(body, VALUES_MAX)) if body.strip() else {}

    async def large_json(self, values_max: int = VALUES_MAX) -> Object:
        """The same for a body that may be large: it is read in slices, while the loop turns."""
        if sum(map(len, self._body)) <= AT_ONCE_BYTES:
            return self.json()
        slices = Slices()
        with no_collection():
            reading = json_reader.read(self._body, values_max)
            while True:
                try:
                    next(reading)
                except StopIteration as end:
                    return _object(end.value)
                await slices.step()

    def flag(self, name: str) -> bool:
        """Whether a parameter of the query is true."""
        return self.query.get(name, "").lower() == "true"

    def count(self, name: str, default: int, most: int) -> int:
        """A whole number in the query, from 1 on."""
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX) or not (
            1 <= int(text) <= most
        ):
            raise bad_request(f"{name} is not a whole number from 1 to {most}")
        return int(text)

    def spans(self) -> Spans:
        """The requested samples; an age without an increment requests none, as in RabbitMQ."""
        found: list[Span | None] = []
        for name in Spans._fields:
            age, step = (self.count(f"{name}_{one}", 0, SECONDS_MAX) for one in ("age", "incr"))
            found.append(Span(age, step) if age and step else None)
        return Spans(*found)

    # -- the state -------------------------------------------------------------------------------

    def vhost(self) -> Vhost:
        """The virtual host in the path, if this user may see it."""
        name = self.names["vhost"]
        vhost = self.broker.machine.vhosts.get(name)
        if vhost is None or vhost.leaving:
            raise not_found()
        self.demand_vhost(name)
        return vhost

    def vhosts(self) -> list[Vhost]:
        """The virtual hosts that this user may see, or the one in the path."""
        if "vhost" in self.names:
            return [self.vhost()]
        vhosts = self.broker.machine.vhosts.values()
        return [one for one in vhosts if not one.leaving and self.sees(one.name)]

    def sees(self, vhost: str) -> bool:
        """Whether this user may see the content of a virtual host."""
        return self.user.monitors or enters(self.broker, self.user, vhost)

    def demand_vhost(self, vhost: str) -> None:
        if not self.sees(vhost):
            text = f"User '{self.user.name}' has no access to vhost '{vhost}'"
            raise Problem(401, "not_authorised", text)

    def amqp(self, vhost: str) -> InternalClient:
        """An AMQP client with this user."""
        user = self.user
        purpose = f"management API, request from {user.address}"
        return InternalClient(
            self.broker.clients, user.address, user.name, vhost, purpose, user.login
        )


Handler: TypeAlias = Callable[[Call], Awaitable[Reply | StreamResponse]]


class Route(NamedTuple):
    """One path, its handlers by method, and the lowest tag that a user needs."""

    path: str
    handlers: Mapping[str, Handler]
    tag: str = "management"
    of_primary: bool = True
    """Whether only a member of the primary view may answer."""


def at_any_member(*routes: Route) -> tuple[Route, ...]:
    """Let members answer these even when they do not serve."""
    return tuple(route._replace(of_primary=False) for route in routes)


def _object(found: Json) -> Object:
    if not isinstance(found, dict):
        raise bad_request("the body is no JSON object")
    return found


def text_field(body: Object, name: str, default: str | None = None) -> str:
    """A text in the body. Raises Problem, as the next ones do."""
    return _typed(body, name, str, default, "a string")


def flag_field(body: Object, name: str, default: bool = False) -> bool:
    found = body.get(name, default)
    if found in ("true", "false"):  # some tools send form fields
        return found == "true"
    if not isinstance(found, bool):
        raise bad_request(f"{name} is not a boolean")
    return found


def number_field(body: Object, name: str, default: int | None = None) -> int:
    found = body.get(name, default)
    if isinstance(found, str) and _NUMBER.fullmatch(found):
        return int(found)
    if isinstance(found, bool) or not isinstance(found, int):
        raise _wrong(body, name, "a number")
    return found


_NUMBER = re.compile("-?[0-9]{1,18}")
"""Form fields of some tools; other digits and signs are not accepted."""


def table_field(body: Object, name: str) -> Object:
    found = body.get(name, {})
    if found == "" or found is None or found == []:
        return {}
    if not isinstance(found, dict):
        raise bad_request(f"{name} is not an object")
    return found


def _typed(body: Object, name: str, kind: type[str], default: str | None, what: str) -> str:
    found = body.get(name)
    found = default if found is None else found
    if not isinstance(found, kind):
        raise _wrong(body, name, what)
    return found


def _wrong(body: Object, name: str, what: str) -> Problem:
    if name not in body:
        return key_missing(name)
    return bad_request(f"{name} is not {what}")


def short(text: str, what: str) -> str:
    """A name short enough for AMQP."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise bad_request(f"{what} holds half of a surrogate pair") from None
    if size > NAME_BYTES_MAX:
        raise bad_request(f"{what} is longer than {NAME_BYTES_MAX} bytes")
    return text
