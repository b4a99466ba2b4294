"""One client of this member: its connection, its channels, and the replies to it.

`dispatch` turns the events of its connection into commands; `gateway` has all clients and the order
of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from broker.access.access import Access, Rights
from broker.access.auth_server import Answer, AuthQuestion
from broker.access.backends import REFUSED, Login
from broker.amqp import codec, errors
from broker.amqp.connection import ServerConnection
from broker.amqp.errors import reply_text
from broker.amqp.events import Event
from broker.amqp.fields import Value, clip, encode_short_string
from broker.amqp.handshake import (
    Credentials,
    Limits,
    ServerIdentity,
    has_capability,
)
from broker.amqp.spec import METHODS
from broker.frontend.channel import HeldReply, LocalChannel, LocalReply, PendingClose
from broker.frontend.encryption import Encryption
from broker.frontend.kept_events import KeptEvents
from broker.machine.commands import (
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    SENT,
    ChannelClose,
    Command,
    ConnectionClose,
    Sent,
)
from broker.machine.state import Held
from broker.waiting.bodies import Body, LargeBody

OUTPUT_BYTES_MAX = 1 << 20
"""Above this much unsent output a client is not read, and its deliveries stay with the machine's
messages instead of being copied here."""
KEPT_BYTES_MAX = 1 << 20
"""A client is not read while more than this waits for the end of an alarm."""
REQUESTS_LIGHT_MAX = 256
"""A client that requests more than this is treated like a publisher when the member is full."""
_SHORT_STRINGS_KEPT_MAX = 1024


class Logins(Protocol):
    """Identifies and authorises the clients of a member, by the back ends that know the users."""

    mechanisms: tuple[str, ...]
    """Mechanisms for logging in, except those that use a certificate."""

    def authenticate(self, credentials: Credentials, client: Client) -> str | None:
        """Return the client's user; "": no user; None: the client is told later."""

    def rights_of(self, client: Client, user: str, vhost: str) -> Rights:
        """Return the client's rights there, according to the back end that let it in."""

    def ask(self, client: Client, questions: Collection[AuthQuestion]) -> None:
        """Ask a server; when it has answered all questions, the answers are in `client.told` and
        the client's kept events are examined again."""

    def login_by(self, client: Client, secret: str) -> Login | None:
        """Judge a login with this secret; None: a server is being asked, as by `ask`."""


class Port(Protocol):
    """The gateway as the clients of a member see it: the state that they share."""

    commands: list[Command]
    """The batch of this loop turn, in order of arrival."""
    clients: dict[int, Client]
    """The clients that the machine knows, by connection number."""
    ending: dict[int, None]
    """The clients whose close is not applied yet."""
    counters: dict[str, int]
    limits: Limits
    access: Access
    session: int
    identity: ServerIdentity
    new_name: Callable[[str], str]
    fenced: bool
    """No output of the machine may be sent."""
    paused: bool
    """The submission queue is full."""
    large_paused: bool
    """The submission queue is full of parts of large messages."""
    large_senders: dict[Client, None]
    """The clients that have sent such parts."""
    following: dict[Client, None]
    """The clients that may have a channel that follows a queue."""
    alarm: str
    """Why publishes are not accepted; empty: they are."""

    @property
    def logins(self) -> Logins:
        """Return the judge of clients' identities and rights."""

    def admit(self, client: Client, user: str, vhost: str) -> int | None:
        """Return a number for this connection, never used again; 0: the connection was refused;
        None: it waits until this is known."""

    def outstanding(self, conn: int, channel: int) -> dict[int, Held]:
        """Return the unsettled delivery tags on a channel, ascending."""

    def is_idle(self, conn: int, channel: int) -> bool:
        """Whether this member may reply, and knows of nothing that depends on the channel."""

    def mark_writable(self, client: Client) -> None:
        """Note that a client has output, or has ended."""

    def mark_drained(self, client: Client) -> None:
        """Note that a client has room again for output that the outbox holds back."""

    def note(self, counter: str, text: str) -> None:
        """Log one fact, and count it."""

    def tell(self, kind: str, text: str) -> None:
        """Log one line of this kind."""


