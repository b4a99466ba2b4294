"""The hints of a real transport: connections that break, and hosts that refuse new ones.

When a process dies on a reachable host, each peer notices within a moment and tries to connect;
when a link is cut, some peers notice a broken connection, and none is refused.  A process that runs
or stands still never refuses: its kernel accepts for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.world.world import World

KNOCKS = 6


class Hints:
    """Gives hints to the cores of a world, as far as the network lets them through."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tape = world.tape.fork("hints")
        self.probe_s = world.plan.token_timeout_ms / 1000 / 10

    def died(self, name: str) -> None:
        """A process ended: its connections break, and its host refuses new ones."""
        for other in self.world.plan.names:
            if other != name:
                at = self.probe_s * self.tape.between(0.0, 0.2)
                self.world.after(at, self._hint, other, name, False)
                for knock in range(KNOCKS):
                    later = at + self.probe_s * (knock + 0.1) / 2
                    self.world.after(later, self._hint, other, name, True)

    def cut(self, pairs: list[tuple[str, str]]) -> None:
        """Links are cut: a connection that breaks over them is no proof of anything."""
        for one, other in pairs:
            if self.tape.chance(0.5):
                at = self.probe_s * self.tape.between(0.0, 10.0)
                self.world.after(at, self._hint, one, other, False)

    def _hint(self, at: str, about: str, knocked: bool) -> None:
        observer, suspect = self.world.members[at], self.world.members[about]
        links = self.world.net.links
        unreachable = any(links[p].cut or links[p].clogged for p in ((at, about), (about, at)))
        if (
            observer.tap is None
            or not observer.running
            or (knocked and (unreachable or suspect.up))
        ):
            return
        self.world.counters["sim_hints"] += 1
        observer.tap.core.suspect(suspect.address, self.world.now, refused=knocked)
        observer.finish_step()
