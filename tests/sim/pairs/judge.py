"""The judge of a pair: each member that takes the vote begins a side, and a side is judged as a
cluster is.

While both count they are on one side.  A member that continues alone with the vote begins a side
from its state; messages confirmed there may be missing at the other, if that takes the vote as well
(exception 1 of G28), but must be there before it does anything else.  When they meet, the member
that is not kept joins the other one's side, and whatever only its own had is given up, by a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from broker.machine.commands import ACTIVATE, CANCEL, CONSUME, DEFINE, EXCHANGE_DECLARE, GET, QOS
from broker.machine.effects import DeliverEffect, Effect
from broker.replication.chain import History
from broker.replication.durable_gate import acknowledges_durable
from broker.replication.replica import Applied, Replica
from broker.roles.pair_table import Standing
from store.api import Marker
from tests.sim.broker.judge import BrokerJudge, Node
from vsync.primary.events import Activated
from vsync.primary.state_exchange import ZERO_CHAIN, Plan
from vsync.quorum.voter_set import voter_set

if TYPE_CHECKING:
    from tests.sim.pairs.member import PairUpper
    from tests.support.stores.memory import MemoryDisk

SLACK_S = 1e-6
LASTING = {*range(EXCHANGE_DECLARE, ACTIVATE), DEFINE} - {CONSUME, CANCEL, GET, QOS}
"""Commands of clients whose effects outlast a connection."""


class Side(BrokerJudge):
    """The history of one or both members of a pair, and what they did in it."""

    def __init__(self, judge: PairJudge, owner: str, of: Side | None, chain: bytes) -> None:
        super().__init__()
        self.owner = owner  # who began it alone; empty: both
        self.declared = False  # by an operator
        self.life = judge.uppers[owner].member.incarnation if owner in judge.uppers else 0
        self.own: set[bytes] = set()  # first applied on this side
        self.asked: set[bytes] = set()  # of these, those with effects for clients that outlast them
        self.told: set[bytes] = set()  # and those that clients heard of before they were durable
        self.given_up = False
        self.nodes, self.logs, self.counters = judge.nodes, judge.logs, judge.counters
        self.broken = judge.broken  # type: ignore[method-assign]
        if of is not None:
            # Items undecided when they parted may be confirmed by one alone (0091).
            self.asked = {one for one in of.asked if not of.has_confirmed(one)}
            self.children, self.epochs = of.children, of.epochs
            self.latest_epoch, self.confirmed = of.latest_epoch, of.confirmed
            self._go_back_to(chain)

    def _go_back_to(self, chain: bytes) -> None:
        """Begin with its member's state; epochs unknown to the member are not before it."""
        epoch = self.nodes[chain].epoch if chain in self.nodes else 0
        self.epochs = {number: one for number, one in self.epochs.items() if number <= epoch}
        self.children = {key: one for key, one in self.children.items() if key[1] <= epoch}
        self.latest_epoch = min(self.latest_epoch, epoch)

    def has(self, chain: bytes, node: Node) -> bool:
        """Whether the history of `chain` has this item."""
        there = self.at(chain, node.position) if chain in self.nodes else None
        return there is not None and there.chain == node.chain

    def lives(self, upper: PairUpper) -> bool:
        """Whether its owner began it with the vote in this incarnation, and so knows all of it."""
        return not self.declared and self.life == upper.member.incarnation

    def looks_at(self, applied: Applied, chain: bytes, made: Iterable[tuple[int, Effect]]) -> None:
        """Record what a client may have of an item of this side, from the member that applies
        it."""
        asked = {applied.first + n for n, kind in enumerate(applied.kinds) if kind in LASTING}
        if asked:
            self.asked.add(chain)
        if any(
            isinstance(effect, DeliverEffect)
            or (position in asked and not acknowledges_durable(effect))
            for position, effect in made
        ):
            self.told.add(chain)

    def took_anything(self, chain: bytes, disk: MemoryDisk) -> bool:
        """Whether a client was sent anything in this history, or its messages are on the disk."""
        told = any(self.has(chain, self.nodes[one]) for one in self.told)
        return told or any(self._holds(disk, self.nodes[one]) for one in self.asked)

    def has_more(self, chain: bytes) -> bool:
        """Whether anything first applied here, even transient, is missing in this history."""
        return any(not self.has(chain, self.nodes[own]) for own in self.own)

    def has_confirmed(self, chain: bytes) -> bool:
        """Whether this item was confirmed here."""
        return self.confirmed is not None and self.has(self.confirmed.chain, self.nodes[chain])

    def confirmed_more(self, chain: bytes) -> bool:
        """Whether anything confirmed here is missing in this history."""
        return self.confirmed is not None and not self.has(chain, self.confirmed)


