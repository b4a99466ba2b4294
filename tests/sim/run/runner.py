"""One seed from plan to verdict.

Phases: *chaos* (faults and load), then everything heals and liveness is demanded: *settle* (one
ring of all running members, within a bounded time), *drain* (all submitted messages arrive, and
fresh ones of every member too), *repair* (single lost frames and tokens do not break the ring),
*rest* (no further view change, no message), and last the checkers over the whole history.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from broker.waiting import backlog
from tests.sim.checkers.all import check
from tests.sim.checkers.history import Delivered, Installed, Submitted
from tests.sim.checkers.violation import Violation
from tests.sim.faults.nemesis import Nemesis
from tests.sim.run.plan import COUNTED_CHANGES, COUNTED_KINDS, COUNTED_STEPS, Plan
from tests.sim.stacks.stack import Stack
from tests.sim.world.load import Load
from tests.sim.world.member import COMMIT_WORST_S, SimMember
from tests.sim.world.random_tape import Tape
from tests.sim.world.trace import Trace
from tests.sim.world.world import MakeCore, World
from vsync.totem.membership.compatibility import HELLO_EVERY_S
from vsync.totem.membership.wire_versions import newest_common
from vsync.totem.phases import Phase
from vsync.types import Guarantee, record
from vsync.wire.messages import FrameKind

PROBES_PER_MEMBER = 3
BLOCK_MESSAGES = 3
"""The messages that a queue keeps in memory: so few that most of it may be on disk."""
REST_S = 2.0
CATCH_UP_S = 60.0
"""Clocks that jump ahead by hours are followed 10 s a tick; messages expire only then."""
RESUME_S = 5.0
DRAIN_S = 60.0
"""Time for messages accepted before the last fault: the longest queue over the slowest ring."""
REPAIR_S = 10.0
"""Time for a few more messages, and clients' answers to them one by one."""
SHUTDOWN_S = 100.0
"""Time for a shutdown of all that is under way when the chaos ends."""
SEED_CPU_S = 120.0
"""Processor time of one run; the slowest correct one takes a tenth."""
NO_END = "no end"
"""The rule that a longer run breaks."""
AGAIN_S = 5.0
"""Code that swallows the alarm gets another one."""


class OverTime(BaseException):
    """A run used up its time.  Not an `Exception`, which would be taken for one of the core's."""


@contextmanager
def _processor_limit(seconds: float) -> Iterator[None]:
    """Raise OverTime, wherever the run is then, when this much processor time is used up."""

    def alarm(_number: int, _frame: object) -> None:
        raise OverTime

    before = signal.signal(signal.SIGPROF, alarm)
    signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@record
class Result:
    """The result of one run."""

    plan: Plan
    violations: list[Violation]
    trace: Trace
    steps: int
    virtual_s: float
    wall_s: float
    views: int
    messages: int
    settle_s: float
    above: str  # the summary of the layer above
    faults: Counter[str]
    counters: Counter[str]
    world: World

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def ended(self) -> bool:
        """Whether it ran to its end."""
        return all(violation.rule != NO_END for violation in self.violations)

    @property
    def counted(self) -> bool:
        """Whether enough happened for this run to count in a campaign."""
        return (
            self.steps >= COUNTED_STEPS
            and self.world.kinds() >= COUNTED_KINDS
            and self.world.history.changes() >= COUNTED_CHANGES
        )


def settle_bound_s(plan: Plan) -> float:
    """L1: how long after the last fault one ring of all live members may take to form.

    With many members the token times out late, and twice as late on a ring that was slow or given
    up in vain.  Three rounds of token loss (2 tokens) and consensus (1.2 tokens), three tokens of
    backing off from a member that seemed unreachable, and half a second for joins and merge
    detection.  Members of two releases may have to hear of each other first.
    """
    hellos_s = 4 * HELLO_EVERY_S if plan.has("mixed_releases") else 0.0
    return (3 * 3.2 + 3) * token_timeout_s(plan) + 0.5 + 200 * plan.turn_s + hellos_s


def token_timeout_s(plan: Plan) -> float:
    """How long the token may be away before it counts as lost, with all members."""
    return plan.token_timeout_ms / 1000.0 * (1.0 + 0.2 * max(0, len(plan.names) - 2))


