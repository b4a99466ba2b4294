"""A keeper of a replica of the queue `shared`, which works like the real attempts.

The real `Followers` of the followed member and the real `Copier` are joined here without sockets:
the output of one is the input of the other, and what the copier publishes and settles are commands
of a client of its own member.  The member that runs it is chosen as for shovels, the followed one
by chance, so either dies, stands still or loses the view while the copying goes on.  A copy is a
separate message to the rest of the run: the number of its copier is in front of the body.

G35 is judged at each acknowledgement (no message leaves the replica that is still in the queue,
unless another copy of it stays) and when all is at rest: the replica holds the queue's messages,
once and in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from broker.frontend.channel import Following
from broker.machine.commands import (
    ACK,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    CONSUME,
    MANDATORY,
    PERSISTENT,
    PUBLISH,
    QOS,
    QUEUE_DECLARE,
    Ack,
    ChannelOpen,
    Command,
    ConnectionClose,
    ConnectionOpen,
    Consume,
    Publish,
    Qos,
    QueueDeclare,
)
from broker.machine.effects import ChannelError, Confirm, DeliverEffect, Effect, Reply, Return
from broker.machine.limits import CHANNEL_HELD_MAX
from broker.machine.publishing.queue_numbers import FOLLOW
from broker.machine.queueing.streams import There
from broker.machine.state import BODY, State
from broker.shovels.followed import Followers
from broker.shovels.place_ranges import places, ranges_of, union
from broker.shovels.replicas import parse_replica
from broker.shovels.status import runner
from broker.waiting.bodies import Body
from tests.sim.clients.messages import MESSAGE, MessageId, message_id
from tests.sim.world.random_tape import Tape
from tools.client.amqp_client import AmqpConnection, ConnectionLost, Delivery
from tools.shovel.copier import TAG, Copier
from tools.shovel.task import Failed, Task

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper

SOURCE, REPLICA = "shared", TAG
"""The audit takes the name of a queue from the tags of its consumers."""
TURN_S, PAUSE_S = 0.005, 0.1
LOOK_S = 1e6
"""Added to the time so that a member looks at once, as often as there are pages."""
SHOVEL = parse_replica("/", REPLICA, {"src-uri": "amqp://elsewhere", "src-queue": SOURCE})


def held(state: State, name: str) -> list[bytes]:
    """The bodies of all messages of a queue, waiting or not, in their order."""
    vhost = state.vhosts.get("/")
    queue = vhost.queues.get(name) if vhost is not None else None
    if queue is None:
        return []
    there = There(state, queue)
    ranges = union(there.in_line, ranges_of(there.out_of_line))
    return [bytes(there.message(place)[BODY]) for place in places(ranges)]


def originals(state: State) -> list[MessageId]:
    """The originals of the replica's messages."""
    return [message_id(body[MESSAGE.size :]) for body in held(state, REPLICA)]


class _Followed:
    """A member as seen by a follower of a queue: the real `Followers` with one client."""

    stays = False

    def __init__(self, upper: BrokerUpper) -> None:
        self.upper = upper
        self.deliveries: list[Delivery] = []
        self.refused = ""
        self._channel = SimpleNamespace(pending_close=None, following={})
        gateway = SimpleNamespace(following={self: None}, fenced=False)
        connections = SimpleNamespace(gateway=gateway)
        self._connections = connections
        self.vhost, self.is_full, self.channels = "/", False, {1: self._channel}
        self._session = upper.clients.session
        self._followers = Followers(
            upper.controller, cast("Any", connections), lambda: upper.controller.replica.machine
        )

    def begin(self, queue: str, known: str) -> None:
        self._channel.following = {TAG: Following(queue, known)}
        self._connections.gateway.following = {self: None}
        self.deliveries.clear()

    @property
    def is_lost(self) -> bool:
        """Whether its clients are lost: the process ended, or began a new session, or it stays cut
        off for good, so that their heartbeats end."""
        upper = self.upper
        ended = upper.dead or upper.stopping or upper.clients.session != self._session
        return ended or not self._session or upper.name in upper.world.outside

    def look(self, at: float) -> None:
        """Called some times a second."""
        if not self.upper.member.paused and self.upper.replicated.may_reply:
            self._connections.durable_mark = self.upper.outbox.durable_mark
            self._followers.wake(at)

    def send_content(
        self, _number: int, _method: str, args: tuple[Any, ...], properties: bytes, body: Body
    ) -> None:
        self.deliveries.append(Delivery(args[1], False, "", "", properties, bytes(body)))

    def send_away(self, reason: str) -> None:
        self.refused = reason

    def refuse_channel(self, _number: int, _code: int, text: str, _method: str) -> None:
        self._channel.following = {}
        self.refused = text


