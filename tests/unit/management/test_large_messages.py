"""Messages of some megabytes over HTTP: whole in both directions, and encoded in slices."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from broker.management import listing, server, slices
from broker.management.amqp_client import AmqpRefused, InternalClient
from broker.management.json_values import BadJson
from broker.management.resources import messages
from tests.support.management.member import ApiMember, Http

ADMIN = "guest:guest"
TEXT = 'a"\n\\é😀' * 60_000
BINARY = bytes(range(256)) * 2000


def exchange(body: dict[str, object], get: dict[str, object]) -> dict[str, object]:
    """Publish to a queue, and get the message back as it is shown."""

    async def run() -> list[dict[str, object]]:
        async with Http() as http:
            member = ApiMember()
            await http.serve(member)
            member.client("guest", "/").queue("q")
            message = {"routing_key": "q", "properties": {}, "payload_encoding": "string", **body}
            path = "/api/exchanges/%2F/amq.default/publish"
            found = await http.ask("POST", path, json.dumps(message), ADMIN)
            assert (found.status, found.body) == (200, b'{"routed":true}')
            wanted = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto", **get}
            found = await http.ask("POST", "/api/queues/%2F/q/get", json.dumps(wanted), ADMIN)
            assert found.status == 200
            rows: list[dict[str, object]] = json.loads(found.body)
            return rows

    (row,) = asyncio.run(run())
    return row


def test_a_text() -> None:
    row = exchange({"payload": TEXT}, {})
    assert (row["payload"], row["payload_encoding"]) == (TEXT, "string")
    assert row["payload_bytes"] == len(TEXT.encode())


def test_bytes_that_are_not_text() -> None:
    text = base64.b64encode(BINARY).decode()
    row = exchange({"payload": text, "payload_encoding": "base64"}, {})
    assert (row["payload"], row["payload_encoding"]) == (text, "base64")


def test_a_text_cut_within_a_character_is_shown_in_base64() -> None:
    row = exchange({"payload": TEXT}, {"truncate": 5})
    assert row["payload"] == base64.b64encode(TEXT.encode()[:5]).decode()
    assert row["payload_bytes"] == len(TEXT.encode())


def test_incomplete_base64_is_refused() -> None:
    piece = base64.b64encode(b"x" * (messages.PIECE // 4 * 3 - 1)).decode()
    with pytest.raises(AssertionError, match="no base64"):
        exchange({"payload": piece + piece, "payload_encoding": "base64"}, {})


def test_the_loop_runs_while_bodies_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a slice has no time at all, so each piece is followed by a turn of the loop."""
    turns = 0
    sleep = asyncio.sleep

    async def counted(delay: float) -> None:
        nonlocal turns
        turns += 1
        await sleep(delay)

    monkeypatch.setattr("broker.management.slices.SLICE_S", 0.0)
    monkeypatch.setattr("broker.management.slices.asyncio.sleep", counted)
    exchange({"payload": TEXT}, {})
    pieces = len(TEXT.encode()) // messages.PIECE
    assert turns > 3 * pieces


