"""Lists whose objects disappear while they are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp.web import StreamResponse

from broker.management import listing
from broker.management.call import Call, Reply
from broker.management.listing import RUN_ITEMS, Listing


@pytest.mark.parametrize("count", [5, RUN_ITEMS + 5])
def test_an_object_deleted_meanwhile_is_left_out(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short list is one reply, a long one is sent in pieces."""
    deleted: set[int] = set()

    async def sent(_: Call, parts: AsyncIterator[bytes]) -> Reply:
        return Reply(body=b"".join([part async for part in parts]))

    def order(number: int) -> tuple[int]:
        deleted.update((0, count - 1))
        return (number,)

    async def listed() -> Reply | StreamResponse:
        rows: Listing[int] = Listing(
            range(count), lambda one: {"number": one}, order, gone=deleted.__contains__
        )
        return await rows.reply(cast("Call", SimpleNamespace(query={}, flag=lambda _: False)))

    monkeypatch.setattr(listing, "stream", sent)
    reply = asyncio.run(listed())
    assert isinstance(reply, Reply)
    assert isinstance(reply.body, bytes)
    found = json.loads(reply.body)
    assert found == [{"number": one} for one in range(1, count - 1)]
