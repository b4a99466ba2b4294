"""Three machines in lockstep, as three members run them, and clients that talk to them.

Every command goes to all of them; outcomes and roots must agree and invariants must hold after each
one, so each test of a subject is also a test of determinism.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice

from broker.machine import commands as c
from broker.machine.commands import Command, Table
from broker.machine.effects import (
    CancelNotify,
    ChannelError,
    Confirm,
    ConnectionError_,
    Defined,
    DeliverEffect,
    Effect,
    GetEmpty,
    GetOk,
    Reply,
    Return,
    SessionStarted,
)
from broker.machine.handlers.cold_start import find_survivors
from broker.machine.machine import Machine
from broker.machine.move_log import spelled_out
from broker.machine.state import Queue
from broker.machine.version import MACHINE_VERSION
from broker.waiting.pager import Pager
from tests.properties.models.memory_shelf import pager
from tests.support.move_ledger import Ledger

MEMBERS = ("a", "b", "c")
EMPTY = b"\x00\x00"  # property flags without any property
STEP_US = 300_000
"""How far all clocks advance from one tick to the next."""
PAGERS: dict[str, Callable[[], Pager | None]] = {
    "a": lambda: None,
    "b": pager,
    "c": lambda: pager(limit_bytes=2_000),
}
"""One keeps all waiting messages in memory, one as few as it can, one some of them."""


class Rig:
    """The three members, activated; `effects` are those of the latest command, of all members."""

    def __init__(self) -> None:
        self.machines = {name: Machine(name, PAGERS[name]()) for name in MEMBERS}
        self.position = 0
        self.time_us = 1_000_000
        self.effects: list[Effect] = []
        self.log: list[tuple[int, int, int, Command]] = []
        self.ledger = Ledger()
        self.moves = b""  # of the latest command
        self.activate()

    @property
    def machine(self) -> Machine:
        return self.machines["a"]

    def activate(
        self, *fresh: str, members: tuple[str, ...] = MEMBERS, cold: bool = False
    ) -> list[Effect]:
        listed = tuple(
            c.ActiveMember(name, 1, name in fresh or name not in self.machine.sessions)
            for name in members
        )
        epoch = self.machine.epoch + 1
        if cold:  # one member looks ahead, one is interrupted, one does not look
            for name, steps in (("a", None), ("b", 2)):
                deque(islice(find_survivors(self.machines[name]), steps), maxlen=0)
        self.apply(
            0, c.Activate(c.ACTIVATE, epoch, listed, cold, MEMBERS, "cluster", MACHINE_VERSION)
        )
        return self.effects

    def apply(self, session: int, command: Command) -> int:
        """Apply a command at all members, which must agree; one of them in turn is checked as a
        whole, as that takes most of a test's time."""
        self.position += 1
        self.effects = []
        self.log.append((self.position, session, self.time_us, command))
        outcomes, moves = set(), set()
        for machine in self.machines.values():
            outcomes.add(machine.apply(self.position, session, self.time_us, command))
            effects = machine.take_effects()
            if effects and not isinstance(effects[0], SessionStarted):
                self.effects += effects
            moves.add(machine.take_moves()[0])
        assert len(outcomes) == 1
        assert len(moves) == 1
        self.moves = spelled_out(moves.pop())
        self.ledger.take(self.moves)
        self.ledger.agrees_with(self.machine)
        turn = self.position % len(self.machines)
        next(islice(self.machines.values(), turn, None)).invariants()
        assert len({machine.root() for machine in self.machines.values()}) == 1
        return outcomes.pop()

    def queue(self, name: str = "q") -> Queue:
        return self.machine.vhosts["/"].queues[name]

    def restore(self) -> None:
        """Let the other two continue from a snapshot of the first one."""
        whole = list(self.machine.snapshot())
        for name in MEMBERS[1:]:
            self.machines[name] = Machine.restore(name, whole)
            self.machines[name].invariants()
            assert list(self.machines[name].snapshot()) == whole

    def tick(
        self, name: str, reached_us: int, applied: int | None = None, ahead_us: int = 0
    ) -> int:
        """Apply the tick of one member that had applied this much: everything by default."""
        applied = self.position if applied is None else applied
        tick = c.Tick(c.TICK, reached_us, ahead_us, applied)
        return self.apply(self.machine.sessions[name].session, tick)

    def pass_time(self, time_us: int) -> None:
        """Advance all clocks by this much, as long as something can expire."""
        end_us = self.machine.now_us + time_us
        while self.machine.wants_tick and self.machine.now_us < end_us:
            reached_us = min(end_us, self.machine.now_us + STEP_US)
            for name in self.machine.sessions:
                self.tick(name, reached_us)

    def client(self, member: str = "a", vhost: str = "/") -> "Client":
        session = self.machine.sessions[member].session
        if vhost not in self.machine.vhosts:
            self.define("vhost", "", vhost, {"description": "", "tags": ()}, member)
        conn = 1 + sum(1 for key in self.machine.connections if key[0] == session)
        opened = c.ConnectionOpen(c.CONNECTION_OPEN, conn, vhost, "guest", f"{member}:1")
        assert self.apply(session, opened) == c.OK
        client = Client(self, session, conn, 0)
        return client.channel(1)

    def define(
        self, what: str, vhost: str, name: str, body: Table | None, member: str = "a"
    ) -> tuple[int, str]:
        """Return code and text, as the asked member gets them."""
        session = self.machine.sessions[member].session
        self.apply(session, c.Define(c.DEFINE, 7, "guest", what, vhost, name, body))
        (told,) = [one for one in self.effects if isinstance(one, Defined)]
        assert told.request == 7
        return told.code, told.text

    def depth(self, queue: str, vhost: str = "/") -> int:
        found = self.machine.vhosts[vhost].queues[queue]
        return len(found.ready) + len(found.returned)

    def has_queue(self, queue: str) -> bool:
        return queue in self.machine.vhosts["/"].queues

    def has_exchange(self, name: str) -> bool:
        return name in self.machine.vhosts["/"].exchanges


