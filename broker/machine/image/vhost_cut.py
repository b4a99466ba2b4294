"""The part of a snapshot for one virtual host: queues with their waiting messages, and topology."""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TypeAlias, TypeVar

from broker.machine.image.page_items import goes_as_it_is
from broker.machine.publishing.numbers import cut
from broker.machine.state import NUMBER, Message, Vhost, all_queues
from broker.waiting.blocks import Block, Part, packed_ahead, read_ahead, read_along
from broker.waiting.places import Places

BATCH_ITEMS = 8192
_QUEUES_A_STEP = 256

_T = TypeVar("_T")
Item: TypeAlias = tuple[object, ...]
"""One item of a snapshot: its name and its fields."""
BEING_READ: Item = ("being read",)  # no item: a place to wait


class VhostCut:
    """The cut of one virtual host, by columns. Of the unchanging parts of queues, exchanges and
    bindings only references are taken. With a tuple for each of 100,000 queues the cut paused for
    0.2 s."""

    def __init__(self, vhost: Vhost) -> None:
        queues = list(all_queues(vhost))
        self._name, self._queues = vhost.name, queues
        self._next_seqs = [queue.next_seq for queue in queues]
        self._recovered_seqs = [queue.recovered_seq for queue in queues]
        self._used_us = [queue.used_us for queue in queues]
        self._policies = [queue.policy for queue in queues]
        self._operator_policies = [queue.operator_policy for queue in queues]
        self._ready = {queue.number: queue.ready.parts() for queue in queues if queue.ready}
        # What reading them gave: their numbers, or a block that is written unchanged.
        self._places: dict[int, list[Sequence[int] | Block[Message]]] = {}
        self._returned = {q.number: q.returned.copy() for q in queues if q.returned}
        self._windows = {q.number: q.window.order.copy() for q in queues if q.window}
        self._returns = {q.number: q.returns.copy() for q in queues if q.returns}
        self._superseded = {
            q.number: list(q.last_values.superseded) for q in queues if q.last_values is not None
        }
        self._kept = {q.number: q.groups.kept.copy() for q in queues if q.groups is not None}
        # Their columns are rebuilt from the messages.
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
        """The messages waiting in the queues, in order, without the blocks written unchanged as
        `pages`; None while the next ones are being read, unless `at_once` waits for that."""
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
        read: deque[int] = deque()  # places of the parts being read
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

    def items(self, *, at_once: bool) -> Iterator[Item | None]:
        """Everything but the messages; None: a place to pause."""
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

    def _ready_items(self, number: int, next_seq: int, *, at_once: bool) -> Iterator[Item | None]:
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
                yield BEING_READ
            yield ("page", number, seq, *place.page.summary, data)
            yield None
            seq += len(place)
        yield from _numbered(number, numbers)

    def _other_items(self, number: int) -> Iterator[Item | None]:
        if superseded := self._superseded.get(number):
            yield ("superseded", number, superseded)
        places: list[int] = []
        numbers: list[int] = []
        for some, messages in self._returned.pop(number, Places()).drain():
            places += some
            numbers += [message[NUMBER] for message in messages]
            if len(places) >= BATCH_ITEMS:
                yield ("returned", number, places[:BATCH_ITEMS], numbers[:BATCH_ITEMS])
                yield None
                del places[:BATCH_ITEMS], numbers[:BATCH_ITEMS]
        if places:
            yield ("returned", number, places, numbers)
            yield None
        for noted in in_batches(self._windows.pop(number, ())):
            yield ("window", number, noted)
            yield None
        step_s, times = self._times.pop(number, (1, []))
        if times:
            yield ("times", number, step_s, times)
        returns = self._returns.get(number, {})
        for part in in_batches(sorted(returns)):  # sorting pairs takes many times as long
            yield ("returns", number, [(seq, returns[seq]) for seq in part])
            yield None

    def _topology(self) -> Iterator[Item | None]:
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
            for part in in_batches(bindings):
                for binding in part:
                    yield ("binding", self._name, *binding[:5])
                yield None
        for *producer, entries in self._producers:
            yield ("producer", self._name, *producer, entries.tolist())
            yield None

    def kept_groups(self) -> Iterator[Item | None]:
        """The groups assigned to consumers, in the order of assignment."""
        for number, kept in self._kept.items():
            if kept:
                rows = [(key, *one.channel.key, one.tag) for key, one in kept.items()]
                yield ("kept_groups", number, rows)
                yield None


def _numbered(number: int, runs: list[Sequence[int]]) -> Iterator[Item | None]:
    for part in in_batches(chain.from_iterable(runs)):
        yield ("ready", number, part)
        yield None


def _taken(parts: list[_T]) -> Iterator[_T]:
    """Yield from the end, letting go on the way: a part that left its queue is freed here, and not
    all parts at the end."""
    while parts:
        yield parts.pop()


def _compact(numbers: list[int]) -> Sequence[int]:
    """The same numbers in less memory."""
    if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
        run = range(numbers[0], numbers[-1] + 1)
        if numbers == list(run):
            return run
    return array("Q", numbers)


def in_batches(items: Iterable[_T], most: int = BATCH_ITEMS) -> Iterator[list[_T]]:
    """At most this many at once."""
    rest = iter(items)
    while part := list(islice(rest, most)):
        yield part
