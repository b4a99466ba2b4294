"""This member's clock: how far the machine's time has advanced by it, sent as ticks. Pure.

The clock advances with this process's time. It is set back to the horizon from which applied
commands count (`broker/machine/clock/horizons.py`), so that nothing expires early. Each tick moves
the horizon far enough ahead that this costs no time: to where the clock will be when the next
submission is applied.

Ticks are sent when something is due, so that it goes at once; twice a second while something will
be due, at the same times of the machine at all members; and before this member's clients' commands,
if these would meet a horizon that is behind.
Decision: docs/decisions/0061-a-tick-names-the-position-it-was-read-at.md.
"""

from __future__ import annotations

from typing import Protocol

from broker.machine.clock.cluster_time import AHEAD_US_MAX
from broker.machine.clock.horizons import first_horizon
from broker.machine.commands import TICK, Command, Tick
from broker.machine.machine import Machine
from broker.replication.chain import History
from vsync.primary.component import Primary
from vsync.types import Member

GRID_US = 500_000
"""All tick when the machine's time passes a multiple of this, while something may expire."""
NEAR_S = 0.01
"""Time between two ticks for what is due, and for clients' commands."""
TICK_S = 0.095
"""The same when more is due than one tick handles, or the others' clocks are behind; the timers may
be woken a little early."""
TICK_LOST_S = 1.0
"""A tick that has not come back after this time never will: its view ended."""
LOOK_S_MIN = 0.001
AHEAD_S = 0.015
"""The horizon is moved further ahead than a submission takes; otherwise each turn of clients' work
would need a tick."""
TRIP_S_MIN, TRIP_S_MAX = 0.002, 0.2
TRIP_WEIGHT = 0.4
"""Weight of the last tick in the average time from sending a tick to applying it here."""
CREPT_S = 0.02
"""A clock that is this far ahead of the machine's time, beyond what ticks take, is set back: a fast
clock would draw the horizon away from the others."""


class Reached(Protocol):
    """The state of a member, and how far it has got."""

    machine: Machine
    history: History


class Clocked(Protocol):
    """A clock's view of its member: the part of the controller that it needs."""

    me: Member
    primary: Primary
    serving: bool

    @property
    def replica(self) -> Reached:
        """May be replaced by a transfer."""

    def submit(self, commands: list[Command]) -> None:
        """Submit this member's own commands to the order."""

    def flush(self) -> None:
        """Give the ring payloads that waited for room in its queue."""


class Ticker:
    """Sends one tick at a time, and only while time is needed."""

    def __init__(self, controller: Clocked, now: float) -> None:
        self._controller = controller
        self._replica, self._looked_at, self._position = controller.replica, now, 0
        self._reached_us = self._machine_us = 0
        self._serves = False
        self._sent_at = 0.0
        self._sent: Tick | None = None
        self._under_way = False
        self._trip_s = NEAR_S

    def turn(self, now: float, *, busy: bool) -> float | None:
        """Tick if it is time; return the seconds until the next look, or None if a turn, or the
        next beat, is soon enough. `busy`: before a turn of work in which clients' commands will be
        submitted."""
        controller, machine = self._controller, self._controller.replica.machine
        if self._under_way:
            self._find_applied(now)
        if not machine.wants_tick:
            return None
        self._look(now)
        if not self._serves:
            return None
        delay_s = self._delay_s(now, busy)
        if delay_s is None:
            return None
        if delay_s > 0.0:
            return max(LOOK_S_MIN, delay_s)
        ahead_us = self._reached_us + int((1.5 * self._trip_s + AHEAD_S) * 1e6)
        self._sent_at, self._under_way = now, True
        self._sent = Tick(TICK, self._reached_us, ahead_us, self._position)
        controller.submit([self._sent])
        controller.flush()
        return None

    def _look(self, now: float) -> None:
        """Return the clock's time, taking into account what was applied since the last look."""
        controller, replica = self._controller, self._controller.replica
        machine, position = replica.machine, replica.history.position
        if replica is not self._replica:  # a received state, of which this clock knows nothing yet
            self._replica, self._reached_us, self._position = replica, 0, 0
            self._serves = False
        served, self._serves = self._serves, controller.serving and controller.primary.has_caught_up
        gone_us = int((now - self._looked_at) * 1e6)
        self._looked_at += gone_us / 1e6  # the rest of a microsecond counts at the next look
        gone_us = gone_us if served and self._serves else 0
        horizon_us = first_horizon(machine, self._position, position)
        furthest_us = min(horizon_us, machine.now_us + AHEAD_US_MAX)
        if machine.now_us // GRID_US > self._machine_us // GRID_US:
            crept_us = int((3 * self._trip_s + CREPT_S) * 1e6)
            furthest_us = min(furthest_us, machine.now_us + crept_us)
        self._reached_us = max(machine.now_us, min(self._reached_us + gone_us, furthest_us))
        self._position, self._machine_us = position, machine.now_us

    def _find_applied(self, now: float) -> None:
        """The last tick may have been applied here: later ones may take as long."""
        clock = self._controller.replica.machine.clocks.get(self._controller.me.name)
        if clock is not None and self._sent is not None and clock.applied == self._sent.applied:
            self._under_way = False
            trip_s = min(max(now - self._sent_at, TRIP_S_MIN), TRIP_S_MAX)
            self._trip_s += TRIP_WEIGHT * (trip_s - self._trip_s)

    def _delay_s(self, now: float, busy: bool) -> float | None:
        """Seconds until the next tick; None: something else comes before."""
        machine, reached_us = self._controller.replica.machine, self._reached_us
        waited_s = now - self._sent_at
        if self._under_way:
            return None if waited_s < TICK_LOST_S else 0.0
        clock = machine.clocks.get(self._controller.me.name)
        if machine.due_in_us <= 0 or (
            clock is not None and clock.reached_us >= machine.now_us + machine.due_in_us
        ):  # more was due than one tick handles, or the others' clocks are behind
            return TICK_S - waited_s
        due_us = machine.now_us + machine.due_in_us
        last_us = clock.reached_us if clock is not None else -1  # the accepted part of the claim
        next_us = min(due_us, (last_us // GRID_US + 1) * GRID_US)
        late = busy and reached_us + int(self._trip_s * 1.2e6) > machine.horizon_us
        if late or reached_us >= next_us:
            return NEAR_S - waited_s
        return (next_us - reached_us) / 1e6
