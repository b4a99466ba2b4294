"""One attempt of a shovel or a link of federation in virtual time: the real mover, and its ends.

The mover runs in its own greenlet: where it would wait for its sockets, the simulator continues,
and resumes it when data arrived or its time is up.  To the mover an end looks like our AMQP client;
its requests are commands of a connection of the member at the other side, and it receives that
member's effects.  An end at the member that runs it is a pair of sockets there, so nothing gets
lost; any other is a connection that is late, and breaks.  A process is no member: it continues
while its own member stands still, and perhaps a while after that crashed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from greenlet import GreenletExit, getcurrent, greenlet

from broker.amqp import codec
from broker.amqp.fields import Value
from broker.machine import commands as c
from broker.machine.effects import (
    CancelNotify,
    ChannelError,
    Confirm,
    ConnectionError_,
    DeliverEffect,
    Effect,
    Reply,
    Return,
)
from broker.machine.publishing.queue_numbers import asked, with_queue_numbers
from broker.memberlog.client_history import ClusterName
from broker.shovels.definition import ON_CONFIRM, ends
from broker.shovels.supervisor import Event, Job
from broker.shovels.worker_process import ORDERLY_S
from tests.sim.clients.link_plan import CLUSTER
from tests.sim.clients.messages import MessageId, message_id
from tests.sim.world.random_tape import Tape
from tools.client import amqp_client
from tools.client.amqp_client import (
    AmqpConnection,
    BrokerRefused,
    ConnectionLost,
    Delivery,
    Login,
    PublisherConfirm,
    Returned,
)
from tools.shovel import mover
from tools.shovel.mover import Mover
from tools.shovel.task import TURN_S, Task

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper

SPEED = 4.0
"""The links' seconds in a simulated second, as their patience is made for slower networks: a lost
member is out of the view before any link's patience ends."""
CHAN = 1
ATTEMPT = "attempt "
"""Prefix of the address of its connections in a history, which marks the attempt."""
KILLED_BETWEEN = 0.06
"""The chance that a process dies with a confirm that it has not passed on as an ack."""
KILLED: dict[str, object] = {"why": "its process was killed"}
AS_THEY_ARE: dict[str, tuple[int, Callable[..., Any]]] = {
    "exchange.declare": (c.EXCHANGE_DECLARE, c.ExchangeDeclare),
    "exchange.delete": (c.EXCHANGE_DELETE, c.ExchangeDelete),
    "exchange.bind": (c.EXCHANGE_BIND, c.ExchangeBind),
    "exchange.unbind": (c.EXCHANGE_UNBIND, c.ExchangeUnbind),
    "queue.declare": (c.QUEUE_DECLARE, c.QueueDeclare),
    "queue.bind": (c.QUEUE_BIND, c.QueueBind),
    "queue.delete": (c.QUEUE_DELETE, c.QueueDelete),
}
"""Methods whose arguments are those of their commands."""


