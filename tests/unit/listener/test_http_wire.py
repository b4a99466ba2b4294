"""Questions to an auth server over real HTTP: what is sent, and how a server may fail."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from broker.access import auth_server
from broker.access.auth_server import ABOUT, USER, Answer, AuthQuestion
from broker.listener.http_wire import HttpWire, is_in_clear
from broker.listener.tls import TlsFileError
from broker.options.access import HttpAuthOptions
from tests.support.certificates import Authority
from tools.demo.local_cluster import free_ports

SECRET = "top&secret=ö"
QUESTION = AuthQuestion(USER, (("username", "ada"), ("password", SECRET)))
PATIENCE_S = 60.0  # turns a hang into a failure

Behave = Callable[[asyncio.StreamWriter, str], Awaitable[None]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long: a slow machine is not a slow server."""
    monkeypatch.setattr(auth_server, "LIMIT_S", PATIENCE_S)


class Server:
    """A server that behaves as the test says, and records its requests."""

    def __init__(self, behave: Behave) -> None:
        self.asked: list[tuple[str, str]] = []  # first line and body
        self.connections = 0
        self._behave = behave
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, tls: ssl.SSLContext | None = None) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(
                    line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line
                )
                body = (await reader.readexactly(int(fields.get("content-length", 0)))).decode()
                self.asked.append((head.splitlines()[0], body))
                await self._behave(writer, head.splitlines()[0].split()[1])
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def reply(body: str, status: str = "200 OK", headers: str = "") -> Behave:
    async def behave(writer: asyncio.StreamWriter, _: str) -> None:
        size = len(body.encode())
        head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {size}\r\n\r\n"
        writer.write(f"{head}{body}".encode())

    return behave


class Asking:
    """The member's side."""

    def __init__(self, port: int, scheme: str, method: str, ca: Path | None) -> None:
        urls = {about: f"{scheme}://127.0.0.1:{port}/auth/{about}" for about in ABOUT}
        self.log: list[str] = []
        self.wire = HttpWire(
            HttpAuthOptions(urls, method, ca, 15), asyncio.get_running_loop(),
            lambda _, text: self.log.append(text),
        )  # fmt: skip

    async def ask(self, question: AuthQuestion = QUESTION) -> Answer:
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.wire.server.ask(question, lambda answer, _: told.set_result(answer))
        return await told


def run(
    behave: Behave,
    work: Callable[[Asking, Server], Awaitable[None]],
    *,
    method: str = "get",
    scheme: str = "http",
    tls: ssl.SSLContext | None = None,
    ca: Path | None = None,
) -> None:
    async def serve() -> None:
        server = Server(behave)
        asking = Asking(await server.listen(tls), scheme, method, ca)
        try:
            await asyncio.wait_for(work(asking, server), PATIENCE_S)
        finally:
            await asking.wire.close()
            await server.close()

    asyncio.run(serve())


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_question_is_a_query_or_a_form_and_connections_are_reused(method: str) -> None:
    async def work(asking: Asking, server: Server) -> None:
        for _ in range(3):
            assert await asking.ask() == Answer(True, ("management",))
        assert server.connections == 1
        line, body = server.asked[0]
        path, _, query = line.split()[1].partition("?")
        assert (line.split()[0].lower(), path) == (method, "/auth/user")
        assert parse_qsl(query or body) == [("username", "ada"), ("password", SECRET)]
        assert bool(query) is (method == "get")

    run(reply("allow management"), work, method=method)


async def redirect(writer: asyncio.StreamWriter, path: str) -> None:
    where = "/elsewhere" if path.startswith("/auth") else "/auth/user"
    await reply("allow", "302 Found", f"Location: {where}\r\n")(writer, path)


async def hang_up(writer: asyncio.StreamWriter, _: str) -> None:
    writer.close()


async def no_http(writer: asyncio.StreamWriter, _: str) -> None:
    writer.write(b"220 mail.example ESMTP\r\n\r\n")
    writer.close()


