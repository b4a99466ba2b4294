"""The client ports over real sockets on loopback: TLS, admission, and silent clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop

from broker.access.backends import Login
from broker.amqp.fields import Value
from broker.amqp.handshake import CAPABILITIES
from broker.frontend.client import Client
from broker.frontend.connections import Connections, Options
from broker.frontend.management import Managed
from broker.listener.client_listener import ClientListener
from broker.listener.ports import PortTaken
from broker.listener.tls import server_tls
from broker.options.access import AccessOptions
from broker.options.client_ports import ClientLimits, TlsOptions
from tests.support.amqp_peer import method, methods_in, opening, publish
from tests.support.certificates import Authority, Files
from tests.support.gateway_loop import Loop
from vsync.admin.protocol import LINE_BYTES_MAX, PREAMBLE

HOST = "127.0.0.1"
PATIENCE_S = 60.0  # turns a hang into a failure
QUICK = ClientLimits(negotiate_s=0.3)


class Member:
    """Admits clients, and sends what the gateway itself answers; no ring, no machine."""

    def __init__(
        self, listener: ClientListener, loop: asyncio.AbstractEventLoop, limits: ClientLimits
    ) -> None:
        def work() -> None:
            loop.call_soon(lambda: self.clients.flush(may_reply=True))

        options = cast(
            "Options",
            SimpleNamespace(cluster_name="c", access=AccessOptions(), clients=limits),
        )
        machine = Loop().machine  # in which guest may log in
        self.clients = Connections(
            "a", options, work, loop.call_later, listener, lambda _: None, lambda: machine
        )
        self.clients.session_started(1)
        self.clients.flush(may_reply=True)
        self.operations = cast(
            "Managed",
            SimpleNamespace(
                login=lambda *_: Login("internal", ("administrator",)),
                status=lambda: {"fill": "x" * 100_000},
            ),
        )

    @property
    def all(self) -> list[Client]:
        """The connected clients."""
        return list(self.clients._links)


class Here:
    """A listener that serves, and its two ports."""

    def __init__(self, listener: ClientListener, member: Member, plain: int, tls: int) -> None:
        self.listener, self.member, self.plain, self.tls = listener, member, plain, tls


@contextlib.asynccontextmanager
async def serving(
    limits: ClientLimits, files: Files, verify: str = "none", ca: Path | None = None
) -> AsyncIterator[Here]:
    loop = asyncio.get_running_loop()
    listener = ClientListener(limits, loop)
    listener.tls = server_tls(TlsOptions(0, files.certificate, files.key, ca, verify))
    ports = [await listener.bind(HOST, 0), await listener.bind(HOST, 0, tls=True)]
    member = Member(listener, loop, limits)
    await listener.serve(member)

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.05)
            member.clients.wake(time.monotonic())
            member.clients.flush(may_reply=True)

    beating = asyncio.create_task(beat())
    try:
        yield Here(listener, member, *ports)
    finally:
        beating.cancel()
        member.clients.drop_all("the test is over")
        await listener.close()
        for _ in range(3):
            await asyncio.sleep(0)


Story = Callable[[], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Run a coroutine on either event loop: brokers use uvloop where it is installed."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def go(story: Story) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(story(), PATIENCE_S)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return go


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def files(authority: Authority) -> Files:
    return authority.issue("server", HOST)


def trusting(files: Files, own: Files | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.ca))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


async def opened(
    port: int, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has logged in."""
    reader, writer, said = await answered(port, context)
    told = said["connection.start"][2]
    assert isinstance(told, dict)
    assert told["cluster_id"] == "id"
    assert told["capabilities"] == CAPABILITIES
    return reader, writer


async def answered(
    port: int, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, dict[str, tuple[Value, ...]]]:
    """The same, with the answers by method."""
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    writer.write(opening())
    received = b""
    while "connection.open-ok" not in [one.method for one in methods_in(received)]:
        data = await reader.read(65536)
        assert data, received
        received += data
    return reader, writer, {one.method: one.args for one in methods_in(received)}


