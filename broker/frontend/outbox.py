"""The local half of clients, on the way out: holds the machine's effects until they may be sent.

How the shell calls it (see `gateway` for the whole turn):

    outbox = Outbox(gateway)
    outbox.effects([(position, effect), ...])   # as the replica hands them out, in order
    outbox.release(durable_position)            # durable at a majority of voters, and in the view
    positions = outbox.flush()                  # once per turn: writes the confirms that are due;
                                                # returns the positions of the publishes confirmed
                                                # here and now, for the log's CONFIRM record
    outbox.fence() / outbox.unfence()           # may this member send? fenced at the start. Cheap
                                                # and idempotent: call it every turn if you like

While fenced, the outbox sends nothing of the machine's: effects and releases wait in order, and
`unfence` carries them out. A new session of this member discards everything that waits for the old
one.

Order on a channel:

- Replies, errors and ends of channels are sent in the machine's order. One that acknowledges a
  durable change waits for its position, and every later one waits behind it.
- Deliveries and returns do not wait, unless an older delivery, consume-ok or get-ok waits.
- Confirms wait for their position only; a return precedes its confirm; the end of a channel follows
  its confirms.

Messages for a client that does not read are also held back, uncopied, until `take_output`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TypeAlias, cast

from broker.amqp import codec
from broker.amqp.handshake import has_capability
from broker.frontend.channel import HeldReply, LocalChannel, LocalReply, Outgoing, PendingClose
from broker.frontend.client import OUTPUT_BYTES_MAX, Client
from broker.frontend.gateway import Gateway
from broker.machine.effects import (
    CancelNotify,
    ChannelError,
    Confirm,
    ConnectionError_,
    Defined,
    DeliverEffect,
    Effect,
    GetEmpty,
    GetOk,
    Reply,
    Return,
    SessionStarted,
)
from broker.machine.publishing.queue_numbers import with_queue_numbers
from broker.replication.durable_gate import DurableGate, acknowledges_durable
from broker.waiting.bodies import LargeBody

RUN_MIN = 3
"""Fewer deliveries are written one by one."""
_CLOSE_OK = "channel.close-ok"
_Confirm: TypeAlias = tuple[Client, int, LocalChannel, int, bool]
"""Client, number of the channel, channel, publish number, ack."""


class Outbox:
    """Carries out effects for the clients of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._clients = gateway.clients
        self._backlog: list[tuple[int, Effect]] = []
        self._gate: DurableGate[_Confirm | Defined] = DurableGate()
        self._with_held: dict[LocalChannel, tuple[Client, int]] = {}  # channels with `held`
        self._fresh: dict[LocalChannel, tuple[Client, int]] = {}  # channels with fresh confirms
        self._confirmed: list[int] = []
        self.probed: list[float] = []  # when publishes came whose confirms are due now

    # -- the shell's side ------------------------------------------------------------------------

    @property
    def durable_position(self) -> int:
        """Return the position up to which acknowledgements were released."""
        return self._gate.released

    def fence(self) -> None:
        self._gateway.fenced = True

    def unfence(self) -> None:
        """Carry out the waiting effects and releases."""
        if not self._gateway.fenced:
            return
        self._gateway.fenced = False
        backlog, self._backlog = self._backlog, []
        self.effects(backlog)
        self._release()

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        if self._gateway.fenced:
            self._keep(effects)
            return
        handlers, runs = _HANDLERS, _RUNS
        at, end = 0, len(effects)
        while at < end:
            position, effect = effects[at]
            kind = type(effect)
            taken = runs[kind](self, effects, at) if kind in runs else 0
            if not taken:
                handlers[kind](self, position, effect)
                taken = 1
            at += taken

    def release(self, durable_position: int) -> None:
        """Everything up to this position is durable."""
        if self._gate.release(durable_position) and not self._gateway.fenced:
            self._release()

    def flush(self) -> list[int]:
        """Write the due confirms in as few methods as possible."""
        if self._gateway.fenced:
            return []
        for client in self._gateway.take_drained():
            client.is_behind = False
            for number, channel in list(client.channels.items()):
                if channel in self._with_held:
                    self._write_held(client, number, channel)
        if self._fresh:
            for channel, (client, number) in self._fresh.items():
                if client.channels.get(number) is channel:
                    client.send_confirms(number, channel)
            self._fresh.clear()
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    def session_started(self, session: int) -> None:
        """Discard everything that waits for clients of an older session."""
        if session != self._gateway.session:
            self._gateway.session_started(session)
        self._backlog.clear()
        self._gate.clear()
        self._with_held.clear()
        self._fresh.clear()

    def set_aside(self) -> None:
        """Discard releases and waiting effects, which belong to a discarded history."""
        self.session_started(0)
        self._gate.begin_anew()

    # -- waiting ---------------------------------------------------------------------------------

    def _keep(self, effects: list[tuple[int, Effect]]) -> None:
        for position, effect in effects:
            if isinstance(effect, SessionStarted):
                self._on_session(position, effect)
            else:
                self._backlog.append((position, effect))

    def _release(self) -> None:
        for position, due in self._gate.take():
            if isinstance(due, Defined):
                self._gateway.on_defined(due)
            else:
                self._confirm_due(position, due)
        for channel, (client, number) in list(self._with_held.items()):
            self._write_held(client, number, channel)

    def _write_held(self, client: Client, number: int, channel: LocalChannel) -> None:
        held = channel.held
        if client.channels.get(number) is not channel:
            held.clear()  # it has ended with its connection, which may have been full
        while held and self._gate.is_open(held[0].position):
            if client.is_full:
                client.is_behind = True
                return
            outgoing = held.popleft().outgoing
            channel.blocking -= _is_blocking(outgoing)
            self._write(client, number, channel, outgoing)
        if not held:
            self._with_held.pop(channel, None)

    def _hold_back(
        self, client: Client, number: int, channel: LocalChannel, position: int, outgoing: Outgoing
    ) -> None:
        channel.held.append(HeldReply(position, outgoing))
        channel.blocking += _is_blocking(outgoing)
        self._with_held[channel] = (client, number)

    def _in_order(
        self, client: Client, number: int, channel: LocalChannel, position: int, outgoing: Outgoing
    ) -> None:
        """Send output now, or after all that waits. `position` 0: it need not itself be durable."""
        if channel.held or not self._gate.is_open(position) or client.is_full:
            client.is_behind = client.is_behind or client.is_full
            self._hold_back(client, number, channel, position, outgoing)
        else:
            self._write(client, number, channel, outgoing)

    # -- effects ---------------------------------------------------------------------------------

    def _on_deliver(self, _position: int, effect: DeliverEffect) -> None:
        client = self._clients.get(effect[0])
        if client is None:
            return
        number = effect[1]
        channel = client.channels.get(number)
        if channel is None:
            return
        is_full = len(client.connection.out) > OUTPUT_BYTES_MAX or bool(client.connection.ahead)
        if is_full or channel.blocking:
            client.is_behind = client.is_behind or is_full
            self._hold_back(client, number, channel, 0, effect)
        else:
            self._deliver(client, number, channel, effect)

    def _deliver(
        self, client: Client, number: int, channel: LocalChannel, effect: DeliverEffect
    ) -> None:
        _, _, tag, delivery_tag, redelivered, exchange, key, properties, body, no_ack = effect
        short_tag = client.short_tags.get(tag) or client.keep_tag(tag)
        address = client.short_addresses.get((exchange, key))
        if address is None:
            address = client.keep_address(exchange, key)
        connection = client.connection
        if tag in channel.numbered:
            held = self._gateway.outstanding(client.conn, number).get(delivery_tag)
            if held is not None:
                cluster_id = self._gateway.identity.cluster_id
                numbered = with_queue_numbers(properties, cluster_id, held)
                if codec.content_header_fits(numbered, connection.frame_bytes_max):
                    properties = numbered
        if type(body) is LargeBody:
            about = (tag, delivery_tag, redelivered, exchange, key)
            client.send_content(number, "basic.deliver", about, properties, body)
        else:
            codec.append_deliver(
                connection.out, number, short_tag, delivery_tag, redelivered, address, properties,
                body, connection.frame_bytes_max,
            )  # fmt: skip
        if no_ack:
            channel.unreported = delivery_tag
            client.unreported[number] = channel
        self._gateway.mark_writable(client)

    def _on_deliveries(self, effects: list[tuple[int, Effect]], at: int) -> int:
        """Deliveries to one consumer that follow each other, with what they have in common looked
        up once; return how many, 0: one at a time."""
        first = cast("DeliverEffect", effects[at][1])
        conn, number, tag, _, _, exchange, key, _, _, no_ack = first
        client = self._clients.get(conn)
        channel = client.channels.get(number) if client is not None else None
        if client is None or channel is None or channel.blocking or tag in channel.numbered:
            return 0
        connection = client.connection
        room = OUTPUT_BYTES_MAX - len(connection.out)
        run: list[codec.Delivery] = []
        for _, effect in islice(effects, at, None):
            if type(effect) is not DeliverEffect or room < 0:
                break
            of, on, by, delivery_tag, redelivered, name, routing, properties, body, sent = effect
            if of != conn or on != number or by != tag or sent != no_ack:
                break
            if routing != key or name != exchange:
                break
            if type(body) is LargeBody or connection.ahead:
                break  # it goes by itself
            room -= len(body)
            run.append((delivery_tag, redelivered, properties, body))
        if len(run) < RUN_MIN:
            return 0
        address = client.short_addresses.get((exchange, key)) or client.keep_address(exchange, key)
        short_tag = client.short_tags.get(tag) or client.keep_tag(tag)
        frame_max = connection.frame_bytes_max
        codec.append_deliveries(connection.out, number, short_tag, address, run, frame_max)
        if no_ack:
            channel.unreported = run[-1][0]
            client.unreported[number] = channel
        self._gateway.mark_writable(client)
        return len(run)

    def _on_confirms(self, effects: list[tuple[int, Effect]], at: int) -> int:
        """Like `_on_deliveries`, for consecutive confirms of one channel."""
        first = cast("Confirm", effects[at][1])
        conn, number = first.conn, first.chan
        client = self._clients.get(conn)
        channel = client.channels.get(number) if client is not None else None
        if client is None or channel is None:
            return 0
        released, hold = self._gate.released, self._gate.hold
        taken = 0
        for position, effect in islice(effects, at, None):
            if type(effect) is not Confirm:
                break
            of, on, publish_no, _, ack = effect
            if of != conn or on != number or position <= released:
                break
            hold(position, (client, number, channel, publish_no, ack))
            channel.durable_need = position
            taken += 1
        return taken

    def _on_confirm(self, position: int, effect: Confirm) -> None:
        conn, number, publish_no, _, ack = effect
        client = self._clients.get(conn)
        channel = None if client is None else client.channels.get(number)
        if client is None or channel is None:
            return
        confirm = client, number, channel, publish_no, ack
        if position <= self._gate.released:
            self._confirm_due(position, confirm)
        else:
            self._gate.hold(position, confirm)
            channel.durable_need = position

    def _confirm_due(self, position: int, confirm: _Confirm) -> None:
        client, number, channel, publish_no, ack = confirm
        fresh = channel.confirms.fresh
        if not fresh:
            self._fresh[channel] = client, number
        fresh.append((publish_no, ack))
        if publish_no == channel.probe_no:
            channel.probe_no = 0
            self.probed.append(channel.probed_at)
        if ack and client.channels.get(number) is channel:
            self._confirmed.append(position)

    def _on_reply(self, position: int, effect: Reply) -> None:
        client = self._clients.get(effect.conn)
        if effect.chan == 0:
            self._gateway.ending.pop(effect.conn, None)
        if client is None:
            return
        if effect.chan == 0:
            client.close_ok()
            return
        closes = effect.method == _CLOSE_OK
        if closes and client.was_closed_ahead(effect.chan):
            return
        channel = client.channels.get(effect.chan)
        if channel is None:
            return
        if closes:
            self._on_end(client, effect.chan, channel, effect)
            return
        need = 0
        if acknowledges_durable(effect):
            need = channel.durable_need = position
        self._replied(client, effect.chan, channel, need, effect)

    def _replied(
        self,
        client: Client,
        number: int,
        channel: LocalChannel,
        position: int,
        effect: Reply | GetOk | GetEmpty,
    ) -> None:
        """Send one more reply of the machine, and then the gateway's replies that waited for it."""
        self._in_order(client, number, channel, position, effect)
        channel.replied += 1
        local = channel.local_replies
        while local and local[0].after <= channel.replied:
            self._in_order(client, number, channel, 0, local.popleft())

    def _on_get(self, _position: int, effect: GetOk | GetEmpty) -> None:
        client = self._clients.get(effect.conn)
        channel = None if client is None else client.channels.get(effect.chan)
        if client is not None and channel is not None:
            self._replied(client, effect.chan, channel, 0, effect)

    def _on_channel_error(self, _position: int, effect: ChannelError) -> None:
        client = self._clients.get(effect.conn)
        channel = None if client is None else client.channels.get(effect.chan)
        if client is not None and channel is not None:
            client.connection.discard_channel(effect.chan)
            self._on_end(client, effect.chan, channel, effect)

    def _on_end(
        self, client: Client, number: int, channel: LocalChannel, effect: Reply | ChannelError
    ) -> None:
        """The machine has closed the channel, and sends nothing more for it. Its earlier confirms
        and replies are sent first."""
        if channel.pending_close is None:
            channel.pending_close = PendingClose(0, "", 0, 0)  # what it still sends is not for us
        self._in_order(client, number, channel, channel.durable_need, effect)

    def _on_connection_error(self, _position: int, effect: ConnectionError_) -> None:
        conn, code, text, class_id, method_id = effect
        self._gateway.ending.pop(conn, None)
        client = self._clients.pop(conn, None)
        if client is not None:
            client.ended_by_machine(code, text, class_id, method_id)

    def _on_return(self, _position: int, effect: Return) -> None:
        conn, number, code, text, exchange, key, properties, body = effect
        client = self._clients.get(conn)
        if client is not None and number in client.channels:
            about = (code, text, exchange, key)
            client.send_content(number, "basic.return", about, properties, body)

    def _on_cancel(self, _position: int, effect: CancelNotify) -> None:
        """Send it behind the waiting deliveries and replies, which may include the consumer's
        consume-ok."""
        client = self._clients.get(effect.conn)
        channel = None if client is None else client.channels.get(effect.chan)
        if client is None or channel is None:
            return
        if has_capability(client.connection.client_properties, "consumer_cancel_notify"):
            self._in_order(client, effect.chan, channel, 0, effect)

    def _on_defined(self, position: int, effect: Defined) -> None:
        """Not for a client: report a durable definition to its requester."""
        if self._gate.is_open(position):
            self._gateway.on_defined(effect)
        else:
            self._gate.hold(position, effect)

    def _on_session(self, _position: int, effect: SessionStarted) -> None:
        self.session_started(effect.session)

    # -- bytes -----------------------------------------------------------------------------------

    def _write(
        self, client: Client, number: int, channel: LocalChannel, outgoing: Outgoing
    ) -> None:
        if client.channels.get(number) is not channel:
            return
        match outgoing:
            case DeliverEffect():
                self._deliver(client, number, channel, outgoing)
            case Reply(method="basic.recover-ok"):
                if channel.recovers.popleft():
                    client.send(number, outgoing.method)
            case Reply(method="basic.qos-ok"):
                client.send(number, *channel.qos_replies.popleft())
            case Reply(method="channel.close-ok"):
                self._end(client, number, channel, channel.pending_close)
            case GetOk():
                _, _, tag, redelivered, exchange, key, count, properties, body, no_ack = outgoing
                about = (tag, redelivered, exchange, key, count)
                client.send_content(number, "basic.get-ok", about, properties, body)
                if no_ack:
                    channel.unreported = tag
                    client.unreported[number] = channel
            case GetEmpty():
                client.send(number, "basic.get-empty")
            case CancelNotify(consumer_tag=tag):
                client.send(number, "basic.cancel", (tag, True))
            case ChannelError(_, _, code, text, class_id, method_id):
                self._end(client, number, channel, PendingClose(code, text, class_id, method_id))
            case Reply(method=method, args=args) | LocalReply(method=method, args=args):
                client.send(number, method, args)

    def _end(
        self, client: Client, number: int, channel: LocalChannel, pending_close: PendingClose | None
    ) -> None:
        if channel in self._fresh:
            del self._fresh[channel]
            client.send_confirms(number, channel)
        client.forget_channel(number)
        if pending_close is not None and pending_close.code:
            self._gateway.note(
                "refused", f"client {client.peer}: channel {number}: {pending_close.text}"
            )
            client.connection.close_channel(number, *pending_close)
        else:
            client.connection.channel_close_ok(number)
        self._gateway.mark_writable(client)


