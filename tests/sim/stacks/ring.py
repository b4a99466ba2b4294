"""A member with nothing above its ring: submits go straight in."""

from __future__ import annotations

from tests.sim.world.tap import Tap
from vsync.totem.events import Output
from vsync.types import Guarantee


class Plain:
    """No layer above: submits go straight to the ring."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap

    def on_output(self, output: Output, now: float) -> None:
        """Ignore it; the tap has recorded it."""

    def pump(self, now: float) -> None:
        """Submit nothing."""

    def submit(self, payload: bytes, now: float, guarantee: Guarantee) -> bool:
        return self.tap.submit(payload, now, guarantee, urgent=len(payload) % 4 > 0)

    @property
    def ready(self) -> bool:
        return True

    def started(self, now: float) -> None:
        """Begin with nothing."""

    def crashed(self) -> None:
        """Keep nothing."""
