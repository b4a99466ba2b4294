"""One segment walked through: its conduct, and its moves made again in the second model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from broker.memberlog.records import Batch, Checkpoint, Queues, Record, Snapshot, Start
from tools.verify.contract.replay import Replay
from tools.verify.contract.rules import Breach, first_by_rule
from tools.verify.contract.segment_rules import Conduct, Reach
from tools.verify.input.moves import Moves, join, unpack
from tools.verify.input.ranges_of_file import Part, Place

_BATCHES_MAX = 4096  # unpacked at once


class Walked(NamedTuple):
    """What one segment shows by itself."""

    breaches: list[tuple[Breach, int]]  # the first of each rule, and how many
    reaches: list[Reach]
    moves: int
    within: int  # of messages, and this segment is their witness
    balances: int
    replayed: int  # moves that the model made
    compared: int  # queues that it arrived at


def walk(
    records: Iterable[Record],
    following: Iterable[Record],
    parts: Iterable[Part],
    *,
    replay: bool,
) -> Walked:
    """Walk through the records of a segment; `following` are those of the next one of its life.

    `parts` are what this segment is the witness of in the one history.
    """
    conduct, again = Conduct(parts), Replay()
    for record in chain(_in_one(records), _in_one(_stands_after(following))):
        conduct.take(record)
        if replay:
            again.take(record)
    conduct.finish()
    return Walked(
        first_by_rule(conduct.breaches + again.breaches), conduct.reaches, conduct.moves,
        conduct.within, conduct.balances, again.moves, again.compared,
    )  # fmt: skip


def _stands_after(following: Iterable[Record]) -> Iterator[Record]:
    """Yield what the next segment says of the queues before anything happens to them."""
    for record in following:
        if isinstance(record, Batch | Start | Snapshot):
            return
        if isinstance(record, Checkpoint | Queues):
            yield record


def _in_one(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records, the parts of one checkpoint as one."""
    whole: Checkpoint | None = None
    for record in records:
        if isinstance(record, Checkpoint):
            if whole is not None and whole.position == record.position:
                whole = whole._replace(queues=whole.queues + record.queues)
                continue
            if whole is not None:
                yield whole
            whole = record
            continue
        if whole is not None and not isinstance(record, Queues):
            yield whole
            whole = None
        yield record
    if whole is not None:
        yield whole


def moves_within(records: Iterable[Record], parts: Iterable[Part]) -> Iterator[Moves]:
    """Yield the moves in the parts, in pieces."""
    place = Place(parts)
    batches: list[Batch] = []
    for record in records:
        if batches and (isinstance(record, Start | Snapshot) or len(batches) == _BATCHES_MAX):
            yield _within(batches, place.ranges)
            batches = []
        if not place.moves_on(record) and isinstance(record, Batch) and record.moves:
            batches.append(record)
    if batches:
        yield _within(batches, place.ranges)


def _within(batches: list[Batch], ranges: list[tuple[int, int]]) -> Moves:
    moves = unpack([one.moves for one in batches], [one.first_position for one in batches])
    parts = [
        moves.take((moves.position >= first) & (moves.position <= last)) for first, last in ranges
    ]
    return join(parts)
