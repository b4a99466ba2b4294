"""A thin AMQP 0-9-1 client: one connection, one channel, one thread, batches both ways.

Arriving messages are collected in `deliveries`, `acks` and `returns`; the caller of `pump` takes
them from there. Output is collected too, and leaves in `pump`, in as few writes as possible. The
client never retries: `ConnectionLost` means that another broker may work, `BrokerRefused` that none
will. `tools.client.failover` tries a list of brokers.

It exists because these tools move hundreds of thousands of messages, and a general client library
costs a hundred microseconds for each.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from broker.amqp import codec, spec
from broker.amqp.errors import CONNECTION_FORCED, INTERNAL_ERROR, RESOURCE_ERROR, ProtocolFault
from broker.amqp.fields import Value
from broker.memberlog.client_history import ClusterName
from tools.client.broker_url import Address
from tools.client.tls import connect, is_final, reason
from vsync.types import record

CHANNEL = 1
RECEIVE_BYTES = 256 * 1024
OUT_BYTES_HIGH = 1024 * 1024
"""With more than this unsent, `congested` tells publishers to wait for the socket."""
TRANSIENT_CODES = frozenset({CONNECTION_FORCED, RESOURCE_ERROR, INTERNAL_ERROR})
"""Reasons for a connection.close that concern only this broker: another one may accept."""
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""A socket has nothing to read, or accepts no more; the last two come from TLS."""
NOT_OURS = {
    b"AMQP": "speaks another version of AMQP",
    b"\x15\x03": "speaks TLS at this port: write amqps:// before it",
    b"HTTP/": "speaks HTTP at this port: give the one for AMQP",
    b"\xff\0\0\0": "has a ring at this port, on which members talk: give the one for AMQP",
}
"""The first bytes of answers from other kinds of servers, and what they are."""
OTHER_PROTOCOLS = tuple(NOT_OURS)
CAPABILITIES: dict[str, Value] = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class ConnectionLost(Exception):
    """The connection broke; unconfirmed messages may or may not have arrived."""


class TlsRefused(ConnectionLost):
    """One does not trust the other, or it speaks no TLS: trying again will not help."""


class BrokerRefused(Exception):
    """The broker refused, as all others of the cluster would: a wrong name, right or option."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@record
class Login:
    """Who connects, to which virtual host, and how patiently."""

    user: str = "guest"
    password: str = "guest"
    virtual_host: str = "/"
    heartbeat_seconds: int = 10
    timeout_seconds: float = 10.0
    """Longest wait for a connection to open and for the answer to a method."""
    tls: ssl.SSLContext | None = None
    """The encryption of the connection; None: not encrypted."""
    mechanism: str = "PLAIN"
    """Or EXTERNAL: the client's certificate names the user."""
    connection_name: str = ""
    """Shown in lists of connections."""


class Delivery(NamedTuple):
    """One received message."""

    tag: int
    redelivered: bool
    exchange: str
    key: str
    properties: bytes
    body: bytes


class Returned(NamedTuple):
    """A message that came back as unroutable, and why."""

    text: str
    body: bytes
    properties: bytes
    confirms_before: int
    """How many of `acks` came before it; its own confirm comes after it."""


class PublisherConfirm(NamedTuple):
    """A publisher confirm: up to `number` if `multiple`; `accepted` is False for a nack."""

    number: int
    multiple: bool
    accepted: bool


