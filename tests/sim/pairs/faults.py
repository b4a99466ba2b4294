"""Faults of a pair beside those of every cluster: in its link, its clients, by its operators; each
seed has some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from store.api import Marker
from tests.sim.world.random_tape import Tape
from tests.support.stores.memory import MemoryDisk

if TYPE_CHECKING:
    from tests.sim.pairs.stack import PairStack
    from tests.sim.world.world import World


SPLITS_FROM = 2200
"""Smaller seeds have no splits, so that those with recorded findings stay as they were."""


class PairFaults:
    """Begins faults of each kind at random times until all faults are over."""

    def __init__(self, stack: PairStack, world: World) -> None:
        self.stack, self.world = stack, world
        self.tape: Tape = world.tape.fork("pair faults")
        self._token_s = world.plan.token_timeout_ms / 1000.0
        self._calm_s = world.plan.calm_s * self.tape.pick((1.0, 4.0))
        kinds: dict[str, Callable[[], None]] = {
            "link": self.link,
            "link_and_side": self.link_and_side,
            "side": self.side,
            "clients_away": self.clients_away,
            "both_down": self.both_down,
            "crash_active": self.crash_active,
            "force": self.force,
            "drain": self.drain,
            "declare": self.declare,
        }
        for kind in self.tape.some(tuple(kinds), 1, len(kinds)):
            self._later(kinds[kind])
        self._split_tape: Tape = world.tape.fork("pair splits")
        if world.plan.seed >= SPLITS_FROM and self._split_tape.chance(0.5):
            self._later_split()

    def _later(self, fault: Callable[[], None]) -> None:
        self.world.during(self.tape.gap(2 * self._calm_s), self._begin, fault)

    def _begin(self, fault: Callable[[], None]) -> None:
        fault()
        self._later(fault)

    def _length(self) -> float:
        return self._token_s * self.tape.pick((0.5, 3.0, 8.0, 30.0)) * self.tape.between(0.5, 1.5)

    def _tell(self, kind: str, text: str, *names: str) -> None:
        self.world.fault(kind, text, *(self.world.members[name] for name in names))

    # -- link and clients ------------------------------------------------------------------------

    def link(self) -> None:
        """Cut the pair's link alone: clients still reach both."""
        self._cut_link(self._length())

    def _cut_link(self, length_s: float) -> None:
        pairs = list(self.world.net.links)
        self._tell("pair_link", "", *self.world.plan.names)
        self.world.net.cut(pairs)
        self.world.during(length_s, self.world.net.mend, pairs)

    def link_and_side(self) -> None:
        """Pull one machine's cable."""
        length_s = self._length()
        self._cut_side(self.tape.pick(self.world.plan.names), length_s)
        self._cut_link(length_s)

    def side(self) -> None:
        """Cut off one of the two from some clients, or from all."""
        self._cut_side(self.tape.pick(self.world.plan.names), self._length())

    def _cut_side(self, name: str, length_s: float) -> None:
        actors = self.stack.actors if self.tape.chance(0.7) else self.stack.actors[:1]
        cut = {(actor.name, name) for actor in actors}
        self._tell("pair_side", name, name)
        self.stack.cut |= cut
        self.world.during(length_s, self.stack.cut.difference_update, cut)

    def _later_split(self) -> None:
        self.world.during(self._split_tape.gap(2 * self._calm_s), self.split)

    def split(self) -> None:
        """Give each member clients of its own and cut the pair: both may continue alone.  Then they
        meet, perhaps one of them after a crash or a pause, with its clients or before them."""
        tape, names = self._split_tape, self.world.plan.names
        length_s = self._token_s * tape.pick((3.0, 8.0, 30.0)) * tape.between(0.5, 1.5)
        swapped = tape.chance(0.5)
        cut = {
            (actor.name, names[(place + swapped) % 2])
            for place, actor in enumerate(self.stack.actors)
        }
        self._tell("pair_split", f"{length_s:.1f} s", *names)
        self.stack.cut |= cut
        clients_s = length_s * tape.pick((0.5, 1.0, 2.0))
        self.world.during(clients_s, self.stack.cut.difference_update, cut)
        self._cut_link(length_s)
        for name in names:
            if tape.chance(0.3):
                self.world.during(length_s * tape.between(0.2, 1.2), self._split_down, name)
        self._later_split()

    def _split_down(self, name: str) -> None:
        member, tape = self.world.members[name], self._split_tape
        if member.running:
            self._tell("split_down", name, name)
            member.crash()
            down_s = self._token_s * tape.pick((0.5, 3.0, 8.0)) * tape.between(0.5, 1.5)
            self.world.after(down_s, self.world.revive, name)

    def clients_away(self) -> None:
        """Let no client want anything, for long enough that a member alone notices."""
        length_s = self._length() if self.tape.chance(0.5) else self.tape.between(9.0, 16.0)
        self._tell("clients_away", f"{length_s:.1f} s")
        for actor in self.stack.actors:
            actor.away = True
            self.world.during(length_s, setattr, actor, "away", False)

    # -- processes -------------------------------------------------------------------------------

    def both_down(self) -> None:
        """Stop both, one after the other or at once, cleanly or not, and start them in any
        order."""
        for name in self.world.plan.names:
            self.world.during(self._length() * self.tape.pick((0.0, 1.0)), self._down, name)

    def _down(self, name: str) -> None:
        member, down_s = self.world.members[name], self._length()
        if not member.running:
            return
        self._tell("both_down", name, name)
        if self.tape.chance(0.3):
            member.leave(down_s)
        else:
            member.crash()
            self.world.after(down_s, self.world.revive, name)

    def crash_active(self) -> None:
        for upper in self.stack.uppers.values():
            if not upper.dead and upper.role.serves:
                self._tell("crash_active", upper.name, upper.name)
                upper.member.crash()
                self.world.after(self._length(), self.world.revive, upper.name)

    # -- operators -------------------------------------------------------------------------------

    def force(self) -> None:
        for upper in self.stack.uppers.values():
            if not upper.dead and upper.member.running and upper.role.force_passive():
                self._tell("force_passive", upper.name, upper.name)
                upper.schedule()

    def drain(self) -> None:
        name = self.tape.pick(self.world.plan.names)
        self._tell("drain", name, name)
        self.stack.drained.add(name)
        self.world.during(self._length(), self.stack.drained.discard, name)

    def declare(self) -> None:
        """One is lost for good, or an operator says so and lets the other one continue; a new
        machine, or the old one, comes in its place."""
        lost, kept = self.tape.some(self.world.plan.names, 2, 2)
        if self.tape.chance(0.5):
            lost, kept = kept, lost
        disk = self.stack.disks.get(kept)
        if disk is None or disk.meta is None or not self.stack.may_declare(kept):
            return
        if disk.meta.marker in (Marker.EMPTY, Marker.JOINING) or not disk.meta.position:
            return
        self._tell("declare", f"{lost} lost, {kept} kept", lost, kept)
        for name, down_s in ((lost, 4 * self._length()), (kept, self._token_s)):
            if self.world.members[name].up:
                self.world.members[name].crash()
            self.world.after(down_s, self.world.revive, name)
        if self.tape.chance(0.5):
            self.stack.lost.setdefault(lost, []).append(self.stack.disks[lost])
            self.stack.disks[lost] = MemoryDisk()
        self.stack.declare(kept)
