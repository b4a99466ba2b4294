"""The omniscient judge of primary views: one at a time, and no confirmed message is forgotten.

It sees every replica at once, which no member can, and keeps every confirmed entry for ever: it
checks G7 and G8 at each activation, each applied entry and each confirmation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.sim.checkers.violation import Violation
from tests.sim.stacks.toy_log import ToyLog
from vsync.primary.component import Primary
from vsync.primary.events import Activated
from vsync.primary.state_exchange import ZERO_CHAIN, Plan
from vsync.types import RingId

if TYPE_CHECKING:
    from tests.sim.stacks.primary import Replica

VIOLATIONS_MAX = 5


class Epoch(NamedTuple):
    """The facts about one activated epoch."""

    ring: RingId
    base: int
    order: bytes | None
    voters: tuple[str, ...]
    caught_up: set[str]


class Judge:
    """Compares each replica's steps with those of all before it."""

    def __init__(self) -> None:
        self.replicas: dict[str, Replica] = {}
        self.epochs: dict[int, Epoch] = {}
        self.confirmed_orders: dict[int, bytes] = {}
        self.confirmed_position = 0
        self.latest: dict[int, tuple[int, bytes]] = {}  # position -> highest epoch, chain there
        self.top: dict[int, tuple[int, bytes]] = {}  # epoch -> highest position, chain there
        self.violations: list[Violation] = []

    def _broken(self, promise: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(promise, "primary", text))

    def activated(self, name: str, event: Activated, log: ToyLog, primary: Primary) -> None:
        """A member is about to apply the activation on top of `log`."""
        activation = event.activation
        epoch = activation.epoch
        known = self.epochs.setdefault(
            epoch, Epoch(event.ring, log.position, log.order, activation.voters, set())
        )
        if (known.ring, known.base, known.order) != (event.ring, log.position, log.order):
            text = f"epoch {epoch} is ring {known.ring} and at {name} ring {event.ring}"
            self._broken("G7", text)
        if event.caught_up:
            known.caught_up.add(name)
            known.caught_up.update(primary.caught_up_names)
        newer = max(self.epochs)
        if newer > epoch and primary.active and primary.ring == event.ring:
            shared = known.caught_up & self.epochs[newer].caught_up
            if shared:
                self._broken("G7", f"{name} enters epoch {epoch} after {newer}; {shared} in both")
        self._contains_confirmed(name, log, f"activates epoch {epoch}")
        position, order = self.top.get(log.epoch, (0, ZERO_CHAIN))
        if not activation.cold and log.order_at(position) != order:
            # A member that applied it may have told its clients, and one that received it is up.
            text = f"{name} activates epoch {epoch} at {log.position} without {position}"
            self._broken("G11", f"{text}, which was applied in epoch {log.epoch}")

    def planned(self, name: str, plan: Plan) -> None:
        """A member follows a plan, whose base holds everything confirmed (see
        `tests.sim.broker.judge`)."""
        donor = self.replicas.get(plan.donor.name) if plan.donor is not None else None
        if donor is None or donor.log.order_at(plan.position) != plan.order:
            return  # it has moved on meanwhile
        position = self.confirmed_position
        if position and (
            position > plan.position
            or donor.log.order_at(position) != self.confirmed_orders[position]
        ):
            text = f"{name} plans {plan.epoch} from {plan.position}; {position} was confirmed"
            self._broken("G8", f"{text} and is not in it")

    def _contains_confirmed(self, name: str, log: ToyLog, what: str) -> None:
        position = self.confirmed_position
        if position and log.order_at(position) != self.confirmed_orders[position]:
            text = f"{name} {what} at {log.position}; {position} was confirmed and is not in it"
            self._broken("G8", text)

    def applied(self, name: str, log: ToyLog) -> None:
        """A member of a primary view has applied one more entry."""
        position, order, epoch = log.position, log.order, log.epoch
        if self.confirmed_orders.get(position, order) != order:
            self._broken("G8", f"{name} applies another {position} than was confirmed")
        highest, there = self.latest.get(position, (0, order))
        if highest == epoch and there != order:
            self._broken("G7", f"{name} applies another {position} in epoch {epoch}")
        if epoch >= highest:
            self.latest[position] = (epoch, order)
        if position > self.top.get(epoch, (0, order))[0]:
            self.top[epoch] = (position, order)

    def confirmed(self, name: str, position: int, log: ToyLog) -> None:
        """A member confirms to its clients everything up to `position`."""
        order = log.order_at(position)
        assert order is not None
        if self.confirmed_orders.setdefault(position, order) != order:
            self._broken("G8", f"{name} confirms another {position} than was confirmed before")
        epoch = log.entries[position - 1].epoch
        highest, there = self.latest.get(position, (0, order))
        if highest > epoch and there != order:
            text = f"{name} confirms {position} of epoch {epoch}; epoch {highest} has another"
            self._broken("G8", text)
        if position > self.confirmed_position:
            self._contains_confirmed(name, log, f"confirms {position}")
            self.confirmed_position = position

    def finish(self) -> list[Violation]:
        """Checked at the end: successive epochs share a voter that had caught up."""
        numbers = sorted(self.epochs)
        for earlier, later in pairwise(numbers):
            one, two = self.epochs[earlier], self.epochs[later]
            if not one.caught_up & two.caught_up & set(one.voters):
                text = (
                    f"epochs {earlier} {sorted(one.caught_up)} and {later} {sorted(two.caught_up)}"
                )
                self._broken("G7", f"{text} share no voter that had caught up")
        return self.violations
