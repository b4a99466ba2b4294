"""One segment walked through: its conduct, and its moves made again in the second model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker.memberlog.records import Batch, Record
from tools.verify.conduct import Conduct, Reach
from tools.verify.moves import Moves, join, unpack
from tools.verify.replay import Replay
from tools.verify.rules import Breach, first_by_rule

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
    stretches: Iterable[tuple[int, int]],
    *,
    replay: bool,
) -> Walked:
    """Walk through the records of a segment; `following` are those of the next one of its life.

    `stretches` are the positions of which this segment is the witness in the one history.
    """
    conduct, again = Conduct(stretches), Replay()
    for record in records:
        conduct.take(record)
        if replay:
            again.take(record)
    after = list(_up_to_a_batch(following))
    conduct.finish(after)
    if replay:
        again.finish(after)
    return Walked(
        first_by_rule(conduct.breaches + again.breaches), conduct.reaches, conduct.moves,
        conduct.within, conduct.balances, again.moves, again.compared,
    )  # fmt: skip


def _up_to_a_batch(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        if isinstance(record, Batch):
            return
        yield record


def moves_within(records: Iterable[Record], stretches: list[tuple[int, int]]) -> Iterator[Moves]:
    """Yield the moves at the positions of the stretches, in pieces."""
    batches: list[Batch] = []
    for record in records:
        if isinstance(record, Batch) and record.moves:
            batches.append(record)
            if len(batches) == _BATCHES_MAX:
                yield _within(batches, stretches)
                batches = []
    if batches:
        yield _within(batches, stretches)


def _within(batches: list[Batch], stretches: list[tuple[int, int]]) -> Moves:
    moves = unpack([one.moves for one in batches], [one.first_position for one in batches])
    parts = [
        moves.take((moves.position >= first) & (moves.position <= last))
        for first, last in stretches
    ]
    return join(parts)
