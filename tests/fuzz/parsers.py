"""The other parsers of input from peers, clients or a disk: broken input raises their own error
only.

    python -m tests.fuzz.parsers --count 100000 --seed 1
    python -m tests.fuzz.parsers --target amqp --case 4711      # repeat one case

Beacons, hellos, greetings, transfer datagrams, AMQP connections, blobs of commands, member logs,
the moves in them, and management lines.  Each case takes a valid input, breaks it, and passes it
in; the permitted results of a parser are written beside it.  A case depends on seed, target and
number alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from struct import pack
from types import UnionType
from typing import NamedTuple, get_args, get_origin, get_type_hints
from zlib import crc32

from xxhash import xxh3_64_digest

from broker.amqp.connection import ServerConnection
from broker.amqp.handshake import Limits, ServerIdentity
from broker.durability.transfer_protocol import (
    Library,
    Offer,
    Receiver,
    Sender,
    Tag,
    Tail,
    decode,
    encode,
)
from broker.machine.command_codec import (
    BlobMalformed,
    pack_blob,
    unpack_blob,
)
from broker.machine.commands import CLASSES, PUBLISH, Command, Publish
from broker.machine.move_log import ACKED, BY_CLIENT, FLAG, MOVE, PASSED
from broker.memberlog import codec
from broker.memberlog.reader import LogError, read_segment
from broker.memberlog.records import Batch, Durable, Stop
from broker.memberlog.writer import MemberLogWriter
from broker.replication.chain import History
from tests.fuzz.frames import resident_mib
from tests.fuzz.mutate import mutate, mutate_packed
from tests.support.amqp_peer import method, opening, publish
from vsync.admin.protocol import QuerySession
from vsync.io.diagnosis import read_mechanism
from vsync.io.discovery import Announcement
from vsync.primary.door import Card, PrimaryDoor, read_card
from vsync.totem.config import RingConfig
from vsync.totem.membership.compatibility import Handshake, Hello, OpenDoor, settings_of
from vsync.types import Member
from vsync.wire.codec import WIRE_VERSION, Codec

A = Member("127.0.0.1:7001", 7, "127.0.0.1:7001")


class Target(NamedTuple):
    """A parser: valid inputs, how to break one, and a function that parses it and returns the
    result."""

    corpus: list[bytes]
    damage: Callable[[random.Random, bytes, bytes], bytes]
    feed: Callable[[random.Random, bytes], str]


def packed(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Break msgpack as a tree, or as bytes."""
    return mutate_packed(rng, data) if rng.random() < 0.5 else mutate(rng, data, other)


