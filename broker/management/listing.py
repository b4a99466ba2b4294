"""Lists of any length: filtered, sorted, paged, and sent in pieces while the ring turns.

The loop belongs to the token, so work that grows with the number of queues is done in slices of
half a millisecond (`slices.py`), with a turn of the loop in between. Changes made meanwhile may or
may not be in a list.
Decision: docs/decisions/0032-the-management-api-runs-in-slices.md.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

import re2
from aiohttp.web import StreamResponse

from broker.management.call import HEADERS, Call, Problem, Reply, bad_request
from broker.management.json_values import Json, Object, text_of
from broker.management.slices import Slices, no_collection

RUN_ITEMS = 256
FREED_ITEMS = 4096
"""Number of items sorted at once."""
PIECE_BYTES = 64 * 1024
PAGE_DEFAULT, PAGE_MAX = 100, 500
NAME_BYTES_MAX = 1024
COLUMNS_MAX, STEPS_MAX = 100, 8

_CASELESS = re2.Options()
_CASELESS.case_sensitive = False
_CASELESS.log_errors = False  # the client is told
_CASELESS.max_mem = 1 << 20  # of each expression; re2 keeps 128 of them

Item = TypeVar("Item")
Key: TypeAlias = tuple[object, ...]


class Listing(Generic[Item]):
    """How one kind of object is listed."""

    def __init__(
        self,
        items: Iterable[Item],
        row: Callable[[Item], Object],
        order: Callable[[Item], Key],
        name: Callable[[Item], str] = lambda _: "",
        gone: Callable[[Item], bool] = lambda _: False,
    ) -> None:
        """`order`: the default order; `name`: the field that a filter looks at."""
        self.items, self.row, self.order = items, row, order
        self.name, self.gone = name, gone

    async def reply(self, call: Call) -> Reply | StreamResponse:
        """Answer the request: the whole list, or a page."""
        slices = Slices()
        _columns(call)  # refused before anything is sent
        with no_collection():
            ordered, total = await self._ordered(call, slices)
        try:
            if "page" in call.query:
                return await self._page(call, ordered, total, slices)
            return await self._all(call, ordered, slices)
        finally:
            while ordered:  # releasing all at once takes milliseconds
                del ordered[-FREED_ITEMS:]
                await slices.step()

    async def _ordered(self, call: Call, slices: Slices) -> tuple[list[Item], int]:
        """The matching items, in order, and the total."""
        found: list[tuple[Key, int, Item]] = []
        matches = _filter(call)
        key = self._key(call)
        total = 0
        for item in self.items:
            total += 1
            if matches is None or matches(self.name(item)):
                found.append((key(item), total, item))
            await slices.step()
        return await _sorted(found, slices, reverse=call.flag("sort_reverse")), total

    def _key(self, call: Call) -> Callable[[Item], Key]:
        path = call.query.get("sort", "")
        if not path:
            return self.order
        steps = _steps(path)
        return lambda item: _sortable(_at(self.row(item), steps))

    async def _page(self, call: Call, found: Sequence[Item], total: int, slices: Slices) -> Reply:
        page = call.count("page", 1, 1 << 31)
        size = call.count("page_size", PAGE_DEFAULT, PAGE_MAX)
        pages = max(1, -(-len(found) // size))
        if page > pages:
            raise Problem(
                400, "page_out_of_range",
                f"Page out of range, page: {page} page size: {size}, len: {len(found)}",
            )  # fmt: skip
        items = await self._rows(call, found[(page - 1) * size : page * size], slices)
        head: Object = {
            "filtered_count": len(found), "item_count": len(items), "page": page,
            "page_count": pages, "page_size": size, "total_count": total,
        }  # fmt: skip
        return Reply(body=text_of(head)[:-1] + b',"items":[' + b",".join(items) + b"]}")

    async def _rows(self, call: Call, found: Sequence[Item], slices: Slices) -> list[bytes]:
        """Each item in JSON: encoding them together would take longer than a slice."""
        columns = _columns(call)
        rows: list[bytes] = []
        for item in found:
            if not self.gone(item):
                rows.append(text_of(_only(self.row(item), columns)))
            await slices.step()
        return rows

    async def _all(
        self, call: Call, found: Sequence[Item], slices: Slices
    ) -> Reply | StreamResponse:
        if len(found) <= RUN_ITEMS:
            rows = await self._rows(call, found, slices)
            return Reply(body=b"[" + b",".join(rows) + b"]")
        return await stream(call, self._parts(call, found))

    async def _parts(self, call: Call, found: Sequence[Item]) -> AsyncIterator[bytes]:
        columns = _columns(call)
        separator = b"["
        for item in found:
            if self.gone(item):
                yield b""
            else:
                yield separator + text_of(_only(self.row(item), columns))
                separator = b","
        yield b"[]" if separator == b"[" else b"]"


async def _in_pieces(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join small parts before they are sent; the loop has a turn between them."""
    slices = Slices()
    piece = bytearray()
    async for part in parts:
        piece += part
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
        await slices.step()
    yield bytes(piece)


