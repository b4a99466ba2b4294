"""One incarnation of a member of a pair: real roles, and a door for clients that are actors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.exit_codes import Exit
from broker.machine.commands import CONNECTION_CLOSE, ConnectionClose
from broker.options.modes.pair import HAC
from broker.roles.active_passive import ActivePassive
from broker.roles.by_pair import ByPair
from broker.roles.pair_table import Peer, Standing
from broker.roles.role_table import Role
from store.api import Marker
from tests.sim.broker.shell import BrokerUpper
from tests.sim.clients.programs import SimClients
from tests.sim.pairs.actors import HELD, IN, REFUSED, Actor
from tests.sim.world.random_tape import Tape
from vsync.totem.events import Output, View
from vsync.types import Guarantee

if TYPE_CHECKING:
    from tests.sim.pairs.judge import PairJudge
    from tests.sim.pairs.stack import PairStack

OWN_CHOICE = ("forced by an operator", "drained by an operator")


class PairClients(SimClients):
    """Clients that have connections while an actor is admitted."""

    def __init__(self, upper: PairUpper, tape: Tape) -> None:
        super().__init__(
            upper.name, tape, upper.stack.numbers, upper.later, upper.judge.broken,
            lambda: upper.world.healed, upper.stack.orphans, upper.world.tape,
            upper.history_of_clients(tape),
        )  # fmt: skip
        self._upper = upper
        self.numbering = False  # messages taken in a history that is set aside leave a gap
        # Nor last values, streams and kept letters, whose witnesses know one history only.
        self.replacing = False
        self.readers.plan = self.readers.plan._replace(used=False)
        self.ways.plan = self.ways.plan._replace(used=False)

    def session_started(self, session: int) -> None:
        self.session = session
        self.commands, self._unsent = [], []
        self.unconfirmed.clear()
        self._forget()
        self._upper.role.send_away()

    def come(self) -> None:
        """The first actor is admitted."""
        self._connect()
        self._consume()

    def go(self) -> None:
        """The last one has left: its connections close, whatever they wait for."""
        if self.publisher:
            self.commands += [
                *self._unsent,
                ConnectionClose(CONNECTION_CLOSE, self.publisher),
                ConnectionClose(CONNECTION_CLOSE, self.consuming),
            ]
        self._forget()

    def _forget(self) -> None:
        self.history.publisher_lost()
        self.history.consumers_lost(self.consuming)
        self.publisher = self.consuming = self.published = self.publish_no = 0
        self.consumers, self._unsent = {}, []
        self.unconfirmed.clear()

    def publish(self, payload: bytes) -> bool:
        return bool(self.publisher) and super().publish(payload)

    def reconnect(self) -> None:
        if self.publisher:
            super().reconnect()

    def abort(self) -> None:
        if self.publisher:
            super().abort()


class PairUpper(BrokerUpper):
    """A member of a pair."""

    stack: PairStack
    judge: PairJudge
    clients: PairClients
    role: SimPair
    was_level = False
    """Whether it has had all of a primary view's state in this incarnation."""
    lost_at = 0.0
    """When it was last in a view with the other one; 0: it is."""
    stood = Standing.PENDING
    """What it was then."""

    def _clients_of(self, tape: Tape) -> PairClients:
        return PairClients(self, tape)

    def _role_of(self) -> SimPair:
        self.lost_at = self.world.now
        return SimPair(self)

    def on_output(self, output: Output, now: float) -> None:
        if isinstance(output, View):
            if len(output.members) > 1:
                self.lost_at = 0.0
            elif not self.lost_at:
                self.lost_at, self.stood = now, self.role.pair.standing
        super().on_output(output, now)

    def submit(self, payload: bytes, now: float, guarantee: Guarantee) -> bool:
        return bool(self.role.present) and super().submit(payload, now, guarantee)

    def crashed(self) -> None:
        super().crashed()
        self.role.present.clear()

    def note(self, event: str, text: str) -> None:
        if event == "transfer" and self.judge.is_set_aside(self.name):
            meta = self.stack.disks[self.name].meta
            if meta is not None and meta.marker is not Marker.JOINING:
                self.judge.broken("G28", f"{self.name} fetches a state, and its own has a vote")
        super().note(event, text)

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        if code is Exit.OK and self.stack.options[self.name].slave_ends:
            self._leave(self.world.plan.token_timeout_ms / 1000.0, "slave_ends", reason)
            return
        super().stop(code, reason, inconsistent=inconsistent)


