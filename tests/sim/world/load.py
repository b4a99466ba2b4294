"""Load: every member submits bursts of messages, many of sizes around a frame's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.world.random_tape import Tape
from vsync.types import Guarantee

if TYPE_CHECKING:
    from tests.sim.world.world import World


class Load:
    """Submits at every running member until all faults are over."""

    def __init__(self, world: World, tape: Tape) -> None:
        self.world = world
        self.tape = tape
        self.refused = 0

    def start(self) -> None:
        for name in self.world.plan.names:
            self._later(name)

    def _later(self, name: str) -> None:
        self.world.during(self.tape.gap(self.world.plan.load_gap_s), self._burst, name)

    def _burst(self, name: str) -> None:
        plan, member = self.world.plan, self.world.members[name]
        if member.running:
            for _ in range(self.tape.number(1, plan.load_burst)):
                safe = self.tape.chance(plan.load_safe)
                guarantee = Guarantee.SAFE if safe else Guarantee.AGREED
                if not member.submit(self._size(), guarantee):
                    self.refused += 1
        if member.running and self.tape.chance(0.2):
            member.advance_mark()
        if member.running and self.tape.chance(0.05):
            member.send_direct(self.tape.number(0, plan.frame_bytes_max))
        self._later(name)

    def _size(self) -> int:
        """Mostly small; else around the boundaries of frames and packing, or many frames."""
        tape, frame = self.tape, self.world.plan.frame_bytes_max
        if not tape.chance(self.world.plan.load_large):
            return tape.number(0, 200)
        shape = tape.number(0, 3)
        if shape == 0:
            return max(0, frame - tape.number(0, 160))
        if shape == 1:
            return max(0, frame * tape.number(1, 3) - tape.number(-8, 200))
        if shape == 2:
            return tape.number(0, 3 * frame)
        return min(200_000, frame * tape.number(4, 20))
