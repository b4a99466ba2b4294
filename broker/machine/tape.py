"""What happened to messages, one row a move, for the evidence that members write down.

The tape is no part of the state: it is cleared after each ordered item and nothing is decided by
it. As the machine is deterministic, all members write the same rows. docs/MEMBERLOG.md says what
the fields mean for each kind of move.
"""

import struct
from enum import IntEnum

MOVE = struct.Struct("<BHIQIQ")
"""What (`Op`, the cause shifted by CAUSE_SHIFT, FLAG), low 16 bits of the command's position,
queue's number, place in the queue, of, detail."""
FLAG = 0x80
CAUSE_SHIFT = 4


class Op(IntEnum):
    """The closed list of moves: the low four bits of what."""

    PUBLISHED = 1
    ENQUEUED = 2
    DELIVERED = 3
    SETTLED = 4
    RETURNED = 5
    DROPPED = 6
    PURGED = 7
    DECLARED = 8
    RECOVERED = 9


CAUSES = {
    Op.PUBLISHED: 3,
    Op.ENQUEUED: 1,
    Op.DELIVERED: 2,
    Op.SETTLED: 5,
    Op.RETURNED: 5,
    Op.DROPPED: 2,
    Op.PURGED: 3,
    Op.DECLARED: 1,
    Op.RECOVERED: 1,
}
"""How many causes each kind of move knows; they count from 0."""
OPS_KNOWN = frozenset(
    flag | cause << CAUSE_SHIFT | op
    for op, causes in CAUSES.items()
    for cause in range(causes)
    for flag in (0, FLAG)
)
