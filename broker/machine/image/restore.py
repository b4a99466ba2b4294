# mypy: disable-error-code="import-untyped"
"""The inverse of snapshot.py: builds a state from the items of a snapshot.

Hashes are not sent. They are computed here from the bytes, and the resulting root must be the one
that the donor claims.
"""

import gc
from collections import defaultdict, deque
from collections.abc import Iterable
from operator import itemgetter
from typing import cast

import msgpack

from broker.machine.clock.cluster_time import note_held, recheck_deadlines
from broker.machine.commands import Table
from broker.machine.digest import ALGORITHM, canonical, item_hash, message_hashes
from broker.machine.handlers import definitions
from broker.machine.handlers.connections import count_connection, end_later
from broker.machine.handlers.policies import policies_defined
from broker.machine.image.invariants import recompute_root
from broker.machine.image.page_items import PageReader
from broker.machine.image.queue_invariants import returns_sum, superseded_sum
from broker.machine.image.snapshot import BY_CONSUMER, BY_GONE, VERSION
from broker.machine.policies.choice import policy_of
from broker.machine.publishing.numbers import restore as restore_numbers
from broker.machine.publishing.unfinished import RestoredBodies, keep_part
from broker.machine.queueing.bindings import binding_element, index_binding
from broker.machine.queueing.declaration import new_delays, new_letters
from broker.machine.queueing.queue import restore_key_of_held, restore_returned
from broker.machine.queueing.streams import column_entry, first_offset, readers_of, restore_times
from broker.machine.queueing.windows import restore_keys
from broker.machine.requests.arguments import (
    apply_settings,
    keep_groups,
    keep_last_values,
    open_window,
)
from broker.machine.state import (
    BODY,
    Binding,
    Channel,
    Clock,
    ConnectionRecord,
    Consumer,
    Exchange,
    Held,
    Letter,
    Message,
    Noted,
    Policy,
    Producer,
    Queue,
    Reader,
    SessionRecord,
    Span,
    State,
    Vhost,
    bytes_of,
    ready_count,
    timed_of,
)

_STREAM_BYTES_MAX = 1 << 31
_PAGE = 4096


class SnapshotError(ValueError):
    """These chunks are not a complete and correct snapshot; the message is the reason."""


def read(state: State, chunks: Iterable[bytes], *, own: bool = False) -> None:
    """Fill a new state; raises SnapshotError, and leaves the state unusable, if anything is amiss.
    `own`: messages in pages are hashed later."""
    reader = _Reader(state, own=own)
    unpacker = msgpack.Unpacker(
        use_list=False, strict_map_key=True, max_buffer_size=_STREAM_BYTES_MAX
    )
    try:
        for chunk in chunks:
            unpacker.feed(chunk)
            for item in unpacker:
                reader.take(item)
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        msgpack.UnpackException,
    ) as error:
        msg = f"the snapshot is malformed: {error!r}"
        raise SnapshotError(msg) from error
    reader.finish()


def _untrack() -> None:
    """Let the garbage collector see new objects, less than a millisecond's work at a time.

    The collector then stops tracking tuples without containers, and tuples or dicts of such tuples.
    Seen late, a million of them take 40 ms in one piece, again and again.
    """
    gc.collect(0)