def test_a_reply_with_messages_has_the_time_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may already have been taken from the queue: a slow reader must get all of them."""
    given: list[float] = []
    timeout = asyncio.timeout

    def noted(seconds: float | None) -> asyncio.Timeout:
        if seconds is not None:  # as the client here has it
            given.append(seconds)
        return timeout(seconds)

    monkeypatch.setattr("broker.management.server.asyncio.timeout", noted)
    exchange({"payload": "x"}, {})
    of_publish, of_get = [server.REQUEST_S] * 2, [server.LONG_S, server.REQUEST_S]  # all, the body
    assert given == of_publish + of_get


def test_a_timeout_puts_no_error_into_the_middle_of_a_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> bytes:
        async with Http() as http:
            member = ApiMember()
            await http.serve(member)
            member.client("guest", "/").queue("q")
            message = {"routing_key": "q", "properties": {}, "payload": "x" * (15 << 20)}
            path = "/api/exchanges/%2F/amq.default/publish"
            assert (await http.ask("POST", path, json.dumps(message), ADMIN)).status == 200
            monkeypatch.setattr(server, "LONG_S", 0.1)
            reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
            body = json.dumps({"count": 1, "ackmode": "ack_requeue_true"}).encode()
            login = base64.b64encode(ADMIN.encode())
            writer.write(
                b"POST /api/queues/%%2F/q/get HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nAuthorization: Basic %b\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (login, len(body), body)
            )
            limits = http.server.connections.limits
            for there in (2, 1):  # the reply starts, and is given up while the client reads nothing
                while limits.connections != there:  # noqa: ASYNC110 (it tells nobody)
                    await asyncio.sleep(0.01)
            got = bytearray()
            with suppress(ConnectionResetError):
                while part := await reader.read(1 << 20):
                    got += part
            writer.close()
            return bytes(got)

    got = asyncio.run(run())
    assert not got.endswith(b"0\r\n\r\n")
    assert got.count(b"HTTP/1.1") <= 1


def test_many_user_names_are_checked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1.0)  # each slice ends at once
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> None:
        async with Http() as http:
            await http.serve(ApiMember())
            counting = asyncio.create_task(count())
            names = json.dumps({"users": [f"nobody{number}" for number in range(5000)]})
            found = await http.ask("POST", "/api/users/bulk-delete", names, ADMIN)
            counting.cancel()
            assert found.status == 204
            assert turns > 5000

    asyncio.run(run())


def test_all_connections_of_a_user_are_closed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1.0)
    member = ApiMember()
    turns: list[int] = []

    async def run() -> None:
        async with Http() as http:
            await http.serve(member)
            for number in range(100):
                member.client("guest", "/", f"10.0.0.1:{7000 + number}", 1000 + number)
            loop = asyncio.get_running_loop()
            closes = member.broker.operations.disconnect

            def close(address: str, of: str, reason: str) -> list[str]:
                loop.call_soon(lambda: turns.append(len(member.asked)))
                return closes(address, of, reason)

            monkeypatch.setattr(member.broker.operations, "disconnect", close)
            found = await http.ask("DELETE", "/api/connections/username/guest", login=ADMIN)
            assert found.status == 204

    asyncio.run(run())
    assert len(member.asked) == 100
    assert turns == [*range(1, 101)]  # a turn after each


def test_a_reply_ends_after_so_many_bytes_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[object]:
        async with Http() as http:
            member = ApiMember()
            await http.serve(member)
            client = member.client("guest", "/")
            client.queue("q")
            for _ in range(5):
                client.publish("q", b"x" * 40)
            wanted = json.dumps({"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"})
            found = await http.ask("POST", "/api/queues/%2F/q/get", wanted, ADMIN)
            rows: list[object] = json.loads(found.body)
            return rows

    assert len(asyncio.run(run())) == 5
    monkeypatch.setattr(messages, "GET_BYTES_MAX", 100)
    assert len(asyncio.run(run())) == 3


def test_who_waits_for_a_reply_is_told_that_the_connection_is_gone() -> None:
    async def run() -> None:
        member = ApiMember()
        async with InternalClient(member.connections, "127.0.0.1:1", "guest", "/", "a test") as one:
            waiting = asyncio.create_task(one.answer())
            await asyncio.sleep(0)
            (link,) = member.connections.links()
            link.transport.abort()
            with pytest.raises(AmqpRefused, match="closed before the reply"):
                await waiting

    asyncio.run(run())


def test_a_request_that_waited_for_its_member_goes_on() -> None:
    """It is not read while the member is full, or may not reply."""

    async def run() -> None:
        member = ApiMember()
        async with InternalClient(member.connections, "127.0.0.1:1", "guest", "/", "a test") as one:
            (link,) = member.connections.links()
            link.read(on=False)
            asked = asyncio.create_task(one.call("basic.qos", (0, 1, False)))
            await asyncio.sleep(0)
            assert member.gateway.commands == []
            link.read(on=True)
            assert (await asyncio.wait_for(asked, 10)).method == "basic.qos-ok"

    asyncio.run(run())


def test_a_reply_that_fails_on_its_way_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_body: memoryview) -> Iterator[bytes]:
        yield b"x" * listing.PIECE_BYTES
        raise BadJson("in the middle")

    monkeypatch.setattr(messages, "_quoted", fails)

    async def run() -> bytes:
        async with Http() as http:
            member = ApiMember()
            await http.serve(member)
            client = member.client("guest", "/")
            client.queue("q")
            client.publish("q", b"text")
            reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
            body = json.dumps({"count": 1, "ackmode": "ack_requeue_true"}).encode()
            writer.write(
                b"POST /api/queues/%%2F/q/get HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Authorization: Basic %b\r\nContent-Length: %d\r\n\r\n%b"
                % (base64.b64encode(ADMIN.encode()), len(body), body)
            )
            got = bytearray()
            with suppress(ConnectionResetError):
                while part := await reader.read(1 << 20):
                    got += part
            writer.close()
            return bytes(got)

    got = asyncio.run(run())
    assert got.count(b"HTTP/1.1") <= 1
    assert b"in the middle" not in got


def test_the_collector_is_off_until_the_last_of_several_is_done() -> None:
    with slices.no_collection():
        with slices.no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
