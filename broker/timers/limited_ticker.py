"""A member's clock until version 12 of the machine: it stands at a limit that the others know.

Decision: docs/decisions/0020-messages-expire-late-rather-than-early.md.
"""

from __future__ import annotations

from typing import Protocol

from broker.machine.clock.cluster_time import LEAD_US
from broker.machine.commands import TICK, Command, Tick
from broker.machine.machine import Machine
from broker.replication.chain import History
from vsync.primary.component import Primary
from vsync.types import Member

TICK_S = 0.095  # the timers may be woken a little early
TICK_FAR_S = 0.5
"""How often a member ticks while something may expire: when it is due soon, and when it is not."""
TICK_NEAR_US = 2_000_000
TICK_FAR_LIMIT_US = 800_000
"""How far a member that ticks so seldom may get before its next tick is applied."""
LIMIT_AHEAD_US_MAX = 1_150_000
"""How far beyond the machine's time a member lets its own limit get.

Otherwise a clock that is a few millionths faster creeps ahead for hours, to the machine's bound,
and everything lives as much longer for its limit.
"""
TICK_LOST_S = 1.0
"""A tick that did not come back for so long will not: its view ended."""
NO_TICK = Tick(TICK, 0, 0)


class Reached(Protocol):
    """The state of a member, and how far it has got."""

    machine: Machine
    history: History


class Clocked(Protocol):
    """What a clock knows of its member: the part of the controller that it needs."""

    me: Member
    primary: Primary
    serving: bool

    @property
    def replica(self) -> Reached:
        """It may be another one after a transfer."""

    def submit(self, commands: list[Command]) -> None:
        """Put commands of this member's own into the order."""

    def flush(self) -> None:
        """Give the ring what waits for room in its queue."""


class LimitedTicker:
    """This member's clock: how far the machine's time has gone by it, sent as ticks.

    One tick is under way at a time, and only while time is wanted.  The clock goes on from the
    machine's time that was applied here, as this process's time does, but not beyond its limit:
    that time is lost, as a message that was published meanwhile would expire early.
    """

    def __init__(self, controller: Clocked, now: float) -> None:
        self._controller = controller
        self._woken_at, self._reached_us, self._limit_us = now, 0, 0
        self._sent_at, self._sent = 0.0, NO_TICK
        self._in_state = False

    def wake(self, now: float) -> None:
        """Tick if it is time."""
        controller, machine = self._controller, self._controller.replica.machine
        # The limit may have moved on since the last look; before it did, this clock stood there.
        limit_us = min(self._limit_us, self._limit())
        gone_us = self._reached_us + int((now - self._woken_at) * 1e6)
        was_in_state, self._in_state = self._in_state, controller.me.name in machine.clocks
        if was_in_state and not self._in_state:
            gone_us = machine.now_us  # the session ended: no horizon counts this clock's limit now
        self._reached_us, self._woken_at = max(machine.now_us, min(gone_us, limit_us)), now
        if machine.wants_tick and controller.serving and controller.primary.has_caught_up:
            self._tick(now)
        self._limit_us = self._limit()

    def _limit(self) -> int:
        """A limit holds once it was applied here, a nearer one as soon as it is sent."""
        machine = self._controller.replica.machine
        clock = machine.clocks.get(self._controller.me.name)
        limit_us = min(clock.limit_us, self._sent.limit_us) if clock is not None else 0
        return max(machine.now_us + LEAD_US, limit_us)

    def _tick(self, now: float) -> None:
        machine = self._controller.replica.machine
        clock = machine.clocks.get(self._controller.me.name)
        waited = now - self._sent_at
        applied = clock is None or clock[:2] == self._sent[1:]
        far = machine.due_in_us >= TICK_NEAR_US
        slow = far and clock is not None and clock.limit_us > clock.reached_us
        pace = (TICK_FAR_S if slow else TICK_S) if applied else TICK_LOST_S
        if waited >= pace:
            limit_us = self._reached_us + (TICK_FAR_LIMIT_US if far else 0)
            limit_us = min(limit_us, machine.now_us + LIMIT_AHEAD_US_MAX)
            if not applied:  # both may be under way: the nearer limit holds
                limit_us = min(limit_us, self._sent.limit_us)
            self._sent_at, self._sent = now, Tick(TICK, self._reached_us, limit_us)
            self._controller.submit([self._sent])