class Client:
    """One channel of a connection.  Methods return the outcome; effects are in the rig."""

    def __init__(self, rig: Rig, session: int, conn: int, chan: int) -> None:
        self.rig = rig
        self.session = session
        self.conn = conn
        self.chan = chan

    def channel(self, chan: int) -> "Client":
        opened = c.ChannelOpen(c.CHANNEL_OPEN, self.conn, chan)
        assert self.rig.apply(self.session, opened) == c.OK
        return Client(self.rig, self.session, self.conn, chan)

    def do(self, command: Command) -> int:
        return self.rig.apply(self.session, command)

    def close(self) -> int:
        return self.do(c.ConnectionClose(c.CONNECTION_CLOSE, self.conn))

    def close_channel(self) -> int:
        return self.do(c.ChannelClose(c.CHANNEL_CLOSE, self.conn, self.chan))

    def exchange(
        self,
        name: str,
        kind: str = "direct",
        arguments: Table | None = None,
        *,
        passive: bool = False,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
    ) -> int:
        return self.do(
            c.ExchangeDeclare(
                c.EXCHANGE_DECLARE,
                self.conn,
                self.chan,
                name,
                kind,
                passive,
                durable,
                auto_delete,
                internal,
                False,
                arguments or {},
            )
        )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> int:
        return self.do(
            c.ExchangeDelete(c.EXCHANGE_DELETE, self.conn, self.chan, name, if_unused, False)
        )

    def queue(
        self,
        name: str,
        arguments: Table | None = None,
        *,
        passive: bool = False,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
    ) -> int:
        return self.do(
            c.QueueDeclare(
                c.QUEUE_DECLARE,
                self.conn,
                self.chan,
                name,
                passive,
                durable,
                exclusive,
                auto_delete,
                False,
                arguments or {},
            )
        )

    def bind(self, queue: str, exchange: str, key: str = "", args: Table | None = None) -> int:
        return self.do(
            c.QueueBind(c.QUEUE_BIND, self.conn, self.chan, queue, exchange, key, False, args or {})
        )

    def unbind(self, queue: str, exchange: str, key: str = "", args: Table | None = None) -> int:
        return self.do(
            c.QueueUnbind(
                c.QUEUE_UNBIND, self.conn, self.chan, queue, exchange, key, False, args or {}
            )
        )

    def bind_exchange(self, destination: str, source: str, key: str = "") -> int:
        return self.do(
            c.ExchangeBind(
                c.EXCHANGE_BIND, self.conn, self.chan, destination, source, key, False, {}
            )
        )

    def unbind_exchange(self, destination: str, source: str, key: str = "") -> int:
        return self.do(
            c.ExchangeUnbind(
                c.EXCHANGE_UNBIND, self.conn, self.chan, destination, source, key, False, {}
            )
        )

    def purge(self, queue: str) -> int:
        return self.do(c.QueuePurge(c.QUEUE_PURGE, self.conn, self.chan, queue, False))

    def delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self.do(
            c.QueueDelete(c.QUEUE_DELETE, self.conn, self.chan, queue, if_unused, if_empty, False)
        )

    def part(self, data: bytes) -> int:
        return self.do(c.BodyPart(c.BODY_PART, self.conn, self.chan, data))

    def publish(
        self,
        key: str,
        body: bytes = b"",
        exchange: str = "",
        *,
        flags: int = c.PERSISTENT,
        no: int = 0,
        properties: bytes = EMPTY,
    ) -> int:
        return self.do(
            c.Publish(c.PUBLISH, self.conn, self.chan, no, exchange, key, flags, properties, body)
        )

    def consume(
        self,
        queue: str,
        tag: str = "t",
        prefetch: int = 0,
        arguments: Table | None = None,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
    ) -> int:
        return self.do(
            c.Consume(
                c.CONSUME,
                self.conn,
                self.chan,
                queue,
                tag,
                False,
                no_ack,
                exclusive,
                False,
                arguments or {},
                prefetch,
            )
        )

    def cancel(self, tag: str = "t") -> int:
        return self.do(c.Cancel(c.CANCEL, self.conn, self.chan, tag, False))

    def get(self, queue: str, *, no_ack: bool = False) -> int:
        return self.do(c.Get(c.GET, self.conn, self.chan, queue, no_ack))

    def ack(self, tag: int, *, multiple: bool = False) -> int:
        return self.do(c.Ack(c.ACK, self.conn, self.chan, tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> int:
        return self.do(c.Nack(c.NACK, self.conn, self.chan, tag, multiple, requeue))

    def recover(self, *, requeue: bool = True) -> int:
        return self.do(c.Recover(c.RECOVER, self.conn, self.chan, requeue))

    def qos(self, count: int, *, shared: bool = True) -> int:
        return self.do(c.Qos(c.QOS, self.conn, self.chan, count, shared))

    def sent(self, tag: int) -> int:
        return self.do(c.Sent(c.SENT, self.conn, self.chan, tag))

    def commit(
        self, publishes: list[c.TxPublish] | None = None, settles: list[c.TxSettle] | None = None
    ) -> int:
        return self.do(
            c.TxCommit(
                c.TX_COMMIT,
                self.conn,
                self.chan,
                tuple(publishes or ()),
                tuple(settles or ()),
            )
        )

    # The latest command's output to this channel.

    def replies(self) -> list[tuple[str, tuple[c.Value, ...], bool]]:
        return [
            (one.method, one.args, one.durable)
            for one in self.rig.effects
            if isinstance(one, Reply) and one.conn == self.conn
        ]

    def deliveries(self) -> list[tuple[int, bytes, bool]]:
        return [
            (one.delivery_tag, bytes(one.body), one.redelivered)
            for one in self.rig.effects
            if isinstance(one, DeliverEffect) and (one.conn, one.chan) == (self.conn, self.chan)
        ]

    def error(self) -> str:
        errors = [
            one.text
            for one in self.rig.effects
            if isinstance(one, ChannelError | ConnectionError_) and one.conn == self.conn
        ]
        assert len(errors) == 1
        return errors[0]

    def got(self) -> GetOk | GetEmpty:
        found = [one for one in self.rig.effects if isinstance(one, GetOk | GetEmpty)]
        assert len(found) == 1
        return found[0]

    def confirms(self) -> list[Confirm]:
        return [one for one in self.rig.effects if isinstance(one, Confirm)]

    def returns(self) -> list[Return]:
        return [one for one in self.rig.effects if isinstance(one, Return)]

    def cancelled(self) -> list[str]:
        return [one.consumer_tag for one in self.rig.effects if isinstance(one, CancelNotify)]
