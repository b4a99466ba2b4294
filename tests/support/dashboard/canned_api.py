"""A management API that gives prepared replies and records the requests to change something.

It serves the dashboard's files as the broker does, under the same content security policy.  The
shapes are those of the HTTP API; names are as hostile as clients can make them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import quote, unquote

from aiohttp import web

from broker.management.call import HEADERS
from broker.management.server import STATIC, TYPES

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Object: TypeAlias = dict[str, Json]

HOSTILE = "<img src=x onerror=alert(1)>/\"'&%2F ü☃"
"""A queue's name that is markup, path and quotation at once."""


def rates(**found: float) -> Object:
    """`message_stats` with a total and a rate of each."""
    stats: Object = {}
    for name, rate in found.items():
        stats |= {name: int(rate * 100), f"{name}_details": {"rate": rate}}
    return stats


def sampled(*values: int, rate: float = 0.0) -> Object:
    """Details of a figure with these samples, one every ten seconds, the newest first."""
    return {
        "rate": rate,
        "samples": [
            {"sample": value, "timestamp": 1_790_000_060_000 - 10_000 * place}
            for place, value in enumerate(values)
        ],
    }


def queue(name: str, ready: int = 0, **more: Json) -> Object:
    """One queue as it is listed."""
    usual: Object = {
        "name": name, "vhost": "/", "durable": True, "auto_delete": False, "exclusive": False,
        "arguments": {}, "node": "a", "state": "running", "messages": ready,
        "messages_ready": ready, "messages_unacknowledged": 0, "consumers": 0, "type": "classic",
        "message_bytes": ready * 100, "consumer_details": [],
        "message_stats": rates(publish=12.5, deliver_get=11.0, ack=11.0),
    }  # fmt: skip
    return {**usual, **more}


def member(name: str, **more: Json) -> Object:
    """One member as `/api/qpid/cluster` shows it."""
    usual: Object = {
        "id": name, "url": f"amqp:tcp:127.0.0.1:567{ord(name[0]) % 7}", "state": "ACTIVE",
        "voter": True, "votes": 1, "arbitrator": False, "position": 4711, "local": name == "a",
    }  # fmt: skip
    return {**usual, **more}


def finding(name: str, kind: str, objects: list[Json], what: str, **more: Json) -> Object:
    """One finding as `/api/qpid/findings` shows it."""
    usual: Object = {
        "name": name, "severity": "warning", "kind": kind, "objects": objects,
        "count": len(objects), "what": what, "follows": "It waits.", "do": "Look at it.",
        "see": f"docs/ONCALL.md#{name}", "since_ms": 0,
    }  # fmt: skip
    return {**usual, **more}


def findings_of(*found: Json, unknown: tuple[str, ...] = ()) -> Object:
    """The findings of member `a`."""
    return {
        "cluster": "shop", "node": "a", "status": "ACTIVE", "members": 3, "members_here": 3,
        "findings": [*found], "unknown": [*unknown],
    }  # fmt: skip


