# mypy: disable-error-code="import-untyped"
"""G5, G11, G12, G20: moves follow from commands, in order; what they lead to is for `replay`.

Pure, and vectorised over many batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tools.verify.contract.allowed_causes import ALLOWED, CLOSES, ERRORS_FROM, OF_ANY
from tools.verify.contract.rules import BREACHES_MAX, Breach
from tools.verify.format.commands import Command, Outcome
from tools.verify.format.moves import (
    AGAIN,
    CAUSE_SHIFT,
    CLOSED,
    DEAD_LETTERED,
    MARK_MASK,
    MEMBER_LOST,
    Op,
)
from tools.verify.format.records import (
    Batch,
    Checkpoint,
    Queues,
    Record,
    Snapshot,
    Start,
)
from tools.verify.input.moves import OPS_OF_MESSAGES, RANK_SHIFT, ROW, Bools, Ints, Moves, unpack
from tools.verify.input.ranges_of_file import FileRange, RangeCursor

_NOT_TAKEN = tuple(
    code.to_bytes(2, "little") for code in (Outcome.MALFORMED, Outcome.OUT_OF_SEQUENCE)
)
_COMMANDS_MAX = 1 << 18  # checked at once; bounds the memory
_DEAD = DEAD_LETTERED >> CAUSE_SHIFT  # no client published it, and no channel
_AGAIN = AGAIN >> CAUSE_SHIFT  # it names the message that its number stands for, and makes none
_OF_CHANNELS = (Op.PUBLISHED, Op.DELIVERED, Op.SETTLED, Op.RETURNED)
_SEQ_MASK = (1 << RANK_SHIFT) - 1


class NamedQueue(NamedTuple):
    """Name and properties of a queue, from a QUEUES record."""

    vhost: str
    name: str
    durable: bool
    max_priority: int  # -1: plain


class HighWater(NamedTuple):
    """Highest number in a range of the canonical history, to be compared with the next range."""

    what: str  # "taken" from a queue, "published" by a channel
    of: int
    position: int  # where the range begins
    first: int
    highest: int
    at: int  # position of `first`

    def breach(self) -> Breach:
        """Return that it began below the high water of the range before."""
        if self.what == "taken":
            return Breach("overtaken", self.at, 0, self.of, self.first)
        return Breach("publisher order", self.at, 0, -1, self.first, self.of)


class SegmentRules:
    """Takes the records of one segment in order, checkpoints joined."""

    def __init__(self, ranges: Iterable[FileRange] = ()) -> None:
        """`ranges` are those for which this segment is the source of the canonical history."""
        self.breaches: list[Breach] = []
        self.high_waters: list[HighWater] = []
        self.named: dict[int, NamedQueue] = {}
        self.moves = 0
        self.within = 0  # moves of messages of which this segment is the source
        self.blobs = 0  # of sessions, in their order
        self._cursor = RangeCursor(ranges)
        self._batches: list[Batch] = []
        self._commands = 0
        self._blobs: dict[int, int] = {}  # by session: the number of the one taken last
        self._origins: dict[int, str] = {}  # by session: the member that it is of
        self._root = (-1, 0)  # position and root of the state before

    def take(self, record: Record) -> None:
        """Take the next record."""
        match record:
            case Batch():
                if self._batches:
                    last = self._batches[-1]
                    if last.first_position + last.commands != record.first_position:
                        self._check_batches()  # a gap: the parser reports it
                        self._blobs.clear()
                self._blob(record)
                self._batches.append(record)
                self._root = record.first_position + record.commands - 1, record.root
                self._commands += record.commands
                if self._commands >= _COMMANDS_MAX:
                    self._check_batches()
            case Queues(queues):
                for number, vhost, name, durable, max_priority in queues:
                    self.named[number] = NamedQueue(vhost, name, durable, max_priority)
            case Checkpoint(position, root):
                if self._root[0] == position and self._root[1] != root:
                    more = f"{root:016x}, not {self._root[1]:016x}"
                    self.breaches.append(Breach("other root", position, 0, -1, -1, more=more))
            case Start() | Snapshot():
                self._check_batches()
                self._cursor.advance(record)
                self._root = record.position, record.root
                self._blobs.clear()
                self._origins.clear()
            case _:
                pass

    def finish(self) -> None:
        """End the segment, after the first checkpoint of the next one."""
        self._check_batches()

    def _blob(self, batch: Batch) -> None:
        """Check that a session's blobs are applied in order, each once."""
        if not batch.session or batch.outcomes[:2] in _NOT_TAKEN:
            return
        self.blobs += 1
        origin = self._origins.setdefault(batch.session, batch.origin)
        if origin != batch.origin:
            more = f"session {batch.session} of {origin}, by {batch.origin}"
            self.breaches.append(
                Breach("other session", batch.first_position, 0, -1, -1, more=more)
            )
        before = self._blobs.get(batch.session)
        if before is not None and batch.blob_no != before + 1:
            more = f"{batch.blob_no} after {before} of {batch.origin}"
            self.breaches.append(Breach("blob order", batch.first_position, 0, -1, -1, more=more))
        self._blobs[batch.session] = batch.blob_no

    def _check_batches(self) -> None:
        batches, self._batches, self._commands = self._batches, [], 0
        if not batches:
            return
        block = _Block(batches, self._numbers_of(ranked=True))
        self.moves += len(block.moves)
        for rule, which in block.broken():
            left = BREACHES_MAX - len(self.breaches)
            for i in np.flatnonzero(which)[: max(left, 0)].tolist():
                self.breaches.append(block.breach(rule, i))
        self.breaches += block.not_once()
        self._check_queue_names(block.moves)
        for first, last in self._cursor.ranges:
            begin, end = np.searchsorted(block.moves.position, [first, last + 1])
            if begin < end:
                rows = block.moves.take(slice(int(begin), int(end)))
                self.within += int(np.count_nonzero(np.isin(rows.op, OPS_OF_MESSAGES)))
                self._take_orders(rows, max(first, batches[0].first_position))

    def _check_queue_names(self, moves: Moves) -> None:
        of_queue = moves.op != Op.PUBLISHED
        numbers, firsts = np.unique(moves.queue[of_queue], return_index=True)
        rows = np.flatnonzero(of_queue)[firsts]
        for number, i in zip(numbers.tolist(), rows.tolist(), strict=True):
            if number not in self.named:
                self._breach("unnamed queue", moves, i)
        for i in np.flatnonzero(moves.op == Op.DECLARED).tolist():
            named = self.named.get(int(moves.queue[i]))
            declared = bool(moves.flag[i]), int(moves.of[i]) - 1
            if named is not None and declared != (named.durable, named.max_priority):
                self._breach("other queue", moves, i)

    def _numbers_of(self, *, ranked: bool) -> Ints:
        """Return the numbers of the priority queues, or of the plain ones."""
        found = [n for n, one in self.named.items() if (one.max_priority >= 0) is ranked]
        return np.array(found, np.int64)

    def _breach(self, rule: str, moves: Moves, i: int) -> None:
        self.breaches.append(breach_at(rule, moves, i))

    def _take_orders(self, moves: Moves, begin: int) -> None:
        """G12: first deliveries and drops of a queue ascend, and so do publishes of a channel."""
        leaves = (moves.op == Op.DELIVERED) | (moves.op == Op.DROPPED)
        plain = self._numbers_of(ranked=False)
        taken = leaves & ~moves.flag & np.isin(moves.queue, plain)
        self._ascends("taken", "overtaken", moves, np.flatnonzero(taken), moves.queue, moves.seq,
                      begin)  # fmt: skip
        confirmed = (moves.op == Op.PUBLISHED) & (moves.cause == 0) & (moves.queue > 0)
        self._ascends("published", "publisher order", moves, np.flatnonzero(confirmed), moves.of,
                      moves.queue, begin)  # fmt: skip

    def _ascends(
        self, what: str, rule: str, moves: Moves, rows: Ints, keys: Ints, values: Ints, begin: int
    ) -> None:
        if not len(rows):
            return
        rows = rows[np.argsort(keys[rows], kind="stable")]
        key, value = keys[rows], values[rows]
        begins = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        bad = np.zeros(len(rows), np.bool_)
        # A channel that is opened again begins again with 1.
        again = value[1:] == 1 if what == "published" else np.zeros(len(rows) - 1, np.bool_)
        bad[1:] = (value[1:] <= value[:-1]) & (key[1:] == key[:-1]) & ~again
        for i in np.flatnonzero(bad).tolist():
            self._breach(rule, moves, int(rows[i]))
        ends = [*begins[1:].tolist(), len(rows)]
        for first, end in zip(begins.tolist(), ends, strict=True):
            last = value[end - 1] if what == "published" else value[first:end].max()
            at = int(moves.position[rows[first]])
            self.high_waters.append(
                HighWater(what, int(key[first]), begin, int(value[first]), int(last), at)
            )


