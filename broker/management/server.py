"""The HTTP listener of a member: limits, logins, one reply or one clear error for each request.

It runs on the member's own loop, so every limit bounds what a request may cost the ring: bytes of a
head and a body, time, connections. An exception from a handler that is not a `Problem` is a bug: it
is logged with a number, and the client gets only that number.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from broker.access.backends import HTTP
from broker.admin.operator_logins import entered
from broker.amqp.errors import ProtocolFault
from broker.management.access import Identity, Logins, credentials
from broker.management.amqp_client import AmqpRefused
from broker.management.call import HEADERS, Broker, Call, Problem, Reply, Route, bad_request
from broker.management.connections import HttpConnections
from broker.management.json_values import BadJson, Object, text_of
from broker.management.routes import ROUTES, Router, permits
from vsync.admin.protocol import QueryRefused

log = logging.getLogger("qpidd.management")

BODY_BYTES_MAX = 24 * 1024 * 1024
"""Room for a message of the largest size in base64, and for the definitions of some ten thousand
queues."""
SMALL_BODY_BYTES_MAX = 256 * 1024
"""For any other request: reading a large body holds up the ring."""
LARGE_BODIES = ("publish", "definitions", "all-configuration")
"""Parts of the paths that accept a large body."""
REQUEST_S = 30.0
LONG_S = 300.0
"""Time for a list of many queues, or messages, to a slow reader, and for an import, each entry of
which may wait for the disks."""
MESSAGES = "/get"
"""End of the path that answers with messages, which may be consumed already: all must arrive."""
IMPORTS = ("/api/definitions", "/api/all-configuration")
"""Beginnings of the paths that take in definitions: they must not end half-way."""
CONNECTIONS_MAX = 512
CONNECTIONS_OF_ADDRESS_MAX = 256
"""So that one address leaves room for others."""
API = "/api/"
METRICS = "/metrics"
REALM = 'Basic realm="RabbitMQ Management"'
"""RabbitMQ's name: some programs, such as Nagios plugins, look up their password by it."""
OWN_SITE = ("same-origin", "none")
"""A browser's marks of a request from this site's pages, or from its user."""
STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".ico": "image/x-icon",
    ".json": "application/json",
}
AMQP_STATUS = {403: 401, 404: 404, 530: 401, 320: 503, 405: 400, 506: 503, 541: 503}
"""HTTP statuses of AMQP reply codes; any other code is a bad request, as in RabbitMQ."""


STRANGER = Identity("(nobody)", frozenset(), "unknown:0")


