"""The moves of messages, one row each, for the member log.

The rows are not part of the state: they are taken after each ordered item, and no decision depends
on them. As the machine is deterministic, all members write the same rows. docs/MEMBERLOG.md defines
the fields for each kind of move.

    state.moves.append(row(ACKED, state.position & INDEX_MASK, queue.mark, seq, channel.mark, tag))

is written wherever a message moves, without a function call, because this is the hot path. For the
same reason a message that enters a queue and leaves it at once for a consumer is one row, PASSED,
which `spelled_out` expands to the two moves that all other code knows.
"""

import struct
from enum import IntEnum
from typing import Protocol

from xxhash import xxh3_64_intdigest

MOVE = struct.Struct("<BHIQIQ")
"""Kind, low 16 bits of the command's position, queue, place in the queue, subject (mostly the
channel), detail."""
row = MOVE.pack
two_rows = struct.Struct(MOVE.format + MOVE.format[1:]).pack
_SEQ, _OF, _DETAIL = 7, 15, 19  # where these fields begin in a row
INDEX_MASK = 0xFFFF
MARK_MASK = 0xFFFF_FFFF  # queues, channels and messages are named by the low half of their numbers
FLAG = 0x80
CAUSE_SHIFT = 4
BYTES_COUNT = 1 << 31
_BY_KEY = ("direct", "topic", "fanout")


class Op(IntEnum):
    """The closed list of moves: the low four bits of the kind."""

    PUBLISHED = 1
    ENQUEUED = 2
    DELIVERED = 3
    SETTLED = 4
    RETURNED = 5
    DROPPED = 6
    PURGED = 7
    DECLARED = 8
    RECOVERED = 9
    REPEATED = 10
    READER = 11
    READ = 12
    READ_END = 13
    NOTED = 14


# The kind of each move and cause. FLAG is added for persistent, redelivered and durable ones, and
# for a purge that also emptied the window of its queue.
BY_CLIENT, BY_TX, BY_DEAD_LETTER, AGAIN, BY_DELAY = 0x01, 0x11, 0x21, 0x31, 0x41
BY_LETTER = 0x51
ENQUEUED, PASSED = 0x02, 0x12
DELIVERED, GOT = 0x03, 0x13
ACKED, SENT, REJECTED, LAPSED, TX_ACKED, GIVEN_UP = 0x04, 0x14, 0x24, 0x34, 0x44, 0x54
SUPERSEDED = 0x64
NACKED, TAKEN_BACK, CLOSED, MEMBER_LOST, TX_REQUEUED = 0x05, 0x15, 0x25, 0x35, 0x45
EXPIRED, OVER_LIMIT, DUE, SENT_ON, REPLACED = 0x06, 0x16, 0x26, 0x36, 0x46
PURGED, QUEUE_DELETED, FORGOTTEN = 0x07, 0x17, 0x27
DECLARED, DELAYS_DECLARED, LETTERS_DECLARED = 0x08, 0x18, 0x28
RECOVERED = 0x09
REPEATED = 0x0A
READER, READ = 0x0B, 0x0C
READ_ACKED, READ_REFUSED, READ_AGAIN, READ_CLOSED, READ_LOST = 0x0D, 0x1D, 0x2D, 0x3D, 0x4D
READ_IN_TX, READ_LAPSED, READ_SENT = 0x5D, 0x6D, 0x7D
IN_GROUP, EXPIRES, CLOCK, REFUSED_TO_GRAVE = 0x0E, 0x1E, 0x2E, 0x3E
BOUND, UNBOUND, NOWHERE, CHANNEL_CLOSED = 0x4E, 0x5E, 0x6E, 0x7E
END_OF_READ = {
    ACKED: READ_ACKED, REJECTED: READ_REFUSED, NACKED: READ_REFUSED, TAKEN_BACK: READ_AGAIN,
    CLOSED: READ_CLOSED, MEMBER_LOST: READ_LOST, TX_ACKED: READ_IN_TX, TX_REQUEUED: READ_IN_TX,
    LAPSED: READ_LAPSED, SENT: READ_SENT,
}  # fmt: skip
"""The move recorded in place of one that settles or returns a message, where the message stays in
its queue."""
_ALL = (
    *(BY_CLIENT, BY_TX, BY_DEAD_LETTER, AGAIN, BY_DELAY, BY_LETTER, ENQUEUED, DELIVERED, GOT),
    *(ACKED, SENT, REJECTED, LAPSED, TX_ACKED, GIVEN_UP, SUPERSEDED),
    *(NACKED, TAKEN_BACK, CLOSED, MEMBER_LOST, TX_REQUEUED),
    *(EXPIRED, OVER_LIMIT, DUE, SENT_ON, REPLACED, PURGED, QUEUE_DELETED, FORGOTTEN),
    *(DECLARED, DELAYS_DECLARED, LETTERS_DECLARED, RECOVERED, REPEATED),
    *(READER, READ, READ_ACKED, READ_REFUSED, READ_AGAIN, READ_CLOSED, READ_LOST),
    *(READ_IN_TX, READ_LAPSED, READ_SENT),
    *(IN_GROUP, EXPIRES, CLOCK, REFUSED_TO_GRAVE, BOUND, UNBOUND, NOWHERE, CHANNEL_CLOSED),
)
OPS_KNOWN = frozenset({*_ALL, *(what | FLAG for what in _ALL)})


