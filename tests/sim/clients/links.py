"""The shovels or the link of federation of a run, each run by one member at a time.

The real `Shovels` of each member, with its handover and its datagrams, and the real `Federation`
begin and end attempts (`link_ends.SimAttempt`), in which the real mover runs.  Source and
destination are queues or exchanges of the simulated cluster; an end that is not at the running
member is at any member by chance, as if it were another cluster.  Processes are killed, connections
break, operators restart it, and bindings come and go.  `moved.MoveWitness` judges G24 and G27 over
a whole history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from broker.machine.commands import Command, Publish
from broker.machine.effects import Effect
from broker.machine.state import State
from broker.shovels.definition import Shovel
from broker.shovels.federation import Federation
from broker.shovels.handover import HANDOVER_S
from broker.shovels.supervisor import Event, Job, Shovels
from tests.sim.clients.link_ends import SPEED, SimAttempt, SimEnd
from tests.sim.clients.link_plan import CLUSTER, LinkPlan, is_moved
from tests.sim.world.random_tape import Tape
from tests.sim.world.tap import FOREIGN, HEADER, unpack
from vsync.totem.events import Direct
from vsync.types import Member

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper

logging.getLogger("qpidd").addHandler(logging.NullHandler())  # not to standard error
BEAT_S = 0.04
LATE_CHANGES = 3
"""The changes of bindings at each member when the chaos is over."""


class SimLinks:
    """The part of one member: the attempts that it runs, and the connections of attempts to it."""

    def __init__(self, upper: BrokerUpper, tape: Tape, *, has_links: bool) -> None:
        chained = upper.world.plan.has("chain")
        self.plan = LinkPlan.draw(upper.world.tape.fork("links"), chained=chained)
        self.used = has_links and self.plan.used
        self.ends: dict[int, SimEnd] = {}  # by their connections
        self.commands: list[Command] = []
        self._upper, self._tape = upper, tape
        self._attempts: list[SimAttempt] = []
        self._requests = count(1 << 30)
        self._served_since = 0.0
        self._serves = self._healed = False
        self._late_changes = LATE_CHANGES * self.plan.follows_bindings
        self._shovels = Shovels(
            upper.name, self._state, lambda: upper.controller.serving, self._begin, self._done,
            self._tell, lambda: upper.now_us() // 1000, Federation(lambda: CLUSTER, self._state),
            level=lambda: upper.primary.caught_up_names - upper.primary.mark.without_data,
        )  # fmt: skip
        if self.used:
            upper.later(BEAT_S * tape.between(0.1, 1.9), self._beat)

    def _state(self) -> State:
        return self._upper.controller.replica.machine

    # -- for its member --------------------------------------------------------------------------

    @property
    def publishes(self) -> bool:
        """Whether the next message of a publisher is one to be moved."""
        return self.used and self._tape.chance(0.4)

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted."""
        upper = self._upper
        gone = upper.dead or upper.stopping or upper.name in upper.world.outside
        return not gone and bool(upper.clients.session) and upper.controller.serving

    @property
    def settled(self) -> bool:
        """Whether everything is moved, as this member sees it."""
        vhost = self._state().vhosts.get("/")
        late = self._late_changes and self._serves and self._healed
        return not late and (vhost is None or is_moved(vhost, self.plan.kind))

    def define(self, conn: int) -> list[Command]:
        """Define the links, by a publisher that has declared the queues."""
        changes = [
            self.plan.change(conn, self._tape) for _ in range(3 * self.plan.follows_bindings)
        ]
        return [*self.plan.define(conn, self._requests), *changes]

    def message(self, properties: bytes, body: bytes) -> Publish:
        """A message to be moved."""
        return self.plan.message(properties, body, self._tape)

    def begin(self) -> None:
        """A session begins: connections of the previous one are gone."""
        gone, self.ends, self.commands = list(self.ends.values()), {}, []
        for end in gone:
            end.attempt.wake()

    def take_commands(self) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def receives(self, effect: Effect) -> bool:
        """Take an effect, if it is for a connection of an attempt."""
        end = self.ends.get(getattr(effect, "conn", 0))
        if end is not None:
            end.receive(effect)
        return end is not None

    def takes(self, direct: Direct) -> bool:
        """Take a datagram, if it is of links."""
        if not self.used or unpack(direct.payload) == FOREIGN:
            return False
        return self._shovels.takes(Direct(direct.sender, direct.payload[HEADER.size :]))

    def close(self) -> None:
        """The member stops cleanly."""
        self._shovels.close()

    def crashed(self) -> None:
        """Processes notice that their input ends, unless the power is gone for them as well."""
        for attempt in self._attempts:
            if self._tape.chance(0.5):
                attempt.orphaned()
            else:
                attempt.stop(at_once=True)
        for end in self.ends.values():
            end.attempt.wake()

    # -- a few times a second --------------------------------------------------------------------

    def _beat(self) -> None:
        upper, world = self._upper, self._upper.world
        upper.later(BEAT_S * self._tape.between(0.5, 1.5), self._beat)
        if upper.stopping or world.resting:
            return
        serves = upper.controller.serving
        if serves and not self._serves:
            self._served_since = world.now
        self._serves = serves
        self._shovels.wake(world.now * SPEED)
        self._attempts = [one for one in self._attempts if not one.is_over]
        if not world.healed:
            self._whim()
        elif not self._healed:  # an operator has it retried at once
            self._healed = True
            for key in self.plan.keys:
                self._shovels.restart(key)
        if self.plan.follows_bindings:
            self._change_bindings()

    def _change_bindings(self) -> None:
        """Change bindings of the exchange here, a few times also when the chaos is over."""
        late = self._upper.world.healed
        if self._serves and self._tape.chance(0.2) and (not late or self._late_changes):
            self._late_changes -= late
            clients = self._upper.clients
            clients.commands.append(self.plan.change(clients.publisher, self._tape))

    def _whim(self) -> None:
        """Inject a fault into an attempt: mostly none."""
        if not self._serves or not self._tape.chance(0.1):
            return
        what = self._tape.pick(("cut", "kill", "restart")) if self._attempts else "restart"
        self._upper.judge.counters[f"links_{what}"] += 1
        if what == "restart":
            self._shovels.restart(self._tape.pick(self.plan.keys))
            return
        attempt = self._tape.pick(self._attempts)
        if what == "cut":
            attempt.cut()
        else:
            attempt.kill()

    # -- the ports of `Shovels` ------------------------------------------------------------------

    def _begin(self, job: Job, on_event: Callable[[Event], None]) -> SimAttempt:
        upper = self._upper
        number = len(upper.stack.attempts)
        attempt = SimAttempt(upper, self._tape.fork(f"attempt {number}"), job, on_event)
        self._look_who_runs(attempt)
        upper.stack.attempts.append(attempt)
        self._attempts.append(attempt)
        upper.judge.counters["links_begun"] += 1
        return attempt

    def _look_who_runs(self, attempt: SimAttempt) -> None:
        """G24: a joiner begins only when the previous runner has let go, or has had the time to, or
        is no longer a member."""
        upper = self._upper
        asks = upper.world.now - self._served_since < HANDOVER_S / SPEED
        for other in upper.stack.attempts:
            there = other.upper
            if other.key != attempt.key or there.dead or there.member.paused:
                continue
            same_view = there.primary.epoch == upper.primary.epoch
            serves = there.controller.serving and there.name in self._state().sessions
            if there is upper:
                left = not other.is_over  # a close of its own is ordered before what follows
            else:
                left = asks and same_view and serves and other.holds
            if left:
                text = f"{upper.name} begins {attempt.key}, which is left at {there.name}"
                upper.judge.broken("G24", text)

    def _done(self, _shovel: Shovel) -> None:
        """These never finish."""

    def _tell(self, datagram: bytes) -> None:
        upper = self._upper
        for member in upper.primary.members:
            if member != upper.tap.me:
                self._send(member, datagram)

    def _send(self, member: Member, datagram: bytes) -> None:
        if not self._upper.dead and not self._upper.stopping:
            self._upper.tap.send_direct(member, datagram)
