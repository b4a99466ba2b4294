"""Runs of publishes, deliveries and acks give the same states, replies and moves as single
commands.
"""

import random
from collections.abc import Callable
from dataclasses import astuple, fields

import pytest

from broker.machine import commands as c
from broker.machine.command_codec import pack_blob
from broker.machine.commands import Command, Table
from broker.machine.digest import bytes_hash
from broker.machine.machine import Machine
from broker.machine.move_log import ACKED
from broker.machine.publishing.runs import apply_acks, apply_publishes
from broker.machine.queueing.enqueue import RUN_TRAITS
from broker.machine.queueing.settlement import release, release_all
from broker.machine.requests.properties import with_header
from broker.machine.state import Queue, rehash
from broker.machine.tally import Tally
from broker.machine.version import MACHINE_VERSION
from broker.replication.chain import History
from broker.replication.replica import ExecutionFailed, Item, Replica
from tests.support.three_machines import Rig
from vsync.types import RingId

QUEUES: dict[str, Table] = {
    "plain": {},
    "other": {},
    "short": {"x-max-length": 7},
    "small": {"x-max-length-bytes": 40, "x-overflow": "reject-publish"},
    "mortal": {"x-message-ttl": 5},
    "ranked": {"x-max-priority": 3},
    "single": {"x-single-active-consumer": True},
    "dead": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "plain", "x-max-length": 3},
    "once": {"x-deduplication-window-size": 5},
}
RING = RingId(1, "a", 1)
BLOBS = 120


def opening(machine: Machine) -> list[Command]:
    members = tuple(c.ActiveMember(name, 1, True) for name in "ab")
    machine.apply(1, 0, 0, c.Activate(c.ACTIVATE, 1, members, False, (), "id", MACHINE_VERSION))
    commands: list[Command] = [
        c.ConnectionOpen(c.CONNECTION_OPEN, conn, "/", "guest", "host:1") for conn in (1, 2)
    ]
    commands += [c.ChannelOpen(c.CHANNEL_OPEN, conn, chan) for conn in (1, 2) for chan in (1, 2)]
    for name, arguments in QUEUES.items():
        declare = c.QueueDeclare(
            c.QUEUE_DECLARE, 1, 1, name, False, True, False, False, False, arguments
        )
        commands.append(declare)
    for name in ("plain", "other"):
        bind = c.QueueBind(c.QUEUE_BIND, 1, 1, name, "amq.fanout", "", False, {})
        commands.append(bind)
    bind = c.QueueBind(c.QUEUE_BIND, 1, 1, "plain", "amq.direct", "key", False, {})
    return [*commands, bind]


def blob(rng: random.Random, number: int, machine: Machine, session: int) -> list[Command]:
    """Publishes and acks in a row, with commands that add or take credit before, between and
    after."""
    commands: list[Command] = []
    for _ in range(rng.randrange(1, 5)):
        if rng.random() < 0.3:
            commands += acks(rng, machine, session)
        else:
            commands += rng.choice((publishes, publishes, others))(rng, number)
    return commands or others(rng, number)


def acks(rng: random.Random, machine: Machine, session: int) -> list[Command]:
    """Acks of messages that a channel holds, mostly in order, sometimes of one that it does not
    hold."""
    commands: list[Command] = []
    for at in rng.sample([(1, 1), (1, 2), (2, 1), (2, 2)], rng.randrange(1, 4)):
        channel = machine.channels.get((session, *at))
        tags = list(channel.unacked) if channel is not None else []
        tags = [tag for tag in tags if rng.random() < 0.8][: rng.randrange(20)]
        if rng.random() < 0.1:
            rng.shuffle(tags)
        if rng.random() < 0.03:
            tags += [rng.choice((0, 1, 1 << 40))]
        often = rng.choice((0.0, 0.2, 1.0))
        commands += [c.Ack(c.ACK, *at, tag, rng.random() < often) for tag in tags]
    return commands


