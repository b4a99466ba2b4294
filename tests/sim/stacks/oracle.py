"""A ring without frames: extended virtual synchrony from its definition, at high speed.

The real ring needs a token timeout for each view change, so a run has tens of them.  Here an oracle
orders, delivers, and changes views at will, as hostile as the model allows (each member has its own
border between deliveries in the regular and in the transitional configuration), so that the layers
above go through hundreds of views in the same time.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tests.sim.run.plan import Plan
from tests.sim.world.random_tape import Tape
from vsync.totem.events import Deliver, Direct, Marks, Output, Transitional, View
from vsync.totem.phases import Phase
from vsync.types import NO_RING, Guarantee, Member, RingId

if TYPE_CHECKING:
    from tests.sim.world.world import World

QUEUE_MAX = 200


class Ordered(NamedTuple):
    """One message in its place."""

    sender: Member
    payload: bytes
    guarantee: Guarantee


class Ring:
    """One regular configuration: the order, and how much of it each member has received."""

    def __init__(self, ident: RingId, members: tuple[Member, ...]) -> None:
        self.id, self.members = ident, members
        self.log: list[Ordered] = []
        self.received = dict.fromkeys(members, 0)
        self.marks: dict[str, int] = {}  # as its token would show them

    def safe(self) -> int:
        """The number of messages that all members have received."""
        return min(self.received.values())


class OracleCore:
    """One process's core, driven by the oracle; it looks like `vsync.totem.node.Node`."""

    def __init__(self, oracle: Oracle, me: Member) -> None:
        self.oracle, self.me = oracle, me
        self.mark = 0
        self.mark_covers = 0  # of the present ring: how much was delivered here when it was set
        self.phase = Phase.GATHER
        self.current: Ring | None = None
        self.counters: dict[str, int] = {}
        self.delivered = 0
        self.shown: dict[str, int] = {}
        self.queue: deque[tuple[bytes, Guarantee]] = deque()
        self.out: list[Output] = []
        self._due: float | None = None

    @property
    def ring(self) -> RingId:
        return self.current.id if self.current is not None else NO_RING

    @property
    def members(self) -> tuple[Member, ...]:
        return self.current.members if self.current is not None else ()

    def start(self, now: float) -> None:
        self._due = now
        self.oracle.cores[self.me.name] = self

    def receive(self, frame: bytes, now: float) -> None:
        """There are no frames."""

    def drained(self, now: float) -> None:
        """Not needed here."""

    def next_timer(self) -> float | None:
        return self._due

    def wake(self, now: float) -> None:
        self._due = now + self.oracle.gap()
        self.oracle.visit(self, now)

    def submit(
        self, payload: bytes, now: float, guarantee: Guarantee, *, urgent: bool = True
    ) -> bool:
        if len(self.queue) >= QUEUE_MAX:
            return False
        self.queue.append((payload, guarantee))
        return True

    def set_mark(self, mark: int, now: float) -> None:
        if mark != self.mark:
            self.mark, self.mark_covers = mark, self.delivered

    def expect_mark(self, mark: int) -> None:
        """No token waits here."""

    def send_direct(self, to: Member, payload: bytes) -> None:
        self.oracle.send_direct(self.me, to, payload)

    def leave(self, now: float) -> None:
        """The oracle sees which members are gone."""

    def suspect(self, address: str, now: float, *, refused: bool) -> None:
        """It needs no hints."""

    def take(self) -> list[Output]:
        out, self.out = self.out, []
        return out

    def invariants(self) -> None:
        """The oracle is right by definition."""

    def lease_holds(self, ident: RingId) -> bool:
        """An ideal lease: it ends the moment another member of the ring moves on, or is gone."""
        ring = self.current
        if ring is None or ring.id != ident:
            return False
        cores = [self.oracle.core_of(member) for member in ring.members]
        return all(core is not None and core.current is ring for core in cores)

    def deliver(self, ring: Ring, up_to: int, *, transitional: bool) -> None:
        for index in range(self.delivered, up_to):
            sender, payload, guarantee = ring.log[index]
            self.out.append(Deliver(ring.id, index + 1, sender, [payload], guarantee, transitional))
        self.delivered = max(self.delivered, up_to)

    def install(self, ring: Ring, companions: tuple[Member, ...]) -> None:
        before = self.members
        joined = tuple(m for m in ring.members if m not in companions)
        left = tuple(m for m in before if m not in companions)
        self.current, self.delivered, self.shown = ring, 0, {}
        self.mark_covers = 0  # marks are known in a ring from its begin
        self.phase = Phase.OPERATIONAL
        self.out.append(View(ring.id, ring.members, joined, left))


