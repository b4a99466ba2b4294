"""The server's end of one client connection, without its socket and its clock.

The owner hands in bytes and the time, and gets events; output collects in `out`. The connection
does not know what a queue is: it passes on all methods that are not about the connection itself. A
client's faults never come out as exceptions: the connection sends a close with the reason, and
reports it as an event.

    HEADER -> START -> TUNE -> OPENING -> OPEN -> CLOSED
          any of these -> CLOSING -> CLOSED         we sent close and wait for close-ok
                          CLOSE_RECEIVED -> CLOSED  the client sent close, the owner replies
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from broker.amqp import codec, errors
from broker.amqp.channel import ChannelIn, ChannelState
from broker.amqp.errors import ProtocolFault, reply_text
from broker.amqp.events import (
    Called,
    ChannelCloseRequested,
    ChannelOpened,
    CloseRequested,
    Event,
    Faulted,
    OpenRequested,
    SecretUpdated,
)
from broker.amqp.fields import Table, Value, clip
from broker.amqp.frame_reader import FrameReader, ReaderPhase
from broker.amqp.handshake import (
    MECHANISMS,
    Authenticate,
    Credentials,
    Limits,
    ServerIdentity,
    credentials_of,
    has_capability,
    negotiate,
)
from broker.amqp.heartbeat import Heartbeat
from broker.amqp.output import Ahead
from broker.amqp.spec import Method, decode_method

UNCONFIRMED_MAX = 2048
"""Channels closed by us with no close-ok from the client yet; each new one looks through all."""
_SENDS_NO_MORE = (ReaderPhase.CLOSING, ReaderPhase.CLOSED)  # the farewell, if any, was the last
_SETTLE = {codec.ACK_INDEX: "basic.ack"}


def _nobody(_: Credentials) -> str:
    return ""


class ServerConnection(FrameReader):
    """Call `receive` with the bytes read, and `wake` when `next_timer` is due; send
    `take_output`.
    """

    def __init__(
        self,
        authenticate: Authenticate,
        limits: Limits,
        identity: ServerIdentity,
        now: float,
        mechanisms: tuple[str, ...] = MECHANISMS,
    ) -> None:
        super().__init__(limits)
        self._mechanisms, self._mechanism = mechanisms, ""
        self.claimed = ""  # who wants to log in; `authenticate` sets it where no credentials say it
        self.out = bytearray()
        self.ahead = Ahead()  # is sent before it
        self._farewell_bytes = 0  # at the end of `out`: our close or close-ok
        self.client_properties: Table = {}
        self.user = ""
        self.closed_by_client = False  # and it was told so: the client closes the socket
        self._authenticate, self._identity = authenticate, identity
        self._channel_max = limits.channel_max
        self._rest = bytearray()  # the beginning of an incomplete frame
        self._heartbeat = Heartbeat(0, now)
        self._deadline: float | None = now + limits.handshake_s
        self._now = now

    # -- the owner's side ------------------------------------------------------------------------

    def trust(self, user: str) -> None:
        """The client is part of this process: `user` was authenticated elsewhere, and the client
        begins with connection.open."""
        self.user, self.phase = user, ReaderPhase.OPENING
        self.frame_bytes_max = self.limits.frame_bytes_max

    def lost(self) -> None:
        """The socket is gone: no login continues. The judge of a login refers to the client, which
        would otherwise stay in memory until the next full garbage collection."""
        self._authenticate = _nobody

    @property
    def mechanism(self) -> str:
        """How the client logs in, or logged in."""
        return self._mechanism

    @property
    def heartbeat_s(self) -> int:
        """The agreed interval; 0: none."""
        return self._heartbeat.interval_s

    @property
    def channel_max(self) -> int:
        """How many channels may be open at once; the client chooses their numbers."""
        return self._channel_max

    @property
    def now(self) -> float:
        """The time passed with the last call."""
        return self._now

    @property
    def is_judged(self) -> bool:
        """Its credentials are being checked: nothing is read meanwhile."""
        return self.phase is ReaderPhase.LOGIN

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Return the events that these bytes complete."""
        self._now = self._heartbeat.received_at = now
        begun, begin = b"", 0
        if self._rest:
            begin = self.need - len(self._rest)
            if len(data) < begin:
                self._rest += data
                return []
            if self.phase is ReaderPhase.OPEN and self.need > codec.FRAME_OVERHEAD_BYTES:
                # Only the incomplete frame is joined; what follows is read in place.
                begun = b"".join((self._rest, data[:begin]))
            else:
                data, begin = b"".join((self._rest, data)), 0
            self._rest = bytearray()
        if self.is_judged:
            self._rest += data
            return []
        if self.phase is ReaderPhase.CLOSED:
            return []
        try:
            if begun:
                self.on_frames(begun, 0)
            at = self._on_bytes(data, begin)
            if self.is_judged:
                self.need = 0  # the bytes here are handled once its user is known
            self._rest += data[at:]
        except ProtocolFault as fault:
            self._on_fault(fault)
        return self._take_events()

    def _on_bytes(self, data: bytes, at: int) -> int:
        """Handle the whole frames from `at` on; return where the rest begins."""
        if self.phase is ReaderPhase.HEADER:
            at = self._on_protocol_header(data)
        if self.phase is ReaderPhase.CLOSED:
            return len(data)
        return at if self.phase is ReaderPhase.HEADER else self.on_frames(data, at)

    def take_output(self) -> bytearray:
        """Return, and forget, the bytes to send now. These are all, except large contents: while
        `ahead` is true there is more."""
        if self.ahead:
            out = self.ahead.take()
            if not self.ahead:
                out += self.out
                self.out, self._farewell_bytes = bytearray(), 0
        else:
            out, self.out, self._farewell_bytes = self.out, bytearray(), 0
        if out:
            self._heartbeat.has_sent = True
        return out

    def next_timer(self) -> float | None:
        """When to call `wake`."""
        if self.phase is ReaderPhase.CLOSED:
            return None
        beat = self._heartbeat.next_timer() if self.phase is ReaderPhase.OPEN else None
        if self._deadline is None or beat is None:
            return beat if self._deadline is None else self._deadline
        return min(self._deadline, beat)

    def wake(self, now: float, *, silent: bool = False) -> list[Event]:
        """Called at or after `next_timer()`. `silent`: the owner, which does not read, knows that
        the client has sent nothing for two intervals."""
        self._now = now
        if self.phase is ReaderPhase.CLOSED:
            return []
        if self._deadline is not None and now >= self._deadline:
            self._end(Faulted(errors.CONNECTION_FORCED, f"time limit: {self.phase.value}"))
        elif self.phase is ReaderPhase.OPEN:
            if silent or self._heartbeat.is_silent(now):
                self._end(Faulted(errors.CONNECTION_FORCED, "missed heartbeats from client"))
            elif self._heartbeat.is_due(now):
                self.out += codec.HEARTBEAT_FRAME
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def reading(self, active: bool, now: float) -> None:
        """Whether the owner reads the socket: while it does not, silence proves nothing."""
        self._heartbeat.reading(active, now)

    @property
    def has_ended(self) -> bool:
        """Nothing more will be sent: close the socket once the output is out."""
        return self.phase is ReaderPhase.CLOSED

    def send(self, channel: int, method: str, args: tuple[Value, ...] = ()) -> None:
        """Send one method, unless we have sent our close."""
        if self.phase not in _SENDS_NO_MORE:
            codec.append_method(self.out, channel, method, args)

    def send_large(
        self, channel: int, properties: bytes, size: int, parts: Iterable[bytes]
    ) -> None:
        """Send the content of the method sent last, with a body of this size in parts."""
        codec.append_content_header(self.out, channel, properties, size)
        self.ahead.put(self.out, codec.body_frames(channel, parts, self.frame_bytes_max))
        self.out = bytearray()

    def hold_output(self) -> None:
        """Hold back everything collected so far until `release_output`. After the end of the
        connection nothing is released: it is dropped, except what tells the client of the end."""
        if self.phase in _SENDS_NO_MORE:
            self.ahead.clear()
            del self.out[: len(self.out) - self._farewell_bytes]
            return
        self.ahead.hold(self.out)
        self.out = bytearray()

    def release_output(self) -> None:
        """Send held output, unless the client was told that its connection has ended."""
        if self.has_ended:
            self.ahead.drop_held()
        else:
            self.ahead.release()

    def _cut_contents(self) -> None:
        """The end must not wait until a large message was sent, and nothing may follow it."""
        self.ahead.drop_held()
        if self.ahead:
            self.out = self.ahead.cut()

    def accept_open(self) -> None:
        """Accept an `OpenRequested`; `close` refuses it."""
        # Known hosts, from AMQP 0-9, are reserved in 0-9-1: some libraries expect a fixed length
        # for the field. The exchange amq.failover tells clients where the members are.
        self.send(0, "connection.open-ok", ("",))

    def close(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Send the reason and wait a while for the client's close-ok. `text` is sent as it is."""
        if self.phase is ReaderPhase.CLOSE_RECEIVED:
            self.close_ok()  # it is closing anyway
        if self.phase is ReaderPhase.HEADER:
            self.phase = ReaderPhase.CLOSED  # it is not known yet to speak AMQP
        if self.phase in _SENDS_NO_MORE:
            return
        self._cut_contents()
        self._say_farewell("connection.close", (code, clip(text), class_id, method_id))
        self.phase, self._deadline = ReaderPhase.CLOSING, self._now + self.limits.closing_s
        self.channels.clear()

    def close_ok(self) -> None:
        """Reply to `CloseRequested`."""
        if self.phase is ReaderPhase.CLOSE_RECEIVED:
            self._cut_contents()
            self._say_farewell("connection.close-ok")
            self.phase = ReaderPhase.CLOSED
            self.closed_by_client = True

    def _say_farewell(self, method: str, args: tuple[Value, ...] = ()) -> None:
        before = len(self.out)
        codec.append_method(self.out, 0, method, args)
        self._farewell_bytes += len(self.out) - before

    def discard_channel(self, number: int) -> None:
        """Discard what the client still sends on this channel; `close_channel` follows."""
        channel = self.channels.get(number)
        if channel is not None and channel.state is ChannelState.OPEN:
            channel.state = ChannelState.CLOSING
            channel.reset()

    def close_channel(
        self, number: int, code: int, text: str, class_id: int, method_id: int
    ) -> None:
        """Send the reason. If the client has sent its channel.close too, it also gets close-ok."""
        channel = self.channels.get(number)
        if channel is None or channel.sent_close:
            return
        self.send(number, "channel.close", (code, clip(text), class_id, method_id))
        if channel.state is ChannelState.CLOSE_REQUESTED:
            self.send(number, "channel.close-ok")
            channel.sent_close_ok = True
        channel.state = ChannelState.CLOSING
        channel.sent_close = True
        channel.reset()

    def channel_close_ok(self, number: int) -> None:
        """Reply to `ChannelCloseRequested`."""
        channel = self.channels.get(number)
        if channel is not None and channel.state is ChannelState.CLOSE_REQUESTED:
            del self.channels[number]
            self.send(number, "channel.close-ok")

    # -- methods ---------------------------------------------------------------------------------

    def on_method(self, number: int, data: bytes, start: int, end: int) -> None:
        if self.phase is ReaderPhase.CLOSE_RECEIVED:
            return
        channel = self.channels.get(number)
        settles = _SETTLE.get(data[start : start + 4])
        if settles is not None and channel is not None and channel.is_idle:
            self.events.append(Called(number, settles, codec.decode_ack(data, start, end)))
            return
        method, values = decode_method(data, start, end)
        if number == 0 or method.class_id == 10:
            self._on_connection_method(number, method, values)
        elif self.phase is ReaderPhase.OPEN:
            self._on_channel_method(number, channel, method, values, data[start:end])
        elif self.phase is not ReaderPhase.CLOSING:
            raise _misplaced(method, f"before connection.open ({self.phase.value})")

    def _on_connection_method(self, number: int, method: Method, args: tuple[Value, ...]) -> None:
        if method.class_id != 10:
            text = f"{method.name} on channel 0, which is the connection's own"
            raise ProtocolFault(errors.CHANNEL_ERROR, text, method.class_id, method.method_id)
        if number:
            raise _misplaced(method, f"on channel {number}")
        handler = _HANDLERS.get((self.phase, method.name))
        if handler is not None:
            handler(self, args)
        elif self.phase is not ReaderPhase.CLOSING:
            raise _misplaced(method, f"while the server {self.phase.value}")

    def _on_channel_method(
        self,
        number: int,
        channel: ChannelIn | None,
        method: Method,
        args: tuple[Value, ...],
        payload: bytes,
    ) -> None:
        name = method.name
        if name == "channel.open":
            self._on_channel_open(number, channel)
            return
        if channel is None:
            text = f"expected 'channel.open'; {name} on channel {number}, which is not open"
            raise ProtocolFault(errors.CHANNEL_ERROR, text, method.class_id, method.method_id)
        if channel.state is ChannelState.CLOSING:
            self._on_closing_channel(number, channel, name)
            return
        if channel.state is ChannelState.CLOSE_REQUESTED:
            return
        if not method.by_client:
            raise _misplaced(method, "from a client")
        if channel.address:
            text = f"{name} on channel {number} in the middle of a message"
            raise ProtocolFault(errors.UNEXPECTED_FRAME, text, method.class_id, method.method_id)
        if name == "basic.publish":
            channel.on_publish(self.remember_address(payload, args))
        elif name == "channel.close":
            channel.state = ChannelState.CLOSE_REQUESTED
            self.events.append(ChannelCloseRequested(number))
        else:
            self.events.append(Called(number, name, args))

    def _on_channel_open(self, number: int, channel: ChannelIn | None) -> None:
        if channel is not None:
            if channel.sent_close_ok:
                channel = None  # for this client the number is free; it need not send close-ok
            elif channel.state is ChannelState.CLOSING:
                return
        if channel is not None:
            text = f"second 'channel.open' seen on channel {number}"
            raise ProtocolFault(errors.CHANNEL_ERROR, text, 20, 10)
        if len(self.channels) >= self._channel_max:
            # Channels closed by us do not count, whether or not the client has confirmed the close.
            count = sum(not one.sent_close for one in self.channels.values())
            if count >= self._channel_max:
                text = f"number of channels opened ({count}) has reached the negotiated channel_max"
                raise ProtocolFault(errors.NOT_ALLOWED, f"{text} ({self._channel_max})", 20, 10)
            if (unconfirmed := len(self.channels) - count) >= UNCONFIRMED_MAX:
                text = f"{unconfirmed} channels were closed, and no channel.close-ok came"
                raise ProtocolFault(errors.NOT_ALLOWED, text, 20, 10)
        self.channels[number] = ChannelIn()
        self.events.append(ChannelOpened(number))

    def _on_closing_channel(self, number: int, channel: ChannelIn, name: str) -> None:
        """Only the end of the channel matters now; both sides may have sent their close at once."""
        if name == "channel.close-ok" and channel.sent_close:
            del self.channels[number]
        elif name == "channel.close":
            if channel.sent_close:
                self.send(number, "channel.close-ok")
                channel.sent_close_ok = True
            else:
                channel.state = ChannelState.CLOSE_REQUESTED  # `close_channel` replies to it too

    # -- the connection's own methods ------------------------------------------------------------

    def _on_protocol_header(self, data: bytes) -> int:
        """Accept AMQP 0-9-1; any other client gets our protocol header and is closed."""
        head = bytes(data[:8])
        if not any(one.startswith(head) for one in (codec.PROTOCOL_HEADER, codec.HEADER_OF_0_9)):
            self.out += codec.PROTOCOL_HEADER
            self._end(Faulted(errors.FRAME_ERROR, f"protocol header {head!r}"))
            return len(data)
        if len(data) < 8:
            self.need = 8
            return 0
        args = (0, 9, self._identity.properties(), " ".join(self._mechanisms).encode(), b"en_US")
        self.send(0, "connection.start", args)
        self.phase = ReaderPhase.START
        return 8

    def _on_start_ok(self, args: tuple[Value, ...]) -> None:
        properties, mechanism, response, _ = args
        self.client_properties = cast("Table", properties)
        mechanism = cast("str", mechanism)
        if mechanism not in self._mechanisms:
            text = f"unknown authentication mechanism '{mechanism}'"
            raise ProtocolFault(errors.COMMAND_INVALID, text, 10, 11)
        credentials = credentials_of(mechanism, cast("bytes", response))
        self._mechanism, self.claimed = mechanism, credentials.user
        self._judge(credentials)

    def _judge(self, credentials: Credentials) -> None:
        try:
            user = self._authenticate(credentials)
        except ProtocolFault as fault:
            if fault.code != errors.ACCESS_REFUSED:
                raise
            self._refuse_login(fault.text)
            return
        if user is None:
            self.phase = ReaderPhase.LOGIN
        else:
            self._log_in(user)

    def judge(self, credentials: Credentials, now: float) -> list[Event]:
        """Authenticate a client that was told to wait: handle waiting input, unless it waits on."""
        return self._end_wait(partial(self._judge, credentials), now)

    def logged_in(self, user: str, now: float, note: str = "") -> list[Event]:
        """Its user is known now (empty: refused, with `note` sent along): handle waiting input."""
        return self._end_wait(partial(self._log_in, user, note), now)

    def _end_wait(self, how: Callable[[], None], now: float) -> list[Event]:
        if self.phase is not ReaderPhase.LOGIN:
            return []
        self._now = now
        try:
            how()
        except ProtocolFault as fault:
            self._on_fault(fault)
        return [*self._take_events(), *self.receive(b"", now)]

    def _refuse_login(self, text: str) -> None:
        """Refuse with the reason, if the client expects one; otherwise close its socket."""
        claimed, mechanism = self.claimed, self._mechanism
        refused = Faulted(errors.ACCESS_REFUSED, f"login of '{claimed}' refused ({mechanism})")
        if not has_capability(self.client_properties, "authentication_failure_close"):
            self._end(refused)
            return
        self.close(errors.ACCESS_REFUSED, reply_text(errors.ACCESS_REFUSED, text))
        self.events.append(refused)

    def _log_in(self, user: str, note: str = "") -> None:
        if not user:
            text = f"Login was refused using authentication mechanism {self._mechanism}. "
            self._refuse_login(f"{text}For details see the broker logfile.{note}")
            return
        self.user = user
        limits = self.limits
        self.phase = ReaderPhase.TUNE
        self.send(
            0, "connection.tune", (limits.channel_max, limits.frame_bytes_max, limits.heartbeat_s)
        )

    def _on_tune_ok(self, args: tuple[Value, ...]) -> None:
        tuned = negotiate(self.limits, args)
        self._channel_max, self.frame_bytes_max = tuned.channel_max, tuned.frame_bytes_max
        self._heartbeat = Heartbeat(tuned.heartbeat_s, self._now)
        self.phase = ReaderPhase.OPENING

    def _on_open(self, args: tuple[Value, ...]) -> None:
        """Open at once: clients may send before they have read our reply."""
        self.phase, self._deadline = ReaderPhase.OPEN, None
        self._heartbeat.start(self._now)
        vhost = cast("str", args[0])
        self.events.append(OpenRequested(vhost, self.user, self.client_properties))

    def _on_update_secret(self, args: tuple[Value, ...]) -> None:
        secret = cast("bytes", args[0]).decode("utf-8", "replace")
        self.events.append(SecretUpdated(secret, cast("str", args[1])))

    def _on_close(self, args: tuple[Value, ...]) -> None:
        self.channels.clear()
        self.phase, self._deadline = ReaderPhase.CLOSE_RECEIVED, self._now + self.limits.closing_s
        self.events.append(CloseRequested(cast("int", args[0]), cast("str", args[1])))

    def _on_early_close(self, _args: tuple[Value, ...]) -> None:
        self._say_farewell("connection.close-ok")
        self.phase = ReaderPhase.CLOSED

    def _on_close_ok(self, _args: tuple[Value, ...]) -> None:
        self.phase = ReaderPhase.CLOSED

    def _on_fault(self, fault: ProtocolFault) -> None:
        if self.phase in (ReaderPhase.CLOSING, ReaderPhase.CLOSE_RECEIVED):
            self.phase = ReaderPhase.CLOSED  # a fault after a close gets no second close
            return
        text = reply_text(fault.code, fault.text)
        self.close(fault.code, text, fault.class_id, fault.method_id)
        self.events.append(Faulted(fault.code, text))

    def _end(self, event: Faulted) -> None:
        self._cut_contents()
        self.phase = ReaderPhase.CLOSED
        self.channels.clear()
        self.events.append(event)


_Handler = Callable[[ServerConnection, tuple[Value, ...]], None]
_HANDLERS: dict[tuple[ReaderPhase, str], _Handler] = {
    (ReaderPhase.START, "connection.start-ok"): ServerConnection._on_start_ok,
    (ReaderPhase.TUNE, "connection.tune-ok"): ServerConnection._on_tune_ok,
    (ReaderPhase.OPENING, "connection.open"): ServerConnection._on_open,
    (ReaderPhase.OPEN, "connection.update-secret"): ServerConnection._on_update_secret,
    (ReaderPhase.START, "connection.close"): ServerConnection._on_early_close,
    (ReaderPhase.TUNE, "connection.close"): ServerConnection._on_early_close,
    (ReaderPhase.OPENING, "connection.close"): ServerConnection._on_early_close,
    (ReaderPhase.OPEN, "connection.close"): ServerConnection._on_close,
    (ReaderPhase.CLOSING, "connection.close"): ServerConnection._on_early_close,
    (ReaderPhase.CLOSING, "connection.close-ok"): ServerConnection._on_close_ok,
}


def _misplaced(method: Method, where: str) -> ProtocolFault:
    text = f"{method.name} {where}"
    return ProtocolFault(errors.COMMAND_INVALID, text, method.class_id, method.method_id)
