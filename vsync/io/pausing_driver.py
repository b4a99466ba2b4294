"""A driver that can stand still, for an application that does not keep up."""

from __future__ import annotations

from collections.abc import Callable

from vsync.io.traced_driver import TracedDriver


class PausingDriver(TracedDriver):
    """Stands still like a stopped process: no frames, no timers, no events, until it goes on.

    Unlike a closed one it is a member for as long as a token may be away; after that the others
    go on without it, and it meets them again when it goes on.
    """

    paused = False

    def pause(self) -> None:
        """Do nothing until `resume`.  Idempotent."""
        if not self.paused:
            self.paused = True
            self.loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Go on.  Idempotent."""
        if self.paused:
            self.paused = False
            if self._running:
                self.loop.add_reader(self._fd, self._turn)
                self._schedule_turn()

    def _guarded(self, step: Callable[[], None]) -> None:
        if not self.paused:
            super()._guarded(step)
