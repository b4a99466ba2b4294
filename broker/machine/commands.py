"""The closed list of commands: every change of the machine is one of these.

A command is a plain tuple whose first item is its KIND. The NamedTuples below name the other items:
origins build them, and handlers name them in their signatures. `unpack_blob` (command_codec.py)
returns plain tuples of the same shape, checked item by item, because the hot path only ever unpacks
them.

Every choice in a command was made once, at the origin: names, tags, time, permission.
Decision: docs/decisions/0016-decide-once-at-the-origin.md.

`command_codec.py` encodes commands.
"""

from typing import NamedTuple, TypeAlias

Value: TypeAlias = "bool | int | float | str | bytes | tuple[Value, ...] | dict[str, Value] | None"
Table: TypeAlias = dict[str, Value]

# Outcomes of a command that are not AMQP reply codes. The replica chains each outcome as u16.
OK = 0
IGNORED = 1  # unknown session, connection or channel: the command came too late
MALFORMED = 2  # given by the replica to a blob that unpack_blob refused (takes one position)
OUT_OF_SEQUENCE = 3  # given by the replica to a blob that accept_blob refused (one position)
UNROUTABLE = 200  # a publish that was accepted and reached no queue
REPEATED = 201  # a publish with a number used before: nothing is done, the answer is the same

# Client commands: below 64. Control commands of members: 64 and above.
REFUSED = 0  # no command: the one position of a blob of which nothing was executed
CONNECTION_OPEN = 1
CONNECTION_CLOSE = 2
CHANNEL_OPEN = 3
CHANNEL_CLOSE = 4
EXCHANGE_DECLARE = 5
EXCHANGE_DELETE = 6
EXCHANGE_BIND = 7
EXCHANGE_UNBIND = 8
QUEUE_DECLARE = 9
QUEUE_BIND = 10
QUEUE_UNBIND = 11
QUEUE_PURGE = 12
QUEUE_DELETE = 13
PUBLISH = 14
CONSUME = 15
CANCEL = 16
GET = 17
ACK = 18
NACK = 19
RECOVER = 20
QOS = 21
SENT = 22
TX_COMMIT = 23
BODY_PART = 24
ACTIVATE = 64
DIGEST = 65
TICK = 66
SHUTDOWN = 67
POISONED = 68
REEXECUTED = 69
VOTERS = 70
UPGRADE = 71
ALARM = 72
DEFINE = 73
PROMOTE = 74
DEMOTE = 75
KINDS_MAX = 76

# Bits of Publish.flags and TxPublish.flags.
MANDATORY = 1
IMMEDIATE = 2
PERSISTENT = 4
# And in Publish.flags: `body` follows the parts that the channel has sent.
IN_PARTS = 8

# TxSettle.action
TX_ACK = 0
TX_DISCARD = 1
TX_REQUEUE = 2


class ConnectionOpen(NamedTuple):
    """A client was let in. `conn` is unique in its session for ever: never reused."""

    kind: int
    conn: int
    vhost: str
    user: str
    peer: str  # "host:port" of the client, for operators


class ConnectionClose(NamedTuple):
    """The client is gone, cleanly or not: unacked messages return in place, exclusive queues go."""

    kind: int
    conn: int


class ChannelOpen(NamedTuple):
    """No reply effect: the gateway sends open-ok, since nothing can refuse it."""

    kind: int
    conn: int
    chan: int


class ChannelClose(NamedTuple):
    """Replies channel.close-ok, so that it follows the replies to everything before it."""

    kind: int
    conn: int
    chan: int


class ExchangeDeclare(NamedTuple):
    kind: int
    conn: int
    chan: int
    name: str
    type: str
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    nowait: bool
    arguments: Table


class ExchangeDelete(NamedTuple):
    kind: int
    conn: int
    chan: int
    name: str
    if_unused: bool
    nowait: bool


class ExchangeBind(NamedTuple):
    """Messages of `source` that match `key` and `arguments` also go to exchange `destination`."""

    kind: int
    conn: int
    chan: int
    destination: str
    source: str
    key: str
    nowait: bool
    arguments: Table


class ExchangeUnbind(NamedTuple):
    kind: int
    conn: int
    chan: int
    destination: str
    source: str
    key: str
    nowait: bool
    arguments: Table


class QueueDeclare(NamedTuple):
    """The gateway stamps the name of a server-named queue ("amq.gen-" and random characters)."""

    kind: int
    conn: int
    chan: int
    name: str
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    nowait: bool
    arguments: Table