async def gone(reader: asyncio.StreamReader) -> bytes:
    """The remaining input until the other end closes."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            received += data
    return received


async def until(true_now: Callable[[], bool]) -> None:
    while not true_now():  # noqa: ASYNC110 (what is waited for tells nobody)
        await asyncio.sleep(0.01)


def test_a_client_over_tls_and_one_without(run: Callable[[Story], None], files: Files) -> None:
    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            _, secured = await opened(here.tls, trusting(files))
            _, plain = await opened(here.plain)
            how = {client.encryption is None for client in here.member.all}
            assert how == {True, False}
            (details,) = [d for d in here.member.clients.details().values() if d["ssl"]]
            assert details["ssl_protocol"] == "tlsv1.3"
            assert str(details["ssl_cipher"]).startswith("TLS_")
            assert "peer_cert_subject" not in details
            assert here.listener.counters["tls_handshakes"] == 1
            secured.close()
            plain.close()
            await until(lambda: not here.member.all)
            assert here.listener.counters["sockets"] == 0

    run(story)


def test_a_client_is_offered_the_heartbeat_and_no_reserved_field(
    run: Callable[[Story], None], files: Files
) -> None:
    async def story() -> None:
        async with serving(ClientLimits(heartbeat_s=7), files) as here:
            for port, context in ((here.plain, None), (here.tls, trusting(files))):
                _, writer, said = await answered(port, context)
                assert said["connection.tune"] == (2047, 131_072, 7)
                assert said["connection.open-ok"] == ("",)  # some libraries skip a byte
                writer.close()

    run(story)


async def closed_by_client(
    here: Here, client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(method(0, "connection.close", 200, "bye", 0, 0))
    await until(lambda: bool(client.end_reason))
    client.connection.close_ok()
    here.member.clients.gateway.mark_writable(client)
    received = await reader.readexactly(12)
    assert [one.method for one in methods_in(received)] == ["connection.close-ok"]


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_closes_its_connection_has_its_socket_closed(
    run: Callable[[Story], None], files: Files, tls: bool
) -> None:
    """The client may still write meanwhile: its input is read and dropped. If we closed our end
    right after our close-ok, some clients would see a lost connection, and a writing client a
    reset."""

    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            trusted = trusting(files) if tls else None
            reader, writer = await opened(here.tls if tls else here.plain, trusted)
            (client,) = here.member.all
            await closed_by_client(here, client, reader, writer)
            for _ in range(20):
                writer.write(publish(1, "", "q", b"x" * 65_536))
                await writer.drain()
            assert here.member.all == [client]
            assert not reader.at_eof()
            writer.close()
            await until(lambda: not here.member.all)

    run(story)


@pytest.mark.parametrize("by_client", [False, True])
def test_a_client_that_does_not_close_its_socket_after_the_end_is_closed(
    run: Callable[[Story], None], files: Files, monkeypatch: pytest.MonkeyPatch, by_client: bool
) -> None:
    monkeypatch.setattr("broker.frontend.connections.LINGER_S", 0.2)

    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            reader, writer = await opened(here.plain)
            (client,) = here.member.all
            if by_client:
                await closed_by_client(here, client, reader, writer)
            else:
                client.send_away("an operator wants it")
                writer.write(method(0, "connection.close-ok"))
            await gone(reader)
            await until(lambda: not here.member.all)
            writer.close()

    run(story)


def test_large_frames_over_tls_are_whole(run: Callable[[Story], None], files: Files) -> None:
    """Written in many pieces, and before the end of the handshake is noticed, too."""

    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            reader, writer = await asyncio.open_connection(HOST, here.tls, ssl=trusting(files))
            writer.write(PREAMBLE + b'{"op":"status"}\n' * 50)
            received = 0
            while received < 50 * 100_000:
                received += len(await reader.read(1 << 20))
            writer.close()

    run(story)


def test_a_verified_certificate_reaches_the_client(
    run: Callable[[Story], None], authority: Authority, files: Files
) -> None:
    """EXTERNAL logs in by it."""
    own = authority.issue("app", "app@shop", common_name="app")

    async def story() -> None:
        async with serving(ClientLimits(), files, "peer", files.ca) as here:
            _, writer = await opened(here.tls, trusting(files, own))
            (client,) = here.member.all
            assert client.encryption is not None
            certificate = client.encryption.certificate
            assert certificate is not None
            assert certificate.common_name == "app"
            assert certificate.alternative("email") == "app@shop"
            assert "CN=app" in client.describe()
            _, without = await opened(here.tls, trusting(files))
            assert here.member.all[1].encryption is not None
            assert here.member.all[1].encryption.certificate is None
            writer.close()
            without.close()

    run(story)


def test_a_certificate_is_required_and_must_be_of_the_authority(
    run: Callable[[Story], None], files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path / "other").issue("app", "app@shop")

    async def story() -> None:
        async with serving(ClientLimits(), files, "require", files.ca) as here:
            for context in (trusting(files), trusting(files, stranger)):
                with pytest.raises((OSError, AssertionError)):
                    await opened(here.tls, context)
            await until(lambda: here.listener.counters["tls_handshakes_failed"] == 2)
            assert here.listener.counters["sockets"] == 0

    with caplog.at_level(logging.INFO, "qpidd.client"):
        run(story)
    said = caplog.text
    assert "it gave no certificate" in said
    assert "its certificate is not taken" in said


def test_new_certificates_are_for_new_connections(
    run: Callable[[Story], None], authority: Authority, files: Files
) -> None:
    """As after a SIGHUP; connected clients stay connected."""

    def shown(writer: asyncio.StreamWriter) -> str:
        return str(writer.get_extra_info("peercert")["serialNumber"])

    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            reader, writer = await opened(here.tls, trusting(files))
            renewed = authority.issue("server", HOST)
            here.listener.tls = server_tls(
                TlsOptions(0, renewed.certificate, renewed.key, None, "none")
            )
            _, later = await opened(here.tls, trusting(files))
            assert shown(later) != shown(writer)
            assert len(here.member.all) == 2
            assert not reader.at_eof()
            writer.close()
            later.close()

    run(story)


@pytest.mark.parametrize(
    ("first", "said"),
    [(b"AMQP\0\0\x09\x01", "it does not speak TLS"), (b"GET / HTTP/1.1\r\n\r\n", "HTTP")],
)
def test_the_log_names_a_client_that_does_not_speak_tls(
    run: Callable[[Story], None],
    files: Files,
    first: bytes,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            reader, writer = await asyncio.open_connection(HOST, here.tls)
            writer.write(first)
            await gone(reader)
            writer.close()
            await until(lambda: here.listener.counters["sockets"] == 0)

    with caplog.at_level(logging.INFO, "qpidd.client"):
        run(story)
    assert said in caplog.text


def test_old_versions_of_tls_are_refused(run: Callable[[Story], None], files: Files) -> None:
    """The handshake fails, as it does for a cipher without authentication."""

    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            weak = trusting(files)
            weak.maximum_version = ssl.TLSVersion.TLSv1_2
            weak.set_ciphers("ECDHE+AES+SHA256:!AESGCM:ECDHE+SHA384:!AESGCM")
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(HOST, here.tls, ssl=weak)
            good = trusting(files)
            good.maximum_version = ssl.TLSVersion.TLSv1_2
            _, writer = await opened(here.tls, good)
            writer.close()

    run(story)


@pytest.mark.parametrize("tls", [False, True])
def test_slowloris(run: Callable[[Story], None], files: Files, tls: bool) -> None:
    """A client that connects and sends nothing, one byte at a time, or half a handshake, is closed
    in time."""

    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            _, quick = await opened(here.tls, trusting(files))
            here.listener.limits.limits = QUICK  # too short for some good handshakes
            here.member.clients.gateway.set_negotiate_time(QUICK.negotiate_s)
            port = here.tls if tls else here.plain
            ends = [await asyncio.open_connection(HOST, port) for _ in range(10)]
            for number, (_, writer) in enumerate(ends):
                writer.write((b"\x16\x03\x01\x02\x00\x01" if tls else b"AMQP\0\0\x09")[:number])
            for reader, writer in ends:
                await gone(reader)
                writer.close()
            await until(lambda: here.listener.counters["sockets"] == 1)
            assert here.listener.counters["negotiating"] == 0
            quick.close()

    run(story)


def test_a_client_that_starts_amqp_and_does_not_log_in_is_closed(
    run: Callable[[Story], None], files: Files
) -> None:
    """A client that speaks AMQP gets a time limit of its own, of the same length."""

    async def story() -> None:
        async with serving(ClientLimits(negotiate_s=1.0), files) as here:
            reader, writer = await asyncio.open_connection(HOST, here.plain)
            writer.write(opening()[:8])
            assert (await gone(reader)).startswith(b"\x01\0\0")
            writer.close()
            await until(lambda: here.listener.counters["sockets"] == 0)

    run(story)


def test_connections_beyond_the_negotiation_limit_are_closed_at_once(
    run: Callable[[Story], None], files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that logs in makes room for the next."""

    async def story() -> None:
        async with serving(ClientLimits(negotiating=4), files) as here:
            held = [await asyncio.open_connection(HOST, here.plain) for _ in range(2)]
            reader, writer = await asyncio.open_connection(HOST, here.plain)
            assert await gone(reader) == b""
            writer.close()
            for _, one in held:
                one.write(opening())
            await until(lambda: len(here.member.all) == 2)
            await until(lambda: here.listener.counters["negotiating"] == 0)
            _, another = await opened(here.plain)
            for one in (another, *(writer for _, writer in held)):
                one.close()

    with caplog.at_level(logging.INFO, "qpidd.client"):
        run(story)
    assert "half of what may be so (--max-negotiating)" in caplog.text


