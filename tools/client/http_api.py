"""The client side of the management API: one request, one answer, one sentence for a refusal.

The API is that of `broker/management`. This module knows the form of its paths, its login and its
refusals, not the meaning or display of answers.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import field
from urllib.parse import quote, urlencode

from broker.exit_codes import Exit
from tools.cli.answers import Json as Json
from tools.cli.answers import Object as Object
from tools.cli.answers import fields, objects
from tools.cli.failures import ToolError
from tools.client.broker_url import DEFAULT_USER, HTTP, NEAR_ONLY, Address
from tools.client.credentials import Credentials, from_environment
from tools.client.failover import Chosen, MemberAddress, NoneReached, read_brokers
from tools.client.management import OTHERS, RING
from tools.client.tls import is_final, reason
from vsync.types import record

ANSWER_BYTES_MAX = 1 << 30
GREETING = "/api/health/checks/is-in-service"
"""A request that every member answers at once, without a login."""
LACKS_TAG = re.compile(r"Not (\w+) user")


class ApiError(Exception):
    """A request was not answered, or refused. The text is for an operator."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class LacksTag(ApiError):
    """User and password are right, but the user lacks the required tag."""


class NoAnswer(ApiError):
    """Nothing listens there, or it does not answer in time, or it is not a management API."""


class NotRunning(NoAnswer):
    """No connection can be made."""


class OtherProtocol(NoAnswer):
    """The server there speaks another protocol, which time will not change."""


