"""An in-process AMQP client without a socket: how the API changes queues and moves messages.

It goes through the gateway like any client, as the user whom the API authenticated, so permissions,
semantics and error texts are those of AMQP.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, cast

from broker.access.backends import REFUSED, Login
from broker.amqp import codec
from broker.amqp.errors import CONNECTION_FORCED, SYNTAX_ERROR, reply_text
from broker.amqp.fields import Value
from broker.amqp.spec import decode_method
from broker.frontend.connections import ClientLink, Connections

CHANNEL = 1
GONE = "the connection was closed before the reply"


class AmqpRefused(Exception):
    """The broker refused: an AMQP reply code and its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text

    @property
    def explanation(self) -> str:
        """The text without the code's name at its beginning."""
        return self.text.partition(" - ")[2] or self.text


@contextmanager
def _refused_by_us() -> Iterator[None]:
    """Refuse what cannot be written as AMQP: JSON's names may be of any length, and its texts may
    have halves of surrogate pairs."""
    try:
        yield
    except ValueError:
        text = "a name is longer than 255 bytes, or a text holds half of a surrogate pair"
        raise AmqpRefused(SYNTAX_ERROR, reply_text(SYNTAX_ERROR, text)) from None


class Answer(NamedTuple):
    """One method of the broker, with its content if it has any."""

    method: str
    args: tuple[Value, ...] = ()
    properties: bytes = b""
    body: bytes = b""


class _Wire(asyncio.Transport):
    """Stands in for the client's socket at the gateway."""

    def __init__(self, client: InternalClient) -> None:
        super().__init__()
        self._client = client
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closed:
            self._client.received(bytes(data))

    def is_closing(self) -> bool:
        return self._closed

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._client.lost()

    abort = close

    def pause_reading(self) -> None:
        self._client.hold(on=True)

    def resume_reading(self) -> None:
        self._client.hold(on=False)


class InternalClient:
    """One connection with one channel; `async with` opens and closes it."""

    def __init__(
        self,
        connections: Connections,
        peer: str,
        user: str,
        vhost: str,
        purpose: str,
        login: Login = REFUSED,
        *,
        stays: bool = False,
    ) -> None:
        """`stays`: it is part of the cluster, and is served even where no client is let in."""
        self._loop = asyncio.get_running_loop()
        self._vhost = vhost
        self._answers: asyncio.Queue[Answer | AmqpRefused] = asyncio.Queue()
        self._rest = bytearray()
        self._content: Answer | None = None
        self._body: list[bytes] = []  # the content received so far
        self._left = 0  # bytes of it
        self._unsent = bytearray()
        self._held = self._ended = False
        self.closed = False
        """Whether the broker has closed the connection, as some refusals do."""
        self._refused: AmqpRefused | None = None
        self._link: ClientLink | None = connections.attach(peer, user, purpose, _Wire(self), login)
        self._link.client.stays, self._link.client.unlimited = stays, True

    async def __aenter__(self) -> InternalClient:
        out = bytearray()
        codec.append_method(out, 0, "connection.open", (self._vhost,))
        self._send(out)
        try:
            await self.answer()
            await self.call("channel.open")
        except BaseException:
            self._drop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and self._refused is None:
                # Everything settled before is done when this is answered.
                await self.call("channel.close", (200, "", 0, 0))
        finally:
            self._drop()

    # -- requests --------------------------------------------------------------------------------

    async def call(self, method: str, args: tuple[Value, ...] = ()) -> Answer:
        """Send a method, and return the broker's answer. Raises AmqpRefused."""
        self.tell(method, args)
        return await self.answer()

    def tell(self, method: str, args: tuple[Value, ...]) -> None:
        """Send a method without an answer, or whose answer is awaited later. Raises AmqpRefused."""
        out = bytearray()
        with _refused_by_us():
            codec.append_method(out, CHANNEL, method, args)
        self._send(out)

    async def publish(
        self, exchange: str, key: str, properties: Mapping[str, Value] | bytes, body: bytes
    ) -> bool:
        """Publish, and wait for the confirm; return whether it reached a queue.

        `properties` may be the unchanged properties of another message.
        """
        await self.call("confirm.select", (False,))
        out = bytearray()
        with _refused_by_us():
            encoded = (
                properties
                if isinstance(properties, bytes)
                else codec.encode_properties(dict(properties))
            )
        codec.append_publish(out, CHANNEL, exchange, key, encoded, body, mandatory=True)
        self._send(out)
        routed = True
        while True:
            answer = await self.answer()
            if answer.method == "basic.return":
                routed = False
            elif answer.method == "basic.ack":
                return routed
            elif answer.method == "basic.nack":
                return False

    async def reopen(self) -> None:
        """Open the channel again if a refusal has closed it, and not the connection."""
        if self._refused is None:
            return
        self._refused = None
        while not self._answers.empty():  # the refusal itself
            self._answers.get_nowait()
        self.tell("channel.close-ok", ())
        await self.call("channel.open")

    # -- the gateway's side ----------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Bytes from the broker."""
        self._rest += data
        frames, end = codec.split_frames(self._rest, payload_max=sys.maxsize)
        taken = bytes(self._rest[:end])
        del self._rest[:end]
        for kind, _, start, stop in frames:
            if kind == codec.METHOD:
                self._on_method(taken, start, stop)
            elif kind == codec.HEADER and self._content is not None:
                self._left, properties = codec.decode_content_header(taken, start, stop)
                self._content = self._content._replace(properties=properties)
                self._complete(b"")
            elif kind == codec.BODY:
                self._complete(taken[start:stop])

    def _on_method(self, data: bytes, start: int, end: int) -> None:
        method, args = decode_method(data, start, end)
        if method.name in ("channel.close", "connection.close"):
            code, text = cast("tuple[int, str]", args[:2])
            self.closed = method.name == "connection.close"
            self._refused = AmqpRefused(code, text)
            self._answers.put_nowait(self._refused)
        elif method.has_content:
            self._content = Answer(method.name, args)
        elif method.name not in ("connection.blocked", "connection.unblocked"):
            self._answers.put_nowait(Answer(method.name, args))

    def _complete(self, chunk: bytes) -> None:
        if self._content is None:
            return
        self._body.append(chunk)
        self._left -= len(chunk)
        if self._left <= 0:
            content, self._content = self._content, None
            self._answers.put_nowait(content._replace(body=b"".join(self._body)))
            self._body.clear()

    def lost(self) -> None:
        """The broker closed the connection."""
        self.closed = True
        if self._refused is None:
            self._refused = AmqpRefused(CONNECTION_FORCED, GONE)
            self._answers.put_nowait(self._refused)
        self._loop.call_soon(self._drop)

    def hold(self, *, on: bool) -> None:
        """The broker stops reading this client for now, or resumes."""
        self._held = on
        if not on and self._unsent:
            self._loop.call_soon(self._send, bytearray())

    def _send(self, out: bytearray) -> None:
        self._unsent += out
        if not self._held and self._link is not None and not self._ended:
            data, self._unsent = bytes(self._unsent), bytearray()
            self._link.data_received(data)

    async def answer(self) -> Answer:
        """Return the next answer of the broker. Raises AmqpRefused."""
        if self._refused is not None and self._answers.empty():
            raise self._refused
        answer = await self._answers.get()
        if isinstance(answer, AmqpRefused):
            raise answer
        return answer

    def _drop(self) -> None:
        """Act like a socket that is gone."""
        link, self._link = self._link, None
        self._ended = True
        if link is not None:
            link.client.end_reason = link.client.end_reason or "its request is done"
            link.transport.close()
            link.connection_lost()