def breach_at(rule: str, moves: Moves, i: int) -> Breach:
    """Return that row i breaks a rule."""
    return Breach(
        rule, int(moves.position[i]), int(moves.ordinal[i]), int(moves.queue[i]),
        int(moves.seq[i]), int(moves.of[i]),
    )  # fmt: skip


class _Block:
    """Consecutive batches, as columns."""

    def __init__(self, batches: list[Batch], ranked: Ints) -> None:
        self.first = batches[0].first_position
        self.kinds = np.frombuffer(b"".join(b.kinds for b in batches), np.uint8).astype(np.int64)
        outcomes = b"".join(b.outcomes for b in batches)
        self.outcomes = np.frombuffer(outcomes, "<u2").astype(np.int64)
        self.moves = unpack([b.moves for b in batches], [b.first_position for b in batches])
        counts = np.array([len(b.moves) // ROW.itemsize for b in batches], np.int64)
        lasts = np.array([b.first_position + b.commands for b in batches], np.int64)
        self.beyond = self.moves.position >= np.repeat(lasts, counts)
        self.starts = self.moves.ordinal == 0
        # In a priority queue a place has the rank in its high bits, and its lowest bit unused.
        seq = self.moves.seq
        self.places = np.where(np.isin(self.moves.queue, ranked), (seq & _SEQ_MASK) >> 1, seq)

    def breach(self, rule: str, i: int) -> Breach:
        """Return that row i breaks a rule."""
        return breach_at(rule, self.moves, i)

    def broken(self) -> Iterator[tuple[str, Bools]]:
        """Yield each rule of a single move, or of two neighbours, with the moves that break it."""
        m = self.moves
        yield "foreign command", self.beyond
        unflagged = np.isin(m.op, (Op.SETTLED, Op.RETURNED, Op.PURGED, Op.RECOVERED))
        dead_lettered = (m.op == Op.PUBLISHED) & (m.cause == _DEAD) & ((m.of != 0) | (m.queue != 0))
        stray = (unflagged & m.flag) | dead_lettered | ((m.op == Op.DROPPED) & (m.of != 0))
        stray |= ((m.op == Op.PURGED) | (m.op == Op.DECLARED)) & (m.detail != 0)
        yield "stray", stray | ((m.op == Op.DECLARED) & (m.seq != 0))
        disorder = np.zeros(len(m), np.bool_)
        disorder[1:] = (m.position[1:] < m.position[:-1]) & ~self.starts[1:]
        yield "disorder", disorder & ~self.beyond
        at = np.where(self.beyond, 0, m.position - self.first)
        kind, outcome = self.kinds[at], self.outcomes[at]
        late = (
            (outcome >= Outcome.IGNORED) & (outcome < Outcome.UNROUTABLE) & (kind != Command.TICK)
        )
        what = m.op | (m.cause << CAUSE_SHIFT)
        yield "late command", late & ~self.beyond & ~OF_ANY[what]
        allowed = ALLOWED[kind, what] | self.beyond
        yield "wrong cause", ~allowed
        closes = CLOSES[kind] | (outcome >= ERRORS_FROM)
        later = ((what == CLOSED) & ~closes) | ((what == MEMBER_LOST) & (kind != Command.ACTIVATE))
        yield "return without cause", self._of_open_channels(later, ~OF_ANY[what]) & allowed
        yield from self._numbers()

    def _of_open_channels(self, later: Bools, own: Bools) -> Bools:
        """Return which of the returns that came after the end of their connection, as it held too
        much for one position, are of a channel that does something of its `own` after that."""
        channel, open_still = self.moves.of, np.zeros(len(later), np.bool_)
        rows = np.flatnonzero(later)
        if len(rows):
            own = np.isin(self.moves.op, _OF_CHANNELS) & (own | (self.moves.op == Op.DELIVERED))
            acts = np.flatnonzero(own & np.isin(channel, channel[rows]))
            last = dict(zip(channel[acts].tolist(), acts.tolist(), strict=True))
            open_still[[i for i in rows.tolist() if last.get(int(channel[i]), -1) > i]] = True
        return open_still

    def _numbers(self) -> Iterator[tuple[str, Bools]]:
        m = self.moves
        published = (m.op == Op.PUBLISHED) & (m.seq > 0) & (m.cause != _AGAIN)
        rows = np.flatnonzero(published)
        wrong = np.zeros(len(m), np.bool_)
        wrong[rows[1:]] = m.seq[rows[1:]] != m.seq[rows[:-1]] + 1
        yield "number", wrong
        entered = m.op == Op.ENQUEUED
        here = np.arange(len(m))
        source = np.maximum.accumulate(np.where(published, here, -1)) if len(m) else here
        known = source >= 0
        same = known & (m.position[source] == m.position) & (m.seq[source] & MARK_MASK == m.of)
        yield "enqueued unpublished", entered & ~same
        yield "persistence", entered & same & (m.flag != m.flag[source])
        rows = np.flatnonzero(entered & same)
        rows = rows[np.lexsort((m.queue[rows], m.seq[source[rows]]))]
        twice = np.zeros(len(m), np.bool_)
        twice[rows[1:]] = (source[rows[1:]] == source[rows[:-1]]) & (
            m.queue[rows[1:]] == m.queue[rows[:-1]]
        )
        yield "enqueued twice", twice
        # Places in a queue: without the rank of a priority, they rise by one.
        rows = np.flatnonzero(entered | (m.op == Op.RECOVERED))
        rows = rows[np.argsort(m.queue[rows], kind="stable")]
        place = self.places[rows]
        after = np.where(m.op[rows] == Op.RECOVERED, place + m.of[rows], place + 1)
        misplaced = (place[1:] != after[:-1]) & (m.queue[rows[1:]] == m.queue[rows[:-1]])
        # A cold start of a priority queue records no place.
        silent = (m.op[rows] == Op.RECOVERED) & (m.seq[rows] == 0)
        misplaced &= ~silent[1:] & ~silent[:-1]
        wrong = np.zeros(len(m), np.bool_)
        wrong[rows[1:]] = misplaced
        yield "place", wrong

    def not_once(self) -> Iterator[Breach]:
        """Yield each publish that did not become one message, or name one that it was before."""
        m = self.moves
        inside = ~self.beyond
        own = (m.op == Op.PUBLISHED) & ((m.cause == 0) | (m.cause == _AGAIN)) & inside
        of_own = m.position[own] - self.first
        made = np.bincount(of_own, minlength=len(self.kinds))
        repeated = self.outcomes == Outcome.REPEATED
        accepted = (self.outcomes == Outcome.OK) | (self.outcomes == Outcome.UNROUTABLE)
        wanted = (self.kinds == Command.PUBLISH) & (accepted | repeated)
        again, routed = np.zeros((2, len(self.kinds)), np.bool_)
        again[of_own[m.cause[own] == _AGAIN]] = True
        routed[of_own[m.seq[own] > 0]] = True
        otherwise = (again != repeated) | (~again & (routed != (self.outcomes == Outcome.OK)))
        misrouted = wanted & (made == 1) & otherwise
        by_transaction = (m.op == Op.PUBLISHED) & (m.cause == 1) & inside
        at = m.position[by_transaction] - self.first
        invented = np.zeros(len(self.kinds), np.bool_)
        invented[at[(self.kinds[at] != Command.TX_COMMIT) | ~accepted[at]]] = True
        for rule, which in (
            ("publish lost", wanted & (made == 0)),
            ("publish doubled", wanted & (made > 1)),
            ("publish misrouted", misrouted),
            ("publish invented", ~wanted & (made > 0) | invented),
        ):
            for i in np.flatnonzero(which).tolist():
                yield Breach(rule, self.first + i, 0, -1, -1)
