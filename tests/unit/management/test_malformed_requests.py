"""Requests that are no HTTP, break off, or come from other sites: refused, and logged in a line."""

from __future__ import annotations

import asyncio
import base64

import pytest

from tests.support.management.member import ApiMember, Http

LOGIN = base64.b64encode(b"guest:guest")
HEAD = b"POST /api/rebalance/queues HTTP/1.1\r\nHost: x\r\nAuthorization: Basic %b\r\n" % LOGIN


def answered(*requests: bytes) -> list[bytes]:
    """The replies to these requests, each on a connection of its own that is closed then; one that
    ends with `...` is broken off there."""

    async def run() -> list[bytes]:
        async with Http() as http:
            await http.serve(ApiMember())
            replies = []
            for request in requests:
                reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
                writer.write(request.removesuffix(b"..."))
                while not http.server.connections.limits.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                if request.endswith(b"..."):
                    writer.close()
                    replies.append(b"")
                else:
                    replies.append(await reader.readline())
                    writer.close()
                while http.server.connections.limits.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            return replies

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (HEAD.replace(b"\r\n", b"\n") + b"\n", 400),
        (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"Authorization: Basic %b\r\n\r\n" % LOGIN, 400),
        (HEAD + b"Content-Length: 20\r\n\r\n{}...", 0),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}...", 0),
    ],
)
def test_what_is_no_http_is_logged_without_what_it_holds(
    request_: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    (reply,) = answered(request_)
    assert int((reply.split() or [b"", b"0"])[1]) == status
    assert LOGIN.decode() not in caplog.text
    assert "Traceback" not in caplog.text
    for record in caplog.records:
        assert record.name != "aiohttp.server"
        assert record.levelname == "WARNING" or record.name == "asyncio"


def test_strangers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    answered(*[b"GET / HTTP/1.1\n\n"] * 50)
    lines = [one.getMessage() for one in caplog.records if one.name == "qpidd.management"]
    assert 1 <= len(lines) <= 20
    assert lines[0] == "Error handling request from 127.0.0.1: it is no HTTP"


def test_a_fault_of_our_own_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("our own")

    monkeypatch.setattr("broker.management.server.ManagementServer._handle", fails)
    answered(HEAD + b"Content-Length: 0\r\n\r\n")
    assert "our own" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("origin", [b"http://[::1", b"http://[x]", b"null", b"http://y"])
def test_an_origin_that_is_none_is_another_site(origin: bytes) -> None:
    (reply,) = answered(HEAD + b"Origin: %b\r\nContent-Length: 0\r\n\r\n" % origin)
    assert reply.split()[1] == b"403"


@pytest.mark.parametrize("packed", [b"gzip", b"deflate", b"br", b"zstd", b"x"])
def test_a_compressed_body_is_refused_unread(packed: bytes) -> None:
    (reply,) = answered(HEAD + b"Content-Encoding: %b\r\nContent-Length: 2\r\n\r\n{}" % packed)
    assert reply.split()[1] == b"415"
