"""The replicated state: plain objects that refer to one another, without behaviour.

All containers that are iterated are dicts, lists and deques: their order is the order in which the
commands filled them, so it is the same at all members. Nothing is looked up by identity or hash.
"""

from collections import deque
from typing import Final, NamedTuple, TypeAlias

from broker.machine.commands import Table
from broker.machine.digest import MASK, body_hash, message_hash
from broker.machine.effects import Effect
from broker.machine.move_log import MARK_MASK

# A message, shared by all queues that hold it: a plain tuple of atomic values, its fields named by
# index. No NamedTuple: the garbage collector stops tracking a tuple of atomic values, but never
# an instance of a subclass, and then each full collection takes nine times as long.
Message: TypeAlias = tuple[int, int, str, str, int, int, int, bytes, bytes]
CONTENT_HASH: Final = 0  # digest.message_hash over all that follows
NUMBER: Final = 1
EXCHANGE: Final = 2
KEY: Final = 3
IS_PERSISTENT: Final = 4  # commands.PERSISTENT or 0
CREATED_US: Final = 5  # in the machine's time
TTL_US: Final = 6  # NO_TTL: none of its own
PROPERTIES: Final = 7
BODY: Final = 8


def rehash(message: Message) -> int:
    """The message's hash again, from the bytes it holds now."""
    _, number, exchange, key, flags, created_us, ttl_us, properties, body = message
    return message_hash(
        number, exchange, key, flags, created_us, ttl_us, properties, body, body_hash(body)
    )


NO_TTL = -1
NO_LIMIT = 1 << 62


class Binding(NamedTuple):
    source: str
    to_queue: bool  # the destination is a queue, else an exchange
    destination: str
    key: str
    arguments: Table
    packed: bytes  # canonical(arguments): part of the identity

    def identity(self) -> "BindingId":
        return (self.source, self.to_queue, self.destination, self.key, self.packed)


BindingId: TypeAlias = tuple[str, bool, str, str, bytes]


class Exchange:
    __slots__ = (
        "alternate",
        "arguments",
        "auto_delete",
        "bindings",
        "by_key",
        "durable",
        "inbound",
        "internal",
        "name",
        "patterns",
        "type",
    )

    def __init__(
        self, name: str, kind: str, durable: bool, auto_delete: bool, internal: bool, args: Table
    ) -> None:
        self.name = name
        self.type = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = args
        alternate = args.get("alternate-exchange")
        self.alternate = alternate if isinstance(alternate, str) else None
        self.bindings: dict[BindingId, Binding] = {}  # from here
        self.inbound: dict[BindingId, Binding] = {}  # from other exchanges to here
        self.by_key: dict[str, dict[BindingId, Binding]] = {}
        self.patterns: dict[str, tuple[str, ...]] = {}  # topic keys with wildcards, in words


