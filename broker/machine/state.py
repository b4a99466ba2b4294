"""The replicated state: plain objects that refer to one another, without behaviour.

All containers that are iterated are dicts, lists and deques: their order is the order in which the
commands filled them, so it is the same at all members. Nothing is looked up by identity or hash.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from broker.machine.commands import Table
from broker.machine.digest import MASK, body_hash, content_of, head, message_hash
from broker.machine.effects import Effect
from broker.machine.limits import CHANNEL_HELD_MAX
from broker.machine.move_log import MARK_MASK
from broker.machine.schedule import Schedule
from broker.machine.tally import Tally, Totals, merged
from broker.waiting.backlog import Backlog
from broker.waiting.blocks import Block, Packed, Part
from broker.waiting.bodies import Body, GrowingBody, LargeBody
from broker.waiting.filter_column import FilterColumn
from broker.waiting.groups import Group, Groups
from broker.waiting.last_values import LastValues
from broker.waiting.pager import Pager, in_memory_bytes
from broker.waiting.places import Places
from broker.waiting.stream_log import Recent, StreamLog

# A message, shared by all queues that hold it: a plain tuple of atomic values, its fields named by
# index. Not a NamedTuple: the garbage collector stops tracking a tuple of atomic values, but never
# an instance of a subclass, and then each full collection takes nine times as long.
Message: TypeAlias = tuple[int, int, str, str, int, int, int, bytes, Body]
CONTENT_HASH: Final = 0  # digest.message_hash over all that follows
NUMBER: Final = 1
EXCHANGE: Final = 2
KEY: Final = 3
IS_PERSISTENT: Final = 4  # commands.PERSISTENT or 0
CREATED_US: Final = 5  # in the machine's time
TTL_US: Final = 6  # NO_TTL: no own time to live
PROPERTIES: Final = 7
BODY: Final = 8


def rehash(message: Message) -> int:
    """The message's hash again, from the bytes it holds now. A large body keeps the hash it came
    with, because hashing its bytes takes long."""
    _, number, exchange, key, flags, created_us, ttl_us, properties, body = message
    return message_hash(
        number, exchange, key, flags, created_us, ttl_us, properties, body, body_hash(body)
    )


def rehash_wholly(message: Message) -> int:
    """The same, from all of its bytes."""
    body = message[BODY]
    if type(body) is LargeBody and body.hashed_again() != body.hashed:
        return ~message[CONTENT_HASH] & MASK
    return rehash(message)


def rehash_all(messages: Iterable[Message]) -> list[int]:
    """`rehash` of many, in less time."""
    contents: list[int] = []
    of_exchange = of_key = ""
    text = b""
    for _, number, exchange, key, flags, created_us, ttl_us, properties, body in messages:
        if exchange is not of_exchange or key is not of_key:
            of_exchange, of_key, text = exchange, key, (exchange + key).encode()
        sizes = head(number, created_us, ttl_us, flags, len(exchange), len(properties), len(body))
        contents.append(content_of(sizes + text + properties, body_hash(body)))
    return contents


NO_TTL = -1

_NOTHING = body_hash(b"")
STAYS: Final[Message] = (
    message_hash(0, "", "", 0, 0, NO_TTL, b"", b"", _NOTHING), 0, "", "", 0, 0, NO_TTL, b"", b"",
)  # fmt: skip
"""Stands for a held message that stays in its queue: its place there identifies it. No message has
the number 0."""

_body, _ttl_us = itemgetter(BODY), itemgetter(TTL_US)


def bytes_of(messages: Iterable[Message]) -> int:
    """The bytes of their bodies."""
    return sum(map(len, map(_body, messages)))


def timed_of(messages: Sequence[Message]) -> int:
    """How many have their own time to live."""
    return len(messages) - list(map(_ttl_us, messages)).count(NO_TTL)


class Binding(NamedTuple):
    source: str
    to_queue: bool  # the destination is a queue; otherwise an exchange
    destination: str
    key: str
    arguments: Table
    packed: bytes  # canonical(arguments): part of the identity
    element: int = 0  # its digest element, cached: 20,000 bindings may go at one position

    def identity(self) -> "BindingId":
        return (self.source, self.to_queue, self.destination, self.key, self.packed)


BindingId: TypeAlias = tuple[str, bool, str, str, bytes]


class Policy(NamedTuple):
    """An operator's settings for all queues or exchanges with matching names."""

    content: int  # hash of all that follows: policies with the same hash are the same
    vhost: str
    name: str
    operator: bool  # an operator policy, which only limits
    pattern: str
    definition: Table
    priority: int
    apply_to: str
    body: Table  # as it was defined


