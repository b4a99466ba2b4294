"""The closed list of records of a member log.

`codec` encodes them; the format is docs/MEMBERLOG.md.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple, TypeAlias

VERSION = 1
HASH_ALG = "blake2b-16"
SUFFIX = ".qml"
HASH_BYTES = 16
MARK_BYTES = 8 + HASH_BYTES
ROLE_MEMBER, ROLE_CLIENT = "member", "client"  # the owner of a log
LEASE_TAKEN, LEASE_GIVEN_UP, LEASE_LOST = "taken", "given up", "lost"

CHECKPOINT_ROW = struct.Struct("<IQIQQ")
"""A row of CHECKPOINT: number of the queue, ready, unacked, the number of its next message, and the
hash of its ready messages."""

READER_ROW = struct.Struct("<IIQQ?")
"""A row of READERS: number of the queue, channel, name of the reader, the next place to send, and
whether it has a filter."""

CLIENT_ROW = struct.Struct("<BQQ")
"""A row of CLIENT: `ClientOp`, with REDELIVERED; body hash; publish number or delivery tag."""
REDELIVERED = 0x80


class RecordKind(IntEnum):
    """The kinds of records, as numbered on disk."""

    HEADER = 1
    START = 2
    VIEW = 3
    ACTIVE = 4
    INACTIVE = 5
    BATCH = 6
    CONFIRM = 7
    SNAPSHOT = 8
    DURABLE = 9
    STOP = 10
    VOTE = 11
    DECIDED = 12
    END = 13
    QUEUES = 14
    CHECKPOINT = 15
    CLIENT = 16
    READERS = 17
    LEASE = 18


class Header(NamedTuple):
    """First record of each segment: whose log it is, and which segment it continues."""

    version: int
    cluster_name: str
    cluster_id: str  # "" while the member does not know its cluster
    member: str  # of a client's log: the client
    incarnation: int
    segment: int
    prev_link: bytes  # the last link of the previous segment
    hash_alg: str
    wall_us: int
    role: str = ROLE_MEMBER  # or ROLE_CLIENT


class Start(NamedTuple):
    """The state that recovery found in the store; the log continues from this position."""

    state_epoch: int
    position: int
    chain: bytes
    root: int


class ViewSeen(NamedTuple):
    """A configuration of the ring was delivered."""

    ring_seq: int
    ring_rep: str
    regular: bool
    members: tuple[tuple[str, int], ...]  # name, incarnation


class Active(NamedTuple):
    """From here this member is in the primary view of `epoch`."""

    epoch: int
    ring_seq: int
    ring_rep: str
    base_position: int  # the epoch's first command is at base_position + 1
    base_chain: bytes
    members: tuple[tuple[str, int, bool], ...]  # name, incarnation, fresh
    voters: tuple[str, ...]
    cold: bool


class Inactive(NamedTuple):
    """From here this member is in no primary view."""

    reason: str


class Decided(NamedTuple):
    """`epoch` decided the batches up to the next ACTIVE: they were unstable when their view ended,
    or come from the log of a member that is in the primary view of `epoch`."""

    epoch: int


class Batch(NamedTuple):
    """One ordered item was applied: its `commands` commands are at `first_position` and after."""

    epoch: int
    ring_seq: int
    seq: int
    first_position: int
    commands: int
    origin: str
    session: int
    blob_no: int
    time_us: int
    kinds: bytes  # one u8 per command
    outcomes: bytes  # one u16 little endian per command
    blob_hash: bytes
    chain: bytes  # after the batch
    root: int  # of the state after the batch
    order: bytes
    moves: bytes  # the commands' moves of messages: rows of broker.machine.move_log.MOVE


class ConfirmRecord(NamedTuple):
    """Publishes of this member's own clients were confirmed to them, named by position."""

    epoch: int
    durable_mark: int
    positions: tuple[int, ...]


class Snapshot(NamedTuple):
    """The state was replaced by a transferred one: a legal gap up to `position`."""

    state_epoch: int
    position: int
    chain: bytes
    root: int
    donor: str


class Durable(NamedTuple):
    """This member's own store holds everything up to `position`, fsynced."""

    position: int


class Stop(NamedTuple):
    """The orderly end of this log; without it, the tail is unknown."""

    reason: str
    position: int
    chain: bytes


class Vote(NamedTuple):
    """This member's view of a digest vote."""

    position: int
    chain: bytes
    root: int
    verdict: str  # "agreed", "divergent" or "undecided"


class End(NamedTuple):
    """Last record of a closed segment: its totals, available without reading it."""

    first_position: int  # of its first batch, 0 = none
    position: int  # reached by the incarnation; 0 = the segment does not tell
    chain: bytes  # at that position
    records: int  # including the header and this one
    batches: int
    commands: int
    moves: int
    confirms: int
    step: int  # positions between marks
    marks: bytes  # u64le position and 16 bytes of chain, each


class Queues(NamedTuple):
    """Names of the queues that moves refer to by number, before they first appear."""

    queues: tuple[tuple[int, str, str, bool, int], ...]
    """Number (never used again), vhost, name, durable, highest priority (-1: a plain queue)."""


class Checkpoint(NamedTuple):
    """The state of all queues at this place of the log.

    Consecutive ones at the same position are one, of more queues than fit into a record.
    """

    position: int
    root: int
    next_message: int  # the number of the next message
    queues: bytes  # rows of CHECKPOINT_ROW, by number


class Readers(NamedTuple):
    """The readers of all streams, at the place of the next CHECKPOINT.

    Consecutive ones are one, of more readers than fit into a record.
    """

    readers: bytes  # rows of READER_ROW, by number of the stream


class Lease(NamedTuple):
    """An event of the lease on a shared store under which this incarnation leads."""

    what: str  # LEASE_TAKEN, LEASE_GIVEN_UP or LEASE_LOST
    token: int
    owner: str
    source: int  # the token whose store was copied, 0 = it begins empty
    clock: str  # the clock of the times, "" = one that is compared with none
    at_us: int
    until_us: int  # until when it may reply, if it renews no more


class ClientOp(IntEnum):
    """An action or reception of a client, in the low bits of the first byte of a row."""

    PUBLISHED = 1
    CONFIRMED = 2
    REFUSED = 3  # basic.nack
    UNROUTABLE = 4  # basic.return; its confirm follows
    RECEIVED = 5
    ACKED = 6
    LOST = 7  # the connection: outstanding operations may have been carried out or not


class Client(NamedTuple):
    """A client's actions and receptions in one turn, in its order."""

    session: int  # its connection, from 1 in its incarnation
    queue: str  # the one it publishes to or consumes from, "" = it names none
    time_us: int
    ops: bytes  # rows of CLIENT_ROW


Record: TypeAlias = (
    Header
    | Start
    | ViewSeen
    | Active
    | Inactive
    | Decided
    | Batch
    | ConfirmRecord
    | Snapshot
    | Durable
    | Stop
    | Vote
    | End
    | Queues
    | Checkpoint
    | Client
    | Readers
    | Lease
)
