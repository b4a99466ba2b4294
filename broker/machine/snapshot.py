# mypy: disable-error-code="import-untyped"
"""The state as bytes, and back: the one description that checkpoint, join and audit share.

A stream of msgpack lists, each `[name, ...]`, cut into chunks wherever 256 KiB end. Messages travel
once each, by columns, and queues name them by number, so that packing and unpacking a message costs
no interpreted code beyond its hash. Hashes do not travel: they are computed from the bytes, and the
root that results must be the root that the donor claims.
"""

from collections.abc import Iterable, Iterator

import msgpack

from broker.machine.digest import ALGORITHM
from broker.machine.entities import Channel, Consumer, Message, State, Vhost

CHUNK_BYTES = 256 * 1024
VERSION = 2
_BATCH_BYTES = 64 * 1024
_BATCH_ITEMS = 8192

# Who held a message, as a column.
BY_GET, BY_GONE, BY_CONSUMER = 0, 1, 2


def write(state: State) -> Iterator[bytes]:
    buffer = bytearray()
    pack = msgpack.Packer().pack
    for item in _items(state):
        buffer += pack(item)
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)


def _items(state: State) -> Iterator[tuple[object, ...]]:
    yield ("snapshot", VERSION, ALGORITHM)
    yield (
        "cluster",
        state.position,
        state.now_us,
        state.epoch,
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
    for name in state.vhosts:
        yield ("vhost", name)
    for connection in state.connections.values():
        yield (
            "connection",
            connection.key,
            connection.vhost.name,
            connection.user,
            connection.peer,
        )
    for batch in _batches(_all_messages(state)):
        yield ("messages", *zip(*(message[1:] for message in batch), strict=True))
    for vhost in state.vhosts.values():
        yield from _vhost_items(vhost)
    for connection in state.connections.values():
        for channel in connection.channels.values():
            yield from _channel_items(channel)
    for vhost in state.vhosts.values():
        for queue in vhost.queues.values():
            yield (
                "service",
                queue.number,
                [key for key, consumer in queue.consumers.items()],
                [(*consumer.channel.key, consumer.tag) for consumer in queue.service],
            )
    yield ("expiring", list(state.expiring))
    yield ("end", state.digest)


def _vhost_items(vhost: Vhost) -> Iterator[tuple[object, ...]]:
    for queue in vhost.queues.values():
        yield (
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
        )
        numbers = [message[1] for message in queue.ready]
        for at in range(0, len(numbers), _BATCH_ITEMS):
            yield ("ready", queue.number, numbers[at : at + _BATCH_ITEMS])
        seqs = sorted(queue.returned)
        for at in range(0, len(seqs), _BATCH_ITEMS):
            part = seqs[at : at + _BATCH_ITEMS]
            yield ("returned", queue.number, part, [queue.returned[seq][1] for seq in part])
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


def _channel_items(channel: Channel) -> Iterator[tuple[object, ...]]:
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
    yield ("channel", channel.key, channel.next_tag, channel.limit, consumers)
    for unsent, held_by_tag in ((False, channel.unacked), (True, channel.unsent)):
        if held_by_tag:
            rows = [
                (tag, held[0].number, held[1], held[2][1], *_holder(held[3]), held[4])
                for tag, held in held_by_tag.items()
            ]
            yield ("held", channel.key, unsent, *zip(*rows, strict=True))


def _holder(consumer: Consumer | None) -> tuple[int, str]:
    if consumer is None:
        return (BY_GET, "")
    return (BY_CONSUMER, consumer.tag) if consumer.active else (BY_GONE, "")


def _all_messages(state: State) -> Iterable[Message]:
    """Each message once, in an order that all members share."""
    messages: dict[int, Message] = {}
    for vhost in state.vhosts.values():
        for queue in vhost.queues.values():
            messages.update({message[1]: message for message in queue.ready})
            for seq in sorted(queue.returned):
                message = queue.returned[seq]
                messages[message[1]] = message
    for connection in state.connections.values():
        for channel in connection.channels.values():
            for held_by_tag in (channel.unacked, channel.unsent):
                for held in held_by_tag.values():
                    messages[held[2][1]] = held[2]
    return messages.values()


def _batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message[8]) + 64
        if size >= _BATCH_BYTES:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch
