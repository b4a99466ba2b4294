"""Simulated programs that read a stream: each begins at any offset, and reports at once a message
that does not follow its last one.

The audit (tests/sim/clients/reading.py) knows what they need not know: the stream's contents, and
the messages that retention took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker.machine.commands import (
    ACK,
    CANCEL,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    CONSUME,
    NACK,
    QUEUE_DECLARE,
    RECOVER,
    Ack,
    Cancel,
    ChannelClose,
    ChannelOpen,
    Command,
    ConnectionClose,
    ConnectionOpen,
    Consume,
    Nack,
    QueueDeclare,
    Recover,
    Table,
    Value,
)
from broker.machine.effects import DeliverEffect, Effect, Reply
from broker.machine.queueing.streams import FILTER_VALUE, OFFSET
from broker.machine.requests.arguments import FILTER, MATCH_UNFILTERED
from broker.machine.requests.properties import headers_of, with_header
from tests.sim.clients.histories import SimHistory
from tests.sim.world.random_tape import Tape

STREAM = "log"
_OFFSET_MAX = 200


def offset_of(delivery: DeliverEffect) -> int:
    """Its number in the stream."""
    offset = headers_of(delivery.properties)[OFFSET]
    assert isinstance(offset, int)
    return offset


class StreamPlan(NamedTuple):
    """The plan of a whole run: every member declares the stream alike."""

    used: bool
    arguments: Table

    @classmethod
    def draw(cls, tape: Tape) -> StreamPlan:
        """Draw the plan: most runs have no stream."""
        used = tape.chance(0.3)
        arguments: Table = {"x-queue-type": "stream"}
        if tape.chance(0.5):
            arguments["x-max-length-bytes"] = tape.number(100, 5_000)
        if tape.chance(0.3):
            arguments["x-max-age"] = "1s"
        return cls(used, arguments)

    def declare(self, conn: int, chan: int) -> Command:
        return QueueDeclare(
            QUEUE_DECLARE, conn, chan, STREAM, False, True, False, False, False, self.arguments
        )


class _Reader:
    """One channel with one consumer of the stream at a time."""

    def __init__(self, chan: int, prefetch: int) -> None:
        self.chan, self.prefetch = chan, prefetch
        self.generation = 0
        self.tag = ""
        self.last = -1  # the offset that arrived last
        self.held: list[int] = []  # delivery tags
        self.closing = False


class SimReaders:
    """All readers of one member: one connection, which some runs do not have."""

    def __init__(
        self,
        member: str,
        tape: Tape,
        numbers: Iterator[int],
        later: Callable[[float, Callable[[], None]], None],
        broken: Callable[[str, str], None],
        calm: Callable[[], bool],
        plan: StreamPlan,
        history: SimHistory,
    ) -> None:
        self.history = history
        self.member, self.tape, self.numbers, self.plan = member, tape, numbers, plan
        self.later, self.broken, self.calm = later, broken, calm
        self.conn = 0
        self.commands: list[Command] = []
        self._saying = False
        self._readers: dict[int, _Reader] = {}

    @property
    def publishes(self) -> bool:
        """Whether the next message goes to the stream."""
        return self.plan.used and self.tape.chance(0.3)

    def valued(self, properties: bytes) -> bytes:
        """The properties of a message for the stream: by chance with a value to filter by."""
        value = self.tape.pick(("", "eu", "us"))
        return with_header(properties or b"\0\0", FILTER_VALUE, value) if value else properties

    def begin(self) -> None:
        """Begin with a new connection; what the old one held is gone with it."""
        self.commands = []
        if self.plan.used:
            self._connect()

    def hang_up(self) -> None:
        """Disconnect abruptly, and return."""
        if self.plan.used:
            self.commands.append(ConnectionClose(CONNECTION_CLOSE, self.conn))
            self._connect()

    def take_commands(self) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def _connect(self) -> None:
        self.history.consumers_lost(self.conn)
        self.conn = next(self.numbers)
        self._readers = {}
        self.commands.append(ConnectionOpen(CONNECTION_OPEN, self.conn, "/", "guest", "p:3"))
        for chan in range(1, 1 + self.tape.number(1, 3)):
            reader = _Reader(chan, self.tape.pick((1, 2, 10, 100)))
            self._readers[chan] = reader
            self._open(reader)

    def _open(self, reader: _Reader) -> None:
        reader.held.clear()
        reader.closing = False
        self.history.consumes(self.conn, reader.chan, STREAM)
        self.commands += [
            ChannelOpen(CHANNEL_OPEN, self.conn, reader.chan),
            self.plan.declare(self.conn, reader.chan),
        ]
        self._consume(reader, self._anywhere(reader))

    def _anywhere(self, reader: _Reader) -> Value:
        number = self.tape.number(0, _OFFSET_MAX)
        where: tuple[Value, ...] = ("first", "last", "next", reader.last + 1, number, "1s", "@0")
        return self.tape.pick(where)

    def _consume(self, reader: _Reader, begin: Value) -> None:
        reader.generation += 1
        reader.last = -1
        reader.tag = f"{STREAM}/{reader.chan}.{reader.generation}"
        self.commands.append(
            Consume(
                CONSUME, self.conn, reader.chan, STREAM, reader.tag, False, False, False, True,
                {OFFSET: begin, **self._filter()}, reader.prefetch,
            )
        )  # fmt: skip

    def _filter(self) -> Table:
        if self.tape.chance(0.6):
            return {}
        wanted: Table = {FILTER: self.tape.pick(("eu", ("eu", "us"), ("us", "asia")))}
        if self.tape.chance(0.5):
            wanted[MATCH_UNFILTERED] = self.tape.chance(0.7)
        return wanted

    # -- what they receive -----------------------------------------------------------------------

    def receive(self, effect: Effect) -> None:
        match effect:
            case DeliverEffect():
                self._delivered(self._readers[effect.chan], effect)
            case Reply(_, chan, "channel.close-ok"):
                self._open(self._readers[chan])
            case _:
                pass

    def _delivered(self, reader: _Reader, d: DeliverEffect) -> None:
        self.history.received(d)
        if reader.closing:
            return
        offset = offset_of(d)
        reader.held.append(d.delivery_tag)
        if d.consumer_tag == reader.tag:  # otherwise it came before the cancel
            if d.redelivered or 0 <= offset <= reader.last:
                text = f"{self.member}: {d.consumer_tag} had {reader.last} and is sent {offset}"
                self.broken("G29", text)
            reader.last = offset
        if self.calm() or self.tape.chance(0.5):
            self._settle_all(reader)
        else:
            conn, generation = self.conn, reader.generation
            self.later(self.tape.between(0.0, 0.1), lambda: self._change(conn, reader, generation))

    def _settle_all(self, reader: _Reader) -> None:
        self.history.acks(self.conn, reader.chan, reader.held[-1], multiple=True)
        self.commands.append(Ack(ACK, self.conn, reader.chan, reader.held[-1], True))
        reader.held.clear()
        if not self._saying:  # the member handles the waiting input when the call returns
            self._saying = True
            self.later(self.tape.gap(0.002), self._said)

    def _said(self) -> None:
        self._saying = False

    def _change(self, conn: int, reader: _Reader, generation: int) -> None:
        """Settle in some way, or begin elsewhere."""
        if conn != self.conn or reader.closing or not reader.held:
            return
        what, chan = self.tape.random.random(), reader.chan
        if self.calm() or what < 0.5 or generation != reader.generation:
            self._settle_all(reader)
        elif what < 0.6:
            tag = reader.held.pop(self.tape.number(0, len(reader.held) - 1))
            self.history.acks(conn, chan, tag, multiple=False)
            self.commands.append(Ack(ACK, conn, chan, tag, False))
        elif what < 0.75:
            goes_back = self.tape.chance(0.5)
            self.commands.append(Nack(NACK, conn, chan, reader.held[-1], True, goes_back))
            reader.held.clear()
        elif what < 0.8:
            self.commands.append(Recover(RECOVER, conn, chan, True))
            self._settled_by_now(reader)
        elif what < 0.92:
            self.commands.append(Cancel(CANCEL, conn, chan, reader.tag, True))
            self._consume(reader, self._anywhere(reader))
        elif what < 0.98:
            reader.closing = True
            self.commands.append(ChannelClose(CHANNEL_CLOSE, conn, chan))
        else:
            self.hang_up()
            return
        if reader.held and not reader.closing:
            again = reader.generation
            self.later(self.tape.between(0.0, 0.1), lambda: self._change(conn, reader, again))

    def _settled_by_now(self, reader: _Reader) -> None:
        """Messages under way when it recovers are settled too: only the close of the channel tells
        the two apart, so the channel is closed."""
        reader.closing = True
        self.commands.append(ChannelClose(CHANNEL_CLOSE, self.conn, reader.chan))