def test_memory_before_login_is_bounded(run: Callable[[Story], None], files: Files) -> None:
    """Hundreds of connections that send endless input hold a few kilobytes each."""

    async def story() -> None:
        async with serving(ClientLimits(negotiate_s=600), files) as here:
            began = here.listener.counters["sockets"]
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            ends = [await asyncio.open_connection(HOST, here.plain) for _ in range(200)]
            line = PREAMBLE + b"x" * LINE_BYTES_MAX
            frame = opening()[:8] + b"\x01\0\0\x00\x00\x0f\xff" + b"y" * 4000
            for number, (_, writer) in enumerate(ends):
                writer.write(line if number % 2 else frame)
            await until(lambda: here.listener.counters["sockets"] >= began + 200)
            for _, writer in ends:
                await writer.drain()
            await asyncio.sleep(0.1)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert held < 200 * (LINE_BYTES_MAX + 40_000), held
            for _, writer in ends:
                writer.close()

    run(story)


def test_an_operator_is_answered_once_the_login_is_decided(
    run: Callable[[Story], None], files: Files
) -> None:
    """Its further requests wait in the socket, and stay unread if it goes away."""

    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            asked: list[Callable[[Login, float], None]] = []

            def login(*given: object) -> None:
                asked.append(cast("Callable[[Login, float], None]", given[-1]))

            here.member.operations = cast(
                "Managed", SimpleNamespace(login=login, status=lambda: {"is": "fine"})
            )
            for port, tls in ((here.plain, None), (here.tls, trusting(files))):
                reader, writer = await asyncio.open_connection(HOST, port, ssl=tls)
                writer.write(PREAMBLE + b'{"op":"status"}\n' * 2)
                for _ in range(2):
                    await until(lambda: len(asked) == 1)
                    asked.pop()(Login("http", ("monitoring",)), 0.0)
                    assert await reader.readline() == b'{"ok": true, "is": "fine"}\n'
                writer.write(b'{"op":"status"}\n')
                await until(lambda: len(asked) == 1)
                writer.close()
                (one,) = here.listener._sockets.values()
                one.abort()
                await until(lambda: not here.listener._sockets)
                asked.pop()(Login("http", ("monitoring",)), 0.0)  # nobody receives it

    run(story)


