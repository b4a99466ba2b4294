# mypy: disable-error-code="import-untyped"
"""Snapshots: the state as bytes, for checkpoints, joins and re-execution alike.

A snapshot is a stream of msgpack lists, each `[name, ...]`, cut into chunks of 256 KiB. Each
message travels once, in columns, and queues refer to messages by number, so packing and unpacking a
message costs no interpreted code beyond its hash. Hashes are not sent but computed from the bytes,
and the resulting root must be the one that the donor claims.

A checkpoint contains blocks of waiting messages that are on disk already, in their on-disk form:
writing and reading them costs next to nothing. So two members have the same snapshot, but not the
same checkpoint. A message of such a block that also waits elsewhere is written twice.
Decision: docs/decisions/0086-a-checkpoint-has-pages-as-they-are.md.

A `Cut` is what is written: the state at one position, taken in one short step. Large parts never
change (messages, and most lists of them), so they are not copied. The machine continues while a cut
is written, and a cut can be written only once.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgpack

from broker.machine.digest import ALGORITHM
from broker.machine.image.vhost_cut import BATCH_ITEMS, BEING_READ, Item, VhostCut, in_batches
from broker.machine.state import (
    BODY,
    NUMBER,
    Channel,
    Consumer,
    Held,
    Message,
    Policy,
    State,
)
from broker.waiting.bodies import pieces_of

CHUNK_BYTES = 256 * 1024
VERSION = 1
_BATCH_BYTES = 64 * 1024
_WHOLE_BYTES_MAX = 16 << 20  # of a body that is written in one piece
_BODY_PART_BYTES = 256 * 1024
_HELD_ITEMS = 1024  # each becomes a row
_PAGE = 4096

# The holder of a message, as a column.
BY_GET, BY_GONE, BY_CONSUMER = 0, 1, 2


class _ChannelCut(NamedTuple):
    item: Item
    key: tuple[int, int, int]
    unacked: dict[int, Held]
    unsent: dict[int, Held]
    consumers: dict[str, Consumer]  # the active ones; all other holders are gone
    # Of streams: tag, name, the next offset to send, and the filter.
    readers: list[tuple[str, int, int, tuple[bytes, ...]]]


class Cut:
    """The state at one position. A caller that may wait for the disk has content on disk read
    `at_once`; `pages`: content on disk may be written unchanged."""

    def __init__(self, state: State, *, at_once: bool, pages: bool = False) -> None:
        self._at_once = at_once
        self._pages = pages
        self._first = list(_first_items(state))
        self._vhosts = [VhostCut(vhost) for vhost in state.vhosts.values()]
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
        self._schedules = [(name, one.times.copy()) for name, one in state.schedules().items()]
        self._last = list(_last_items(state))

    def chunks(self) -> Iterator[bytes]:
        """The whole cut, in chunks of at most 256 KiB."""
        return (chunk for chunk in self.steps() if chunk)

    def steps(self) -> Iterator[bytes | None]:
        """The same chunks, with empty ones in between: each step takes about a millisecond. None:
        the next content is being read from disk."""
        buffer = bytearray()
        pack = msgpack.Packer().pack
        for item in self._items():
            if item is None or item is BEING_READ:
                yield b"" if item is None else None
                continue
            buffer += pack(item)
            while len(buffer) >= CHUNK_BYTES:
                yield bytes(buffer[:CHUNK_BYTES])
                del buffer[:CHUNK_BYTES]
        if buffer:
            yield bytes(buffer)

    def _items(self) -> Iterator[Item | None]:
        """The items of the cut; None: a place to pause."""
        yield from self._first
        for batch in self._batches():
            if batch is None:
                yield BEING_READ
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
                for part in in_batches(held_by_tag.items(), _HELD_ITEMS):
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
            for pairs in in_batches(times.items()):
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
            if size >= _BATCH_BYTES or looked % BATCH_ITEMS == 0:
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
    """All fields but the hash."""
    body = message[BODY]
    return message[1:] if type(body) is bytes else (*message[1:BODY], bytes(body))


def _in_parts(message: Message) -> Iterator[Item | None]:
    """A message with a large body: its parts, then everything else."""
    for piece in pieces_of(message[BODY], _BODY_PART_BYTES):
        yield ("body", message[NUMBER], piece)
        yield None
    yield ("messages", *zip((*message[1:BODY], b""), strict=True))


def _first_items(state: State) -> Iterator[Item]:
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
        yield ("clock", name, *clock)
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
    """Policies that queues still have, although they may no longer be defined."""
    found: dict[int, Policy] = {}
    for queue in state.stale:
        for policy in (queue.policy, queue.operator_policy):
            if policy is not None and not queue.deleted:
                found[policy.content] = policy
    return found.values()


def _services(state: State) -> Iterator[Item]:
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


def _last_items(state: State) -> Iterator[Item]:
    yield ("ending", [one.key for one in state.ending])
    yield ("stale", [queue.number for queue in state.stale if not queue.deleted])
    yield ("trimming", list(state.trimming))
    if state.late:
        yield ("late", list(state.late))
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