Applied: TypeAlias = tuple[Policy | None, Policy | None]  # a policy, an operator's policy
Ranked: TypeAlias = tuple[tuple[Policy, ...], tuple[Policy, ...]]  # of each, the strongest first


DELAYED_MESSAGE = "x-delayed-message"
"""The type of exchanges that hold messages back until their delay is over (delay_header.py)."""
DELAYED_TYPE = "x-delayed-type"
"""The argument of such an exchange: the type by which it routes."""


@dataclass(slots=True, eq=False, repr=False)
class Exchange:
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table
    alternate: str | None = field(init=False)
    routes_as: str = field(init=False)  # its type; of a delayed-message exchange, the argument
    bindings: dict[BindingId, Binding] = field(default_factory=dict)  # from here
    inbound: dict[BindingId, Binding] = field(default_factory=dict)  # from other exchanges to here
    by_key: dict[str, dict[BindingId, Binding]] = field(default_factory=dict)
    patterns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # with wildcards, in words
    tally: Tally = field(default_factory=Tally)
    # A cache: the bindings from which one is chosen, and the end of each one's share.
    shares: tuple[list[Binding], list[int]] | None = None
    onward: tuple[str, ...] | None = None  # A cache: the exchanges bound to it.
    changes: int = 0  # Counts changes of bindings here, for followers.
    latest: deque[tuple[Binding, bool]] | None = None
    """The last bindings that came (True) or went, once the exchange is followed."""
    # A cache: the policies that apply, and the definitions in which they were found.
    applied: Applied = (None, None)
    looked_in: Ranked | None = None

    def __post_init__(self) -> None:
        alternate = self.arguments.get("alternate-exchange")
        self.alternate = alternate if isinstance(alternate, str) else None
        delayed = self.arguments.get(DELAYED_TYPE) if self.type == DELAYED_MESSAGE else None
        self.routes_as = delayed if isinstance(delayed, str) else self.type


FAILOVER = "amq.failover"
"""The exchange through which members tell clients where to find them
(broker/management/failover.py); no client may publish to it."""
STREAM = "stream"
"""The type of queues that are read without being consumed."""

RANK_SHIFT = 54  # above any number of messages; 8 bits of priority fit below bit 62
BY_DUE_TIME = 256
"""Stands for the highest priority of a queue whose messages are ordered by due time."""
ARRIVAL_BITS = 21
DUE_SHIFT = ARRIVAL_BITS + 1
"""A place in such a queue: milliseconds of the machine's time, the lowest bits of the message's
arrival number, and a free bit (queueing/queue.py, `seq_at`)."""


Noted: TypeAlias = tuple[bytes, int, int, bool]
"""Of a message that a queue took: key, place, time, and whether a cold start drops it."""


@dataclass(slots=True, eq=False, repr=False)
class Window:
    """The keys of the messages that a queue took most recently (queueing/windows.py)."""

    salt: int
    size: int
    ttl_us: int  # NO_TTL: a key goes only when enough others follow it
    order: deque[Noted] = field(default_factory=deque)  # the oldest first
    by_key: dict[bytes, Noted] = field(default_factory=dict)  # the latest one of each key
    sum: int = 0  # sum of the elements of `order`
    volatile: int = 0  # how many of them a cold start drops


STREAM_ORDER = 257
LAST_VALUES_ORDER = 258
GROUPS_ORDER = 259
"""In the member log these stand for the highest priority of a stream, of a last-value queue, and of
a queue with message groups."""


@dataclass(slots=True, eq=False, repr=False)
class Stream:
    """The additional state of a queue that is read without being consumed (queueing/streams.py)."""

    # When messages came, by the clocks of their origins: ascending numbers of steps of this many
    # seconds, each with the first offset in it.
    times: deque[tuple[int, int]] = field(default_factory=deque)
    step_s: int = 1
    times_sum: int = 0  # sum of the elements of `times`
    column: FilterColumn = field(default_factory=FilterColumn)


