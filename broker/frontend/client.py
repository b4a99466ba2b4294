"""One client of this member: its connection, its channels, and what it said as commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.amqp import errors
from broker.amqp.connection import ServerConnection
from broker.amqp.errors import reply_text
from broker.amqp.events import (
    Called,
    ChannelCloseAsked,
    ChannelOpened,
    CloseAsked,
    Event,
    Faulted,
    OpenAsked,
    Oversized,
    Published,
)
from broker.amqp.fields import Value
from broker.amqp.tuning import has_capability
from broker.frontend.channel import TX_BYTES_MAX, HeldReply, LocalAnswer, LocalChannel, PendingClose
from broker.frontend.methods import REQUESTS
from broker.machine.commands import (
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    PUBLISH,
    SENT,
    ChannelClose,
    ChannelOpen,
    ConnectionClose,
    ConnectionOpen,
    Publish,
    Sent,
    TxPublish,
)

if TYPE_CHECKING:
    from broker.frontend.gateway import Gateway


OUTPUT_BYTES_MAX = 1 << 20
"""Above this much unsent output a client is not read, and its deliveries stay with the machine's
messages instead of being copied here."""


class Client:
    """What the shell holds for a socket. See `gateway` for the calls and their order."""

    def __init__(self, gateway: Gateway, peer: str, is_local: bool, now: float) -> None:
        def authenticate(user: str, password: str) -> bool:
            return gateway.login(user, password, is_local)

        self.gateway = gateway
        self.peer = peer
        self.came = now
        self.waiting: list[Event] = []  # what it said from its open on, until it is let in
        self.conn = 0  # the machine's number for this connection; 0: it does not know it (any more)
        self.asked_close = 0  # the number it had, while the machine's close-ok is awaited
        self.is_publisher = False  # brings load: its socket is not read while the member is full
        self.requests = 0  # methods asked of the machine: many of them are load as well
        self.transaction_bytes = 0  # of what its channels have not committed yet
        self.is_behind = False  # something is held back because its output was full
        self.channels: dict[int, LocalChannel] = {}
        self.unreported: dict[int, LocalChannel] = {}  # channels with writes that SENT must tell
        self.connection = ServerConnection(authenticate, gateway.limits, gateway.identity, now)
        # Encoded once: consumer tags, and exchange with key, of what is delivered here.
        self.short_tags: dict[str, bytes] = {}
        self.short_addresses: dict[tuple[str, str], bytes] = {}

    # -- the shell's side ------------------------------------------------------------------------

    def data_received(self, data: bytes, now: float) -> None:
        """Bytes from the socket."""
        self.gateway.counters["bytes_in"] += len(data)
        self._on_events(self.connection.receive(data, now))

    def next_timer(self) -> float | None:
        return self.connection.next_timer()

    def wake(self, now: float) -> None:
        """Called at or after `next_timer()`."""
        self._on_events(self.connection.wake(now))

    def reading(self, active: bool, now: float) -> None:
        """Whether the socket is read from now on."""
        self.connection.reading(active, now)

    def take_output(self) -> bytes | bytearray:
        """What to write now; from here on it counts as sent."""
        if self.unreported:
            for number, channel in self.unreported.items():
                self.gateway.commands.append(Sent(SENT, self.conn, number, channel.unreported))
            self.unreported.clear()
        if self.is_behind:
            self.gateway.mark_drained(self)
        return self.connection.take_output()

    @property
    def is_full(self) -> bool:
        """It has not been reading what it is told."""
        return len(self.connection.out) > OUTPUT_BYTES_MAX

    @property
    def may_be_read(self) -> bool:
        """Whether its socket is to be read now: ask after every turn (back-pressure)."""
        gateway = self.gateway
        waits = self.is_publisher and (gateway.paused or gateway.holding)
        return not waits and not self.is_full and not self.waiting

    @property
    def wants_close(self) -> bool:
        """Close the socket once the output is written."""
        return self.connection.has_ended

    def settle(self) -> None:
        """Ask again to be let in; then go on with what it said behind that."""
        said, self.waiting = self.waiting, []
        self._on_events(said)

    def connection_lost(self) -> None:
        """The socket is gone."""
        self._leave()
        self.gateway.forget(self)
        self.gateway.counters["closed"] += 1

    # -- answers ---------------------------------------------------------------------------------

    def say(self, channel: int, method: str, args: tuple[Value, ...] = ()) -> None:
        self.connection.say(channel, method, args)
        self.gateway.mark_writable(self)

    def answer(self, number: int, method: str, args: tuple[Value, ...] = ()) -> None:
        """An answer of the gateway's own, after those that were asked of the machine before."""
        channel = self.channels[number]
        answer = LocalAnswer(channel.asked, method, args)
        if channel.asked > channel.answered:
            channel.answers.append(answer)
        elif channel.held:
            channel.held.append(HeldReply(0, answer))
        else:
            self.say(number, method, args)

    def refuse(self, code: int, text: str, class_id: int = 10, method_id: int = 40) -> None:
        """End the connection for what the client asked; the machine forgets it."""
        self.gateway.note("refused", f"client {self.peer}: {text}")
        self.connection.close(code, text, class_id, method_id)
        self.gateway.mark_writable(self)
        self._leave()

    def refuse_channel(
        self, number: int, code: int, text: str, class_id: int, method_id: int
    ) -> None:
        """End one channel. The client hears it after the answers to all that it said before: the
        machine closes the channel in its order, and its close-ok is our turn."""
        channel = self.channels[number]
        if channel.pending_close is None:
            channel.pending_close = PendingClose(code, reply_text(code, text), class_id, method_id)
            self.connection.doom_channel(number)
            self.gateway.commands.append(ChannelClose(CHANNEL_CLOSE, self.conn, number))

    def ended_by_machine(self, code: int, text: str, class_id: int, method_id: int) -> None:
        """A hard error: the machine has ended the connection and says why."""
        self.gateway.note("refused", f"client {self.peer}: {text}")
        self.conn = self.asked_close = 0
        self.channels.clear()
        self.unreported.clear()
        self.connection.close(code, text, class_id, method_id)
        self.gateway.mark_writable(self)

    def force_close(self, reason: str) -> None:
        """The member ends the connection; the machine has forgotten it, or will by itself."""
        self.gateway.clients.pop(self.conn or self.asked_close, None)
        self.conn = self.asked_close = 0
        self.channels.clear()
        self.unreported.clear()
        self.waiting.clear()
        text = reply_text(errors.CONNECTION_FORCED, reason)
        self.connection.close(errors.CONNECTION_FORCED, text)
        self.gateway.mark_writable(self)

    def say_blocked(self) -> None:
        """Only to clients with the capability: others would not understand."""
        if has_capability(self.connection.client_properties, "connection.blocked"):
            self.say(0, "connection.blocked", (self.gateway.blocked_because,))

    # -- events ----------------------------------------------------------------------------------

    def _on_events(self, events: list[Event]) -> None:
        if self.waiting:
            self.waiting += events
            return
        gateway, channels = self.gateway, self.channels
        commands = gateway.commands
        published = 0
        for event in events:
            if type(event) is Published:
                number, exchange, key, flags, properties, body, user_id = event
                channel = channels.get(number)
                if channel is None or channel.pending_close is not None:
                    continue
                is_rare = channel.transaction is not None or user_id is not None
                if is_rare and not self._may_publish(number, channel, event):
                    continue
                publish_no = 0
                if channel.wants_confirms:
                    publish_no = channel.publish_no = channel.publish_no + 1
                published += 1
                commands.append(
                    Publish(
                        PUBLISH, self.conn, number, publish_no, exchange, key, flags, properties,
                        body,
                    )
                )  # fmt: skip
            elif type(event) is Called:
                channel = channels.get(event.channel)
                if channel is not None and channel.pending_close is None:
                    REQUESTS[event.method](self, event.channel, channel, event.args)
            else:
                self._on_rare(event)
                if self.waiting:
                    self.waiting += events[events.index(event) + 1 :]
                    break
        if published:
            self.is_publisher = True
            gateway.counters["publishes"] += published
        if self.connection.out or self.connection.has_ended:
            gateway.mark_writable(self)

    def _may_publish(self, number: int, channel: LocalChannel, message: Published) -> bool:
        """What is rare about a publish: it names its user, or it is part of a transaction. False
        if it is no command of its own."""
        _, exchange, key, flags, properties, body, user_id = message
        user = self.connection.user
        if user_id is not None and user_id != user.encode():
            shown = user_id.decode("ascii", "backslashreplace")
            text = f"user_id property set to '{shown}' but authenticated user was '{user}'"
            self.refuse_channel(number, errors.PRECONDITION_FAILED, text, 60, 40)
            return False
        transaction = channel.transaction
        if transaction is None:
            return True
        self.is_publisher = True
        self.gateway.counters["publishes"] += 1
        transaction.publishes.append(TxPublish(exchange, key, flags, properties, body))
        size = len(properties) + len(body)
        transaction.size += size
        self.transaction_bytes += size
        if transaction.is_full or self.transaction_bytes > TX_BYTES_MAX:
            text = "the transaction is larger than this server allows"
            self.refuse_channel(number, errors.PRECONDITION_FAILED, text, 60, 40)
        return False

    def _on_rare(self, event: Event) -> None:
        commands = self.gateway.commands
        match event:
            case OpenAsked():
                self._on_open(event)
            case ChannelOpened(number):
                if self.conn:
                    self.channels[number] = LocalChannel()
                    commands.append(ChannelOpen(CHANNEL_OPEN, self.conn, number))
                    self.say(number, "channel.open-ok")
            case ChannelCloseAsked(number):
                channel = self.channels.get(number)
                if channel is not None and channel.pending_close is None:
                    commands.append(ChannelClose(CHANNEL_CLOSE, self.conn, number))
            case Oversized(number, size):
                if number in self.channels:
                    text = f"message size {size} is larger than configured max size"
                    limit = self.gateway.limits.message_bytes_max
                    code = errors.PRECONDITION_FAILED
                    self.refuse_channel(number, code, f"{text} {limit}", 60, 40)
            case CloseAsked():
                # The machine answers, so that what the client said before has been done. A member
                # that may not speak lets the client go at once.
                conn = self.conn
                self._leave()
                if conn and not self.gateway.holding:
                    self.asked_close = conn
                    self.gateway.clients[conn] = self
                else:
                    self.connection.close_ok()
            case Faulted(_, text):
                self.gateway.note("faults", f"client {self.peer}: {text}")
                self._leave()
            case Called() | Published():
                pass

    def _on_open(self, event: OpenAsked) -> None:
        conn = self.gateway.admit(self, event.vhost)
        if conn is None:
            self.waiting = [event]
        if not conn:
            return
        self.conn = conn
        self.connection.accept_open()
        self.gateway.commands.append(
            ConnectionOpen(CONNECTION_OPEN, conn, event.vhost, event.user, self.peer)
        )
        if self.gateway.blocked_because:
            self.say_blocked()

    def forget_channel(self, number: int) -> None:
        """It has come to its end on both sides."""
        transaction = self.channels.pop(number).transaction
        if transaction is not None:
            self.transaction_bytes -= transaction.clear()
        self.unreported.pop(number, None)

    def close_ok(self) -> None:
        """The machine has ended the connection as the client asked."""
        if self.asked_close:
            self.gateway.clients.pop(self.asked_close, None)
            self.asked_close = 0
        self.connection.close_ok()
        self.gateway.mark_writable(self)

    def _leave(self) -> None:
        """The machine shall forget this connection, if it knows it."""
        self.gateway.clients.pop(self.asked_close, None)
        self.asked_close = 0
        if self.conn:
            self.gateway.commands.append(ConnectionClose(CONNECTION_CLOSE, self.conn))
            self.gateway.clients.pop(self.conn, None)
            self.conn = 0
        self.channels.clear()
        self.unreported.clear()
