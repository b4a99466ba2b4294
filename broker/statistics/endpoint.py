"""The metrics pages over HTTP, on whatever port they are requested.

A page is made on the member's loop, a slice at a time: with a hundred thousand queues a scrape of
each takes seconds, and the token does not wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qs

from aiohttp import web

from broker.access.login_delays import source_of
from broker.statistics.exposition import CONTENT_TYPE
from broker.statistics.metrics import Metrics

SLICE_S = 0.0005
PAUSE_S = 0.001
CHUNK_CHARACTERS = 16_384
SCRAPES_MAX, SCRAPES_OF_ADDRESS_MAX = 16, 8
"""Simultaneous scrapes, in all and of one address, which may read as slowly as `SCRAPE_S` allows;
further ones are told to come again."""
SCRAPE_S = 60.0
HEADERS = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache"}


class Pages:
    """The metrics pages, by path."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._under_way: Counter[str] = Counter()  # by address
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
        source = source_of(request.remote or "")
        under_way = self._under_way
        if under_way.total() >= SCRAPES_MAX or under_way[source] >= SCRAPES_OF_ADDRESS_MAX:
            self.counters["too_many"] += 1
            return web.Response(status=503, text="too many scrapes at one time\n")
        under_way[source] += 1
        self.counters["scrapes"] += 1
        try:
            async with asyncio.timeout(SCRAPE_S):
                return await _sent(request, page)
        except (TimeoutError, ConnectionError):
            self.counters["broken_off"] += 1
            if request.transport is not None:
                request.transport.abort()  # an error would be in the middle of the page
            raise
        finally:
            under_way[source] -= 1
            if not under_way[source]:
                del under_way[source]


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
