"""The same history under different hash seeds: the same states and effects."""

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.machine import commands as c
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.machine.move_log import FLAG, MOVE, READ, REPLACED
from broker.machine.requests.properties import with_header
from broker.machine.version import MACHINE_VERSION

NAMES = ("alpha", "beta", "gamma", "delta")
TYPES = dict(zip(NAMES, ("topic", "topic", "x-modulus-hash", "x-random"), strict=True))
LINK: c.Table = {"x-max-hops": 2, "x-downstream-name": "beta"}
LATEST, LAST_KEY = "latest", "qpid.last_value_queue_key"
GROUPS: dict[str, c.Table] = {
    "shared groups": {"qpid.group_header_key": "key", "qpid.shared_msg_group": True},
    "kept groups": {"qpid.group_header_key": "key"},
}
BROWSE: c.Table = {"x-filter-no-consume": True}
ROOT = Path(__file__).resolve().parents[2]


def numbered(producer: str, number: int) -> bytes:
    """Properties of a message that its producer numbered."""
    properties = with_header(b"\0\0", "x-producer-id", producer)
    return with_header(properties, "x-sequence", number)


def keyed(key: str) -> bytes:
    """Properties of a message that replaces an older one, or belongs to a group."""
    return with_header(b"\0\0", "key", key)


def history(seed: int, count: int) -> Iterator[Command]:
    """A random history, most of which makes sense."""
    rng = random.Random(seed)
    for number in range(count):
        conn, chan = rng.choice((1, 2)), rng.choice((1, 2))
        name, other = rng.choice(NAMES), rng.choice(NAMES)
        at = (conn, chan)
        yes, of = rng.random() < 0.5, rng.choice([*GROUPS])
        header: c.Table = {other: rng.randrange(3), name: "x"}
        choices: list[Command] = [
            c.QueueDeclare(
                c.QUEUE_DECLARE, *at, name, False, True, False, False, False, {"x-max-length": 9}
            ),
            c.ExchangeDeclare(
                c.EXCHANGE_DECLARE,
                *at,
                name,
                rng.choice((TYPES[name],) * 9 + ("topic", "x-federation-upstream")),
                False,
                True,
                False,
                False,
                False,
                {"alternate-exchange": other, "zeta": 1, "eta": 2, **LINK},
            ),
            c.QueueBind(c.QUEUE_BIND, *at, name, other, f"{name}.#", False, header),
            c.ExchangeBind(c.EXCHANGE_BIND, *at, name, other, "#", False, {}),
            c.Publish(c.PUBLISH, *at, 1, other, f"{name}.x", 4, b"", name.encode()),
            c.Publish(c.PUBLISH, *at, 1, "", name, 5, b"\x01\x00\x019", other.encode()),
            c.Publish(c.PUBLISH, *at, 1, "", name, 4, numbered(name, number), b"x"),
            c.Consume(c.CONSUME, *at, name, f"t{number}", False, yes, False, False, {}, 3),
            c.Ack(c.ACK, *at, 0, True),
            c.Nack(c.NACK, *at, 0, True, True),
            c.Get(c.GET, *at, name, False),
            c.Sent(c.SENT, *at, 1 << 30),
            c.ChannelOpen(c.CHANNEL_OPEN, *at),
            c.BodyPart(c.BODY_PART, *at, name.encode()),
            c.Publish(c.PUBLISH, *at, 1, "", name, 4 | c.IN_PARTS, b"", b"rest"),
            c.Tick(c.TICK, rng.randrange(1 << 20), rng.randrange(1 << 20), number),
            c.Promote(c.PROMOTE, 1),
            c.Demote(c.DEMOTE, 1),
            c.QueueDeclare(
                c.QUEUE_DECLARE, *at, LATEST, False, True, False, False, False, {LAST_KEY: "key"}
            ),
            c.Publish(c.PUBLISH, *at, 1, "", LATEST, 4, keyed(name), other.encode()),
            c.Consume(c.CONSUME, *at, LATEST, f"t{number}", False, yes, False, False, {}, 2),
            c.Consume(c.CONSUME, *at, LATEST, f"b{number}", False, yes, False, False, BROWSE, 3),
            c.Get(c.GET, *at, LATEST, False),
            c.QueueDeclare(c.QUEUE_DECLARE, *at, of, False, True, False, False, False, GROUPS[of]),
            c.Publish(c.PUBLISH, *at, 1, "", of, 4, keyed(name), other.encode()),
            c.Consume(c.CONSUME, *at, of, f"g{number}", False, yes, False, False, {}, 2),
        ]
        weights = (
            *(3, 3, 5, 5, 20, 20, 10, 5, 5, 5, 5, 5, 0.2, 3, 3, 1, 0.1, 0.1),
            *(5, 20, 1, 3, 5),
            *(5, 20, 5),
        )
        yield rng.choices(choices, weights)[0]


class Run:
    """A machine with a history, and a client that reopens what an error closed."""

    def __init__(self, seed: int) -> None:
        self.seen = hashlib.sha256()  # of every outcome, root, effect and move
        self.outcomes: Counter[int] = Counter()
        self.moves: Counter[int] = Counter()  # by op
        self.machine = Machine("a")
        self.position = 0
        members = tuple(c.ActiveMember(name, 1, True) for name in "ab")
        self.apply(0, c.Activate(c.ACTIVATE, 1, members, False, (), "id", MACHINE_VERSION))
        session = self.machine.sessions["a"].session
        for command in history(seed, 1500):
            if command[0] < c.ACTIVATE:
                self.open(session, *command[1:3])
            self.apply(session, command)
        self.machine.invariants()

    def open(self, session: int, conn: int, chan: int) -> None:
        if (session, conn) not in self.machine.connections:
            opening = c.ConnectionOpen(c.CONNECTION_OPEN, conn, "/", "guest", "host:1")
            self.apply(session, opening)
        if (session, conn, chan) not in self.machine.channels:
            self.apply(session, c.ChannelOpen(c.CHANNEL_OPEN, conn, chan))

    def apply(self, session: int, command: Command) -> None:
        self.position += 1
        outcome = self.machine.apply(self.position, session, self.position, command)
        effects, moves = self.machine.take_effects(), self.machine.take_moves()[0]
        self.seen.update(repr((outcome, self.machine.root(), effects)).encode() + moves)
        self.outcomes[outcome] += 1
        self.moves.update(op for op, *_ in MOVE.iter_unpack(moves))


def run(seed: int) -> str:
    """A hash of everything that happens, and the final snapshot."""
    done = Run(seed)
    for chunk in done.machine.snapshot():
        done.seen.update(chunk)
    return done.seen.hexdigest()


@pytest.mark.parametrize("seed", range(3))
def test_the_histories_move_messages(seed: int) -> None:
    """Most commands find an open channel, and their effects differ."""
    done = Run(seed)
    assert done.outcomes[c.IGNORED] < 0.05 * done.position
    errors = sum(n for outcome, n in done.outcomes.items() if outcome >= 300)
    assert errors < 0.2 * done.position
    assert sum(done.moves.values()) > done.position
    assert len(done.moves) > 10
    assert done.moves[REPLACED] + done.moves[REPLACED | FLAG] > 5
    assert done.moves[READ] > 5


@pytest.mark.parametrize("seed", range(3))
def test_hash_seeds_do_not_matter(seed: int) -> None:
    printed = set()
    for hash_seed in ("1", "2"):
        program = f"from tests.properties.test_machine_determinism import run; print(run({seed}))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        printed.add(done.stdout.strip())
    assert printed == {run(seed)}