class _Source:
    """The copier's connection to the followed member (`AmqpConnection`)."""

    def __init__(self, followed: _Followed) -> None:
        self.followed = followed

    @property
    def deliveries(self) -> list[Delivery]:
        return self.followed.deliveries

    @deliveries.setter
    def deliveries(self, left: list[Delivery]) -> None:
        self.followed.deliveries = left

    def consume(
        self, queue: str, _prefetch: int, *, no_ack: bool, tag: str, arguments: dict[str, str]
    ) -> None:
        self.followed.begin(queue, arguments[FOLLOW])

    def reopen_channel(self) -> None:
        self.followed.begin("", "")


class _Destination:
    """The copier's connection to its own member: its calls there are commands."""

    def __init__(self, upper: BrokerUpper, conn: int, acked: Callable[[Delivery], None]) -> None:
        self.conn = conn
        self.deliveries: list[Delivery] = []
        self.acks: list[tuple[int, bool, bool]] = []
        self.returns: list[Return] = []
        self.commands: list[Command] = []
        self._upper, self._acked = upper, acked
        self._published = 0
        self._held: dict[int, Delivery] = {}
        self._looking: _Followed | None = None
        self._looked_at = 0.0

    def declare_queue(self, name: str, _arguments: object) -> None:
        self.commands.append(
            QueueDeclare(
                QUEUE_DECLARE, self.conn, 1, name, False, True, False, False, False, {}
            )
        )  # fmt: skip

    def select_confirms(self) -> None:
        """Each publish here has a number."""

    def consume(
        self, queue: str, _prefetch: int, *, no_ack: bool, tag: str, arguments: dict[str, str]
    ) -> None:
        self._looking = _Followed(self._upper)
        self._looking.begin(queue, arguments[FOLLOW])
        self._looked_at = self._upper.world.now

    def pump(self, _timeout_s: float) -> None:
        """Read the replica page by page: its member does nothing else meanwhile, and everything is
        durable."""
        assert self._looking is not None
        for _ in range(2):
            self._looked_at += LOOK_S
            self._looking.look(self._looked_at)
        if not self._looking.deliveries:  # what it has applied of a run is not durable, say
            raise ConnectionLost(self._looking.refused or "what is here cannot be read now")
        self.deliveries += self._looking.deliveries
        self._looking.deliveries.clear()

    def call(self, method: str, args: tuple[Any, ...], _answer: str) -> None:
        if method == "basic.qos":
            self.commands.append(Qos(QOS, self.conn, 1, args[1], False))
        elif method == "basic.consume":
            queue, tag = args[:2]
            self.commands.append(
                Consume(
                    CONSUME, self.conn, 1, queue, tag, False, False, True, False, {},
                    CHANNEL_HELD_MAX,
                )
            )  # fmt: skip

    def publish(
        self, exchange: str, key: str, properties: bytes, body: bytes, *, mandatory: bool
    ) -> int:
        self._published += 1
        number = self._published
        named = MESSAGE.pack(self.conn, number) + body
        flags = PERSISTENT | MANDATORY * mandatory
        self.commands.append(
            Publish(PUBLISH, self.conn, 1, number, exchange, key, flags, properties, named)
        )
        return number

    def ack(self, tag: int, *, multiple: bool) -> None:
        assert not multiple
        self._acked(self._held.pop(tag))
        self.commands.append(Ack(ACK, self.conn, 1, tag, multiple))

    def receive(self, effect: Effect) -> None:
        match effect:
            case DeliverEffect(_, _, _, tag, redelivered, exchange, key, properties, body):
                one = Delivery(tag, redelivered, exchange, key, properties, bytes(body))
                self._held[tag] = one
                self.deliveries.append(one)
            case Confirm(_, _, number, _, accepted):
                self._upper.judge.counters["copies_made"] += accepted
                self.acks.append((number, False, accepted))
            case Return():
                self.returns.append(effect)
            case _:
                pass


