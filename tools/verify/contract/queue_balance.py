# mypy: disable-error-code="import-untyped"
"""G20: what entered a queue and did not leave it is there at the next checkpoint, by number.

Counted from moves alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tools.verify.contract.rules import Breach
from tools.verify.format.moves import AGAIN, CAUSE_SHIFT, QUEUE_DELETED, Op
from tools.verify.input.moves import OPS_OF_QUEUES, ORDINAL_MAX, Ints, Moves

_AGAIN = AGAIN >> CAUSE_SHIFT
_DELETED = QUEUE_DELETED >> CAUSE_SHIFT


class QueueTotals(NamedTuple):
    """Messages ready and unacked in a queue, and the place that the next one gets."""

    ready: int
    unacked: int
    next_seq: int


class Balance:
    """Queues of one incarnation, counted on from a checkpoint in its log."""

    def __init__(self, queue_totals: Mapping[int, QueueTotals], next_message: int) -> None:
        self.queues = dict(queue_totals)
        self.next_message = next_message
        self._ready_before_cold_start: dict[
            int, int
        ] = {}  # what was ready when a cold start cleared the queue
        self._reported: dict[int, bool] = {}  # once per queue: later breaches follow from the first

    def follow(self, moves: Moves, places: Ints) -> list[Breach]:
        """Count moves in their order; `places` without the rank of a priority."""
        found: list[Breach] = []
        made = (moves.op == Op.PUBLISHED) & (moves.cause != _AGAIN)
        published = np.flatnonzero(made & (moves.seq > 0))
        if len(published):
            if int(moves.seq[published[0]]) != self.next_message:
                more = f"{int(moves.seq[published[0]])}, not {self.next_message}"
                found.append(breach_at("number", moves, int(published[0]), more))
            self.next_message = int(moves.seq[published[-1]]) + 1
        rows = np.flatnonzero(moves.op != Op.PUBLISHED)
        rows = rows[np.argsort(moves.queue[rows], kind="stable")]
        change = np.flatnonzero(np.diff(moves.queue[rows])) + 1
        for mine in np.split(rows, change) if len(rows) else ():
            for breach in self._queue(moves, mine, places):
                if breach.queue not in self._reported:
                    self._reported[breach.queue] = True
                    found.append(breach)
        return found

    def _queue(self, moves: Moves, rows: Ints, places: Ints) -> Iterator[Breach]:
        """Count the moves of one queue, piece by piece between moves of the whole queue."""
        number, op = int(moves.queue[rows[0]]), moves.op[rows]
        marks = np.flatnonzero(np.isin(op, OPS_OF_QUEUES)).tolist()
        begin = 0
        for mark in [*marks, len(rows)]:
            yield from self._count(moves, rows[begin:mark], places)
            if mark < len(rows):
                yield from self._whole(moves, int(rows[mark]), number)
            begin = mark + 1

    def _count(self, moves: Moves, rows: Ints, places: Ints) -> Iterator[Breach]:
        if not len(rows):
            return
        number, op = int(moves.queue[rows[0]]), moves.op[rows]
        known = self.queues.get(number)
        if known is None:  # deleted: what is held of it is only settled
            others = np.flatnonzero(op != Op.SETTLED)
            if len(others):
                yield breach_at("into deleted", moves, int(rows[others[0]]))
            return
        came, went = (op == Op.ENQUEUED) | (op == Op.RETURNED), op == Op.DELIVERED
        ready = known.ready + np.cumsum(came.astype(np.int64) - (went | (op == Op.DROPPED)))
        given_up = (op == Op.SETTLED) | (op == Op.RETURNED)
        unacked = known.unacked + np.cumsum(went.astype(np.int64) - given_up)
        below = np.flatnonzero((ready < 0) | (unacked < 0))
        if len(below):
            yield breach_at("less than none", moves, int(rows[below[0]]))
        next_seq = known.next_seq
        entered = rows[op == Op.ENQUEUED]
        if len(entered):
            first, last = int(places[entered[0]]), int(places[entered[-1]])
            if first != next_seq:
                yield breach_at("place", moves, int(entered[0]), f"{first}, not {next_seq}")
            next_seq = last + 1
        self.queues[number] = QueueTotals(int(ready[-1]), int(unacked[-1]), next_seq)

    def _whole(self, moves: Moves, row: int, number: int) -> Iterator[Breach]:
        """Count a move of the queue as a whole."""
        op, of = int(moves.op[row]), int(moves.of[row])
        known = self.queues.get(number)
        if op == Op.DECLARED:
            if known is not None:
                yield breach_at("queue twice", moves, row)
            self.queues[number] = QueueTotals(0, 0, 0)
        elif known is None:
            yield breach_at("into deleted", moves, row)
        elif op == Op.PURGED:
            if of != known.ready:
                yield breach_at("purged count", moves, row, f"{of}, not {known.ready}")
            if int(moves.seq[row]) != known.next_seq:
                more = f"{int(moves.seq[row])}, not {known.next_seq}"
                yield breach_at("place", moves, row, more)
            if int(moves.cause[row]) == _DELETED:
                del self.queues[number]
            else:
                self._ready_before_cold_start[number] = known.ready
                self.queues[number] = known._replace(ready=0)
        else:
            there = self._ready_before_cold_start.pop(number, 0)
            if of > there or known.unacked:
                more = f"{of} of {there}, and {known.unacked} held"
                yield breach_at("kept too many", moves, row, more)
            next_seq = known.next_seq
            seq = int(moves.seq[row])
            if seq:  # else: of a priority queue, where all keep their places
                if seq != next_seq:
                    yield breach_at("place", moves, row, f"{seq}, not {next_seq}")
                next_seq = seq + of
            self.queues[number] = QueueTotals(of, known.unacked, next_seq)

    def differences(
        self, position: int, queue_totals: Mapping[int, QueueTotals], next_message: int
    ) -> Iterator[Breach]:
        """Yield the queues whose balance differs from what the log states at this position."""
        for number in sorted({*self.queues, *queue_totals}):
            counted, logged = self.queues.get(number), queue_totals.get(number)
            if counted == logged or number in self._reported:
                continue
            yield Breach(
                "balance", position, ORDINAL_MAX, number, -1,
                more=f"the moves lead to {_describe(counted)}, the log says {_describe(logged)}",
            )  # fmt: skip
        if next_message != self.next_message:
            more = f"the next message gets number {self.next_message}, the log says {next_message}"
            yield Breach("balance", position, ORDINAL_MAX, -1, -1, more=more)


def _describe(queue_totals: QueueTotals | None) -> str:
    if queue_totals is None:
        return "no such queue"
    ready, unacked, following = queue_totals
    return f"{ready} ready, {unacked} held, next place {following}"


def breach_at(rule: str, moves: Moves, i: int, more: str = "") -> Breach:
    """Return that row i breaks a rule."""
    return Breach(
        rule, int(moves.position[i]), int(moves.ordinal[i]), int(moves.queue[i]),
        int(moves.seq[i]), int(moves.of[i]), more=more,
    )  # fmt: skip