async def stream(call: Call, parts: AsyncIterator[bytes]) -> StreamResponse:
    """Send a body in pieces, made of parts of any size; a slow reader holds up nobody else.

    A failure in the middle ends the connection: an error would be taken for part of the body.
    """
    response = StreamResponse(headers={**HEADERS, "Content-Type": "application/json"})
    await response.prepare(call.request)
    try:
        async for piece in _in_pieces(parts):
            await response.write(piece)
        await response.write_eof()
    except BaseException:
        if call.request.transport is not None:
            call.request.transport.abort()
        raise
    return response


async def _sorted(
    found: list[tuple[Key, int, Item]], slices: Slices, *, reverse: bool
) -> list[Item]:
    """Sort in slices: short runs, then all of them merged."""
    runs: list[Iterator[tuple[Key, int, Item]]] = []
    while found:  # emptied step by step: freeing it at once takes milliseconds
        # The second item is a unique number, so the listed objects are never compared.
        runs.append(iter(sorted(found[-RUN_ITEMS:], reverse=reverse)))
        del found[-RUN_ITEMS:]
        await asyncio.sleep(0)
    ordered: list[Item] = []
    for _, _, item in heapq.merge(*runs, reverse=reverse):
        ordered.append(item)
        await slices.step()
    return ordered


def _at(value: Json, steps: Sequence[str]) -> Json:
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _sortable(value: Json) -> Key:
    """A key by which values of different types compare: numbers, then texts, then the rest."""
    match value:
        case bool() | int() | float():
            return (0, value)
        case str():
            return (1, value)
        case None:
            return (-1, 0)
        case _:
            return (2, text_of(value))


def _filter(call: Call) -> Callable[[str], bool] | None:
    wanted = call.query.get("name", "")
    if not wanted:
        return None
    if len(wanted.encode()) > NAME_BYTES_MAX:
        raise bad_request(f"name is longer than {NAME_BYTES_MAX} bytes")
    if not call.flag("use_regex"):
        lowered = wanted.lower()
        return lambda name: lowered in name.lower()
    try:
        # Linear in the length of the text, whatever the expression.
        pattern = re2.compile(wanted, _CASELESS)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace")
        raise bad_request(f"name is no regular expression: {why}") from None
    return lambda name: pattern.search(name) is not None


def _columns(call: Call) -> list[list[str]]:
    columns = [_steps(one) for one in call.query.get("columns", "").split(",") if one]
    if len(columns) > COLUMNS_MAX:
        raise bad_request(f"there are more than {COLUMNS_MAX} columns")
    return columns


def _steps(path: str) -> list[str]:
    steps = path.split(".")
    if len(steps) > STEPS_MAX:
        raise bad_request(f"a column is nested deeper than {STEPS_MAX} levels")
    return steps


def _only(row: Object, columns: Sequence[Sequence[str]]) -> Object:
    """The requested columns; all if none were requested."""
    if not columns:
        return row
    found: Object = {}
    for steps in columns:
        value = _at(row, steps)
        if value is None and steps[0] not in row:
            continue
        place = found
        for step in steps[:-1]:
            below = place.setdefault(step, {})
            if not isinstance(below, dict):
                break
            place = below
        else:
            place[steps[-1]] = value
    return found


def chosen(call: Call, row: Object) -> Reply:
    """One object, with the requested columns."""
    return Reply(body=_only(row, _columns(call)))
