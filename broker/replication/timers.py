"""What a member does because time passes.  Pure: the time is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.exit_codes import Exit
from broker.machine.clock.cluster_time import LEAD_US
from broker.machine.commands import TICK, Tick
from broker.replication.controller import Controller
from broker.replication.voter_changes import VoterChanges

PATIENCE_S = 2.0
"""How long a member of an open cluster looks for a running one before it forms its own."""
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
SHUTDOWN_WAIT_S = 5.0


class Watch(Protocol):
    """Something else that is woken as often."""

    def wake(self, now: float) -> None:
        """Do what is due."""


class Ticker:
    """This member's clock: how far the machine's time has gone by it, sent as ticks.

    One tick is under way at a time, and only while time is wanted.  The clock goes on from the
    machine's time that was applied here, as this process's time does, but not beyond its limit:
    that time is lost, as a message that was published meanwhile would expire early.
    """

    def __init__(self, controller: Controller, now: float) -> None:
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
        applied = clock is None or clock == self._sent[1:]
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


class Timers:
    """Called a few times a second with the loop's time."""

    def __init__(
        self,
        controller: Controller,
        join_refusal: Watch,
        stop: Callable[[Exit, str], None],
        now: float,
    ) -> None:
        self._controller, self._join_refusal, self._stop = controller, join_refusal, stop
        self._started_at = now
        self._ticker = Ticker(controller, now)
        self._shutdown_deadline = 0.0
        self.voter_changes = VoterChanges(controller)

    def wake(self, now: float) -> None:
        """Do what is due."""
        controller = self._controller
        if controller.patient and now - self._started_at > PATIENCE_S:
            controller.patience_ended()
        self._ticker.wake(now)
        self._find_shutdown()
        if controller.shutdown_position:
            self._finish_shutdown(now)
        self.voter_changes.wake(now)
        self._join_refusal.wake(now)
        controller.flush()

    def _find_shutdown(self) -> None:
        """A state that was received may end with the shutdown of all; a start forgets an old one.

        (Each activation takes it out of the state, and who `ran` has applied one since its start.)
        """
        controller = self._controller
        shutdown_id = controller.replica.machine.shutdown_id
        if shutdown_id and controller.ran and not controller.shutdown_position:
            controller.replica.shutdown_id = shutdown_id
            controller.shutdown_position = controller.replica.history.position
            controller.submissions.suspend()

    def _finish_shutdown(self, now: float) -> None:
        controller = self._controller
        if not self._shutdown_deadline:
            self._shutdown_deadline = now + SHUTDOWN_WAIT_S
        if controller.primary.durable_everywhere() >= controller.shutdown_position:
            self._stop(Exit.OK, "the whole cluster was shut down")
        elif now > self._shutdown_deadline:
            controller.shutdown_position = 0  # not all are known to be complete: stay dirty
            self._stop(Exit.OK, "the whole cluster was shut down, not all members in time")