def spelled_out(rows: bytes) -> bytes:
    """Return the rows of one ordered item, with each PASSED expanded to ENQUEUED and DELIVERED.

    The enqueued message is the one published last. Raises ValueError for a PASSED before any
    PUBLISHED; truncated rows come back unchanged.
    """
    size = MOVE.size
    whats = rows[::size]
    if len(rows) % size or not (PASSED in whats or PASSED | FLAG in whats):
        return rows
    out = bytearray()  # no list of parts: a million rows come in a few KiB, if somebody wants it
    begin, number = 0, b""
    for at, what in enumerate(whats):
        if what & 15 == BY_CLIENT:
            number = rows[at * size + _SEQ : at * size + _SEQ + 4]
        elif what & ~FLAG == PASSED:
            if not number:
                raise ValueError("a message was enqueued that nobody published")
            here = at * size
            out += rows[begin:here]
            out.append(what ^ PASSED ^ ENQUEUED)
            out += rows[here + 1 : here + _OF]
            out += number
            out += rows[here + _DETAIL : here + size]
            out.append(DELIVERED)
            begin = here + 1
    out += rows[begin:]
    return bytes(out)


def is_return(what: int) -> bool:
    """Whether the message goes back to its queue."""
    return what & 15 == Op.RETURNED


# -- what moves rest on --------------------------------------------------------------------------
# Rows of NOTED, for limits, times, groups and unroutable publishes. They tell a reader of the log
# why a message moved, so that this can be checked too.


class _State(Protocol):
    position: int
    now_us: int
    moves: list[bytes]


class _Limits(Protocol):
    max_length: int
    max_bytes: int


class _Exchange(Protocol):
    name: str
    routes_as: str


def note(state: _State, what: int, queue: int, seq: int, of: int, detail: int) -> None:
    state.moves.append(row(what, state.position & INDEX_MASK, queue, seq, of, detail))


def note_clock(state: _State) -> None:
    """Messages that expire, or are due, in the next rows do so by this time."""
    note(state, CLOCK, 0, 0, 0, state.now_us)


def limit_told(queue: _Limits) -> int:
    """The queue's limit of messages plus one; `BYTES_COUNT` is set if its bytes are limited too."""
    return BYTES_COUNT if queue.max_bytes >= 0 else min(queue.max_length + 1, BYTES_COUNT - 1)


def note_way(
    state: _State, what: int, queue: int, vhost: str, exchange: _Exchange, key: str
) -> None:
    """A route from an exchange by a key: to a queue, or to nowhere. Routes that depend on more than
    the key are not noted."""
    if exchange.routes_as in _BY_KEY:
        mark, way = way_marks(vhost, exchange.name, key if exchange.routes_as != "fanout" else "")
        note(state, what, queue, 0, mark, way)


def way_marks(vhost: str, exchange: str, key: str) -> tuple[int, int]:
    """The marks of the exchange, and of the exchange with the key."""
    name = f"{vhost}\0{exchange}\0"
    way = xxh3_64_intdigest((name + key).encode(errors="surrogatepass"))
    return xxh3_64_intdigest(name.encode(errors="surrogatepass")) & MARK_MASK, way
