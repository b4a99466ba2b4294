"""Tells a consumer that asks for it which message of which queue a delivery is.

A consumer with the argument `x-queue-numbers` (true) finds two more headers in each delivery:
`x-queue-id`, a text that no other queue has or had, and `x-queue-sequence`, the number that the
message got when it entered the queue. Both are replicated state: a message that comes back, at any
member, has the same ones. So a program that forwards messages can number them by these headers, and
its successor gives each message the same number (G24). After a cold start of the whole cluster the
remaining messages have new, higher numbers. No number is given twice, unless the cluster forgets
that it gave it: a backup is restored, or a cold start has lost the end of the state.

Numbers of a queue ascend by one. In a priority queue they do so over all its priorities, and each
priority has an id of its own, because messages of one priority come in the order of their numbers.
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
"""The consumer argument by which a queue is followed; its value tells what the client has already:
an id and ranges of places (broker/shovels/followed.py). Also a header of notices sent beside
messages."""


def asked(arguments: Table) -> bool:
    """Whether a consumer with these arguments asks for the numbers."""
    return arguments.get(ASKED) is True


def with_queue_numbers(properties: bytes, cluster_id: str, held: Held) -> bytes:
    """Return the properties of this delivery with both headers added."""
    queue, seq, *_ = held
    rank, number = arrival_of(queue, seq)
    queue_id = f"{cluster_id}/{queue.number}"
    if queue.max_priority >= 0:
        queue_id += f"/{queue.max_priority - rank}"
    return with_place(properties, queue_id, number)


def with_place(properties: bytes, queue_id: str, place: int) -> bytes:
    """Return the properties of a message of this queue with both headers added."""
    return with_new_header(with_new_header(properties, QUEUE_ID, queue_id), SEQUENCE, place)
