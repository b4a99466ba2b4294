"""The metrics pages over HTTP: limits on concurrent requests, for each address and in total."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web

from broker.statistics import endpoint
from broker.statistics.endpoint import SCRAPES_MAX, SCRAPES_OF_ADDRESS_MAX, Pages
from tests.support.observed import Observed


def test_who_reads_slowly_leaves_room_for_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics port needs no login."""

    async def work() -> None:
        done = asyncio.Event()

        async def sent(*_: object) -> web.StreamResponse:
            await done.wait()
            return web.Response()

        monkeypatch.setattr(endpoint, "_sent", sent)
        pages = Pages(Observed().metrics())

        def scrape(address: str) -> asyncio.Task[web.StreamResponse]:
            request = SimpleNamespace(
                remote=address, path="/metrics", query_string="", method="GET", transport=None
            )
            return asyncio.create_task(pages.reply(cast("web.BaseRequest", request)))

        slow = [scrape("192.0.2.1") for _ in range(SCRAPES_OF_ADDRESS_MAX)]
        await asyncio.sleep(0)
        refused = await scrape("192.0.2.1")
        others = [
            scrape(f"198.51.100.{number}") for number in range(SCRAPES_MAX - SCRAPES_OF_ADDRESS_MAX)
        ]
        await asyncio.sleep(0)
        full = await scrape("203.0.113.1")
        done.set()
        served = await asyncio.gather(*slow, *others)
        assert {one.status for one in served} == {200}
        assert (refused.status, full.status) == (503, 503)
        assert (await scrape("192.0.2.1")).status == 200, "the slots are free again"
        assert pages.counters["too_many"] == 2

    asyncio.run(work())
