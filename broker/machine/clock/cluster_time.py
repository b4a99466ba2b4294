"""The machine's time, and what waits for it.

Decision: docs/decisions/0008-time-is-the-progress-of-a-majority-of-clocks.md.

Time moves by `Tick` alone, and only as far as a majority of the voters' clocks have gone. A clock
is read as progress: what it says now, less what it said when it was first read (its *shift*). So
it does not matter what date a clock shows, only that it runs; one clock that jumps, stands or goes
back is outvoted, whatever it says. What the majority reached is the median of three clocks; a voter
that is not read counts as not having got there.

A reading may be old when its turn comes: a cut link holds it up. So a tick also tells how far the
time had gone, to its sender's knowledge, when the clock was read (`seen_us`, a lower bound). That
is where a clock is placed that is read for the first time, and one that says less is behind. A
comparison with what was reached when the tick is applied would set the clock ahead by its delay.

Time is wanted only while something can expire. When nothing can, the clocks are forgotten and the
time stands; a later deadline counts from where it stands. So an idle cluster orders no ticks, and
its messages live as long as they should. While something can expire, an outage counts: the clocks
went on meanwhile. A reading counts in the epoch in which it was taken, and until the time comes
to stand: taken before and ordered after, it would set its clock ahead by what lay between.
"""

from broker.machine.clock.voters import fewest_voters, voter_names
from broker.machine.digest import thing
from broker.machine.state import (
    CREATED_US,
    NO_DATES,
    NO_TTL,
    NOT_YET,
    TTL_US,
    Clock,
    Dates,
    Message,
    Queue,
    State,
)

STEP_US_MAX = 10_000_000
"""How far one tick moves the time. A jump of a majority's clocks becomes a run: at 30 ticks a
second an outage of an hour is caught up in 12 s, and clocks that are a year ahead need a day, in
which the alarms (broker/watchdogs/clock_skew.py) are heard."""
LEAD_US = 2_000_000
"""How far beyond the time that a majority reached a member may say that a message was born."""
GRACE_US = 100_000
"""Clocks start a little apart, and run apart: so much longer everything lives, to be sure."""
ASTRAY_US = 5_000_000
"""A clock this far from the majority has been set, or has stood, since it was first read."""
ASTRAY_KEPT_US = 60_000_000
"""After so long astray it is read anew from here, so that a clock that was put right counts."""
NEVER_US = 1 << 62
FIRST = ""
"""Among the clocks: the date of what let time be wanted. Messages that come before any clock was
read are younger than that by their dates. It is no member's, and no time is read from it."""
LAST = "\0"
"""Among the clocks: the middle one of a majority's that is known no more, as too many joined anew
or left, until a majority is read again. By it an outage counts in which they stopped."""


REST = thing("rest")
"""The time came to stand once more: the digest's element."""

_UNREAD = Clock(0, NOT_YET, NOT_YET)


def clock_element(name: str, clock: Clock) -> int:
    return thing("clock", name, *clock)


def pending(state: State) -> bool:
    """Something may expire."""
    return bool(state.expiring or state.leased)


def birth(state: State) -> int:
    """The time of what comes into being now: what the origin's clock says, within the time that a
    majority reached and a little more. Never before the machine's time, so nothing is born old."""
    if not state.clocks:
        # Time may be wanted already, since a moment whose date nobody told, as an activation's.
        return state.now_us + LEAD_US + GRACE_US if pending(state) else state.now_us
    middle_us, least_us, own, fastest_us, trusted = dates(state)
    floor = gone_us(state)
    clock = own.get(state.session)
    said = state.time_us - (middle_us if clock is None else clock.shift_us)
    if clock is not None and (clock.astray_us != NOT_YET or state.time_us < clock.stamp_us):
        said = floor + LEAD_US  # it was set, and tells nothing
    # A clock may have been placed late, by as much as its member was behind. Dates that almost
    # agree with it tell how late; others tell nothing, but for how far a missing one may be placed.
    latest = state.time_us - least_us
    if latest <= said + LEAD_US or fastest_us is not None:
        said = max(said, min(latest, said + LEAD_US))
    if not trusted and said < floor - GRACE_US:
        said = floor + LEAD_US  # what let time be wanted had a wrong date
    if fastest_us is not None:
        said = max(said, min(fastest_us, floor + LEAD_US))
    told = state.reached_us is not None and state.reached_us >= state.now_us - ASTRAY_US
    if told or state.clocks.keys() == {FIRST}:
        said = min(said, floor + LEAD_US)
    return max(floor, said) + GRACE_US


def survey(state: State) -> None:
    """The clocks, or whose clocks count, are others now."""
    state.reached_us = reached(state)
    state.dates = None


def dates(state: State) -> Dates:
    """What dates tell, looked up once for as long as the clocks are the same: a tick needs none."""
    if state.dates is None:
        state.dates = dates_of(state)
    return state.dates


