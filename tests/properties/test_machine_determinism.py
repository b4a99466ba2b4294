"""The same history in processes that hash strings differently: the same states and words."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from broker.machine import commands as c
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.machine.queueing.properties import with_header
from broker.machine.version import MACHINE_VERSION

NAMES = ("alpha", "beta", "gamma", "delta")
ROOT = Path(__file__).resolve().parents[2]


def numbered(producer: str, number: int) -> bytes:
    """Properties of a message that its producer numbered."""
    properties = with_header(b"\0\0", "x-producer-id", producer)
    return with_header(properties, "x-sequence", number)


def history(seed: int, count: int) -> list[Command]:
    """Whatever comes to mind: most of it makes sense."""
    rng = random.Random(seed)
    commands: list[Command] = []
    for conn in (1, 2):
        commands.append(c.ConnectionOpen(c.CONNECTION_OPEN, conn, "/", "guest", "host:1"))
        commands += [c.ChannelOpen(c.CHANNEL_OPEN, conn, chan) for chan in (1, 2)]
    for _ in range(count):
        conn, chan = rng.choice((1, 2)), rng.choice((1, 2))
        name, other = rng.choice(NAMES), rng.choice(NAMES)
        at = (conn, chan)
        yes = rng.random() < 0.5
        header: c.Table = {other: rng.randrange(3), name: "x"}
        choices: list[Command] = [
            c.QueueDeclare(
                c.QUEUE_DECLARE, *at, name, False, True, False, False, False, {"x-max-length": 9}
            ),
            c.ExchangeDeclare(
                c.EXCHANGE_DECLARE,
                *at,
                name,
                rng.choice(("topic", "topic", "x-modulus-hash", "x-random")),
                False,
                True,
                False,
                False,
                False,
                {"alternate-exchange": other, "zeta": 1, "eta": 2},
            ),
            c.QueueBind(c.QUEUE_BIND, *at, name, other, f"{name}.#", False, header),
            c.ExchangeBind(c.EXCHANGE_BIND, *at, name, other, "#", False, {}),
            c.Publish(c.PUBLISH, *at, 1, other, f"{name}.x", 4, b"", name.encode()),
            c.Publish(c.PUBLISH, *at, 1, "", name, 5, b"\x01\x00\x019", other.encode()),
            c.Publish(c.PUBLISH, *at, 1, "", name, 4, numbered(name, len(commands)), b"x"),
            c.Consume(c.CONSUME, *at, name, name + other, False, yes, False, False, {}, 3),
            c.Ack(c.ACK, *at, 0, True),
            c.Nack(c.NACK, *at, 0, True, True),
            c.Get(c.GET, *at, name, False),
            c.Sent(c.SENT, *at, 1 << 30),
            c.ChannelOpen(c.CHANNEL_OPEN, *at),
            c.BodyPart(c.BODY_PART, *at, name.encode()),
            c.Publish(c.PUBLISH, *at, 1, "", name, 4 | c.IN_PARTS, b"", b"rest"),
            c.Tick(c.TICK, rng.randrange(1 << 20), rng.randrange(1 << 20)),
        ]
        weights = (3, 3, 5, 5, 20, 20, 10, 5, 5, 5, 5, 5, 0.2, 3, 3, 1)
        commands.append(rng.choices(choices, weights)[0])
        if len(commands) % 200 == 0:
            commands.append(c.ConnectionOpen(c.CONNECTION_OPEN, conn, "/", "guest", "host:1"))
            commands.append(c.ChannelOpen(c.CHANNEL_OPEN, *at))
    return commands


def run(seed: int) -> str:
    """A hash over every outcome, root, effect and move, and the final snapshot."""
    seen = hashlib.sha256()
    machine = Machine("a")
    members = tuple(c.ActiveMember(name, 1, True) for name in "ab")
    machine.apply(1, 0, 0, c.Activate(c.ACTIVATE, 1, members, False, (), "id", MACHINE_VERSION))
    session = machine.sessions["a"].session
    for position, command in enumerate(history(seed, 1500), 2):
        outcome = machine.apply(position, session, position, command)
        seen.update(repr((outcome, machine.root(), machine.take_effects())).encode())
        seen.update(machine.take_moves()[0])
    machine.invariants()
    for chunk in machine.snapshot():
        seen.update(chunk)
    return seen.hexdigest()


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
