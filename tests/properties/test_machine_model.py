"""The machine against the simple model, on generated histories.

After every command: the model's outcome and state, legal deliveries, invariants, and equal roots at
three members. And at some point of every history: a snapshot whose machine continues alike.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from broker.machine import commands as c
from broker.machine.commands import Command
from broker.machine.effects import DeliverEffect, Effect, GetEmpty, GetOk
from broker.machine.machine import Machine
from broker.machine.move_log import spelled_out
from broker.machine.requests.properties import with_header
from broker.machine.state import BODY
from broker.machine.version import MACHINE_VERSION
from tests.properties.models.machine_model import Chan, Model, ModelQueue, group_of, key_of
from tests.support.move_ledger import Ledger

GROUPED = ("shared", "kept")
QUEUES = ("plain", "short", "mine", "auto", *GROUPED, "last", "stream")
SHORT_MAX = 2
STREAM_BYTES_MAX = 20
VALUED = (b"\x00\x00", with_header(b"\x00\x00", "x-stream-filter-value", "persistent"))
ARGUMENTS: dict[str, c.Table] = {
    "short": {"x-max-length": SHORT_MAX},
    "last": {"qpid.last_value_queue": 1},
    "shared": {"qpid.group_header_key": "group", "qpid.shared_msg_group": True},
    "kept": {"qpid.group_header_key": "group"},
    "stream": {"x-queue-type": "stream", "x-max-length-bytes": STREAM_BYTES_MAX},
}
PART = b"part+"
PLACES = [("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("b", 1, 1)]


class Op(NamedTuple):
    """A client's action; its verb gives `n` and the flags their meaning."""

    verb: str
    place: tuple[str, int, int]
    queue: str
    n: int
    one: bool
    two: bool


VERBS = (
    ["publish"] * 8
    + ["part"] * 2
    + ["ack", "nack", "get", "consume", "sent"] * 5
    + ["fanout", "qos", "cancel", "recover", "commit", "declare", "bind"] * 2
    + ["close channel", "close", "delete", "purge", "member lost", "cold", "restore"]
    + ["promote", "promote", "demote"]
)


OF_GROUPS = (
    ["publish"] * 6
    + ["consume", "ack"] * 4
    + ["nack", "get", "cancel", "restore"]
    + ["sent", "recover", "close channel", "member lost", "purge", "commit"]
)
"""More of what a group can come from one consumer to another by."""


def histories(
    places: list[tuple[str, int, int]], queues: tuple[str, ...], verbs: Sequence[str] = VERBS
) -> SearchStrategy[list[Op]]:
    """Histories of clients at these places that use these queues."""
    op = st.builds(
        Op,
        st.sampled_from(verbs),
        st.sampled_from(places),
        st.sampled_from(queues),
        st.integers(0, 6),
        st.booleans(),
        st.booleans(),
    )
    return st.lists(op, min_size=10, max_size=80)


# With all places and queues at once, two steps seldom meet at the same ones; so half of the
# histories use few of them.
OPS = st.one_of(
    histories(PLACES, QUEUES),
    histories(PLACES[:2], QUEUES[:2]),
    histories(PLACES[:1], QUEUES[:1]),
    histories(PLACES, QUEUES[:1]),
    histories(PLACES, QUEUES[-1:]),
    histories(PLACES, QUEUES[-2:-1]),
)


def begin(name: str, offset: str | int, wants: bool, browses: bool) -> tuple[bool, c.Table]:
    """Whether a stream's reader wants only messages with a value, and the consumer's arguments."""
    if name != "stream":
        return False, {"x-filter-no-consume": True} if browses else {}
    filtered: c.Table = {"x-stream-filter": ("persistent", "no other one")} if wants else {}
    return wants, {"x-stream-offset": offset, **filtered}


def new_queue(name: str, at: Chan) -> ModelQueue:
    """The queue of this name, declared on this channel."""
    return ModelQueue(
        at[:2] if name == "mine" else None,
        name == "auto",
        name != "short",
        SHORT_MAX if name == "short" else -1,
        stays=name == "stream",
        last=name == "last",
        grouped=name in GROUPED,
        keeps=name == "kept",
    )


def keyed(body: bytes, has_value: bool = False) -> bytes:
    """The properties of a message with this body, with or without a value to filter by."""
    properties = with_header(VALUED[has_value], "qpid.LVQ_key", key_of(body))
    group = group_of(body)
    return with_header(properties, "group", group) if group else properties


def publish_to(at: tuple[int, int], exchange: str, key: str, flags: int, body: bytes) -> c.Publish:
    properties = keyed(body, flags & c.PERSISTENT != 0)
    return c.Publish(c.PUBLISH, *at, 0, exchange, key, flags, properties, body)


