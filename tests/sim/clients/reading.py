"""G29 over a whole history: the contents of a stream, and the messages due to its readers.

The model is a list: a message's index is its offset.  A message that leaves must be over a limit or
an age; a reader begins where it asked to, and is then sent each kept message, once and in order,
until it has all, unless it settles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from broker.machine import commands as c
from broker.machine.commands import OK, Command, Table, Value
from broker.machine.effects import DeliverEffect
from broker.machine.machine import Machine
from broker.machine.queueing.streams import FILTER_VALUE, OFFSET
from broker.machine.requests.arguments import FILTER, MATCH_UNFILTERED
from broker.machine.requests.properties import headers_of
from broker.machine.state import NO_TTL, Queue
from tests.sim.clients.messages import MessageId, message_id
from tests.sim.clients.readers import STREAM, offset_of

_SECOND_US = 1_000_000
_ReaderId = tuple[int, int, str]  # connection, channel, consumer tag


def the_stream(machine: Machine) -> Queue | None:
    """None in most runs."""
    vhost = machine.vhosts.get("/")
    return None if vhost is None else vhost.queues.get(STREAM)


class _Entry(NamedTuple):
    message: MessageId
    size: int
    came_us: int  # by the machine's time
    second: int  # by the clock of the member that took it, made ascending
    value: str  # that readers may ask for


class _Reader(NamedTuple):
    next: int
    wanted: frozenset[str] | None = None  # "": messages without a value; None: all

    def wants(self, entry: _Entry) -> bool:
        return self.wanted is None or entry.value in self.wanted

    @classmethod
    def open(cls, offset: int, arguments: Table) -> _Reader:
        if FILTER not in arguments:
            return cls(offset)
        given = arguments[FILTER]
        values = given if isinstance(given, tuple) else (given,)
        unfiltered = ("",) if arguments.get(MATCH_UNFILTERED) is True else ()
        return cls(offset, frozenset(map(str, (*values, *unfiltered))))


class StreamWitness:
    """Follows one stream through the commands of a history."""

    def __init__(self, broken: Callable[[str, str], None], count: Callable[[str], None]) -> None:
        self._broken, self._count = broken, count
        self._entries: list[_Entry] = []
        self._first = 0
        self._bytes = 0  # of the kept messages
        self._limit = -1  # for these, until the command
        self._readers: dict[_ReaderId, _Reader] = {}

    @property
    def gone(self) -> set[MessageId]:
        """The messages that retention took."""
        return {entry.message for entry in self._entries[: self._first]}

    def applied(self, machine: Machine, position: int, command: Command, outcome: int) -> None:
        """Called after each command, before its effects for readers are passed to `read`."""
        queue = the_stream(machine)
        if queue is None:
            return
        kind = command[0]
        if kind == c.PUBLISH and command[4:6] == ("", STREAM) and outcome == OK:
            self._enters(machine, command[7], command[8])  # type: ignore[misc, arg-type]
        elif kind == c.CONSUME and command[3] == STREAM and outcome == OK:  # type: ignore[misc]
            given = cast("Table", command[9])  # type: ignore[misc]
            reader = cast("_ReaderId", (command[1], command[2], command[4]))  # type: ignore[misc]
            self._readers[reader] = _Reader.open(self._begins(machine, given[OFFSET]), given)
        elif kind == c.ACTIVATE and command[3]:  # type: ignore[misc]
            self._count("cold_starts_of_streams")
        if queue.next_seq != len(self._entries):
            text = f"offset {queue.next_seq} is next at {position}, not {len(self._entries)}"
            self._broken("G29", text)
        self._retained(machine, queue, position)

    def _enters(self, machine: Machine, properties: bytes, body: bytes) -> None:
        second = machine.time_us // _SECOND_US
        if self._entries:
            second = max(second, self._entries[-1].second)
        value = str(headers_of(properties).get(FILTER_VALUE, ""))
        self._entries.append(_Entry(message_id(body), len(body), machine.now_us, second, value))
        self._bytes += len(body)

    def _begins(self, machine: Machine, asked: Value) -> int:
        end = len(self._entries)
        match asked:
            case int():
                wanted = asked
            case "first":
                wanted = 0
            case "last":
                wanted = end - 1
            case "next":
                wanted = end
            case _:
                assert isinstance(asked, str)
                since = machine.time_us // _SECOND_US - 1 if asked == "1s" else int(asked[1:])
                times = (at for at, entry in enumerate(self._entries) if entry.second >= since)
                wanted = next(times, end)
        return max(wanted, self._first)

    def _retained(self, machine: Machine, queue: Queue, position: int) -> None:
        """Each message that left had to, by the limits before the command or after it."""
        limits = [limit for limit in (self._limit, queue.max_bytes) if limit >= 0]
        first = queue.next_seq - len(queue.ready)
        for offset in range(self._first, first):
            entry = self._entries[offset]
            is_over = bool(limits) and self._bytes > min(limits)
            is_old = queue.ttl_us != NO_TTL and machine.now_us - entry.came_us >= queue.ttl_us
            if not is_over and not is_old:
                self._broken("G29", f"offset {offset} is gone at {position}, and need not")
            self._bytes -= entry.size
            self._count("retained_no_longer")
        if first < self._first:
            self._broken("G29", f"offset {first} came back at {position}")
        self._first, self._limit = first, queue.max_bytes

    def read(self, position: int, d: DeliverEffect) -> None:
        """A reader is sent a message."""
        name, offset = (d.conn, d.chan, d.consumer_tag), offset_of(d)
        reader = self._readers[name]
        expected = self._next(reader)
        self._count("reads" if reader.wanted is None else "filtered_reads")
        if self._first > reader.next:
            self._count("reads_after_a_gap")
        if offset != expected:
            text = f"{d.consumer_tag} of {d.conn} is sent {offset} at {position}, not {expected}"
            self._broken("G29", text)
        elif message_id(d.body) != self._entries[offset].message:
            text = f"offset {offset} was {self._entries[offset].message}"
            self._broken("G29", f"{text}, and is {message_id(d.body)} at {position}")
        if d.redelivered:
            self._broken("G29", f"{d.consumer_tag} is sent {offset} at {position} with the flag")
        self._readers[name] = reader._replace(next=offset + 1)

    def _next(self, reader: _Reader) -> int:
        """The next message for a reader: the first that is kept, and that it wants."""
        kept = range(max(reader.next, self._first), len(self._entries))
        return next((at for at in kept if reader.wants(self._entries[at])), len(self._entries))

    def at_rest(self, machine: Machine) -> None:
        """At the end no reader waits for a message that is there, and for which it has credit."""
        queue = the_stream(machine)
        if queue is None:
            return
        for (_, conn, chan, tag), consumer in queue.consumers.items():
            read = self._next(self._readers[conn, chan, tag])
            if read < queue.next_seq and consumer.outstanding < consumer.limit:
                text = f"{tag} of {conn} has credit, and {queue.next_seq - read} messages wait"
                self._broken("G29", text)