def publishes(rng: random.Random, number: int) -> list[Command]:
    at = (rng.choice((1, 2)), rng.choice((1, 2)))
    address = rng.choice([*[("", name) for name in QUEUES], *TO_EXCHANGES])
    flags = rng.choice((0, c.PERSISTENT, c.PERSISTENT, c.PERSISTENT | c.MANDATORY))
    confirms = rng.random() < 0.7
    commands: list[Command] = []
    for place in range(rng.randrange(1, 12)):
        if rng.random() < 0.05:
            confirms = not confirms
        properties = rng.choice(PROPERTIES) if rng.random() < 0.2 else b""
        body = bytes(rng.randrange(12))
        no = 100 * number + place + 1 if confirms else 0
        commands.append(c.Publish(c.PUBLISH, *at, no, *address, flags, properties, body))
    return commands


TO_EXCHANGES = (("amq.fanout", ""), ("amq.direct", "key"), ("amq.direct", "nothing"), ("", "none"))
PROPERTIES = (
    b"\x00\x00",
    b"\x01\x00\x019",  # expires
    b"\x01\x00\x01x",  # an invalid expiration: an error
    b"\x08\x00\x02",  # a priority
    with_header(b"\0\0", "x-deduplication-id", "one"),
    with_header(b"\0\0", "CC", ("other",)),
)


def others(rng: random.Random, number: int) -> list[Command]:
    at = (rng.choice((1, 2)), rng.choice((1, 2)))
    name, no_ack = rng.choice(tuple(QUEUES)), rng.random() < 0.3
    choices: list[list[Command]] = [
        [c.Ack(c.ACK, *at, 0, True)],
        [c.Nack(c.NACK, *at, 0, True, True)],
        [c.Sent(c.SENT, *at, 1 << 30)],
        [c.Qos(c.QOS, *at, rng.choice((0, 3, 8)), True)],
        [c.Consume(c.CONSUME, *at, name, f"t{number}", False, no_ack, False, False, {},
                   rng.choice((0, 1, 4, 20)))],
        [c.Cancel(c.CANCEL, *at, f"t{number - rng.randrange(1, 9)}", True)],
        [c.QueuePurge(c.QUEUE_PURGE, *at, name, True)],
        [c.ChannelClose(c.CHANNEL_CLOSE, *at), c.ChannelOpen(c.CHANNEL_OPEN, *at)],
        [c.Tick(c.TICK, number, number, number)],
    ]  # fmt: skip
    weights = (9, 2, 4, 1, 4, 2, 1, 1, 1)
    return rng.choices(choices, weights)[0]


def reopened(machine: Machine, session: int) -> list[Command]:
    """Channels closed by an error."""
    commands: list[Command] = []
    for conn in (1, 2):
        if (session, conn) not in machine.connections:
            commands.append(c.ConnectionOpen(c.CONNECTION_OPEN, conn, "/", "guest", "host:1"))
        commands += [
            c.ChannelOpen(c.CHANNEL_OPEN, conn, chan)
            for chan in (1, 2)
            if (session, conn, chan) not in machine.channels
        ]
    return commands


def tallies(machine: Machine) -> list[object]:
    vhost = machine.vhosts["/"]
    counted: list[Tally] = [queue.tally for queue in vhost.queues.values()]
    counted += [exchange.tally for exchange in vhost.exchanges.values()]
    counted += [channel.tally for channel in machine.channels.values()]
    counted += [totals.messages for totals in machine.totals.values()]
    return [astuple(tally) for tally in counted]


def begun(local: str) -> tuple[Machine, int, int]:
    machine = Machine(local)
    commands = opening(machine)
    session = machine.sessions["a"].session
    for position, command in enumerate(commands, 2):
        assert machine.apply(position, session, 0, command) == c.OK
    machine.take_effects()
    machine.take_moves()
    return machine, session, 1 + len(commands)


@pytest.mark.turns(15)
@pytest.mark.parametrize("local", ["a", "b"])
@pytest.mark.parametrize("seed", range(25))
def test_runs_change_nothing(seed: int, local: str) -> None:
    rng = random.Random(seed)
    machine, session, position = begun(local)
    replica = Replica(local, machine, History(1, position))
    one_by_one = Replica(local, begun(local)[0], History(1, position), in_runs=False)
    accepted = 0
    for number in range(1, BLOBS):
        commands = [*reopened(machine, session), *blob(rng, number, machine, session)]
        item = Item(1, RING, number, "a", pack_blob(session, number, number, commands))
        found = replica.execute(item)
        assert found[:-1] == one_by_one.execute(item)[:-1]  # outcomes and moves
        assert replica.effects == one_by_one.effects
        assert (replica.history, machine.root()) == (one_by_one.history, one_by_one.machine.root())
        replica.effects, one_by_one.effects = [], []
        accepted += memoryview(found.outcomes).cast("H").tolist().count(c.OK)
    machine.invariants()
    assert list(machine.snapshot()) == list(one_by_one.machine.snapshot())
    assert tallies(machine) == tallies(one_by_one.machine)
    assert accepted > 5 * BLOBS