class QueueBind(NamedTuple):
    kind: int
    conn: int
    chan: int
    queue: str
    exchange: str
    key: str
    nowait: bool
    arguments: Table


class QueueUnbind(NamedTuple):
    """AMQP's queue.unbind has no nowait bit: the gateway sets it to False."""

    kind: int
    conn: int
    chan: int
    queue: str
    exchange: str
    key: str
    nowait: bool
    arguments: Table


class QueuePurge(NamedTuple):
    kind: int
    conn: int
    chan: int
    queue: str
    nowait: bool


class QueueDelete(NamedTuple):
    kind: int
    conn: int
    chan: int
    queue: str
    if_unused: bool
    if_empty: bool
    nowait: bool


class Publish(NamedTuple):
    """One whole message. `properties` are the content header's flags and list, verbatim."""

    kind: int
    conn: int
    chan: int
    publish_no: int  # counts from 1 on a channel in confirm mode; 0 = no confirm wanted
    exchange: str
    key: str
    flags: int  # MANDATORY | IMMEDIATE | PERSISTENT
    properties: bytes
    body: bytes


class BodyPart(NamedTuple):
    """A part of the body of the channel's next Publish, which has IN_PARTS. Parts keep every
    command small, so that other clients get their turn in between."""

    kind: int
    conn: int
    chan: int
    data: bytes


class Consume(NamedTuple):
    kind: int
    conn: int
    chan: int
    queue: str
    tag: str  # never empty: the gateway stamps one
    no_local: bool
    no_ack: bool
    exclusive: bool
    nowait: bool
    arguments: Table
    prefetch: int  # the channel's per-consumer prefetch when it consumed; 0 = none


class Cancel(NamedTuple):
    kind: int
    conn: int
    chan: int
    tag: str
    nowait: bool


class Get(NamedTuple):
    kind: int
    conn: int
    chan: int
    queue: str
    no_ack: bool


class Ack(NamedTuple):
    """`tag` 0 with `multiple`: everything unacked on the channel."""

    kind: int
    conn: int
    chan: int
    tag: int
    multiple: bool


class Nack(NamedTuple):
    """basic.nack and basic.reject (which is never multiple)."""

    kind: int
    conn: int
    chan: int
    tag: int
    multiple: bool
    requeue: bool


class Recover(NamedTuple):
    """Always replies basic.recover-ok; the gateway drops that reply for recover-async."""

    kind: int
    conn: int
    chan: int
    requeue: bool


class Qos(NamedTuple):
    """With `global_`: the limit shared by the channel's consumers. Without: only the reply (the
    gateway remembers the count and stamps it into each later Consume)."""

    kind: int
    conn: int
    chan: int
    prefetch_count: int
    global_: bool


class Sent(NamedTuple):
    """The owner wrote all no-ack deliveries and gets of the channel up to this delivery tag. This
    settles them, and gives no-ack consumers credit."""

    kind: int
    conn: int
    chan: int
    tag: int


class TxPublish(NamedTuple):
    exchange: str
    key: str
    flags: int
    properties: bytes
    body: bytes


class TxSettle(NamedTuple):
    tag: int
    multiple: bool
    action: int  # TX_ACK, TX_DISCARD, TX_REQUEUE


class TxCommit(NamedTuple):
    """All settlements and all publishes, at this one position; or an error and none of them."""

    kind: int
    conn: int
    chan: int
    publishes: tuple[TxPublish, ...]
    acks: tuple[TxSettle, ...]


class ActiveMember(NamedTuple):
    name: str
    incarnation: int
    fresh: bool  # it does not continue its former session: it crashed, joined, or lost the primary


class Activate(NamedTuple):
    """A primary view begins: ends the sessions that do not continue, starts the missing ones."""

    kind: int
    epoch: int
    members: tuple[ActiveMember, ...]
    cold: bool  # no member carried live state over: only durable content remains
    voters: tuple[str, ...]
    cluster_id: str
    version: int = 0  # version of the machine, for a state in which none is in force yet


class DigestClaim(NamedTuple):
    """A member's claim about its own state; compared by the replica, a no-op for the machine."""

    kind: int
    epoch: int
    position: int
    chain: bytes
    root: int


class Tick(NamedTuple):
    """How far the machine's time has advanced by the sender's clock. Only ticks move it."""

    kind: int
    reached_us: int
    ahead_us: int  # the time on that clock when the sender's next submission is applied
    applied: int  # the position up to which the sender had applied when it read its clock


