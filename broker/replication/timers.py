"""What a member does because time passes.  Pure: the time is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.exit_codes import Exit
from broker.machine.commands import TICK, Tick
from broker.machine.state import NOT_YET
from broker.replication.controller import Controller
from broker.replication.voter_changes import VoterChanges

PATIENCE_S = 2.0
"""How long a member of an open cluster looks for a running one before it forms its own."""
TICK_S = 0.095  # a beat may come a little early
TICK_FAR_S = 1.0
"""How often a member tells its clock while something may expire: soon, or not for a while."""
TICK_NEAR_US = 2_000_000
TICK_LOST_S = 1.0
"""A tick that did not come back for so long will not: its view ended."""
SHUTDOWN_WAIT_S = 5.0


class Watch(Protocol):
    """What else is to be looked at as often."""

    def wake(self, now: float) -> None:
        """Look."""


class Ticker:
    """Tells this member's clock: one tick under way at a time, and only when time is wanted."""

    def __init__(self, controller: Controller) -> None:
        self._core = controller
        self._ticked_at, self._ticked_us = 0.0, 0
        self._known: object = None
        self._known_at = 0.0

    def wake(self, now: float) -> None:
        """Tick if it is time."""
        controller, machine = self._core, self._core.replica.machine
        # The time went so far before now, and goes on: since then by this member's own clock.
        known = (machine, machine.rests, machine.gone_us) if machine.wants_tick else None
        if known != self._known:
            self._known, self._known_at = known, now
        if known is None or not (controller.serving and controller.primary.has_caught_up):
            return
        waited = now - self._ticked_at
        clock = machine.clocks.get(controller.me.name)
        read_us = clock.stamp_us if clock is not None else NOT_YET  # not in this epoch
        arrived = read_us in (NOT_YET, self._ticked_us) or waited > TICK_LOST_S
        soon = clock is None or machine.due_in_us < TICK_NEAR_US or machine.catches_up
        pace = TICK_S if soon else TICK_FAR_S
        if arrived and waited >= pace:
            self._ticked_at, self._ticked_us = now, controller.shell.now_us()
            seen_us = machine.gone_us + int((now - self._known_at) * 1e6)
            controller.admit([Tick(TICK, machine.epoch, machine.rests, self._ticked_us, seen_us)])


class Timers:
    """Called a few times a second with the loop's time."""

    def __init__(
        self, controller: Controller, newcomer: Watch, stop: Callable[[Exit, str], None], now: float
    ) -> None:
        self._core, self._newcomer, self._stop = controller, newcomer, stop
        self._started_at = now
        self._ticker = Ticker(controller)
        self._shutdown_deadline = 0.0
        self.voter_changes = VoterChanges(controller)

    def wake(self, now: float) -> None:
        """Do what is due."""
        controller = self._core
        if controller.patient and now - self._started_at > PATIENCE_S:
            controller.patience_ended()
        self._ticker.wake(now)
        self._learn_of_shutdown()
        if controller.shutdown_position:
            self._finish_shutdown(now)
        self.voter_changes.wake(now)
        self._newcomer.wake(now)
        controller.flush()

    def _learn_of_shutdown(self) -> None:
        """A state that was received may end with the shutdown of all; a start forgets an old one.

        (Each activation takes it out of the state, and who `ran` has applied one in this life.)
        """
        controller = self._core
        shutdown_id = controller.replica.machine.shutdown_id
        if shutdown_id and controller.ran and not controller.shutdown_position:
            controller.replica.shutdown_id = shutdown_id
            controller.shutdown_position = controller.replica.history.position
            controller.submissions.suspend()

    def _finish_shutdown(self, now: float) -> None:
        controller = self._core
        if not self._shutdown_deadline:
            self._shutdown_deadline = now + SHUTDOWN_WAIT_S
        if controller.primary.durable_everywhere() >= controller.shutdown_position:
            self._stop(Exit.OK, "the whole cluster was shut down")
        elif now > self._shutdown_deadline:
            controller.shutdown_position = (
                0  # not every member said that it is complete: stay dirty
            )
            self._stop(Exit.OK, "the whole cluster was shut down, not all members in time")