@dataclass(slots=True, eq=False, repr=False)
class Readers:
    """Consumers that take nothing: all consumers of a stream, and those that browse another queue
    (queueing/streams.py)."""

    count: int = 0  # with and without credit
    service: "deque[Consumer]" = field(default_factory=deque)  # with credit, the next one first
    # With credit, but nothing to read until a message comes, or comes back.
    caught_up: "list[Consumer]" = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class Queue:
    vhost: "Vhost"
    name: str
    number: int  # never reused: distinguishes queues of the same name
    durable: bool
    auto_delete: bool
    owner: "ConnectionRecord | None"  # the connection of an exclusive queue
    arguments: Table
    # The exchange whose messages wait here until they are due; invisible to clients.
    delays: str | None = None
    # The queue whose dead letters wait here until they can go; invisible to clients too.
    letters_of: str | None = None
    owner_key: tuple[int, int] | None = field(init=False)
    mark: int = field(init=False)  # its name in move rows
    salt: int = 0
    deleted: bool = False
    bindings: dict[BindingId, Binding] = field(default_factory=dict)  # bindings to here
    # `ready` holds the sequence numbers up to next_seq without a gap; `returned` holds the requeued
    # ones, all of them older than the first of `ready`. In a priority queue `ready` stays empty,
    # and a number starts with the priority; in a queue that delays, with the due time. A last-value
    # queue is a priority queue with one priority.
    next_seq: int = 0
    ready: Backlog[Message] = field(default_factory=Backlog)
    returned: Places[Message] = field(default_factory=Places)
    recovered_seq: int = 0  # below: recovered by a cold start, so flagged redelivered
    ready_sum: int = 0  # additive hash of the ready messages
    ready_bytes: int = 0  # of bodies
    timed: int = 0  # how many ready messages have their own time to live
    expiring: bool = False  # some ready message can expire: is in state.expiring
    unacked: int = 0
    unacked_bytes: int = 0  # of bodies
    # Consumers in the order in which they came; `service` holds those that take messages and have
    # credit, the next one first.
    consumers: "dict[tuple[int, int, int, str], Consumer]" = field(default_factory=dict)
    service: "deque[Consumer]" = field(default_factory=deque)
    readers: Readers | None = None
    exclusive_consumer: bool = False
    policy: Policy | None = None
    operator_policy: Policy | None = None
    stale: bool = False  # is in state.stale
    # Derived from the arguments and the policies (requests/arguments.py).
    max_length: int = -1
    max_bytes: int = -1
    max_priority: int = -1
    overflow: str = "drop-head"
    ttl_us: int = NO_TTL
    expires_us: int = -1  # how long the queue itself may be unused
    used_us: int = 0  # kept only if it expires
    delivery_limit: int = -1  # how often a message may come back before it is dead-lettered
    is_quorum: bool = False  # its type: counts even without a limit
    # How often each message came back, by sequence number, and the sum of the elements; kept only
    # while the queue counts.
    returns: dict[int, int] = field(default_factory=dict)
    returns_sum: int = 0
    window: Window | None = None  # it takes no message twice
    stream: Stream | None = None
    last_values: LastValues | None = None  # a newer message replaces the older one
    groups: "Groups[Consumer] | None" = None  # its messages have groups
    takes_all: bool = True  # plain: none of these four traits
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    at_least_once: bool = False  # dead letters wait until they can go
    letters: "Queue | None" = None  # the queue in which they wait, once one had to
    single_active: bool = False
    consumer_timeout_ms: int = -1  # its members close a channel that holds a delivery for longer
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.owner_key = self.owner.key if self.owner is not None else None
        self.mark = self.number & MARK_MASK
        if self.delays is not None:
            self.max_priority = BY_DUE_TIME
        if self.arguments.get("x-queue-type") == STREAM:
            self.stream, self.ready, self.takes_all = Stream(), StreamLog(), False
            self.readers = Readers()


def order_of(queue: Queue) -> int:
    """How its messages are ordered, as the member log records it."""
    if queue.last_values is not None:
        return LAST_VALUES_ORDER
    if queue.groups is not None:
        return GROUPS_ORDER
    return queue.max_priority if queue.stream is None else STREAM_ORDER


