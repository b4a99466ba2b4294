# mypy: disable-error-code="import-untyped"
"""Snapshots: the state as bytes, for checkpoints, joins and re-execution alike.

A stream of msgpack lists, each `[name, ...]`, cut into chunks wherever 256 KiB end. Messages travel
once each, by columns, and queues name them by number, so that packing and unpacking a message costs
no interpreted code beyond its hash. Hashes are not sent but computed from the bytes, and the root
that results must be the root that the donor claims.

A checkpoint has blocks of waiting messages that are on disk as they lie there: to write and to read
them costs next to nothing. So two members have the same snapshot, but not the same checkpoint. A
message of such a block that waits elsewhere too comes twice.
Decision: docs/decisions/0086-a-checkpoint-has-pages-as-they-are.md.

What is written is a `Cut`: the state at one position, taken in one short step, because what is
large never changes (messages, and most of what lists them) and is not copied. The machine goes on
while a cut is written, and a cut can be written once.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple, TypeAlias, TypeVar

import msgpack

from broker.machine.digest import ALGORITHM
from broker.machine.image.page_items import goes_as_it_is
from broker.machine.publishing.numbers import cut
from broker.machine.state import (
    BODY,
    NUMBER,
    Channel,
    Consumer,
    Held,
    Message,
    Policy,
    State,
    Vhost,
    all_queues,
)
from broker.machine.version import PAGES_AS_THEY_ARE, TICKS_NAME_POSITIONS
from broker.waiting.blocks import Block, Part, packed_ahead, read_ahead, read_along
from broker.waiting.bodies import pieces_of
from broker.waiting.places import Places

CHUNK_BYTES = 256 * 1024
VERSION = 7
_BATCH_BYTES = 64 * 1024
_BATCH_ITEMS = 8192
_WHOLE_BYTES_MAX = 16 << 20  # of a body that goes as it is: what older releases read
_BODY_PART_BYTES = 256 * 1024
_HELD_ITEMS = 1024  # a row is made for each
_QUEUES_A_STEP = 256
_PAGE = 4096

# Who held a message, as a column.
BY_GET, BY_GONE, BY_CONSUMER = 0, 1, 2

_T = TypeVar("_T")
_Item: TypeAlias = tuple[object, ...]
_BEING_READ: _Item = ("being read",)  # no item: a place to wait


class _ChannelCut(NamedTuple):
    item: _Item
    key: tuple[int, int, int]
    unacked: dict[int, Held]
    unsent: dict[int, Held]
    consumers: dict[str, Consumer]  # who is active: what else holds a message is gone
    # Of streams: tag, name, what they are sent next, and what they want.
    readers: list[tuple[str, int, int, tuple[bytes, ...]]]


class _VhostCut:
    """A virtual host, by columns: of a queue, an exchange or a binding that never changes only the
    reference is taken. With a tuple for each of 100,000 queues the cut was a pause of 0.2 s."""

    def __init__(self, vhost: Vhost) -> None:
        queues = list(all_queues(vhost))
        self._name, self._queues = vhost.name, queues
        self._next_seqs = [queue.next_seq for queue in queues]
        self._recovered_seqs = [queue.recovered_seq for queue in queues]
        self._used_us = [queue.used_us for queue in queues]
        self._policies = [queue.policy for queue in queues]
        self._operator_policies = [queue.operator_policy for queue in queues]
        self._ready = {queue.number: queue.ready.parts() for queue in queues if queue.ready}
        # What is known of them once they were read: their numbers, or a block that goes as it is.
        self._places: dict[int, list[Sequence[int] | Block[Message]]] = {}
        self._returned = {q.number: q.returned.copy() for q in queues if q.returned}
        self._windows = {q.number: q.window.order.copy() for q in queues if q.window}
        self._returns = {q.number: q.returns.copy() for q in queues if q.returns}
        self._superseded = {
            q.number: list(q.last_values.superseded) for q in queues if q.last_values is not None
        }
        self._grouped = {q.number for q in queues if q.groups is not None}
        self._kept = {q.number: q.groups.kept.copy() for q in queues if q.groups is not None}
        # Their columns are made again from the messages.
        self._filtered = {q.number for q in queues if q.stream is not None and q.stream.column}
        self._times = {
            q.number: (q.stream.step_s, list(q.stream.times)) for q in queues if q.stream
        }
        self._producers = [
            (user, name, producer.epoch, producer.used, *cut(producer))
            for user, producers in vhost.producers.items()
            for name, producer in producers.items()
        ]
        self._exchanges = list(vhost.exchanges.values())
        self._bindings = [list(exchange.bindings.values()) for exchange in self._exchanges]

    def messages(self, *, pages: bool, at_once: bool) -> Iterator[Message | None]:
        """What waits in the queues, in their order, but for blocks that go as they are, as `pages`;
        None while the next ones are being read, unless that is waited for, `at_once`."""
        for queue in self._queues:
            number = queue.number
            if number in self._ready:
                as_pages = pages and number not in self._filtered
                yield from self._ready_messages(number, pages=as_pages, at_once=at_once)
            if queue.number in self._returned:
                yield from self._returned[queue.number].values()

    def _ready_messages(
        self, number: int, *, pages: bool, at_once: bool
    ) -> Iterator[Message | None]:
        parts = self._ready.pop(number)
        places = self._places[number] = []
        read: deque[int] = deque()  # the places of what is being read
        parts.reverse()

        def taken() -> Iterator[Part[Message]]:
            for part in _taken(parts):
                if pages and isinstance(part, Block) and goes_as_it_is(part):
                    places.append(part)
                else:
                    read.append(len(places))
                    places.append(())
                    yield part

        rest = taken()
        for messages in map(tuple, read_ahead(rest)) if at_once else read_along(rest):
            if messages is None:
                yield None
                continue
            places[read.popleft()] = _compact([message[NUMBER] for message in messages])
            yield from messages

    def items(self, *, at_once: bool) -> Iterator[_Item | None]:
        """All of it but the messages; None: a place to pause."""
        columns = (
            self._next_seqs,
            self._recovered_seqs,
            self._used_us,
            self._policies,
            self._operator_policies,
        )
        for looked, (queue, next_seq, recovered_seq, used_us, policy, operators) in enumerate(
            zip(self._queues, *columns, strict=True), 1
        ):
            if queue.delays is not None:
                of_exchange = self._name, queue.delays
                yield ("delays", *of_exchange, queue.number, queue.durable, next_seq)
            elif queue.letters_of is not None:
                of_queue = self._name, queue.letters_of
                yield ("kept", *of_queue, queue.number, queue.durable, next_seq, recovered_seq)
            else:
                yield (
                    "queue",
                    self._name,
                    queue.name,
                    queue.number,
                    queue.durable,
                    queue.auto_delete,
                    queue.owner_key,
                    queue.arguments,
                    next_seq,
                    recovered_seq,
                    used_us,
                    policy.content if policy is not None else 0,
                    operators.content if operators is not None else 0,
                )
            if queue.number in self._places:
                yield from self._ready_items(queue.number, next_seq, at_once=at_once)
            yield from self._other_items(queue.number)
            if looked % _QUEUES_A_STEP == 0:
                yield None
        yield from self._topology()

    def _ready_items(self, number: int, next_seq: int, *, at_once: bool) -> Iterator[_Item | None]:
        places = self._places.pop(number)
        seq = next_seq - sum(map(len, places))
        numbers: list[Sequence[int]] = []
        places.reverse()
        for place, packed in packed_ahead(_taken(places), lambda _: True):
            if packed is None:
                assert not isinstance(place, Block), "what is on disk stays there"
                numbers.append(place)
                seq += len(place)
                continue
            yield from _numbered(number, numbers)
            numbers.clear()
            assert isinstance(place, Block)
            assert place.page is not None
            while (data := packed.get() if at_once else packed.found()) is None:
                yield _BEING_READ
            yield ("page", number, seq, *place.page.summary, data)
            yield None
            seq += len(place)
        yield from _numbered(number, numbers)

    def _other_items(self, number: int) -> Iterator[_Item | None]:
        if number in self._superseded:
            yield ("last_values", number, self._superseded[number])
        if number in self._grouped:
            yield ("groups", number)
        places: list[int] = []
        numbers: list[int] = []
        for some, messages in self._returned.pop(number, Places()).drain():
            places += some
            numbers += [message[NUMBER] for message in messages]
            if len(places) >= _BATCH_ITEMS:
                yield ("returned", number, places[:_BATCH_ITEMS], numbers[:_BATCH_ITEMS])
                yield None
                del places[:_BATCH_ITEMS], numbers[:_BATCH_ITEMS]
        if places:
            yield ("returned", number, places, numbers)
            yield None
        for noted in _parts(self._windows.pop(number, ())):
            yield ("window", number, noted)
            yield None
        step_s, times = self._times.pop(number, (1, []))
        if times:
            yield ("times", number, step_s, times)
        returns = self._returns.get(number, {})
        for part in _parts(sorted(returns)):  # sorting pairs takes many times as long
            yield ("returns", number, [(seq, returns[seq]) for seq in part])
            yield None

    def _topology(self) -> Iterator[_Item | None]:
        for exchange in self._exchanges:
            yield (
                "exchange",
                self._name,
                exchange.name,
                exchange.type,
                exchange.durable,
                exchange.auto_delete,
                exchange.internal,
                exchange.arguments,
            )
        for bindings in self._bindings:
            for part in _parts(bindings):
                for binding in part:
                    yield ("binding", self._name, *binding[:5])
                yield None
        for *producer, entries in self._producers:
            yield ("producer", self._name, *producer, entries.tolist())
            yield None

    def kept_groups(self) -> Iterator[_Item | None]:
        """The groups that stay with consumers, in the order in which they came to them."""
        for number, kept in self._kept.items():
            if kept:
                rows = [(key, *one.channel.key, one.tag) for key, one in kept.items()]
                yield ("kept_groups", number, rows)
                yield None


def _numbered(number: int, runs: list[Sequence[int]]) -> Iterator[_Item | None]:
    for part in _parts(chain.from_iterable(runs)):
        yield ("ready", number, part)
        yield None


def _taken(parts: list[_T]) -> Iterator[_T]:
    """The last of them first. They are let go on the way: one that left its queue is freed here,
    and not all at the end."""
    while parts:
        yield parts.pop()


def _compact(numbers: list[int]) -> Sequence[int]:
    """The same numbers in less memory."""
    if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
        run = range(numbers[0], numbers[-1] + 1)
        if numbers == list(run):
            return run
    return array("Q", numbers)


class Cut:
    """The state at one position.  Who may wait for the disk has what is there read `at_once`;
    `pages`: what is there may go as it is."""

    def __init__(self, state: State, *, at_once: bool, pages: bool = False) -> None:
        self._at_once = at_once
        self._pages = pages and state.version >= PAGES_AS_THEY_ARE
        self._first = list(_first_items(state))
        self._vhosts = [_VhostCut(vhost) for vhost in state.vhosts.values()]
        self._channels = [
            _cut_channel(channel)
            for connection in state.connections.values()
            for channel in connection.channels.values()
        ]
        self._unfinished = [
            (key, unfinished.body.parts.copy()) for key, (_, unfinished) in state.unfinished.items()
        ]
        self._letters = list(state.late_letters)
        self._services = list(_services(state))
        self._schedules = [
            ("expiry", state.expiry.times.copy()),
            ("lease_ends", state.lease_ends.times.copy()),
            ("key_ends", state.key_ends.times.copy()),
            ("letter_times", state.letter_times.times.copy()),
        ]
        self._last = list(_last_items(state))

    def chunks(self) -> Iterator[bytes]:
        """All of it, in chunks of at most 256 KiB."""
        return (chunk for chunk in self.steps() if chunk)

    def steps(self) -> Iterator[bytes | None]:
        """The same chunks, with empty ones in between: each step takes about a millisecond.  None:
        what comes next is being read from disk."""
        buffer = bytearray()
        pack = msgpack.Packer().pack
        for item in self._items():
            if item is None or item is _BEING_READ:
                yield b"" if item is None else None
                continue
            buffer += pack(item)
            while len(buffer) >= CHUNK_BYTES:
                yield bytes(buffer[:CHUNK_BYTES])
                del buffer[:CHUNK_BYTES]
        if buffer:
            yield bytes(buffer)

    def _items(self) -> Iterator[_Item | None]:
        """None: a place to pause."""
        yield from self._first
        for batch in self._batches():
            if batch is None:
                yield _BEING_READ
                continue
            if len(batch) == 1 and len(batch[0][BODY]) > _WHOLE_BYTES_MAX:
                yield from _in_parts(batch[0])
            elif batch:
                yield ("messages", *zip(*map(_fields, batch), strict=True))
            yield None
        for vhost in self._vhosts:
            yield from vhost.items(at_once=self._at_once)
        for channel in self._channels:
            yield channel.item
            if channel.readers:
                yield ("readers", channel.key, channel.readers)
            for unsent, held_by_tag in ((False, channel.unacked), (True, channel.unsent)):
                for part in _parts(held_by_tag.items(), _HELD_ITEMS):
                    rows = [
                        (
                            tag,
                            queue.number,
                            seq,
                            message[NUMBER],
                            *_holder(channel, by),
                            redelivered,
                        )
                        for tag, (queue, seq, message, by, redelivered) in part
                    ]
                    yield ("held", channel.key, unsent, *zip(*rows, strict=True))
                    yield None
        for key, of_body in self._unfinished:
            for data in of_body:
                yield ("part", key, data)
                yield None
        for at, *names, message, reason in self._letters:
            yield ("letter", at.name, *names, message[NUMBER], reason)
        yield from self._services
        for vhost in self._vhosts:
            yield from vhost.kept_groups()
        for name, times in self._schedules:
            for pairs in _parts(times.items()):
                yield (name, pairs)
        yield from self._last

    def _batches(self) -> Iterator[list[Message] | None]:
        """Each message once, in an order that all members share; None while they are being read."""
        seen: dict[int, bytearray] = {}  # pages of flags: a set of all numbers stalls as it grows
        batch: list[Message] = []
        size = looked = 0
        for message in self._messages():
            if message is None:
                yield None
                continue
            looked += 1
            page, place = divmod(message[NUMBER], _PAGE)
            flags = seen.get(page)
            if flags is None:
                flags = seen[page] = bytearray(_PAGE)
            if not flags[place]:
                flags[place] = 1
                if len(message[BODY]) > _WHOLE_BYTES_MAX:
                    yield [message]
                    continue
                batch.append(message)
                size += len(message[BODY]) + 64
            if size >= _BATCH_BYTES or looked % _BATCH_ITEMS == 0:
                yield batch
                batch = []
                size = 0
        yield batch

    def _messages(self) -> Iterator[Message | None]:
        for vhost in self._vhosts:
            yield from vhost.messages(pages=self._pages, at_once=self._at_once)
        for channel in self._channels:
            for held_by_tag in (channel.unacked, channel.unsent):
                for _, _, message, _, _ in held_by_tag.values():
                    yield message
        for letter in self._letters:
            yield letter.message


def _fields(message: Message) -> tuple[object, ...]:
    """All but the hash."""
    body = message[BODY]
    return message[1:] if type(body) is bytes else (*message[1:BODY], bytes(body))


def _in_parts(message: Message) -> Iterator[_Item | None]:
    """A message with a large body: its parts, then all else."""
    for piece in pieces_of(message[BODY], _BODY_PART_BYTES):
        yield ("body", message[NUMBER], piece)
        yield None
    yield ("messages", *zip((*message[1:BODY], b""), strict=True))


def _first_items(state: State) -> Iterator[_Item]:
    yield ("snapshot", VERSION, ALGORITHM)
    yield (
        "cluster",
        state.position,
        state.now_us,
        state.epoch,
        state.version,
        state.voters,
        state.cluster_id,
        state.shutdown_id,
        state.next_message,
        state.next_queue,
    )
    for name, record in state.sessions.items():
        yield ("session", name, record.session, record.incarnation, record.last_blob_no)
    for name, clock in state.clocks.items():
        yield ("clock", name, *(clock if clock.applied else clock[:2]))
    if state.version >= TICKS_NAME_POSITIONS:
        yield ("horizon", state.horizon_us, state.last_other, state.last_tick, state.spans[:])
    for (kind, content), names in state.poison.items():
        yield ("poison", kind, content, names)
    for (name, subject), detail in state.alarms.items():
        yield ("alarm", name, subject, detail)
    if state.active:
        yield ("active", state.active)
    for name in state.vhosts:
        yield ("vhost", name)
    for what, defined in state.definitions.items():
        for (vhost, name), body in defined.items():
            yield ("definition", what, vhost, name, body)
    for policy in _former_policies(state):
        yield ("former", policy.vhost, policy.name, policy.body, policy.operator)
    for connection in state.connections.values():
        yield (
            "connection",
            connection.key,
            connection.vhost.name,
            connection.user,
            connection.peer,
        )


def _former_policies(state: State) -> Iterable[Policy]:
    """Those that queues have still, and that may be defined no more."""
    found: dict[int, Policy] = {}
    for queue in state.stale:
        for policy in (queue.policy, queue.operator_policy):
            if policy is not None and not queue.deleted:
                found[policy.content] = policy
    return found.values()


def _services(state: State) -> Iterator[_Item]:
    for vhost in state.vhosts.values():
        for queue in vhost.queues.values():
            if queue.consumers:
                service = [(*consumer.channel.key, consumer.tag) for consumer in queue.service]
                yield ("service", queue.number, list(queue.consumers), service)
            readers = queue.readers
            if readers is not None and readers.count:
                turns = [(*one.channel.key, one.tag) for one in readers.service]
                waiting = [(*one.channel.key, one.tag) for one in readers.caught_up]
                yield ("reader_turns", queue.number, turns, waiting)


def _last_items(state: State) -> Iterator[_Item]:
    yield ("ending", [one.key for one in state.ending])
    yield ("stale", [queue.number for queue in state.stale if not queue.deleted])
    yield ("trimming", list(state.trimming))
    if state.reading:
        yield ("reading", list(state.reading))
    yield ("end", state.digest)


def _cut_channel(channel: Channel) -> _ChannelCut:
    consumers = [
        (
            consumer.tag,
            consumer.queue.number,
            consumer.no_ack,
            consumer.no_local,
            consumer.exclusive,
            consumer.prefetch,
            consumer.limit,
            consumer.priority,
        )
        for consumer in channel.consumers.values()
    ]
    item = ("channel", channel.key, channel.next_tag, channel.limit, consumers)
    return _ChannelCut(
        item,
        channel.key,
        channel.unacked.copy(),
        channel.unsent.copy(),
        channel.consumers.copy(),
        [
            (consumer.tag, reader.salt, reader.offset, reader.filter)
            for consumer in channel.consumers.values()
            if (reader := consumer.reader) is not None
        ],
    )


def _holder(channel: _ChannelCut, consumer: Consumer | None) -> tuple[int, str]:
    if consumer is None:
        return (BY_GET, "")
    active = channel.consumers.get(consumer.tag) is consumer
    return (BY_CONSUMER, consumer.tag) if active else (BY_GONE, "")


def _parts(items: Iterable[_T], most: int = _BATCH_ITEMS) -> Iterator[list[_T]]:
    rest = iter(items)
    while part := list(islice(rest, most)):
        yield part
