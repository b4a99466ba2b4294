"""The cost of the member log per command: CPU on the path of every command, and bytes.

    python -m tests.bench.memberlog [--messages N] [--rounds N]

Publishes and acknowledgements of 256-byte messages, through one queue with a consumer, go through
the replica in blobs of this many commands, four blobs a turn; the cost of each part is the best of
several rounds.  For each size of a blob, as JSON:

    command_us        one command, blob and store entry included, with the log
    log_us            of that: records, links, checksums and writes
    moves_us          and: recording moves, which the machine does whether they are written or not
    share             log_us and moves_us of command_us
    bytes             of a command in the log; `packed`: when its segment is compressed
    rows              of a command; a message that goes straight to a consumer makes one less
    pack_us           CPU of the compressing process per command; on no command's path
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker.machine import commands as c
from broker.machine.command_codec import pack_blob
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.machine.move_log import DELIVERED, FLAG, INDEX_MASK, MOVE, row
from broker.machine.state import CONTENT_HASH
from broker.memberlog.recorder import Recorder
from broker.memberlog.segments import pack, segments_in
from broker.memberlog.writer import MemberLogWriter
from broker.replication.chain import History
from broker.replication.replica import Item, Replica
from vsync.primary.events import Activation
from vsync.types import RingId

RING = RingId(1, "a", 1)
BODY = bytes(range(248))  # and the number of the message: no two bodies have the same hash
SIZES = (1, 8, 64, 256)  # commands a blob
ITEMS_PER_TURN = 4


class Round(NamedTuple):
    """One run, per command: seconds of CPU, and the resulting contents of the log."""

    apply_s: float
    log_s: float
    bytes: float
    packed: float
    rows: float
    pack_s: float


def item(seq: int, body: bytes | Activation) -> Item:
    return Item(1, RING, seq, "a", body)


def prepared(directory: Path | None) -> tuple[Replica, Recorder | None, int]:
    """A replica of member b with a consumer on a connection of a's; its log, and a's session."""
    replica = Replica("b", Machine("b"), History())
    book = None
    if directory is not None:
        book = Recorder(MemberLogWriter(directory, "bench", "c1", "b", 1, lambda: 1, 1 << 40))
        book.start(replica.history, replica.machine)
        replica.log = book
    members = (("a", 1, True), ("b", 1, True))
    replica.apply(item(1, Activation(1, members, False, ("a", "b"), "c1")))
    session = replica.machine.sessions["a"].session
    setup: list[Command] = [
        c.ConnectionOpen(c.CONNECTION_OPEN, 1, "/", "guest", "host:1"),
        c.ChannelOpen(c.CHANNEL_OPEN, 1, 1),
        c.ChannelOpen(c.CHANNEL_OPEN, 1, 2),
        c.QueueDeclare(c.QUEUE_DECLARE, 1, 1, "q", False, True, False, False, False, {}),
        c.Consume(c.CONSUME, 1, 2, "q", "t", False, False, False, False, {}, 500),
    ]
    replica.apply(item(2, pack_blob(session, 1, 0, setup)))
    return replica, book, session


def blobs(session: int, messages: int, size: int) -> list[Item]:
    """Publishes and acknowledgements in blobs of `size` commands."""
    commands: list[Command] = []
    step = max(size // 2, 1)
    for start in range(1, messages, step):
        numbers = range(start, start + step)
        commands += [
            c.Publish(c.PUBLISH, 1, 1, no, "", "q", c.PERSISTENT, b"\x90\0\0\x02", body)
            for no in numbers
            for body in (BODY + no.to_bytes(8),)
        ]
        commands += [c.Ack(c.ACK, 1, 2, no, False) for no in numbers]
    time_us = 1_700_000_000_000_000
    return [
        item(2 + no, pack_blob(session, 1 + no, time_us + no, commands[at : at + size]))
        for no, at in enumerate(range(0, len(commands), size), 1)
    ]  # fmt: skip


def run(directory: Path, messages: int, size: int) -> Round:
    replica, book, session = prepared(directory)
    assert book is not None
    items = blobs(session, messages, size)
    before = replica.history.position
    replica.log = None
    apply_s = log_s = 0.0
    rows = 0
    gc.collect()
    gc.freeze()
    for at in range(0, len(items), ITEMS_PER_TURN):
        turn = items[at : at + ITEMS_PER_TURN]
        started = time.process_time()
        applied = [(replica.apply(one), replica.history, replica.machine.root()) for one in turn]
        replica.cut()
        replica.effects.clear()
        done = time.process_time()
        for one_applied in applied:
            book.batch(*one_applied)
        book.flush()
        log_s += time.process_time() - done
        rows += sum(len(one.moves) for one, _, _ in applied) // MOVE.size
        apply_s += done - started
    gc.unfreeze()
    commands = replica.history.position - before
    book.close()
    (path,) = segments_in(directory)
    data = path.read_bytes()
    packing = time.process_time()
    packed = pack(data)
    pack_s = time.process_time() - packing
    figures = (apply_s, log_s, len(data), len(packed), rows, pack_s)
    return Round(*(figure / commands for figure in figures))


def row_s() -> float:
    """Seconds of CPU per row on the tape, written as the machine writes it."""
    replica, _, _ = prepared(None)
    state, queue = replica.machine, replica.machine.vhosts["/"].queues["q"]
    (channel, _) = state.channels.values()
    message = (1 << 63, 1 << 20, "", "q", 4)
    number, seq, redelivered = 100_000, 1 << 16, False
    state.position = 1 << 20

    def tell() -> None:
        for _ in range(number):
            state.moves.append(
                row(
                    DELIVERED | FLAG if redelivered else DELIVERED,
                    state.position & INDEX_MASK,
                    queue.mark,
                    seq,
                    channel.mark,
                    message[CONTENT_HASH],
                )
            )

    def nothing() -> None:
        for _ in range(number):
            pass

    def spent(what: Callable[[], None]) -> float:
        state.take_moves()
        started = time.process_time()
        what()
        return time.process_time() - started

    told = min(spent(tell) for _ in range(5))
    return (told - min(spent(nothing) for _ in range(5))) / number


def measure(messages: int, rounds: int, size: int) -> dict[str, float]:
    found: list[Round] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            found.append(run(Path(folder), messages, size))
    best = Round(*map(min, zip(*found, strict=True)))
    moves_us = row_s() * best.rows * 1e6
    command_us, log_us = (best.apply_s + best.log_s) * 1e6, best.log_s * 1e6
    return {
        "commands": size,
        "command_us": round(command_us, 2),
        "log_us": round(log_us, 2),
        "moves_us": round(moves_us, 2),
        "share": round((log_us + moves_us) / command_us, 3),
        "bytes": round(best.bytes, 1),
        "packed": round(best.packed, 1),
        "rows": round(best.rows, 2),
        "pack_us": round(best.pack_s * 1e6, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=12_800)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    figures = {
        "python": platform.python_version(),
        "row_bytes": MOVE.size,
        "blobs": [measure(given.messages, given.rounds, size) for size in SIZES],
    }
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
