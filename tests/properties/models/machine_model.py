"""A simple model of queues: lists and loops, against which the machine is judged.

It predicts every outcome, and what waits and is held after each command. It does not predict which
consumer gets a message, but judges the deliveries it sees: each must be the head of its queue, with
the right redelivered flag, to a consumer with credit, under the next delivery tag; and afterwards
no message may wait while a consumer of its queue has credit. In a queue with message groups each
consumer has its own head (G32, G34): who has a group follows from what the model saw.
"""

from dataclasses import dataclass, field

from broker.machine import commands as c
from broker.machine.effects import DeliverEffect, GetOk

Chan = tuple[int, int, int]
KEYS = 3
GROUPS = 3


def key_of(body: bytes) -> int:
    """The key by which a message replaces an older one: its number, at the end of its body."""
    return int(body.rpartition(b"+")[2]) % KEYS


def group_of(body: bytes) -> int:
    """The group of a message, by its number; 0: it names none."""
    return int(body.rpartition(b"+")[2]) % GROUPS


@dataclass(eq=False)
class ModelQueue:
    owner: tuple[int, int] | None
    auto_delete: bool
    durable: bool
    max_length: int
    seq: int = 0
    ready: dict[int, tuple[bytes, bool, bool]] = field(default_factory=dict)  # redelivered, keep
    stays: bool = False  # a stream: reading removes nothing
    last: bool = False  # it keeps the last message of each key
    grouped: bool = False  # its messages have groups
    keeps: bool = False  # which stay with consumers
    kept: dict[int, "ModelConsumer"] = field(default_factory=dict)

    @property
    def ranked(self) -> bool:
        """A returned message has another place than before."""
        return self.last or self.grouped


@dataclass(eq=False)
class ModelConsumer:
    queue: ModelQueue
    no_ack: bool
    limit: int
    next: int = 0  # in a stream or browsing, the least it reads next
    wants: bool = False  # of a stream, only messages with a value: here the persistent ones
    browses: bool = False
    alive: bool = True


@dataclass(eq=False)
class ModelHeld:
    queue: ModelQueue
    seq: int
    message: tuple[bytes, bool, bool]
    consumer: ModelConsumer | None
    no_ack: bool
    superseded: bool = False

    @property
    def stays(self) -> bool:
        """Whether it is still in the queue."""
        return self.queue.stays or (self.consumer is not None and self.consumer.browses)


@dataclass(eq=False)
class ModelChannel:
    next_tag: int = 1
    limit: int = 1 << 30
    parts: bytes = b""  # of the body of its next publish
    held: dict[int, ModelHeld] = field(default_factory=dict)
    consumers: dict[str, ModelConsumer] = field(default_factory=dict)

    def unacked(self) -> list[int]:
        return [tag for tag, held in self.held.items() if not held.no_ack]

    def has_credit(self, consumer: ModelConsumer) -> bool:
        own = sum(held.consumer is consumer for held in self.held.values())
        shared = sum(not h.no_ack and h.consumer is not None for h in self.held.values())
        return own < consumer.limit and (consumer.no_ack or shared < self.limit)


