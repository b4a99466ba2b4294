"""Clients' histories against members' logs, without Spark: counts in dictionaries.

A second, simpler form of `tools.verify.clients.check` for logs that fit into memory: it compares
confirms and received messages only, and needs logs of the whole history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.system.verify.support.checks_without_spark import rows_in
from tools.verify.checks.canonical_history import gaps, plan
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.clients.histories import extent_of, split_clients
from tools.verify.format.files import open_segment
from tools.verify.format.moves import CAUSE_SHIFT, FLAG, MOVE, Op
from tools.verify.format.reader import read_segment
from tools.verify.format.records import CLIENT_ROW, REDELIVERED, Batch, Client, ClientOp
from tools.verify.input.ranges_of_file import FileRange, RangeCursor
from tools.verify.input.segments import find_segments

LOW_HALF = 0xFFFF_FFFF  # of a number, by which moves name a message


class ClientComparison(NamedTuple):
    """The compared operations, and the mismatches, in sentences."""

    confirmed: int
    received: int
    mismatches: list[str]


class Move(NamedTuple):
    """One move of the canonical history."""

    position: int
    op: int
    flag: bool
    cause: int
    queue: int
    seq: int
    of: int
    detail: int


def compare_clients(places: list[Path]) -> ClientComparison:
    """Compare the clients' histories at and below the places with the members' logs there."""
    members, clients = split_clients(find_segments(places))
    rows = rows_in(members)
    stretches = plan(rows, check_control_rows(rows).epochs)
    assert all(extent_of(rows, gaps(stretches))[:3]), "the logs do not tell the whole history"
    ranges: dict[str, list[FileRange]] = defaultdict(list)
    for stretch in stretches:
        ranges[stretch.file].append(stretch.file_range)
    moves = [
        move for file, file_ranges in ranges.items() for move in _moves(Path(file), file_ranges)
    ]
    published = [move for move in moves if move.op == Op.PUBLISHED]
    numbered = Counter((move.detail, move.queue) for move in published)
    bodies = {(move.position, move.seq & LOW_HALF): move.detail for move in published}
    contents = {
        move.detail: bodies[move.position, move.of] for move in moves if move.op == Op.ENQUEUED
    }
    delivered = Counter(
        (contents[move.detail], move.flag) for move in moves if move.op == Op.DELIVERED
    )
    confirmed: Counter[tuple[int, int]] = Counter()
    received: Counter[tuple[int, bool]] = Counter()
    for path in clients:
        for what, body, number in _operations(path):
            if what == ClientOp.CONFIRMED:
                confirmed[body, number & LOW_HALF] += 1
            elif what & ~REDELIVERED == ClientOp.RECEIVED:
                received[body, what >= REDELIVERED] += 1
    mismatches = [f"confirmed, but not there: {one}" for one in confirmed - numbered]
    mismatches += [f"received, but not delivered so: {one}" for one in received - delivered]
    return ClientComparison(confirmed.total(), received.total(), mismatches)


def _moves(path: Path, ranges: Iterable[FileRange]) -> Iterator[Move]:
    cursor = RangeCursor(ranges)
    for entry in read_segment(open_segment(path), str(path), []):
        batch = entry.record
        cursor.advance(batch)
        if not isinstance(batch, Batch):
            continue
        first = batch.first_position
        if cursor.covers(first):
            for what, index, *rest in MOVE.iter_unpack(batch.moves):
                position = first + ((index - first) & 0xFFFF)
                cause = (what & ~FLAG) >> CAUSE_SHIFT
                yield Move(position, what & 15, what >= FLAG, cause, *rest)


def _operations(path: Path) -> Iterator[tuple[int, int, int]]:
    for entry in read_segment(open_segment(path), str(path), []):
        if isinstance(entry.record, Client):
            yield from CLIENT_ROW.iter_unpack(entry.record.ops)
