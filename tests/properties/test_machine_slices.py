"""Work of several positions amid client commands: no result depends on where its slices end.

Work that ends many things (a connection that held much, a virtual host, a policy that takes effect,
an expiry, dead letters) continues in slices at later positions. Here the slices are tiny, three
members apply what random clients send, and members are restored from another one's snapshot midway.
All must agree at each position, and with the ledger, which knows messages from the moves alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from broker.machine import commands as c
from broker.machine.clock.cluster_time import goes_on
from broker.machine.commands import Command, Table
from broker.machine.requests.properties import with_header
from broker.machine.state import Channel
from tests.support.three_machines import EMPTY, MEMBERS, PAGERS, Rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEEDS = range(1, 9)
STEPS = 400
SETTLE_MAX = 20_000

LIMITS = {
    "broker.waiting.backlog.BLOCK_MESSAGES": 2,
    "broker.machine.handlers.sessions.ENDING_WORK_MAX": 10,
    "broker.machine.handlers.connections.ENDING_WORK_MAX": 10,
    "broker.machine.handlers.sessions.EXPIRED_PER_TICK_MAX": 4,
    "broker.machine.handlers.sessions.EXPIRED_PER_QUEUE_MAX": 1,
    "broker.machine.handlers.sessions.LEASES_WORK_MAX": 20,
    "broker.machine.handlers.cold_start.PART": 2,
    "broker.machine.handlers.definitions.LEAVING_WORK_MAX": 14,
    "broker.machine.handlers.policies.POLICIES_WORK_MAX": 5,
    "broker.machine.handlers.policies.TRIMMED_MAX": 1,
    "broker.machine.publishing.letters.LETTERS_WORK_MAX": 18,
    "broker.machine.handlers.consumers.EXPIRED_AT_ONCE_MAX": 2,
    "broker.machine.queueing.dispatch.EXPIRED_AT_ONCE_MAX": 2,
}
"""So small that nearly everything is too much for one position."""

VHOSTS = ("/", "/", "/", "v", "w")
QUEUES = tuple(f"q{number}" for number in range(7))
EXCHANGES = ("e1", "e2", "e3")
KEYS = ("a", "a.b", "#", "*.b", "k")
QUEUE_ARGUMENTS: tuple[tuple[str, tuple[c.Value, ...]], ...] = (
    ("x-message-ttl", (100, 500)), ("x-max-length", (2,)), ("x-expires", (300, 900)),
    ("x-max-priority", (3,)), ("x-delivery-limit", (0, 1, 2)),
    ("x-dead-letter-exchange", ("", "e1", "amq.fanout")), ("x-single-active-consumer", (True,)),
    ("x-queue-type", ("quorum",)),
    ("x-dead-letter-strategy", ("at-least-once",)), ("x-overflow", ("reject-publish",)),
)  # fmt: skip
POLICY: tuple[tuple[str, tuple[c.Value, ...]], ...] = (
    ("message-ttl", (100, 500)), ("max-length", (1, 3)), ("expires", (300, 900)),
    ("delivery-limit", (0, 1, 5)),
)  # fmt: skip
USERS_POLICY: tuple[tuple[str, tuple[c.Value, ...]], ...] = (
    ("dead-letter-exchange", ("", "e1", "amq.fanout")), ("alternate-exchange", ("e2",)),
    ("overflow", ("drop-head", "reject-publish", "reject-publish-dlx")),
)  # fmt: skip

T = TypeVar("T")


class Clients:
    """Random clients and operators of three members."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = Rig()
        self.connections = 0
        self.acts: list[tuple[float, Callable[[], object]]] = [
            (3.0, self.define), (1.5, self.connect), (3.5, self.open_channel),
            (0.7, self.close_connection), (0.5, self.close_channel), (0.7, self.change_view),
            (6.0, self.tick), (7.0, self.declare), (9.0, self.bind), (1.0, self.unbind),
            (1.0, self.delete), (2.0, self.purge), (23.0, self.publish), (8.0, self.consume),
            (2.0, self.cancel), (7.0, self.get), (4.0, self.qos), (14.0, self.settle),
        ]  # fmt: skip

    def step(self) -> None:
        """A member joins from another's state, more often during sliced work; or a client acts."""
        machines = self.rig.machines
        busy = goes_on(self.rig.machine)
        if self.random.random() < (0.35 if busy else 0.03):
            to, donor = self.random.choice(MEMBERS), self.random.choice(MEMBERS)
            pages, own = self.rig.position % 2 == 0, self.rig.position % 3 == 0
            chunks = machines[donor].snapshot(pages=pages)
            machines[to] = type(machines[to]).restore(to, chunks, PAGERS[to](), own=own)
            machines[to].invariants()
            return
        if not self.rig.machine.connections:
            self.connect()
        if not self.rig.machine.channels:
            self.open_channel()
        weights = [weight for weight, _ in self.acts]
        self.random.choices([act for _, act in self.acts], weights)[0]()

    def settled(self) -> bool:
        """All work under way ends by itself as positions advance."""
        for _ in range(SETTLE_MAX):
            if not goes_on(self.rig.machine):
                return True
            self.tick()
        return False

    # -- chances ---------------------------------------------------------------------------------

    def one(self, things: Sequence[T]) -> T:
        return self.random.choice(things)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def some(self, options: tuple[tuple[str, tuple[c.Value, ...]], ...], part: float) -> Table:
        return {name: self.one(values) for name, values in options if self.chance(part)}

    def channel(self) -> Channel | None:
        channels = list(self.rig.machine.channels.values())
        return self.one(channels) if channels else None

    def queue(self, channel: Channel) -> str:
        present = list(channel.connection.vhost.queues)
        return self.one(present) if present and self.chance(0.93) else self.one(QUEUES)

    def exchange(self, channel: Channel) -> str:
        return self.one([name for name in channel.connection.vhost.exchanges if name])

    def on_channel(self, make: Callable[[Channel, int, int], Command]) -> None:
        """Send a command on some channel."""
        channel = self.channel()
        if channel is not None:
            session, conn, chan = channel.key
            self.rig.apply(session, make(channel, conn, chan))

    def session(self) -> int:
        return self.one([one.session for one in self.rig.machine.sessions.values()])

    # -- operators, time and members -------------------------------------------------------------

    def define(self) -> None:
        """Add or delete a virtual host, a policy or a limit."""
        kind = self.one(("vhost", "vhost", "policy", "policy", "operator_policy", "vhost_limit"))
        vhost, value = self.one(VHOSTS), None
        name = {"vhost": "", "vhost_limit": "limits"}.get(kind) or self.one(("p1", "p2"))
        if self.chance(0.65):
            value = self.definition(kind)
        name = "" if kind == "vhost" else name
        self.rig.apply(self.session(), c.Define(c.DEFINE, 1, "guest", kind, vhost, name, value))

    def definition(self, kind: str) -> Table:
        if kind == "vhost":
            return {"description": "", "tags": ()}
        if kind == "vhost_limit":
            return {"max-queues": self.one((-1, 5))}
        rules = self.some(POLICY, 0.4)
        if kind == "policy":
            rules |= self.some(USERS_POLICY, 0.4)
        return {
            "pattern": self.one(("^q[0-3]", "q", ".*", "^e")),
            "definition": rules or {"max-length": 2},
            "priority": self.one((0, 1)),
            "apply-to": self.one(("all", "queues", "exchanges")),
        }

    def change_view(self) -> None:
        """A member leaves, returns with a new session, or all start anew."""
        chance = self.random.random()
        if chance < 0.6:
            self.rig.activate(self.one(MEMBERS))
        elif chance < 0.95:
            there = tuple(name for name in MEMBERS if self.chance(0.7))
            self.rig.activate(members=there or ("a",))
        else:
            self.rig.activate(cold=True)

    def tick(self) -> None:
        """A member sends its clock as read a while ago, up to 0.3 s further on."""
        machine = self.rig.machine
        reached = machine.now_us + self.random.randint(0, 300_000)
        ahead = reached + self.one((0, 100_000))
        applied = max(0, self.rig.position - self.random.randint(0, 9))
        self.rig.apply(self.session(), c.Tick(c.TICK, reached, ahead, applied))

    # -- connections -----------------------------------------------------------------------------

    def connect(self) -> None:
        machine = self.rig.machine
        if len(machine.connections) < 8:
            self.connections += 1
            vhost = self.one(list(machine.vhosts) or ["/"])
            self.rig.apply(
                self.session(),
                c.ConnectionOpen(c.CONNECTION_OPEN, self.connections, vhost, "guest", "p"),
            )

    def open_channel(self) -> None:
        machine = self.rig.machine
        if not machine.connections:
            self.connect()
        elif len(machine.channels) < 16:
            session, conn = self.one(list(machine.connections))
            number = self.random.randint(1, 3)
            if number not in machine.connections[session, conn].channels:
                self.rig.apply(session, c.ChannelOpen(c.CHANNEL_OPEN, conn, number))

    def close_connection(self) -> None:
        if self.rig.machine.connections:
            session, conn = self.one(list(self.rig.machine.connections))
            self.rig.apply(session, c.ConnectionClose(c.CONNECTION_CLOSE, conn))

    def close_channel(self) -> None:
        self.on_channel(lambda _at, conn, chan: c.ChannelClose(c.CHANNEL_CLOSE, conn, chan))

    # -- queues and exchanges --------------------------------------------------------------------

    def declare(self) -> None:
        """Declare a queue, or sometimes an exchange."""
        durable, exclusive, auto_delete = self.chance(0.6), self.chance(0.2), self.chance(0.1)
        if self.chance(0.25):
            kind, name = self.one(("direct", "fanout", "topic", "headers")), self.one(EXCHANGES)
            internal = self.chance(0.2)
            self.on_channel(
                lambda _at, conn, chan: c.ExchangeDeclare(
                    c.EXCHANGE_DECLARE, conn, chan, name, kind, False, durable, auto_delete,
                    internal, False, {},
                )
            )  # fmt: skip
            return
        arguments = self.some(QUEUE_ARGUMENTS, 0.2)
        if self.chance(0.15) and "x-max-priority" not in arguments:
            arguments |= {"qpid.group_header_key": "g"}
            arguments |= self.one(({"qpid.shared_msg_group": True}, {}))
        self.on_channel(
            lambda _at, conn, chan: c.QueueDeclare(
                c.QUEUE_DECLARE, conn, chan, self.one(QUEUES), False, durable, exclusive,
                auto_delete, False, arguments,
            )
        )  # fmt: skip

    def bind(self) -> None:
        key = self.one((*KEYS, *QUEUES))
        if self.chance(0.25):
            self.on_channel(
                lambda at, conn, chan: c.ExchangeBind(
                    c.EXCHANGE_BIND, conn, chan, self.exchange(at), self.exchange(at), key, False,
                    {},
                )
            )  # fmt: skip
            return
        self.on_channel(
            lambda at, conn, chan: c.QueueBind(
                c.QUEUE_BIND, conn, chan, self.queue(at), self.exchange(at), key, False, {}
            )
        )

    def unbind(self) -> None:
        key = self.one((*KEYS, *QUEUES))
        self.on_channel(
            lambda at, conn, chan: c.QueueUnbind(
                c.QUEUE_UNBIND, conn, chan, self.queue(at), self.exchange(at), key, False, {}
            )
        )

    def delete(self) -> None:
        """Delete a queue or an exchange, with contents and bindings."""
        if self.chance(0.5):
            name = self.one(EXCHANGES)
            self.on_channel(
                lambda _at, conn, chan: c.ExchangeDelete(
                    c.EXCHANGE_DELETE, conn, chan, name, False, False
                )
            )
            return
        self.on_channel(
            lambda at, conn, chan: c.QueueDelete(
                c.QUEUE_DELETE, conn, chan, self.queue(at), False, False, False
            )
        )

    def purge(self) -> None:
        self.on_channel(
            lambda at, conn, chan: c.QueuePurge(c.QUEUE_PURGE, conn, chan, self.queue(at), False)
        )

    # -- messages --------------------------------------------------------------------------------

    def publish(self) -> None:
        """A few messages on one channel, some of which expire soon."""
        for _ in range(self.random.randint(1, 6)):
            self.on_channel(self.message)

    def message(self, at: Channel, conn: int, chan: int) -> Command:
        properties = EMPTY
        if self.chance(0.25):
            expiration = str(self.one((1, 100, 400, 1000))).encode()
            properties = b"\x01\x00" + bytes([len(expiration)]) + expiration
        if self.chance(0.5):
            properties = with_header(properties, "g", self.random.randint(1, 3))
        exchange = self.one(("", self.exchange(at)))
        key = self.one((*KEYS, *6 * (self.queue(at),)))
        return c.Publish(
            c.PUBLISH, conn, chan, self.one((0, 1)), exchange, key, self.one((0, c.PERSISTENT)),
            properties, b"x" * self.random.randint(0, 5),
        )  # fmt: skip

    def consume(self) -> None:
        no_ack, exclusive = self.chance(0.3), self.chance(0.02)
        arguments: Table = {"x-priority": self.one((0, 5))} if self.chance(0.2) else {}
        prefetch, tag = self.one((0, 0, 2, 5)), f"t{self.rig.position}"
        self.on_channel(
            lambda at, conn, chan: c.Consume(
                c.CONSUME, conn, chan, self.queue(at), tag, False, no_ack, exclusive, False,
                arguments, prefetch,
            )
        )  # fmt: skip

    def cancel(self) -> None:
        self.on_channel(
            lambda at, conn, chan: c.Cancel(
                c.CANCEL, conn, chan, self.one([*at.consumers, "none"]), False
            )
        )

    def get(self) -> None:
        no_ack = self.chance(0.3)
        self.on_channel(lambda at, conn, chan: c.Get(c.GET, conn, chan, self.queue(at), no_ack))

    def qos(self) -> None:
        prefetch = self.one((0, 1, 4))
        self.on_channel(lambda _at, conn, chan: c.Qos(c.QOS, conn, chan, prefetch, True))

    def settle(self) -> None:
        """Acknowledge or return what a channel holds, or let it expire."""
        self.on_channel(self.settlement)

    def settlement(self, at: Channel, conn: int, chan: int) -> Command:
        tag = self.one(list(at.unacked)) if at.unacked else 1
        chance = self.random.random()
        if chance < 0.3:
            return c.Ack(c.ACK, conn, chan, tag, self.chance(0.4))
        if chance < 0.7 or not at.unsent:
            return c.Nack(c.NACK, conn, chan, tag, self.chance(0.5), self.chance(0.7))
        if chance < 0.8:
            return c.Recover(c.RECOVER, conn, chan, True)
        return c.Sent(c.SENT, conn, chan, self.one(list(at.unsent)))


@pytest.mark.turns(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_members_agree_wherever_a_slice_ends(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """G10: also a member that received the state during such work; and the work ends."""
    for limit, value in LIMITS.items():
        monkeypatch.setattr(limit, value)
    clients = Clients(seed)
    sliced = 0
    for _ in range(STEPS):
        clients.step()
        sliced += goes_on(clients.rig.machine)
    assert sliced, "nothing was sliced"
    assert clients.settled()
    machine = clients.rig.machine
    for name in MEMBERS:
        assert list(clients.rig.machines[name].snapshot()) == list(machine.snapshot())