@record
class Api:
    """The management API of one member, and the user of requests."""

    address: Address
    user: str
    password: str
    timeout_seconds: float | None = 60.0
    tls: ssl.SSLContext | None = None
    others: tuple[Address, ...] = ()
    """The members to ask when nobody answers at `address`."""
    _chosen: Chosen = field(default_factory=Chosen, init=False, repr=False, compare=False)

    def get(self, *names: str, **query: str | int | bool) -> Json:
        """Read the resource at a path; each name is one part of it, whatever characters it has."""
        return self._ask("GET", names, None, query)

    def rows(self, *names: str, **query: str | int | bool) -> list[Object]:
        """Read a list."""
        found = self.get(*names, **query)
        if not isinstance(found, list):
            raise NoAnswer(f"{self.address} answered without a list")
        return objects(found)

    def fields(self, *names: str, **query: str | int | bool) -> Object:
        """Read one object."""
        found = self.get(*names, **query)
        if not isinstance(found, dict):
            raise NoAnswer(f"{self.address} answered without an object")
        return found

    def put(
        self,
        *names: str,
        body: Mapping[str, Json] | None = None,
        only: Mapping[str, bool] | None = None,
    ) -> Json:
        """Set the resource at a path; `only`: conditions such as force."""
        return self._ask("PUT", names, body or {}, only)

    def post(self, *names: str, body: Mapping[str, Json] | None = None) -> Json:
        """Do what the path says."""
        return self._ask("POST", names, body or {})

    def delete(self, *names: str, only: Mapping[str, bool] | None = None, reason: str = "") -> Json:
        """Remove the resource at a path; `only`: conditions such as if-empty."""
        more = {"X-Reason": " ".join(reason.split()).encode()} if reason else {}
        return self._ask("DELETE", names, None, only, more)

    def _ask(
        self,
        method: str,
        names: tuple[str, ...],
        body: Mapping[str, Json] | None,
        query: Mapping[str, str | int | bool] | None = None,
        more: Mapping[str, bytes] | None = None,
    ) -> Json:
        if not names[-1]:  # a path that ends with a slash is that of the list
            raise ToolError("a name is empty", Exit.USAGE)
        path = "/api/" + "/".join(quote(name, safe="") for name in names)
        if query:
            path += "?" + urlencode({k: _query_text(value) for k, value in query.items()})
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        headers: dict[str, str | bytes] = {"Authorization": f"Basic {login}", **(more or {})}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        status, text = self._exchange(method, path, content, headers)
        if status == 404:
            raise ApiError(absent(method, names), status)
        return self._read(status, text)

    def _exchange(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str | bytes]
    ) -> tuple[int, bytes]:
        address, connection = self._connection()
        tls_hint = "speaks TLS at this port: write https:// before it"
        doubt = "" if method == "GET" else "; look whether it took effect"
        try:
            connection.request(method, path, content, dict(headers))
            # The greeting of a ring has no line end, so for HTTP it would never be complete.
            if self.tls is None and connection.sock.recv(len(RING), socket.MSG_PEEK) == RING:
                raise OtherProtocol(f"{address} is {OTHERS[RING]}")
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES_MAX)
        except http.client.RemoteDisconnected:
            hint = "" if self.tls is not None else f"; perhaps it {tls_hint}"
            what = f"closed the connection without an answer{doubt}{hint}"
            raise NoAnswer(f"{address} {what}") from None
        except OSError as problem:
            why = f"{reason(problem, address)}{doubt}{self._hint(problem)}"
            raise NoAnswer(f"cannot ask {address}: {why}") from None
        except http.client.HTTPException as problem:
            what = "does not speak HTTP: give the management port"
            begins_otherwise = isinstance(problem, http.client.BadStatusLine)
            if begins_otherwise and "\x15\x03" in str(problem):
                what = tls_hint
            kind = OtherProtocol if begins_otherwise else NoAnswer
            raise kind(f"{address} {what}") from None
        finally:
            connection.close()

    def _connection(self) -> tuple[MemberAddress, http.client.HTTPConnection]:
        """Connect to the first of the members that answers."""

        def connect(place: MemberAddress, patience_s: float | None) -> http.client.HTTPConnection:
            assert isinstance(place, Address)
            host, port = place
            made = (
                http.client.HTTPSConnection(host, port, timeout=patience_s, context=self.tls)
                if self.tls is not None
                else http.client.HTTPConnection(host, port, timeout=patience_s)
            )
            made.connect()
            made.sock.settimeout(self.timeout_seconds)
            return made

        def greet(place: MemberAddress, patience_s: float) -> None:
            with closing(connect(place, patience_s)) as made:
                made.sock.settimeout(patience_s)
                made.request("GET", GREETING)
                # A non-HTTP reply is an answer, too: the actual request will explain it.
                with suppress(http.client.HTTPException):
                    made.getresponse()

        try:
            places = (self.address, *self.others)
            return self._chosen.reach(places, connect, greet, self.timeout_seconds)
        except NoneReached as problem:
            said = [f"{place}: {reason(why, place)}" for place, why in problem.failures]
            kind = NotRunning if problem.is_down else NoAnswer
            hint = self._hint(*(why for _, why in problem.failures))
            raise kind(f"cannot ask {'; '.join(said)}{hint}") from None

    def _hint(self, *problems: OSError) -> str:
        """Further advice, unless TLS was the problem: then a server was there."""
        if all(map(is_final, problems)):
            return ""
        port = "--management-tls-port (off by default)" if self.tls else "management port"
        return f"; is the member running, and is this its {port}?"

    def _read(self, status: int, text: bytes) -> Json:
        found: Json = None
        try:
            found = json.loads(text) if text.strip() else None
        except ValueError:
            if status < 300:
                raise NoAnswer(f"{self.address} did not answer in JSON") from None
        if status < 300:
            return found
        reason = fields(found).get("reason")
        if status == 401 and reason in (None, "Login failed"):
            more = NEAR_ONLY if self.user == DEFAULT_USER else ""
            reason = f"user '{self.user}' and this password are refused{more}"
        elif status == 401 and (lacking := LACKS_TAG.fullmatch(str(reason))):
            raise LacksTag(
                f"user '{self.user}' may not do this: it takes the tag {lacking[1]}, which an "
                "administrator gives by qpidctl set_user_tags",
                status,
            )
        refused = fields(found).get("refused")
        if isinstance(refused, list) and len(refused) > 1:  # entries, each on a line of its own
            first = str(reason).partition("\n")[0]
            raise ApiError("\n  ".join(plain(str(one)) for one in (first, *refused)), status)
        told = "".join(f": {one}" for one in _details(found))
        raise ApiError(plain(str(reason or f"HTTP status {status}")) + told, status)