@dataclass(slots=True, eq=False, repr=False)
class Survivors:
    """The waiting messages of a queue that a cold start keeps, as far as they were found
    (handlers/cold_start.py)."""

    number: int  # of the queue
    fits: tuple[int, int, int]  # next number and counts of the queue with these messages
    rest: Iterator[tuple[Part[Message], Packed | None]]  # not looked at yet
    places_of_rest: Iterator[int]  # their places, in a priority queue
    messages: Backlog[Message] = field(default_factory=Backlog)  # of a plain queue
    places: Places[Message] = field(default_factory=Places)  # of a priority queue
    keys: dict[bytes, int] = field(default_factory=dict)  # of a last-value queue
    groups: "Groups[Consumer] | None" = None
    sum: int = 0  # sum of their elements
    bytes: int = 0  # of bodies
    timed: int = 0  # how many have a time to live of their own


class Route(NamedTuple):
    """Where messages with this exchange and key go; all these messages share its strings."""

    exchange: str
    key: str
    queues: tuple[Queue, ...]  # in the order of their numbers
    durable: bool  # at least one of them is
    streams: bool  # at least one is a stream, where every message is durable
    work: int  # units spent finding it (limits.py), whether or not it is cached
    source: Exchange
    lasts: bool = False  # the next message with these keys takes it too: it may be cached


@dataclass(slots=True, eq=False, repr=False)
class Producer:
    """A client program that numbers its messages, across its connections; `entries` holds the
    outcomes of the numbers (publishing/numbers.py)."""

    salt: int
    epoch: int
    used: int = 0  # the position at which it was last heard of
    highest: int = -1
    # The entry of number `first + i` is `entries[i]`; the first `skip` ones are forgotten.
    first: int = 0
    skip: int = 0
    entries: "array[int]" = field(default_factory=lambda: array("Q"))
    sum: int = 0  # of the elements of the entries
    volatile: int = 0  # how many of them a cold start drops


@dataclass(slots=True, eq=False, repr=False)
class Vhost:
    name: str
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    delays: dict[str, Queue] = field(default_factory=dict)  # by exchange
    kept_letters: dict[str, Queue] = field(default_factory=dict)  # by queue
    # by user, then by the name it gives itself, in the order in which they were heard of
    producers: dict[str, dict[str, Producer]] = field(default_factory=dict)
    # A cache: empty after any topology change.
    routes: dict[tuple[str, ...], Route] = field(default_factory=dict)
    max_queues: int = -1  # from its limits (handlers/definitions.py)
    connections: int = 0  # follows from the state
    letters: int = 0  # in state.late_letters; follows from the state
    leaving: bool = False  # it was deleted, and its content is going; follows from the state
    policies: Ranked = ((), ())  # follows from the definitions


def ready_count(queue: Queue) -> int:
    """The number of messages that wait in it."""
    return len(queue.ready) + len(queue.returned)


def all_queues(vhost: Vhost) -> Iterator[Queue]:
    """Queues that clients declared, those of exchanges that delay, and those of dead letters."""
    return chain(vhost.queues.values(), vhost.delays.values(), vhost.kept_letters.values())


@dataclass(slots=True, eq=False, repr=False)
class ConnectionRecord:
    key: tuple[int, int]
    vhost: Vhost
    user: str
    peer: str
    local: bool
    channels: "dict[int, Channel]" = field(default_factory=dict)
    exclusive: dict[str, Queue] = field(default_factory=dict)
    ended: bool = False  # it or its session ended: it is in state.ending
    totals: Totals = field(default_factory=Totals)  # shared by those of its member and vhost


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    channel: "Channel"
    queue: Queue
    tag: str
    no_ack: bool
    no_local: bool  # kept and shown; does not filter, as in RabbitMQ
    exclusive: bool
    prefetch: int
    limit: int
    priority: int  # higher ones are served first while they have credit
    outstanding: int = 0
    active: bool = True  # not cancelled
    waiting: bool = False  # is in queue.service, or where readers wait
    reader: "Reader | None" = None  # it reads a stream, or browses


@dataclass(slots=True, eq=False, repr=False)
class Reader:
    """How far a consumer has read in its queue."""

    salt: int  # its name in move rows, too
    offset: int  # the next place to send, or the first one behind it at which a message waits
    filter: tuple[bytes, ...] = ()  # it gets messages with one of these values; empty: all


# queue, seq, message (STAYS: it is in the queue still), consumer (None: a get), redelivered
Held: TypeAlias = tuple[Queue, int, Message, Consumer | None, bool]


@dataclass(slots=True, eq=False, repr=False)
class Unfinished:
    """The parts of a large body that is not whole yet."""

    body: GrowingBody = field(default_factory=GrowingBody)
    sum: int = 0  # of the parts' elements