class Client:
    """One client connection, as the shell holds it for a socket."""

    def __init__(
        self,
        port: Port,
        peer: str,
        now: float,
        encryption: Encryption | None = None,
    ) -> None:
        self.port = port
        self.peer = peer
        self.encryption = encryption  # None: the connection is not encrypted
        self.connected_at = now
        self.login = REFUSED  # by which it came in
        self.told: dict[AuthQuestion, Answer] = {}  # by a server, of what it waits for
        self.is_local = False  # from this machine's loopback address
        self.kept = KeptEvents()
        self.is_told_blocked = False
        self.conn = 0  # the machine's number for this connection; 0: it does not know it (any more)
        self.conn_was = 0  # the same, and it stays when the machine has forgotten the connection
        self.vhost = ""
        self.end_reason = ""  # why it ended, as soon as anybody knows
        self.purpose = ""  # of a client of this process; one with a socket has none that is known
        self.stays = False  # a part of this cluster: it is served, too, where no client is let in
        self.unlimited = False  # of the management API: limits of user and vhost do not hold for it
        self.keeps_copy = False  # the same, and keeps a queue the same as another broker's
        self.closing_conn = 0  # the number it had, while the machine's close-ok is awaited
        self.is_publisher = False  # brings load: its socket is not read while the member is full
        self.requests = 0  # methods sent to the machine: many of them are load as well
        self.transaction_bytes = 0  # of what its channels have not committed yet
        self.is_behind = False  # something is held back because its output was full
        self.channels: dict[int, LocalChannel] = {}
        self.closed_ahead: dict[int, int] = {}  # by number: machine's close-oks yet to come
        self.unreported: dict[int, LocalChannel] = {}  # channels with writes to report as SENT
        self.rights = Rights(port.access, "", "")  # of its user, once a virtual host is open
        proven = encryption is not None and encryption.certificate is not None
        mechanisms = (*port.logins.mechanisms, *(["EXTERNAL"] if proven else []))
        self.connection = ServerConnection(
            lambda credentials: port.logins.authenticate(credentials, self),
            port.limits, port.identity, now, mechanisms,
        )  # fmt: skip
        # Encoded once: consumer tags, and exchange with key, of what is delivered here.
        self.short_tags: dict[str, bytes] = {}
        self.short_addresses: dict[tuple[str, str], bytes] = {}

    def describe(self) -> str:
        """Return the client's identity for the log."""
        how = f" over {self.encryption.describe()}" if self.encryption else ""
        properties = self.connection.client_properties
        product = " ".join(
            str(value)[:64] for name in ("product", "version") if (value := properties.get(name))
        )
        name = properties.get("connection_name")
        who = self.purpose or f"client {self.peer}"
        return (
            f"{who}{how}: user '{self.connection.user}', vhost '{self.vhost}'"
            + (f", {product}" if product else "")
            + (f", '{name[:128]}'" if isinstance(name, str) and name else "")
        )

    # -- the shell's side ------------------------------------------------------------------------

    def next_timer(self) -> float | None:
        return self.connection.next_timer()

    def reading(self, active: bool, now: float) -> None:
        """Whether the socket is read from now on."""
        self.connection.reading(active, now)

    def take_output(self) -> bytes | bytearray:
        """Return the output to write now, which counts as sent from here on."""
        output = self.connection.take_output()
        if self.unreported and not self.connection.ahead:
            for number, channel in self.unreported.items():
                self.port.commands.append(Sent(SENT, self.conn, number, channel.unreported))
            self.unreported.clear()
        if self.is_behind:
            self.port.mark_drained(self)
        return output

    @property
    def is_full(self) -> bool:
        """Whether the client has not been reading its output."""
        return len(self.connection.out) > OUTPUT_BYTES_MAX or bool(self.connection.ahead)

    @property
    def may_be_read(self) -> bool:
        """Whether the socket should be read now: checked after every turn (back-pressure)."""
        return not self.waits_for_us and not self.is_full

    @property
    def waits_for_us(self) -> bool:
        """Whether its input waits for this member or the cluster, whatever the client does."""
        port, kept = self.port, self.kept
        return (
            self.connection.is_judged
            or (self.is_publisher and (port.paused or port.fenced))
            or (port.large_paused and self in port.large_senders)
            or kept.holds_all
            or kept.bytes > KEPT_BYTES_MAX
        )

    @property
    def wants_close(self) -> bool:
        """Close the socket once the output is written."""
        return self.connection.has_ended

    def hold(self, event: Event, questions: Collection[AuthQuestion]) -> None:
        """Hold this event, and all that follow, until a server has answered."""
        self.kept.hold(event)
        self.port.logins.ask(self, questions)

    # -- replies ---------------------------------------------------------------------------------

    def send(self, channel: int, method: str, args: tuple[Value, ...] = ()) -> None:
        self.connection.send(channel, method, args)
        self.port.mark_writable(self)

    def send_content(
        self, number: int, method: str, args: tuple[Value, ...], properties: bytes, body: Body
    ) -> None:
        self.send(number, method, args)
        connection = self.connection
        if type(body) is LargeBody:
            connection.send_large(number, properties, len(body), body.parts)
        else:
            room = connection.frame_bytes_max
            codec.append_content(connection.out, number, properties, body, room)

    def send_confirms(self, number: int, channel: LocalChannel) -> None:
        """Send the confirms of this channel that are due."""
        out = self.connection.out
        for publish_no, multiple, ack in channel.confirms.take():
            if ack:
                codec.append_ack(out, number, publish_no, multiple)
            else:
                codec.append_nack(out, number, publish_no, multiple, False)
        self.port.mark_writable(self)

    def reply_locally(self, number: int, method: str, args: tuple[Value, ...] = ()) -> None:
        """Send the gateway's own reply after those requested earlier from the machine."""
        channel = self.channels[number]
        reply = LocalReply(channel.requested, method, args)
        if channel.requested > channel.replied:
            channel.local_replies.append(reply)
        elif channel.held:
            channel.held.append(HeldReply(0, reply))
        else:
            self.send(number, method, args)

    def keep_tag(self, tag: str) -> bytes:
        """Return an encoded consumer tag, kept for the next delivery."""
        kept = self.short_tags
        if len(kept) >= _SHORT_STRINGS_KEPT_MAX:
            kept.clear()
        return kept.setdefault(tag, encode_short_string(tag))

    def keep_address(self, exchange: str, key: str) -> bytes:
        """Return exchange and key encoded, kept for the next delivery."""
        kept = self.short_addresses
        if len(kept) >= _SHORT_STRINGS_KEPT_MAX:
            kept.clear()
        address = encode_short_string(exchange) + encode_short_string(key)
        kept[(exchange, key)] = address
        return address

    # -- alarms ----------------------------------------------------------------------------------

    def tell_blocked(self) -> None:
        """Tell the client once why its publishes wait, if it wants to know."""
        if not self.is_told_blocked:
            self.is_told_blocked = True
            self.port.note("blocked", f"client {self.peer} is blocked: {self.port.alarm}")
            if has_capability(self.connection.client_properties, "connection.blocked"):
                self.send(0, "connection.blocked", (clip(self.port.alarm),))

    def tell_unblocked(self) -> None:
        """Tell the client that the alarm is over."""
        if self.is_told_blocked:
            self.is_told_blocked = False
            self.port.mark_writable(self)  # it is read again, if it was not
            if has_capability(self.connection.client_properties, "connection.blocked"):
                self.send(0, "connection.unblocked")

    # -- ends ------------------------------------------------------------------------------------

    def refuse(self, code: int, text: str, class_id: int = 10, method_id: int = 40) -> None:
        """End the connection because of a client's request; the machine forgets it."""
        self.port.note("refused", f"client {self.peer}: {text}")
        self.end_reason = self.end_reason or text
        self.connection.close(code, text, class_id, method_id)
        self.port.mark_writable(self)
        self.deregister()

    def refuse_channel(self, number: int, code: int, text: str, method: str = "") -> None:
        """End one channel because of a method on it, or of none. The close reaches the client after
        the replies to everything it sent before: the machine closes the channel in its order, and
        its close-ok is our turn."""
        channel = self.channels[number]
        if channel.pending_close is None:
            ids = (METHODS[method].class_id, METHODS[method].method_id) if method else (0, 0)
            channel.pending_close = PendingClose(code, reply_text(code, text), *ids)
            self.connection.discard_channel(number)
            self.port.commands.append(ChannelClose(CHANNEL_CLOSE, self.conn, number))

    def close_ahead(self, number: int) -> None:
        """Close an idle channel at its client's request, before the machine has; the number may be
        used again at once."""
        self.count_request()
        self.closed_ahead[number] = self.closed_ahead.get(number, 0) + 1
        self.forget_channel(number)
        self.connection.channel_close_ok(number)
        self.port.mark_writable(self)

    def was_closed_ahead(self, number: int) -> bool:
        """Whether the close-ok that just came from the machine was sent earlier."""
        left = self.closed_ahead.pop(number, 0)
        if left > 1:
            self.closed_ahead[number] = left - 1
        return left > 0

    def count_request(self) -> None:
        """Count one more request that the machine has to carry out."""
        self.requests += 1
        if self.requests > REQUESTS_LIGHT_MAX:
            self.is_publisher = True

    def forget_channel(self, number: int) -> None:
        """Forget a channel that is closed on both sides."""
        transaction = self.channels.pop(number).transaction
        self.kept.drop_channel(number)
        if transaction is not None:
            self.transaction_bytes -= transaction.clear()
        self.unreported.pop(number, None)

    def close_ok(self) -> None:
        """The machine has ended the connection at the client's request."""
        if self.closing_conn:
            self.port.clients.pop(self.closing_conn, None)
            self.closing_conn = 0
        self.connection.close_ok()
        self.port.mark_writable(self)

    def ended_by_machine(self, code: int, text: str, class_id: int, method_id: int) -> None:
        """The machine has ended the connection because of a hard error."""
        self.port.note("refused", f"client {self.peer}: {text}")
        self.end_reason = self.end_reason or text
        self._forget_all()
        self.connection.close(code, text, class_id, method_id)
        self.port.mark_writable(self)

    def force_close(self, reason: str) -> None:
        """End the connection for the member; the machine has forgotten it, or will by itself."""
        self.port.clients.pop(self.conn or self.closing_conn, None)
        self._forget_all()
        text = reply_text(errors.CONNECTION_FORCED, reason)
        self.end_reason = self.end_reason or text
        self.connection.close(errors.CONNECTION_FORCED, text)
        self.port.mark_writable(self)

    def send_away(self, reason: str) -> None:
        """End the connection for an operator; the machine forgets it."""
        self.refuse(errors.CONNECTION_FORCED, reply_text(errors.CONNECTION_FORCED, reason), 0, 0)

    def deregister(self) -> None:
        """Have the machine forget this connection, if it knows it."""
        self.port.clients.pop(self.closing_conn, None)
        if self.conn:
            self.port.commands.append(ConnectionClose(CONNECTION_CLOSE, self.conn))
            self.port.ending[self.conn] = None
            self.port.clients.pop(self.conn, None)
        self._forget_all()

    def _forget_all(self) -> None:
        self.conn = self.closing_conn = 0
        self.kept.take()
        self.told.clear()
        self.channels.clear()
        self.closed_ahead.clear()
        self.unreported.clear()
