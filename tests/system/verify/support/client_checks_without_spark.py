"""What clients wrote against what members did, without Spark: counts in dictionaries.

A second, simpler form of `tools.verify.clients.check` for logs that fit into memory: it knows
confirms and receipts only, and judges logs that tell the whole history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from broker.machine.move_log import CAUSE_SHIFT, FLAG, MARK_MASK, MOVE, Op
from broker.memberlog.reader import read_segment
from broker.memberlog.records import CLIENT_ROW, REDELIVERED, Batch, Client, Did
from broker.memberlog.segments import open_segment
from tests.system.verify.support.checks_without_spark import rows_in
from tools.verify.checks.canonical_history import gaps, plan
from tools.verify.checks.control_checks import judge_control
from tools.verify.clients.histories import apart, known_by
from tools.verify.input.ranges_of_file import Part, Place
from tools.verify.input.segments import find_segments


class Heard(NamedTuple):
    """What was compared, and what did not fit, in sentences."""

    confirmed: int
    received: int
    wrong: list[str]


class Move(NamedTuple):
    """One move of the one history."""

    position: int
    op: int
    flag: bool
    cause: int
    queue: int
    seq: int
    of: int
    detail: int


def hear(places: list[Path]) -> Heard:
    """Compare the clients' histories at and below the places with the members' logs there."""
    members, clients = apart(find_segments(places))
    rows = rows_in(members)
    stretches = plan(rows, judge_control(rows).epochs)
    assert all(known_by(rows, gaps(stretches))), "the logs do not tell the whole history"
    parts: dict[str, list[Part]] = defaultdict(list)
    for stretch in stretches:
        parts[stretch.file].append(stretch.part)
    moves = [move for file, inside in parts.items() for move in _moves(Path(file), inside)]
    published = [move for move in moves if move.op == Op.PUBLISHED]
    numbered = Counter((move.detail, move.queue) for move in published)
    bodies = {(move.position, move.seq & MARK_MASK): move.detail for move in published}
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
            if what == Did.CONFIRMED:
                confirmed[body, number & MARK_MASK] += 1
            elif what & ~REDELIVERED == Did.RECEIVED:
                received[body, what >= REDELIVERED] += 1
    wrong = [f"confirmed, but not there: {one}" for one in confirmed - numbered]
    wrong += [f"received, but not delivered so: {one}" for one in received - delivered]
    return Heard(confirmed.total(), received.total(), wrong)


def _moves(path: Path, parts: Iterable[Part]) -> Iterator[Move]:
    place = Place(parts)
    for entry in read_segment(open_segment(path), str(path), []):
        batch = entry.record
        place.moves_on(batch)
        if not isinstance(batch, Batch):
            continue
        first = batch.first_position
        if place.has(first):
            for what, index, *rest in MOVE.iter_unpack(batch.moves):
                position = first + ((index - first) & 0xFFFF)
                cause = (what & ~FLAG) >> CAUSE_SHIFT
                yield Move(position, what & 15, what >= FLAG, cause, *rest)


def _operations(path: Path) -> Iterator[tuple[int, int, int]]:
    for entry in read_segment(open_segment(path), str(path), []):
        if isinstance(entry.record, Client):
            yield from CLIENT_ROW.iter_unpack(entry.record.ops)
