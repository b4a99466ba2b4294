"""Nemesis: begins and ends the faults of a plan, until all faults are over.

Network faults are here; `nemesis_members` has those of processes, disks and clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.faults.during_formation import Strike
from tests.sim.faults.nemesis_members import MemberFaults
from tests.sim.faults.triggered import TriggeredFaults
from tests.sim.run.plan import ALL_EPISODES
from tests.sim.world.random_tape import Tape

if TYPE_CHECKING:
    from tests.sim.world.world import World

Pairs = list[tuple[str, str]]
SELDOM = ("crash_all", "flood", "restart_storm", "pause_long")
"""Faults that are drawn less often, as they would leave little of a run otherwise."""


class Nemesis:
    """Schedules episodes of each fault of the plan at random times."""

    def __init__(self, world: World, tape: Tape) -> None:
        self.world = world
        self.tape = tape
        self.number = 0  # of the next episode
        self.members = MemberFaults(world, tape, self._length)
        self.strike: Strike | None = None
        self.triggered: TriggeredFaults | None = None
        self.handlers: dict[str, Callable[[], None]] = {
            "isolate": self.isolate,
            "halves": self.halves,
            "oneway": self.oneway,
            "pairwise": self.pairwise,
            "flap": self.flap,
            "clog": self.clog,
            "slow": self.slow,
            "bridge": self.bridge,
            "neighbours": self.neighbours,
            "swizzle": self.swizzle,
            **self.members.handlers,
        }
        assert set(self.handlers) == set(ALL_EPISODES)

    def start(self) -> None:
        plan = self.world.plan
        for fault in ALL_EPISODES:
            if plan.has(fault):
                self._later(fault)
        if plan.has("strike"):
            self.strike = Strike(self.world, self.tape.fork("strike"))
            self.world.on_phase.append(self.strike.on_phase)
        if plan.has("late") or plan.has("outage"):
            self.triggered = TriggeredFaults(self.world, self.tape.fork("ambush"))
            self.world.on_phase.append(self.triggered.on_phase)
            self.world.on_view.append(self.triggered.on_view)
        if plan.storms:
            self._storm(True)
        else:
            self.world.net.weather = plan.weather

    def _later(self, fault: str) -> None:
        mean = self.world.plan.calm_s * (4.0 if fault in SELDOM else 1.0)
        self.world.during(self.tape.gap(mean), self._begin, fault)

    def _begin(self, fault: str) -> None:
        kept = self.world.plan.episodes
        if kept is None or self.number in kept:
            self.handlers[fault]()
        self.number += 1
        self.world.episodes = self.number
        self._later(fault)

    def _storm(self, clear: bool) -> None:
        plan = self.world.plan
        self.world.net.weather = self.world.calm if clear else plan.weather
        self.world.during(self.tape.gap(plan.calm_s), self._storm, not clear)

    def _length(self) -> float:
        """An episode's length: around a multiple of the token timeout, where the races are."""
        plan = self.world.plan
        return plan.token_timeout_ms / 1000.0 * plan.episode_s * self.tape.between(0.3, 1.7)

    # -- the network -----------------------------------------------------------------------------

    def _cut(self, name: str, pairs: Pairs) -> None:
        if not pairs:
            return
        self._tell(name, pairs)
        self.world.net.cut(pairs)
        self.world.hints.cut(pairs)
        self.world.during(self._length(), self._mend, pairs)

    def _tell(self, name: str, pairs: Pairs) -> None:
        whom = sorted({name for pair in pairs for name in pair})
        text = " ".join(f"{a}>{b}" for a, b in pairs)
        self.world.fault(name, text, *(self.world.members[name] for name in whom))

    def _mend(self, pairs: Pairs) -> None:
        self._tell("mend", pairs)
        self.world.net.mend(pairs)

    def _across(self, side: list[str]) -> Pairs:
        """Links in both directions between `side` and the others."""
        return [(a, b) for a, b in self.world.net.links if (a in side) != (b in side)]

    def isolate(self) -> None:
        self._cut("isolate", self._across([self.tape.pick(self.world.plan.names)]))

    def halves(self) -> None:
        names = self.world.plan.names
        self._cut("halves", self._across(self.tape.some(names, 1, max(1, len(names) - 1))))

    def oneway(self) -> None:
        """Cut one direction: one member can send but not receive, or the reverse, or one link
        breaks."""
        links = list(self.world.net.links)
        if not links:
            return
        a, b = self.tape.pick(links)
        shape = self.tape.number(0, 2)
        if shape == 0:
            self._cut("oneway", [(a, b)])
        elif shape == 1:
            self._cut("deaf", [pair for pair in links if pair[1] == b])
        else:
            self._cut("mute", [pair for pair in links if pair[0] == a])

    def pairwise(self) -> None:
        """Cut the link between two members; those to all others work."""
        links = list(self.world.net.links)
        if links:
            a, b = self.tape.pick(links)
            self._cut("pairwise", [(a, b), (b, a)])

    def flap(self) -> None:
        """Cut off one member several times in a row."""
        pairs = self._across([self.tape.pick(self.world.plan.names)])
        step = self._length()
        for i in range(self.tape.number(2, 5)):
            self.world.during(i * 2.0 * step, self._cut, "flap", pairs)

    def _links_around(self) -> Pairs:
        name = self.tape.pick(self.world.plan.names)
        incoming = self.tape.chance(0.5)
        return [pair for pair in self.world.net.links if pair[1 if incoming else 0] == name]

    def clog(self) -> None:
        """Let frames pile up on some links, then arrive all at once, however old."""
        pairs = self._links_around()
        if pairs:
            self._tell("clog", pairs)
            self.world.net.clog(pairs)
            self.world.during(self._length(), self._unclog, pairs)

    def _unclog(self, pairs: Pairs) -> None:
        self.world.net.unclog(self.world.now, pairs)

    def slow(self) -> None:
        pairs = self._links_around()
        if pairs:
            extra = self.tape.between(0.001, 0.03)
            self._tell("slow", pairs)
            self.world.net.slow(pairs, extra)
            self.world.during(self._length(), self.world.net.slow, pairs, 0.0)

    # -- shapes of partial partitions ------------------------------------------------------------

    def bridge(self) -> None:
        """Make two sides without a link between them, and one member linked with both."""
        names = list(self.world.plan.names)
        if len(names) < 3:
            return
        middle = self.tape.pick(names)
        others = [name for name in names if name != middle]
        side = self.tape.some(others, 1, len(others) - 1)
        links = [pair for pair in self.world.net.links if middle not in pair]
        self._cut("bridge", [(a, b) for a, b in links if (a in side) != (b in side)])

    def neighbours(self) -> None:
        """Link each member only with its two neighbours in a random order."""
        names = list(self.world.plan.names)
        self.tape.random.shuffle(names)
        place, count = {name: i for i, name in enumerate(names)}, len(names)
        far = [
            (a, b)
            for a, b in self.world.net.links
            if (place[a] - place[b]) % count not in (1, count - 1)
        ]
        self._cut("neighbours", far)

    def swizzle(self) -> None:
        """Stop members' links one after the other, and let them continue in another order."""
        names = self.tape.some(self.world.plan.names, 1, len(self.world.plan.names))
        step = self._length() / len(names)
        back = list(names)
        self.tape.random.shuffle(back)
        for turn, name in enumerate(names):
            pairs = [pair for pair in self.world.net.links if name in pair]
            self.world.during(turn * step, self._stop_links, pairs)
        for turn, name in enumerate(back):
            pairs = [pair for pair in self.world.net.links if name in pair]
            self.world.during((len(names) + turn) * step, self._unclog, pairs)

    def _stop_links(self, pairs: Pairs) -> None:
        if pairs:
            self._tell("swizzle", pairs)
            self.world.net.clog(pairs)