class SimEnd(AmqpConnection):
    """A connection of an attempt to a member, as the mover sees it."""

    def __init__(self, attempt: SimAttempt, upper: BrokerUpper, which: str, *, local: bool) -> None:
        self.attempt, self.upper, self.which, self.local = attempt, upper, which, local
        self.broker, self.login = f"member {upper.name}", Login()
        self.conn = next(upper.stack.numbers)
        self.deliveries: list[Delivery] = []
        self.acks: list[PublisherConfirm] = []
        self.returns: list[Returned] = []
        self.out = bytearray()  # sent data are under way at once
        self.frame_max, self.blocked = codec.FRAME_MAX_BYTES, ""
        self.cluster = ClusterName("simulated", upper.controller.replica.machine.cluster_id)
        self.capabilities = frozenset(("queue_numbers", "numbered_publishes"))
        self._answers: list[tuple[str, tuple[Value, ...]]] = []
        self._refused: BrokerRefused | None = None
        self._publish_no = self._prefetch = 0
        self._consumes = ""
        self._session = upper.clients.session
        self._inbox: deque[Effect] = deque()
        self._way: deque[c.Command] = deque()  # to the member, in order
        self._coming: deque[Effect] = deque()  # from there
        self._numbered = self._dropped = self._broken = self._closed = False
        self._has_asked_to_close = False
        self._confirms = False
        self._tape = attempt.tape
        upper.links.ends[self.conn] = self

    def open(self) -> None:
        """Open the connection and its channel.  Raises what our client raises."""
        self._send(0, "connection.open", ("/",))
        self._await("connection.open-ok")
        self.open_channel()

    # -- to the member ---------------------------------------------------------------------------

    def _send(self, _channel: int, name: str, args: tuple[Value, ...]) -> None:
        conn = self.conn
        if name in AS_THEY_ARE:
            kind, make = AS_THEY_ARE[name]
            return self._ask(make(kind, conn, CHAN, *args))
        match name:
            case "connection.open":
                peer = f"{ATTEMPT}{self.attempt.number}"
                self._ask(c.ConnectionOpen(c.CONNECTION_OPEN, conn, "/", "guest", peer))
                self._hear(Reply(conn, 0, "connection.open-ok", (), False))
            case "connection.close":
                self._ask(c.ConnectionClose(c.CONNECTION_CLOSE, conn))
            case "channel.open":
                self._ask(c.ChannelOpen(c.CHANNEL_OPEN, conn, CHAN))
                self._hear(Reply(conn, CHAN, "channel.open-ok", (), False))
            case "channel.close":
                self._ask(c.ChannelClose(c.CHANNEL_CLOSE, conn, CHAN))
            case "confirm.select":
                self._confirms = True
                self._hear(Reply(conn, CHAN, "confirm.select-ok", (), False))
            case "basic.qos":
                self._prefetch = cast("int", args[1])
                self._ask(c.Qos(c.QOS, conn, CHAN, self._prefetch, False))
            case "basic.consume":
                queue, _tag, *more = args
                self._numbered = asked(cast("c.Table", args[-1]))
                # The audit takes the name of a queue from the tags of its consumers.
                asks = (c.CONSUME, conn, CHAN, queue, queue, *more, self._prefetch)
                self._consumes = cast("str", queue)
                self._ask(c.Consume._make(asks))
            case "basic.cancel":
                self._ask(c.Cancel(c.CANCEL, conn, CHAN, self._consumes, cast("bool", args[1])))
            case _:
                raise AssertionError(f"no end takes {name}")
        return None

    def publish(
        self, exchange: str, key: str, properties: bytes, body: bytes, *, mandatory: bool = False
    ) -> int:
        self._publish_no += self._confirms
        persistent = codec.decode_properties(properties).get("delivery_mode") == 2
        flags = c.MANDATORY * mandatory | c.PERSISTENT * persistent
        self._ask(
            c.Publish(
                c.PUBLISH, self.conn, CHAN, self._publish_no, exchange, key, flags, properties, body
            )
        )
        self.attempt.published(self._publish_no, message_id(body))
        return self._publish_no

    def ack(self, tag: int, *, multiple: bool = True) -> None:
        self.attempt.acknowledges(tag, multiple=multiple)
        self._ask(c.Ack(c.ACK, self.conn, CHAN, tag, multiple))

    def _ask(self, command: c.Command) -> None:
        if self._dropped or self._broken:
            return
        self._way.append(command)
        if self.local:
            self._arrive()
        else:
            self.upper.world.after(self._tape.gap(0.001), self._arrive)

    def _arrive(self) -> None:
        """Deliver the next command of the way to the member, whichever call began it."""
        if self._way:
            command, upper = self._way.popleft(), self.upper
            if self._has_asked_to_close:
                return  # a member passes nothing on behind that, and it but once
            self._has_asked_to_close = command[0] == c.CONNECTION_CLOSE
            if not upper.dead and upper.clients.session == self._session:
                upper.links.commands.append(command)
                upper.schedule()

    def drop(self) -> None:
        """The process closes its socket; what it has sent arrives before that."""
        if not self._dropped:
            self._ask(c.ConnectionClose(c.CONNECTION_CLOSE, self.conn))
            self._dropped = True

    def cut(self) -> None:
        """The network breaks it: data under way are lost, and the member notices that later."""
        if not self._broken:
            self._way.clear()
            self._way.append(c.ConnectionClose(c.CONNECTION_CLOSE, self.conn))
            self.upper.world.after(self._tape.between(0.0, 0.3), self._arrive)
            self._broken = True
            self.attempt.wake()

    # -- from the member -------------------------------------------------------------------------

    def receive(self, effect: Effect) -> None:
        """The member writes something to it."""
        if isinstance(effect, Reply) and effect.method == "connection.close-ok":
            self._closed = True
        self._closed = self._closed or isinstance(effect, ConnectionError_)
        if isinstance(effect, DeliverEffect) and effect.no_ack:  # a written message counts as sent
            sent = c.Sent(c.SENT, self.conn, CHAN, effect.delivery_tag)
            self.upper.links.commands.append(sent)
            self.upper.schedule()
        if isinstance(effect, DeliverEffect) and self._numbered:
            effect = effect._replace(properties=self._with_place(effect))
        if self.local:
            self._hear(effect)
        else:
            self._coming.append(effect)
            self.upper.world.after(self._tape.gap(0.001), self._heard)

    def _with_place(self, d: DeliverEffect) -> bytes:
        machine = self.upper.controller.replica.machine
        channel = machine.channels.get((self._session, d.conn, d.chan))
        held = channel.unacked.get(d.delivery_tag) if channel is not None else None
        if held is None:
            return d.properties
        return with_queue_numbers(d.properties, machine.cluster_id, held)

    def _heard(self) -> None:
        self._hear(self._coming.popleft())

    def _hear(self, effect: Effect) -> None:
        if not self._broken:
            self._inbox.append(effect)
            self.attempt.wake()

    @property
    def has_input(self) -> bool:
        """Whether its socket is ready."""
        return bool(self._inbox) or self.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether the member has ended it, or is silent."""
        upper = self.upper
        ended = upper.dead or upper.stopping or upper.clients.session != self._session
        return self._broken or ended or not self._session or upper.name in upper.world.outside

    @property
    def is_gone(self) -> bool:
        """Whether the messages it held are back in its member's state (`Gateway.is_gone`)."""
        upper, key = self.upper, (self._session, self.conn)
        if upper.dead or upper.clients.session != self._session:
            return True
        return self._closed and key not in upper.controller.replica.machine.connections

    def receive_now(self) -> None:
        """Read the data that arrived."""
        while self._inbox:
            self._take(self._inbox.popleft())
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused
        if self.is_lost:
            raise ConnectionLost(f"{self.broker}: the connection is gone")

    def _take(self, effect: Effect) -> None:
        match effect:
            case Reply(_, _, method, args):
                self._answers.append((method, args))
            case DeliverEffect(_, _, _, tag, redelivered, exchange, key, properties, body):
                self.attempt.delivered(tag, message_id(body))
                self.deliveries.append(
                    Delivery(tag, redelivered, exchange, key, properties, bytes(body))
                )
            case Confirm(_, _, number, _, accepted):
                self.attempt.confirmed(number, accepted=accepted)
                self.acks.append(PublisherConfirm(number, False, accepted))
            case Return(_, _, code, text, _, _, properties, body):
                back = Returned(f"{code} {text}", bytes(body), properties, len(self.acks))
                self.returns.append(back)
            case ChannelError(_, _, code, text) | ConnectionError_(_, code, text):
                self._refused = BrokerRefused(code, f"{self.broker}: {text}")
            case CancelNotify():
                raise BrokerRefused(404, f"{self.broker}: the queue went away")
            case _:
                raise AssertionError(f"no end hears {effect}")

    def open_channel(self) -> None:
        super().open_channel()
        self.attempt.reopened(self.which)

    def pump(self, timeout_seconds: float, also: int | None = None) -> bool:
        assert also is None
        if not self.has_input:
            self.attempt.wait(timeout_seconds)
        self.receive_now()
        return False

    def send_now(self) -> None:
        """Everything is under way already."""

    def keep_alive(self, *, reading: bool = True) -> None:
        """`is_lost` reports a silent member."""

    def fileno(self) -> int:
        return -1