def _is_blocking(outgoing: Outgoing) -> bool:
    """Whether deliveries may not overtake this: the client would not know their consumer, a report
    naming the delivery's tag would also vouch for the get's, and deliveries keep their order."""
    return isinstance(outgoing, DeliverEffect | GetOk) or (
        isinstance(outgoing, Reply) and outgoing.method == "basic.consume-ok"
    )


_RUNS: dict[type[Effect], Callable[[Outbox, list[tuple[int, Effect]], int], int]] = {
    DeliverEffect: Outbox._on_deliveries,
    Confirm: Outbox._on_confirms,
}
_Handler = Callable[[Outbox, int, Effect], None]
_HANDLERS: dict[type[Effect], _Handler] = {
    DeliverEffect: cast("_Handler", Outbox._on_deliver),
    Confirm: cast("_Handler", Outbox._on_confirm),
    Reply: cast("_Handler", Outbox._on_reply),
    GetOk: cast("_Handler", Outbox._on_get),
    GetEmpty: cast("_Handler", Outbox._on_get),
    Return: cast("_Handler", Outbox._on_return),
    ChannelError: cast("_Handler", Outbox._on_channel_error),
    ConnectionError_: cast("_Handler", Outbox._on_connection_error),
    CancelNotify: cast("_Handler", Outbox._on_cancel),
    SessionStarted: cast("_Handler", Outbox._on_session),
    Defined: cast("_Handler", Outbox._on_defined),
}