class ManagementServer:
    """The listener and its connections. It listens before it knows whose state it shows."""

    def __init__(self) -> None:
        self._broker: Broker | None = None
        self._logins: Logins | None = None
        self._router = Router(ROUTES)
        self._files = _static_files(STATIC)
        self.connections = HttpConnections(
            self._handle, CONNECTIONS_MAX, CONNECTIONS_OF_ADDRESS_MAX
        )
        self.counters = dict.fromkeys(("requests", "refused", "failed"), 0)

    async def serve(self, broker: Broker, logins: Logins) -> None:
        """Begin to answer, or continue with another member's state."""
        self._broker, self._logins = broker, logins
        await self.connections.serve()

    def counted(self) -> dict[str, int]:
        """Events at the ports, by the names of their metrics."""
        logins = self._logins.counters if self._logins is not None else {}
        limits = self.connections.counters
        return {
            "requests": self.counters["requests"],
            "requests_refused": self.counters["refused"],
            "requests_failed": self.counters["failed"],
            **logins,
            "connections_refused": sum(limits[one] for one in limits if one.startswith("refused_")),
        }

    # -- requests --------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.counters["requests"] += 1
        try:
            path = request.path_qs.partition("?")[0]
            if path == METRICS or path.startswith(f"{METRICS}/"):
                return await self._metrics(request)
            if not path.startswith(API):
                return self._file(request, path)
            is_long = request.method == "GET" or path.endswith(MESSAGES) or path.startswith(IMPORTS)
            async with asyncio.timeout(LONG_S if is_long else REQUEST_S):
                return await self._api(request)
        except Problem as problem:
            return self._refuse(problem)
        except AmqpRefused as refused:
            return self._refuse(_of_amqp(refused))
        except QueryRefused as refused:
            return self._refuse(_of_query(refused))
        except (BadJson, ProtocolFault) as bad:
            return self._refuse(bad_request(str(bad)))
        except TimeoutError:
            text = "there was no answer in time; look whether it was done"
            return self._refuse(Problem(503, "timeout", text))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            number = secrets.token_hex(4)
            self.counters["failed"] += 1
            log.exception("request %s failed: %s %r", number, request.method, request.path)
            text = f"this is a fault of the broker; its log has it under number {number}"
            return self._refuse(Problem(500, "internal_error", text))

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        user = await self._user(request)
        if not user.monitors:
            raise Problem(401, "not_authorised", "Not monitoring user")
        assert self._broker is not None
        return await self._broker.metrics.reply(request)

    async def _api(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = request.raw_path.partition("?")[0]
        found = self._router.find(raw[len(API) :])
        method = "GET" if request.method == "HEAD" else request.method
        routes, names = found if found is not None else ({}, {})
        if routes and method == "OPTIONS":  # to anybody, as RabbitMQ: reveals nothing
            return _response(Reply(200, headers={"Allow": _methods(routes)}))
        route = routes.get(method)
        if route is not None and route.tag == "" and not request.headers.get("Authorization"):
            user = STRANGER
        else:
            user = await self._user(request)
        if not routes:
            raise Problem(404, "Object Not Found", "Not Found")
        if route is None:
            raise _NotAllowed(request.method, _methods(routes))
        if not permits(route, user):
            raise Problem(401, "not_authorised", f"Not {route.tag} user")
        user = await self._with_vhosts(user, names)
        body: list[bytes] = []
        if method != "GET":
            _demand_own_page(request)
            large = not set(route.path.split("/")).isdisjoint(LARGE_BODIES)
            async with asyncio.timeout(REQUEST_S):
                body = await _body(request, BODY_BYTES_MAX if large else SMALL_BODY_BYTES_MAX)
        assert self._broker is not None
        if route.of_primary:
            self._broker.demand_serving()
        call = Call(self._broker, user, request, names, dict(request.query), body)
        answer = await route.handlers[method](call)
        if isinstance(answer, Reply):
            return _response(answer)
        return answer

    async def _user(self, request: web.BaseRequest) -> Identity:
        header = request.headers.get("Authorization", "")
        if not header:
            raise _Unauthenticated("the request has no credentials")
        given = credentials(header)
        peer = request.transport.get_extra_info("peername") if request.transport else None
        address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown:0"
        assert self._logins is not None
        user = None if given is None else await self._logins.login(*given, address)
        if user is None:
            raise Problem(401, "not_authorised", "Login failed")
        return user

    async def _with_vhosts(self, user: Identity, names: Mapping[str, str]) -> Identity:
        """Add the virtual hosts that a server lets it enter, if a server has let it in: the one in
        the path, or all."""
        if user.login.backend != HTTP or user.monitors:
            return user
        assert self._broker is not None
        asked = [names["vhost"]] if "vhost" in names else list(self._broker.machine.vhosts)
        gateway = self._broker.clients.gateway
        vhosts = await entered(gateway, user.name, user.login, user.address, asked)
        return Identity(user.name, user.tags, user.address, user.login, vhosts)

    def _refuse(self, problem: Problem) -> web.Response:
        self.counters["refused"] += 1
        body: Object = {"error": problem.error, "reason": problem.reason, **problem.more}
        return _response(Reply(problem.status, body, problem.headers))

    def _file(self, request: web.BaseRequest, path: str) -> web.Response:
        """A file of the dashboard, from those present at the start, by name."""
        found = self._files.get(path if path != "/" else "/index.html")
        if found is None or request.method not in ("GET", "HEAD"):
            raise Problem(404, "Object Not Found", "Not Found")
        kind, content = found
        return web.Response(body=content, headers={**HEADERS, "Content-Type": kind})


class _Unauthenticated(Problem):
    """No credentials at all: a browser may ask its user."""

    def __init__(self, reason: str) -> None:
        super().__init__(401, "not_authorised", reason)
        self.headers = {"WWW-Authenticate": REALM}


class _NotAllowed(Problem):
    """A method that the path does not have; lists those that it has."""

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(405, "method_not_allowed", f"{method} is not among {allowed}")
        self.headers = {"Allow": allowed}


def _methods(routes: Mapping[str, Route]) -> str:
    """In RabbitMQ's order."""
    return ", ".join(["HEAD"] * ("GET" in routes) + [*routes, "OPTIONS"])


def _response(reply: Reply) -> web.Response:
    headers = {**HEADERS, **reply.headers}
    if reply.body is None:
        return web.Response(status=reply.status, headers=headers)
    return web.Response(
        status=reply.status, headers=headers,
        body=reply.body if isinstance(reply.body, bytes) else text_of(reply.body),
        content_type="application/json",
    )  # fmt: skip


def _of_amqp(refused: AmqpRefused) -> Problem:
    status = AMQP_STATUS.get(refused.code, 400)
    word = {401: "not_authorised", 404: "Object Not Found", 503: "service_unavailable"}
    return Problem(status, word.get(status, "bad_request"), refused.explanation)


def _of_query(refused: QueryRefused) -> Problem:
    match refused.code:
        case "not-active":
            return Problem(503, "service_unavailable", refused.reason)
        case "access-refused":
            return Problem(401, "not_authorised", refused.reason)
        case "no-such-member":
            return Problem(404, "Object Not Found", refused.reason)
        case _:
            return bad_request(refused.reason)


def _demand_own_page(request: web.BaseRequest) -> None:
    """Refuse changes from another site's page that use credentials remembered by the browser.

    A browser sends one of these headers, or both, with each form and script. The first holds behind
    a proxy too, which may put its own name for this broker into `Host`.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        if site not in OWN_SITE:
            raise Problem(403, "forbidden", "a page of another site may not change anything here")
    elif origin is not None and _site_of(origin) != (host := request.headers.get("Host", "")):
        text = f"a page of {origin[:200]} may not change anything at {host[:200]}"
        raise Problem(403, "forbidden", text)


def _site_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


async def _body(request: web.BaseRequest, most: int) -> list[bytes]:
    """Return the body in parts. It is read as JSON whatever content type the request claims: `curl
    -d` claims a form."""
    if (packed := request.headers.get("Content-Encoding", "identity").lower()) != "identity":
        text = f"the body must not be compressed, as its content encoding {packed[:50]!r} claims"
        raise Problem(415, "unsupported_media_type", text)
    announced = request.content_length
    if announced is not None and announced > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_chunked(1 << 16):
        parts.append(part)
        size += len(part)
        if size > most:
            raise _too_large(most)
    return parts


def _too_large(most: int) -> Problem:
    return Problem(413, "payload_too_large", f"the body is larger than {most} bytes")


def _static_files(root: Path) -> dict[str, tuple[str, bytes]]:
    return {
        f"/{path.relative_to(root).as_posix()}": (TYPES[path.suffix], path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix in TYPES
    }