@dataclass(slots=True, eq=False, repr=False)
class Channel:
    connection: ConnectionRecord
    number: InitVar[int]
    salt: int
    key: tuple[int, int, int] = field(init=False)
    local: bool = field(init=False)
    mark: int = field(init=False)  # its name in move rows
    total: Tally = field(init=False)  # of its member and vhost
    tally: Tally = field(default_factory=Tally)
    next_tag: int = 1
    open: bool = True  # its connection has not ended, so it may be sent more
    limit: int = CHANNEL_HELD_MAX  # shared by the consumers with acknowledgement
    outstanding: int = 0  # of those
    consumers: dict[str, Consumer] = field(default_factory=dict)
    unacked: dict[int, Held] = field(default_factory=dict)  # by tag: the client must settle them
    unsent: dict[int, Held] = field(default_factory=dict)  # no-ack: settled by the owner's Sent

    def __post_init__(self, number: int) -> None:
        self.key = (*self.connection.key, number)
        self.local = self.connection.local
        self.mark = self.salt & MARK_MASK
        self.total = self.connection.totals.messages


class Letter(NamedTuple):
    """A dead message on its way to a dead-letter exchange."""

    vhost: Vhost
    exchange: str
    key: str
    queue: str  # the queue in which it died
    message: Message
    reason: str


@dataclass(slots=True, eq=False, repr=False)
class SessionRecord:
    session: int
    incarnation: int
    last_blob_no: int
    salt: int


class Clock(NamedTuple):
    """A member's last tick, in the machine's time."""

    reached_us: int  # how far its clock has advanced
    applied: int  # the position up to which its sender had applied


class Span(NamedTuple):
    """Positions at which everything created counts from the same horizon."""

    last: int  # the last of them; ticks do not count
    horizon_us: int


class QueueRow(NamedTuple):
    """A queue as seen by operators, and by members that compare their states."""

    vhost: str
    name: str
    durable: bool
    exclusive: bool
    ready: int
    unacked: int
    consumers: int
    digest: int  # additive hash of the ready messages


Paging: TypeAlias = Pager | None  # puts waiting messages on disk; None: nothing does
Discarded: TypeAlias = (
    Backlog[Message]
    | Places[Message]
    | dict[int, int]
    | dict[bytes, int]
    | dict[bytes, Noted]
    | dict[bytes, "Group[Consumer]"]
    | Places["Group[Consumer]"]
    | deque[Noted]
)