class SimPair:
    """Its standing, as in its process: what it tells actors, and what it hears of them."""

    def __init__(self, upper: PairUpper) -> None:
        self._upper, self._stack = upper, upper.stack
        self.present: list[Actor] = []
        self._waiting: list[Actor] = []
        self._reason, self._holds = "started", True
        self._watches = self._heard = self._forced = False
        self.heard_at = -1.0  # when a client's data arrived here last
        controller, replicated = upper.controller, upper.replicated
        self.pair = ByPair(
            upper.stack.options[upper.name], controller, self, drained=lambda: upper.stack.drained,
            stop=upper.stop, note=self._note, warn=self._note, hears=self._hears,
        )  # fmt: skip
        self._real = ActivePassive(
            self.pair, controller, self, drained=lambda: upper.stack.drained,
            may_reply=lambda: replicated.may_reply, stop=upper.stop, note=self._note,
        )  # fmt: skip

    def _note(self, text: str) -> None:
        self._upper.note("role", text)

    def _hears(self, name: str) -> bool:
        node = self._upper.tap.node
        return node is not None and node.hears(name, self._upper.world.now)

    # -- what a member of a pair asks of its clients (`by_pair.Clients`) ----------------------

    @property
    def connected(self) -> bool:
        return bool(self.present)

    def watch(self, *, on: bool) -> None:
        self._watches, self._heard = on, False

    def heard(self) -> bool:
        return self._heard

    def stand_by(self, reason: str, *, briefly: bool, holds: bool = False) -> None:
        self._reason, self._holds = reason, holds
        if reason:
            self.send_away()

    def send_away(self) -> None:
        """Close all connections."""
        if self.present:
            self.present.clear()
            self._upper.clients.go()

    # -- for actors (`actors.Door`) --------------------------------------------------------------

    def _arrives(self) -> None:
        self.heard_at = self._upper.world.now
        self._heard = self._heard or self._watches
        self._upper.schedule()

    def try_in(self, actor: Actor) -> str:
        self._arrives()
        upper, standing = self._upper, self.pair.standing
        if not self._reason and not upper.stopping and upper.controller.submissions.session:
            if actor in self._waiting:
                self._waiting.remove(actor)
            if not self.present:
                upper.clients.come()
            self.present.append(actor)
            self._stack.judge.counters["let_in"] += 1
            return IN
        if not self._reason or self._holds:
            if actor not in self._waiting:
                self._waiting.append(actor)
                self._stack.judge.counters["held"] += 1
            return HELD
        if standing is Standing.PENDING:
            text = f"{upper.name} is pending, but does not hold a client: {self._reason}"
            self._stack.judge.broken("G28", text)
        return REFUSED

    def hear(self, actor: Actor) -> bool:
        self._arrives()
        return actor in self.present

    def gone(self, actor: Actor) -> None:
        if actor in self._waiting:
            self._waiting.remove(actor)
        if actor in self.present:
            self.present.remove(actor)
            if not self.present and not self._upper.dead:
                self._upper.clients.go()
                self._upper.schedule()

    # -- for the member and the judge ------------------------------------------------------------

    def force_passive(self) -> bool:
        """An operator makes it passive; whether that was possible."""
        self._forced = not self.pair.force_passive(self._upper.world.now)
        return self._forced

    def whim(self) -> None:
        """Operators of a pair are faults (`tests.sim.pairs.faults`)."""

    def follow(self) -> None:
        """Called after each turn."""
        upper, pair = self._upper, self.pair
        if upper.primary.has_caught_up:
            upper.was_level = True
        mark, position = upper.outbox.durable_mark, upper.controller.replica.history.position
        if mark > position:  # of a history that is not kept
            self._stack.judge.broken(
                "G9", f"{upper.name} is at {position}, and confirms up to {mark}"
            )
        if upper.world.healed:
            self._stack.drained.clear()
        before, seen = pair.standing, pair._peer
        self._real.follow(upper.world.now)
        if pair.standing is before:
            return
        self._stack.moved(before, pair.standing, pair.options.seat)
        here = pair._peer in (Peer.PENDING, Peer.PASSIVE)
        if before is Standing.ACTIVE and here and pair.reason not in OWN_CHOICE:
            text = f"{upper.name} gives way to one that is {seen and seen.value}: {pair.reason}"
            self._stack.judge.broken("G28", text)

    @property
    def serves(self) -> bool:
        """Whether it admits clients and may reply to them, or reports itself as the active one."""
        replies = not self._reason and self._upper.replicated.may_reply
        return replies or self._real.status()["status"] == Role.ACTIVE.value

    @property
    def settled(self) -> bool:
        """Whether one of the two has the role, all clients are there, and both count."""
        machine = self._upper.controller.replica.machine
        away = [term for term in self._upper.controller.promise.voters if term[0] in "@-"]
        if len(away) != 1 or not machine.active:
            return False
        if machine.active != self._upper.name:
            return not self.present
        return len(self.present) == len(self._stack.actors)

    @property
    def of_hac(self) -> bool:
        return self.pair.options.mode == HAC