def test_the_failing_command_of_a_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a poisonous command can be quarantined, and no other (G16)."""
    machine, session, position = begun("a")
    replica = Replica("a", machine, History(1, position))
    commands: list[Command] = [
        c.Publish(c.PUBLISH, 1, 1, no, "", "plain", 0, b"", b"%d" % no) for no in range(1, 9)
    ]
    monkeypatch.setattr("broker.machine.publishing.runs.bytes_hash", fails_at(b"5", bytes_hash))
    with pytest.raises(ExecutionFailed) as caught:
        replica.execute(Item(1, RING, 1, "a", pack_blob(session, 1, 1, commands)))
    assert caught.value.index == 4
    assert caught.value.position == position + 5


def fails_at(poison: bytes, hashing: Callable[[bytes], int]) -> Callable[[bytes], int]:
    def fails(body: bytes) -> int:
        if body == poison:
            raise MemoryError
        return hashing(body)

    return fails


def test_a_run_is_taken_where_one_is_possible() -> None:
    """Otherwise the tests above compare nothing. The first publish to a queue only looks it up."""
    machine, session, position = begun("a")
    consume = c.Consume(c.CONSUME, 1, 2, "other", "t", False, False, False, False, {}, 3)
    machine.apply(position + 1, session, 0, consume)
    taken: list[int] = []
    for name in ("plain", "other"):
        commands: list[Command] = [
            c.Publish(c.PUBLISH, 1, 1, no, "", name, 0, b"", b"x") for no in range(1, 9)
        ]
        taken.append(apply_publishes(machine, position + 2, session, 0, commands, 0))
        machine.apply(position + 2, session, 0, commands[0])
        taken.append(apply_publishes(machine, position + 3, session, 0, commands, 1))
        taken.append(apply_publishes(machine, position + 3, session, 0, commands, 1))
    assert taken == [0, 7, 7, 0, 2, 7]


def held(local: str, waits: bool) -> tuple[Machine, int, int]:
    """A machine whose consumer holds eight messages, with or without credit for more."""
    machine, session, position = begun(local)
    limit = 20 if waits else 8
    consume = c.Consume(c.CONSUME, 1, 2, "plain", "t", False, False, False, False, {}, limit)
    commands: list[Command] = [consume]
    commands += [c.Publish(c.PUBLISH, 1, 1, 0, "", "plain", 0, b"", b"%d" % n) for n in range(8)]
    for command in commands:
        position += 1
        assert machine.apply(position, session, 0, command) == c.OK
    machine.take_effects()
    machine.take_moves()
    return machine, session, position + 1


def test_acks_without_consequences_are_taken_as_a_run() -> None:
    def ack(tag: int, *, multiple: bool = False) -> Command:
        return c.Ack(c.ACK, 1, 2, tag, multiple)

    commands = [ack(2), ack(1), ack(5, multiple=True), ack(8), ack(8), ack(7)]
    machine, session, position = held("a", waits=True)
    assert apply_acks(machine, position, session, 0, commands, 0) == 4  # 8 is settled by then
    assert list(machine.channels[session, 1, 2].unacked) == [6, 7]
    assert machine.position == position + 3
    assert machine.root() == machine.recompute_root()
    machine.invariants()
    machine, session, position = held("a", waits=False)  # the first ack gives credit
    assert apply_acks(machine, position, session, 0, commands, 0) == 0
    assert machine.apply(position, session, 0, commands[0]) == c.OK
    assert apply_acks(machine, position + 1, session, 0, commands, 1) == 3
    commands = [ack(6), c.Ack(c.ACK, 1, 1, 7, False)]  # another channel, without credit
    assert apply_acks(machine, position + 4, session, 0, commands, 0) == 1
    assert apply_acks(machine, position + 5, session, 0, commands, 1) == 0


def test_acks_of_a_full_channel_are_no_run() -> None:
    """G14: its consumers share the credit, and one of another queue may be the next to get some."""
    rig = Rig()
    client = rig.client()
    client.qos(1)
    for queue in ("q", "r"):
        client.queue(queue)
        client.consume(queue, queue)
        client.publish(queue)
    assert rig.depth("r") == 1, "there is no credit left"
    ack = c.Ack(c.ACK, client.conn, 1, 1, False)
    taken = apply_acks(rig.machines["b"], rig.position + 1, client.session, 0, [ack, ack], 0)
    assert taken == 0


def test_the_failing_ack_of_a_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, session, position = held("a", waits=True)
    replica = Replica("a", machine, History(1, position - 1))
    commands: list[Command] = [c.Ack(c.ACK, 1, 2, tag, False) for tag in range(1, 9)]
    monkeypatch.setattr("broker.machine.state.body_hash", fails_at(b"5", bytes_hash))
    with pytest.raises(ExecutionFailed) as caught:
        replica.execute(Item(1, RING, 1, "a", pack_blob(session, 1, 1, commands)))
    assert caught.value.index == 5
    assert caught.value.position == position + 5


@pytest.mark.parametrize("name", [*QUEUES, "stream"])
def test_a_multiple_ack_equals_single_acks(name: str) -> None:
    """A multiple ack takes the fast way even without runs, so the two ways are compared here."""
    consume = c.Consume(c.CONSUME, 1, 2, name, "t", False, False, False, False, {}, 50)
    commands: list[Command] = []
    if name == "stream":
        arguments: Table = {"x-queue-type": "stream"}
        commands += [
            c.QueueDeclare(c.QUEUE_DECLARE, 1, 1, name, False, True, False, False, False, arguments)
        ]
    commands += [consume, consume._replace(queue="other", tag="u")]
    for n in range(9):
        body = b"%d" % n
        commands += [c.Publish(c.PUBLISH, 1, 1, 0, "", name if n % 3 else "other", 0, b"", body)]
    machines: list[Machine] = []
    for at_once in (True, False):
        machine, session, position = begun("a")
        for command in commands:
            position += 1
            assert machine.apply(position, session, 0, command) == c.OK
        machine.take_effects()
        machine.take_moves()
        channel = machine.channels[session, 1, 2]
        settled = [(position + tag // 4, tag) for tag in list(channel.unacked)[:7]]
        assert len(settled) == 7
        if at_once:
            release_all(machine, channel, channel.unacked, settled, ACKED)
        else:
            for machine.position, tag in settled:
                popped = channel.unacked.pop(tag)
                release(machine, channel, tag, popped, rehash(popped[2]), ACKED, tag)
        machine.invariants()
        machines.append(machine)
    one, other = machines
    assert one.take_moves()[0] == other.take_moves()[0]
    assert list(one.snapshot()) == list(other.snapshot())


INDIFFERENT = frozenset((
    # What the queue is, where it belongs, and who uses it.
    "vhost", "name", "number", "durable", "auto_delete", "owner", "arguments", "owner_key", "mark",
    "salt", "deleted", "bindings", "consumers", "service", "exclusive_consumer", "single_active",
    "consumer_timeout_ms", "policy", "operator_policy", "tally",
    # What runs update as single commands do, or what ends a run.
    "next_seq", "ready", "returned", "recovered_seq", "ready_sum", "ready_bytes", "unacked",
    "unacked_bytes", "returns", "returns_sum",
    # Used only when a message expires, is refused or comes back: not in a run.
    "timed", "expires_us", "used_us", "overflow", "delivery_limit", "is_quorum",
    "dead_letter_exchange", "dead_letter_key", "at_least_once", "letters", "letters_of", "stale",
    # Queues with these have a trait: a priority, or they may refuse a publish.
    "delays", "window", "last_values", "stream", "groups",
))  # fmt: skip


def test_every_attribute_of_a_queue_is_classified() -> None:
    """A new attribute of a queue either affects runs and is in RUN_TRAITS, or does not and is
    listed here."""
    attributes = {one.name for one in fields(Queue)}
    assert attributes == INDIFFERENT | set(RUN_TRAITS)
    assert not INDIFFERENT & set(RUN_TRAITS)
