"""Simulated clients of one member: they publish, consume, settle, reconnect, and close.

They send commands and receive effects, as gateway and outbox would pass them on.  Connection
numbers are unique in the whole run, so a connection and its message's number name that message for
good.  Some publishers number their messages: they resend unconfirmed ones by another connection,
and those that a crashed member's publisher had unconfirmed are sent again by another member's.
Some have messages delayed, some publish to a last-value queue, or to one whose messages have
groups, some send bodies in parts, and some of the consumers only browse.  Separate programs read
streams (`readers`), keep letters waiting (`letters`), and work in transactions (`dealers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

from broker.machine.commands import (
    ACK,
    BODY_PART,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    CONSUME,
    EXCHANGE_DECLARE,
    IN_PARTS,
    NACK,
    PERSISTENT,
    PUBLISH,
    QUEUE_BIND,
    QUEUE_DECLARE,
    RECOVER,
    SENT,
    Ack,
    BodyPart,
    ChannelClose,
    ChannelOpen,
    Command,
    ConnectionClose,
    ConnectionOpen,
    Consume,
    ExchangeDeclare,
    Nack,
    Publish,
    QueueBind,
    QueueDeclare,
    Recover,
    Sent,
    Table,
)
from broker.machine.effects import ChannelError, Confirm, DeliverEffect, Effect, Reply
from broker.machine.publishing.producers import ID, SEQUENCE
from broker.machine.requests.delay_header import DELAY
from broker.machine.requests.properties import with_header
from tests.sim.broker.operator import GRAVE, SimOperator
from tests.sim.clients.dealers import DEALT, SimDealer
from tests.sim.clients.histories import SimHistory
from tests.sim.clients.letters import KEPT, MAIL, WAYS_CHAN, LetterPlan, SimWays
from tests.sim.clients.link_plan import DESTINATION, FAR, SPARED
from tests.sim.clients.links import SimLinks
from tests.sim.clients.messages import MESSAGE, MessageId, message_id
from tests.sim.clients.readers import STREAM, SimReaders, StreamPlan
from tests.sim.world.random_tape import Tape

UNCONFIRMED_MAX = 50
LATE = "late"
"""An exchange that delays; only durable queues are bound to it, so confirmed messages have one."""
DELAY_MS_MAX = 400
LATEST, KEY = "latest", "key"
"""A queue that keeps the last message of each key, and the header with the key."""
KEYS = 4
GROUPED, GROUP = "grouped", "group"
"""A queue whose messages have groups, and the header with the group."""
GROUPS = 3
BROWSER = "browser of "
"""Begins the tag of a consumer that browses."""
Orphans = list[Publish]
"""The messages that numbering publishers of crashed members had unconfirmed."""


class Queue(NamedTuple):
    name: str
    durable: bool


class Replica(Protocol):
    """The keeper of a queue's replica (`replicas.SimReplica`)."""

    def begin(self) -> None: ...
    def take_commands(self) -> list[Command]: ...
    def receives(self, effect: Effect) -> bool: ...
    @property
    def settled(self) -> bool: ...


class Consumer:
    """One channel that consumes from one queue."""

    def __init__(
        self, chan: int, queue: Queue, no_ack: bool, prefetch: int, browses: bool = False
    ) -> None:
        self.chan, self.queue, self.no_ack, self.prefetch = chan, queue, no_ack, prefetch
        self.browses = browses
        self.generation = 0
        self.unacked: dict[int, MessageId] = {}
        self.closing = False
        self.recovering = False

    def forget(self) -> None:
        self.unacked.clear()
        self.closing = self.recovering = False


