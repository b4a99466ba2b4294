# mypy: disable-error-code="import-untyped"
"""Makes large member logs that are correct except at one planted place.

Three members run one primary view from beginning to end: each batch publishes four messages to one
queue, which go to a consumer and are acked at once; all apply it, all make it durable, and its
origin confirms it.  Nothing but the files grows with the number of records.  Bytes come from
templates, and moves from numpy, a process for each member; tests read them with the real reader.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from broker.machine.commands import ACK, ACTIVATE, PUBLISH, QUEUE_DECLARE
from broker.machine.move_log import ACKED, BY_CLIENT, DECLARED, FLAG, PASSED, row
from broker.memberlog.codec import FRAME, pack_positions
from broker.memberlog.records import (
    CHECKPOINT_ROW,
    Active,
    Batch,
    Checkpoint,
    ConfirmRecord,
    Durable,
    Queues,
    Record,
    Start,
    Stop,
    ViewSeen,
    Vote,
)
from broker.memberlog.writer import SEGMENT_BYTES, MemberLogWriter
from broker.replication.chain import History
from tools.verify.input.tables import ROW

MEMBERS = ("a", "b", "c")
INCARNATIONS = tuple((name, 1) for name in MEMBERS)
MESSAGES = 4
COMMANDS = bytes([PUBLISH, ACK] * MESSAGES)
MOVES = 4 * MESSAGES  # published, enqueued, delivered, settled
MOVES_BYTES = 3 * MESSAGES * ROW.itemsize  # the two in the middle are one row, PASSED
ROWS_PER_ROUND = 1 + 1 + 1 / 3 + MOVES  # of a member: batch, durable, a third of the confirms
VOTE_EVERY = 5000  # batches
CHUNK = 1024  # batches whose moves are made at once
QUEUE, _CONSUMER = 1, 9
_EPOCH_US = 1_700_000_000_000_000
_LSN_TEMPLATES = 1 << 16  # below, numbers are shorter than in the templates

_BATCH = struct.Struct(">5sI3sIsI3s2sIsQ30s16s2s16ssQ2s16s3s")
_KINDS = b"\xc4\x08" + COMMANDS + b"\xc4\x10" + bytes(16) + b"\xc4\x10"
_DURABLE = struct.Struct(">3sIsI")
_CONFIRM = struct.Struct(">3sI2sI2s")


class Planted(NamedTuple):
    """The one fault in the logs: the promise that it breaks, the member, and the position."""

    promise: str
    member: str
    position: int


class Plan(NamedTuple):
    """The records of all members, and the fault in one of them; the same for each process."""

    directory: Path
    rounds: int
    faulty_member: str
    fault_at: int
    fault: int
    segment_bytes: int


def write_logs(
    directory: Path, records: int, seed: int, segment_bytes: int = SEGMENT_BYTES
) -> Planted:
    """Write about `records` rows a member below `directory`, including moves; return the fault."""
    chance = random.Random(seed)
    rounds = max(int(records / ROWS_PER_ROUND), 10)
    plan = Plan(
        directory, rounds, chance.choice(MEMBERS), chance.randrange(rounds // 10 + 2, rounds),
        chance.randrange(len(_FAULTS)), segment_bytes,
    )  # fmt: skip
    with ProcessPoolExecutor(len(MEMBERS)) as pool:
        list(pool.map(_write_member, [plan] * len(MEMBERS), MEMBERS))
    promise, _, offset = _FAULTS[plan.fault]
    return Planted(promise, plan.faulty_member, _first_position(plan.fault_at) + offset)


class _QuickWriter(MemberLogWriter):
    """Takes payloads that are already encoded."""

    def take(self, payload: bytes, record: Record) -> None:
        self._link = link = blake2b(self._link + payload, digest_size=8).digest()
        self._buffer += (FRAME.pack(len(payload), crc32(payload), link), payload)
        self._lsn += 1
        self._totals.take(record)


def _write_member(plan: Plan, name: str) -> None:
    log = _QuickWriter(
        plan.directory / name, "bench", "c1", name, 1, lambda: _EPOCH_US, plan.segment_bytes
    )
    history, root = History(), 0
    done = 0  # rounds

    def checkpoint() -> Iterator[Record]:
        """The queue is empty at the end of every batch."""
        messages = max(done - 2, 0) * MESSAGES
        if done > 1:
            yield Queues(((QUEUE, "/", "q", True, -1),))
        state_report = CHECKPOINT_ROW.pack(QUEUE, 0, 0, messages, 0) if done > 1 else b""
        yield Checkpoint(history.position, root, messages + 1, state_report)

    log.append(Start(0, 0, history.chain, 0))
    for record in checkpoint():
        log.append(record)
    log.begins_with = checkpoint
    log.append(ViewSeen(1, "a", True, INCARNATIONS))
    fresh = tuple((*incarnation, False) for incarnation in INCARNATIONS)
    log.append(Active(1, 1, "a", 0, history.chain, fresh, MEMBERS, True))
    for kind, moves in (
        (ACTIVATE, b""),
        (QUEUE_DECLARE, row(DECLARED | FLAG, 2, QUEUE, 0, 0, 0)),
    ):
        if moves:
            log.append(Queues(((QUEUE, "/", "q", True, -1),)))
        batch, history = next_batch(history, done, bytes([kind]), moves)
        root = batch.root
        log.append(batch)
        log.append(Durable(history.position))
        done = done + 1
    for begin in range(2, plan.rounds, CHUNK):
        packed = moves_from(begin)
        for number in range(begin, min(begin + CHUNK, plan.rounds)):
            place = (number - begin) * MOVES_BYTES
            moves = packed[place : place + MOVES_BYTES]
            batch, history = next_batch(history, number, COMMANDS, moves)
            done, root, last = number + 1, batch.root, history.position
            if number == plan.fault_at and name == plan.faulty_member:
                log.append(_FAULTS[plan.fault][1](batch))
            elif log.next_lsn < _LSN_TEMPLATES:
                log.append(batch)
            else:
                log.take(_batch_payload(log.next_lsn, batch), batch)
            durable = Durable(last)
            log.take(_DURABLE.pack(b"\x93\x09\xce", log.next_lsn, b"\xce", last), durable)
            if batch.origin == name:
                positions = tuple(range(batch.first_position, last, 2))
                packed_positions = pack_positions(positions)
                head = _CONFIRM.pack(
                    b"\x95\x07\xce",
                    log.next_lsn,
                    b"\x01\xce",
                    last,
                    bytes([0xC4, len(packed_positions)]),
                )
                log.take(head + packed_positions, ConfirmRecord(1, last, positions))
            if number % VOTE_EVERY == VOTE_EVERY - 1:
                log.append(Vote(last, history.chain, root, "agreed"))
            if number % 64 == 0:
                log.flush()
    log.append(Stop("shutdown", history.position, history.chain))
    log.flush()
    log.close()


def _first_position(number: int) -> int:
    return number + 1 if number < 2 else 3 + (number - 2) * len(COMMANDS)


def next_batch(history: History, number: int, kinds: bytes, moves: bytes) -> tuple[Batch, History]:
    hashed = number.to_bytes(16, "big")
    outcomes = bytes(2 * len(kinds))
    after = history.after(1, len(kinds), hashed, outcomes)
    batch = Batch(
        1, 1, number + 1, history.position + 1, len(kinds), MEMBERS[number % 3], number % 3 + 1,
        number // 3, _EPOCH_US + 500 * number, kinds, outcomes, hashed, after.chain,
        int.from_bytes(after.chain[:8], "little"), after.order, moves,
    )  # fmt: skip
    return batch, after


def _batch_payload(lsn: int, batch: Batch) -> bytes:
    """Return `encode`'s bytes for a batch, but with numbers of a fixed width and plain moves."""
    head = _BATCH.pack(
        b"\xdc\x00\x12\x06\xce", lsn, b"\x01\x01\xce", batch.seq, b"\xce", batch.first_position,
        b"\x08\xa1" + batch.origin.encode(), bytes([batch.session, 0xCE]), batch.blob_no, b"\xcf",
        batch.time_us, _KINDS, batch.blob_hash, b"\xc4\x10", batch.chain, b"\xcf", batch.root,
        b"\xc4\x10", batch.order, b"\xc5" + struct.pack(">H", len(batch.moves)),
    )  # fmt: skip
    return head + batch.moves


