# mypy: disable-error-code="import-untyped"
"""Snapshots: the state as bytes, for checkpoints, joins and re-execution alike.

A stream of msgpack lists, each `[name, ...]`, cut into chunks wherever 256 KiB end. Messages travel
once each, by columns, and queues name them by number, so that packing and unpacking a message costs
no interpreted code beyond its hash. Hashes are not sent but computed from the bytes, and the root
that results must be the root that the donor claims.

What is written is a `Cut`: the state at one position, taken in one short step, because what is
large never changes (messages, and most of what lists them) and is not copied. The machine goes on
while a cut is written, and a cut can be written once.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

import msgpack

from broker.machine.backlog import Backlog
from broker.machine.digest import ALGORITHM
from broker.machine.state import (
    BODY,
    NUMBER,
    Channel,
    Consumer,
    Held,
    Message,
    Policy,
    Queue,
    State,
    Vhost,
)

CHUNK_BYTES = 256 * 1024
VERSION = 7
_BATCH_BYTES = 64 * 1024
_BATCH_ITEMS = 8192
_PAGE = 4096

# Who held a message, as a column.
BY_GET, BY_GONE, BY_CONSUMER = 0, 1, 2

_T = TypeVar("_T")
_Item: TypeAlias = tuple[object, ...]


class _QueueCut(NamedTuple):
    item: _Item
    number: int
    ready: Backlog[Message]
    returned: dict[int, Message]
    returns: dict[int, int]


class _ChannelCut(NamedTuple):
    item: _Item
    key: tuple[int, int, int]
    unacked: dict[int, Held]
    unsent: dict[int, Held]
    consumers: dict[str, Consumer]  # who is active: what else holds a message is gone


class Cut:
    """The state at one position."""

    def __init__(self, state: State) -> None:
        self._first = list(_first_items(state))
        self._vhosts = [
            ([_cut_queue(vhost, queue) for queue in vhost.queues.values()], list(_topology(vhost)))
            for vhost in state.vhosts.values()
        ]
        self._channels = [
            _cut_channel(channel)
            for connection in state.connections.values()
            for channel in connection.channels.values()
        ]
        self._letters = list(state.late_letters)
        self._last = list(_last_items(state))

    def chunks(self) -> Iterator[bytes]:
        """All of it, in chunks of at most 256 KiB."""
        return (chunk for chunk in self.steps() if chunk)

    def steps(self) -> Iterator[bytes]:
        """The same chunks, with empty ones in between: each step takes about a millisecond."""
        buffer = bytearray()
        pack = msgpack.Packer().pack
        for item in self._items():
            if item is None:
                yield b""
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
            if batch:
                yield ("messages", *zip(*(message[1:] for message in batch), strict=True))
            yield None
        for queues, topology in self._vhosts:
            for queue in queues:
                yield queue.item
                yield from _places(queue)
            yield from topology
        for channel in self._channels:
            yield channel.item
            for unsent, held_by_tag in ((False, channel.unacked), (True, channel.unsent)):
                for part in _parts(held_by_tag.items()):
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
        for vhost, *names, message, reason in self._letters:
            yield ("letter", vhost.name, *names, message[NUMBER], reason)
        yield from self._last

    def _batches(self) -> Iterator[list[Message]]:
        """Each message once, in an order that all members share."""
        seen: dict[int, bytearray] = {}  # pages of flags: a set of all numbers stalls as it grows
        batch: list[Message] = []
        size = 0
        for looked, message in enumerate(self._messages(), 1):
            page, place = divmod(message[NUMBER], _PAGE)
            flags = seen.get(page)
            if flags is None:
                flags = seen[page] = bytearray(_PAGE)
            if not flags[place]:
                flags[place] = 1
                batch.append(message)
                size += len(message[BODY]) + 64
            if size >= _BATCH_BYTES or looked % _BATCH_ITEMS == 0:
                yield batch
                batch = []
                size = 0
        yield batch

    def _messages(self) -> Iterator[Message]:
        for queues, _ in self._vhosts:
            for queue in queues:
                yield from queue.ready
                for seq in sorted(queue.returned):
                    yield queue.returned[seq]
        for channel in self._channels:
            for held_by_tag in (channel.unacked, channel.unsent):
                for _, _, message, _, _ in held_by_tag.values():
                    yield message
        for letter in self._letters:
            yield letter.message


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
        yield ("clock", name, *clock)
    for (kind, content), names in state.poison.items():
        yield ("poison", kind, content, names)
    for (name, subject), detail in state.alarms.items():
        yield ("alarm", name, subject, detail)
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


def _last_items(state: State) -> Iterator[_Item]:
    for vhost in state.vhosts.values():
        for queue in vhost.queues.values():
            yield (
                "service",
                queue.number,
                list(queue.consumers),
                [(*consumer.channel.key, consumer.tag) for consumer in queue.service],
            )
    for name, schedule in (("expiry", state.expiry), ("lease_ends", state.lease_ends)):
        for part in _parts(schedule.times.items()):
            yield (name, part)
    yield ("ending", [one.key for one in state.ending])
    yield ("stale", [queue.number for queue in state.stale if not queue.deleted])
    yield ("trimming", list(state.trimming))
    yield ("end", state.digest)


def _cut_queue(vhost: Vhost, queue: Queue) -> _QueueCut:
    item = (
        "queue",
        vhost.name,
        queue.name,
        queue.number,
        queue.durable,
        queue.auto_delete,
        queue.owner_key,
        queue.arguments,
        queue.next_seq,
        queue.recovered_seq,
        queue.used_us,
        queue.policy.content if queue.policy is not None else 0,
        queue.operator_policy.content if queue.operator_policy is not None else 0,
    )
    return _QueueCut(
        item, queue.number, queue.ready.copy(), queue.returned.copy(), queue.returns.copy()
    )


def _places(queue: _QueueCut) -> Iterator[_Item | None]:
    ready = queue.ready
    while ready:  # taken out: a message that left the queue is freed here, not all at the end
        taken = [ready.popleft() for _ in range(min(len(ready), _BATCH_ITEMS))]
        yield ("ready", queue.number, tuple([message[NUMBER] for message in taken]))
        del taken
        yield None
    for part in _parts(sorted(queue.returned)):
        yield ("returned", queue.number, part, [queue.returned[seq][NUMBER] for seq in part])
        yield None
    for counts in _parts(sorted(queue.returns.items())):
        yield ("returns", queue.number, counts)
        yield None


def _topology(vhost: Vhost) -> Iterator[_Item]:
    for exchange in vhost.exchanges.values():
        yield (
            "exchange",
            vhost.name,
            exchange.name,
            exchange.type,
            exchange.durable,
            exchange.auto_delete,
            exchange.internal,
            exchange.arguments,
        )
    for exchange in vhost.exchanges.values():
        for binding in exchange.bindings.values():
            yield ("binding", vhost.name, *binding[:5])


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
    )


def _holder(channel: _ChannelCut, consumer: Consumer | None) -> tuple[int, str]:
    if consumer is None:
        return (BY_GET, "")
    active = channel.consumers.get(consumer.tag) is consumer
    return (BY_CONSUMER, consumer.tag) if active else (BY_GONE, "")


def _parts(items: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(items)
    while part := list(islice(rest, _BATCH_ITEMS)):
        yield part
