"""Who makes trouble: begins and ends the faults that a plan contains, until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.plan import EPISODE_FAULTS
from tests.sim.stack import Wipeable
from tests.sim.tape import Tape

if TYPE_CHECKING:
    from tests.sim.world import World

Pairs = list[tuple[str, str]]


class Nemesis:
    """Schedules episodes of each fault of the plan at random times."""

    def __init__(self, world: World, tape: Tape) -> None:
        self.world = world
        self.tape = tape
        self.over = False
        self.handlers: dict[str, Callable[[], None]] = {
            "isolate": self.isolate,
            "halves": self.halves,
            "oneway": self.oneway,
            "pairwise": self.pairwise,
            "flap": self.flap,
            "clog": self.clog,
            "slow": self.slow,
            "crash": self.crash,
            "crash_mid_output": self.crash_mid_output,
            "crash_quick": self.crash_quick,
            "crash_all": self.crash_all,
            "wipe": self.wipe,
            "pause": self.pause,
            "leave": self.leave,
        }
        assert tuple(self.handlers) == EPISODE_FAULTS

    def start(self) -> None:
        plan = self.world.plan
        for fault in EPISODE_FAULTS:
            if plan.has(fault):
                self._later(fault)
        if plan.storms:
            self._storm(True)
        else:
            self.world.net.weather = plan.weather

    def stop(self) -> None:
        """Begin no more episodes; what the running ones still undo is harmless."""
        self.over = True

    def _later(self, fault: str) -> None:
        mean = self.world.plan.calm_s * (4.0 if fault == "crash_all" else 1.0)
        self.world.after(self.tape.gap(mean), self._begin, fault)

    def _begin(self, fault: str) -> None:
        if self.over:
            return
        self.handlers[fault]()
        self._later(fault)

    def _storm(self, clear: bool) -> None:
        if self.over:
            return
        plan = self.world.plan
        self.world.net.weather = self.world.calm if clear else plan.weather
        self.world.after(self.tape.gap(plan.calm_s), self._storm, not clear)

    def _length(self) -> float:
        """An episode's length: around a multiple of the token timeout, where the races are."""
        plan = self.world.plan
        return plan.token_timeout_ms / 1000.0 * plan.episode_s * self.tape.between(0.3, 1.7)

    # -- the network -----------------------------------------------------------------------------

    def _cut(self, name: str, pairs: Pairs) -> None:
        if not pairs or self.over:
            return
        self.world.fault(name, " ".join(f"{a}>{b}" for a, b in pairs))
        self.world.net.cut(pairs)
        self.world.after(self._length(), self._mend, pairs)

    def _mend(self, pairs: Pairs) -> None:
        if not self.over:
            self.world.fault("mend", " ".join(f"{a}>{b}" for a, b in pairs))
        self.world.net.mend(pairs)

    def _across(self, side: list[str]) -> Pairs:
        """Links of both directions between `side` and the others."""
        return [(a, b) for a, b in self.world.net.links if (a in side) != (b in side)]

    def isolate(self) -> None:
        self._cut("isolate", self._across([self.tape.pick(self.world.plan.names)]))

    def halves(self) -> None:
        names = self.world.plan.names
        self._cut("halves", self._across(self.tape.some(names, 1, max(1, len(names) - 1))))

    def oneway(self) -> None:
        """One member can send and not receive, or the other way round, or only one link breaks."""
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
        """Two members cannot see each other, all others see both."""
        links = list(self.world.net.links)
        if links:
            a, b = self.tape.pick(links)
            self._cut("pairwise", [(a, b), (b, a)])

    def flap(self) -> None:
        """One member is cut off several times in a row."""
        pairs = self._across([self.tape.pick(self.world.plan.names)])
        step = self._length()
        for i in range(self.tape.number(2, 5)):
            self.world.after(i * 2.0 * step, self._cut, "flap", pairs)

    def _links_around(self) -> Pairs:
        name = self.tape.pick(self.world.plan.names)
        incoming = self.tape.chance(0.5)
        return [pair for pair in self.world.net.links if pair[1 if incoming else 0] == name]

    def clog(self) -> None:
        """Frames pile up on some links, then all arrive at once, old as they are."""
        pairs = self._links_around()
        if pairs:
            self.world.fault("clog", " ".join(f"{a}>{b}" for a, b in pairs))
            self.world.net.clog(pairs)
            self.world.after(self._length(), self._unclog, pairs)

    def _unclog(self, pairs: Pairs) -> None:
        self.world.net.unclog(self.world.now, pairs)

    def slow(self) -> None:
        pairs = self._links_around()
        if pairs:
            extra = self.tape.between(0.001, 0.03)
            self.world.fault("slow", f"{extra * 1000:.1f} ms")
            self.world.net.slow(pairs, extra)
            self.world.after(self._length(), self.world.net.slow, pairs, 0.0)

    # -- the processes ---------------------------------------------------------------------------

    def _running(self) -> list[str]:
        return [name for name, member in self.world.members.items() if member.running]

    def _crash(self, how: str, name: str, down_s: float) -> None:
        self.world.fault(how, name)
        self.world.members[name].crash()
        self.world.after(down_s, self.world.revive, name)

    def crash(self) -> None:
        running = self._running()
        if running:
            self._crash("crash", self.tape.pick(running), self._length() * 2)

    def crash_quick(self) -> None:
        """Back before anybody can have missed it."""
        running = self._running()
        if running:
            down_s = self.world.plan.token_timeout_ms / 1000.0 * self.tape.between(0.01, 0.6)
            self._crash("crash_quick", self.tape.pick(running), down_s)

    def crash_mid_output(self) -> None:
        """Dies between two outputs of one step: half of its frames left, half did not."""
        running = self._running()
        if running:
            name = self.tape.pick(running)
            self.world.fault("crash_armed", name)
            self.world.members[name].arm_crash(self.tape.number(1, 12), self._length())

    def crash_all(self) -> None:
        for name in self._running():
            self._crash("crash_all", name, self._length() * self.tape.between(0.2, 2.0))

    def wipe(self) -> None:
        """A member dies and loses its disk; never more than a majority of disks can take."""
        running = self._running()
        if running:
            name = self.tape.pick(running)
            self._crash("wipe", name, self._length() * 2)
            if isinstance(self.world.stack, Wipeable):
                self.world.stack.wipe(name, self.world.plan.names)

    def pause(self) -> None:
        """The process stands still (SIGSTOP) and then finds everything in its inbox at once."""
        running = self._running()
        if running:
            name = self.tape.pick(running)
            self.world.fault("pause", name)
            self.world.members[name].pause()
            self.world.after(self._length(), self.world.members[name].resume)

    def leave(self) -> None:
        running = self._running()
        if running:
            name = self.tape.pick(running)
            self.world.fault("leave", name)
            self.world.members[name].leave(self._length())
