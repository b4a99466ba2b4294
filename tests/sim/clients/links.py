"""What moves messages between two queues of a run: a shovel that one member at a time runs.

The real `Shovels` of each member, with its handover and the datagrams of that, begin and end
attempts (`link_ends.SimAttempt`), in which the real mover runs.  Source and destination are two
queues of the simulated cluster; an end that is not at the member that runs the shovel is at
whichever member by chance, as if it were another cluster.  Processes are killed, connections
break, and operators begin it anew.  `moved.MoveWitness` judges G24 over a whole history.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from broker.amqp.codec import decode_properties, encode_properties
from broker.machine.commands import DEFINE, Command, Define, Table
from broker.machine.effects import Effect
from broker.machine.state import State, ready_count
from broker.shovels.definition import Shovel
from broker.shovels.handover import HANDOVER_S
from broker.shovels.supervisor import Event, Job, Shovels
from tests.sim.clients.link_ends import SPEED, SimAttempt, SimEnd
from tests.sim.world.random_tape import Tape
from tests.sim.world.tap import FOREIGN, HEADER, unpack
from tools.shovel.mover import TAG
from vsync.totem.events import Direct
from vsync.types import Member

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper

SOURCE, DESTINATION = TAG, "shovelled"
"""The audit takes the name of a queue from the tags of its consumers."""
BEAT_S = 0.04
KEY, DEFINITION = ("/", "mover"), ("/", "shovel/mover")
ELSEWHERE = "amqp://elsewhere"
HERE = "amqp://"


class LinkPlan(NamedTuple):
    """Of a whole run: every member defines the shovel alike."""

    used: bool
    value: Table

    @classmethod
    def draw(cls, tape: Tape) -> LinkPlan:
        """By chance: most runs have none."""
        used = tape.chance(0.2)
        source, destination = tape.pick(((HERE, ELSEWHERE), (ELSEWHERE, HERE), (HERE, HERE)))
        return cls(
            used,
            {
                "src-uri": source, "src-queue": SOURCE, "dest-uri": destination,
                "dest-queue": DESTINATION, "src-prefetch-count": tape.pick((1, 3, 20, 1000)),
                "reconnect-delay": 1,
            },
        )  # fmt: skip

    def define(self, request: int) -> Define:
        return Define(DEFINE, request, "sim", "parameter", *DEFINITION, {"value": self.value})


def is_in_order(state: State) -> bool:
    """Whether G24 promises the order of the queue also when a link breaks: a source elsewhere gives
    back what was under way when it notices."""
    body = state.definitions["parameter"].get(DEFINITION, {})
    value = body.get("value")
    return isinstance(value, dict) and value["src-uri"] == HERE


class SimLinks:
    """The part of one member: what it runs, and the connections of attempts to it."""

    def __init__(self, upper: BrokerUpper, tape: Tape, *, has_links: bool) -> None:
        self.plan = LinkPlan.draw(upper.world.tape.fork("links"))
        self.used = has_links and self.plan.used
        self.ends: dict[int, SimEnd] = {}  # by their connections
        self.commands: list[Command] = []
        self._upper, self._tape = upper, tape
        self._attempts: list[SimAttempt] = []
        self._requests = count(1 << 30)
        self._served_since = 0.0
        self._serves = self._healed = False
        self._shovels = Shovels(
            upper.name, self._state, lambda: upper.controller.serving, self._begin, self._done,
            self._tell, lambda: upper.now_us() // 1000,
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
        """Whether connections are taken."""
        upper = self._upper
        gone = upper.dead or upper.stopping or upper.name in upper.world.outside
        return not gone and bool(upper.clients.session) and upper.controller.serving

    @property
    def settled(self) -> bool:
        """Whether all is moved, as this member has it."""
        vhost = self._state().vhosts.get("/") if self.used else None
        queue = vhost.queues.get(SOURCE) if vhost is not None else None
        return queue is None or not (ready_count(queue) or queue.unacked)

    def define(self) -> list[Command]:
        """By a publisher that has declared both queues."""
        return [self.plan.define(next(self._requests))]

    def persistent(self, properties: bytes) -> bytes:
        """As a client says it, so that who passes it on knows."""
        return encode_properties({**decode_properties(properties or b"\0\0"), "delivery_mode": 2})

    def begin(self) -> None:
        """A session begins: connections of the one before it are gone."""
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
        """The member ends in order."""
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
        self._attempts = [one for one in self._attempts if not one.ended]
        if not world.healed:
            self._whim()
        elif not self._healed:  # an operator has it tried again at once
            self._healed = True
            self._shovels.restart(KEY)

    def _whim(self) -> None:
        """What befalls an attempt: mostly nothing."""
        if not self._serves or not self._tape.chance(0.1):
            return
        what = self._tape.pick(("cut", "kill", "restart")) if self._attempts else "restart"
        self._upper.judge.counters[f"links_{what}"] += 1
        if what == "restart":
            self._shovels.restart(KEY)
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
        """G24: one that joins begins when the one before it has let go, or when that has had the
        time to, or is no member any more."""
        upper = self._upper
        asks = upper.world.now - self._served_since < HANDOVER_S / SPEED
        for other in upper.stack.attempts:
            there = other.upper
            if other.ended or other.key != attempt.key or there.dead or there.member.paused:
                continue
            same_view = there.primary.epoch == upper.primary.epoch
            serves = there.controller.serving and there.name in self._state().sessions
            if there is upper or (asks and same_view and serves):
                text = f"{upper.name} begins {attempt.key}, which {there.name} still runs"
                upper.judge.broken("G24", text)

    def _done(self, _shovel: Shovel) -> None:
        """These have no end."""

    def _tell(self, datagram: bytes) -> None:
        upper = self._upper
        for member in upper.primary.members:
            if member != upper.tap.me:
                self._send(member, datagram)

    def _send(self, member: Member, datagram: bytes) -> None:
        if not self._upper.dead and not self._upper.stopping:
            self._upper.tap.send_direct(member, datagram)
