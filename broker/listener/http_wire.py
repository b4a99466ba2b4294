"""HTTP transport of `AuthServer`: sends questions about users to the operator's server.

The server may be any program: only its answers are trusted. No redirect is followed, no cookie
kept, no proxy from the environment used, nothing unpacked, and no more of a reply read than an
answer may have. Errors are reworded here, because those of libraries quote URLs, and URLs contain
passwords.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable

import aiohttp
from yarl import URL

from broker.access.auth_server import (
    ABOUT,
    ANSWER_BYTES_MAX,
    AT_ONCE_MAX,
    GOOD_STATUS,
    AuthQuestion,
    AuthServer,
)
from broker.listener.tls import authorities, tls_reason
from broker.options.access import HttpAuthOptions
from broker.options.security import is_loopback

log = logging.getLogger("qpidd.client")

HEADERS = {"User-Agent": "qpidd", "Accept": "text/plain, */*", "Accept-Encoding": "identity"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
TRIES = 2
"""A connection that was kept open may be closed while a question is in transit."""


class HttpWire:
    """The connections to the server."""

    def __init__(
        self,
        options: HttpAuthOptions,
        loop: asyncio.AbstractEventLoop,
        rationed: Callable[[str, str], None],
    ) -> None:
        """Raises TlsFileError."""
        self.server = AuthServer(self, time.monotonic, options.cache_s, rationed)
        self._loop, self._method = loop, options.method.upper()
        self._urls = {about: options.urls[about] for about in ABOUT}
        self._tls = authorities(options.ca, "--auth-http-ca")
        self._session: aiohttp.ClientSession | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        log.info("users are asked for at %s", ", ".join(self._urls.values()))
        in_clear = [url for url in self._urls.values() if is_in_clear(url)]
        if in_clear:
            log.warning(
                "requests to %s can be read and changed on their way, passwords included: use "
                "https:// URLs", ", ".join(in_clear),
            )  # fmt: skip

    def send(self, number: int, question: AuthQuestion) -> None:
        """Ask the server."""
        task = self._loop.create_task(self._ask(number, question))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def cancel(self, number: int) -> None:
        """This answer is no longer awaited."""
        if task := self._tasks.get(number):
            task.cancel()

    def wake_at(self, when: float) -> None:
        """Arrange for overdue questions to be refused then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, when - time.monotonic()), self.server.wake)

    async def close(self) -> None:
        """Close; nothing is answered any more."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _ask(self, number: int, question: AuthQuestion) -> None:
        try:
            status, body = await self._reply_to(question)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.server.failed(number, reason(error))
        else:
            self.server.answered(number, status, body)

    async def _reply_to(self, question: AuthQuestion) -> tuple[int, bytes]:
        for left in reversed(range(TRIES)):
            try:
                return await self._reply_once(question)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if not left or isinstance(error, aiohttp.ClientConnectorError):
                    raise
        raise AssertionError

    async def _reply_once(self, question: AuthQuestion) -> tuple[int, bytes]:
        session, encoded, url = self._opened(), question.encoded(), self._urls[question.about]
        if self._method == "GET":
            work = session.get(
                URL(f"{url}?{encoded}", encoded=True), headers=HEADERS, allow_redirects=False
            )
        else:
            work = session.post(
                URL(url, encoded=True), headers=HEADERS | FORM, data=encoded.encode(),
                allow_redirects=False,
            )  # fmt: skip
        async with work as reply:
            if reply.status not in GOOD_STATUS:
                return reply.status, b""
            body = b""
            while len(body) <= ANSWER_BYTES_MAX:
                part = await reply.content.read(ANSWER_BYTES_MAX + 1 - len(body))
                if not part:
                    break
                body += part
            return reply.status, body

    def _opened(self) -> aiohttp.ClientSession:
        """The session; `AuthServer` limits how long everything may take."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=2 * AT_ONCE_MAX, ssl=self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
        return self._session


def is_in_clear(url: str) -> bool:
    """Whether others may read what is sent there."""
    found = URL(url)
    return found.scheme == "http" and not is_loopback(found.host or "")


def reason(error: Exception) -> str:
    """Why there is no reply, without a word of the question or the answer."""
    match error:
        case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLError() as why):
            return tls_reason(why)
        case aiohttp.ClientConnectorError(os_error=ssl.SSLError() as why):
            return tls_reason(why)
        case aiohttp.ClientConnectorError(os_error=socket.gaierror()):
            return "its name cannot be resolved"
        case aiohttp.ClientConnectorError(os_error=why):
            return f"it cannot be reached: {why.strerror or 'no connection'}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | OSError():
            return "it closed the connection before its reply was whole"
        case _:
            return f"it does not speak HTTP as it should ({type(error).__name__})"