class _Attempt:
    """One attempt: it reads the replica, follows, and copies, until something breaks."""

    def __init__(self, upper: BrokerUpper, source: BrokerUpper, conn: int) -> None:
        self._upper, self._counters = upper, upper.judge.counters
        self._followed = _Followed(source)
        self._source = _Source(self._followed)
        self.destination = _Destination(upper, conn, self._look_at_ack)
        task = Task(SHOVEL, 0, {}, "near", None, None)
        self._copier = Copier(task, self._told, -1)
        self._answers: list[str] = []
        self._removed: list[MessageId] = []
        self._phase = ""
        self.over = ""
        self.destination.commands += [
            ConnectionOpen(CONNECTION_OPEN, conn, "/", "guest", "p:4"),
            ChannelOpen(CHANNEL_OPEN, conn, 1),
        ]
        self.destination.declare_queue(REPLICA, {})

    def _told(self, event: dict[str, object]) -> None:
        """Its report to its member."""
        if event == {"event": "blocked", "why": ""}:
            self._counters["replicas_level"] += 1

    def receive(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            self._answers.append(effect.method)
        elif isinstance(effect, ChannelError):
            self.over = effect.text
        else:
            self.destination.receive(effect)

    def turn(self) -> None:
        """Do a little of its work."""
        destination = cast("AmqpConnection", self.destination)
        source = cast("AmqpConnection", self._source)
        try:
            if not self._phase:
                if "queue.declare-ok" not in self._answers or not self._all_is_durable():
                    return
                self._copier._read_here(destination)
                self._phase = "consumes"
            if self._followed.is_lost:
                raise Failed("source: lost")
            if self._phase == "consumes":
                if "basic.consume-ok" not in self._answers:
                    return
                self._copier._follow(source)
                self._phase = "copies"
            self._followed.look(self._upper.world.now)
            if self._followed.refused:
                raise Failed(self._followed.refused)
            self._copier._take_source(source, destination)
            self._copier._take_confirms(destination)
            self._copier._take_back(destination)
            self._look_at_removed()
        except (Failed, ConnectionLost) as failed:
            self.over = str(failed)

    def _all_is_durable(self) -> bool:
        upper = self._upper
        settled = upper.outbox.durable_mark >= upper.controller.replica.history.position
        return settled and upper.controller.serving and upper.replicated.may_reply

    # -- judged ----------------------------------------------------------------------------------

    def _look_at_ack(self, one: Delivery) -> None:
        self._counters["copies_removed"] += 1
        self._removed.append(message_id(one.body[MESSAGE.size :]))

    def _look_at_removed(self) -> None:
        """G35: a message removed here is no longer at the source, or is here once more."""
        if not self._removed:
            return
        here = Counter(originals(self._upper.controller.replica.machine))
        there = {
            message_id(one) for one in held(self._followed.upper.controller.replica.machine, SOURCE)
        }
        for one, count in Counter(self._removed).items():
            if one in there and here[one] <= count:
                text = f"the only copy of {one} goes, which {self._followed.upper.name} still holds"
                self._upper.judge.broken("G35", text)
        self._removed.clear()


class SimReplica:
    """The part of one member in keeping the replica, in runs that have one."""

    def __init__(self, upper: BrokerUpper, tape: Tape) -> None:
        self.used = upper.world.tape.fork("replica").chance(0.3)
        self._upper, self._tape = upper, tape
        self._attempt: _Attempt | None = None
        self._session = 0
        self._commands: list[Command] = []
        self._not_before = 0.0
        self._compared_at, self._is_level = b"", False  # once for each position

    def begin(self) -> None:
        """A session begins: work under way in the previous one is gone with it."""
        self._attempt, self._commands = None, []
        self._session += 1
        if self.used:
            self._later(self._session)

    def take_commands(self) -> list[Command]:
        commands, self._commands = self._commands, []
        if self._attempt is not None:
            commands += self._attempt.destination.commands
            self._attempt.destination.commands = []
        return commands

    def receives(self, effect: Effect) -> bool:
        """Take an effect, if it is for its connection."""
        attempt = self._attempt
        if attempt is None or getattr(effect, "conn", 0) != attempt.destination.conn:
            return False
        attempt.receive(effect)
        return True

    @property
    def settled(self) -> bool:
        """Whether the replica holds what it should, as this member has both."""
        if not self.used:
            return True
        replica = self._upper.controller.replica
        if replica.half_way:  # the state belongs to no position
            return False
        if replica.history.chain != self._compared_at:
            self._compared_at, state = replica.history.chain, replica.machine
            self._is_level = originals(state) == [message_id(b) for b in held(state, SOURCE)]
        return self._is_level

    def _later(self, session: int) -> None:
        def turn() -> None:
            if session == self._session and self._upper.clients.session:
                self._turn()
                self._later(session)

        self._upper.later(TURN_S * self._tape.between(0.2, 1.8), turn)

    def _turn(self) -> None:
        upper, attempt = self._upper, self._attempt
        state = upper.controller.replica.machine
        level = upper.primary.caught_up_names - upper.primary.mark.without_data
        able = [name for name in state.sessions if name in level]
        mine = upper.controller.serving and runner(able, "/", REPLICA) == upper.name
        if attempt is not None:
            attempt.turn()
            if attempt.over or not mine or self._tape.chance(0.002 * (not upper.world.healed)):
                self._commands += attempt.destination.commands
                self._commands.append(ConnectionClose(CONNECTION_CLOSE, attempt.destination.conn))
                self._attempt = None
                self._not_before = upper.world.now + PAUSE_S * self._tape.between(0.1, 1.9)
        elif mine and upper.world.now >= self._not_before:
            others = [
                one for one in upper.stack.uppers.values()
                if one.clients.session and one.name not in upper.world.outside
            ]  # fmt: skip
            if others:
                upper.judge.counters["attempts_to_copy"] += 1
                number = next(upper.stack.numbers)
                self._attempt = _Attempt(upper, self._tape.pick(others), number)
