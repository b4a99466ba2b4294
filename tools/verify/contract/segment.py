# mypy: disable-error-code="import-untyped"
"""Checks one segment by itself for the queue contract, and extracts the data for the rest.

Consecutive batches are taken in parts, as tables over which the rules of moves, arrivals and order
are answered. Moves of messages and queues go on to the bins in which those of each message meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tools.verify.contract import arrivals, causes, order
from tools.verify.contract.lives import LIVES_SCHEMAS
from tools.verify.contract.replay import Replay
from tools.verify.contract.rules import BREACHES, broken, first_of_each
from tools.verify.format.commands import Outcome
from tools.verify.format.moves import AGAIN, Op
from tools.verify.format.records import (
    Batch,
    Checkpoint,
    Queues,
    Readers,
    Record,
    RecordKind,
    Snapshot,
    Start,
)
from tools.verify.input.ranges_of_file import FileRange, RangeCursor
from tools.verify.input.segments import records_in, records_of_kinds
from tools.verify.input.tables import (
    OPS_OF_MESSAGES,
    ORDINAL_BITS,
    ORDINAL_MAX,
    Columns,
    Ints,
    table_of,
    unpack,
)
from tools.verify.sql.exchange import Tables
from tools.verify.sql.statements import answer

_COMMANDS_MAX = 1 << 17  # in one part; bounds the memory
_COMMANDS_FIRST = 1 << 14  # in the first: what waited before keeps a part from being plain
_KINDS = (
    RecordKind.START, RecordKind.BATCH, RecordKind.SNAPSHOT, RecordKind.QUEUES,
    RecordKind.CHECKPOINT, RecordKind.READERS,
)  # fmt: skip
_NOT_TAKEN = tuple(
    code.to_bytes(2, "little") for code in (Outcome.MALFORMED, Outcome.OUT_OF_SEQUENCE)
)
_POSITION_MAX = (1 << 63 - ORDINAL_BITS) - 1  # a forged one may be beyond; a time has no more bits
_SUBMISSIONS = "run bigint, position bigint, session bigint, origin string, blob bigint"
_STRETCHES = "run bigint, begins bigint, ends bigint, whole_from bigint"

SCHEMAS = {
    **LIVES_SCHEMAS, "breaches": BREACHES, "high_waters": order.HIGH_WATERS,
    "counts": "name string, n bigint",
    "traffic": "number bigint, op bigint, cause bigint, flag boolean, n bigint",
}  # fmt: skip

# `logged`: the moves of a part, in order; `stretch`: the first position of the range that the
# history takes from here, -1: none; `gaps`: the number of holes in the history before it; `slice`:
# the slice of time in which its batch was ordered.
_OF_MOVES = {
    **causes.CAUSED,
    **arrivals.ARRIVALS,
    **arrivals.ANSWERED,
    **order.ORDER,
    "breaches": first_of_each(broken(causes.RULES | arrivals.RULES | order.RULES)),
    "moves": """
        SELECT queue, seq, time, op, flag, cause, of, detail, gaps
        FROM logged WHERE stretch >= 0 AND (op BETWEEN 2 AND 6 OR op = 10)""",
    "queue_moves": """
        SELECT queue, seq, time, op, flag, cause, of, gaps
        FROM logged WHERE stretch >= 0 AND op BETWEEN 7 AND 9""",
    "queue_history": "SELECT * FROM queue_moves",
    "counts": """
        SELECT 'moves' AS name, COUNT(*) AS n FROM logged
        UNION ALL SELECT 'high_waters', COUNT(*) FROM high_waters
        UNION ALL SELECT CASE WHEN op = 12 THEN 'reads' WHEN op = 1 THEN 'repeats'
            WHEN op = 14 AND flag THEN 'kept' WHEN op = 14 THEN 'grouped'
            WHEN cause = 0 THEN 'expired' ELSE 'replaced' END AS name, COUNT(*)
        FROM logged WHERE stretch >= 0 AND (op = 12 OR op = 1 AND cause = 3
            OR op = 14 AND cause = 0 OR op = 6 AND cause IN (0, 4)) GROUP BY 1""",
    "traffic": """
        SELECT slice AS number, op, cause, flag, COUNT(*) AS n
        FROM logged WHERE stretch >= 0 GROUP BY slice, op, cause, flag""",
}
_RULED = {"breaches", *order.ORDER, *causes.CAUSED, *arrivals.ARRIVALS, *arrivals.ANSWERED}
_OF_PLAIN_MOVES = {
    name: select
    for name, select in _OF_MOVES.items()
    if name not in _RULED or name in order.HIGHEST
}
_OF_SUBMISSIONS = {
    **order.SUBMISSIONS,
    "breaches": first_of_each(broken(order.RULES_OF_SESSIONS, more=order.MORE_OF_SESSIONS)),
    "counts": "SELECT 'blobs' AS name, COUNT(*) AS n FROM submissions",
}


class Slices(NamedTuple):
    """Slices of time by which moves are counted."""

    begin_us: int = 0
    length_us: int = 1 << 62  # all are in one


ALL_TIME = Slices()


class SegmentTask(NamedTuple):
    """One segment to be checked."""

    file: str
    following: str  # the next segment of the incarnation, "" = none at hand
    ranges: list[FileRange]  # the ranges for which it is the source of the canonical history
    whole: bool = False  # as read before: it need not be examined as closely again


def read_segment(task: SegmentTask, gaps: Sequence[int], slices: Slices) -> Iterator[Tables]:
    """Yield the tables of a segment; `gaps` are the last positions of the history's holes."""
    following = records_in(task.following) if task.following else ()
    records = records_of(task)
    return check_segment(records, following, task.ranges, gaps, slices)