class Queue:
    __slots__ = (
        "arguments",
        "auto_delete",
        "bindings",
        "consumers",
        "dead_letter_exchange",
        "dead_letter_key",
        "deadlines",
        "deleted",
        "durable",
        "exclusive_consumer",
        "expires_us",
        "mark",
        "max_bytes",
        "max_length",
        "max_priority",
        "name",
        "next_seq",
        "number",
        "overflow",
        "owner",
        "owner_key",
        "ready",
        "ready_bytes",
        "ready_sum",
        "recovered_seq",
        "returned",
        "returned_order",
        "salt",
        "service",
        "single_active",
        "ttl_us",
        "unacked",
        "used_us",
        "vhost",
    )

    def __init__(
        self,
        vhost: "Vhost",
        name: str,
        number: int,
        durable: bool,
        auto_delete: bool,
        owner: "ConnectionRecord | None",
        arguments: Table,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.number = number  # never reused: distinguishes queues of the same name
        self.mark = number & MARK_MASK  # its name in move rows
        self.durable = durable
        self.auto_delete = auto_delete
        self.owner = owner  # an exclusive queue's connection
        self.owner_key = owner.key if owner is not None else None
        self.arguments = arguments
        self.deleted = False
        self.bindings: dict[BindingId, Binding] = {}  # to here
        # Of a priority queue `ready` stays empty, and a number starts with the priority.
        # `ready` holds the sequence numbers up to next_seq without a gap; `returned` holds the
        # requeued ones, all of them older than the first of `ready`.
        self.next_seq = 0
        self.ready: deque[Message] = deque()
        self.returned: dict[int, Message] = {}
        self.returned_order: list[int] = []  # heap of the keys of `returned`
        self.recovered_seq = 0  # below: recovered after a cold start, so flagged redelivered
        self.ready_sum = 0  # additive hash of the ready messages
        self.ready_bytes = 0  # of bodies; kept only if max_bytes is set
        self.deadlines = 0  # how many of the ready messages can expire
        self.unacked = 0
        # Consumers in the order in which they came; `service` those with credit, next one first.
        self.consumers: dict[tuple[int, int, int, str], Consumer] = {}
        self.service: deque[Consumer] = deque()
        self.exclusive_consumer = False
        # From the arguments (queueing/arguments.py).
        self.max_length = -1
        self.max_bytes = -1
        self.max_priority = -1
        self.overflow = "drop-head"
        self.ttl_us = NO_TTL
        self.expires_us = -1  # the queue itself, unused for so long
        self.used_us = 0  # kept only if it expires
        self.dead_letter_exchange: str | None = None
        self.dead_letter_key: str | None = None
        self.single_active = False
        self.salt = 0


class Route(NamedTuple):
    """Where messages of one exchange and key go; its strings are shared by all these messages."""

    exchange: str
    key: str
    queues: tuple[Queue, ...]  # in the order of their numbers
    durable: bool  # at least one of them is


class Vhost:
    __slots__ = ("exchanges", "name", "queues", "routes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.routes: dict[tuple[str, str], Route] = {}  # cache: empty after any topology change


class ConnectionRecord:
    __slots__ = ("channels", "exclusive", "key", "local", "peer", "user", "vhost")

    def __init__(
        self, key: tuple[int, int], vhost: Vhost, user: str, peer: str, local: bool
    ) -> None:
        self.key = key
        self.vhost = vhost
        self.user = user
        self.peer = peer
        self.local = local
        self.channels: dict[int, Channel] = {}
        self.exclusive: dict[str, Queue] = {}


class Consumer:
    __slots__ = (
        "active",
        "channel",
        "exclusive",
        "limit",
        "no_ack",
        "no_local",
        "outstanding",
        "prefetch",
        "priority",
        "queue",
        "tag",
        "waiting",
    )

    def __init__(
        self,
        channel: "Channel",
        queue: Queue,
        tag: str,
        no_ack: bool,
        no_local: bool,
        exclusive: bool,
        prefetch: int,
        limit: int,
        priority: int,
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.no_local = no_local  # kept and shown; does not filter, as in RabbitMQ
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.limit = limit
        self.priority = priority  # higher ones are served first while they have credit
        self.outstanding = 0
        self.active = True  # not cancelled
        self.waiting = False  # is in queue.service


# queue, seq, message, consumer (None: a get), redelivered
Held: TypeAlias = tuple[Queue, int, Message, Consumer | None, bool]


class Channel:
    __slots__ = (
        "connection",
        "consumers",
        "key",
        "limit",
        "local",
        "mark",
        "next_tag",
        "outstanding",
        "salt",
        "unacked",
        "unsent",
    )

    def __init__(self, connection: ConnectionRecord, number: int, salt: int) -> None:
        self.connection = connection
        self.key = (*connection.key, number)
        self.local = connection.local
        self.salt = salt
        self.mark = salt & MARK_MASK  # its name in move rows
        self.next_tag = 1
        self.limit = NO_LIMIT  # shared by the consumers with acknowledgement
        self.outstanding = 0  # of those
        self.consumers: dict[str, Consumer] = {}
        self.unacked: dict[int, Held] = {}  # by delivery tag: the client must settle them
        self.unsent: dict[int, Held] = {}  # no-ack: settled by the owner's Sent


class SessionRecord:
    __slots__ = ("incarnation", "last_blob_no", "salt", "session")

    def __init__(self, session: int, incarnation: int, last_blob_no: int, salt: int) -> None:
        self.session = session
        self.incarnation = incarnation
        self.last_blob_no = last_blob_no
        self.salt = salt


class Clock(NamedTuple):
    """A member's last tick, in the machine's time."""

    reached_us: int  # so far its clock has gone
    limit_us: int  # it will not claim more before its next tick


class QueueRow(NamedTuple):
    """A queue as operators, and members that compare their states, see it."""

    vhost: str
    name: str
    durable: bool
    exclusive: bool
    ready: int
    unacked: int
    consumers: int
    digest: int  # additive hash of the ready messages


class State:
    """All of it. The handlers are functions of this, the session and the command."""

    __slots__ = (
        "channels",
        "clocks",
        "cluster_id",
        "connections",
        "dead_letters",
        "declared",
        "digest",
        "due_us",
        "effects",
        "epoch",
        "expiring",
        "horizon_us",
        "leased",
        "local",
        "local_session",
        "moves",
        "next_message",
        "next_queue",
        "now_us",
        "poison",
        "position",
        "sessions",
        "shutdown_id",
        "time_us",
        "vhosts",
        "voters",
    )

    def __init__(self, local: str) -> None:
        self.local = local
        self.local_session = -1
        self.effects: list[Effect] = []
        self.moves: list[bytes] = []  # rows of the present item, no part of the state: move_log.py
        self.declared: list[Queue] = []  # queues that were declared in it
        self.position = 0  # of the command being applied
        self.time_us = 0  # its origin's clock
        self.now_us = 0  # the machine's time: moves by Tick (clock/cluster_time.py)
        self.horizon_us = 0  # what is created now counts from here; follows from the state
        self.clocks: dict[str, Clock] = {}  # by member
        self.due_us = 0  # nothing expires before; no part of the state, see cluster_time.py
        self.digest = 0  # the root
        self.epoch = 0
        self.voters: tuple[str, ...] = ()
        self.cluster_id = ""
        self.shutdown_id = ""
        self.next_message = 1
        self.next_queue = 1
        self.sessions: dict[str, SessionRecord] = {}
        self.vhosts: dict[str, Vhost] = {}
        self.connections: dict[tuple[int, int], ConnectionRecord] = {}
        self.channels: dict[tuple[int, int, int], Channel] = {}
        self.expiring: dict[int, Queue] = {}  # queues with a ready message that can expire
        self.leased: dict[int, Queue] = {}  # queues that expire when unused, and are unused
        # (kind, content) of commands of which members died, to the names of those members
        self.poison: dict[tuple[int, bytes], tuple[str, ...]] = {}
        self.dead_letters: list[tuple[Queue, Message, str]] = []  # to publish at this position

    def add(self, element: int) -> None:
        """Add an element to the root, or a sum of several."""
        self.digest = (self.digest + element) & MASK

    def remove(self, element: int) -> None:
        self.digest = (self.digest - element) & MASK
