"""Makes large member logs with the real writer, right in all but one planted place.

Three members run one primary view from beginning to end: each batch is applied by all, durable at
all, and confirmed by its origin.  Nothing grows with the number of records but the files.
"""

from __future__ import annotations

import random
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from broker.history import History
from broker.machine.commands import ACK, ACTIVATE, PUBLISH
from broker.memberlog.records import (
    Active,
    Batch,
    Confirm,
    Durable,
    Record,
    Start,
    Stop,
    ViewSeen,
    Vote,
)
from broker.memberlog.writer import SEGMENT_BYTES, MemberLogWriter

MEMBERS = ("a", "b", "c")
LIVES = tuple((name, 1) for name in MEMBERS)
COMMANDS = bytes([PUBLISH, ACK] * 4)
VOTE_EVERY = 5000  # batches


class Planted(NamedTuple):
    """The one lie in the logs: the promise that it breaks, where, and by whom."""

    promise: str
    member: str
    position: int


def write_logs(
    directory: Path, records: int, seed: int, segment_bytes: int = SEGMENT_BYTES
) -> Planted:
    """Write about `records` records a member below `directory`; return what is wrong in them."""
    chance = random.Random(seed)
    rounds = max(records * 3 // 7, 10)  # a batch and a durable each, a confirm at every third
    liar, lie_at = chance.choice(MEMBERS), chance.randrange(rounds // 10, rounds)
    lie = chance.choice((_other_root, _other_place, _other_outcome))
    logs = {
        name: MemberLogWriter(directory / name, "bench", "c1", name, 1, lambda: 1, segment_bytes)
        for name in MEMBERS
    }
    history = History()
    planted = Planted("", "", 0)

    def all_write(record: Record) -> None:
        for log in logs.values():
            log.append(record)

    all_write(Start(0, 0, history.chain, 0))
    all_write(ViewSeen(1, "a", True, LIVES))
    fresh = tuple((*life, False) for life in LIVES)
    all_write(Active(1, 1, "a", 0, history.chain, fresh, MEMBERS, True))
    for number in range(rounds):
        kinds = COMMANDS if number else bytes([ACTIVATE])
        batch, history = _next(history, number, kinds)
        last = history.position
        for name, log in logs.items():
            if name == liar and number == lie_at:
                promise, wrong, position = lie(batch)
                planted = Planted(promise, name, position)
                log.append(wrong)
            else:
                log.append(batch)
            log.append(Durable(last))
        if number:
            positions = tuple(range(batch.first_position, last, 2))
            logs[batch.origin].append(Confirm(1, last, positions, ()))
        if number % VOTE_EVERY == VOTE_EVERY - 1:
            all_write(Vote(last, history.chain, batch.root, "agreed"))
        if number % 64 == 0:
            for log in logs.values():
                log.flush()
    all_write(Stop("shutdown", history.position, history.chain))
    for log in logs.values():
        log.flush()
        log.close()
    return planted


def _next(history: History, number: int, kinds: bytes) -> tuple[Batch, History]:
    outcomes = bytes(2 * len(kinds))
    hashed = blake2b(number.to_bytes(8, "little"), digest_size=16).digest()
    after = history.after(1, len(kinds), hashed, outcomes)
    batch = Batch(
        *(1, 1, number + 1, history.position + 1, len(kinds), MEMBERS[number % 3], 1, number),
        *(1_700_000_000_000_000 + 500 * number, kinds, outcomes, hashed, after.chain),
        *(int.from_bytes(after.chain[:8], "little"), after.order, b""),
    )
    return batch, after


def _other_root(batch: Batch) -> tuple[str, Batch, int]:
    last = batch.first_position + batch.commands - 1
    return "G14", batch._replace(root=batch.root ^ 1), last


def _other_place(batch: Batch) -> tuple[str, Batch, int]:
    return "G2", batch._replace(seq=batch.seq + 1), batch.first_position


def _other_outcome(batch: Batch) -> tuple[str, Batch, int]:
    outcomes = batch.outcomes[:4] + b"\x94\x01" + batch.outcomes[6:]
    return "G14", batch._replace(outcomes=outcomes), batch.first_position + 2
