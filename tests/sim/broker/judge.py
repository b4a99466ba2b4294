"""The omniscient judge of simulated brokers.

It hears of every applied item, activation, release and confirm as they happen, and keeps the tree
of all histories that ever were: each node is one applied item, under the outcome chain it led to.
G7, G8, G9 and G14 are checked against the tree at once; properties of a whole history are left to
`audit` at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from broker.machine.effects import DeliverEffect
from broker.process.arbitrator_record import ArbiterRecord
from broker.replication.chain import History
from broker.replication.replica import Applied, Item, Replica
from store.api import Marker
from tests.sim.checkers.violation import Violation
from tests.sim.clients.messages import MessageId
from tests.support.stores.memory import MemoryDisk
from vsync.primary.events import Activated
from vsync.primary.state_exchange import ZERO_CHAIN, Plan
from vsync.quorum.voter_set import VoterSet, parse
from vsync.types import RingId

VIOLATIONS_MAX = 6


class Node(NamedTuple):
    """One applied item and where it led."""

    chain: bytes
    parent: bytes
    first: int
    position: int
    epoch: int
    order: bytes
    root: int
    item: Item


class DeliverySent(NamedTuple):
    """One delivery that was sent to a client, and the history in which it was made."""

    member: str
    session: int
    position: int
    chain: bytes
    effect: DeliverEffect


class ConfirmSent(NamedTuple):
    """One confirm that was sent to a client."""

    member: str
    message: MessageId
    position: int
    chain: bytes
    durable: bool


class Epoch(NamedTuple):
    """The facts about one activated epoch."""

    ring: RingId
    base: int
    chain: bytes
    voters: tuple[str, ...]
    level: set[str]


class BrokerJudge:
    """Collects the members' steps and compares them with earlier ones."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.nodes: dict[bytes, Node] = {}
        self.children: dict[tuple[bytes, int], bytes] = {}
        self.epochs: dict[int, Epoch] = {}
        self.confirmed: Node | None = None  # the highest that was confirmed to a client
        self.deliveries_sent: list[DeliverySent] = []
        self.confirms_sent: list[ConfirmSent] = []
        self.logs: dict[str, set[bytes]] = {}  # chains that the present log of each member holds
        self.records: dict[str, ArbiterRecord] = {}  # the files of arbitrators
        self.clean: dict[str, tuple[str, History]] = {}  # by shutdown: who ended first, and where
        self.latest_epoch = 0  # that any member has activated
        self.counters: Counter[str] = Counter()

    def broken(self, promise: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(promise, "broker", text))

    def gave_up(self, _chain: bytes) -> bool:
        """Whether this is of a history that may be given up: only of a pair."""
        return False

    # -- the tree of histories -------------------------------------------------------------------

    def path(self, chain: bytes) -> Iterator[Node]:
        """The items that led to `chain`, the last one first."""
        while chain != ZERO_CHAIN:
            node = self.nodes[chain]
            yield node
            chain = node.parent

    def at(self, chain: bytes, position: int) -> Node | None:
        """The item of the history of `chain` that holds `position`; None if it is beyond."""
        for node in self.path(chain):
            if node.position < position:
                return None
            if node.first <= position:
                return node
        return None

    # -- what members report ---------------------------------------------------------------------

    def applied(self, name: str, parent: bytes, applied: Applied, now: History, root: int) -> None:
        item = applied.item
        node = Node(
            now.chain, parent, applied.first, now.position, now.epoch, now.order, root, item
        )
        known = self.nodes.setdefault(now.chain, node)
        if known[:7] != node[:7]:
            self.broken("G14", f"{name} at {now} root {root:x}, another member had {known.root:x}")
        first = self.children.setdefault((parent, now.epoch), now.chain)
        if first != now.chain:
            self.broken("G1", f"{name} applies another {applied.first} in epoch {now.epoch}")
        sure = self.confirmed
        if sure is None or now.epoch < sure.epoch or sure.chain == now.chain:
            return
        if applied.first <= sure.position <= now.position:
            self.broken("G8", f"{name} applies another {sure.position} than was confirmed")

    def ended_clean(self, name: str, shutdown_id: str, now: History) -> None:
        """A member ended by an ordered shutdown, and its store says so."""
        self.counters["ended_clean"] += 1
        if shutdown_id:
            other, there = self.clean.setdefault(shutdown_id, (name, now))
            first, last = sorted((now, there), key=lambda one: one.position)
            node = self.at(last.chain, first.position)
            if node is None or node.chain != first.chain:
                self.broken("G14", f"of one shutdown {name} is clean at {now}, {other} at {there}")

    def recovered(self, name: str, replica: Replica, what: str) -> None:
        """A state was made from a store by re-execution."""
        history = replica.history
        if not history.position:
            return
        node = self.nodes.get(history.chain)
        if node is None or node.root != replica.machine.root():
            self.broken("G14", f"{name} {what} at {history}: a state that no member had")
        replica.machine.invariants()

    def activated(
        self, name: str, event: Activated, base: History | None, level: frozenset[str]
    ) -> None:
        """A member is about to apply the activation on top of `base`; None: it was in a state."""
        activation = event.activation
        epoch = activation.epoch
        self.latest_epoch = max(self.latest_epoch, epoch)
        if base is None:
            return
        known = self.epochs.setdefault(
            epoch, Epoch(event.ring, base.position, base.chain, activation.voters, set())
        )
        if (known.ring, known.base, known.chain) != (event.ring, base.position, base.chain):
            text = f"epoch {epoch} is {known.ring} at {known.base} and at {name} {event.ring}"
            self.broken("G7", text)
        if event.caught_up:
            known.level.add(name)
        known.level.update(level)
        sure = self.confirmed
        if sure is not None and epoch > sure.epoch:
            there = self.at(base.chain, sure.position)
            if there is None or there.chain != sure.chain:
                text = f"{name} activates {epoch} at {base}; {sure.position} was confirmed"
                self.broken("G8", f"{text} in epoch {sure.epoch} and is not in it")

    def planned(self, name: str, plan: Plan) -> None:
        """A member follows a plan: its base holds everything confirmed, whatever its members hold
        unstable.  So a member that brings less than the base, or another state, may be brought
        there at once."""
        sure = self.confirmed
        if sure is None:
            return
        there = self.at(plan.chain, sure.position)
        if there is None or there.chain != sure.chain:
            text = f"{name} plans {plan.epoch} from {plan.position}; {sure.position} was confirmed"
            self.broken("G8", f"{text} in epoch {sure.epoch} and is not in it")

    def written(self, name: str, epoch: int, position: int, chain: bytes) -> None:
        """A member in the view of `epoch` writes to a client an effect of `position`.

        The record of that item must be in its log by then: a crash at this moment must not lose the
        explanation of the client's message.  And nobody replies in an older view when another is
        primary.
        """
        if chain not in self.logs[name]:
            self.broken("log", f"{name} replies at {position}, and its log does not hold it yet")
        if epoch < self.latest_epoch:
            text = f"{name} replies at {position} in epoch {epoch}"
            self.broken("G7", f"{text}, and epoch {self.latest_epoch} is activated")

    def released(
        self,
        name: str,
        node: Node,
        voters: tuple[str, ...],
        disks: Callable[[str], list[MemoryDisk]],
    ) -> None:
        """A member confirms everything up to `node` to its clients."""
        electorate = parse(voters)
        holding = [
            v for v in electorate.data_names if any(self._holds(disk, node) for disk in disks(v))
        ]
        if not all(self._durable(one, holding, node) for one in electorate.sets):
            text = f"{name} confirms {node.position}; only {holding} have it"
            self.broken("G9", text)
        sure = self.confirmed
        if sure is None or node.position > sure.position:
            if sure is not None:
                there = self.at(node.chain, sure.position)
                if there is None or there.chain != sure.chain:
                    self.broken("G8", f"{name} confirms {node.position}, forgets {sure.position}")
            self.confirmed = node
        else:
            there = self.at(sure.chain, node.position)
            if there is None or there.chain != node.chain:
                self.broken("G8", f"{name} confirms another {node.position} than was confirmed")

    def _durable(self, voters: VoterSet, holding: list[str], node: Node) -> bool:
        """Whether a quorate set holds it, or all those beside whom an arbitrator may vote do."""
        record = self.records.get(voters.arbitrator)
        if record is None or record.epoch < node.epoch:
            return voters.quorate(holding)
        beside = voters.counted.keys() & record.holders
        if not beside <= set(holding):
            return voters.quorate(holding)
        return voters.quorate([*holding, voters.arbitrator])

    def _holds(self, disk: MemoryDisk, node: Node) -> bool:
        meta = disk.meta
        if meta is None or meta.position < node.position or meta.marker is Marker.JOINING:
            return False  # that one would have no vote
        there = self.at(meta.chain, node.position)
        return there is not None and there.chain == node.chain

    def finish(self) -> None:
        """Properties of the end: successive epochs share a voter that was level."""
        numbers = sorted(self.epochs)
        for earlier, later in pairwise(numbers):
            one, two = self.epochs[earlier], self.epochs[later]
            electorate = parse(one.voters)
            if electorate.arbitrators:
                continue  # it may be all that they share
            voting = {*electorate.data_names, *parse(two.voters).data_names}
            if not one.level & two.level & voting:
                text = f"epochs {earlier} {sorted(one.level)} and {later} {sorted(two.level)}"
                self.broken("G7", f"{text} share no level voter")