def _details(found: Json) -> list[str]:
    """The content of a failed check beside its reason."""
    told = fields(found)
    rows = [one for key in ("alarms", "expired") for one in objects(told.get(key))]
    named = [" ".join(str(value) for value in one.values()) for one in rows]
    detail = told.get("detail")
    return [*([", ".join(named)] if named else []), *([str(detail)] if detail else [])]


def absent(method: str, names: tuple[str, ...]) -> str:
    """Say which object a request did not find, from the parts of its path."""
    match names:
        case ("bindings", vhost, "e", source, "q" | "e" as kind, end) if method == "POST":
            target = "queue" if kind == "q" else "exchange"
            return f"virtual host '{vhost}' has no exchange '{source}' or no {target} '{end}'"
        case ("permissions" | "topic-permissions", vhost, user, *_) if method == "PUT":
            return f"there is no user '{user}' or no virtual host '{vhost}'"
        case ("parameters", _, vhost, _) if method == "PUT":
            return f"there is no virtual host '{vhost}'"
        case ("parameters", component, vhost, name):
            return f"there is no parameter '{name}' of {component} in virtual host '{vhost}'"
        case (kind, vhost, *_) if kind in _OF_VHOST and method == "PUT":
            return f"there is no virtual host '{vhost}'"
        case ("permissions" | "topic-permissions" as kind, vhost, user, *_):
            what = kind.replace("-", " ")
            return (
                f"user '{user}' has no {what} in virtual host '{vhost}', "
                "or one of the two is not there"
            )
        case ("bindings", vhost, "e", source, "q" | "e" as kind, end, *_):
            target = "queue" if kind == "q" else "exchange"
            return (
                f"there is no such binding of exchange '{source}' to {target} '{end}' "
                f"in virtual host '{vhost}'"
            )
        case ("federation-links" | "shovels" as kind, "vhost", vhost, name, *_):
            what = "shovel" if kind == "shovels" else "federation link"
            return f"there is no {what} '{name}' in virtual host '{vhost}'"
        case (kind, name, *_) if kind in _OF_ALL:
            return f"there is no {_OF_ALL[kind]} '{name}'"
        case (kind, vhost) if kind in _OF_VHOST:
            return f"there is no virtual host '{vhost}'"
        case (kind, vhost, name, *_) if kind in _OF_VHOST:
            return f"there is no {_OF_VHOST[kind]} '{name}' in virtual host '{vhost}'"
        case _:
            return f"there is nothing at /api/{'/'.join(names)}"


_OF_ALL = {
    "vhosts": "virtual host",
    "users": "user",
    "user-limits": "user",
    "connections": "connection",
    "channels": "channel",
    "nodes": "member",
    "global-parameters": "global parameter",
}
_OF_VHOST = {
    "queues": "queue",
    "exchanges": "exchange",
    "policies": "policy",
    "operator-policies": "operator policy",
    "vhost-limits": "limit",
    "parameters": "parameter",
    "bindings": "binding",
    "consumers": "consumer",
    "permissions": "permissions",
    "topic-permissions": "topic permissions",
    "definitions": "definitions",
}


def plain(reason: str) -> str:
    """A refusal in one line, with values not in Erlang's form: `<<"x">>` becomes `"x"`."""
    text = _ERLANG_PAIR.sub(r"\1: \2", _ERLANG_STRING.sub(r"\1", reason))
    text = "; ".join(part for line in text.split("\n") if (part := line.strip()))
    return text.replace("Validation failed; ", "Validation failed: ", 1)


_ERLANG_PAIR = re.compile(r'\{("(?:[^"\\]|\\.)*"),([^{}]*)\}')
_ERLANG_STRING = re.compile(r'<<("(?:[^"\\]|\\.)*")>>')


def _query_text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_api(
    text: str, timeout_seconds: float | None, credentials: Credentials | None = None
) -> Api:
    """Parse [http[s]://][user[/password]@]host[:port], or a list; ValueErrors are for operators."""
    url, (first, *others), _ = read_brokers(text, HTTP)
    given = credentials or from_environment()
    return Api(first, *given.login(url), timeout_seconds, given.context(url), tuple(others))