class _SimMover(Mover):
    """The real mover of an attempt."""

    def __init__(self, attempt: SimAttempt, task: Task) -> None:
        super().__init__(task, attempt.told.append, -1)
        self._attempt = attempt

    def _open(self, which: str) -> AmqpConnection:
        with self._of(which):
            return self._attempt.open(which)

    def _listen(self, source: AmqpConnection) -> bool:
        data = self._attempt.take_lines()
        self._take_changes(source, data)
        return bool(data)


class SimAttempt:
    """A process that moves messages (`handover.Attempt`)."""

    def __init__(
        self, upper: BrokerUpper, tape: Tape, job: Job, on_event: Callable[[Event], None]
    ) -> None:
        self.upper, self.tape, self.key = upper, tape, job.shovel.key
        self.told: list[dict[str, object]] = []
        self.ends: list[SimEnd] = []
        self.is_over = False
        """The process is gone."""
        self._job, self._on_event = job, on_event
        self.number = len(upper.stack.attempts)
        self._lines = b""
        self._input_ends = self._killed = self._stopped = False
        self._due: float | None = None
        self._held: dict[int, MessageId] = {}  # from the source, by tag
        self._sent: dict[int, MessageId] = {}  # to the destination, by publish number
        self._confirmed: set[MessageId] = set()
        uris = ends(job.shovel, job.number)
        self._local = {
            which: uri.address is None
            for which, uri in zip(("source", "destination"), uris, strict=True)
        }
        cluster_id = upper.controller.replica.machine.cluster_id
        task = Task(
            job.shovel, job.number, job.doubtful, CLUSTER, None, None,
            cluster_id=cluster_id, here=job.here,
        )  # fmt: skip
        self._mover = _SimMover(self, task)
        self._run = greenlet(self._mover.run)
        self.wake(tape.between(0.0, 0.1))  # a process starts

    # -- for its member (`handover.Attempt`) -----------------------------------------------------

    @property
    def ended(self) -> bool:
        return not self.holds

    @property
    def holds(self) -> bool:
        """Whether it runs, or its connections here still hold messages."""
        return not self.is_over or not all(one.is_gone for one in self.ends if one.local)

    def stop(self, *, at_once: bool) -> None:
        self._stopped = True
        if at_once:
            self.kill()
        else:
            self._input_ends = True
            self.upper.world.after(ORDERLY_S / SPEED, self.kill)
            self.wake()

    def tell(self, change: Mapping[str, object]) -> None:
        self._lines += json.dumps(change).encode() + b"\n"
        self.wake()

    def orphaned(self) -> None:
        """Its member is gone: its input ends."""
        self.stop(at_once=False)

    # -- the process -----------------------------------------------------------------------------

    def kill(self) -> None:
        """Close its sockets, wherever it was."""
        if not self.is_over and not self._killed:
            self._killed = True
            if self._run.gr_frame is not None:
                self._carry_out(self._run.throw)
            self._ends(KILLED)

    def cut(self) -> None:
        """Break one of its connections."""
        far = [one for one in self.ends if not one.local]
        if far:
            self.tape.pick(far).cut()

    def wake(self, in_s: float = -1.0) -> None:
        """Resume it a moment later, or at that time at the latest."""
        world = self.upper.world
        due = world.now + (self.tape.gap(0.0003) if in_s < 0 else in_s)
        if not self.is_over and (self._due is None or due < self._due):
            self._due = due
            world.at(due, self._go_on, due)

    def _go_on(self, due: float) -> None:
        if due == self._due and not self.is_over:
            self._due = None
            ended = self._carry_out(self._run.switch)
            if self._run.dead:
                killed = isinstance(ended, GreenletExit)
                self._ends(KILLED if killed else cast("dict[str, object]", ended))
            else:
                self._report()

    def _carry_out(self, go: Callable[[], object]) -> object:
        now = SimpleNamespace(monotonic=lambda: self.upper.world.now * SPEED)
        with ExitStack() as stack:
            for module, name, stands_for in (
                (mover, "time", now), (amqp_client, "time", now),
                (mover, "turn", lambda _, *given, **reads: self._turn(*given, **reads)),
                (mover, "poll_of", lambda *_: SimpleNamespace(unregister=self._hang_up)),
            ):  # fmt: skip
                stack.enter_context(patch.object(module, name, stands_for))
            return go()

    def _ends(self, ended: dict[str, object]) -> None:
        for one in self.ends:
            one.drop()
        self.is_over = True
        self.told.append({"event": "ended", **ended})
        self._report()

    def _report(self) -> None:
        told, self.told[:] = list(self.told), []
        for event in told:
            if not self._stopped:
                self._stopped = event["event"] == "ended"
                self._on_event(event)

    # -- what the mover does ---------------------------------------------------------------------

    def open(self, which: str) -> SimEnd:
        """Connect to one end.  Raises ConnectionLost."""
        member = self.upper
        if not self._local[which]:
            self.wait(self.tape.gap(0.01) * SPEED)
            others = [one for one in member.stack.uppers.values() if one.links.is_open]
            if not others:
                raise ConnectionLost("nobody is there")
            member = self.tape.pick(others)
        elif not member.links.is_open:
            raise ConnectionLost("its member does not serve")
        end = SimEnd(self, member, which, local=self._local[which])
        self.ends.append(end)
        end.open()
        return end

    # -- judged ----------------------------------------------------------------------------------

    def delivered(self, tag: int, message: MessageId) -> None:
        """The source sends it."""
        self._held[tag] = message

    def published(self, number: int, message: MessageId) -> None:
        """It goes to the destination."""
        self._sent[number] = message

    def confirmed(self, number: int, *, accepted: bool) -> None:
        """The destination confirms; the outbox checks that a majority has the message."""
        if accepted and number in self._sent:
            self._confirmed.add(self._sent[number])
        world = self.upper.world
        if accepted and not world.healed and self.tape.chance(KILLED_BETWEEN):
            self.upper.judge.counters["links_killed_between"] += 1
            raise GreenletExit  # the process, before it can acknowledge that at the source

    def reopened(self, which: str) -> None:
        """A channel begins, and with it its numbers."""
        (self._held if which == "source" else self._sent).clear()

    def acknowledges(self, tag: int, *, multiple: bool) -> None:
        """G24: the destination has confirmed messages acknowledged at the source, if so
        configured."""
        if self._job.shovel.ack_mode != ON_CONFIRM:
            return
        for one in [one for one in self._held if one == tag or (multiple and one < tag)]:
            message = self._held.pop(one)
            if message not in self._confirmed:
                text = f"{message} is acknowledged at the source, and the destination has not"
                self.upper.judge.broken("G24", f"{text} confirmed it")

    # -- what it waits for -----------------------------------------------------------------------

    def wait(self, patience_s: float) -> None:
        """Wait until data arrived, or this much of its time is over."""
        self.wake(max(0.0, patience_s) / SPEED)
        simulator = getcurrent().parent
        assert simulator is not None
        simulator.switch()

    def take_lines(self) -> bytes:
        lines, self._lines = self._lines, b""
        return lines

    def _hang_up(self, _control: int) -> None:
        """The end of its input was read: it stops listening."""
        self._input_ends = False

    def _turn(
        self,
        source: SimEnd,
        destination: SimEnd,
        of: Callable[[str], AbstractContextManager[None]],
        *,
        reading: bool,
    ) -> Iterator[None]:
        """Stands for `task.turn`."""
        if not self._is_ready(source, destination, reading=reading):
            self.wait(TURN_S)
        if reading and source.has_input:
            with of("source"):
                source.receive_now()
        if destination.has_input:
            with of("destination"):
                destination.receive_now()
        if self._lines or self._input_ends:
            yield

    def _is_ready(self, source: SimEnd, destination: SimEnd, *, reading: bool) -> bool:
        lines = self._lines or self._input_ends
        return bool(lines) or destination.has_input or (reading and source.has_input)
