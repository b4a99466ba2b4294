"""Faults while a ring forms: a strike is triggered by a member's phase change.

Faults at random times seldom hit commit and recovery, which take a few token hops.  Here each entry
into a phase triggers, with some probability, one of several faults a few hops later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.world.random_tape import Tape

if TYPE_CHECKING:
    from tests.sim.world.member import SimMember
    from tests.sim.world.world import World

PHASES = ("gather", "commit", "recovery", "operational")
BLOWS = ("crash", "pause", "leave", "cut", "lose", "mend")


class Strike:
    """One object for all members of a run; `plan.strikes` numbers those that a shrunk run keeps."""

    def __init__(self, world: World, tape: Tape) -> None:
        self.world, self.tape = world, tape
        self.number = 0
        self.chance = tape.pick((0.05, 0.15, 0.4))
        self.phases = tape.some(PHASES, 1, len(PHASES))
        self.blows = tape.some(BLOWS, 1, len(BLOWS))
        self.delay_s = world.plan.weather.delay_s * tape.pick((0.5, 2.0, 8.0))

    def on_phase(self, member: SimMember) -> None:
        """Called when a member has entered a phase."""
        if self.world.healed or member.tap is None:
            return
        if member.tap.core.phase.value in self.phases and self.tape.chance(self.chance):
            chosen = self.tape.pick(self.blows), self.tape.chance(0.7), self.tape.random.random()
            kept = self.world.plan.strikes
            if kept is None or self.number in kept:
                self.world.during(self.delay_s * 2 * chosen[2], self._blow, member, *chosen)
            self.number += 1
            self.world.strikes = self.number

    def _blow(self, near: SimMember, blow: str, same: bool, size: float) -> None:
        """All draws are made at the trigger, so leaving one strike out moves no other."""
        members = list(self.world.members.values())
        member = near if same else members[int(size * 1000) % len(members)]
        token_s = self.world.plan.token_timeout_ms / 1000.0
        length = token_s * (0.05 + 3.0 * size)
        if not member.running:
            return
        world = self.world
        world.fault(f"strike_{blow}", member.name, member)
        if blow == "crash":
            member.crash()
            world.after(length, world.revive, member.name)
        elif blow == "pause":
            member.pause()
            world.after(length, member.resume)
        elif blow == "leave":
            member.leave(length)
        elif blow == "cut":
            pairs = [pair for pair in world.net.links if member.name in pair]
            world.net.cut(pairs)
            world.during(length, world.net.mend, pairs)
        elif blow == "lose":
            for (source, _), link in world.net.links.items():
                if source == member.name:
                    link.doomed += 1 + int(size * 3)
        else:
            world.net.mend(list(world.net.links))
