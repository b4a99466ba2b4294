"""Numbers that the check can count with: a record with another one is damage, named by its field.

The format has unsigned 64-bit numbers.  Spark and numpy have signed ones, and the time of a move
has its position in the upper 43 bits: at ten thousand positions a second these last 28 years.  No
member's log comes near the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast, get_type_hints

from tools.verify.format.moves import MOVE
from tools.verify.format.reader import After, Entry, Fault, read_segment
from tools.verify.format.records import (
    CHECKPOINT_ROW,
    KINDS,
    READER_ROW,
    Batch,
    Checkpoint,
    ConfirmRecord,
    Durable,
    End,
    Queues,
    Readers,
    Record,
)

NUMBER_BITS, POSITION_BITS, SEGMENT_BITS, TIME_BITS = 62, 43, 31, 55
_BITS = {
    "position": POSITION_BITS, "first_position": POSITION_BITS, "base_position": POSITION_BITS,
    "durable_mark": POSITION_BITS, "segment": SEGMENT_BITS, "time_us": TIME_BITS,
    "wall_us": TIME_BITS,
}  # fmt: skip
_ANY = ("root",)  # of 64 bits
_CLOCKS = ("time_us", "wall_us")  # may show a time before 1970
_NUMBERS: dict[type[Record], list[tuple[int, str, int]]] = {
    of: [
        (at, name, _BITS.get(name, NUMBER_BITS))
        for at, (name, hint) in enumerate(get_type_hints(of).items())
        if hint is int and name not in _ANY
    ]
    for of in KINDS
}
_SEQ_HIGH = 14  # the highest byte of the number in a move


def countable_entries(
    data: bytes, source: str, faults: list[Fault], after: After | None = None, expanded: bool = True
) -> Iterator[Entry]:
    """Yield the records of a segment as `read_segment` does, without those that cannot be counted
    with: each of these is a fault.
    """
    for entry in read_segment(data, source, faults, after, expanded):
        if _is_usual(entry.record) and not entry.lsn >> NUMBER_BITS:
            yield entry
        elif what := uncountable(entry.lsn, entry.record):
            faults.append(Fault(what, entry.lsn))
        else:
            yield entry


def _is_usual(record: Record) -> bool:
    """Whether a record can be counted with, at one look: for the kinds that most records are of."""
    if isinstance(record, Batch):
        epoch, ring, seq, first, commands, _, session, blob, time, _, _, _, _, _, _, moves = record
        return (
            not (
                (epoch | ring | seq | session | blob) >> NUMBER_BITS
                or (first | commands | first + commands) >> POSITION_BITS
                or abs(time) >> TIME_BITS
            )
            and moves[_SEQ_HIGH :: MOVE.size].isascii()
        )
    if isinstance(record, ConfirmRecord):
        epoch, mark, positions, free = record
        last = (positions[-1] if positions else 0) | (free[-1] if free else 0)
        return not (epoch >> NUMBER_BITS or (mark | last) >> POSITION_BITS)
    return isinstance(record, Durable) and not record.position >> POSITION_BITS


def uncountable(lsn: int, record: Record) -> str:
    """Return which number of a record cannot be counted with, "" for none."""
    if isinstance(record, End):
        return ""  # compared with what was counted, and with nothing else
    for name, value, bits in _numbers(lsn, record):
        low = -(1 << bits) if name in _CLOCKS else 0
        if not low <= value < 1 << bits:
            kind = KINDS[type(record)].name
            return f"{kind} {lsn} has {name} {value}, which cannot be: 2^{bits} is beyond all logs"
    return ""


def _numbers(lsn: int, record: Record) -> Iterator[tuple[str, int, int]]:
    yield "lsn", lsn, NUMBER_BITS
    for at, name, bits in _NUMBERS[type(record)]:
        yield name, cast("int", record[at]), bits
    match record:
        case Batch():
            last = record.first_position + record.commands
            yield "first_position and commands to", last, POSITION_BITS
            for row in MOVE.iter_unpack(record.moves):
                yield "a move with number", row[3], 63
        case ConfirmRecord():
            for positions in (record.positions, record.transient or ()):
                yield "a position", positions[-1] if positions else 0, POSITION_BITS
        case Queues(queues):
            for number, *_ in queues:
                yield "a queue with number", number, NUMBER_BITS
        case Checkpoint():
            for row in CHECKPOINT_ROW.iter_unpack(record.queues):
                yield "a queue with", max(row[1], row[3]), 63
        case Readers():
            for row in READER_ROW.iter_unpack(record.readers):
                yield "a reader at", row[3], 63
        case _:
            pass