def dates_of(state: State) -> Dates:
    """What dates tell of the machine's time, and the latest that it may go on to.

    While a voter's clock is missing this is any that is known, and the date of the first message.
    Else it is what a majority of the smallest view that there can be may have reached.
    """
    clocks = state.clocks
    if not clocks:
        return NO_DATES
    voters = voter_names(state.voters)
    known = [clock.shift_us for name, clock in clocks.items() if name in voters]
    shifts = [clocks[LAST].shift_us, *known] if LAST in clocks else known
    if not shifts:
        shifts = [clock.shift_us for clock in clocks.values()]
    middle_us = sorted(shifts)[len(shifts) // 2]
    # One clock of two cannot be compared with any; of three or more one alone is not believed.
    trusted = LAST in clocks or len(known) > (len(voters) // 2 if len(voters) > 2 else 0)
    own = {r.session: clocks[name] for name, r in state.sessions.items() if name in clocks}
    waited_for = _waited_for(state)
    if not all(name in clocks for name in waited_for):
        least_us = min(clock.shift_us for clock in clocks.values())
        told = [c.stamp_us - c.shift_us for c in clocks.values() if c.stamp_us != NOT_YET]
        return Dates(middle_us, least_us, own, max(told, default=0), trusted)
    voting = sorted(clocks[name].shift_us for name in waited_for)
    fastest = fewest_voters(state.voters) // 2
    least_us = voting[fastest] if fastest < len(voting) else NEVER_US
    return Dates(middle_us, least_us, own, None, trusted)


def wall_us(state: State) -> int:
    """The date, for people: of the command's origin, else as far as the clocks tell; 0: unknown."""
    if state.time_us or not state.clocks:
        return state.time_us
    return state.now_us + dates(state).middle_us


# -- reading clocks ------------------------------------------------------------------------------


def read_clock(state: State, name: str, time_us: int, seen_us: int) -> int:
    """A member's clock said this when the time had gone to `seen_us` at least. How far the
    machine's time goes now."""
    seen_us = min(seen_us, gone_us(state) + LEAD_US)
    clock = state.clocks.get(name)
    if clock is None:
        place = _place(state, time_us, seen_us)
        if place is None:
            return state.now_us
        clock = Clock(time_us - place, time_us, NOT_YET)
    else:
        behind = seen_us - (time_us - clock.shift_us)
        late = behind if 0 < behind <= ASTRAY_US else 0  # it started late, or was set back a little
        clock = clock._replace(stamp_us=time_us, shift_us=clock.shift_us - late)
    _set(state, name, clock)
    survey(state)
    if state.reached_us is None:
        return state.now_us
    if LAST in state.clocks:
        _drop(state, LAST)  # no time was read from it, and no dates were looked up since
    _mind_stray(state, name, clock, gone_us(state))
    if state.reached_us < state.now_us - ASTRAY_US and _went_back(state):
        # Time goes on from here by the new dates of a majority.
        for other, known in list(state.clocks.items()):
            if known.stamp_us != NOT_YET:
                _set(state, other, Clock(known.stamp_us - state.now_us, known.stamp_us, NOT_YET))
        survey(state)
    return max(state.now_us, min(state.reached_us or 0, state.now_us + STEP_US_MAX))


def _went_back(state: State) -> bool:
    """Most of these clocks said so. Of who was not read nothing is known, though nothing is
    reached by it either: together with one that was set back it is no majority."""
    clocks = _voting(state)
    here_us = state.now_us - ASTRAY_US
    back = [c for c in clocks if c.stamp_us != NOT_YET and c.stamp_us - c.shift_us < here_us]
    return len(back) >= len(clocks) - len(clocks) // 2


def _place(state: State, time_us: int, seen_us: int) -> int | None:
    """The machine's time at the first reading of a clock; None: this reading does not tell."""
    if state.reached_us is not None:
        # Who was so far from knowing what was reached read its clock long ago, or does not know
        # of an outage that counts. Its next tick will.
        return seen_us if state.reached_us - seen_us <= LEAD_US else None
    said = 0
    known = dates(state)
    if known.trusted:
        said = time_us - known.middle_us  # by the dates: an outage counts
    elif state.clocks and all(clock.stamp_us == NOT_YET for clock in state.clocks.values()):
        said = _by_few(state, time_us)
    return max(said, seen_us, state.now_us)


def _by_few(state: State, time_us: int) -> int:
    """By the dates of a few clocks, all of an epoch before, as far as the first date agrees."""
    shifts = [clock.shift_us for name, clock in state.clocks.items() if name != FIRST]
    if not shifts or FIRST not in state.clocks:
        return 0
    return time_us - max(*shifts, state.clocks[FIRST].shift_us)


def gone_us(state: State) -> int:
    """How far the time has gone: reached by a majority of the clocks, if not yet by the machine."""
    return max(state.now_us, state.reached_us or 0)


def reached(state: State) -> int | None:
    """The time that a majority of the voters of this view have reached; None: too few were read."""
    clocks = _voting(state)
    times = sorted((c.stamp_us - c.shift_us for c in clocks if c.stamp_us != NOT_YET), reverse=True)
    need = len(clocks) // 2
    return times[need] if len(times) > need else None


def majority_date(state: State) -> int:
    """The date that a majority of these clocks have reached; something must be reached."""
    clocks = _voting(state)
    dates = sorted((c.stamp_us for c in clocks if c.stamp_us != NOT_YET), reverse=True)
    return dates[len(clocks) // 2]


def _voting(state: State) -> list[Clock]:
    """The clocks of the voters of this view, unread ones too. Who is still joining has said nothing
    yet, and does not count; nor does one that never spoke."""
    return [state.clocks.get(name, _UNREAD) for name in _waited_for(state)]


def _waited_for(state: State) -> list[str]:
    clocks, sessions = state.clocks, state.sessions
    return [
        name
        for name in voter_names(state.voters)
        if name in sessions and (name in clocks or sessions[name].last_blob_no)
    ]


def new_epoch(state: State, before: Dates, joining: list[str]) -> None:
    """What clocks said before may be long past. Their shifts stay, as the clocks went on; but who
    joins says nothing for a while, and is read anew then, and who is gone will join. `before` is
    what dates told of the sessions and voters that were."""
    for name, clock in list(state.clocks.items()):
        if name in (FIRST, LAST):
            continue
        if name in joining or name not in state.sessions:
            _drop(state, name)
        else:
            _set(state, name, clock._replace(stamp_us=NOT_YET))
    survey(state)
    if before.trusted and not dates(state).trusted:
        _set(state, LAST, Clock(before.middle_us, NOT_YET, NOT_YET))
        survey(state)


def _mind_stray(state: State, name: str, clock: Clock, time_us: int) -> None:
    if abs(clock.stamp_us - clock.shift_us - time_us) <= ASTRAY_US:
        if clock.astray_us != NOT_YET:
            _set(state, name, clock._replace(astray_us=NOT_YET))
            survey(state)
    elif clock.astray_us == NOT_YET:
        _set(state, name, clock._replace(astray_us=state.now_us))
        survey(state)
    elif state.now_us - clock.astray_us > ASTRAY_KEPT_US:
        _set(state, name, Clock(clock.stamp_us - time_us, clock.stamp_us, NOT_YET))
        survey(state)


def _drop(state: State, name: str) -> None:
    state.remove(clock_element(name, state.clocks.pop(name)))


def _set(state: State, name: str, clock: Clock) -> None:
    old = state.clocks.get(name)
    if old is not None:
        state.remove(clock_element(name, old))
    state.clocks[name] = clock
    state.add(clock_element(name, clock))


def rest(state: State) -> None:
    """Nothing can expire any more: the clocks are forgotten, the time stands."""
    if pending(state):
        return
    if state.clocks:
        for name, clock in state.clocks.items():
            state.remove(clock_element(name, clock))
        state.clocks.clear()
        state.reached_us, state.dates = None, None
    state.rests += 1
    state.add(REST)


def _wanted(state: State) -> None:
    """Something more can expire. If no clock was read yet, the date of this one is the first."""
    if not state.clocks and state.time_us:
        _set(state, FIRST, Clock(state.time_us - state.now_us, NOT_YET, NOT_YET))
        state.dates = None  # nothing is reached by it


# -- deadlines -----------------------------------------------------------------------------------
# `state.due_us` is never later than the first thing that can expire. It only saves looking: what
# a tick does is decided by the time and the queues, so it is no part of the state.


def deadline(queue: Queue, message: Message) -> int:
    """When a message at the head of this queue expires."""
    ttl_us = message[TTL_US]
    if queue.ttl_us != NO_TTL and (ttl_us == NO_TTL or queue.ttl_us < ttl_us):
        ttl_us = queue.ttl_us
    return NEVER_US if ttl_us == NO_TTL else message[CREATED_US] + ttl_us


def deadline_came(state: State, queue: Queue, message: Message) -> None:
    """A message that can expire is ready."""
    queue.deadlines += 1
    if queue.deadlines == 1:
        state.expiring[queue.number] = queue
        _wanted(state)
    state.due_us = min(state.due_us, deadline(queue, message))


def deadlines_gone(state: State, queue: Queue, count: int) -> None:
    """So many of them are not ready any more."""
    queue.deadlines -= count
    if not queue.deadlines:
        state.expiring.pop(queue.number, None)
        rest(state)


def lease(state: State, queue: Queue) -> None:
    """Nobody consumes from a queue that expires when unused."""
    state.leased[queue.number] = queue
    _wanted(state)
    state.due_us = 0 if queue.used_us == NOT_YET else min(state.due_us, lease_end(queue))


def lease_end(queue: Queue) -> int:
    return queue.used_us + queue.expires_us


def unlease(state: State, queue: Queue) -> None:
    """It is consumed from, or gone."""
    if state.leased.pop(queue.number, None) is not None:
        rest(state)