def test_a_management_connection_that_asks_nothing_more_is_closed(
    run: Callable[[Story], None], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts among those that have not logged in, and needs no login to begin a line."""
    monkeypatch.setattr("broker.listener.client_socket.MANAGEMENT_IDLE_S", 0.1)

    async def story() -> None:
        async with serving(QUICK, files) as here:
            reader, writer = await asyncio.open_connection(HOST, here.plain)
            writer.write(PREAMBLE + b'{"op":')
            assert await gone(reader) == b""
            writer.close()
            await until(lambda: here.listener.counters["negotiating"] == 0)

    run(story)


def test_management_gets_no_more_answers_than_it_reads(
    run: Callable[[Story], None], files: Files
) -> None:
    """Requests wait in the socket while the answers are not read."""

    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            reader, writer = await asyncio.open_connection(HOST, here.plain, limit=1024)
            writer.write(PREAMBLE)
            question = b'{"op":"status"}\n' * 64
            sockets = here.listener._sockets
            await until(lambda: len(sockets) == 1)
            (one,) = sockets.values()
            assert one.transport is not None
            transport = one.transport
            while transport.is_reading():
                writer.write(question)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(writer.drain(), 0.05)
                await asyncio.sleep(0)
            writer.write(question * 400)
            await asyncio.sleep(0.1)
            assert transport.get_write_buffer_size() < 300 * 64 * 100_000 // 16
            assert not transport.is_reading()
            writer.transport.abort()
            assert reader is not None
            await until(lambda: here.listener.counters["sockets"] == 0)

    run(story)


def test_a_port_in_use_is_reported_with_advice(run: Callable[[Story], None], files: Files) -> None:
    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            for tls, option in ((False, "--port"), (True, "--tls-port")):
                with pytest.raises(PortTaken, match="another program listens there") as caught:
                    await here.listener.bind(HOST, here.plain, tls=tls)
                assert str(caught.value).endswith(f"give another {option}")
            with pytest.raises(PortTaken, match="no such address; set --interface to one"):
                await here.listener.bind("203.0.113.1", 0)
            with pytest.raises(PortTaken, match="cannot be resolved"):
                await here.listener.bind("no-such-host.invalid", 0)

    run(story)


@pytest.mark.parametrize(("host", "shown"), [(HOST, "127.0.0.1"), ("::1", r"\[::1\]")])
def test_of_two_sockets_bound_to_one_port_the_second_is_reported_when_it_is_to_listen(
    run: Callable[[Story], None], files: Files, host: str, shown: str
) -> None:
    """Two brokers that start at one time: neither listens yet, so both can bind."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with serving(ClientLimits(), files) as here:
            first, second = (ClientListener(ClientLimits(), loop) for _ in range(2))
            port = await first.bind(host, 0)
            assert await second.bind(host, port) == port
            await first.serve(here.member)
            with pytest.raises(PortTaken, match=f"{shown}:{port}: another program listens"):
                await second.serve(here.member)
            await second.close()
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await first.close()

    run(story)


def test_loopback_is_served_at_both_its_addresses(
    run: Callable[[Story], None], files: Files
) -> None:
    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            for port in (here.plain, here.tls):
                _, writer = await asyncio.open_connection("::1", port)
                writer.close()

    run(story)


def test_the_unspecified_address_of_ipv6_means_all_addresses(
    run: Callable[[Story], None], files: Files
) -> None:
    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            listener = ClientListener(ClientLimits(), asyncio.get_running_loop())
            port = await listener.bind("::", 0)
            with pytest.raises(PortTaken, match="another program listens there"):
                await listener.bind("::", here.plain)
            await listener.serve(here.member)
            for host in ("127.0.0.1", "::1"):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
            await listener.close()

    run(story)


@pytest.mark.parametrize("listens", [True, False])
def test_another_program_on_the_other_loopback_address_is_only_reported(
    run: Callable[[Story], None], files: Files, caplog: pytest.LogCaptureFixture, listens: bool
) -> None:
    async def story() -> None:
        async with serving(ClientLimits(), files) as here:
            with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
                port = other.getsockname()[1]
                listener = ClientListener(ClientLimits(), asyncio.get_running_loop())
                if listens:
                    assert await listener.bind(HOST, port) == port
                    await listener.serve(here.member)
                else:
                    other.close()
                    both = ClientListener(ClientLimits(), asyncio.get_running_loop())
                    await both.bind("::1", port)
                    await listener.bind(HOST, port)
                    await both.serve(here.member)
                    await listener.serve(here.member)
                    await both.close()
                _, writer = await asyncio.open_connection(HOST, port)
                writer.close()
                await listener.close()
            assert f"another program listens on [::1]:{port}" in caplog.text

    run(story)