class Oracle:
    """Orders messages and changes views, with full knowledge of all members."""

    def __init__(self, plan: Plan) -> None:
        self.tape = Tape(plan.seed, "oracle")
        self.mail = self.tape.fork("mail")
        self.world: World | None = None
        self.cores: dict[str, OracleCore] = {}
        self.seq = 0
        self.round_s = self.tape.pick((0.0005, 0.002, 0.005))
        self.calm_s = self.tape.pick((0.005, 0.01, 0.03, 0.1))
        self.change_at = self.calm_s

    def make_core(self, me: Member, plan: Plan, chance: random.Random) -> OracleCore:
        return OracleCore(self, me)

    def gap(self) -> float:
        return self.tape.gap(self.round_s)

    def _live(self) -> list[OracleCore]:
        assert self.world is not None
        members = self.world.members
        return [
            core
            for name, core in sorted(self.cores.items())
            if (tap := members[name].tap) is not None and tap.core is core
        ]

    def core_of(self, member: Member) -> OracleCore | None:
        """The core of this process, while it is up."""
        assert self.world is not None
        core, tap = self.cores[member.name], self.world.members[member.name].tap
        alive = tap is not None and tap.core is core and core.me == member
        return core if alive else None

    def visit(self, core: OracleCore, now: float) -> None:
        """One step of one member: order, receive, deliver a few messages, get marks."""
        self._maybe_change(now)
        ring, tape = core.current, self.tape
        if ring is None:
            return
        me = core.me
        for _ in range(min(len(core.queue), tape.number(0, 4))):
            payload, guarantee = core.queue.popleft()
            ring.log.append(Ordered(me, payload, guarantee))
            ring.received[me] = len(ring.log)
        ring.received[me] += tape.number(0, min(8, len(ring.log) - ring.received[me]))
        ready = ring.safe() - core.delivered
        if ready > 0:
            core.deliver(ring, core.delivered + tape.number(0, ready), transitional=False)
        # A mark circulates on the token, behind what it covers: no member sees it before all have
        # delivered that.  A member that has left the ring delivers and sends nothing more in it.
        here = [one for m in ring.members if (one := self.core_of(m)) and one.current is ring]
        everywhere = min(one.delivered for one in here) if len(here) == len(ring.members) else 0
        ring.marks |= {one.me.name: one.mark for one in here if one.mark_covers <= everywhere}
        if ring.marks != core.shown and tape.chance(0.5):
            core.shown = dict(ring.marks)
            core.out.append(Marks(core.shown))

    def send_direct(self, sender: Member, to: Member, payload: bytes) -> None:
        """A datagram: late, sometimes lost, and only for members of one ring."""
        assert self.world is not None
        if not self.mail.chance(0.05):
            self.world.after(self.mail.gap(self.round_s), self._arrived, sender, to, payload)

    def _arrived(self, sender: Member, to: Member, payload: bytes) -> None:
        assert self.world is not None
        core = self.core_of(to)
        if core is not None and sender in core.members:
            core.out.append(Direct(sender, payload))
            self.world.members[to.name].schedule_turn()

    # -- views -----------------------------------------------------------------------------------

    def _maybe_change(self, now: float) -> None:
        assert self.world is not None
        healed = self.world.healed
        if not healed and now < self.change_at:
            return
        live = self._live()
        if healed:
            live = [core for core in live if core.me.name not in self.world.outside]
            everybody = [core.me for core in live]
            if any(list(core.members) != everybody for core in live):
                self._change([live])
        else:
            self.change_at = now + self.tape.gap(self.calm_s * self.tape.pick((0.2, 1.0, 8.0)))
            self._change(self._parts(live))

    def _parts(self, live: list[OracleCore]) -> list[list[OracleCore]]:
        """Mostly two groups, often with nearly all members in one."""
        shape = self.tape.random.random()
        if shape < 0.35:
            return [live]
        if shape < 0.65:
            alone = self.tape.pick(live)
            return [[alone], [core for core in live if core is not alone]]
        count = self.tape.number(2, 3)
        groups: list[list[OracleCore]] = [[] for _ in range(count)]
        for core in live:
            self.tape.pick(groups).append(core)
        return groups

    def _change(self, parts: list[list[OracleCore]]) -> None:
        assert self.world is not None
        for part in parts:
            if part and self.tape.chance(0.85):  # some stay as they are for now
                self._join(part)
        for core in self._live():
            self.world.members[core.me.name].schedule_turn()

    def _join(self, part: list[OracleCore]) -> None:
        self.seq += 1
        members = tuple(sorted(core.me for core in part))
        ring = Ring(RingId(self.seq, members[0].name, members[0].incarnation), members)
        groups: dict[RingId, list[OracleCore]] = {}
        for core in part:
            groups.setdefault(core.ring, []).append(core)
        for group in groups.values():
            self._move(group, ring)

    def _move(self, group: list[OracleCore], ring: Ring) -> None:
        """Move these together from their common ring, if any, to the next."""
        old = group[0].current
        companions = tuple(sorted(core.me for core in group)) if old is not None else ()
        if old is not None:
            safe = old.safe()
            known = max(old.received[core.me] for core in group)
            for core in group:
                border = self.tape.number(core.delivered, max(safe, core.delivered))
                core.deliver(old, border, transitional=False)
                core.out.append(Transitional(old.id, companions))
                core.deliver(old, known, transitional=True)
        for core in group:
            core.install(ring, companions or (core.me,))
