"""All periodic duties of a member. Pure: the time is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.exit_codes import Exit
from broker.replication.controller import Controller
from broker.replication.voter_changes import VoterChanges
from broker.timers.consumer_timeouts import ConsumerTimeouts, Refuse
from broker.timers.ticker import Ticker

PATIENCE_S = 2.0
"""How long a member of an open cluster looks for a running one before it forms its own."""
SHUTDOWN_WAIT_S = 5.0


class Watch(Protocol):
    """Another duty that is woken as often."""

    def wake(self, now: float) -> None:
        """Do what is due."""


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
        self.ticker = Ticker(controller, now)
        self._consumer_timeouts: ConsumerTimeouts | None = None
        self._shutdown_deadline = 0.0
        self.voter_changes = VoterChanges(controller)

    def limit_consumers(self, refuse: Refuse, default_s: float) -> None:
        """From now on close channels that hold a delivery for too long."""
        self._consumer_timeouts = ConsumerTimeouts(self._controller, refuse, default_s)

    def wake(self, now: float) -> None:
        """Do what is due."""
        controller = self._controller
        if controller.patient and now - self._started_at > PATIENCE_S:
            controller.patience_ended()
        if not controller.replica.half_way:  # otherwise the state is not that of any position
            self._wake_by_state(now)
        self._join_refusal.wake(now)
        controller.flush()

    def _wake_by_state(self, now: float) -> None:
        controller = self._controller
        if self._consumer_timeouts is not None:
            self._consumer_timeouts.wake(now)
        self.ticker.turn(now, busy=False)
        self._find_shutdown()
        if controller.shutdown_position:
            self._finish_shutdown(now)
        self.voter_changes.wake(now)

    def _find_shutdown(self) -> None:
        """A received state may end with the shutdown of all, if it was one in the present epoch.

        The state of an earlier epoch may have such an end, too: that of a run which others have
        begun again. The activation of this epoch comes after it, and removes it.
        """
        controller = self._controller
        replica, primary = controller.replica, controller.primary
        shutdown_id = replica.machine.shutdown_id
        is_present = primary.active and primary.epoch == replica.history.epoch
        if shutdown_id and is_present and not controller.shutdown_position:
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
