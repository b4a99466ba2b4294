"""Three members' logs as they grow, correct except for the requested faults."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

from broker.machine.commands import ACTIVATE, QUEUE_DECLARE
from broker.machine.move_log import DECLARED, FLAG, row
from broker.memberlog.records import Active, Batch, ConfirmRecord, Durable, Queues, Start, ViewSeen
from broker.memberlog.writer import MemberLogWriter
from broker.replication.chain import History
from tests.bench.support.verifylogs import (
    CHUNK,
    COMMANDS,
    INCARNATIONS,
    MEMBERS,
    MOVES_BYTES,
    QUEUE,
    moves_from,
    next_batch,
)
from tools.verify.input.tables import ROW


def _other_chain(batch: Batch) -> Batch:
    return batch._replace(chain=batch.chain[:-1] + bytes([batch.chain[-1] ^ 1]))


def _twice(batch: Batch) -> Batch:
    settled = slice(2 * ROW.itemsize, 3 * ROW.itemsize)
    return batch._replace(moves=batch.moves + batch.moves[settled])


_CHANGES: dict[str, Callable[[Batch], Batch]] = {"chain": _other_chain, "twice": _twice}
FAULTS = ("confirm", *_CHANGES)


class Members:
    """Three members in one primary; each `step` is one batch, applied, durable and confirmed."""

    def __init__(self, directory: Path) -> None:
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000  # noqa: E731
        self._logs = {
            name: MemberLogWriter(directory / name, "bench", "c1", name, 1, wall_us)
            for name in MEMBERS
        }
        self._history, self._number, self._packed = History(), 0, b""
        self.ends: list[int] = []  # last position of each flush, and when it was in the files
        self.times: list[float] = []
        fresh = tuple((*incarnation, False) for incarnation in INCARNATIONS)
        for log in self._logs.values():
            log.append(Start(0, 0, self._history.chain, 0))
            log.append(ViewSeen(1, "a", True, INCARNATIONS))
            log.append(Active(1, 1, "a", 0, self._history.chain, fresh, MEMBERS, True))
        declared = row(DECLARED | FLAG, 2, QUEUE, 0, 0, 0)
        for kind, moves in ((ACTIVATE, b""), (QUEUE_DECLARE, declared)):
            batch = self._next(bytes([kind]), moves)
            for log in self._logs.values():
                if moves:
                    log.append(Queues(((QUEUE, "/", "q", True, -1),)))
                log.append(batch)
                log.append(Durable(self._history.position))
        self.flush()

    def step(self, fault: str = "", member: str = "") -> tuple[str, str, int]:
        """Write a batch; return the promise that its fault breaks, the member, and the position."""
        origin = MEMBERS[self._number % 3]
        batch = self._next(COMMANDS, self._moves())
        first, last = batch.first_position, self._history.position
        confirmed = ConfirmRecord(1, last, tuple(range(first, last, 2)))
        if fault == "confirm":  # only the member that confirms can have this fault
            member = origin
            confirmed = confirmed._replace(durable_mark=first - 1)
        for name, log in self._logs.items():
            change = _CHANGES.get(fault) if name == member else None
            log.append(batch if change is None else change(batch))
            log.append(Durable(last))
            if name == origin:
                log.append(confirmed)
        return "G9" if fault == "confirm" else "G14", member, first

    def flush(self) -> float:
        """Write the appended records; return when they were in the files."""
        for log in self._logs.values():
            log.flush()
        self.ends.append(self._history.position)
        self.times.append(time.monotonic())
        return self.times[-1]

    def age(self, position: int, now: float) -> float:
        """Return how long ago something beyond a position was written, 0 if nothing was."""
        place = bisect_left(self.ends, position + 1)
        return now - self.times[place] if place < len(self.times) else 0.0

    def _moves(self) -> bytes:
        """Return the next batch's effects on messages."""
        place = (self._number - 2) % CHUNK
        if not place:
            self._packed = moves_from(self._number)
        return self._packed[place * MOVES_BYTES : (place + 1) * MOVES_BYTES]

    def _next(self, kinds: bytes, moves: bytes) -> Batch:
        batch, self._history = next_batch(self._history, self._number, kinds, moves)
        self._number += 1
        return batch._replace(time_us=time.time_ns() // 1000)