class Shutdown(NamedTuple):
    """The whole cluster stops here, cleanly; remembered so that all members name the same stop."""

    kind: int
    shutdown_id: str


class Poisoned(NamedTuple):
    """The sender failed at a command of this kind and content (`poison.content_of`)."""

    kind: int
    of_kind: int
    content: bytes


class Reexecuted(NamedTuple):
    """The result of the sender's re-execution of its own store up to a disputed position; a no-op
    for the machine. `verdict`: REPRODUCED, FAILED or UNPROVEN (broker/divergence/split_vote.py)."""

    kind: int
    position: int
    verdict: int
    chain: bytes
    root: int


class Voters(NamedTuple):
    """Changes the voters from here on, if `before` are the voters until here. The layer below
    interprets the terms (vsync/quorum/voter_set.py); a change takes two of these commands
    (vsync/quorum/reconfiguration.py)."""

    kind: int
    before: tuple[str, ...]
    after: tuple[str, ...]


class Upgrade(NamedTuple):
    """From here on the machine behaves as in this version. All members of the view of `epoch` can
    execute it; a later view may have a member of an older release."""

    kind: int
    epoch: int
    version: int


class Alarm(NamedTuple):
    """The sender is running out of something, or no longer is. While any member's alarm is on, no
    member takes publishes."""

    kind: int
    subject: str  # DISK, MEMORY or FULL (handlers/alarms.py)
    on: bool
    detail: str  # for people


class Define(NamedTuple):
    """An operator defines something for the whole cluster: a user, a virtual host, a policy. The
    member that was asked gets a `Defined`; all members get the definition."""

    kind: int
    request: int  # the sender's; returned in its `Defined`
    by: str  # the operator's user, for people
    what: str  # one of handlers/definitions.KINDS
    vhost: str  # empty: of the whole cluster
    name: str
    body: Table | None  # None deletes it


class Promote(NamedTuple):
    """The sender becomes the active member, if no member is (active-passive mode). Counts only in
    the epoch in which it was judged: an operator's wish for one view is not carried out in another.
    """

    kind: int
    epoch: int


class Demote(NamedTuple):
    """The sender is no longer the active member; counts in the same way."""

    kind: int
    epoch: int


Command: TypeAlias = (
    ConnectionOpen
    | ConnectionClose
    | ChannelOpen
    | ChannelClose
    | ExchangeDeclare
    | ExchangeDelete
    | ExchangeBind
    | ExchangeUnbind
    | QueueDeclare
    | QueueBind
    | QueueUnbind
    | QueuePurge
    | QueueDelete
    | Publish
    | Consume
    | Cancel
    | Get
    | Ack
    | Nack
    | Recover
    | Qos
    | Sent
    | TxCommit
    | BodyPart
    | Activate
    | DigestClaim
    | Tick
    | Shutdown
    | Poisoned
    | Reexecuted
    | Voters
    | Upgrade
    | Alarm
    | Define
    | Promote
    | Demote
)

CLASSES: dict[int, type[Command]] = {
    CONNECTION_OPEN: ConnectionOpen,
    CONNECTION_CLOSE: ConnectionClose,
    CHANNEL_OPEN: ChannelOpen,
    CHANNEL_CLOSE: ChannelClose,
    EXCHANGE_DECLARE: ExchangeDeclare,
    EXCHANGE_DELETE: ExchangeDelete,
    EXCHANGE_BIND: ExchangeBind,
    EXCHANGE_UNBIND: ExchangeUnbind,
    QUEUE_DECLARE: QueueDeclare,
    QUEUE_BIND: QueueBind,
    QUEUE_UNBIND: QueueUnbind,
    QUEUE_PURGE: QueuePurge,
    QUEUE_DELETE: QueueDelete,
    PUBLISH: Publish,
    CONSUME: Consume,
    CANCEL: Cancel,
    GET: Get,
    ACK: Ack,
    NACK: Nack,
    RECOVER: Recover,
    QOS: Qos,
    SENT: Sent,
    TX_COMMIT: TxCommit,
    BODY_PART: BodyPart,
    ACTIVATE: Activate,
    DIGEST: DigestClaim,
    TICK: Tick,
    SHUTDOWN: Shutdown,
    POISONED: Poisoned,
    REEXECUTED: Reexecuted,
    VOTERS: Voters,
    UPGRADE: Upgrade,
    ALARM: Alarm,
    DEFINE: Define,
    PROMOTE: Promote,
    DEMOTE: Demote,
}
