"""Two real members that are a pair, HAC or master/slave, with its clients and operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from broker.options.modes.pair import HAC, MASTER_SLAVE, PairOptions
from broker.roles.pair_table import Standing
from store.api import Marker
from tests.sim.broker.shell import BrokerUpper
from tests.sim.broker.stack import BrokerStack
from tests.sim.pairs.actors import Actor
from tests.sim.pairs.faults import PairFaults
from tests.sim.pairs.judge import PairJudge
from tests.sim.pairs.member import PairUpper, SimPair
from tests.sim.run.plan import VOTES, Plan
from tests.sim.world.member import SimMember, Upper
from tests.sim.world.random_tape import Tape
from tests.sim.world.tap import Tap
from tests.sim.world.world import World
from tests.support.stores.memory import MemoryDisk
from vsync.quorum.reconfiguration import declared_alone
from vsync.quorum.voter_set import Terms, parse

NAMES = ("a", "b")
SEATS = {HAC: ("primary", "backup"), MASTER_SLAVE: ("master", "slave")}


def pair_plan(plan: Plan) -> Plan:
    """The plan of a seed for two members; the voters are not drawn.

    Nor does a client send to both at once, as each may be alone and know half of it.
    """
    faults = tuple(fault for fault in plan.faults if fault not in (*VOTES, "client_twin"))
    return replace(plan, names=NAMES, faults=faults)


class PairStack(BrokerStack):
    """A pair on a ring."""

    has_links = False

    judge: PairJudge
    uppers: dict[str, PairUpper]  # type: ignore[assignment]

    def __init__(self, memberlog: Path | None = None) -> None:
        super().__init__(memberlog, PairJudge(lambda name: self.disks[name]))
        self.judge.uppers = self.uppers
        self.options: dict[str, PairOptions] = {}
        self.actors: list[Actor] = []
        self.cut: set[tuple[str, str]] = set()  # actors and the members that they do not reach
        self.moves: Counter[str] = Counter()

    def make(self, member: SimMember, tap: Tap) -> Upper:
        if not self.options:
            self._begin(member.world)
        return super().make(member, tap)

    def _begin(self, world: World) -> None:
        tape: Tape = world.tape.fork("pair")
        mode = tape.pick((HAC, HAC, MASTER_SLAVE))
        first = tape.number(0, 1)
        kept = NAMES[first if mode == MASTER_SLAVE else 1 - first]
        ends = mode == MASTER_SLAVE and tape.chance(0.3)
        timeout_s = world.plan.token_timeout_ms / 1000.0 * tape.between(0.0, 6.0)
        for place, name in enumerate(NAMES):
            self.options[name] = PairOptions(
                mode, SEATS[mode][place != first], NAMES[1 - place], kept, ends,
                timeout_s if mode == MASTER_SLAVE else 0.0,
            )  # fmt: skip
        self.actors = [Actor(self, world, number) for number in range(tape.number(1, 3))]
        PairFaults(self, world)

    def upper_of(self, member: SimMember, tap: Tap, disk: MemoryDisk) -> BrokerUpper:
        return PairUpper(self, member, tap, disk)

    def requested(self, plan: Plan, name: str) -> Terms:
        return (f"@pair={self.options[name].kept}",)

    # -- for actors ------------------------------------------------------------------------------

    def door(self, name: str) -> SimPair | None:
        """Where clients connect; None: nobody listens there."""
        upper = self.uppers.get(name)
        return None if upper is None or upper.dead else upper.role

    def reaches(self, actor: Actor, name: str) -> bool:
        """Whether an actor's data arrive."""
        return actor.world.healed or (actor.name, name) not in self.cut

    # -- for operators ---------------------------------------------------------------------------

    def may_declare(self, name: str) -> bool:
        """Whether an operator may declare for one member: only if none did for the other one."""
        other = NAMES[name == NAMES[0]]
        meta = self.disks[other].meta if other in self.disks else None
        return meta is None or "@declared" not in meta.voters

    def declare(self, name: str) -> None:
        """`qpid-cluster-store -c --sole-voter` on the disk of a stopped member."""
        disk = self.disks[name]
        assert disk.meta is not None
        voters = declared_alone(disk.meta.voters, name)
        assert voters
        disk.meta = replace(disk.meta, voters=voters, marker=Marker.CLEAN)
        self.judge.declared(name, disk.meta.chain)

    # -- for the judge ---------------------------------------------------------------------------

    def moved(self, before: Standing, after: Standing, seat: str) -> None:
        """Count a move of a member."""
        self.moves[f"{seat} {before.value}>{after.value}"] += 1

    def of_one_side(self, one: BrokerUpper, other: BrokerUpper) -> bool:
        mine, theirs = self.judge.side[one.name], self.judge.side[other.name]
        return mine is theirs or mine.owner != one.name or theirs.owner != other.name

    def look_at_roles(self) -> None:
        """At most one is active, except where each took the vote, or an operator declared."""
        active = [upper for upper in self.uppers.values() if not upper.dead and upper.role.serves]
        if active:
            self.judge.counters["active"] += 1
        if len(active) > 1:
            self.judge.counters["both_active"] += 1
            if self.of_one_side(*active):
                self.judge.broken("G25", "both are active at the same time")

    def can_do_without(self, dead: Sequence[str], names: Sequence[str]) -> bool:
        """A single member may rightly wait for the other one, or for a client."""
        return not dead

    def wipe(self, name: str, names: Sequence[str]) -> None:
        """Empty a disk, if the other one has all its contents, and is alone by its record."""
        other, mine = NAMES[name == NAMES[0]], self.disks[name].meta
        there = self.disks.get(other)
        if mine is None or there is None or there.meta is None or not there.meta.position:
            return
        if self._needs_nobody(other, name) and self._covers(there, mine):
            self.lost.setdefault(name, []).append(self.disks[name])
            self.disks[name] = MemoryDisk()

    def _needs_nobody(self, name: str, lost: str) -> bool:
        """Whether one is alone by its record, and by its imminent next record.

        Once it has applied that the other one is being counted again, or will because that one has
        ordered it, its disk will say that both are needed.  If the other disk is lost then, and it
        restarts, it rightly waits for data that nobody has (exceptions 2 and 3 of G28): the other
        one may have continued without it.  Only an operator can say that it did not.
        """
        meta, upper, gone = self.disks[name].meta, self.uppers.get(name), self.uppers.get(lost)
        assert meta is not None
        records = {meta.voters}
        if upper is not None and not upper.dead:
            records.add(upper.controller.promise.voters)
        if gone is not None and gone.watchdogs.asked in records:
            return False
        electorates = [parse(voters) for voters in records]
        return all(not one.changing and one.quorate((name,)) for one in electorates)

    def restore(self, name: str, image: object, names: Sequence[str], forgetful: int = 0) -> bool:
        """Not for a pair: an old disk that says that its member was alone would act on that
        again."""
        return False

    def describe(self) -> str:
        text = super().describe()
        mode = next(iter(self.options.values())).mode
        return f" {mode}{text}" + "".join(f" {move}={n}" for move, n in sorted(self.moves.items()))
