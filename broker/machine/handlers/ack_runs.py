"""Acks in runs: many at once from one channel, as a consumer sends them that acks each message.

As with publishes (`publishing/runs.py`), a run is no other way to ack: state, moves and effects are
those of the same acks one at a time (`tests/unit/machine/publishing/test_runs.py`).
Decision: docs/decisions/0082-a-body-is-copied-less-and-acks-come-in-runs.md.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import cast

from broker.machine.commands import ACK, Ack, Command
from broker.machine.handlers.consumers import tags_up_to
from broker.machine.move_log import ACKED
from broker.machine.publishing.runs import is_at_rest
from broker.machine.queueing.dispatch import release_all
from broker.machine.state import Channel, Consumer, Held, Queue, State


def apply_acks(
    state: State,
    position: int,
    session: int,
    time_us: int,
    commands: Sequence[Command],
    begin: int,
) -> int:
    """Apply acks of these commands from `begin` on, at positions that rise by one, as
    `Machine.apply` does, in less time: those after which nothing can be delivered, as their
    consumers had credit before and nothing waits in their queues. Return how many; 0: none. All
    have the outcome OK, and no effects. Where it raises, `state.position` is of the command."""
    first = cast("Ack", commands[begin])
    channel = state.channels.get((session, first[1], first[2]))
    if channel is None or not channel.open or not is_at_rest(state):
        return 0
    if channel.outstanding >= channel.limit:
        return 0  # its consumers would take turns
    state.time_us = time_us
    settled = _settled(channel, islice(cast("Sequence[Ack]", commands), begin, None), position)
    acked = 0
    for queue, _, count in release_all(state, channel, channel.unacked, settled, ACKED):
        queue.tally.ack += count
        acked += count
    channel.tally.ack += acked
    channel.total.ack += acked
    return state.position - position + 1 if acked else 0


def _settled(channel: Channel, acks: Iterator[Ack], position: int) -> Iterator[tuple[int, int]]:
    """Positions and tags that are settled, as far as the run goes. What was yielded is gone from
    the channel when the next one is looked for."""
    conn, chan, unacked = channel.key[1], channel.key[2], channel.unacked
    queue: Queue | None = None
    consumer: Consumer | None = None
    for command in acks:
        if command[0] != ACK:
            return
        _, of_conn, of_chan, tag, multiple = command
        held = unacked.get(tag)
        if held is None or of_chan != chan or of_conn != conn:
            return
        if multiple and next(iter(unacked)) != tag:
            tags = tags_up_to(channel, tag, True) or []
            if not all(_changes_nothing(unacked[one]) for one in tags):
                return
            for one in tags:
                yield position, one
        else:
            if held[0] is not queue or held[3] is not consumer:
                if not _changes_nothing(held):
                    return
                queue, consumer = held[0], held[3]
            yield position, tag
        position += 1


def _changes_nothing(held: Held) -> bool:
    """Whether nobody gets anything because this one is settled."""
    queue, _, _, consumer, _ = held
    return (consumer is None or consumer.waiting) and not (queue.ready or queue.returned)