class PairJudge(BrokerJudge):
    """Judges each member by its side."""

    def __init__(self, disk_of: Callable[[str], MemoryDisk]) -> None:
        super().__init__()
        self.disk_of = disk_of
        self.uppers: dict[str, PairUpper] = {}
        both = Side(self, "", None, ZERO_CHAIN)
        self.side = dict.fromkeys("ab", both)
        self.sides = [both]
        self.was: dict[str, Side] = {}  # of a member set aside: its former side
        self.before: dict[str, Side] = {}  # of one that may soon follow the other: its former side

    # -- sides -----------------------------------------------------------------------------------

    def planned(self, name: str, plan: Plan) -> None:
        """A member follows a plan: alone with the vote or by its own record, or with the other."""
        assert plan.donor is not None
        (first,) = plan.counted if plan.alone else (plan.donor.name,)
        if first != name:
            self._meets(name, first, plan)
        elif plan.alone:
            self._goes_alone(name, plan)
        self.side[name].planned(name, plan)

    def _goes_alone(self, name: str, plan: Plan) -> None:
        upper = self.uppers[name]
        if not upper.primary._vote:
            before = self.before.pop(name, None)
            if before is not None and before.owner == name:
                self.side[name] = before
            if self.side[name].owner != name:
                self.broken(
                    "G28", f"{name} continues alone by its record, but has no side of its own"
                )
            return
        self._check_vote(upper)
        self.counters["votes_taken"] += 1
        self._begin(name, self.side[name], plan.chain)

    def _check_vote(self, upper: PairUpper) -> None:
        """Never without a client, never with an old state, never before its time."""
        options, now = upper.role.pair.options, upper.world.now
        if not upper.was_level:
            self.broken("G28", f"{upper.name} takes the vote without having had the whole state")
        if upper.role.of_hac and not 0.0 < upper.lost_at <= upper.role.heard_at:
            text = f"{upper.name} takes the vote, but has heard of no client"
            self.broken("G28", f"{text} since {upper.lost_at}: {upper.role.heard_at}")
        if upper.stood is not Standing.ACTIVE and now - upper.lost_at < options.timeout_s - SLACK_S:
            self.broken("G28", f"{upper.name} takes the vote after {now - upper.lost_at} s")
        if options.slave_ends and not options.is_first:
            self.broken("G28", f"{upper.name} must end with its master, but takes the vote")

    def _begin(self, name: str, of: Side, chain: bytes) -> Side:
        side = self.side[name] = Side(self, name, of, chain)
        self.sides.append(side)
        return side

    def _meets(self, name: str, first: str, plan: Plan) -> None:
        """A member follows the other one: it gives up nothing confirmed except by the rule."""
        mine, theirs = self.side[name], self.side[first]
        if mine is theirs:
            return
        self.side[name] = theirs
        if plan.aside is not None and plan.aside.name == name:
            self.was[name] = mine
        else:
            self.before[name] = mine
        if mine.given_up:
            return
        confirmed = mine.confirmed_more(plan.chain)
        mine.given_up = confirmed or (plan.aside is not None and plan.aside.name == name)
        if not confirmed:
            return
        self.counters["set_aside"] += 1
        kept = voter_set(plan.voters).pair
        text = f"{name} gives up confirmed messages for {first}"
        if not plan.apart:
            self.broken("G28", f"{text}, and no record says so")
        elif not theirs.declared and (mine.declared or first != kept):
            self.broken("G28", f"{text}, but {kept} must be kept")
        elif theirs.lives(self.uppers[first]) and not theirs.took_anything(
            plan.chain, self.disk_of(first)
        ):
            self.broken("G28", f"{text}, whose history no client has seen")

    def declared(self, name: str, chain: bytes) -> None:
        """An operator declares the other one lost, with whatever only that one had."""
        self.was.pop(name, None)
        self.before.pop(name, None)
        of = self.side[name]
        side = self._begin(name, of, chain)
        side.declared = True
        while side.confirmed is not None and not side.has(chain, side.confirmed):
            parent = side.confirmed.parent
            side.confirmed = self.nodes.get(parent)
        for one in self.sides:
            if one is not side and one.has_more(chain):
                one.given_up = True
        self.counters["declared"] += 1

    def is_set_aside(self, name: str) -> bool:
        """Whether a member has met the other one's history, and its own is not kept."""
        return name in self.was

    def recovered(self, name: str, replica: Replica, what: str) -> None:
        """A member that crashed before it recorded on disk that it is set aside knows nothing of
        it."""
        super().recovered(name, replica, what)
        was, meta = self.was.pop(name, None), self.disk_of(name).meta
        has_vote = meta is not None and meta.marker is not Marker.JOINING
        if was is not None and has_vote and replica.history.chain in was.own:
            self.side[name] = was

    def gave_up(self, chain: bytes) -> bool:
        """Whether this belongs to a history that was given up, by the rule or by an operator."""
        return any(one.given_up and chain in one.own for one in self.sides)

    # -- what members report ---------------------------------------------------------------------

    def applied(self, name: str, parent: bytes, applied: Applied, now: History, root: int) -> None:
        side = self.side[name]
        if now.chain not in self.nodes:
            side.own.add(now.chain)
        if now.chain in side.own:
            side.looks_at(applied, now.chain, self.uppers[name].controller.replica.effects)
        side.applied(name, parent, applied, now, root)

    def activated(
        self, name: str, event: Activated, base: History | None, level: frozenset[str]
    ) -> None:
        self.was.pop(name, None)
        self.before.pop(name, None)
        if event.caught_up:  # maybe for this moment only: the view may be over already
            self.uppers[name].was_level = True
        self.side[name].activated(name, event, base, level)

    def written(self, name: str, epoch: int, position: int, chain: bytes) -> None:
        self.side[name].written(name, epoch, position, chain)

    def released(
        self,
        name: str,
        node: Node,
        voters: tuple[str, ...],
        disks: Callable[[str], list[MemoryDisk]],
    ) -> None:
        side = self.side[name]
        side.released(name, node, voters, disks)
        self.confirmed = side.confirmed

    def finish(self) -> None:
        """Two epochs need share no voter: a member that continues alone shares it with their
        last."""
