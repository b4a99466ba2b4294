"""Publishes and deliveries in runs: the same states, words and moves as one at a time."""

import random
from collections.abc import Callable
from dataclasses import astuple

import pytest

from broker.machine import commands as c
from broker.machine.command_codec import pack_blob
from broker.machine.commands import Command, Table
from broker.machine.digest import body_hash
from broker.machine.machine import Machine
from broker.machine.publishing.runs import apply_run
from broker.machine.queueing.properties import with_header
from broker.machine.tally import Tally
from broker.machine.version import MACHINE_VERSION
from broker.replication.chain import History
from broker.replication.replica import ExecutionFailed, Item, Replica
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


def blob(rng: random.Random, number: int) -> list[Command]:
    """Some publishes in a row, and what makes or takes credit before, between and behind."""
    commands: list[Command] = []
    for _ in range(rng.randrange(1, 5)):
        commands += rng.choice((publishes, publishes, others))(rng, number)
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
    b"\x01\x00\x01x",  # an expiration that is none: an error
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
        [c.Tick(c.TICK, number, number)],
    ]  # fmt: skip
    weights = (9, 2, 4, 1, 4, 2, 1, 1, 1)
    return rng.choices(choices, weights)[0]


def reopened(machine: Machine, session: int) -> list[Command]:
    """What an error closed."""
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


@pytest.mark.parametrize("local", ["a", "b"])
@pytest.mark.parametrize("seed", range(25))
def test_runs_change_nothing(seed: int, local: str) -> None:
    rng = random.Random(seed)
    machine, session, position = begun(local)
    replica = Replica(local, machine, History(1, position))
    one_by_one = Replica(local, begun(local)[0], History(1, position), in_runs=False)
    accepted = 0
    for number in range(1, BLOBS):
        commands = [*reopened(machine, session), *blob(rng, number)]
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


def test_the_command_that_fails_in_a_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a poisonous message can be quarantined, and nothing else (G16)."""
    machine, session, position = begun("a")
    replica = Replica("a", machine, History(1, position))
    commands: list[Command] = [
        c.Publish(c.PUBLISH, 1, 1, no, "", "plain", 0, b"", b"%d" % no) for no in range(1, 9)
    ]
    monkeypatch.setattr("broker.machine.publishing.runs.body_hash", fails_at(b"5", body_hash))
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


def test_a_run_is_taken_where_there_is_one() -> None:
    """Else the tests above compare nothing.  The first one to a queue looks for it."""
    machine, session, position = begun("a")
    consume = c.Consume(c.CONSUME, 1, 2, "other", "t", False, False, False, False, {}, 3)
    machine.apply(position + 1, session, 0, consume)
    taken: list[int] = []
    for name in ("plain", "other"):
        commands: list[Command] = [
            c.Publish(c.PUBLISH, 1, 1, no, "", name, 0, b"", b"x") for no in range(1, 9)
        ]
        taken.append(apply_run(machine, position + 2, session, 0, commands, 0))
        machine.apply(position + 2, session, 0, commands[0])
        taken.append(apply_run(machine, position + 3, session, 0, commands, 1))
        taken.append(apply_run(machine, position + 3, session, 0, commands, 1))
    assert taken == [0, 7, 7, 0, 2, 7]
