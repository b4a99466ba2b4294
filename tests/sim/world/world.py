"""The event heap, the clock, and everything that depends on them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from pathlib import Path

from tests.sim.checkers.history import History
from tests.sim.faults.link_hints import Hints
from tests.sim.faults.shutdown_of_all import ShutdownOfAll
from tests.sim.run.coverage import stage_of
from tests.sim.run.plan import ALWAYS_ON, Plan, calm_of
from tests.sim.stacks.stack import Stack
from tests.sim.world.member import SimMember, Upper
from tests.sim.world.net import Net
from tests.sim.world.random_tape import Tape
from tests.sim.world.sequence_numbers import Numbers
from tests.sim.world.tap import Core, Tap
from tests.sim.world.trace import Trace
from vsync.types import Member

NO_FAULTS = {
    "mend",
    "heal",
    "queue_full",
    "inbox_full",
    "nowhere",
    "crash_armed",
    "cut",
    "restored",
}
"""Counted beside faults: their end, or their consequence."""

MakeCore = Callable[[Member, Plan, random.Random], Core]


class World:
    """All members and the network between them at one moment of virtual time."""

    def __init__(self, plan: Plan, make_core: MakeCore, stack: Stack, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.tape = Tape(plan.seed)
        self.history = History()
        self.now = 0.0
        self.steps = 0
        self.heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.counters: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._order = itertools.count()
        self._make_core = make_core
        self.stack = stack
        self.calm = calm_of(plan)
        self.ringtrace: Path | None = None
        self.net = Net(
            list(plan.names), self.tape.fork("net"), self.calm, plan.queue_frames, self._deliver_at
        )
        self.members = {name: SimMember(self, name) for name in plan.names}
        self.hints = Hints(self)
        self.numbers = Numbers()
        self.shutdown: ShutdownOfAll | None = None
        self.resting = False  # no more requests are made
        self.outside: set[str] = set()  # up, but not part of the core that must work at the end
        self.pairs: Counter[tuple[str, str]] = Counter()  # fault, stage of the member it hit
        self.episodes = 0  # how many began, and how many strikes were due
        self.strikes = 0
        self.on_phase: list[Callable[[SimMember], None]] = []
        self.on_view: list[Callable[[SimMember], None]] = []
        self.net.on_fault = self._met

    # -- time ------------------------------------------------------------------------------------

    def at(self, time: float, action: Callable[..., None], *arguments: object) -> None:
        heappush(self.heap, (time, next(self._order), action, arguments))

    def after(self, delay: float, action: Callable[..., None], *arguments: object) -> None:
        heappush(self.heap, (self.now + delay, next(self._order), action, arguments))

    def during(self, delay: float, action: Callable[..., None], *arguments: object) -> None:
        """As `after`, but not once the faults are over: so a fault neither continues nor undoes
        what the end of all faults arranged."""
        self.after(delay, self._unless_healed, action, *arguments)

    def _unless_healed(self, action: Callable[..., None], *arguments: object) -> None:
        if not self.healed:
            action(*arguments)

    def run_until(self, end: Callable[[], bool], deadline: float) -> bool:
        """Run until `end()` holds (asked after each event) or time is up; True in the first case.

        The clock never passes the deadline by more than one event.
        """
        heap = self.heap
        while not end():
            if not heap or heap[0][0] > deadline:
                self.now = max(self.now, deadline)
                return end()
            time, _, action, arguments = heappop(heap)
            assert time >= self.now, "time runs backwards"
            self.now = time
            action(*arguments)
        return True

    # -- members ---------------------------------------------------------------------------------

    def start(self) -> None:
        tape = self.tape.fork("start")
        spread = self.plan.token_timeout_ms / 500.0 if self.plan.has("staggered_start") else 0.005
        for name in self.plan.names:
            self.after(tape.between(0.0, spread), self.revive, name)

    def revive(self, name: str) -> None:
        """Start a member that is down; one that is up stays as it is."""
        member = self.members[name]
        if member.up or member.removed:
            return
        if member.disk_fails:  # it cannot even open its store
            self.fault("start_refused", name)
            self.after(self.plan.token_timeout_ms / 1000.0, self.revive, name)
            return
        if not member.disk_waits(partial(self.revive, name)):
            member.start()

    def live(self) -> list[SimMember]:
        """All running members, except those that the end of the run leaves outside."""
        return [m for m in self.members.values() if m.up and m.name not in self.outside]

    def make_core(self, me: Member) -> Core:
        chance = self.tape.fork(f"core {me.name} {me.incarnation}").random
        return self._make_core(me, self.plan, chance)

    def make_upper(self, member: SimMember, tap: Tap) -> Upper:
        return self.stack.make(member, tap)

    def retire(self, tap: Tap) -> None:
        """Keep the counters of a process that ended."""
        self.counters.update(tap.core.counters)
        if tap.recorder is not None:
            tap.recorder.close()

    def step(self, core: Core) -> None:
        """Count one input of one core, and look inside."""
        self.steps += 1
        core.invariants()

    # -- frames ----------------------------------------------------------------------------------

    def send(self, source: str, target: str, frame: bytes) -> None:
        if source == target:
            self.at(self.now, self._arrive_own, target, frame)
        else:
            self.net.send(self.now, source, target, frame)

    def _deliver_at(self, time: float, source: str, target: str, frame: bytes) -> None:
        self.at(time, self._arrive, source, target, frame)

    def _arrive(self, source: str, target: str, frame: bytes) -> None:
        self.net.links[source, target].in_flight -= 1
        self.trace.frame(self.now, source, target, frame)
        self.members[target].arrive(frame)

    def _arrive_own(self, target: str, frame: bytes) -> None:
        self.trace.frame(self.now, target, target, frame)
        self.members[target].arrive(frame)

    def fault(self, name: str, text: str, *whom: SimMember) -> None:
        """Count a fault, and the stage of each member concerned."""
        self.faults[name] += 1
        self.trace.add(self.now, "*", name, text)
        for member in whom:
            self.pairs[name, stage_of(member)] += 1

    @property
    def healed(self) -> bool:
        """Whether the chaos is over."""
        return "heal" in self.faults

    def kinds(self) -> int:
        """The number of kinds of fault so far."""
        met = self.faults.keys() | self.net.met.keys()
        return len(met - NO_FAULTS) + sum(map(self.plan.has, ALWAYS_ON))

    def _met(self, name: str, target: str) -> None:
        self.pairs[name, stage_of(self.members[target])] += 1
