"""The member with nothing on top of its ring: what is submitted goes straight in."""

from __future__ import annotations

from tests.sim.world.tap import Tap
from vsync.totem.events import Output
from vsync.types import Guarantee


class Plain:
    """Nothing on top: what is submitted goes straight to the ring."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap

    def on_output(self, output: Output, now: float) -> None:
        """Look at nothing; the tap has written it down."""

    def pump(self, now: float) -> None:
        """Say nothing."""

    def submit(self, payload: bytes, now: float, guarantee: Guarantee) -> bool:
        return self.tap.submit(payload, now, guarantee, urgent=len(payload) % 4 > 0)

    @property
    def ready(self) -> bool:
        return True

    def started(self, now: float) -> None:
        """Begin with nothing."""

    def crashed(self) -> None:
        """Keep nothing."""
