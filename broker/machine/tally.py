"""The machine's counts for statistics: plain numbers beside the replicated state.

Every member applies every command, so each counts for all queues, exchanges, channels and members.
A member counts from its own start: a tally is neither in the digest nor in a snapshot, and members
may differ in it. `broker/statistics` derives rates from it.
"""

from dataclasses import dataclass, field, fields


@dataclass(slots=True, eq=False, repr=False)
class Tally:
    """Counts of what happened to messages of a queue, an exchange, a channel, or a member."""

    sampled: tuple[int, ...] = ()  # kept by the sampler; empty: not yet
    changed_at: float = 0.0  # kept by the sampler; 0: nothing is known of it

    publish: int = 0  # of a queue: messages that came into it
    routed: int = 0  # copies routed to queues
    confirm: int = 0  # accepted publishes that are to be confirmed
    return_unroutable: int = 0
    drop_unroutable: int = 0
    drop_duplicate: int = 0  # of a queue: repeats by their key, so they did not come into it
    replaced: int = 0  # of a queue: superseded by a newer message of the same key
    deliver: int = 0  # to be acknowledged, like `get`
    deliver_no_ack: int = 0
    get: int = 0
    get_no_ack: int = 0
    get_empty: int = 0
    redeliver: int = 0  # among the four above
    ack: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Totals:
    """What the clients of one member did in one virtual host, including clients that left."""

    messages: Tally = field(default_factory=Tally)
    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    queues_declared: int = 0
    queues_created: int = 0
    queues_deleted: int = 0


def merged(one: Totals, other: Totals) -> Totals:
    """The sum of both, as if counted in one from the beginning."""
    sums = {name: getattr(one, name) + getattr(other, name) for name in _CHURN}
    both = one.messages, other.messages
    messages = Tally(**{name: sum(getattr(of, name) for of in both) for name in COUNTS})
    if all(of.sampled for of in both):
        messages.sampled = tuple(map(sum, zip(*(of.sampled for of in both), strict=True)))
    return Totals(messages, **sums)


COUNTS = tuple(one.name for one in fields(Tally) if one.type is int or one.type == "int")
_CHURN = tuple(one.name for one in fields(Totals) if one.name != "messages")


def count_delivery(
    queue: Tally, channel: Tally, total: Tally, no_ack: bool, count: int, redelivered: int
) -> None:
    """Count deliveries to a consumer, some of which came back before."""
    if no_ack:
        queue.deliver_no_ack += count
        channel.deliver_no_ack += count
        total.deliver_no_ack += count
    else:
        queue.deliver += count
        channel.deliver += count
        total.deliver += count
    if redelivered:
        queue.redeliver += redelivered
        channel.redeliver += redelivered
        total.redeliver += redelivered


def count_get(tallies: tuple[Tally, ...], found: bool, no_ack: bool, redelivered: bool) -> None:
    """Count a client's request for one message, which found one or none."""
    for tally in tallies:
        if not found:
            tally.get_empty += 1
        elif no_ack:
            tally.get_no_ack += 1
        else:
            tally.get += 1
        tally.redeliver += redelivered
