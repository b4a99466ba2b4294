"""The machine's time, and everything that waits for a time.

The machine's time advances with a majority of the voters' clocks. While something can expire, each
member sends ticks: how far the machine's time has advanced by its own clock. The machine's time is
the one that a majority of the voters in this view have reached: of three clocks the median, of two
the slower. It never goes back. It stops while there is no primary view, and while nothing can
expire and no message is held that could when it comes back.

Nothing expires early: the age of anything counts from the horizon in force when it was created, and
no claim counts beyond a horizon that its sender did not know (horizons.py). A tick may be delayed
for any time: it then claims too little, never too much.

Decision: docs/decisions/0020-messages-expire-late-rather-than-early.md.
"""

from itertools import pairwise

from broker.machine.clock.horizons import SPANS_MAX, first_horizon
from broker.machine.clock.voters import voter_names
from broker.machine.digest import item_hash
from broker.machine.schedule import NEVER_US
from broker.machine.state import (
    CREATED_US,
    DUE_SHIFT,
    NO_TTL,
    TTL_US,
    Clock,
    Message,
    Queue,
    State,
)

AHEAD_US_MAX = 2_000_000
"""How far beyond the machine's time a tick may claim, or move the horizon."""


def clock_element(name: str, clock: Clock) -> int:
    return item_hash("clock", name, *clock)


def pending(state: State) -> bool:
    """Whether anything may expire, now or when it comes back."""
    if state.expiring or state.leased or state.remembering or state.keeping:
        return True
    while state.held_from:
        number, queue = next(iter(state.held_from.items()))
        if queue.unacked and not queue.deleted:
            return True
        del state.held_from[number]
    return False


def note_held(state: State, queue: Queue, message: Message) -> None:
    """A message was taken from the queue and may come back: if it can expire, time must go on."""
    if queue.stream is None and time_to_live(queue, message) != NO_TTL:
        state.held_from[queue.number] = queue


def goes_on(state: State) -> bool:
    """Whether work continues at the next position, whatever is ordered there."""
    return bool(
        state.late_letters
        or state.ending
        or state.leaving
        or state.stale
        or state.trimming
        or state.late
        or state.reading
    )


def read_clock(state: State, name: str, reached_us: int, applied: int) -> int:
    """Record a member's tick; return the machine's time after it."""
    first_us = first_horizon(state, applied, state.position - 1)
    clock = Clock(min(reached_us, first_us, state.now_us + AHEAD_US_MAX), applied)
    forget_clock(state, name)
    state.clocks[name] = clock
    state.add(clock_element(name, clock))
    return max(state.now_us, _reached_by_majority(state))


def _reached_by_majority(state: State) -> int:
    """The time that a majority of the voters has reached.

    A voter that is still joining has sent nothing in its session yet, and does not count.
    """
    clocks, sessions = state.clocks, state.sessions
    reached = [
        clocks[name].reached_us if name in clocks else 0
        for name in voter_names(state.voters)
        if name in clocks or (name in sessions and sessions[name].last_blob_no)
    ]
    reached.sort(reverse=True)
    return reached[len(reached) // 2] if reached else 0


def forget_clock(state: State, name: str) -> None:
    """Forget a member's clock, because its session ends."""
    clock = state.clocks.pop(name, None)
    if clock is not None:
        state.remove(clock_element(name, clock))


def check_horizons(state: State) -> None:
    """Assert the invariants between commands."""
    assert state.horizon_us >= state.now_us
    assert all(clock.reached_us <= state.horizon_us for clock in state.clocks.values())
    spans = [*state.spans, (state.position, state.horizon_us)]
    assert all(one[1] < next_[1] for one, next_ in pairwise(spans)), "horizons never go back"
    assert all(one[0] < next_[0] for one, next_ in pairwise(state.spans))
    assert len(state.spans) <= SPANS_MAX
    assert max(state.last_other, state.last_tick) <= state.position


# -- deadlines -----------------------------------------------------------------------------------
# A queue with a message that can expire is scheduled for the deadline of its head or earlier
# (schedule.py), however its head changes; a queue that expires itself, for the end of its lease.


def due_us(state: State) -> int:
    """The time before which nothing expires."""
    ends_us = min(state.expiry.next_us, state.lease_ends.next_us, state.key_ends.next_us)
    return min(ends_us, state.letter_times.next_us)


def head(queue: Queue) -> Message:
    """The first ready message. The queue has one."""
    return queue.returned.first if queue.returned else queue.ready.first


def time_to_live(queue: Queue, message: Message) -> int:
    """The shorter time to live, the queue's or the message's own; NO_TTL: neither has one."""
    ttl_us = message[TTL_US] if queue.stream is None else NO_TTL
    if queue.ttl_us != NO_TTL and (ttl_us == NO_TTL or queue.ttl_us < ttl_us):
        ttl_us = queue.ttl_us
    return ttl_us


def deadline(queue: Queue, message: Message) -> int:
    """When a message at the head of this queue expires."""
    ttl_us = time_to_live(queue, message)
    return NEVER_US if ttl_us == NO_TTL else message[CREATED_US] + ttl_us


def next_deadline(queue: Queue) -> int:
    """When the first message leaves a queue that delays messages, or has some that can expire."""
    if queue.delays is not None:
        return (queue.returned.first_place >> DUE_SHIFT) * 1000
    return deadline(queue, head(queue))


def look_us(state: State, queue: Queue) -> int:
    """When to look at a queue in which messages can expire: at its next deadline. A past deadline
    counts from now, so that other due queues come before the rest of a long queue."""
    return max(next_deadline(queue), state.now_us)


def recheck_deadlines(state: State, queue: Queue) -> None:
    """The queue's head, or its time to live, may have changed."""
    waits = bool(queue.ready or queue.returned)
    of_queue = queue.ttl_us != NO_TTL or queue.delays is not None
    queue.expiring = queue.timed > 0 or (waits and of_queue)
    if queue.expiring:
        state.expiring[queue.number] = queue
        state.expiry.note(queue.number, look_us(state, queue))
    else:
        state.expiring.pop(queue.number, None)


def lease(state: State, queue: Queue) -> None:
    """A queue that expires when unused has no consumer any more."""
    state.leased[queue.number] = queue
    state.lease_ends.note(queue.number, lease_end(queue))


def lease_end(queue: Queue) -> int:
    return queue.used_us + queue.expires_us


def unlease(state: State, queue: Queue) -> None:
    """The queue has a consumer again, or is gone."""
    state.leased.pop(queue.number, None)
