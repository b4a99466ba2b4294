"""Faults triggered by events of the broker: crashes and cuts in the middle of an operation.

Faults at random times seldom hit the few milliseconds between a promise and its activation, or the
end of a transfer.  So each of these events triggers, with some probability, a cut or a crash a
little later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.world.random_tape import Tape

if TYPE_CHECKING:
    from tests.sim.world.member import SimMember
    from tests.sim.world.world import World

KNOCKS = 6
TRIGGERS = (
    "promise",
    "promised",
    "transfer",
    "installed",
    "activated",
    "serve",
    "fence",
    "checkpoint",
)


class EventFaults:
    """One object for all members of a run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tape: Tape = world.tape.fork("spite")
        self.chance = self.tape.pick((0.0, 0.03, 0.1, 0.3))
        self.crashes = self.tape.chance(0.5)
        self.triggers = self.tape.some(TRIGGERS, 1, len(TRIGGERS))
        self.delay_s = world.plan.weather.delay_s * self.tape.pick((2, 10, 40))
        self.refusing = world.tape.fork("refusing").chance(0.5)

    def on_event(self, member: SimMember, code: str) -> None:
        """Called at an event of the broker at `member`."""
        if code in self.triggers and self.tape.chance(self.chance):
            self.world.during(self.tape.gap(self.delay_s), self._strike, member)

    def _length(self) -> float:
        token_s = self.world.plan.token_timeout_ms / 1000.0
        return token_s * self.tape.pick((0.3, 1.5, 3.0, 6.0)) * self.tape.between(0.5, 1.5)

    def _strike(self, member: SimMember) -> None:
        names = self.world.plan.names
        victim = member.name if self.tape.chance(0.5) else self.tape.pick(names)
        if self.crashes and self.tape.chance(0.4):
            self._crash(victim)
        else:
            side = [victim] if self.tape.chance(0.6) else self.tape.some(names, 1, len(names))
            self._cut(side)

    def _crash(self, name: str) -> None:
        if self.world.members[name].running:
            self.world.fault("spite_crash", name)
            self.world.members[name].crash()
            self.world.after(self._length(), self.world.revive, name)

    def _cut(self, side: list[str]) -> None:
        pairs = [(a, b) for a, b in self.world.net.links if (a in side) != (b in side)]
        if pairs:
            self.world.fault("spite_cut", " ".join(f"{a}>{b}" for a, b in pairs))
            self.world.net.cut(pairs)
            self.world.during(self._length(), self.world.net.mend, pairs)
            if self.refusing:
                self._refuse([(one, other) for one, other in pairs if other in side])

    def _refuse(self, pairs: list[tuple[str, str]]) -> None:
        """Make the cut a firewall that answers: a connection is refused as if the other member had
        died.

        So a live member, which may act on its lease, is excluded sooner than by any timeout.
        """
        step_s = self.world.plan.token_timeout_ms / 1000 / 20
        for knock in range(KNOCKS):
            for one, other in pairs:
                self.world.during(step_s * (knock + 0.1), self._knock, one, other)

    def _knock(self, one: str, other: str) -> None:
        observer, suspect = self.world.members[one], self.world.members[other]
        if observer.tap is not None and observer.running and self.world.net.links[one, other].cut:
            self.world.counters["sim_refusals"] += 1
            observer.tap.core.suspect(suspect.address, self.world.now, refused=True)
            observer.finish_step()
