"""Lists: their order, and objects that disappear while they are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.management import listing
from broker.management.call import Call, Reply
from broker.management.json_values import Json
from broker.management.listing import RUN_ITEMS, Item, Listing


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

    monkeypatch.setattr(listing, "stream", sent)
    rows: Listing[int] = Listing(
        range(count), lambda one: {"number": one}, order, gone=deleted.__contains__
    )
    assert listed(rows) == [{"number": one} for one in range(1, count - 1)]


def test_a_list_is_sorted_by_a_column_that_some_lack_and_of_several_types() -> None:
    values: list[Json] = ["b", 1, None, [1], -1, "a", 0.5, True]
    rows: Listing[Json] = Listing(values, lambda one: {"k": {"v": one}}, lambda _: ())
    found = [row["k"]["v"] for row in listed(rows, sort="k.v")]
    assert found == [None, -1, 0.5, 1, True, "a", "b", [1]]


def listed(rows: Listing[Item], **query: str) -> list[dict[str, Any]]:
    """The rows of the reply."""
    call = cast("Call", SimpleNamespace(query=query, flag=lambda _: False))
    reply = asyncio.run(rows.reply(call))
    assert isinstance(reply, Reply)
    assert isinstance(reply.body, bytes)
    found: list[dict[str, Any]] = json.loads(reply.body)
    return found