class Runner:
    """Drives one world through the phases."""

    def __init__(
        self,
        plan: Plan,
        make_core: MakeCore,
        stack: Stack,
        trace: Trace,
        seconds: float = SEED_CPU_S,
    ) -> None:
        """`seconds` of processor time, after which the run is ended."""
        self.plan = plan
        self.trace = trace
        self.world = World(plan, make_core, stack, trace)
        self.stack = stack
        self.violations: list[Violation] = []
        self.settle_s = 0.0
        self.seconds = seconds
        self.phase = "chaos"

    def run(self) -> Result:
        began = time.perf_counter()
        world = self.world
        try:
            with _processor_limit(self.seconds):
                self._run_and_check()
        except OverTime:
            text = f"not over after {self.seconds:g} s of the processor: {self.phase}, at"
            self._fail("G0", NO_END, f"{text} {world.now:.3f} s, after {world.steps} events")
        processes = world.history.processes
        return Result(
            plan=self.plan,
            violations=self.violations,
            trace=self.trace,
            steps=world.steps,
            virtual_s=world.now,
            wall_s=time.perf_counter() - began,
            views=sum(isinstance(e, Installed) for process in processes for e in process.entries),
            messages=sum(
                isinstance(e, Submitted) for process in processes for e in process.entries
            ),
            settle_s=self.settle_s,
            above=self.stack.describe(),
            faults=world.faults + world.net.met,
            counters=world.counters,
            world=world,
        )

    def _run_and_check(self) -> None:
        try:
            with patch.object(backlog, "BLOCK_MESSAGES", BLOCK_MESSAGES):
                self._phases()
        except Exception as error:  # a bug of a core is a finding, not the end of the campaign
            where = "".join(traceback.format_exception(error)[-3:])
            self.violations.append(Violation("G0", "crash", f"{error!r}\n{where}"))
        self.phase = "the checkers"
        world = self.world
        for name in sorted(world.outside):  # nothing is demanded of them: their history ends here
            world.members[name].crash()
        self.violations += check(world.history)
        for member in world.live():
            assert member.tap is not None
            world.retire(member.tap)

    # -- phases ----------------------------------------------------------------------------------

    def _phases(self) -> None:
        self._chaos()
        if self._settle() and self._resume() and self._drain() and self._repair():
            self._rest()
            self.phase = "the judges"
            self.violations += self.stack.finish(self.world.live())

    def _chaos(self) -> None:
        world, plan = self.world, self.plan
        nemesis = Nemesis(world, world.tape.fork("nemesis"))
        load = Load(world, world.tape.fork("load"))
        world.start()
        nemesis.start()
        if plan.loaded:
            load.start()
        enough = plan.chaos_s
        world.run_until(lambda: world.steps >= plan.steps_max, enough)
        # The chaos lasts until the run counts, or until it is clear that this seed never will.
        while (
            (world.steps < plan.steps_min or not self._enough_happened())
            and world.steps < plan.steps_max + COUNTED_STEPS
            and world.now < 40 * enough
        ):
            steps = max(plan.steps_min, world.steps + 500)
            world.run_until(lambda: world.steps >= steps, world.now + enough)  # noqa: B023
        if world.shutdown is not None:
            shutdown = world.shutdown
            world.run_until(lambda: not shutdown.under_way, world.now + SHUTDOWN_S)

    def _enough_happened(self) -> bool:
        """Whether a run has had the kinds of faults and the view changes that make it count."""
        if len(self.plan.faults) < COUNTED_KINDS:
            return True
        world = self.world
        return world.kinds() >= COUNTED_KINDS and world.history.changes() >= COUNTED_CHANGES

    def _heal(self) -> None:
        """End all faults within a quorate core; the others stay dead or cut off for good."""
        world = self.world
        world.fault("heal", "")
        world.net.heal(world.now)
        dead: list[str] = []
        if self.plan.has("stays_dead"):
            tape = world.tape.fork("dead")
            dead = tape.some(self.plan.names, 0, (len(self.plan.names) - 1) // 2)
            if not self.stack.can_do_without(dead, self.plan.names):
                dead = []
        elif self.plan.has("stays_cut"):
            self._leave_outside(world.tape.fork("outside"))
        for member in world.members.values():
            member.crash_after = None
            member.slowness = member.disk_slowness = 1.0
            member.disk_fails = False
            member.thaw_disk()
            if member.name in dead:
                if member.up:
                    world.fault("stays_dead", member.name)
                    member.crash()
            else:
                member.resume()
                world.revive(member.name)
        for name in dead:
            # No pending event can start a member of that name any more.
            world.members[name].removed = True

    def _leave_outside(self, tape: Tape) -> None:
        """A minority keeps running beside the core, cut off in both directions or only in one."""
        world, names = self.world, self.plan.names
        outside = tape.some(names, 0, (len(names) - 1) // 2)
        if not outside or not self.stack.can_do_without(outside, names):
            return
        into, out_of = tape.pick(((True, True), (True, False), (False, True)))
        pairs = [
            (a, b)
            for a, b in world.net.links
            if (into and a in outside and b not in outside)
            or (out_of and b in outside and a not in outside)
        ]
        world.outside = set(outside)
        world.fault("stays_cut", " ".join(f"{a}>{b}" for a, b in pairs))
        world.net.cut(pairs)

    def _settle(self) -> bool:
        self.phase = "settle"
        world = self.world
        self._heal()
        # Frames that were delayed are still on their way, and hold up all that follow them.
        healed = max([world.now, *(link.free_at for link in world.net.links.values())])
        bound = settle_bound_s(self.plan)
        # A token lost with the last fault is not missed before its timeout.
        world.run_until(lambda: False, healed + token_timeout_s(self.plan))
        if not world.run_until(self._settled, healed + bound):
            states = " ".join(
                f"{m.name}:{m.tap.core.ring}{{{','.join(x.name for x in m.tap.core.members)}}}"
                for m in world.live()
                if m.tap is not None
            )
            self._fail("L1", "L1", f"no common ring {bound:.2f} s after the last fault: {states}")
            return False
        self.settle_s = world.now - healed
        return True

    def _settled(self) -> bool:
        """Whether all live members have installed one ring of exactly the live members."""
        live = self.world.live()
        if not live:  # the only one was started with options from before a change, and starts again
            return False
        first = live[0].tap
        assert first is not None
        ring = first.core.ring
        names = [(m.name, m.incarnation) for m in live]
        return all(self._installed(member, names) and ring == _ring(member) for member in live)

    def _installed(self, member: SimMember, names: list[tuple[str, int]]) -> bool:
        assert member.tap is not None
        last = member.tap.last_view
        return (
            last is not None
            and member.tap.core.phase is Phase.OPERATIONAL
            and last.ring == member.tap.core.ring
            and [(m.name, m.incarnation) for m in last.members] == names
        )

    def _resume(self) -> bool:
        """L4: the layer above the ring resumes, with all live members up to date.

        Its time begins when earlier messages are gone: messages are sent in the order of submission
        (G5), in some plans two frames a rotation, and L2 bounds the time.
        """
        self.phase = "resume"
        world = self.world
        live = world.live()
        ahead = [(m.tap, m.tap.submitted) for m in live if m.tap is not None]
        world.run_until(
            lambda: all(map(_ready, live)) or all(tap.own_delivered >= last for tap, last in ahead),
            world.now + settle_bound_s(self.plan) + DRAIN_S,
        )
        bound = RESUME_S + 50 * self.plan.fsync_s + 20 * self.plan.transfer_s
        bound += self.stack.catch_up_s(live)
        if self.plan.has("clock_jump"):
            bound += CATCH_UP_S
        if self.plan.has("disk_slow"):
            bound += 2 * COMMIT_WORST_S  # one commit that began before, and one that waits for it
        if world.run_until(lambda: all(map(_ready, live)), world.now + bound):
            return True
        late = " ".join(m.name for m in live if not _ready(m))
        self._fail("L4", "L4", f"{late} not ready {bound:.1f} s after the ring settled")
        return False

    def _drain(self) -> bool:
        """L2: all messages that live members ever submitted return to them, probes arrive
        everywhere.

        A client's publish reaches the ring only after a while, and clients answer message by
        message: so the layers above must have come to rest, too.
        """
        self.phase = "drain"
        world = self.world
        live = world.live()
        taken = {m.name: 0 for m in live}
        for count in range(PROBES_PER_MEMBER):
            for member in live:
                level = Guarantee.SAFE if count % 2 else Guarantee.AGREED
                taken[member.name] += member.submit(count * self.plan.frame_bytes_max, level)
        bound = DRAIN_S + self._round_s(live)
        if world.run_until(lambda: all(map(_drained, live)), world.now + bound):
            return True
        self._fail("L2", "L2", f"not everything arrived within {bound:.1f} s: {_behind(live)}")
        return False

    def _round_s(self, live: Sequence[SimMember]) -> float:
        """How long the last message sent may take: over the ring, to a slow disk, and through the
        backlog on disk."""
        disks_s = 20 * self.plan.fsync_s + self.stack.catch_up_s(live)
        return settle_bound_s(self.plan) + disks_s

    def _repair(self) -> bool:
        """L5: frames and tokens lost one at a time are repaired within the ring.

        Otherwise a ring that never requests missing frames would pass, as it breaks and recovery
        brings them.  First a data frame is lost on each link, then a token of each member.
        """
        self.phase = "repair"
        world, live = self.world, self.world.live()
        ring = _ring(live[0])
        for kind in (FrameKind.DATA, FrameKind.TOKEN):
            for link in world.net.links.values():
                link.lose_next.add(int(kind))
            for member in live:
                member.submit(10, Guarantee.SAFE)
            bound = REPAIR_S + self._round_s(live)
            arrived = world.run_until(lambda: all(map(_drained, live)), world.now + bound)
            for link in world.net.links.values():
                link.lose_next.clear()
            rings = " ".join(f"{m.name}:{_ring(m)}" for m in live)
            if any(_ring(m) != ring for m in live):
                self._fail("L5", "L5", f"one lost {kind.name} frame broke ring {ring}: {rings}")
            elif not arrived:
                text = f"behind one lost {kind.name} frame not everything arrived within"
                self._fail("L5", "L5", f"{text} {bound:.1f} s: {_behind(live)}")
            else:
                continue
            return False
        return True

    def _rest(self) -> None:
        """L2 for the others, L3: a stable ring stays as it is."""
        self.phase = "rest"
        world = self.world
        live = world.live()
        ring = _ring(live[0])
        world.resting = True
        world.run_until(lambda: False, world.now + REST_S)
        for member in live:
            if _ring(member) != ring or not self._settled():
                self._fail("L3", "L3", f"{member.name} left ring {ring} without a fault")
                return
        nodes = [m.tap.node for m in live if m.tap is not None and m.tap.node is not None]
        written = {node.me.name: node.codec.written for node in nodes}
        if nodes and set(written.values()) != {newest_common(n.codec.versions for n in nodes)}:
            self._fail("L1", "wire", f"not the newest version that all read: {written}")
        if not all(map(_ready, live)):
            self._fail("L4", "L4", "not everybody is ready any more, without a fault")
        # Without a layer above, the mark is the last one set, whatever the core made of it.
        plain = not self.plan.primary
        marks = {m.name: m.mark if plain else m.tap.core.mark for m in live if m.tap is not None}
        for member in live:
            shown = member.tap.marks if member.tap is not None else {}
            if {name: shown.get(name, 0) for name in marks} != marks:
                self._fail("L2", "marks", f"{member.name} shows {shown}, set are {marks}")
        seen = [
            {
                entry.seq
                for entry in m.tap.process.entries
                if isinstance(entry, Delivered) and entry.ring == ring
            }
            for m in live
            if m.tap is not None
        ]
        everything = set().union(*seen)
        for member, mine in zip(live, seen, strict=True):
            if mine != everything:
                text = f"{member.name} lacks {sorted(everything - mine)[:8]} of ring {ring}"
                self._fail("L2", "L2", text)

    def _fail(self, promise: str, rule: str, text: str) -> None:
        self.violations.append(Violation(promise, rule, text))


def _ready(member: SimMember) -> bool:
    return member.upper is not None and member.upper.ready


def _drained(member: SimMember) -> bool:
    """Whether all its submitted messages have returned, and it has no more to submit."""
    assert member.tap is not None
    return member.tap.own_delivered == member.tap.submitted and _ready(member)


def _behind(live: Iterable[SimMember]) -> str:
    own = " ".join(
        f"{m.name}:{m.tap.own_delivered}/{m.tap.submitted}" for m in live if m.tap is not None
    )
    busy = " ".join(m.name for m in live if not _ready(m))
    return f"own {own}" + f", not at rest {busy}" * bool(busy)


def _ring(member: SimMember) -> object:
    assert member.tap is not None
    return member.tap.core.ring
