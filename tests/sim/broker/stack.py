"""Real brokers on every ring of a run: disks that outlive incarnations, and the judge of all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from broker.durability.data_directory import filled
from broker.process.arbitrator_record import ArbiterRecord
from store.api import Meta
from tests.sim.broker.arbiter import SimArbiter
from tests.sim.broker.audit import Witness, audit
from tests.sim.broker.judge import BrokerJudge
from tests.sim.broker.shell import BrokerUpper
from tests.sim.checkers.violation import Violation
from tests.sim.clients.link_ends import SimAttempt
from tests.sim.clients.programs import Orphans
from tests.sim.faults.nemesis_broker import EventFaults
from tests.sim.run.plan import VOTES, Plan
from tests.sim.world.member import SimMember, Upper
from tests.sim.world.tap import Tap
from tests.support.stores.memory import MemoryDisk
from vsync.quorum.voter_set import Terms, majority, parse
from vsync.types import Member

BLOCK_S = 0.05
"""The time for a block that a member lacks: two datagrams and a read, late and sometimes lost.  The
next is requested when the first piece of one is here, so small ones arrive one per round trip.  For
a page of waiting messages it is the time of the slowest simulated disk, read by read."""
LINKS_S = 15.0
"""For a link that waits in vain for the previous one, and for its own last pause."""


def arbitrator_of(plan: Plan) -> str:
    """The member that votes and holds no data; empty: none."""
    return plan.names[-1] if plan.has("arbitrator") and len(plan.names) > 2 else ""


class BrokerStack:
    """Brokers on a ring; with `memberlog` each incarnation writes its member log there."""

    has_links = True

    def __init__(self, memberlog: Path | None = None, judge: BrokerJudge | None = None) -> None:
        self.memberlog = memberlog
        self.judge = judge or BrokerJudge()
        self.disks: dict[str, MemoryDisk] = {}
        self.lost: dict[str, list[MemoryDisk]] = {}  # the contents of wiped disks
        self.uppers: dict[str, BrokerUpper] = {}
        self.told: dict[str, Terms] = {}  # options that members named when they stopped
        self.unusual = False  # the votes can do without some members but not others
        self.records: dict[str, ArbiterRecord] = {}  # the files of arbitrators
        self.judge.records = self.records
        self.numbers = count(1)  # connections, none twice in the run
        self.orphans: Orphans = []
        self.attempts: list[SimAttempt] = []  # of links
        self.drained: set[str] = set()  # members that operators drained
        self.event_faults: EventFaults | None = None

    def requested(self, plan: Plan, name: str) -> Terms:
        """The vote options with which a member is started, as terms.

        Operators who change the voters change the option files as well.  They cannot change any
        before something was applied: a first start that broke off is repeated with the same
        options.  Whether a change took effect they learn from the member that stops: its reason
        names both.
        """
        if name in self.told:
            return self.told[name]
        known = [
            upper.controller
            for upper in self.uppers.values()
            if upper.controller.promise.voters and upper.controller.replica.history.position
        ]
        if known and plan.has("voter_changes"):
            newest = max(known, key=lambda one: (one.promise.promised_epoch, one.voters_since))
            now = parse(newest.promise.voters).latest
            return replace(now, votes={}, away=frozenset()).terms
        arbitrator = arbitrator_of(plan)
        terms = [f"{plan.names[0]}=2"] if plan.has("unequal_votes") and len(plan.names) > 2 else []
        return (*terms, *([f"@arbitrator={arbitrator}"] if arbitrator else []))

    def tell(self, plan: Plan, name: str, reason: str) -> None:
        """A member stopped because its options are not the voters' rule: it is restarted with the
        options that it named, and no votes."""
        options = [term for term in self.requested(plan, name) if term.startswith("@")]
        rule = reason.partition("the cluster's voter set was made with ")[2]
        if rule:
            named = [word for word in rule.split() if word.startswith("--cluster-")]
            words = [word.removeprefix("--cluster-") for word in named]
            options = ["@" + word.replace("-", "_").replace(",", "+") for word in words]
        self.told[name] = tuple(options)

    def data_members(self, plan: Plan) -> int:
        """The number of members with data."""
        return len(plan.names) - bool(arbitrator_of(plan))

    def make(self, member: SimMember, tap: Tap) -> Upper:
        if self.event_faults is None:
            self.event_faults = EventFaults(member.world)
            self.unusual = any(map(member.world.plan.has, VOTES))
        if member.name == arbitrator_of(member.world.plan):
            return SimArbiter(self, member, tap)
        disk = self.disks.setdefault(member.name, MemoryDisk())
        upper = self.uppers[member.name] = self.upper_of(member, tap, disk)
        return upper

    def upper_of(self, member: SimMember, tap: Tap, disk: MemoryDisk) -> BrokerUpper:
        """The member itself."""
        return BrokerUpper(self, member, tap, disk)

    def of_one_side(self, _one: BrokerUpper, _other: BrokerUpper) -> bool:
        """Whether these two must not both be in primary views without each other."""
        return True

    def promises(self, name: str, epoch: int, members: Collection[Member]) -> None:
        """A member gives a promise: members outside its view may no longer reply in an older one.

        In a newer one they may: a member that slept past its view gives a promise that nobody
        hears.  So may a member that was primary without this one: another member of the quorum was
        there, and waits.
        """
        for other in self.uppers.values():
            primary = other.controller.primary
            older = not other.dead and primary.epoch < epoch
            shared = any(one.name == name for one in primary.members)
            away = other.tap.me not in members
            if older and shared and away and other.replicated.may_reply:
                text = f"{name} promises {epoch}, and {other.name} may still reply in epoch"
                self.judge.broken("G7", f"{text} {other.controller.primary.epoch}")

    def look_at_roles(self) -> None:
        """At any moment at most one member has the role of the active one and may reply."""
        active = [
            upper.name for upper in self.uppers.values() if not upper.dead and upper.role.serves
        ]
        if active:
            self.judge.counters["active"] += 1
        if len(active) > 1:
            self.judge.broken("G25", f"{' and '.join(active)} are active at the same time")

    def can_do_without(self, dead: Sequence[str], names: Sequence[str]) -> bool:
        """Liveness may be demanded while a majority of the voters' filled stores is there.

        A first start that broke off before any of these applied it waits for all members that it
        named; a member named by another such start, which came to nothing, counts as empty.
        """
        if self.unusual:
            return not dead
        metas = {n: d.meta for n, d in self.disks.items() if d.meta is not None and filled(d.meta)}
        if not metas:
            return not dead
        home = max(metas.values(), key=lambda meta: meta.position)
        here = [n for n, m in metas.items() if m.cluster_id == home.cluster_id and n not in dead]
        enough = len(set(here) & set(home.voters)) >= majority(len(home.voters))
        return enough and any(metas[n].position for n in here)

    def catch_up_s(self, live: Sequence[SimMember]) -> float:
        """How long it may take until everything is read, and moved.

        To read are as many blocks as may lead the last of these to the state of the first: one for
        each position, from the beginning if it takes a checkpoint; the blocks of waiting messages
        that the activation may read, which goes through all queues after a cold start; and those of
        readers of queues: a reader that takes one message at a time may wait for a block at
        each."""
        uppers = [self.uppers[m.name] for m in live if m.name in self.uppers]
        ends = [upper.controller.replica.history.position for upper in uppers]
        pages = max((upper.pages.pager.pages for upper in uppers), default=0)
        if pages:
            pages += max(upper.to_be_read() for upper in uppers)
        blocks = pages + (max(ends, default=0) if len(set(ends)) > 1 else 0)
        return BLOCK_S * blocks + LINKS_S * any(upper.links.used for upper in uppers)

    def wipe(self, name: str, names: Sequence[str]) -> None:
        """Empty a disk, if all others are filled and are a majority without it."""
        if self.unusual:
            return
        metas = [self.disks[other].meta for other in names if other in self.disks]
        whole = len(metas) == len(names) and all(meta and filled(meta) for meta in metas)
        if whole and len(names) - 1 >= majority(len(names)):
            self.lost.setdefault(name, []).append(self.disks[name])
            self.disks[name] = MemoryDisk()

    def backup(self, name: str) -> object:
        """The disk as it is now, for later."""
        disk = self.disks.get(name)
        if disk is None:
            return None
        return replace(disk, entries=dict(disk.entries), owner=None)

    def restore(self, name: str, image: object, names: Sequence[str], forgetful: int = 0) -> bool:
        """Put an old disk back, if all others but this many hold what it forgets."""
        if any(other not in self.disks for other in names):
            return False  # one of them never ran: it holds nothing
        if self.unusual:
            return False
        mine = self.disks[name].meta
        others = [self.disks[other] for other in names if other != name]
        if not isinstance(image, MemoryDisk) or image.meta is None or not filled(image.meta):
            return False
        if not image.meta.position:
            return False  # a first start that broke off named it: it counts as an empty one does
        if mine is None or not others:
            return False
        if sum(not self._covers(disk, mine) for disk in others) > forgetful:
            return False
        self.lost.setdefault(name, []).append(self.disks[name])
        self.disks[name] = image
        return True

    def _covers(self, disk: MemoryDisk, mine: Meta) -> bool:
        """Whether a disk holds all entries and promises that `mine` names."""
        meta = disk.meta
        if meta is None or not filled(meta) or meta.promised_epoch < mine.promised_epoch:
            return False
        if meta.position < mine.position:
            return False
        there = self.judge.at(meta.chain, mine.position) if mine.position else None
        return mine.position == 0 or (there is not None and there.chain == mine.chain)

    def disks_of(self, name: str) -> list[MemoryDisk]:
        """All disks that a member has had: losing the disk later does not undo an fsync."""
        present = [self.disks[name]] if name in self.disks else []
        return present + self.lost.get(name, [])

    def finish(self, live: Sequence[SimMember]) -> list[Violation]:
        judge = self.judge
        judge.finish()
        uppers = [self.uppers[member.name] for member in live if member.name in self.uppers]
        points = {upper.name: str(upper.controller.replica.history) for upper in uppers}
        roots = {upper.controller.replica.machine.root() for upper in uppers}
        if len(set(points.values())) > 1 or len(roots) > 1:
            judge.broken("G14", f"states differ at the end: {points}")
        for upper in uppers:
            upper.controller.replica.machine.invariants()
            if upper.clients.replica is not None and not upper.clients.replica.settled:
                judge.broken("G35", f"the replica at {upper.name} is not what it is to hold")
        witness, _ = audit(judge, uppers[0].controller.replica.history.chain)
        for upper in uppers:
            self._remembers(upper, witness)
        return judge.violations

    def _remembers(self, upper: BrokerUpper, witness: Witness) -> None:
        """Clients of the present session were sent all deliveries of the history to them."""
        clients = upper.clients
        mine = (clients.consuming, clients.readers.conn)
        sent = [
            (h.position, h.effect.conn, h.effect.chan, h.effect.delivery_tag)
            for h in self.judge.deliveries_sent
            if h.member == upper.name and h.effect.conn in mine
        ]
        made = [
            (position, conn, chan, tag)
            for position, conn, chan, tag in witness.deliveries
            if conn in mine
        ]
        if sent != made:
            odd = sorted(set(sent) ^ set(made))[:3]
            text = f"clients of {upper.name} got {len(sent)}, the history has {len(made)}"
            self.judge.broken("G11", f"{text}: first differences {odd}")
        if clients.published != witness.published.get(clients.publisher, 0):
            text = f"{clients.published} of {upper.name} published, the history"
            self.judge.broken("G5", f"{text} has {witness.published.get(clients.publisher, 0)}")

    def describe(self) -> str:
        judge = self.judge
        sure = judge.confirmed.position if judge.confirmed is not None else 0
        counted = " ".join(f"{key} {value}" for key, value in sorted(judge.counters.items()))
        return (
            f" epochs {len(judge.epochs):<3} confirmed {sure:<5} told {len(judge.confirms_sent):<5}"
            f" heard {len(judge.deliveries_sent):<5} {counted}"
        )
