"""Which message of which queue a delivery is, told to a consumer that asks for it.

A consumer with the argument `x-queue-numbers` (true) finds two headers more in each delivery:
`x-queue-id`, a text that no other queue has or had, and `x-queue-sequence`, the number that the
message got when it entered the queue.  Both are replicated state: a message that comes back, at
whatever member, has the same ones.  So who passes messages on can number them by what they are, and
whoever takes its place gives each the same number (G24).  After a cold start of the whole cluster
what is left has new, higher numbers.  No number is given twice, unless the cluster forgets that it
gave it: a back-up is restored, or a cold start has lost the end of the state.

Numbers of a queue ascend by one.  Those of a priority queue do so over all its priorities, and the
id of each priority is another one, as messages of one priority come in the order of their numbers.
Decision: docs/decisions/0069-a-shovel-numbers-messages-by-their-places.md.
"""

from __future__ import annotations

from broker.machine.commands import Table
from broker.machine.queueing.properties import with_header
from broker.machine.state import RANK_SHIFT, Held, Queue

ASKED = "x-queue-numbers"
QUEUE_ID, SEQUENCE = HEADERS = "x-queue-id", "x-queue-sequence"


def asked(arguments: Table) -> bool:
    """Whether a consumer with these arguments is told."""
    return arguments.get(ASKED) is True


def with_queue_numbers(properties: bytes, cluster_id: str, held: Held) -> bytes:
    """The properties of this delivery with both headers."""
    queue, seq, *_ = held
    rank, number = _arrival_of(queue, seq)
    queue_id = f"{cluster_id}/{queue.number}"
    if queue.max_priority >= 0:
        queue_id += f"/{queue.max_priority - rank}"
    return with_header(with_header(properties, QUEUE_ID, queue_id), SEQUENCE, number)


def _arrival_of(queue: Queue, seq: int) -> tuple[int, int]:
    """The rank of a message's priority, 0 the highest, and the how manyth it was to come in."""
    if queue.max_priority < 0:
        return 0, seq
    return seq >> RANK_SHIFT, (seq & ((1 << RANK_SHIFT) - 1)) >> 1
