"""The sockets and the time that a client of the API may take before it sends a valid request."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import uvloop

from broker.access.backends import Login
from broker.admin.operator_logins import OperatorLogins
from broker.management import connections as limits
from broker.management import server as service
from broker.management.access import Logins
from broker.management.connections import HttpConnections
from broker.management.server import ManagementServer
from broker.process.management_port import MetricsPort
from broker.statistics.endpoint import Pages
from tests.support.certificates import Authority
from tests.support.management.member import ApiMember
from tests.support.observed import Observed

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop,
}  # fmt: skip
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ASK = b"GET /api/overview HTTP/1.1\r\nHost: x\r\n\r\n"


class Clients:
    """A service that listens, and connections to it."""

    def __init__(
        self, connections: HttpConnections, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.connections, self.port, self.tls = connections, port, tls
        self._links: list[Link] = []

    async def connect(self) -> Link:
        name = "localhost" if self.tls else None
        link = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.tls, server_hostname=name
        )
        self._links.append(link)
        return link

    async def status(self, link: Link, sent: bytes = ASK) -> int:
        """Return the status of the reply."""
        link[1].write(sent)
        return int((await link[0].readline()).split()[1])

    async def never_read(self, link: Link, sent: bytes) -> None:
        """Request more than the socket holds, read nothing, and wait until the place is free."""
        server = self.connections
        (one,) = server._sockets.values()
        assert one._raw is not None
        one._raw.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        link[1].write(sent)
        for _ in range(3000):
            if not server.limits.connections:
                return
            await asyncio.sleep(0.01)
        raise AssertionError

    def close(self) -> None:
        for _, writer in self._links:
            writer.close()


def run(
    loop: str,
    work: Callable[[Clients], Coroutine[None, None, None]],
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
) -> None:
    async def serve() -> None:
        server = ManagementServer()
        port = await server.connections.listen("127.0.0.1", 0, tls[0] if tls else None)
        clients = Clients(server.connections, port, tls[1] if tls else None)
        member = ApiMember()

        async def check(user: str, password: str, address: str) -> Login:
            login = OperatorLogins(member.gateway).judge(user, password, address, lambda *_: None)
            assert login is not None
            return login

        await server.serve(member.broker, Logins(check, lambda: 0))
        try:
            await asyncio.wait_for(work(clients), 30)
        finally:
            clients.close()
            await server.connections.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(serve())


@pytest.fixture(params=list(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    files = Authority(tmp_path).issue("server", "localhost")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(files.certificate, files.key)
    return server, ssl.create_default_context(cafile=str(files.ca))


@pytest.mark.parametrize("encrypted", [False, True])
def test_connections_of_one_address_are_bounded(
    loop: str, encrypted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CONNECTIONS_OF_ADDRESS_MAX", 3)

    async def work(clients: Clients) -> None:
        links = [await clients.connect() for _ in range(3)]
        assert [await clients.status(link) for link in links] == [401] * 3
        with suppress(ConnectionError) if encrypted else nullcontext():  # its address is unknown
            refused = await clients.connect()
            assert await clients.status(refused, b"") == 503
            assert b"there are 3 connections of 127.0.0.1" in await refused[0].read()
        assert clients.connections.counters["refused_of_address"] == 1
        links[0][1].close()
        for _ in range(3000):  # until the server knows that one of them has ended
            if clients.connections.limits.connections == 2:
                assert await clients.status(await clients.connect()) == 401
                return
            await asyncio.sleep(0.01)
        raise AssertionError

    run(loop, work, contexts(tmp_path) if encrypted else None)


def test_an_ipv6_network_counts_as_one_address(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CONNECTIONS_OF_ADDRESS_MAX", 2)
    hosts = iter(("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"))
    monkeypatch.setattr(limits, "host_of", lambda _: next(hosts))

    async def work(clients: Clients) -> None:
        links = [await clients.connect() for _ in range(2)]
        assert [await clients.status(link) for link in links] == [401] * 2
        assert await clients.status(await clients.connect(), b"") == 503
        assert await clients.status(await clients.connect()) == 401

    run(loop, work)


def test_all_connections_together_are_bounded(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CONNECTIONS_MAX", 2)

    async def work(clients: Clients) -> None:
        links = [await clients.connect() for _ in range(2)]
        assert [await clients.status(link) for link in links] == [401] * 2
        refused = await clients.connect()
        assert await clients.status(refused, b"") == 503
        assert b"2 connections already" in await refused[0].read()

    run(loop, work)


@pytest.mark.parametrize("sent", [b"", b"GET /api/over", ASK[:-2], b"\r\n"])
def test_a_head_that_does_not_come_in_time(
    loop: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IDLE_S", 0.05)
    monkeypatch.setattr(limits, "REAP_S", 0.02)

    async def work(clients: Clients) -> None:
        reader, writer = await clients.connect()
        writer.write(sent)
        assert await reader.read() == b""  # it is closed without an answer

    run(loop, work)


def test_an_idle_keep_alive_connection_is_closed(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REAP_S", 0.02)

    async def work(clients: Clients) -> None:
        link = await clients.connect()
        assert await clients.status(link) == 401
        await link[0].readuntil(b"}")
        monkeypatch.setattr(limits, "IDLE_S", 0.05)  # from the end of the next request on
        assert await clients.status(link) == 401
        await link[0].read()  # to its end

    run(loop, work)


def test_an_unfinished_handshake_does_not_count_for_ever(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_S", 0.05)
    monkeypatch.setattr(limits, "REAP_S", 0.02)
    monkeypatch.setattr(service, "CONNECTIONS_MAX", 2)

    async def work(clients: Clients) -> None:
        tls, clients.tls = clients.tls, None
        silent = [await clients.connect() for _ in range(2)]
        for reader, _ in silent:
            assert await reader.read() == b""
        monkeypatch.setattr(limits, "HANDSHAKE_S", 30.0)
        clients.tls = tls
        assert await clients.status(await clients.connect()) == 401

    run(loop, work, contexts(tmp_path))


def test_a_failed_handshake_no_longer_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a few clients without TLS would keep all others out, without a password."""
    monkeypatch.setattr(service, "CONNECTIONS_MAX", 2)

    async def work(clients: Clients) -> None:
        tls, clients.tls = clients.tls, None
        for _ in range(4):
            reader, writer = await clients.connect()
            writer.write(ASK)
            with suppress(ConnectionResetError):
                await reader.read()
        clients.tls = tls
        assert await clients.status(await clients.connect()) == 401

    run("uvloop", work, contexts(tmp_path))


