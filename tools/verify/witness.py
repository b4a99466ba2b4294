"""One history out of the logs of all members: which file says what happened at which positions.

All members wrote the same moves, and `identity` compares them; so what befell a message is judged
once, over one witness for each position.  What a later primary did not know is left out, and where
no file is whole nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from broker.memberlog.records import Kind
from tools.verify.control import Life, Primary, ends_of
from tools.verify.identity import cuts
from tools.verify.rows import FAULT, SEGMENT, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POSITION_MAX = (1 << 62) - 1


class Stretch(NamedTuple):
    """Positions `first` to `last`, as `file` tells them."""

    file: str
    first: int
    last: int


class Gap(NamedTuple):
    """Positions that no file tells."""

    first: int
    last: int


def plan(rows: Iterable[Row], primaries: dict[int, Primary]) -> list[Stretch]:
    """Return one witness for each position that there is, ascending; few files rather than many.

    A file in which something is damaged serves only where no other does, and so does what the next
    life of the same member did not find on its disk: it may have been ordered otherwise then.
    """
    rows = list(rows)
    lowest = cuts(primaries)
    for epoch, base in _passed_over(rows, primaries).items():
        lowest[epoch] = min(base, lowest.get(epoch, base))
    damaged: set[str] = set()
    kept = _kept(rows)
    runs: list[tuple[int, bool, str, int]] = []  # first, to be trusted less, file, last
    for row in rows:
        if row.kind == FAULT:
            damaged.add(row.file)
        elif row.kind == SEGMENT:
            reach = kept.get((row.member, row.incarnation), POSITION_MAX)
            for first, last, decided in ends_of(row)["runs"]:
                last = min(last, lowest.get(decided, last))
                runs.append((first, False, row.file, min(last, reach)))
                runs.append((max(first, reach + 1), True, row.file, last))
    order = [
        (first, less or file in damaged, -last, file, last)
        for first, less, file, last in runs
        if first <= last
    ]
    return _cover(sorted(order))


def _kept(rows: list[Row]) -> dict[Life, int]:
    """Return up to where the next life of the same member began from what a life had applied."""
    starts = {(row.member, row.incarnation): row.position or 0 for row in rows
              if row.kind == Kind.START}  # fmt: skip
    kept: dict[Life, int] = {}
    for before, after in pairwise(sorted(starts)):
        if before[0] == after[0]:
            kept[before] = starts[after]
    return kept


def _passed_over(rows: list[Row], primaries: dict[int, Primary]) -> dict[int, int]:
    """Return the epochs that a later primary passed over, and where they began.

    Positions do not show it: of two histories that went on side by side the one that was taken up
    again may be the longer one.  But a state that was of an earlier epoch, when a life began with
    it, holds nothing that was ordered in between.
    """
    states: dict[tuple[int, bytes], int] = {}
    for row in rows:
        if row.kind == Kind.START:
            state, epoch = (row.position or 0, bytes(row.chain or b"")), row.epoch or 0
            states[state] = min(epoch, states.get(state, epoch))
    found: dict[int, int] = {}
    for epoch, primary in primaries.items():
        known = states.get((primary.base, primary.base_chain)) if primary.base > 0 else None
        if known is not None:
            found |= {one: primaries[one].base for one in primaries if known < one < epoch}
    return found


def _cover(runs: list[tuple[int, bool, int, str, int]]) -> list[Stretch]:
    """Cover what the runs cover, from the left; `runs` ascend by where they begin."""
    stretches: list[Stretch] = []
    reached = 0  # all up to here is covered, or nowhere told
    waiting: list[tuple[bool, int, str]] = []  # damaged, -last, file: begun, and not used up
    at = 0
    while at < len(runs) or waiting:
        while at < len(runs) and runs[at][0] <= reached + 1:
            _, bad, _, file, last = runs[at]
            waiting.append((bad, -last, file))
            at += 1
        waiting = [run for run in waiting if -run[1] > reached]
        if not waiting:
            if at < len(runs):
                reached = runs[at][0] - 1
            continue
        bad, ending, file = min(waiting)
        until = -ending
        if bad and at < len(runs):  # only up to where an undamaged one may begin
            until = min(until, max(reached + 1, runs[at][0] - 1))
        stretches.append(Stretch(file, reached + 1, until))
        reached = until
    return stretches


def gaps(stretches: list[Stretch]) -> list[Gap]:
    """Return where nothing is told, from position 1 on."""
    found: list[Gap] = []
    reached = 0
    for stretch in stretches:
        if stretch.first > reached + 1:
            found.append(Gap(reached + 1, stretch.first - 1))
        reached = stretch.last
    return found


def one_history(moves: DataFrame, stretches: list[Stretch]) -> DataFrame:
    """Return the moves of the one history, from the table "moves" of the files of the stretches."""
    from pyspark.sql import functions as f

    spark = moves.sparkSession
    said = spark.createDataFrame(stretches, "of_file string, first bigint, until bigint")
    inside = (moves.file == said.of_file) & moves.position.between(said["first"], said.until)
    return moves.join(f.broadcast(said), inside, "left_semi")
