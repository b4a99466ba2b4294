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
from broker.machine.queueing.streams import arrival_of
from broker.machine.requests.properties import with_new_header
from broker.machine.state import Held

ASKED = "x-queue-numbers"
QUEUE_ID, SEQUENCE = HEADERS = "x-queue-id", "x-queue-sequence"
FOLLOW = "x-queue-follow"
"""The consumer argument by which a queue is followed; its value is what the client has already, an
id and ranges of places (broker/shovels/followed.py).  A header of what is told beside messages."""


def asked(arguments: Table) -> bool:
    """Whether a consumer with these arguments is told."""
    return arguments.get(ASKED) is True


def with_queue_numbers(properties: bytes, cluster_id: str, held: Held) -> bytes:
    """The properties of this delivery with both headers."""
    queue, seq, *_ = held
    rank, number = arrival_of(queue, seq)
    queue_id = f"{cluster_id}/{queue.number}"
    if queue.max_priority >= 0:
        queue_id += f"/{queue.max_priority - rank}"
    return with_place(properties, queue_id, number)


def with_place(properties: bytes, queue_id: str, place: int) -> bytes:
    """The properties of a message of this queue with both headers."""
    return with_new_header(with_new_header(properties, QUEUE_ID, queue_id), SEQUENCE, place)