class _Reader:
    """One method per item name, in the order of the items; one method for all schedules."""

    def __init__(self, state: State, *, own: bool) -> None:
        self.state = state
        self.pages = PageReader(state, own=own)
        # In pages, because a dict of a million entries stalls for 40 ms when it grows, and again
        # when it is freed.
        self.messages: defaultdict[int, dict[int, Message]] = defaultdict(dict)
        self.bodies = RestoredBodies()
        self.queues: dict[int, Queue] = {}
        self.strings: dict[str, str] = {}
        self.policies: dict[int, Policy] = {}  # by content
        self.applied: dict[int, tuple[int, int]] = {}  # to the queue of this number
        self.schedules = state.schedules()
        self.started = False
        self.claimed_root: int | None = None

    def take(self, item: tuple[object, ...]) -> None:
        name, *fields = item
        if self.claimed_root is not None or (name == "snapshot") == self.started:
            msg = f"item {name!r} out of place"
            raise SnapshotError(msg)
        if name in self.schedules:
            name, fields = "schedule", list(item)
        getattr(self, f"_on_{name}")(*fields)

    def finish(self) -> None:
        if self.claimed_root is None:
            msg = "the snapshot is incomplete"
            raise SnapshotError(msg)
        state = self.state
        while self.messages:
            self.messages.popitem()
        for queue in self.queues.values():
            if not queue.deleted:
                total = self.pages.ready_sum(queue)
                if total is None:
                    msg = f"the snapshot has a page of queue {queue.number} for another place"
                    raise SnapshotError(msg)
                queue.ready_sum = total
                queue.returns_sum = returns_sum(queue)
            if queue.expires_us >= 0 and not queue.consumers:
                state.leased[queue.number] = queue
            recheck_deadlines(state, queue)
            if queue.stream is not None:
                queue.stream.column.begin += first_offset(queue)
            if queue.letters_of is not None and ready_count(queue):
                state.keeping[queue.number] = queue
        for channel in state.channels.values():
            for queue, _, message, _, _ in (*channel.unacked.values(), *channel.unsent.values()):
                note_held(state, queue, message)
        definitions.follow(state)
        state.digest = recompute_root(state, fresh=True)
        if state.digest != self.claimed_root:
            msg = f"the snapshot has root {state.digest:016x}, not {self.claimed_root:016x}"
            raise SnapshotError(msg)

    def _apply_policies(self) -> None:
        state = self.state
        for vhost, policies in policies_defined(state).items():
            state.vhosts[vhost].policies = policies
            for policy in (*policies[0], *policies[1]):
                self.policies[policy.content] = policy
        for number, (own, operators) in self.applied.items():
            if any(one and one not in self.policies for one in (own, operators)):
                msg = f"the snapshot has no policy that applies to queue {number}"
                raise SnapshotError(msg)
            queue = self.queues[number]
            queue.policy = self.policies.get(own)
            queue.operator_policy = self.policies.get(operators)
            apply_settings(queue)

    def _on_snapshot(self, version: int, algorithm: str) -> None:
        if (version, algorithm) != (VERSION, ALGORITHM):
            msg = (
                f"a snapshot of version {version} with {algorithm}, this broker reads version "
                f"{VERSION} with {ALGORITHM}: start it with the release that wrote the store, "
                "or move the store aside and join"
            )
            raise SnapshotError(msg)
        self.started = True

    def _on_cluster(
        self,
        position: int,
        now_us: int,
        epoch: int,
        version: int,
        voters: tuple[str, ...],
        cluster_id: str,
        shutdown_id: str,
        next_message: int,
        next_queue: int,
    ) -> None:
        state = self.state
        state.position = position
        state.now_us = now_us
        state.epoch = epoch
        state.version = version
        state.voters = voters
        state.cluster_id = cluster_id
        state.shutdown_id = shutdown_id
        state.next_message = next_message
        state.next_queue = next_queue

    def _on_session(self, name: str, session: int, incarnation: int, last_blob_no: int) -> None:
        self.state.sessions[name] = SessionRecord(
            session, incarnation, last_blob_no, item_hash("blob no", session)
        )
        if name == self.state.local:
            self.state.local_session = session

    def _on_connection(self, key: tuple[int, int], vhost: str, user: str, peer: str) -> None:
        local = key[0] == self.state.local_session
        connection = ConnectionRecord(
            key, self.state.vhosts[vhost], user, peer, local,
            totals=self.state.totals_of(key[0], vhost),
        )  # fmt: skip
        self.state.connections[key] = connection
        count_connection(self.state, connection, 1)

    def _on_body(self, number: int, part: bytes) -> None:
        self.bodies.add(number, part)

    def _on_messages(
        self,
        numbers: tuple[int, ...],
        exchanges: tuple[str, ...],
        keys: tuple[str, ...],
        *columns: tuple[object, ...],
    ) -> None:
        share = self.strings.setdefault
        shared, shared_keys = list(map(share, exchanges, exchanges)), list(map(share, keys, keys))
        rest = cast(
            "tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[bytes, ...], "
            "tuple[bytes, ...]]",
            columns,
        )
        bodies = self.bodies.whole(numbers, rest[-1])
        contents = message_hashes(numbers, shared, shared_keys, *rest[:-1], bodies)
        rows = list(zip(contents, numbers, shared, shared_keys, *rest[:-1], bodies, strict=True))
        _untrack()
        pages = self.messages
        for number, row in zip(numbers, rows, strict=True):
            pages[number // _PAGE][number] = row

    def _message(self, number: int) -> Message:
        return self.messages[number // _PAGE][number]

    def _found(self, numbers: tuple[int, ...]) -> list[Message]:
        pages = self.messages
        return [pages[number // _PAGE][number] for number in numbers]

    def _on_clock(self, name: str, reached_us: int, applied: int) -> None:
        self.state.clocks[name] = Clock(reached_us, applied)

    def _on_horizon(
        self, horizon_us: int, other: int, tick: int, spans: tuple[tuple[int, int], ...]
    ) -> None:
        state = self.state
        state.horizon_us, state.last_other, state.last_tick = horizon_us, other, tick
        state.spans = [Span(*span) for span in spans]

    def _on_poison(self, kind: int, content: bytes, names: tuple[str, ...]) -> None:
        self.state.poison[kind, content] = names

    def _on_alarm(self, name: str, subject: str, detail: str) -> None:
        self.state.alarms[name, subject] = detail

    def _on_active(self, name: str) -> None:
        self.state.active = name

    def _on_vhost(self, name: str) -> None:
        self.state.vhosts[name] = Vhost(name)

    def _on_definition(self, what: str, vhost: str, name: str, body: Table) -> None:
        self.state.definitions[what][vhost, name] = body

    def _on_queue(
        self,
        vhost: str,
        name: str,
        number: int,
        durable: bool,
        auto_delete: bool,
        owner_key: tuple[int, int] | None,
        arguments: Table,
        next_seq: int,
        recovered_seq: int,
        used_us: int,
        policy: int,
        operator_policy: int,
    ) -> None:
        owner = None if owner_key is None else self.state.connections[owner_key]
        at = self.state.vhosts[vhost]
        queue = Queue(at, name, number, durable, auto_delete, owner, arguments)
        queue.salt = item_hash("next seq", number)
        queue.next_seq = next_seq
        queue.recovered_seq = recovered_seq
        queue.used_us = used_us
        keep_last_values(queue)
        keep_groups(queue)
        open_window(self.state, queue)
        self.applied[number] = (policy, operator_policy)
        at.queues[name] = self.queues[number] = queue
        if owner is not None:
            owner.exclusive[name] = queue

    def _on_delays(
        self, vhost: str, exchange: str, number: int, durable: bool, next_seq: int
    ) -> None:
        queue = new_delays(self.state.vhosts[vhost], exchange, number, durable)
        queue.salt = item_hash("next seq", number)
        queue.next_seq = next_seq
        self.queues[number] = queue

    def _on_kept(
        self, vhost: str, source: str, number: int, durable: bool, next_seq: int, recovered: int
    ) -> None:
        queue = new_letters(self.state.vhosts[vhost].queues[source], number, durable)
        queue.salt = item_hash("next seq", number)
        queue.next_seq, queue.recovered_seq = next_seq, recovered
        self.queues[number] = queue

    def _on_superseded(self, number: int, superseded: tuple[int, ...]) -> None:
        queue = self.queues[number]
        assert queue.last_values is not None
        queue.last_values.superseded = dict.fromkeys(superseded)
        queue.last_values.elements = superseded_sum(queue, queue.last_values)

    def _on_ready(self, number: int, messages: tuple[int, ...]) -> None:
        queue = self.queues[number]
        found = self._found(messages)
        if queue.stream is not None:  # by place: its offset is not known yet
            for place, message in enumerate(found, len(queue.ready)):
                queue.stream.column.note(0, place, column_entry(message))
        for block in queue.ready.extend(found, map(len, map(itemgetter(BODY), found))):
            self.state.full(block)
        _untrack()
        self._count(queue, found)

    def _on_page(
        self, number: int, first: int, count: int, size: int, timed: int, memory: int,
        persistent: bool, data: bytes,
    ) -> None:  # fmt: skip
        queue = self.queues[number]
        self.pages.take(queue, first, count, size, timed, memory, persistent, data)

    def _on_window(self, number: int, noted: tuple[Noted, ...]) -> None:
        restore_keys(self.state, self.queues[number], noted)
        _untrack()

    def _on_times(self, number: int, step_s: int, times: tuple[tuple[int, int], ...]) -> None:
        restore_times(self.queues[number], step_s, times)

    def _on_returns(self, number: int, counts: tuple[tuple[int, int], ...]) -> None:
        self.queues[number].returns.update(counts)

    def _on_returned(self, number: int, seqs: tuple[int, ...], messages: tuple[int, ...]) -> None:
        queue = self.queues[number]
        found = self._found(messages)
        if len(seqs) != len(found):
            msg = f"{len(seqs)} places for {len(found)} messages of queue {number}"
            raise SnapshotError(msg)
        restore_returned(queue, seqs, found)
        self._count(queue, found)

    def _count(self, queue: Queue, found: list[Message]) -> None:
        queue.ready_bytes += bytes_of(found)
        if queue.stream is None:
            queue.timed += timed_of(found)

    def _on_exchange(
        self,
        vhost: str,
        name: str,
        kind: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table,
    ) -> None:
        self.state.vhosts[vhost].exchanges[name] = Exchange(
            name, kind, durable, auto_delete, internal, arguments
        )

    def _on_binding(
        self,
        vhost: str,
        source: str,
        to_queue: bool,
        destination: str,
        key: str,
        arguments: Table,
    ) -> None:
        at = self.state.vhosts[vhost]
        binding = Binding(source, to_queue, destination, key, arguments, canonical(arguments))
        binding = binding._replace(element=binding_element(at, binding))
        identity = binding.identity()
        exchange = at.exchanges[source]
        exchange.bindings[identity] = binding
        index_binding(exchange, identity, binding)
        if to_queue:
            at.queues[destination].bindings[identity] = binding
        else:
            at.exchanges[destination].inbound[identity] = binding

    def _on_producer(
        self,
        vhost: str,
        user: str,
        name: str,
        epoch: int,
        used: int,
        highest: int,
        first: int,
        entries: tuple[int, ...],
    ) -> None:
        producer = Producer(item_hash("producer", vhost, user, name), epoch, used)
        restore_numbers(producer, highest, first, entries)
        self.state.vhosts[vhost].producers.setdefault(user, {})[name] = producer

    def _on_channel(
        self,
        key: tuple[int, int, int],
        next_tag: int,
        limit: int,
        consumers: tuple[tuple[str, int, bool, bool, bool, int, int, int], ...],
    ) -> None:
        connection = self.state.connections[key[:2]]
        channel = Channel(connection, key[2], item_hash("next tag", *key))
        channel.next_tag = next_tag
        channel.limit = limit
        for tag, number, no_ack, no_local, exclusive, prefetch, limit, priority in consumers:
            queue = self.queues[number]
            channel.consumers[tag] = Consumer(
                channel, queue, tag, no_ack, no_local, exclusive, prefetch, limit, priority
            )
        connection.channels[key[2]] = self.state.channels[key] = channel

    def _on_readers(
        self,
        key: tuple[int, int, int],
        readers: tuple[tuple[str, int, int, tuple[bytes, ...]], ...],
    ) -> None:
        for tag, salt, offset, wanted in readers:
            self.state.channels[key].consumers[tag].reader = Reader(salt, offset, wanted)

    def _on_held(
        self, key: tuple[int, int, int], unsent: bool, *columns: tuple[object, ...]
    ) -> None:
        channel = self.state.channels[key]
        rows = cast(
            "Iterable[tuple[int, int, int, int, int, str, bool]]", zip(*columns, strict=True)
        )
        gone: dict[int, Consumer] = {}
        for tag, number, seq, message, holder, consumer_tag, redelivered in rows:
            queue = self.queues.get(number) or self._deleted_queue(channel, number)
            consumer: Consumer | None = None
            if holder == BY_CONSUMER:
                consumer = channel.consumers[consumer_tag]
            elif holder == BY_GONE:
                consumer = gone.get(number)
                if consumer is None:
                    consumer = Consumer(channel, queue, "", unsent, False, False, 0, 0, 0)
                    consumer.active = False
                    gone[number] = consumer
            held: Held = (queue, seq, self._message(message), consumer, redelivered)
            (channel.unsent if unsent else channel.unacked)[tag] = held
            queue.unacked += message != 0 or queue.stream is not None
            queue.unacked_bytes += len(held[2][BODY])
            if message:
                restore_key_of_held(queue, seq, held[2], consumer)
            if consumer is not None:
                consumer.outstanding += 1
                channel.outstanding += not unsent

    def _deleted_queue(self, channel: Channel, number: int) -> Queue:
        """What a channel still holds of a deleted queue: settling it affects nothing."""
        vhost = channel.connection.vhost
        queue = self.queues[number] = Queue(vhost, "", number, False, False, None, {})
        queue.deleted = True
        return queue

    def _on_service(
        self,
        number: int,
        consumers: tuple[tuple[int, int, int, str], ...],
        service: tuple[tuple[int, int, int, str], ...],
    ) -> None:
        queue = self.queues[number]
        for session, conn, chan, tag in consumers:
            consumer = self.state.channels[session, conn, chan].consumers[tag]
            queue.consumers[session, conn, chan, tag] = consumer
            queue.exclusive_consumer = queue.exclusive_consumer or consumer.exclusive
        queue.service = deque(queue.consumers[key] for key in service)
        for consumer in queue.service:
            consumer.waiting = True

    def _on_kept_groups(
        self, number: int, rows: tuple[tuple[bytes, int, int, int, str], ...]
    ) -> None:
        queue = self.queues[number]
        assert queue.groups is not None
        for key, *of in rows:
            queue.groups.keep(key, queue.consumers[tuple(of)])  # type: ignore[index]

    def _on_reader_turns(
        self,
        number: int,
        turns: tuple[tuple[int, int, int, str], ...],
        waiting: tuple[tuple[int, int, int, str], ...],
    ) -> None:
        queue = self.queues[number]
        readers = readers_of(queue)
        readers.count = sum(one.reader is not None for one in queue.consumers.values())
        readers.service = deque(queue.consumers[key] for key in turns)
        readers.caught_up = [queue.consumers[key] for key in waiting]
        for consumer in (*readers.service, *readers.caught_up):
            consumer.waiting = True

    def _on_part(self, key: tuple[int, int, int], data: bytes) -> None:
        keep_part(self.state, self.state.channels[key], data)

    def _on_letter(
        self, vhost: str, exchange: str, key: str, queue: str, message: int, reason: str
    ) -> None:
        at, found = self.state.vhosts[vhost], self._message(message)
        at.letters += 1
        self.state.late_letters.append(Letter(at, exchange, key, queue, found, reason))

    def _on_schedule(self, name: str, times: tuple[tuple[int, int], ...]) -> None:
        for number, at_us in times:
            self.schedules[name].note(number, at_us)

    def _on_ending(self, keys: tuple[tuple[int, int], ...]) -> None:
        for key in keys:
            end_later(self.state, self.state.connections[key])

    def _on_former(self, vhost: str, name: str, body: Table, operator: bool) -> None:
        policy = policy_of(vhost, name, body, operator)
        self.policies[policy.content] = policy

    def _on_stale(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.queues[number].stale = True
            self.state.stale.append(self.queues[number])

    def _on_trimming(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.state.trimming[number] = self.queues[number]

    def _on_late(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.state.late[number] = self.queues[number]

    def _on_reading(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.state.reading[number] = self.queues[number]

    def _on_end(self, root: int) -> None:
        self._apply_policies()
        self.claimed_root = root