@dataclass(slots=True, eq=False, repr=False)
class State:
    """The whole state. The handlers are functions of this, the session and the command."""

    local: str
    local_session: int = -1
    effects: list[Effect] = field(default_factory=list)
    # rows of the current item, not part of the state: move_log.py
    moves: list[bytes] = field(default_factory=list)
    declared: list[Queue] = field(default_factory=list)  # queues that were declared in it
    position: int = 0  # of the command being applied
    time_us: int = 0  # its origin's clock
    now_us: int = 0  # the machine's time: moves by Tick (clock/cluster_time.py)
    horizon_us: int = 0  # anything created now counts from here: clock/horizons.py
    spans: list[Span] = field(default_factory=list)  # of former horizons
    last_other: int = 0  # the last position without a tick, as the last tick knew it
    last_tick: int = 0  # the last position of a tick at which nothing was created
    clocks: dict[str, Clock] = field(default_factory=dict)  # by member
    digest: int = 0  # the root
    epoch: int = 0
    version: int = 0  # of the machine, in force (version.py); 0: before the first activation
    voters: tuple[str, ...] = ()
    cluster_id: str = ""
    shutdown_id: str = ""
    next_message: int = 1
    next_queue: int = 1
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    vhosts: dict[str, Vhost] = field(default_factory=dict)
    connections: dict[tuple[int, int], ConnectionRecord] = field(default_factory=dict)
    channels: dict[tuple[int, int, int], Channel] = field(default_factory=dict)
    # bodies that are not whole yet; the channel that has waited longest for its next part is first
    unfinished: dict[tuple[int, int, int], tuple[Channel, Unfinished]] = field(default_factory=dict)
    unfinished_bytes: int = 0  # follows from the state
    # queues with a ready message that can expire; follows from the state
    expiring: dict[int, Queue] = field(default_factory=dict)
    expiry: Schedule = field(default_factory=Schedule)
    # queues from which messages that can expire were taken, and all of which may have been settled
    # since; follows from the state but for these
    held_from: dict[int, Queue] = field(default_factory=dict)
    # queues that expire when unused, and are unused; follows from the state
    leased: dict[int, Queue] = field(default_factory=dict)
    lease_ends: Schedule = field(default_factory=Schedule)
    # queues that forget keys over time, and have some; follows from the state
    remembering: dict[int, Queue] = field(default_factory=dict)
    key_ends: Schedule = field(default_factory=Schedule)
    # queues of waiting dead letters, and when to look at each
    keeping: dict[int, Queue] = field(default_factory=dict)
    letter_times: Schedule = field(default_factory=Schedule)
    window_keys: int = 0  # the sum of the sizes of all windows
    # (kind, content) of commands that killed members, to the names of those members
    poison: dict[tuple[int, bytes], tuple[str, ...]] = field(default_factory=dict)
    # (member, subject) to the detail: what members are running out of
    alarms: dict[tuple[str, str], str] = field(default_factory=dict)
    active: str = ""  # the member that has this role (handlers/sessions.py)
    # operator definitions: kind, then virtual host and name (handlers/definitions.py)
    definitions: dict[str, dict[tuple[str, str], Table]] = field(default_factory=dict)
    defined: int = 0  # counts changes of `definitions` in this process; not part of the state
    # deleted virtual hosts, in the order of `vhosts`; follows from the state
    leaving: list[Vhost] = field(default_factory=list)
    # connections of each user; follows from the state
    connected: dict[str, int] = field(default_factory=dict)
    # connections that ended and are still in the state, in the order of their turn
    ending: deque[ConnectionRecord] = field(default_factory=deque)
    # queues that a change of policies may affect, not looked at yet
    stale: deque[Queue] = field(default_factory=deque)
    # queues over their limits, which drop messages position by position
    trimming: dict[int, Queue] = field(default_factory=dict)
    # queues with consumers that have credit, where the first message has expired or had: they are
    # served position by position
    late: dict[int, Queue] = field(default_factory=dict)
    # queues with a reader that has credit and may have something to read
    reading: dict[int, Queue] = field(default_factory=dict)
    # queues with groups that this command freed; none between commands
    freed: dict[int, Queue] = field(default_factory=dict)
    # to publish: those of this position, and the excess of earlier ones
    dead_letters: list[Letter] = field(default_factory=list)
    late_letters: deque[Letter] = field(default_factory=deque)
    # by member and vhost; "": counted for no member, or vhosts that are gone. Not part of the
    # state.
    totals: dict[tuple[str, str], Totals] = field(default_factory=dict)
    # how many messages died, by reason and by destination. Not part of the state.
    died: Counter[tuple[str, str]] = field(default_factory=Counter)
    # purged content: nothing refers to it, and it is freed in slices (machine.free)
    discarded: list[Discarded] = field(default_factory=list)
    # what a cold start will keep, by the queue's number; not part of the state
    survivors: dict[int, Survivors] = field(default_factory=dict)
    pager: Paging = None  # not part of the state
    # the content that readers last read from disk; not part of the state
    recent: Recent[Message] = field(default_factory=lambda: Recent(in_memory_bytes))

    def add(self, element: int) -> None:
        """Add an element, or a sum of several, to the root."""
        self.digest = (self.digest + element) & MASK

    def remove(self, element: int) -> None:
        self.digest = (self.digest - element) & MASK

    def full(self, block: Block[Message] | None) -> None:
        """A block of some queue's messages is full: it may go to disk."""
        if block is not None and self.pager is not None:
            self.pager.full(block)

    def schedules(self) -> dict[str, Schedule]:
        """All schedules, by their names in a snapshot."""
        return {
            "expiry": self.expiry,
            "lease_ends": self.lease_ends,
            "key_ends": self.key_ends,
            "letter_times": self.letter_times,
        }

    def totals_of(self, session: int, vhost: str) -> Totals:
        """The counters for what clients of this session do there."""
        found = [name for name, record in self.sessions.items() if record.session == session]
        return self.totals.setdefault((found[0] if found else "", vhost), Totals())

    def close_totals(self, vhost: str) -> None:
        """The virtual host is gone: its counts now belong to its members only."""
        for key in [key for key in self.totals if key[1] == vhost]:
            gone, rest = self.totals.pop(key), (key[0], "")
            self.totals[rest] = merged(self.totals[rest], gone) if rest in self.totals else gone
