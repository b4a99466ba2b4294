"""Check of one segment: the rules of its moves, and their replay in the reference model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from tools.verify.contract.replay import Replay
from tools.verify.contract.rules import Breach, first_by_rule
from tools.verify.contract.segment_rules import HighWater, SegmentRules
from tools.verify.format.records import Batch, Checkpoint, Queues, Record, Snapshot, Start
from tools.verify.input.moves import Moves, join, unpack
from tools.verify.input.ranges_of_file import FileRange, RangeCursor

_BATCHES_MAX = 4096  # unpacked at once


class SegmentResult(NamedTuple):
    """What one segment shows by itself."""

    breaches: list[tuple[Breach, int]]  # the first of each rule, and how many
    high_waters: list[HighWater]
    moves: int
    within: int  # of messages, and this segment is their source
    checkpoints: int  # that were compared with what the moves before them lead to
    blobs: int  # what sessions submitted, each compared with the one before
    replayed: int  # moves that were replayed
    compared: int  # queues whose figures were compared


def check_segment(
    records: Iterable[Record],
    following: Iterable[Record],
    ranges: Iterable[FileRange],
) -> SegmentResult:
    """Check the records of a segment; `following` are those of the next one of its incarnation.

    `ranges` are those for which this segment is the source of the canonical history.
    """
    rules, replayed = SegmentRules(ranges), Replay()
    for record in chain(
        _join_checkpoints(records), _join_checkpoints(_queue_figures_after(following))
    ):
        rules.take(record)
        replayed.take(record)
    rules.finish()
    return SegmentResult(
        first_by_rule(rules.breaches + replayed.breaches), rules.high_waters, rules.moves,
        rules.within, replayed.checkpoints, rules.blobs, replayed.moves, replayed.compared,
    )  # fmt: skip


def _queue_figures_after(following: Iterable[Record]) -> Iterator[Record]:
    """Yield the checkpoint at the beginning of the next segment, and the names of its queues."""
    for record in following:
        if isinstance(record, Batch | Start | Snapshot):
            return
        if isinstance(record, Checkpoint | Queues):
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


def moves_within(records: Iterable[Record], ranges: Iterable[FileRange]) -> Iterator[Moves]:
    """Yield the moves in the ranges, in pieces."""
    cursor = RangeCursor(ranges)
    batches: list[Batch] = []
    for record in records:
        if batches and (isinstance(record, Start | Snapshot) or len(batches) == _BATCHES_MAX):
            yield _within(batches, cursor.ranges)
            batches = []
        if not cursor.advance(record) and isinstance(record, Batch) and record.moves:
            batches.append(record)
    if batches:
        yield _within(batches, cursor.ranges)


def _within(batches: list[Batch], ranges: list[tuple[int, int]]) -> Moves:
    moves = unpack([one.moves for one in batches], [one.first_position for one in batches])
    return join(
        [moves.take((moves.position >= first) & (moves.position <= last)) for first, last in ranges]
    )