class SimClients:
    """The clients of one incarnation; `later` runs a call after a while unless that has ended."""

    def __init__(
        self,
        member: str,
        tape: Tape,
        numbers: Iterator[int],
        later: Callable[[float, Callable[[], None]], None],
        broken: Callable[[str, str], None],
        calm: Callable[[], bool],
        orphans: Orphans,
        of_all: Tape,
        history: SimHistory,
        replica: Replica | None = None,
        links: SimLinks | None = None,
        dealer: SimDealer | None = None,
    ) -> None:
        """`of_all` is a tape of the run, from which every member draws the same."""
        self.history, self.replica = history, replica
        self.links = links if links is not None and links.used else None
        self.dealer = dealer
        self.member, self.tape, self.numbers = member, tape, numbers
        self.orphans = orphans
        self.later, self.broken = later, broken
        self.calm = calm  # the chaos is over: consume no more, so that the run comes to an end
        self.commands: list[Command] = []
        self.session: int = 0
        self.blocked = False  # by an alarm
        self.published = 0  # messages that the publisher sent as new ones
        self.publisher = 0  # its connection
        self.publish_no = 0  # its last one, including repeated ones
        self.producer = ""  # its producer name
        self.sequence = 0  # its last number
        self.consuming = 0  # the consumers' connection
        self.unconfirmed: dict[int, Publish] = {}  # by publish number
        self.consumers: dict[int, Consumer] = {}
        self._sending = False
        self._unsent: list[Command] = []
        self.queues = (Queue("shared", True), Queue(f"own-{member}", True), Queue("loose", False))
        spared = f"grave|replica|{SPARED}" if self.links is not None else "grave|replica"
        if dealer is not None:
            spared += f"|{DEALT}"
        self.operator = SimOperator(tape.fork("operator"), spared)
        self.numbering = tape.fork("numbering").chance(0.4)
        self._delays = tape.fork("delays")
        self.delaying = self._delays.chance(0.4)
        self.ways = SimWays(tape.fork("ways"), LetterPlan.draw(of_all.fork("letters")))
        self.readers = SimReaders(
            member, tape.fork("readers"), numbers, later, broken, calm,
            StreamPlan.draw(of_all.fork("stream")), history,
        )  # fmt: skip
        self._last_values = tape.fork("last values")
        self.replacing = self._last_values.chance(0.4)
        self._groups = tape.fork("groups")
        self.grouping = self._groups.chance(0.4)
        self._keeping = of_all.fork("kept groups").chance(0.5)
        self._bodies = tape.fork("bodies")
        self.parting = of_all.fork("bodies in parts").chance(0.25)
        self._browsing = tape.fork("browsing")
        self.browsing = self._browsing.chance(0.4)

    # -- what they ask for -----------------------------------------------------------------------

    def session_started(self, session: int) -> None:
        """All old connections are gone; the clients reconnect."""
        self.session = session
        self.commands, self._unsent = [], []
        self.history.consumers_lost(self.consuming)
        self._connect()
        self._consume()
        self.readers.begin()
        if self.replica is not None:
            self.replica.begin()
        if self.links is not None:
            self.links.begin()
        if self.dealer is not None:
            self.dealer.begin()

    def _connect(self) -> None:
        """Connect the publisher anew, and declare what it needs."""
        self.history.publisher_lost()
        again = list(self.unconfirmed.values()) if self.numbering else []
        self.unconfirmed.clear()
        self.published = self.publish_no = 0
        self.publisher = next(self.numbers)
        self.producer = self.producer or f"p{self.publisher}"
        self.commands += [
            ConnectionOpen(CONNECTION_OPEN, self.publisher, "/", "guest", "p:1"),
            ChannelOpen(CHANNEL_OPEN, self.publisher, 1),
        ]
        queues = (Queue(GRAVE, True), *self.queues)
        self.commands += [self._declare(self.publisher, 1, queue) for queue in queues]
        if self.delaying:
            self.commands += self._declare_delaying(*self.queues)
        self.commands += self.ways.begin(self.publisher)
        if self.readers.plan.used:
            self.commands.append(self.readers.plan.declare(self.publisher, 1))
        if self.replacing:
            self.commands.append(self._declare(self.publisher, 1, Queue(LATEST, True)))
        if self.grouping:
            self.commands.append(self._declare(self.publisher, 1, Queue(GROUPED, True)))
        if self.links is not None:
            moved = (Queue(name, True) for name in self.links.plan.queues)
            self.commands += [self._declare(self.publisher, 1, queue) for queue in moved]
            self.commands += self.links.define(self.publisher)
        for sent in again:
            self._publish(sent)

    def _declare_delaying(self, *queues: Queue) -> list[Command]:
        arguments: Table = {"x-delayed-type": "direct"}
        declare = ExchangeDeclare(
            EXCHANGE_DECLARE, self.publisher, 1, LATE, "x-delayed-message", False, True, False,
            False, True, arguments,
        )  # fmt: skip
        durable = [queue for queue in queues if queue.durable]
        return [
            declare,
            *(self._declare(self.publisher, 1, queue) for queue in durable),
            *(QueueBind(QUEUE_BIND, self.publisher, 1, q, LATE, q, True, {}) for q, _ in durable),
        ]

    def reconnect(self) -> None:
        """The publisher disconnects, whatever it waits for, and reconnects."""
        if self.session:
            self.commands.append(ConnectionClose(CONNECTION_CLOSE, self.publisher))
            self._connect()

    def send_elsewhere(self) -> None:
        """Send unconfirmed messages by another member as well, as a client does that believes this
        one lost: the first to arrive counts, and each gets the same answer (G23)."""
        if self.numbering:
            self.orphans += self.unconfirmed.values()

    def abort(self) -> None:
        """The consumers disconnect while holding messages, and perhaps reconnect."""
        if self.session and not self.calm():
            self.commands += [*self._unsent, ConnectionClose(CONNECTION_CLOSE, self.consuming)]
            self._unsent = []
            self._consume()
            self.readers.hang_up()
            if self.dealer is not None:
                self.dealer.hang_up()

    def _consume(self) -> None:
        """Open a connection with some consumers."""
        tape = self.tape
        self.history.consumers_lost(self.consuming)
        self.consuming = next(self.numbers)
        self.consumers = {}
        if self.calm():
            return
        self.commands.append(ConnectionOpen(CONNECTION_OPEN, self.consuming, "/", "guest", "p:2"))
        for chan in range(1, 1 + tape.number(0, 3)):
            queue = tape.pick(self.queues)
            if self.replacing and self._last_values.chance(0.3):
                queue = Queue(LATEST, True)
            if self.grouping and self._groups.chance(0.5):
                queue = Queue(GROUPED, True)
            browses = self.browsing and self._browsing.chance(0.4)
            no_ack, prefetch = tape.chance(0.15), tape.pick((0, 1, 3, 10))
            self._begin(Consumer(chan, queue, no_ack, prefetch, browses=browses))
        if self.ways.plan.used:
            for chan, name in ((4, KEPT), (5, MAIL)):
                self._begin(Consumer(chan, Queue(name, True), False, 3))
        if self.links is not None:
            self._begin(Consumer(6, Queue(DESTINATION, True), False, 3))

    def _begin(self, consumer: Consumer) -> None:
        self.consumers[consumer.chan] = consumer
        self.commands += self._open(consumer)

    def _declare(self, conn: int, chan: int, queue: Queue) -> Command:
        if queue.name == KEPT:
            return self.ways.plan.declare(conn, chan)[0]
        letters: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVE}
        if queue.name == LATEST:
            letters["qpid.last_value_queue_key"] = KEY
        if queue.name == GROUPED:
            letters |= {"qpid.group_header_key": GROUP, "qpid.shared_msg_group": not self._keeping}
        return QueueDeclare(
            QUEUE_DECLARE, conn, chan, queue.name, False, queue.durable, False, False, False,
            letters if queue.name != GRAVE else {},
        )  # fmt: skip

    def _open(self, consumer: Consumer) -> list[Command]:
        consumer.generation += 1
        consumer.forget()
        self.history.consumes(self.consuming, consumer.chan, consumer.queue.name)
        kind = BROWSER if consumer.browses else ""
        tag = f"{kind}{consumer.queue.name}/{consumer.chan}.{consumer.generation}"
        arguments: Table = {"x-filter-no-consume": True} if consumer.browses else {}
        return [
            ChannelOpen(CHANNEL_OPEN, self.consuming, consumer.chan),
            self._declare(self.consuming, consumer.chan, consumer.queue),
            Consume(
                CONSUME, self.consuming, consumer.chan, consumer.queue.name, tag, False,
                consumer.no_ack, False, False, arguments, consumer.prefetch,
            ),
        ]  # fmt: skip

    def publish(self, payload: bytes) -> bool:
        """Publish one more; False without a session, blocked, or when too much is under way."""
        if self.blocked or not self.session or len(self.unconfirmed) >= UNCONFIRMED_MAX:
            return False
        while self.orphans and self.numbering:
            orphan = self.orphans.pop(0)
            if orphan.exchange == LATE:  # what it needs may not have been declared in time
                self.commands += self._declare_delaying(Queue(orphan.key, True))
            elif orphan.key in (LATEST, GROUPED):
                self.commands.append(self._declare(self.publisher, 1, Queue(orphan.key, True)))
            self._publish(orphan)
        self.published += 1
        queue = self.tape.pick(self.queues)
        flags = PERSISTENT if self.tape.chance(0.8) else 0
        properties = b""
        replaces = self.replacing and self._last_values.chance(0.3)
        if replaces:
            queue = Queue(LATEST, True)
        elif self.grouping and self._groups.chance(0.4):
            queue = Queue(GROUPED, True)
        if self.numbering:
            # A cold start forgets their numbers too; sent again they are other messages.
            queue, flags = queue if queue.durable else self.queues[0], PERSISTENT
            self.sequence += 1
            properties = with_header(b"\x00\x00", ID, self.producer)
            properties = with_header(properties, SEQUENCE, self.sequence)
        if self.readers.publishes:
            queue = Queue(STREAM, True)
            properties = self.readers.valued(properties)
        elif self.ways.publishes:
            queue = Queue(KEPT, True)
        body = MESSAGE.pack(self.publisher, self.published) + payload
        exchange = ""
        links = self.links if queue in self.queues else None
        if links is not None and not links.publishes:
            links = None
        if replaces:
            key = self._last_values.number(1, KEYS)
            properties = with_header(properties or b"\x00\x00", KEY, key)
        elif queue.name == GROUPED:
            group = self._groups.number(1, GROUPS)
            properties = with_header(properties or b"\x00\x00", GROUP, group)
        elif links is not None:
            pass
        elif self.delaying and queue in self.queues and queue.durable and self._delays.chance(0.4):
            exchange = LATE
            properties = with_header(properties, DELAY, self._delays.number(1, DELAY_MS_MAX))
        sent = Publish(PUBLISH, 0, 1, 0, exchange, queue.name, flags, properties, body)
        self._publish(sent if links is None else links.message(properties, body))
        if not self.calm():
            self.commands += [*self.operator.whim(), *self.ways.whim()]
        return True

    def _publish(self, sent: Publish) -> None:
        self.publish_no += 1
        sent = sent._replace(conn=self.publisher, publish_no=self.publish_no)
        self.unconfirmed[self.publish_no] = sent
        if sent.exchange != FAR:  # a history names the queue that is to take it
            self.history.publishes(sent)
        self.commands += self._in_parts(sent) if self.parting else (sent,)

    def _in_parts(self, sent: Publish) -> list[Command]:
        """Perhaps send the beginning of its body first, as for a large one."""
        _, conn, chan, *_, body = sent
        cuts = sorted(
            {self._bodies.number(1, len(body) - 1) for _ in range(self._bodies.number(0, 3))}
        )
        if not cuts:
            return [sent]
        parts = [bytes(body[start:end]) for start, end in pairwise((0, *cuts))]
        rest = sent._replace(flags=sent.flags | IN_PARTS, body=body[cuts[-1] :])
        return [*(BodyPart(BODY_PART, conn, chan, part) for part in parts), rest]

    def crashed(self) -> None:
        """A publisher that numbers its messages continues at another member."""
        self.history.member_ended(crashed=True)
        if self.numbering:
            self.orphans += self.unconfirmed.values()

    def take_commands(self) -> list[Command]:
        self.history.flush()
        commands, self.commands = self.commands, []
        copies = self.replica.take_commands() if self.replica is not None else []
        moves = self.links.take_commands() if self.links is not None else []
        deals = self.dealer.take_commands() if self.dealer is not None else []
        return commands + self.readers.take_commands() + copies + moves + deals

    def end_of_chaos(self) -> bool:
        """End all that could block others; return whether that takes commands."""
        opening = self.ways.open_for_good() if self.session else []
        self.commands += opening
        return bool(opening)

    # -- what they receive -----------------------------------------------------------------------

    def receive(self, effect: Effect) -> None:
        if self.replica is not None and self.replica.receives(effect):
            return
        if self.links is not None and self.links.receives(effect):
            return
        if self.dealer is not None and self.dealer.receives(effect):
            return
        match effect:
            case Confirm(conn, _, number, _, ack) if conn == self.publisher:
                self.unconfirmed.pop(number, None)
                self.history.answered(number, ack=ack)
            case DeliverEffect() if effect.conn == self.consuming:
                self._delivered(self.consumers[effect.chan], effect)
            case DeliverEffect() | Reply() if effect.conn == self.readers.conn:
                self.readers.receive(effect)
            case ChannelError(conn, chan) if (conn, chan) == (self.publisher, WAYS_CHAN):
                self.commands += self.ways.begin_again()
            case ChannelError(conn, chan, code, text):
                self.broken("G15", f"{self.member}: {conn}.{chan} refused: {code} {text}")
            case Reply(conn, chan, method) if conn == self.consuming and chan in self.consumers:
                self._answered(self.consumers[chan], method)
            case _:
                pass

    def _answered(self, consumer: Consumer, method: str) -> None:
        if method == "basic.recover-ok":
            consumer.unacked.clear()
            consumer.recovering = False
        elif method == "channel.close-ok":
            self._unsent += self._open(consumer)
            self._send_soon()

    def _delivered(self, consumer: Consumer, d: DeliverEffect) -> None:
        tape, conn, chan, tag = self.tape, self.consuming, consumer.chan, d.delivery_tag
        self.history.received(d)
        if consumer.no_ack and not consumer.closing:
            self._send(Sent(SENT, conn, chan, tag))
        if consumer.no_ack:
            return
        consumer.unacked[tag] = message_id(d.body)
        if consumer.closing or consumer.recovering:
            return
        if self.calm():
            for one in self.consumers.values():
                one.closing = True
            self._send(ConnectionClose(CONNECTION_CLOSE, conn))
            return
        what = tape.random.random()
        if what < 0.70:
            self._ack(consumer, tag, multiple=False)
        elif what < 0.82:
            self._send(Nack(NACK, conn, chan, tag, False, what < 0.79))
        else:
            self.later(
                tape.between(0.0, 0.1), lambda: self._tidy(conn, consumer, consumer.generation)
            )
            return
        del consumer.unacked[tag]

    def _tidy(self, conn: int, consumer: Consumer, generation: int) -> None:
        """Settle the kept messages, or return all of them."""
        if conn != self.consuming or generation != consumer.generation or not consumer.unacked:
            return
        if consumer.closing or consumer.recovering:
            return
        what = self.tape.random.random()
        chan, tags = consumer.chan, list(consumer.unacked)
        if what < 0.7:
            tag = self.tape.pick(tags)
            self._ack(consumer, tag, multiple=True)
            for one in [one for one in tags if one <= tag]:
                del consumer.unacked[one]
        elif what < 0.8:
            self._send(Nack(NACK, conn, chan, tags[-1], True, True))
            consumer.unacked.clear()
        elif what < 0.9:
            consumer.recovering = True
            self._send(Recover(RECOVER, conn, chan, True))
        elif what < 0.98:
            consumer.closing = True
            self._send(ChannelClose(CHANNEL_CLOSE, conn, chan))
        else:
            self._unsent.append(ConnectionClose(CONNECTION_CLOSE, conn))
            self.commands += self._unsent
            self._unsent = []
            self._consume()
        if consumer.unacked:
            self.later(self.tape.between(0.0, 0.1), lambda: self._tidy(conn, consumer, generation))

    def _ack(self, consumer: Consumer, tag: int, *, multiple: bool) -> None:
        self.history.acks(self.consuming, consumer.chan, tag, multiple=multiple)
        self._send(Ack(ACK, self.consuming, consumer.chan, tag, multiple))

    def _send(self, command: Command) -> None:
        self._unsent.append(command)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._sending:
            self._sending = True
            self.later(self.tape.gap(0.002), self._send_now)

    def _send_now(self) -> None:
        self._sending = False
        self.commands += self._unsent
        self._unsent = []

    @property
    def idle(self) -> bool:
        """Whether they wait for nothing but deliveries."""
        waits = self.commands or self.readers.commands or self._unsent or self.unconfirmed
        level = self.replica is None or self.replica.settled
        level = level and (self.dealer is None or self.dealer.settled)
        return not waits and level and (self.links is None or self.links.settled)