def records_of(task: SegmentTask) -> Iterator[Record]:
    """Yield the records of a segment that its parts consist of, and at least these."""
    if not task.whole:
        return records_in(task.file)
    return records_of_kinds(task.file, *_KINDS)


def check_segment(
    records: Iterable[Record],
    following: Iterable[Record],
    ranges: Iterable[FileRange],
    gaps: Sequence[int] = (),
    slices: Slices = ALL_TIME,
) -> Iterator[Tables]:
    """Yield the tables of these records; `following` are those of the next segment."""
    parts, replay = SegmentParts(ranges, gaps, slices), Replay()
    for part in parts.of(_join_checkpoints(records)):
        plain = replay.take_part(part.records, part.moves, part.commands)
        statements = _OF_PLAIN_MOVES if plain else _OF_MOVES
        yield answer(statements, part.tables, [name for name in statements if name in SCHEMAS])
    for record in chain(parts.behind, _join_checkpoints(_queue_figures_after(following))):
        replay.take(record)
    given = {"submissions": table_of(parts.submissions, _SUBMISSIONS),
             "stretches": table_of(sorted(parts.stretches), _STRETCHES)}  # fmt: skip
    yield answer(_OF_SUBMISSIONS, given, ["breaches", "high_waters", "counts"])
    counts = [("within", parts.within), ("replayed", replay.moves),
              ("checkpoints", replay.checkpoints), ("compared", replay.compared)]  # fmt: skip
    yield {"breaches": table_of(replay.breaches, BREACHES),
           "counts": table_of(counts, SCHEMAS["counts"])}  # fmt: skip


def _queue_figures_after(following: Iterable[Record]) -> Iterator[Record]:
    """Yield the checkpoint at the beginning of the next segment, with its queues and readers."""
    for record in following:
        if isinstance(record, Batch | Start | Snapshot):
            return
        if isinstance(record, Checkpoint | Queues | Readers):
            yield record