async def torn(writer: asyncio.StreamWriter, _: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nall")
    writer.close()


async def endless(writer: asyncio.StreamWriter, _: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\nallow")
    while True:
        writer.write(b" " * 65_536)
        await writer.drain()


async def packed(writer: asyncio.StreamWriter, path: str) -> None:
    """Ten bytes that decompress to millions."""
    await reply("allow", headers="Content-Encoding: gzip\r\n")(writer, path)


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        (redirect, "status 302, to go elsewhere, which is not followed"),
        (reply("allow", "401 Unauthorized"), "status 401"),
        (reply(f"allow {SECRET}\x00"), "neither"),
        (hang_up, "closed the connection before its reply was whole"),
        (torn, "closed the connection before its reply was whole"),
        (no_http, "does not speak HTTP"),
        (endless, "longer than 4096 bytes"),
    ],
)
def test_how_a_server_may_fail(behave: Behave, said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def work(asking: Asking, server: Server) -> None:
        answer = await asking.ask()
        assert not answer.allowed
        assert said in answer.fault
        assert len({line for line, _ in server.asked}) == 1, "the question went nowhere else"
        assert said in asking.log[0]
        for word in (SECRET, "secret"):
            assert word not in "".join(asking.log) + caplog.text

    run(behave, work)


def test_a_compressed_answer_is_not_decompressed() -> None:
    async def work(asking: Asking, _: Server) -> None:
        assert await asking.ask() == Answer(True)

    run(packed, work)


@pytest.mark.parametrize("drips", [False, True])
def test_a_slow_server_and_a_dripping_one_have_the_same_time(
    drips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_server, "LIMIT_S", 0.2)

    async def slow(writer: asyncio.StreamWriter, _: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            await asyncio.sleep(0.01)
            if drips:
                writer.write(b"X: y\r\n")

    async def work(asking: Asking, _: Server) -> None:
        answer = await asking.ask()
        assert answer == Answer(False, fault="there was no reply in 0.2 s")
        assert asking.wire.server.counters["failed"] == 1

    run(slow, work)


def test_an_unreachable_server() -> None:
    (port,) = free_ports(1)

    async def work() -> None:
        asking = Asking(port, "http", "get", None)
        assert "cannot be reached" in (await asking.ask()).fault
        await asking.wire.close()

    asyncio.run(work())


def test_a_connection_closed_by_the_server_meanwhile_costs_no_login() -> None:
    async def once(writer: asyncio.StreamWriter, path: str) -> None:
        await reply("allow")(writer, path)
        await writer.drain()
        writer.close()  # without announcing it

    async def work(asking: Asking, _: Server) -> None:
        for _login in range(5):
            assert (await asking.ask()).allowed

    run(once, work, method="post")


def test_the_certificate_of_a_server_and_its_name_are_verified(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "theirs")
    good = ours.issue("server", "127.0.0.1")
    other_name, foreign = ours.issue("other", "example.org"), theirs.issue("s", "127.0.0.1")
    for files, allowed in ((good, True), (other_name, False), (foreign, False)):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files.certificate, files.key)

        async def work(asking: Asking, server: Server, allowed: bool = allowed) -> None:
            answer = await asking.ask()
            assert answer.allowed is allowed
            assert allowed or "its certificate is not taken" in answer.fault
            assert bool(server.asked) is allowed, "nothing is sent before the server is verified"

        run(reply("allow"), work, scheme="https", tls=context, ca=good.ca)


def test_an_invalid_file_of_authorities_is_refused_at_the_start(tmp_path: Path) -> None:
    async def start(ca: Path) -> None:
        Asking(1, "https", "get", ca)

    (tmp_path / "empty").write_text("")
    for name, said in (("missing", "no such file"), ("empty", "there is not a certificate in it")):
        with pytest.raises(TlsFileError, match=f"--auth-http-ca .*{name}: {said}"):
            asyncio.run(start(tmp_path / name))


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://auth.example/user", True), ("http://10.0.0.1:8000/user", True),
        ("http://127.0.0.1:8000/user", False), ("http://localhost/user", False),
        ("https://auth.example/user", False),
    ],
)  # fmt: skip
def test_passwords_in_clear_over_a_network_give_a_warning(
    url: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert is_in_clear(url) is warns
    loop = asyncio.new_event_loop()
    HttpWire(HttpAuthOptions(dict.fromkeys(ABOUT, url), "get", None, 15), loop, lambda *_: None)
    loop.close()
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [url in one and "passwords included" in one for one in said] == [True] * warns
