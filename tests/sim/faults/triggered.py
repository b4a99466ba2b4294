"""Faults triggered by phase and view changes: late frames, and power failures of nearly all
members.

*Late*: when a member enters a phase, some frames sent to it before arrive again, or for the first
time: tokens of the previous ring, data that the commit token does not know of, joins of a former
incarnation.  Frames repeated at random times nearly always belong to a working ring.

*Outage*: when a member installs a view, or leaves one, all members stop, or all but one, and return
one by one, with the contents of their disks.  So a view begins from stores that differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.world.random_tape import Tape
from vsync.totem.phases import Phase
from vsync.wire.messages import FrameKind

if TYPE_CHECKING:
    from tests.sim.world.member import SimMember
    from tests.sim.world.net import Link
    from tests.sim.world.world import World

FRAMES_MAX = 8
WORST = {
    Phase.GATHER: FrameKind.COMMIT,
    Phase.COMMIT: FrameKind.DATA,
    Phase.RECOVERY: FrameKind.TOKEN,
    Phase.OPERATIONAL: FrameKind.TOKEN,
}
"""The frame that does most harm in this phase, as it belongs to the previous one."""


class TriggeredFaults:
    """One object for all members of a run."""

    def __init__(self, world: World, tape: Tape) -> None:
        self.world, self.tape = world, tape
        self.late_chance = tape.pick((0.1, 0.3, 0.7)) if world.plan.has("late") else 0.0
        self.outage_chance = tape.pick((0.02, 0.05, 0.2)) if world.plan.has("outage") else 0.0
        self.delay_s = world.plan.weather.delay_s * tape.pick((0.5, 2.0, 8.0))
        self.token_s = world.plan.token_timeout_ms / 1000.0

    def on_phase(self, member: SimMember) -> None:
        """Called when a member of the ring has entered a phase."""
        if not self.world.healed and self.tape.chance(self.late_chance):
            self._late(member)

    def on_view(self, member: SimMember) -> None:
        """Called when a member begins or ends a view."""
        if not self.world.healed and self.tape.chance(self.outage_chance):
            self.world.during(self.tape.gap(self.delay_s), self._outage)

    def _late(self, member: SimMember) -> None:
        """Repeat the latest frames that one member sent to this one, in their order.

        They arrive at once, while the phase lasts, or when the resulting ring has settled.
        """
        tape, links = self.tape, self.world.net.links
        assert member.tap is not None
        wanted = WORST.get(member.tap.core.phase) if tape.chance(0.5) else None
        lost = tape.chance(0.5)
        found = []
        for (source, target), link in links.items():
            frames = link.lost if lost else link.remembered
            if target == member.name and any(wanted in (None, frame[1]) for frame in frames):
                found.append((source, link, frames))
        if not found:
            return
        source, link, kept = tape.pick(found)
        kind = tape.pick(sorted({frame[1] for frame in kept})) if wanted is None else wanted
        late = [frame for frame in kept if frame[1] == kind][-tape.number(1, FRAMES_MAX) :]
        wait_s = 2 * (self.delay_s if tape.chance(0.5) else self.token_s) * tape.random.random()
        self.world.fault("late", f"kind {kind} of {source}", member)
        self.world.during(wait_s, self._come, link, source, member.name, late)

    def _come(self, link: Link, source: str, target: str, late: list[bytes]) -> None:
        for turn, frame in enumerate(late):
            link.in_flight += 1
            at = self.world.now + turn * 1e-6
            self.world.net.deliver_at(at, source, target, frame)

    def _outage(self) -> None:
        running = [member for member in self.world.members.values() if member.running]
        if not running:
            return
        spared = self.tape.pick(running) if self.tape.chance(0.5) else None
        for member in running:
            if member is not spared:
                self.world.fault("outage", member.name, member)
                member.crash()
                down_s = self.token_s * self.tape.between(0.05, 2.0)
                self.world.after(down_s, self.world.revive, member.name)
