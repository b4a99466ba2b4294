"""What a member does because time passes.  Pure: the time is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from broker.core import Core
from broker.exits import Exit
from broker.machine.commands import TICK, Tick
from vsync.codec import WIRE_VERSION

PATIENCE_S = 2.0
"""How long a member of an open cluster looks for a running one before it forms its own."""
TICK_S = 0.5
SHUTDOWN_WAIT_S = 5.0
FOREIGN_FRAMES_MAX = 20
"""So many frames of another wire version are no line noise."""


class Ring(Protocol):
    """What these duties look at of the ring."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What was counted, drops by reason among it."""


class Duties:
    """Called a few times a second with the loop's time."""

    def __init__(
        self, core: Core, ring: Ring, stop: Callable[[Exit, str], None], now: float
    ) -> None:
        self._core, self._ring, self._stop = core, ring, stop
        self._started_at = now
        self._ticked_at = 0.0
        self._shutdown_deadline = 0.0

    def wake(self, now: float) -> None:
        """Do what is due."""
        core = self._core
        if core.patient and now - self._started_at > PATIENCE_S:
            core.patience_ended()
        if self._tick_is_mine() and now - self._ticked_at > TICK_S:
            self._ticked_at = now
            core.admit([Tick(TICK, core.shell.now_us())])
        if core.shutdown_position:
            self._finish_shutdown(now)
        self._check_versions()
        core.flush()

    def _tick_is_mine(self) -> bool:
        """One member moves the time, and only when something waits for it."""
        core = self._core
        if not (core.speaking and core.primary.level and core.replica.machine.wants_tick):
            return False
        return core.me.name == min(core.primary.level_names)

    def _finish_shutdown(self, now: float) -> None:
        core = self._core
        if not self._shutdown_deadline:
            self._shutdown_deadline = now + SHUTDOWN_WAIT_S
        if core.primary.durable_everywhere() >= core.shutdown_position:
            self._stop(Exit.OK, "the whole cluster was shut down")
        elif now > self._shutdown_deadline:
            core.shutdown_position = 0  # not every member said that it is complete: stay dirty
            self._stop(Exit.OK, "the whole cluster was shut down, not all members in time")

    def _check_versions(self) -> None:
        """A newcomer among members of another wire version gives up; members that run go on."""
        core = self._core
        foreign = self._ring.counters.get("frame_version", 0)
        if not core.ran and len(core.primary.members) < 2 and foreign >= FOREIGN_FRAMES_MAX:
            self._stop(
                Exit.PROTOCOL,
                "the members at this cluster's ring addresses speak another version of the ring "
                f"protocol than this broker (version {WIRE_VERSION}); "
                "run the same release on all members",
            )