class AmqpConnection:
    """One open connection with one open channel. Close it, or drop it when it is lost.

    `admitted`: a socket whose other end has already let its client in, and waits for
    connection.open.
    """

    def __init__(
        self,
        broker: Address | str,
        login: Login | None = None,
        admitted: socket.socket | None = None,
        greeting_s: float | None = None,
    ) -> None:
        self.broker = broker
        self.login = login or Login()
        self._greeting_s = self.login.timeout_seconds if greeting_s is None else greeting_s
        self.deliveries: list[Delivery] = []
        self.acks: list[PublisherConfirm] = []
        self.returns: list[Returned] = []
        self.out = bytearray()
        """Bytes to send; append whole frames only."""
        self.frame_max = codec.FRAME_MAX_BYTES
        self.cluster = ClusterName()
        """The cluster that the broker says it belongs to."""
        self.capabilities: frozenset[str] = frozenset()
        """The capabilities that the broker announced."""
        self.blocked = ""
        """Why the broker accepts no publishes now; empty if it does."""
        self._spoken = False
        """Whether anything was received; a TLS server closes a plain connection without a word."""
        self._answers: list[tuple[str, tuple[Value, ...]]] = []
        self._rest = b""
        self._refused: BrokerRefused | None = None
        self._deliver: codec.Deliver | None = None
        self._return = ""
        self._content_size = 0
        self._properties = b""
        self._chunks: list[bytes] = []
        self._publish_no = 0
        self._heartbeat = 0.0
        self._socket = admitted or self._connected()
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._sent_at = self._received_at = time.monotonic()
        try:
            if admitted is None:
                self._log_in()
            self._send(0, "connection.open", (self.login.virtual_host,))
            self._await("connection.open-ok")
            self.open_channel()
        except BaseException:
            self.drop()
            raise

    # Opening and closing

    def _connected(self) -> socket.socket:
        assert isinstance(self.broker, Address)
        try:
            made = connect(self.broker, self._greeting_s, self.login.tls)
        except OSError as problem:
            kind = TlsRefused if is_final(problem) else ConnectionLost
            raise kind(f"{self.broker}: {reason(problem, self.broker)}") from None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def _log_in(self) -> None:
        login = self.login
        self.out += codec.PROTOCOL_HEADER
        told = _table(self._await("connection.start", within_s=self._greeting_s)[2])
        names = (told.get("cluster_name"), told.get("cluster_id"))
        self.cluster = ClusterName(*(one if isinstance(one, str) else "" for one in names))
        self.capabilities = frozenset(
            name for name, there in _table(told.get("capabilities")).items() if there
        )
        external = login.mechanism == "EXTERNAL"
        response = b"" if external else f"\0{login.user}\0{login.password}".encode()
        properties: dict[str, Value] = {
            "product": "qpid-cluster-py tools",
            "capabilities": dict(CAPABILITIES),
        }
        if login.connection_name:
            properties["connection_name"] = login.connection_name
        self._send(0, "connection.start-ok", (properties, login.mechanism, response, "en_US"))
        channel_max, frame_max, heartbeat = (
            _as_int(value) for value in self._await("connection.tune")
        )
        self.frame_max = min(frame_max or codec.FRAME_MAX_BYTES, codec.FRAME_MAX_BYTES)
        wanted = [period for period in (heartbeat, login.heartbeat_seconds) if period]
        self._heartbeat = float(min(wanted, default=0))
        self._send(0, "connection.tune-ok", (channel_max, self.frame_max, min(wanted, default=0)))

    def open_channel(self) -> None:
        """Open the channel, for the first time or again after the broker closed it."""
        self._publish_no = 0
        self.call("channel.open", (), "channel.open-ok")

    def reopen_channel(self) -> None:
        """Close the channel and open it again: unacknowledged messages go back."""
        self._send(CHANNEL, "channel.close", (200, "again", 0, 0))
        self._await("channel.close-ok", dropping=True)
        self.deliveries.clear()
        self.open_channel()

    def close(self) -> bool:
        """Close in order, so that the broker returns unacked messages now; never raises. Return
        whether it answered: then it has taken everything that it was sent before."""
        try:
            self._send(0, "connection.close", (200, "done", 0, 0))
            self._await("connection.close-ok")
        except (ConnectionLost, BrokerRefused):
            return False
        finally:
            self.drop()
        return True

    def drop(self) -> None:
        """Close the socket without a close handshake."""
        self._socket.close()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    # Methods with an answer

    def call(self, name: str, args: tuple[Value, ...], answer: str) -> tuple[Value, ...]:
        """Send one method on the channel and wait for its answer."""
        self._send(CHANNEL, name, args)
        return self._await(answer)

    def declare_queue(
        self,
        queue: str,
        arguments: dict[str, Value] | None = None,
        on_new: Callable[[], None] = lambda: None,
    ) -> int:
        """Make sure that the queue exists, durable if it is new; return its number of messages.

        `on_new` is called if there was none.
        """
        asked: tuple[Value, ...] = (queue, True, False, False, False, False, {})
        made: tuple[Value, ...] = (queue, False, True, False, False, False, arguments or {})
        try:
            found = self.call("queue.declare", asked, "queue.declare-ok")
        except BrokerRefused as refusal:
            if refusal.code != 404:
                raise
            self.open_channel()
            found = self.call("queue.declare", made, "queue.declare-ok")
            on_new()
        return _as_int(found[1])

    def select_confirms(self) -> None:
        """From now on every publish is confirmed, and numbered from 1."""
        self.call("confirm.select", (False,), "confirm.select-ok")

    @property
    def takes_numbers(self) -> bool:
        """Whether the broker announces that it takes numbered messages of a producer only once."""
        return "numbered_publishes" in self.capabilities

    def consume(
        self,
        queue: str,
        prefetch: int,
        *,
        no_ack: bool = False,
        tag: str = "c",
        arguments: dict[str, Value] | None = None,
    ) -> None:
        """Start the one consumer of this connection."""
        if prefetch and not no_ack:
            self.call("basic.qos", (0, prefetch, False), "basic.qos-ok")
        args: tuple[Value, ...] = (queue, tag, False, no_ack, False, False, arguments or {})
        self.call("basic.consume", args, "basic.consume-ok")

    # Methods without an answer: they leave with the next pump

    def send(self, name: str, args: tuple[Value, ...]) -> None:
        """Append one method without an answer (nowait)."""
        self._send(CHANNEL, name, args)

    def publish(
        self, exchange: str, key: str, properties: bytes, body: bytes, *, mandatory: bool = False
    ) -> int:
        """Append one publish; return its number for `acks`, counted from the channel's opening."""
        codec.append_publish(
            self.out,
            CHANNEL,
            exchange,
            key,
            properties,
            body,
            mandatory=mandatory,
            frame_max=self.frame_max,
        )
        self._publish_no += 1
        return self._publish_no

    def ack(self, tag: int, *, multiple: bool = True) -> None:
        """Append one ack, of everything up to `tag` if `multiple`."""
        codec.append_ack(self.out, CHANNEL, tag, multiple)

    @property
    def congested(self) -> bool:
        """Whether so much is unsent that a publisher should pump first."""
        return len(self.out) > OUT_BYTES_HIGH

    # Input and output

    def pump(self, timeout_seconds: float, also: int | None = None) -> bool:
        """Send as much as possible, then read what arrives, waiting at most `timeout_seconds`.

        `also` is another descriptor to wait for; the result says whether it is readable.
        """
        if self.out:
            self.send_now()
        if also is not None:
            self._poll.register(also, select.POLLIN)
        try:
            self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if self.out else 0))
            wait = min(timeout_seconds, self._heartbeat / 4 or timeout_seconds)
            ready = self._poll.poll(max(0.0, wait) * 1000)
        finally:
            if also is not None:
                self._poll.unregister(also)
        also_ready = False
        for descriptor, event in ready:
            if descriptor == also:
                also_ready = True
                continue
            if event & select.POLLOUT:
                self.send_now()
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                self.receive_now()
        self.keep_alive()
        return also_ready

    def send_now(self) -> None:
        """Write as much as the socket accepts; for callers with their own loop, not `pump`."""
        if not self.out:
            return  # nothing is sent, so a heartbeat is still due
        try:
            sent = self._socket.send(self.out)
        except NOT_NOW:
            return
        except OSError as problem:
            raise ConnectionLost(f"{self.broker}: {reason(problem, self.broker)}") from None
        del self.out[:sent]
        self._sent_at = time.monotonic()

    def receive_now(self) -> None:
        """Read once and handle the frames; call it when the socket is readable."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except NOT_NOW:
            return
        except OSError as problem:
            # With TLS 1.3 a broker refuses our certificate only after the handshake.
            kind = TlsRefused if not self._spoken and is_final(problem) else ConnectionLost
            raise kind(f"{self.broker}: {reason(problem, self.broker)}") from None
        if not data:
            mute = self.login.tls is None and not self._spoken
            hint = " without a word; if this is a port for TLS, write amqps:// before it"
            raise ConnectionLost(f"{self.broker}: closed the connection{hint if mute else ''}")
        self._spoken = True
        self._received_at = time.monotonic()
        if self._rest:
            data = self._rest + data
        try:
            self._rest = data[self.take_frames(data) :]
        except ProtocolFault as fault:
            raise ConnectionLost(f"{self.broker}: sent nonsense: {fault.text}") from None
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def keep_alive(self, *, reading: bool = True) -> None:
        """Send a heartbeat when one is due, and notice a silent broker, if it is being read."""
        if not self._heartbeat:
            return
        now = time.monotonic()
        if now - self._sent_at > self._heartbeat / 2 and not self.out:
            self.out += codec.HEARTBEAT_FRAME
            self.send_now()
        if not reading:
            self._received_at = now
        if now - self._received_at > 2 * self._heartbeat:
            raise ConnectionLost(f"{self.broker}: silent for {now - self._received_at:.0f} s")

    # Frames

    def take_frames(self, data: bytes) -> int:
        """Handle every whole frame of `data`; return where the first incomplete one starts."""
        if data.startswith(OTHER_PROTOCOLS):
            if len(data) < len(codec.PROTOCOL_HEADER) and data.startswith(b"AMQP"):
                return 0
            beginning = next(begin for begin in OTHER_PROTOCOLS if data.startswith(begin))
            raise BrokerRefused(0, f"{self.broker} {NOT_OURS[beginning]}")
        frames, at = codec.split_frames(data)
        for kind, channel, start, end in frames:
            if kind == codec.METHOD:
                index = data[start : start + 4]
                if index == codec.DELIVER_INDEX:
                    self._deliver = codec.decode_deliver(data, start, end)
                elif index == codec.ACK_INDEX and channel:
                    self.acks.append(PublisherConfirm(*codec.decode_ack(data, start, end), True))
                elif index == codec.NACK_INDEX and channel:
                    self.acks.append(PublisherConfirm(*codec.decode_ack(data, start, end), False))
                else:
                    self._on_method(channel, data, start, end)
            elif kind == codec.HEADER:
                self._content_size, self._properties = codec.decode_content_header(data, start, end)
                if self._content_size == 0:
                    self._complete(b"")
            elif kind == codec.BODY:
                self._on_body(data[start:end])
        return at

    def _on_body(self, chunk: bytes) -> None:
        self._content_size -= len(chunk)
        if self._content_size > 0:
            self._chunks.append(chunk)
        elif self._chunks:
            whole = b"".join((*self._chunks, chunk))
            self._chunks = []
            self._complete(whole)
        else:
            self._complete(chunk)

    def _complete(self, body: bytes) -> None:
        head, self._deliver = self._deliver, None
        if head is None:
            message = self._return, body, self._properties
            return self.returns.append(Returned(*message, len(self.acks)))
        tag, redelivered, exchange, key = head[1:]
        self.deliveries.append(Delivery(tag, redelivered, exchange, key, self._properties, body))

    def _on_method(self, channel: int, data: bytes, start: int, end: int) -> None:
        method, args = spec.decode_method(data, start, end)
        match method.name:
            case "basic.return":
                code, text, exchange, key = args
                self._return = f"{code!s} {text!s}: exchange '{exchange!s}', key '{key!s}'"
            case "connection.close":
                self._send(0, "connection.close-ok", ())
                with suppress(ConnectionLost):
                    self.send_now()
                reason = f"{self.broker}: {args[1]!s}"
                if args[0] in TRANSIENT_CODES:
                    raise ConnectionLost(reason)
                raise BrokerRefused(_as_int(args[0]), reason)
            case "channel.close":
                self._send(CHANNEL, "channel.close-ok", ())
                self._refused = BrokerRefused(_as_int(args[0]), f"{self.broker}: {args[1]!s}")
            case "connection.blocked":
                self.blocked = str(args[0]) or "no reason given"
            case "connection.unblocked":
                self.blocked = ""
            case "channel.flow":
                self.blocked = "" if args[0] else "flow control"
                self._send(channel, "channel.flow-ok", args)
            case "basic.cancel":
                raise BrokerRefused(
                    404, f"{self.broker}: the queue went away, the consumer with it"
                )
            case name:
                self._answers.append((name, args))

    def _send(self, channel: int, name: str, args: tuple[Value, ...]) -> None:
        codec.append_method(self.out, channel, name, args)

    def _await(
        self, name: str, *, dropping: bool = False, within_s: float | None = None
    ) -> tuple[Value, ...]:
        patience_s = self.login.timeout_seconds if within_s is None else within_s
        deadline = time.monotonic() + patience_s
        while True:
            while self._answers:
                answer, args = self._answers.pop(0)
                if answer == name:
                    return args
            if dropping:
                self.deliveries.clear()
            left = deadline - time.monotonic()
            if left <= 0:
                raise ConnectionLost(f"{self.broker}: no {name} in time")
            self.pump(left)


def _table(value: Value) -> dict[str, Value]:
    return value if isinstance(value, dict) else {}


def _as_int(value: Value) -> int:
    assert isinstance(value, int)
    return value