def test_handshakes_of_one_address_leave_room_for_others(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets that connect and send nothing, as many as one host cares to open."""
    monkeypatch.setattr(limits, "HANDSHAKES_MAX", 4)
    hosts = iter(("192.0.2.1",) * 3 + ("192.0.2.2",))
    monkeypatch.setattr(limits, "host_of", lambda _: next(hosts))

    async def work(clients: Clients) -> None:
        tls, clients.tls = clients.tls, None
        for _ in range(2):
            await clients.connect()
        reader, _ = await clients.connect()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""  # closed: two are silent already
        assert clients.connections.counters["refused_negotiating"] == 1
        clients.tls = tls
        assert await clients.status(await clients.connect()) == 401

    run(loop, work, contexts(tmp_path))


def read_late(port: int, tls: ssl.SSLContext, sent: bytes) -> bytes:
    """What a client gets that starts to read late. It uses a socket of its own: a stream of uvloop
    over TLS drops unread data when the end of the connection arrives."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as raw,
        tls.wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False) as link,
    ):
        link.sendall(sent)
        time.sleep(0.05)
        return b"".join(iter(lambda: link.recv(1 << 16), b""))


def test_a_large_reply_to_a_slow_reader_over_tls(loop: str, tmp_path: Path) -> None:
    """The output waits for the client, and arrives whole."""
    asked = b"GET /app.js HTTP/1.1\r\nHost: x\r\n\r\n" * 200
    asked += b"GET /api/overview HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    async def work(clients: Clients) -> None:
        assert clients.tls is not None
        found = await asyncio.to_thread(read_late, clients.port, clients.tls, asked)
        assert (found.count(b"HTTP/1.1 200"), found.count(b"HTTP/1.1 401")) == (200, 1)

    run(loop, work, contexts(tmp_path))


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_client_that_never_reads_a_reply_loses_its_place(
    loop: str, encrypted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without a password: unread replies would keep a closed connection open."""
    monkeypatch.setattr(limits, "REAP_S", 0.02)

    async def work(clients: Clients) -> None:
        link = await clients.connect()
        assert await clients.status(link) == 401
        for limit in ("IDLE_S", "READING_S"):
            monkeypatch.setattr(limits, limit, 0.05)
        await clients.never_read(link, b"GET /style.css HTTP/1.1\r\nHost: x\r\n\r\n" * 100)

    run(loop, work, contexts(tmp_path) if encrypted else None)


def test_a_client_of_the_metrics_port_that_never_reads_loses_its_place(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port asks for no login, so anybody could hold all its places for ever."""
    for limit in ("REAP_S", "IDLE_S", "READING_S"):
        monkeypatch.setattr(limits, limit, 0.05)

    async def serve() -> None:
        port = MetricsPort("127.0.0.1", 0)
        await port.take()
        await port.serve(Pages(Observed("a").metrics()))
        ((_, _, number),) = port.listening()
        clients = Clients(port.connections, number)
        head = b"GET /metrics/none HTTP/1.1\r\nHost: x\r\n\r\n"
        try:
            link = await clients.connect()
            assert await clients.status(link, head) == 404
            await asyncio.wait_for(clients.never_read(link, head * 20_000), 60)
        finally:
            clients.close()
            await port.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(serve())


def test_a_body_that_does_not_come_in_time(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without a login, or too large, is refused at once, without waiting for its body; a
    body that stops half way is waited for as long as a request may take."""
    login = b"Authorization: Basic %b\r\n" % base64.b64encode(b"guest:guest")

    async def work(clients: Clients) -> None:
        head = b"PUT /api/queues/%%2F/q HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n{"
        assert await clients.status(await clients.connect(), head % (b"", 100)) == 401
        assert await clients.status(await clients.connect(), head % (login, 1 << 30)) == 413
        monkeypatch.setattr(service, "REQUEST_S", 0.05)
        assert await clients.status(await clients.connect(), head % (login, 100)) == 503

    run(loop, work)