class Model:
    def __init__(self, stream_max: int = 0) -> None:
        self.stream_max = stream_max  # bytes that a stream keeps
        self.connections: dict[tuple[int, int], bool] = {}
        self.channels: dict[Chan, ModelChannel] = {}
        self.queues: dict[str, ModelQueue] = {}
        self.fanout: list[str] = []
        self.active = ""  # the member that has this role

    # Steps: each predicts an outcome and changes the model, except for deliveries.

    def add_part(self, at: Chan, data: bytes) -> int:
        self.channels[at].parts += data
        return c.OK

    def take_parts(self, at: Chan) -> bytes:
        if at not in self.channels:
            return b""
        parts, self.channels[at].parts = self.channels[at].parts, b""
        return parts

    def open(self, key: tuple[int, int]) -> int:
        if key in self.connections:
            return c.IGNORED
        self.connections[key] = True
        return c.OK

    def open_channel(self, at: Chan) -> int:
        if at[:2] not in self.connections:
            return c.IGNORED
        if at in self.channels:
            self.end([at[:2]])
            return 504
        self.channels[at] = ModelChannel()
        return c.OK

    def end(self, connections: list[tuple[int, int]]) -> None:
        self.end_channels([at for at in self.channels if at[:2] in connections])
        for name in [name for name, queue in self.queues.items() if queue.owner in connections]:
            self.drop(name)
        for key in connections:
            del self.connections[key]

    def end_channels(self, ending: list[Chan]) -> None:
        channels = [self.channels.pop(at) for at in ending]
        for channel in channels:
            for tag in list(channel.consumers):
                self.cancel(channel, tag)
        for channel in channels:
            for held in channel.held.values():
                self.put_back(held)

    def fail(self, at: Chan, code: int) -> int:
        self.end_channels([at])
        return code

    def cancel(self, channel: ModelChannel, tag: str) -> None:
        gone = channel.consumers.pop(tag)
        queue = gone.queue
        queue.kept = {group: one for group, one in queue.kept.items() if one is not gone}
        names = [name for name, one in self.queues.items() if one is queue]
        if queue.auto_delete and names and not self.consumers_of(queue):
            self.drop(names[0])

    def consumers_of(self, queue: ModelQueue) -> list[tuple[ModelChannel, ModelConsumer]]:
        return [
            (channel, consumer)
            for channel in self.channels.values()
            for consumer in channel.consumers.values()
            if consumer.queue is queue
        ]

    def drop(self, name: str) -> None:
        queue = self.queues.pop(name)
        queue.ready.clear()
        self.fanout = [one for one in self.fanout if one != name]
        for channel in self.channels.values():
            for tag in [t for t, one in channel.consumers.items() if one.queue is queue]:
                del channel.consumers[tag]

    def put_back(self, held: ModelHeld) -> None:
        there = held.queue in self.queues.values() and not held.stays
        if there and not held.superseded:
            held.queue.ready[held.seq] = (held.message[0], True, held.message[2])
            self.trim(held.queue)

    def trim(self, queue: ModelQueue) -> None:
        while 0 <= queue.max_length < len(queue.ready):
            del queue.ready[min(queue.ready)]
        while queue.stays and len(queue.ready) > 1 and self.bytes_of(queue) > self.stream_max:
            del queue.ready[min(queue.ready)]

    def bytes_of(self, queue: ModelQueue) -> int:
        return sum(len(body) for body, _, _ in queue.ready.values())

    def publish(self, exchange: str, key: str, body: bytes, keep: bool) -> int:
        names = self.fanout if exchange else [key] if key in self.queues else []
        for name in names:
            queue = self.queues[name]
            if queue.last:
                self.replace(queue, key_of(body))
            queue.ready[queue.seq] = (body, False, keep)
            queue.seq += 1
            self.trim(queue)
        return c.OK if names else c.UNROUTABLE

    def replace(self, queue: ModelQueue, key: int) -> None:
        """A newer message comes: a waiting older one is dropped, and a held one does not return."""
        for seq in [seq for seq, one in queue.ready.items() if key_of(one[0]) == key]:
            del queue.ready[seq]
        for channel in self.channels.values():
            for held in channel.held.values():
                if held.queue is queue and key_of(held.message[0]) == key:
                    held.superseded = True

    def named(self, at: Chan, tag: int, multiple: bool) -> list[int] | None:
        unacked = self.channels[at].unacked()
        if multiple and tag == 0:
            return unacked
        if tag not in unacked:
            return None
        return [one for one in unacked if one <= tag] if multiple else [tag]

    def settle(self, at: Chan, tags: list[int], requeue: bool) -> None:
        for tag in tags:
            held = self.channels[at].held.pop(tag)
            if requeue:
                self.put_back(held)

    def promote(self, member: str) -> int:
        if self.active:
            return c.IGNORED
        self.active = member
        return c.OK

    def demote(self, member: str) -> int:
        if self.active != member:
            return c.IGNORED
        self.active = ""
        return c.OK

    def end_roles(self, members: tuple[str, ...]) -> None:
        """Their sessions end."""
        if self.active in members:
            self.active = ""

    def cold(self) -> None:
        for name in [name for name, queue in self.queues.items() if not queue.durable]:
            self.drop(name)
        for queue in self.queues.values():
            if queue.stays:
                continue
            if queue.ranked:  # as with priorities, places stay
                queue.ready = {
                    seq: (body, True, True) for seq, (body, _, keep) in queue.ready.items() if keep
                }
                continue
            kept = [body for _, (body, _, keep) in sorted(queue.ready.items()) if keep]
            queue.ready = {queue.seq + n: (body, True, True) for n, body in enumerate(kept)}
            queue.seq += len(kept)

    # Judgement.

    def watch(self, session: int, effect: DeliverEffect | GetOk, asked: str) -> None:
        """Judge one delivery, as its receiver saw it; `asked` is the queue of a get."""
        channel = self.channels[session, effect.conn, effect.chan]
        assert effect.delivery_tag == channel.next_tag
        channel.next_tag += 1
        consumer: ModelConsumer | None = None
        if isinstance(effect, DeliverEffect):
            consumer = channel.consumers[effect.consumer_tag]
            assert consumer.no_ack == effect.no_ack
            assert channel.has_credit(consumer), "delivered without credit"
            queue = consumer.queue
        else:
            queue = self.queues[asked]
        if consumer is not None and (queue.stays or consumer.browses):
            seq = self.to_read(consumer)
            consumer.next = seq + 1
            body, redelivered, _ = message = queue.ready[seq]
            redelivered = False
        else:
            seq = self.head(queue, consumer)
            body, redelivered, _ = message = queue.ready.pop(seq)
            group = group_of(body)
            if queue.keeps and group and consumer is not None:
                queue.kept[group] = consumer
        told = (effect.body, effect.redelivered)
        assert (body, redelivered) == told, "not the head of the queue, or wrongly flagged"
        held = ModelHeld(queue, seq, message, consumer, effect.no_ack)
        channel.held[effect.delivery_tag] = held

    def head(self, queue: ModelQueue, consumer: ModelConsumer | None) -> int:
        """What this consumer, or a get, receives next; nothing if that is no message's place."""
        if not queue.grouped:
            return min(queue.ready, default=-1)
        others = {group for group, one in queue.kept.items() if one is not consumer}
        for channel in self.channels.values():
            others |= {
                group_of(one.message[0])
                for one in channel.held.values()
                if one.queue is queue and not one.stays
                and (consumer is None or one.consumer is not consumer)
            }  # fmt: skip
        if queue.keeps:
            others.discard(0)
        own = (seq for seq, (body, *_) in queue.ready.items() if group_of(body) not in others)
        return min(own, default=-1)

    def reader(
        self, name: str, no_ack: bool, limit: int, offset: str | int, wants: bool, browses: bool
    ) -> ModelConsumer:
        """A new consumer of this queue; on a stream it starts at this offset."""
        queue = self.queues[name]
        if not queue.stays:
            return ModelConsumer(queue, no_ack, limit, browses=browses)
        starts = {"first": 0, "last": queue.seq - 1, "next": queue.seq}
        start = starts[offset] if isinstance(offset, str) else offset
        first = min(queue.ready, default=queue.seq)
        return ModelConsumer(queue, no_ack, limit, max(first, start), wants)

    def to_read(self, consumer: ModelConsumer) -> int:
        """Nothing is there if it is no message's place."""
        ready = sorted(consumer.queue.ready.items())
        wanted = (seq for seq, (*_, keep) in ready if keep or not consumer.wants)
        return next((seq for seq in wanted if seq >= consumer.next), -1)

    def judge(self) -> None:
        for queue in self.queues.values():
            if queue.ready:
                for channel, consumer in self.consumers_of(queue):
                    reads = queue.stays or consumer.browses
                    wanted = self.to_read(consumer) if reads else self.head(queue, consumer)
                    if wanted not in queue.ready:
                        continue
                    assert not channel.has_credit(consumer), "a message waits beside credit"
