"""The metrics over HTTP: the pages, and the port of their own where an operator asked for one.

A page is made on the member's loop, a slice at a time: with a hundred thousand queues a scrape of
each takes seconds, and the token does not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qs

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from broker.statistics.exposition import CONTENT_TYPE
from broker.statistics.metrics import Metrics

log = logging.getLogger("qpidd")

SLICE_S = 0.0005
PAUSE_S = 0.001
CHUNK_CHARACTERS = 16_384
SCRAPES_MAX = 16
"""At one time; more are told to come again."""
CONNECTIONS_MAX = 64
SCRAPE_S = 60.0
HEAD_BYTES_MAX = 8192
IDLE_S = 30.0
HEADERS = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache"}


class Pages:
    """The pages of the metrics, by path."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._under_way = 0
        self.counters = dict.fromkeys(("scrapes", "too_many", "broken_off"), 0)

    def find(self, path: str, query: Mapping[str, Sequence[str]]) -> Iterator[str] | None:
        """Return a page in pieces; None: there is no such page."""
        match path.rstrip("/"):
            case "/metrics":
                return self._metrics.aggregated()
            case "/metrics/per-object":
                return self._metrics.per_object()
            case "/metrics/detailed":
                return self._metrics.detailed(query.get("family", ()), query.get("vhost", ()))
            case _:
                return None

    async def reply(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request for one of the pages."""
        page = self.find(request.path, parse_qs(request.query_string))
        if page is None:
            return web.Response(status=404, text="the pages are /metrics, /metrics/per-object and "
                                "/metrics/detailed?family=NAME&vhost=NAME\n")  # fmt: skip
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        if self._under_way >= SCRAPES_MAX:
            self.counters["too_many"] += 1
            return web.Response(status=503, text="too many scrapes at one time\n")
        self._under_way += 1
        self.counters["scrapes"] += 1
        try:
            async with asyncio.timeout(SCRAPE_S):
                return await _sent(request, page)
        except (TimeoutError, ConnectionError):
            self.counters["broken_off"] += 1
            if request.transport is not None:
                request.transport.abort()  # an error would stand in the middle of the page
            raise
        finally:
            self._under_way -= 1


async def _sent(request: web.BaseRequest, page: Iterator[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    pieces: list[str] = []
    characters = 0
    deadline = time.perf_counter() + SLICE_S
    for piece in page:
        if piece:
            pieces.append(piece)
            characters += len(piece)
        if time.perf_counter() >= deadline:
            await asyncio.sleep(PAUSE_S)
            deadline = time.perf_counter() + SLICE_S
        if characters >= CHUNK_CHARACTERS:
            await response.write("".join(pieces).encode("utf-8", "backslashreplace"))
            pieces, characters = [], 0
    await response.write("".join(pieces).encode("utf-8", "backslashreplace"))
    await response.write_eof()
    return response


class MetricsPort:
    """The port of the metrics, without a login, as RabbitMQ's 15692 has none; perhaps none."""

    def __init__(self, interface: str, port: int | None) -> None:
        self._interface, self._port = interface, port
        self._pages: Pages | None = None
        self._listener: asyncio.Server | None = None
        self._waiting: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}
        self._server = web.Server(
            self._reply, access_log=None, keepalive_timeout=IDLE_S, max_line_size=HEAD_BYTES_MAX,
            max_field_size=HEAD_BYTES_MAX,
        )  # fmt: skip

    async def take(self) -> None:
        """Take the port.  Raises OSError when it cannot be had."""
        if self._port is not None:
            self._listener = await asyncio.get_running_loop().create_server(
                self._protocol, self._interface, self._port, start_serving=False
            )

    async def serve(self, pages: Pages) -> None:
        """Begin to answer."""
        if self._listener is not None:
            self._pages = pages
            await self._listener.start_serving()
            port = self._listener.sockets[0].getsockname()[1]
            log.info("metrics on http://%s:%d/metrics", self._interface, port)

    def listening(self) -> tuple[tuple[str, str, int], ...]:
        """The port as a list of listeners shows it; nothing where there is none."""
        if self._listener is None:
            return ()
        port = self._listener.sockets[0].getsockname()[1]
        return (("http/prometheus", self._interface, port),)

    async def close(self) -> None:
        """End."""
        for due in self._waiting.values():
            due.cancel()
        if self._listener is not None:
            self._listener.close()
            await self._server.shutdown(0.5)

    def _protocol(self) -> asyncio.Protocol:
        if len(self._server.connections) >= CONNECTIONS_MAX:
            return _Refusing()
        handler = self._server()
        self._await_head(handler)
        return handler

    def _await_head(self, handler: asyncio.BaseProtocol) -> None:
        """Close a connection whose next request does not come whole in time."""
        due = asyncio.get_running_loop().call_later(IDLE_S, self._reap, handler)
        self._waiting[handler] = due

    def _reap(self, handler: asyncio.BaseProtocol) -> None:
        del self._waiting[handler]
        assert isinstance(handler, RequestHandler)
        handler.force_close()

    async def _reply(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._pages is not None
        if (waiting := self._waiting.pop(request.protocol, None)) is not None:
            waiting.cancel()
        try:
            return await self._pages.reply(request)
        finally:
            self._await_head(request.protocol)


class _Refusing(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