def tx_publish(queue: str, body: bytes) -> c.TxPublish:
    return c.TxPublish("", queue, c.PERSISTENT, keyed(body, has_value=True), body)


class World:
    def __init__(self) -> None:
        self.machines = {name: Machine(name) for name in "abc"}
        self.model = Model(STREAM_BYTES_MAX)
        self.ledger = Ledger()
        self.position = 0
        self.bodies = 0
        self.queue = ""  # named by the latest command
        self.later: list[Callable[[], object]] = []  # the second half of the latest command
        self.activate(())
        for place in PLACES:
            self.reopen(place)
        for queue in QUEUES:
            self.run(Op("declare", PLACES[0], queue, 0, False, False))

    def apply(self, session: int, command: Command) -> int:
        self.position += 1
        outcomes = {m.apply(self.position, session, 0, command) for m in self.machines.values()}
        assert len(outcomes) == 1
        moves = {m.take_moves()[0] for m in self.machines.values()}
        assert len(moves) == 1  # the owner of the connections, and before and after a snapshot
        self.ledger.take(spelled_out(moves.pop()))
        self.ledger.agrees_with(self.machines["a"])
        return outcomes.pop()

    def activate(self, fresh: tuple[str, ...], cold: bool = False) -> None:
        members = tuple(c.ActiveMember(name, 1, name in fresh) for name in "abc")
        epoch = self.machines["a"].epoch + 1
        assert (
            self.apply(0, c.Activate(c.ACTIVATE, epoch, members, cold, (), "", MACHINE_VERSION))
            == c.OK
        )

    def next_body(self) -> bytes:
        self.bodies += 1
        return b"%d" % self.bodies

    def session(self, member: str) -> int:
        return self.machines["a"].sessions[member].session

    def reopen(self, place: tuple[str, int, int]) -> None:
        member, conn, chan = place
        session = self.session(member)
        opened = self.apply(session, c.ConnectionOpen(c.CONNECTION_OPEN, conn, "/", "", ""))
        assert opened == self.model.open((session, conn))
        at = (session, conn, chan)
        if at not in self.model.channels:
            self.expect(c.ChannelOpen(c.CHANNEL_OPEN, conn, chan), at, self.model.open_channel(at))

    def expect(self, command: Command, at: Chan, outcome: int) -> None:
        assert self.apply(at[0], command) == outcome, command
        self.judge(at)

    def judge(self, at: Chan) -> None:
        roots = {machine.root() for machine in self.machines.values()}
        assert len(roots) == 1
        effects: list[tuple[int, Effect]] = []
        for name, machine in self.machines.items():
            machine.invariants()
            session = machine.sessions[name].session
            effects += [(session, effect) for effect in machine.take_effects()]
        deliveries = [(s, e) for s, e in effects if isinstance(e, DeliverEffect | GetOk)]
        # The order between members is not visible: one of the pending deliveries must be legal.
        while deliveries:
            for at_most, (session, effect) in enumerate(deliveries):
                if self.is_head(session, effect):
                    self.model.watch(session, effect, self.queue)
                    del deliveries[at_most]
                    break
            else:
                if not self.later:
                    self.model.watch(*deliveries[0], self.queue)
                self.go_on()
        self.go_on()
        if any(isinstance(effect, GetEmpty) for _, effect in effects):
            queue = self.model.queues[self.queue]
            assert self.model.head(queue, None) < 0, "get of a queue that is not empty"
        self.model.judge()
        self.compare()

    def go_on(self) -> None:
        """Predict what the command does once the deliveries of its first part were seen."""
        later, self.later = self.later, []
        for step in later:
            step()

    def is_head(self, session: int, effect: DeliverEffect | GetOk) -> bool:
        channel = self.model.channels[session, effect.conn, effect.chan]
        if effect.delivery_tag != channel.next_tag or isinstance(effect, GetOk):
            return isinstance(effect, GetOk)
        consumer = channel.consumers[effect.consumer_tag]
        ready = consumer.queue.ready
        if consumer.queue.stays or consumer.browses:
            at = self.model.to_read(consumer)
            return at in ready and ready[at][0] == effect.body
        at = self.model.head(consumer.queue, consumer)
        return at in ready and ready[at][0] == effect.body

    def compare(self) -> None:
        machine = self.machines["c"]
        assert machine.active == self.model.active
        found = machine.vhosts["/"].queues
        assert list(found) == list(self.model.queues)
        for name, queue in self.model.queues.items():
            there = found[name]
            waiting = [(seq, message[BODY]) for seq, message in there.returned.items()]
            first = there.next_seq - len(there.ready)
            waiting += [(seq, m[BODY]) for seq, m in enumerate(there.ready, first)]
            expected = sorted(queue.ready.items())
            assert waiting == [
                (2 * seq + m[1] if queue.ranked else seq, m[0]) for seq, m in expected
            ]
        assert sorted(machine.channels) == sorted(self.model.channels)
        for at, channel in self.model.channels.items():
            held = {**machine.channels[at].unacked, **machine.channels[at].unsent}
            for tag, one in channel.held.items():
                _, seq, message, _, _ = held.pop(tag)
                place = 2 * one.seq if one.queue.ranked else one.seq
                assert (seq, message[BODY]) == (place, b"" if one.stays else one.message[0])
            assert not held

    def run(self, op: Op) -> None:
        verb, place, name, n, one, two = op
        self.queue = name
        session = self.session(place[0])
        _, conn, chan = place
        at = (session, conn, chan)
        if at not in self.model.channels and n:
            self.reopen(place)
        if verb == "restore":
            member = "abc"[n % 3]
            copy = Machine.restore(member, self.machines["c"].snapshot())
            assert list(copy.snapshot()) == list(self.machines["a"].snapshot())
            self.machines[member] = copy
        elif verb in ("member lost", "cold"):
            lost = ("a", "b", "c") if verb == "cold" else (place[0],)
            ended = [self.session(member) for member in lost]
            self.activate(lost, verb == "cold")
            self.model.end([key for key in self.model.connections if key[0] in ended])
            self.model.end_roles(lost)
            if verb == "cold":
                self.model.cold()
            self.judge(at)
        elif verb in ("promote", "demote"):
            epoch, member = self.machines["a"].epoch, place[0]
            if verb == "promote":
                self.expect(c.Promote(c.PROMOTE, epoch), at, self.model.promote(member))
            else:
                self.expect(c.Demote(c.DEMOTE, epoch), at, self.model.demote(member))
        elif verb == "close":
            known = (session, conn) in self.model.connections
            if known:
                self.model.end([(session, conn)])
            outcome = c.OK if known else c.IGNORED
            self.expect(c.ConnectionClose(c.CONNECTION_CLOSE, conn), at, outcome)
        else:
            if verb in ("get", "consume", "bind") and name not in self.model.queues and n:
                self.on_channel("declare", at, name, n, one, two)
            if n and at in self.model.channels:
                verb, n = self.without_mistake(verb, at, name, n)
            self.on_channel(verb, at, name, n, one, two)

    def without_mistake(self, verb: str, at: Chan, name: str, n: int) -> tuple[str, int]:
        """A mistake ends the channel: if most steps were mistakes, nothing would grow old."""
        channel = self.model.channels[at]
        if verb in ("ack", "nack", "commit", "sent"):
            tags = list(channel.held if verb == "sent" else channel.unacked())
            return (verb, tags[n % len(tags)]) if tags else ("publish", n)
        if verb == "consume" and f"{name}{at}" in channel.consumers:
            return "publish", n
        return verb, n

    def on_channel(self, verb: str, at: Chan, name: str, n: int, one: bool, two: bool) -> None:
        command, predict = self.command(verb, at, name, n, one, two)
        if at not in self.model.channels:
            self.expect(command, at, c.IGNORED)
            return
        queue = self.model.queues.get(name)
        if verb in ("get", "consume", "bind", "purge") and queue is None:
            self.expect(command, at, self.model.fail(at, 404))
            return
        locked = queue is not None and queue.owner not in (None, at[:2])
        if locked and verb in ("get", "consume", "bind", "purge", "declare", "delete"):
            self.expect(command, at, self.model.fail(at, 405))
            return
        if (name == "stream" and verb in ("get", "purge")) or self.cannot_read(at, command):
            outcome = 540 if verb in ("get", "purge") else 406 if n < 1 else 540
            if outcome == 540:
                self.model.end([at[:2]])
            else:
                self.model.fail(at, outcome)
            self.expect(command, at, outcome)
            return
        self.expect(command, at, predict())

    def cannot_read(self, at: Chan, command: Command) -> bool:
        """Whether it is a consumer that lacks what a stream requires."""
        if not isinstance(command, c.Consume) or command.queue != "stream":
            return False
        channel = self.model.channels[at]
        if command.tag in channel.consumers:
            return False
        return not command.prefetch or command.no_ack or channel.limit < 1 << 30

    def command(self, verb: str, at: Chan, name: str, n: int, one: bool, two: bool):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """The command, and what predicts its outcome if its channel and queue are valid."""
        model = self.model
        _, conn, chan = at
        tag = f"{name}{at}"
        no_ack = one and (two or name != "stream")
        offset = ("first", "last", "next", self.bodies - n)[n % 4]
        wants, reads = begin(name, offset, two > one, two)

        def publish(exchange: str) -> tuple[Command, object]:
            body, before = self.next_body(), model.take_parts(at)
            flags = (c.PERSISTENT if one else 0) | (c.IN_PARTS if before else 0)
            predict = partial(model.publish, exchange, name, before + body, one)
            return publish_to((conn, chan), exchange, name, flags, body), predict

        def settle(requeue: bool) -> int:
            tags = model.named(at, n, two)
            if tags is None:
                return model.fail(at, 406)
            model.settle(at, tags, requeue)
            return c.OK

        def declare() -> int:
            if name not in model.queues:
                model.queues[name] = new_queue(name, at)
            return c.OK

        def consume() -> int:
            channel = model.channels[at]
            if tag in channel.consumers:
                model.end([at[:2]])
                return 530
            limit = 1000 if no_ack else n or 2000
            channel.consumers[tag] = model.reader(name, no_ack, limit, offset, wants, two)
            return c.OK

        def cancel() -> int:
            if tag in model.channels[at].consumers:
                model.cancel(model.channels[at], tag)
            return c.OK

        def close_channel() -> int:
            model.end_channels([at])
            return c.OK

        def sent() -> int:
            held = model.channels[at].held
            for delivery in [t for t, h in held.items() if h.no_ack and t <= n]:
                del held[delivery]
            return c.OK

        def qos() -> int:
            model.channels[at].limit = n or 1 << 30
            return c.OK

        def recover() -> int:
            model.settle(at, model.channels[at].unacked(), True)
            return c.OK

        def bind() -> int:
            if name not in model.fanout:
                model.fanout = [q for q in model.queues if q in (*model.fanout, name)]
            return c.OK

        def delete() -> int:
            if name in model.queues:
                model.drop(name)
            return c.OK

        def purge() -> int:
            model.queues[name].ready.clear()
            return c.OK

        def commit() -> int:
            tags = model.named(at, n, two)
            if tags is None:
                return model.fail(at, 406)
            model.settle(at, tags, one)
            self.later.append(partial(model.publish, "", name, b"%d" % self.bodies, True))
            return c.OK

        if verb in ("publish", "fanout"):
            return publish("amq.fanout" if verb == "fanout" else "")
        if verb == "commit":
            self.bodies += 1
            publishes = (tx_publish(name, b"%d" % self.bodies),)
            action = c.TX_REQUEUE if one else c.TX_ACK
            acks = (c.TxSettle(n, two, action),)
            return c.TxCommit(c.TX_COMMIT, conn, chan, publishes, acks), commit
        arguments = ARGUMENTS.get(name, {})
        kinds = (name != "short", name == "mine", name == "auto")
        return {
            "ack": (c.Ack(c.ACK, conn, chan, n, two), lambda: settle(False)),
            "nack": (c.Nack(c.NACK, conn, chan, n, two, one), lambda: settle(one)),
            "get": (c.Get(c.GET, conn, chan, name, one), lambda: c.OK),
            "consume": (
                c.Consume(c.CONSUME, conn, chan, name, tag, False, no_ack, False, False, reads, n),
                consume,
            ),
            "sent": (c.Sent(c.SENT, conn, chan, n), sent),
            "part": (c.BodyPart(c.BODY_PART, conn, chan, PART), partial(model.add_part, at, PART)),
            "qos": (c.Qos(c.QOS, conn, chan, n, True), qos),
            "cancel": (c.Cancel(c.CANCEL, conn, chan, tag, False), cancel),
            "recover": (c.Recover(c.RECOVER, conn, chan, True), recover),
            "declare": (
                c.QueueDeclare(c.QUEUE_DECLARE, conn, chan, name, False, *kinds, False, arguments),
                declare,
            ),
            "bind": (
                c.QueueBind(c.QUEUE_BIND, conn, chan, name, "amq.fanout", "", False, {}),
                bind,
            ),
            "delete": (
                c.QueueDelete(c.QUEUE_DELETE, conn, chan, name, False, False, False),
                delete,
            ),
            "purge": (c.QueuePurge(c.QUEUE_PURGE, conn, chan, name, False), purge),
            "close channel": (c.ChannelClose(c.CHANNEL_CLOSE, conn, chan), close_channel),
        }[verb]


RETURNS_BEFORE_IT_PUBLISHES = [
    Op("publish", PLACES[0], "plain", 0, False, False),
    Op("consume", PLACES[0], "plain", 4, False, False),
    Op("commit", PLACES[0], "plain", 1, True, False),
]


@pytest.mark.slow
@given(st.one_of(*(histories(PLACES, (name,), OF_GROUPS) for name in GROUPED)))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_groups_go_where_the_model_says(ops: list[Op]) -> None:
    world = World()
    for op in ops:
        world.run(op)


@given(OPS)
@example(RETURNS_BEFORE_IT_PUBLISHES)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_machine_does_what_the_model_says(ops: list[Op]) -> None:
    world = World()
    for op in ops:
        world.run(op)
