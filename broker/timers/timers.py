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
"""How long a member waits until all have the end of the history on disk; and how long one that
received this end waits for members who have begun again, once it is in no primary view."""


class Watch(Protocol):
    """Another duty that is woken as often."""

    def wake(self, now: float) -> None:
        """Do what is due."""


class OrderedShutdown:
    """Ends a member whose state ends with the shutdown; called a few times a second."""

    def __init__(
        self,
        controller: Controller,
        stop: Callable[[Exit, str], None],
        wait_s: float = SHUTDOWN_WAIT_S,
    ) -> None:
        self._controller, self._stop, self._wait_s = controller, stop, wait_s
        self._deadline = self._without_since = 0.0

    def wake(self, now: float) -> None:
        """Do what is due. Not while an item is half applied."""
        if not self._controller.shutdown_position:
            self._find(now)
        if self._controller.shutdown_position:
            self._finish(now)

    def _find(self, now: float) -> None:
        """A received state may end with the shutdown of all, if it was one in the present epoch.

        The state of an earlier epoch may have such an end, too: that of a run which others have
        begun again. The activation of this epoch comes after it, and removes it.

        If the view has ended the others have most likely ended, too. But this member may have hung,
        and they may be there again: it looks for them first.
        """
        controller = self._controller
        replica, primary = controller.replica, controller.primary
        shutdown_id = replica.machine.shutdown_id
        is_present = shutdown_id and primary.epoch == replica.history.epoch
        if is_present and primary.active:
            replica.shutdown_id = shutdown_id
            controller.shutdown_position = replica.history.position
            controller.submissions.suspend()
        elif not is_present or not self._is_among_its_own():
            self._without_since = 0.0
        elif not self._without_since:
            self._without_since = now
        elif now - self._without_since > self._wait_s:
            self._stop(Exit.OK, "the whole cluster was shut down; its primary view has ended")

    def _is_among_its_own(self) -> bool:
        """Whether only members of the last primary view are here: no other process, none anew."""
        primary = self._controller.primary
        if primary.activation is None or not primary.members:
            return False
        its_own = {(name, incarnation) for name, incarnation, _ in primary.activation.members}
        return all((one.name, one.incarnation) in its_own for one in primary.members)

    def _finish(self, now: float) -> None:
        controller = self._controller
        if not self._deadline:
            self._deadline = now + self._wait_s
        if controller.primary.durable_everywhere() >= controller.shutdown_position:
            self._stop(Exit.OK, "the whole cluster was shut down")
        elif now > self._deadline:
            # Not all are known to be complete: the store stays dirty. The history has ended all the
            # same: what is ordered behind the shutdown is applied by nobody.
            controller.shutdown_overdue = True
            self._stop(Exit.OK, "the whole cluster was shut down, not all members in time")


class Timers:
    """Called a few times a second with the loop's time."""

    def __init__(
        self,
        controller: Controller,
        join_refusal: Watch,
        stop: Callable[[Exit, str], None],
        now: float,
    ) -> None:
        self._controller, self._join_refusal = controller, join_refusal
        self._started_at = now
        self.ticker = Ticker(controller, now)
        self._consumer_timeouts: ConsumerTimeouts | None = None
        self._shutdown = OrderedShutdown(controller, stop)
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
        if self._consumer_timeouts is not None:
            self._consumer_timeouts.wake(now)
        self.ticker.turn(now, busy=False)
        self._shutdown.wake(now)
        self.voter_changes.wake(now)