STREAM = queue(
    "log", 8, type="stream", first_offset=1_002, next_offset=1_010, max_offset_lag=7, consumers=2,
    retention={"bytes": 5_000_000, "seconds": 604_800}, arguments={"x-queue-type": "stream"},
    consumer_details=[
        {"consumer_tag": "far", "offset": 1_003, "offset_lag": 7, "filtered": True,
         "ack_required": True, "prefetch_count": 1},
        {"consumer_tag": "near", "offset": 1_010, "offset_lag": 0, "filtered": False,
         "ack_required": True, "prefetch_count": 10},
    ],
)  # fmt: skip
QUEUES = [queue("orders", 120, policy="caps"), queue(HOSTILE, 3)] + [
    queue(f"bulk.{number:03}", number) for number in range(120)
]
CONNECTION = "10.0.0.9:50412 -> 10.0.0.1:5672"
ANSWERS: dict[str, Json] = {
    "whoami": {"name": "ada", "tags": ["administrator"]},
    "overview": {
        "cluster_name": "shop", "node": "a", "product_name": "qpid-cluster-py",
        "product_version": "0.1.0", "rabbitmq_version": "3.12.0", "management_version": "3.12.0",
        "listeners": [{"protocol": "amqp", "ip_address": "127.0.0.1", "port": 5672, "node": "a"}],
        "queue_totals": {
            "messages": 130, "messages_ready": 123, "messages_unacknowledged": 7,
            "messages_ready_details": sampled(123, 80, 0),
            "messages_unacknowledged_details": sampled(7, 0, 0),
        },
        "object_totals": {
            "queues": 122, "exchanges": 8, "connections": 2, "channels": 3, "consumers": 1
        },
        "message_stats": rates(publish=250.0, deliver_get=240.5, ack=240.0, confirm=250.0),
    },
    "qpid/cluster": {
        "cluster": "shop", "status": "ACTIVE", "size": 3, "epoch": 3, "position": 4711,
        "reason": "", "alarms": [], "drained": [],
        "quorum": {"expected_votes": 3, "total_votes": 3, "quorum": 2, "quorate": True},
        "members": [
            member("a"), member("b"),
            member("c", state="JOINING", position=1200, received_percent=41.5),
        ],
        "views": [
            {"at_ms": 1_790_000_000_000, "ring": "a.4", "epoch": 2, "primary": True,
             "members": ["a", "b"], "left": [], "reason": ""},
            {"at_ms": 1_790_000_060_000, "ring": "a.8", "epoch": 3, "primary": True,
             "members": ["a", "b", "c"], "left": [], "reason": ""},
        ],
    },
    "qpid/findings": findings_of(
        finding("shovel-failed", "link", ["/ away"], f"shovel / away has failed: {HOSTILE}"),
        finding("queue-untaken", "queue", ["/ orders", f"/ {HOSTILE}"],
                f"messages wait in queues without consumers: / orders (120), / {HOSTILE} (3)",
                severity="notice"),
    ),
    "nodes": [
        {"name": name, "running": True, "mem_used": 90_000_000 + 1_000_000 * number,
         "mem_limit": 1_000_000_000, "disk_free": 70_000_000_000, "uptime": 7_200_000 * number,
         "mem_alarm": False, "disk_free_alarm": False, "type": "disc"}
        for number, name in enumerate("abc", start=1)
    ],
    "vhosts": [{"name": "/", "description": "default", "tags": [], "messages": 130,
                "messages_ready": 123, "messages_unacknowledged": 7},
               {"name": "shop", "description": "", "tags": []}],
    "users": [{"name": "ada", "tags": ["administrator"], "password_hash": "x"},
              {"name": HOSTILE, "tags": [], "password_hash": ""}],
    "permissions": [
        {"user": "ada", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "queues": [*QUEUES],
    "exchanges": [
        {"name": name, "vhost": "/", "type": kind, "durable": True, "auto_delete": False,
         "internal": False, "arguments": {}, "message_stats": rates(publish_in=1.0)}
        for name, kind in (("", "direct"), ("amq.topic", "topic"), (HOSTILE, "fanout"))
    ],
    "bindings": [
        {"source": "amq.topic", "vhost": "/", "destination": "orders",
         "destination_type": "queue", "routing_key": "o.#", "arguments": {},
         "properties_key": "o.%23"}
    ],
    "connections": [
        {"name": CONNECTION, "node": "a", "user": "ada", "vhost": "/", "state": "running",
         "ssl": False, "channels": 2, "recv_oct": 123456, "send_oct": 6543, "peer_host": "10.0.0.9",
         "peer_port": 50412, "protocol": "AMQP 0-9-1", "pid": CONNECTION,
         "client_properties": {"product": "pika", "version": "1.3.2", "connection_name": HOSTILE}}
    ],
    "channels": [
        {"name": f"{CONNECTION} (1)", "node": "a", "user": "ada", "vhost": "/", "number": 1,
         "prefetch_count": 10, "messages_unacknowledged": 7, "messages_unconfirmed": 0,
         "confirm": True, "transactional": False, "consumer_count": 1, "state": "running"}
    ],
    "consumers": [
        {"consumer_tag": "ctag1", "queue": {"name": "orders", "vhost": "/"}, "ack_required": True,
         "prefetch_count": 10, "exclusive": False, "arguments": {}, "active": True,
         "channel_details": {"name": f"{CONNECTION} (1)", "connection_name": CONNECTION}}
    ],
    "policies": [
        {"vhost": "/", "name": "caps", "pattern": "^orders", "apply-to": "queues", "priority": 1,
         "definition": {"max-length": 1000}}
    ],
    "operator-policies": [],
    "federation-links": [
        {"id": "f1", "vhost": "/", "type": "exchange", "exchange": HOSTILE, "upstream": "far",
         "uri": "amqps://far.example", "upstream_exchange": HOSTILE, "status": "running",
         "node": "b", "forwarded": 1234}
    ],
    "shovels": [
        {"name": "away", "vhost": "/", "src_uri": "amqp://", "src_queue": "orders",
         "dest_uri": "amqps://far.example", "dest_queue": "orders", "state": "error", "node": "a",
         "forwarded": 0, "reason": HOSTILE}
    ],
    "queue-replicas": [
        {"queue": "spare", "vhost": "/", "src_uri": "amqp://old.example", "src_queue": "orders",
         "state": "running", "node": "c", "forwarded": 77, "level": True, "behind": ""},
        {"queue": HOSTILE, "vhost": "/", "src_uri": "amqp://old.example", "src_queue": HOSTILE,
         "state": "running", "node": "c", "forwarded": 0, "level": False, "behind": "5 to come"},
    ],
    "queues/%2F/log": STREAM,
    "queues/%2F/orders": queue(
        "orders", 120, policy="caps", effective_policy_definition={"max-length": 1000},
        messages_ready_details=sampled(120, 80, 80, 0),
        messages_unacknowledged_details=sampled(7, 0, 0, 0),
        message_stats={
            "publish": 900, "publish_details": sampled(900, 500, 500, 0),
            "deliver_get": 780, "deliver_get_details": sampled(780, 420, 420, 0),
            "ack": 773, "ack_details": sampled(773, 420, 420, 0),
        },
    ),
    f"queues/%2F/{quote(HOSTILE, safe='')}": queue(HOSTILE, 3),
    "exchanges/%2F/amq.topic": {
        "name": "amq.topic", "vhost": "/", "type": "topic", "durable": True, "arguments": {}
    },
    "health/checks/alarms": {"status": "ok"},
    "health/checks/local-alarms": {"status": "ok"},
    "health/checks/virtual-hosts": {"status": "ok"},
    "health/checks/node-is-quorum-critical": {"status": "ok"},
}  # fmt: skip
REPLIES: dict[str, Json] = {
    "publish": {"routed": True},
    "get": [
        {"payload": "<b>one</b>", "payload_bytes": 10, "payload_encoding": "string",
         "redelivered": False, "exchange": "", "routing_key": "orders", "message_count": 119,
         "properties": {"delivery_mode": 2, "headers": {HOSTILE: HOSTILE}}}
    ],
    "move": {"moved": 2},
}  # fmt: skip
"""Bodies of replies to POST, by the last word of the path."""


async def turns() -> None:
    """Let everything happen that needs only turns of the loop, however slow the machine is."""
    for _ in range(20):
        await asyncio.sleep(0)


class Server(web.Server):
    """A server that knows the transports of all its connections."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(answer)
        self.transports: list[asyncio.Transport] = []

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Called by aiohttp."""
        super().connection_made(handler, transport)
        self.transports.append(transport)


class CannedApi:
    """Listens on a loopback port, in its own thread, until it is closed."""

    def __init__(self, user: str = "ada", password: str = "pw") -> None:
        self.changes: list[tuple[str, str, Json]] = []
        """Method, path below /api with its query, body."""
        self.reasons: list[str] = []
        self.queries: list[tuple[str, dict[str, str]]] = []
        """The requests that read: path and query."""
        self.answers: dict[str, Json] = dict(ANSWERS)
        self.refusals: dict[str, tuple[int, str]] = {}
        """By path: a status and a reason, for any method."""
        self.failures: dict[str, Object] = {}
        """By path: the detail of a failed check, or of a refusal, beside its reason."""
        self._login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._runner: web.ServerRunner | None = None
        self.port = self._loop.run_until_complete(self._listen())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL for a browser."""
        return f"http://127.0.0.1:{self.port}"

    async def _listen(self) -> int:
        self._server = Server(self._answer)
        self._runner = web.ServerRunner(self._server)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        assert isinstance(port, int)
        return port

    def close(self) -> None:
        """Stop listening."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        assert self._runner is not None
        assert self._server is not None
        await self._runner.cleanup()
        await turns()  # a connection may have been accepted as the listener closed
        await self._server.shutdown(0)
        for transport in self._server.transports:
            transport.abort()  # or it would first send what the browser has not read
        await turns()  # closed connections close their sockets

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        if not path.startswith("/api/"):
            return page(path)
        if request.headers.get("Authorization") != self._login:
            return refusal(401, "not_authorised", "Login failed")
        parts = path.removeprefix("/api/").split("/")
        path = "/".join(quote(unquote(part), safe="") for part in parts)
        if path in self.refusals:
            status, reason = self.refusals[path]
            body = {"error": "bad_request", "reason": reason, **self.failures.get(path, {})}
            return web.json_response(body, status=status)
        if path in self.failures:
            return web.json_response({"reason": "it failed", **self.failures[path]}, status=503)
        if request.method == "GET":
            self.queries.append((path, dict(request.query)))
            return self._read(path, dict(request.query))
        text = await request.text()
        asked = f"{path}?{request.query_string}" if request.query_string else path
        self.changes.append((request.method, asked, json.loads(text) if text else None))
        self.reasons += request.headers.getall("X-Reason", [])
        last = path.rpartition("/")[2]
        if request.method == "POST" and last in REPLIES:
            return web.json_response(REPLIES[last])
        return web.Response(status=201 if request.method in ("PUT", "POST") else 204)

    def _read(self, path: str, query: dict[str, str]) -> web.Response:
        found = self.answers.get(path)
        if found is None and path.startswith(("queues/", "exchanges/")) and "/bindings" in path:
            found = self.answers["bindings"]
        if found is None and path.endswith("/%2F"):
            found = self.answers.get(path.removesuffix("/%2F"))
        if found is None:
            return refusal(404, "Object Not Found", "Not Found")
        return web.json_response(paged(found, query) if "page" in query else found)


def paged(found: Json, query: dict[str, str]) -> Object:
    """One page of a list, filtered by name."""
    assert isinstance(found, list)
    items = [
        one for one in found
        if isinstance(one, dict) and query.get("name", "") in str(one.get("name"))
    ]  # fmt: skip
    page, size = int(query["page"]), int(query.get("page_size", "100"))
    chosen: list[Json] = [*items[(page - 1) * size : page * size]]
    return {
        "items": chosen, "item_count": len(chosen), "filtered_count": len(items),
        "total_count": len(found), "page": page, "page_size": size,
        "page_count": max(1, -(-len(items) // size)),
    }  # fmt: skip


def page(path: str) -> web.Response:
    """A file of the dashboard."""
    file = STATIC / (path.lstrip("/") or "index.html")
    if not file.is_file():
        return web.Response(status=404)
    return web.Response(
        body=file.read_bytes(), headers={**HEADERS, "Content-Type": TYPES[file.suffix]}
    )


def refusal(status: int, error: str, reason: str) -> web.Response:
    """The body of a refusal."""
    return web.json_response({"error": error, "reason": reason}, status=status)