def _join_checkpoints(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records, with the parts of a checkpoint joined."""
    joined: Checkpoint | None = None
    for record in records:
        if isinstance(record, Checkpoint):
            if joined is not None and joined.position == record.position:
                joined = joined._replace(queues=joined.queues + record.queues)
                continue
            if joined is not None:
                yield joined
            joined = record
            continue
        if joined is not None and not isinstance(record, Queues):
            yield joined
            joined = None
        yield record
    if joined is not None:
        yield joined


class Part(NamedTuple):
    """Consecutive batches after one state, and the tables "logged" and "commands"."""

    records: list[Record]  # of these batches, with others of the model's beside them
    batches: list[Batch]
    ranges: list[tuple[int, int]]  # that the history has from here
    moves: Columns
    commands: Columns
    tables: dict[str, pa.Table]

    def tells(self, position: int) -> bool:
        """Whether the history takes this position from here."""
        return any(first <= position <= last for first, last in self.ranges)


def columns_of_order(moves: dict[str, Ints]) -> dict[str, Ints]:
    """Return the place of each move, the position of the move before it in its batch, and the place
    of the last message published up to it; -1: none."""
    nth = np.arange(len(moves["op"]))
    makes = (moves["op"] == Op.PUBLISHED) & (moves["seq"] > 0) & (moves["cause"] != AGAIN)
    return {
        "nth": nth,
        "before": np.where(moves["ordinal"] > 0, np.roll(moves["position"], 1), -1),
        "source": np.maximum.accumulate(np.where(makes, nth, -1)),
    }


class SegmentParts:
    """The parts of a segment, and the submissions of sessions in it."""

    def __init__(
        self, ranges: Iterable[FileRange], gaps: Sequence[int] = (), slices: Slices = ALL_TIME
    ) -> None:
        self.submissions: list[tuple[int, int, int, str, int]] = []
        self.stretches: set[tuple[int, int, int, int]] = set()
        self.names: dict[int, str] = {}  # of queues, by number
        self.within = 0  # moves of messages that the history takes from here
        self.behind: list[Record] = []  # what is of no part: behind the last batch
        self._named: dict[int, tuple[bool, int]] = {}  # durable, highest priority
        self._cursor = RangeCursor(ranges)
        self._gaps = np.array(gaps, np.int64)
        self._slices = slices
        self._run = -1

    def of(self, records: Iterable[Record]) -> Iterator[Part]:
        """Yield the parts of these records, taken in order."""
        taken: list[Record] = []
        batches: list[Batch] = []
        commands, run, most = 0, 0, min(_COMMANDS_FIRST, _COMMANDS_MAX)
        for record in records:
            state = isinstance(record, Start | Snapshot)
            gap = full = False
            if batches and isinstance(record, Batch):
                last = batches[-1]
                gap = last.first_position + last.commands != record.first_position
                full = commands >= most
            if batches and (gap or full or state):
                yield self._part(taken, batches)
                taken, batches, commands, most = [], [], 0, _COMMANDS_MAX
            run += gap or state  # a gap is reported by the parser
            taken.append(record)
            match record:
                case Batch():
                    self._submitted(record, run)
                    batches.append(record)
                    commands += record.commands
                case Queues(queues):
                    for number, vhost, name, durable, max_priority in queues:
                        self.names[number] = f"{vhost} {name}"
                        self._named[number] = durable, max_priority
                case _:
                    self._cursor.advance(record)
        if batches:
            yield self._part(taken, batches)
            taken = []
        self.behind = taken

    def _submitted(self, batch: Batch, run: int) -> None:
        if batch.session and batch.outcomes[:2] not in _NOT_TAKEN:
            blob = batch.first_position, batch.session, batch.origin, batch.blob_no
            self.submissions.append((run, *blob))
            for first, last in self._cursor.ranges if run != self._run else ():
                holes = self._gaps[self._gaps < first]
                self.stretches.add((run, first, last, 1 + int(holes.max(initial=0))))
            self._run = run

    def _part(self, taken: list[Record], batches: list[Batch]) -> Part:
        firsts = [one.first_position for one in batches]
        counts, moves = unpack([one.moves for one in batches], firsts)
        lasts = np.array([one.first_position + one.commands - 1 for one in batches], np.int64)
        since_us = np.array([max(one.time_us - self._slices.begin_us, 0) for one in batches])
        position = moves["position"]
        stretch = np.full(len(position), -1, np.int64)
        for first, last in self._cursor.ranges:
            stretch[(position >= first) & (position <= last)] = first
        self.within += int(np.count_nonzero((stretch >= 0) & np.isin(moves["op"], OPS_OF_MESSAGES)))
        kinds = np.frombuffer(b"".join(one.kinds for one in batches), np.uint8).astype(np.int64)
        outcomes = np.frombuffer(b"".join(one.outcomes for one in batches), "<u2").astype(np.int64)
        first = batches[0].first_position
        commands = {
            "position": np.arange(first, first + len(kinds)), "kind": kinds, "outcome": outcomes,
        }  # fmt: skip
        beyond = position > np.repeat(lasts, counts)
        at = np.where(beyond, 0, position - first)
        time = np.minimum(position, _POSITION_MAX) << ORDINAL_BITS
        time |= np.minimum(moves["ordinal"], ORDINAL_MAX)
        kind = np.where(beyond, -1, kinds[at])
        logged = moves | columns_of_order(moves) | self._of_queues(moves) | {
            "kind": kind, "outcome": outcomes[at], "stretch": stretch,
            "caused": causes.BY_KIND[moves["op"], moves["cause"], kind],
            "gaps": np.searchsorted(self._gaps, position), "time": time,
            "slice": np.repeat(since_us // self._slices.length_us, counts),
        }  # fmt: skip
        tables = {"logged": pa.table(logged), "commands": pa.table(commands)}
        return Part(taken, batches, self._cursor.ranges, logged, commands, tables)

    def _of_queues(self, moves: dict[str, Ints]) -> dict[str, pa.Array]:
        """Return the log's facts about the queue of each move; nothing if it has no name."""
        numbers = np.array([-1, *sorted(self._named)], np.int64)
        at = np.searchsorted(numbers, moves["queue"], side="right") - 1
        nameless = (numbers[at] != moves["queue"]) | (moves["op"] == Op.PUBLISHED)
        known = [self._named.get(number, (False, 0)) for number in numbers.tolist()]
        durable = np.array([one for one, _ in known])
        max_priority = np.array([one for _, one in known], np.int64)
        return {
            "durable": pa.array(durable[at], mask=nameless),
            "max_priority": pa.array(max_priority[at], mask=nameless),
        }