def moves_from(begin: int) -> bytes:
    """Return the moves of CHUNK batches from number `begin` on."""
    number = np.repeat(np.arange(begin, begin + CHUNK, dtype=np.uint64), MESSAGES)
    message = np.arange(len(number), dtype=np.uint64) + np.uint64((begin - 2) * MESSAGES + 1)
    within = (message - np.uint64(1)) % np.uint64(MESSAGES)
    position = np.uint64(3) + (number - np.uint64(2)) * np.uint64(len(COMMANDS))
    position += np.uint64(2) * within
    content = message * np.uint64(0x9E3779B97F4A7C15)
    channel = (number % np.uint64(3) + np.uint64(1)).astype(np.uint32)
    # Each channel publishes every third batch, and numbers its publishes from 1 on.
    first_of = (number - np.uint64(2)) // np.uint64(3) * np.uint64(MESSAGES)
    rows = np.zeros((len(number), 3), ROW)
    rows["what"] = (BY_CLIENT | FLAG, PASSED | FLAG, ACKED)
    rows["index"] = (position & np.uint64(0xFFFF)).astype(np.uint16)[:, None]
    rows["index"][:, 2] += 1
    rows["queue"] = QUEUE
    rows["queue"][:, 0] = first_of + within + np.uint64(1)
    rows["seq"] = (message - np.uint64(1))[:, None]
    rows["seq"][:, 0] = message
    rows["of"][:, 0] = channel
    rows["of"][:, 1:] = _CONSUMER
    rows["detail"][:, 0] = content ^ np.uint64(0xFFFF)
    rows["detail"][:, 1] = content
    rows["detail"][:, 2] = message
    return rows.tobytes()


def _other_root(batch: Batch) -> Batch:
    return batch._replace(root=batch.root ^ 1)


def _other_place(batch: Batch) -> Batch:
    return batch._replace(seq=batch.seq + 1)


def _other_outcome(batch: Batch) -> Batch:
    return batch._replace(outcomes=batch.outcomes[:4] + b"\x94\x01" + batch.outcomes[6:])


def _other_move(batch: Batch) -> Batch:
    last = 2 * ROW.itemsize - 1  # of the content of a delivered message
    flipped = bytes([batch.moves[last] ^ 1])
    return batch._replace(moves=batch.moves[:last] + flipped + batch.moves[last + 1 :])


_FAULTS = (
    ("G14", _other_root, len(COMMANDS) - 1),
    ("G2", _other_place, 0),
    ("G14", _other_outcome, 2),
    ("G14", _other_move, 0),
)