def resealed_end(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Break the data before the checksum, and correct the checksum."""
    body = mutate(rng, data[:-4], other)
    return body + pack("<I", crc32(body))


def resealed_head(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The same for a checksum in bytes 2 to 5, with the envelope or only the body broken."""
    keep = rng.choice((2, 24, 24 + data[22] + data[23]))
    out = data[:keep] + mutate(rng, data[keep:], other)
    if rng.random() < 0.3:
        at = 24 + data[22] + data[23]
        out = data[:at] + mutate_packed(rng, data[at:])
    return out[:2] + pack("<I", crc32(out[6:], crc32(out[:2]))) + out[6:]


def beacon(_: random.Random, data: bytes) -> str:
    received = Announcement.decode(data)
    return received if isinstance(received, str) else "read"


def hello(_: random.Random, data: bytes) -> str:
    config = RingConfig()
    codec = Codec(A._replace(name="me"), "prod", 32_768, b"sets")
    return Handshake(A._replace(name="me"), "prod", config, codec, OpenDoor()).on_hello(data, 1.0)[
        0
    ]


def card(_: random.Random, data: bytes) -> str:
    """Judge it at a member that has run, and at one that has not."""
    theirs = read_card(data)
    if theirs is None:
        return "none"
    for mine in (CARD, CARD._replace(ran=False)):
        door = PrimaryDoor(A, 3, (), transient=False, barred=lambda _: None)
        assert door.judges(mine, A._replace(name="you"), theirs).isprintable()
    return "read"


CARD = Card(True, False, False, 3, (3,), (), (("LIMIT", "9", True),), "c", 1, 9, ("a", "b=2"))


def greeting(_: random.Random, data: bytes) -> str:
    name = read_mechanism(data)
    assert len(name) <= 20
    return "named" if name else "none"


def transfer(rng: random.Random, data: bytes) -> str:
    """Both halves, in the middle of a transfer."""
    message = decode(b"T" + xxh3_64_digest(data) + data)
    if message is None:
        return "none"
    receiver = Receiver("id", A, History(1, 5, bytes(16)), 0, 0.0, lambda *_: None)
    if rng.random() < 0.8:
        receiver.on_message(Tag.TAIL, ("id", 9), 0.0)
    sender = Sender(lambda *_: None, Shelf(), lambda job, done: done(job(), None), lambda: 0.1)
    sender.on_message(A, Tag.ASK, ("id", None, 5))
    for _ in range(2):
        receiver.on_message(*message, 0.1)
        sender.on_message(A, *message)
        sender.pump(100_000)
    receiver.wake(1.0)
    sender.wake()
    assert sum(len(reader.queued) for reader in sender.readers.values()) == 0
    return message[0].name


class Shelf(Library):
    """A donor whose blocks all look alike."""

    def judge(self, key: str, point: History | None, beyond: int) -> Tail | Offer | None:
        return Tail(9) if point is not None else Offer(1, 3, 100, 1, 5, bytes(16), bytes(16))

    def read(self, key: str, stream: int, cursor: int) -> tuple[int, bytes]:
        return cursor + 1, b"x" * 10

    def close(self, key: str) -> None:
        pass


def amqp(rng: random.Random, data: bytes) -> str:
    """A whole conversation of a client, broken, in pieces."""
    connection = ServerConnection(lambda one: one.user, Limits(), ServerIdentity(), 0.0)
    at = 0
    while at < len(data):
        step = rng.choice((1, 7, 100, 4_096, 100_000))
        for event in connection.receive(data[at : at + step], 0.0):
            if type(event).__name__ == "OpenAsked":
                connection.accept_open()
        connection.take_output()
        at += step
    return connection.phase.value


def blob(_: random.Random, data: bytes) -> str:
    try:
        found = unpack_blob(data)
    except BlobMalformed as problem:
        return str(problem)[:30]
    return f"read {len(found.commands)}"


def log(_: random.Random, data: bytes) -> str:
    try:
        count = sum(1 for _ in read_segment(data, "fuzz"))
    except LogError as problem:
        return type(problem).__name__
    return f"read {count > 0}"


def told(_: random.Random, data: bytes) -> str:
    """The moves of a batch, behind the checksum."""
    try:
        found = codec.decode(data)[1]
    except codec.RecordMalformed as problem:
        return str(problem)[:30]
    if isinstance(found, Batch):
        assert not {PASSED, PASSED | FLAG} & {*found.moves[:: MOVE.size]}
    return f"read {type(found).__name__}"


def asking(rng: random.Random, data: bytes) -> str:
    session = QuerySession({"status": lambda _: {"status": "fine"}})
    out = b""
    for at in range(0, len(data), 50):
        out += session.data_received(data[at : at + 50])
        if session.closing:
            return "closed"
    return "answered" if out else "silent"


_VALUES: dict[type, object] = {
    int: 1, str: "name", bytes: b"body", bool: True, dict: {"x": 1}, tuple: (),
}  # fmt: skip


def dummy(kind: int, record: type[Command]) -> Command:
    """A command whose fields have their types, and little else."""
    hints = [*get_type_hints(record).values()][1:]
    kinds = [get_args(hint)[0] if get_origin(hint) is UnionType else hint for hint in hints]
    return record(kind, *(_VALUES[get_origin(one) or one] for one in kinds))  # type: ignore[arg-type]


def segment() -> bytes:
    """A member log of some records."""
    with tempfile.TemporaryDirectory() as folder:
        writer = MemberLogWriter(Path(folder), "prod", "", "a:1", 7, lambda: 123, 1 << 20)
        for position in range(1, 30):
            writer.append(Durable(position))
        writer.append(Stop("done", 29, bytes(16)))
        writer.close()
        (path,) = Path(folder).iterdir()
        return path.read_bytes()


def batches() -> list[bytes]:
    """Batches of a log with few moves, stored as they are, and with many."""
    rows = MOVE.pack(BY_CLIENT, 2, 1, 7, 9, 5) + MOVE.pack(PASSED | FLAG, 2, 1, 0, 9, 6)
    rows += MOVE.pack(ACKED, 2, 1, 0, 9, 1)
    hashed = bytes(16)
    return [
        codec.encode(
            9,
            Batch(1, 1, 1, 1, 1, "a", 1, 1, 5, b"\x0e", b"\0\0", hashed, hashed, 1, hashed, moves),
        )
        for moves in (b"", rows, 9 * rows)
    ]


def targets() -> dict[str, Target]:
    commands = [dummy(kind, record) for kind, record in CLASSES.items()]
    run = [Publish(PUBLISH, 1, 1, no, "", "q", 4, b"", b"body") for no in range(1, 5)]
    conversation = opening() + method(1, "channel.open") + publish(1, "", "q", b"body" * 50)
    calls = method(1, "queue.declare", "q", False, True, False, False, False, {"x": (1, {"y": 2})})
    received = [
        encode(Tag.ASK, "id", (1, 5, bytes(16)), 5), encode(Tag.ASK, "id", None, 5),
        encode(Tag.TAIL, "id", 9), encode(Tag.CHECKPOINT, "id", 1, 3, 100, 1, 5, bytes(16), b"o"),
        encode(Tag.GET, "id", 0, 5, (0, 1)), encode(Tag.PIECE, "id", 0, 5, 0, 1, 6, bytes(100)),
        encode(Tag.DONE, "id"), encode(Tag.REFUSE, "id", "why"),
    ]  # fmt: skip
    said_hello = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE" + bytes(47)
    announced = Announcement(b"x" * 8, A.name, A.address).encode()
    word = Hello(A, WIRE_VERSION, "prod", settings_of(RingConfig())).encode(asks=True)
    return {
        "beacon": Target([announced], resealed_end, beacon),
        "hello": Target([word], resealed_head, hello),
        "card": Target([CARD.encode()], packed, card),
        "greeting": Target([said_hello], mutate, greeting),
        "transfer": Target([one[9:] for one in received], packed, transfer),
        "amqp": Target([conversation, conversation + calls], mutate, amqp),
        "blob": Target(
            [pack_blob(1, 1, 1, [one]) for one in commands] + [pack_blob(1, 2, 3, commands)]
            + [pack_blob(1, 2, 3, [*run, commands[0], *run])] * 8,
            packed, blob,
        ),
        "log": Target([segment()], mutate, log),
        "told": Target(batches(), packed, told),
        "asking": Target([b'{"op":"status"}\n' * 3, b'{"op": ["\\u00e9", 1e9]}\n'], mutate, asking),
    }  # fmt: skip


class Failure(Exception):
    """Something that must never happen did."""


def case(name: str, target: Target, seed: int, number: int) -> str:
    """Run one broken input.  Raises Failure."""
    rng = random.Random(f"{seed}:{name}:{number}")
    data = target.damage(rng, rng.choice(target.corpus), rng.choice(target.corpus))
    try:
        return target.feed(rng, data)
    except Exception as error:
        raise Failure(
            f"{name}: {type(error).__name__} {error}\n  input {data[:200].hex()}\n"
            f"  again: python -m tests.fuzz.parsers --seed {seed} --target {name} --case {number}"
        ) from error


def main() -> int:
    known = targets()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=20_000, help="cases for each parser (default 20000)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(known), help="only this parser")
    parser.add_argument("--case", type=int, help="only this case, with a traceback if it fails")
    options = parser.parse_args()
    for name, target in known.items():
        if options.target not in (None, name):
            continue
        outcomes: Counter[str] = Counter()
        numbers = range(options.count) if options.case is None else [options.case]
        began, before = time.monotonic(), resident_mib()
        try:
            for number in numbers:
                outcomes[case(name, target, options.seed, number)] += 1
        except Failure as failure:
            if options.case is not None:
                traceback.print_exception(failure.__cause__ or failure)
            print(f"FAILED {failure}", file=sys.stderr)
            return 1
        rate = len(numbers) / (time.monotonic() - began)
        common = ", ".join(f"{what} {times}" for what, times in outcomes.most_common(4))
        print(
            f"{name:10} {len(numbers):>10,} cases {rate:>8,.0f}/s "
            f"{before:.0f} -> {resident_mib():.0f} MiB: {common}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
