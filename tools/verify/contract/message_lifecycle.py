# mypy: disable-error-code="import-untyped"
"""G11, G13, G20: a message has one end, one holder at a time, and a flag when it comes again.

So every move of it must be allowed after the one before it.

Pure, and vectorised: takes columns that ascend by (queue, share, place, time), as `sorting`
arranges them, in pieces of any length.  From one piece to the next it keeps one row, and the few
moves of the queue as a whole, which come before those of its messages in each share of the queue.
Each move is checked against the previous one of the same message, and against the moves of the
whole queue between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tools.verify.contract.rules import BREACHES_MAX, Breach
from tools.verify.format.moves import CAUSE_SHIFT, FORGOTTEN, LAPSED, QUEUE_DELETED, Op
from tools.verify.input.moves import OPS_OF_QUEUES, Bools, Ints, Moves, join, position_of

NEVER = -1
_DELETED, _BY_COLD_START = QUEUE_DELETED >> CAUSE_SHIFT, FORGOTTEN >> CAUSE_SHIFT
_LAPSED = LAPSED >> CAUSE_SHIFT
T = TypeVar("T", np.int64, np.bool_)
_NOTHING = 0  # in the place of an Op: there is no earlier move of this message


class QueueRecovery(NamedTuple):
    """Figures of one share of a queue about a cold start; those of all shares are added up."""

    queue: int
    time: int
    kept: int  # according to the log, for the whole queue
    ready: int  # persistent ones that were ready then
    moved: int  # recovered ones with a later move, and none before
    fresh: bool  # none of an earlier cold start can be left: purged since, or there was none
    known: bool  # nothing is missing before it


class _QueueMoves:
    """The moves of a queue as a whole."""

    def __init__(self, number: int, rows: Moves, gaps: Ints) -> None:
        self.number = number
        times = rows.times()
        declared = rows.op == Op.DECLARED
        first = int(times[declared][0]) if declared.any() else 0
        self.gaps_before = int(np.searchsorted(gaps, first))
        # In a priority queue a cold start leaves persistent messages at their places.
        stays = (rows.op == Op.RECOVERED) & (rows.seq == 0)
        moved = (rows.op == Op.RECOVERED) & ~stays
        # The purge of a cold start states only what was there; the RECOVERED after it what stays.
        purged = (rows.op == Op.PURGED) & (rows.cause != _BY_COLD_START)
        self.hard, self.soft = times[purged | moved], times[stays]
        self.deleted = times[purged & (rows.cause == _DELETED)]
        self.rows, self.times = rows, times
        self.fresh_times, self.fresh_begin = times[moved], rows.seq[moved]
        self.fresh_end = self.fresh_begin + rows.of[moved]

    def recovered_as(self, seq: Ints, time: Ints) -> Ints:
        """Return the time of the cold start that numbered each, before `time`; NEVER: none did."""
        if not len(self.fresh_begin):
            return np.full(len(seq), NEVER, np.int64)
        at = np.searchsorted(self.fresh_begin, seq, "right") - 1
        found = (at >= 0) & (seq < self.fresh_end[at]) & (self.fresh_times[at] < time)
        return np.where(found, self.fresh_times[at], NEVER)


class LifecycleCheck:
    """Checks sorted pieces one after the other."""

    def __init__(self, gaps: Iterable[int] = ()) -> None:
        """`gaps` are the times at which something is missing, ascending."""
        self.breaches: list[Breach] = []
        self.recoveries: list[QueueRecovery] = []
        self.messages = 0
        self.examined = 0
        self._gaps = np.array(list(gaps), np.int64)
        self._key: tuple[int, int] | None = None
        self._of_queue: list[Moves] = []
        self._queue: _QueueMoves | None = None
        self._carry: _LinkedRows | None = None
        self._tally: dict[int, list[int]] = {}

    def take(self, share: Ints, rows: Moves) -> None:
        """Check the next piece; `share` is the part of its queue that a row is in."""
        if not len(rows):
            return
        change = np.flatnonzero(np.diff(rows.queue).astype(bool) | np.diff(share).astype(bool)) + 1
        begins = [0, *change.tolist(), len(rows)]
        for begin, end in pairwise(begins):
            key = int(rows.queue[begin]), int(share[begin])
            if key != self._key:
                self.finish()
                self._key = key
            part = rows.take(slice(begin, end))
            level = int(np.count_nonzero(np.isin(part.op, OPS_OF_QUEUES)))
            if level:
                self._of_queue.append(part.take(slice(0, level)))
            if level < len(part):
                self._examine(part.take(slice(level, None)))

    def finish(self) -> None:
        """Close the queue that was checked last."""
        if self._key is not None:
            queue = self._open()
            if self._carry is not None:
                self._count(queue, self._carry, np.array([np.iinfo(np.int64).max]))
            self._report_recoveries(queue)
        self._of_queue, self._queue, self._carry, self._key = [], None, None, None
        self._tally = {}

    def _open(self) -> _QueueMoves:
        if self._queue is None:
            assert self._key is not None
            self._queue = _QueueMoves(self._key[0], join(self._of_queue), self._gaps)
        return self._queue

    def _examine(self, rows: Moves) -> None:
        queue = self._open()
        piece = _LinkedRows.linked(rows, self._carry, queue, self._gaps)
        self.examined += len(rows)
        self.messages += int(np.count_nonzero(~piece.same[piece.new :]))
        for rule, which in _broken(piece, queue):
            which[: piece.new] = False
            left = BREACHES_MAX - len(self.breaches)
            for i in np.flatnonzero(which)[: max(left, 0)].tolist():
                self.breaches.append(piece.breach(rule, i, queue.number))
        for at in piece.recovered_at[piece.new :][
            piece.recovered_at[piece.new :] != NEVER
        ].tolist():
            self._tally.setdefault(at, [0, 0])[1] += 1
        # How long the state of a row lasted is known with the next row: of the last one not yet.
        until = np.where(piece.same[1:], piece.time[1:], np.iinfo(np.int64).max)
        self._count(queue, piece, until)
        self._carry = piece.last()

    def _count(self, queue: _QueueMoves, piece: _LinkedRows, until: Ints) -> None:
        """Count what was ready at each cold start; `until` of the first rows of the piece."""
        n = len(until)
        if not len(queue.fresh_times) and not len(queue.soft):
            return
        ready = np.isin(piece.op[:n], (Op.ENQUEUED, Op.RETURNED)) & piece.persistent[:n]
        time = piece.time[:n]
        for at in (*queue.fresh_times.tolist(), *queue.soft.tolist()):
            hard = queue.hard[queue.hard < at]
            since = int(hard[-1]) if len(hard) else NEVER
            here = ready & (time > since) & (time < at) & (until > at)
            self._tally.setdefault(at, [0, 0])[0] += int(np.count_nonzero(here))

    def _report_recoveries(self, queue: _QueueMoves) -> None:
        purged = False
        seen = False
        for i in range(len(queue.rows)):
            op, time = int(queue.rows.op[i]), int(queue.times[i])
            if op == Op.PURGED:
                purged = purged or int(queue.rows.cause[i]) != _BY_COLD_START
            elif op == Op.RECOVERED:
                ready, moved = self._tally.get(time, [0, 0])
                soft = int(queue.rows.seq[i]) == 0
                known = int(np.searchsorted(self._gaps, time)) == queue.gaps_before
                fresh = purged or not seen or soft
                kept = int(queue.rows.of[i])
                self.recoveries.append(
                    QueueRecovery(queue.number, time, kept, ready, moved, fresh, known)
                )
                purged, seen = False, not soft


class _LinkedRows:
    """Rows of messages, each with the previous row of its message and what that implies."""

    new: int  # how many rows at the beginning were checked already
    seq: Ints
    op: Ints
    flag: Bools
    of: Ints
    cause: Ints
    time: Ints
    detail: Ints
    same: Bools  # the previous row is of the same message
    prior: Ints  # op of the previous row
    prior_of: Ints
    prior_time: Ints  # NEVER: there is none, and no cold start numbered this message
    recovered_at: Ints  # of a message's first row: the cold start that numbered it, NEVER: none
    unknown: Bools  # a gap in the history lies between
    persistent: Bools  # as it entered
    content: Ints  # as it entered; 0: not known
    ended: Bools  # it was ready before, and was purged in between
    expects_flag: Bools  # it was delivered before, so its next delivery is flagged

    @classmethod
    def linked(
        cls, rows: Moves, carry: _LinkedRows | None, queue: _QueueMoves, gaps: Ints
    ) -> _LinkedRows:
        """Return the rows linked to `carry`, the last row before them, if there is one."""
        self = cls()
        self.new = 0 if carry is None else 1

        def joined(name: str, values: NDArray[T]) -> NDArray[T]:
            if carry is None:
                return values
            return np.concatenate([getattr(carry, name), values])

        self.seq, self.op = joined("seq", rows.seq), joined("op", rows.op)
        self.flag, self.of = joined("flag", rows.flag), joined("of", rows.of)
        self.cause = joined("cause", rows.cause)
        self.time, self.detail = joined("time", rows.times()), joined("detail", rows.detail)
        n = len(self.seq)
        self.same = np.concatenate([[False], self.seq[1:] == self.seq[:-1]])
        before = np.concatenate([[0], np.arange(n - 1)])
        self.prior = np.where(self.same, self.op[before], _NOTHING)
        self.prior_of = np.where(self.same, self.of[before], -1)
        self.recovered_at = queue.recovered_as(self.seq, self.time)
        self.recovered_at[self.same] = NEVER
        if carry is not None:
            self.recovered_at[0] = carry.recovered_at[0]
        recovered = self.recovered_at != NEVER
        since = np.where(
            self.same, self.time[before], np.where(recovered, self.recovered_at, NEVER)
        )
        self.prior_time = since
        at_gap = np.searchsorted(gaps, self.time)
        known = np.where(since == NEVER, queue.gaps_before, np.searchsorted(gaps, since))
        self.unknown = at_gap != known
        self._inherit(rows, carry)
        was_ready = np.isin(self.prior, (Op.ENQUEUED, Op.RETURNED)) | recovered
        hard = np.searchsorted(queue.hard, self.time) - np.searchsorted(queue.hard, since, "right")
        soft = np.searchsorted(queue.soft, self.time) - np.searchsorted(queue.soft, since, "right")
        self.ended = was_ready & ((hard > 0) | ((soft > 0) & ~self.persistent))
        self.expects_flag = (self.prior == Op.RETURNED) | recovered | (soft > 0)
        return self

    def _inherit(self, rows: Moves, carry: _LinkedRows | None) -> None:
        """Derive persistence and content: as a message entered the queue, for all its moves."""
        n = len(self.seq)
        group = np.maximum.accumulate(np.where(self.same, 0, np.arange(n)))
        entered = self.op[group] == Op.ENQUEUED
        carried = carry is not None and group == 0
        self.persistent = np.where(entered, self.flag[group], True)
        self.content = np.where(entered, self.detail[group], 0)
        if carry is not None:
            self.persistent = np.where(carried, carry.persistent[0], self.persistent)
            self.content = np.where(carried, carry.content[0], self.content)

    def last(self) -> _LinkedRows:
        """Return the last row, to precede the next piece."""
        one = _LinkedRows()
        one.new = 1
        for name in (
            "seq",
            "op",
            "flag",
            "of",
            "cause",
            "time",
            "detail",
            "recovered_at",
            "persistent",
            "content",
        ):
            setattr(one, name, getattr(self, name)[-1:].copy())
        one.same = np.array([True])  # counted already
        return one

    def breach(self, rule: str, i: int, queue: int) -> Breach:
        """Return that row i breaks a rule."""
        time, since = int(self.time[i]), int(self.prior_time[i])
        return Breach(
            rule, position_of(time), time & 0xFFFFF, queue, int(self.seq[i]), int(self.of[i]),
            position_of(since) if since != NEVER else -1,
        )  # fmt: skip


def _broken(p: _LinkedRows, queue: _QueueMoves) -> Iterator[tuple[str, Bools]]:
    """Yield each rule with the rows that break it."""
    known = ~p.unknown
    enters, leaves = p.op == Op.ENQUEUED, (p.op == Op.DELIVERED) | (p.op == Op.DROPPED)
    delivered, dropped = p.op == Op.DELIVERED, p.op == Op.DROPPED
    gives_up = (p.op == Op.SETTLED) | (p.op == Op.RETURNED)
    held, over = p.prior == Op.DELIVERED, (p.prior == Op.SETTLED) | (p.prior == Op.DROPPED)
    recovered = p.recovered_at != NEVER
    nothing = (p.prior == _NOTHING) & ~recovered
    ready = (np.isin(p.prior, (Op.ENQUEUED, Op.RETURNED)) | recovered) & ~p.ended
    yield "place twice", enters & (p.same | recovered)
    yield "invented", ~enters & nothing & known
    yield "delivered held", delivered & held & known
    yield "dropped held", dropped & held & known
    yield "delivered ended", delivered & (over | p.ended) & known
    yield "dropped ended", dropped & (over | p.ended) & known
    yield "first flagged", leaves & ready & known & p.flag & ~p.expects_flag
    yield "again unflagged", leaves & ready & known & ~p.flag & p.expects_flag
    yield "other holder", gives_up & held & known & (p.of != p.prior_of)
    yield "settled unheld", (p.op == Op.SETTLED) & (ready | p.ended) & known
    yield "returned unheld", (p.op == Op.RETURNED) & (ready | p.ended | over) & known
    yield "ended twice", (p.op == Op.SETTLED) & over & known
    carries = leaves | (p.op == Op.RETURNED)
    yield "content", carries & (p.content != 0) & (p.detail != p.content)
    gone = p.time > (queue.deleted[0] if len(queue.deleted) else np.iinfo(np.int64).max)
    yield "lapsed alive", (p.op == Op.SETTLED) & (p.cause == _LAPSED) & ~gone & known
    if len(queue.deleted):
        yield "into deleted", gone & (enters | (p.op == Op.RETURNED))


def check_recoveries(partial: Iterable[QueueRecovery]) -> Iterator[Breach]:
    """Check what cold starts kept; the figures of a queue's shares are added up."""
    sums: dict[tuple[int, int], QueueRecovery] = {}
    for one in partial:
        key = one.queue, one.time
        sum_ = sums.get(key)
        if sum_ is None:
            sums[key] = one
        else:
            sums[key] = sum_._replace(ready=sum_.ready + one.ready, moved=sum_.moved + one.moved)
    before: QueueRecovery | None = None
    for key in sorted(sums):
        one = sums[key]
        left = 0
        if before is not None and before.queue == one.queue and not one.fresh:
            left = before.kept - before.moved
        before = one
        if one.known and one.kept != one.ready + left:
            yield Breach(
                "kept others", position_of(one.time), one.time & 0xFFFFF, one.queue, -1,
                more=f"kept {one.kept}, of {one.ready + left} persistent ones that were ready",
            )  # fmt: skip
