"""Implausibly large numbers are named; they ended the check with an error about integers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast, get_origin, get_type_hints

import msgpack
import pytest

from tools.verify.format.commands import Command, Outcome
from tools.verify.format.moves import MOVE, Op
from tools.verify.format.records import (
    CHECKPOINT_ROW,
    KINDS,
    POSITION_BITS,
    READER_ROW,
    TAKEN,
    Batch,
    Checkpoint,
    ConfirmRecord,
    Durable,
    End,
    Lease,
    Queues,
    Readers,
    Record,
    RecordMalformed,
    decode,
)

SMALL: dict[object, object] = {int: 7, str: "a", bytes: b"", bool: True, tuple: ()}
HASHES = ("chain", "blob_hash", "order")
LARGE = (1 << 62, 1 << 63, (1 << 64) - 1)


def small(kind: type[Record]) -> Record:
    """Return a record of one command in which each number is 7."""
    fields: dict[str, object] = {
        name: bytes(16) if name in HASHES else SMALL[get_origin(hint) or hint]
        for name, hint in get_type_hints(kind).items()
        if name not in ("role", "what")
    }
    if kind is Batch:
        fields |= {"commands": 1, "kinds": b"\1", "outcomes": bytes(2)}
    if kind is Lease:
        fields |= {"what": TAKEN}
    return kind(**fields)  # type: ignore[arg-type]


def read(record: Record, lsn: int = 7) -> tuple[int, Record]:
    """Return what the check reads of such a record in a log."""
    fields: list[object] = list(record)
    if isinstance(record, ConfirmRecord):
        fields[2] = leb(record.positions)
    return decode(msgpack.packb([KINDS[type(record)], lsn, *fields]))


def leb(positions: tuple[int, ...]) -> bytes:
    """Return positions as a CONFIRM encodes them."""
    packed, before = b"", 0
    for position in positions:
        rest, before = position - before, position
        while rest > 0x7F:
            packed += bytes([rest & 0x7F | 0x80])
            rest >>= 7
        packed += bytes([rest])
    return packed


def changed(kind: type[Record]) -> Iterator[tuple[str, int, Record]]:
    """Yield a record for each number and each impossible value of it."""
    of_kind: Any = small(kind)
    for name, hint in get_type_hints(kind).items():
        if hint is int and name != "root":
            for value in LARGE if name in ("time_us", "wall_us") else (-1, *LARGE):
                yield name, value, of_kind._replace(**{name: value})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not End])
def test_an_impossible_number_is_named(kind: type[Record]) -> None:
    assert read(small(kind)) == (7, small(kind))
    for lsn in (-1, 1 << 62, 1 << 63):
        with pytest.raises(RecordMalformed, match=f"{KINDS[kind].name} {lsn} has lsn {lsn}"):
            read(small(kind), lsn)
    for name, value, record in changed(kind):
        with pytest.raises(RecordMalformed, match=f" 7 has {name} {value}, which cannot be"):
            read(record)


def test_any_root_and_any_end_are_possible() -> None:
    """A root is a hash; an END is only compared with what was counted."""
    for kind in KINDS:
        of_kind: Any = small(kind)
        if "root" in of_kind._fields:
            whole = of_kind._replace(root=(1 << 64) - 1)
            assert read(whole) == (7, whole)
    for _, _, record in changed(End):
        assert read(record) == (7, record)


def moved(seq: int) -> Batch:
    """Return a batch with a move of this number."""
    batch = small(Batch)
    assert isinstance(batch, Batch)
    return batch._replace(moves=MOVE.pack(Op.SETTLED, 7, 1, seq, 1, (1 << 64) - 1))


def of_queue(ready: int, following: int) -> Checkpoint:
    """Return a checkpoint of one queue."""
    return Checkpoint(1, 1, 1, CHECKPOINT_ROW.pack(1, ready, 1, following, (1 << 64) - 1))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (moved((1 << 63) - 1), moved(1 << 63)),
        (Durable((1 << POSITION_BITS) - 1), Durable(1 << POSITION_BITS)),
        (
            moved(1)._replace(first_position=(1 << POSITION_BITS) - 2),
            moved(1)._replace(first_position=(1 << POSITION_BITS) - 1),
        ),
        (
            ConfirmRecord(1, 9, (1, (1 << POSITION_BITS) - 1)),
            ConfirmRecord(1, 9, (1, 1 << POSITION_BITS)),
        ),
        (
            Queues(((1, "/", "q", True, -1),)),
            Queues(((1, "/", "q", True, -1), (1 << 63, "/", "r", True, -1))),
        ),
        (of_queue((1 << 63) - 1, 1), of_queue(1 << 63, 1)),
        (of_queue(1, (1 << 63) - 1), of_queue(1, 1 << 63)),
        *(
            (
                Readers(READER_ROW.pack(1, 1, 1, 7, True)),
                Readers(READER_ROW.pack(1, 1, 1, at, True)),
            )
            for at in (1 << 63, (1 << 64) - 1)
        ),
    ],
)
def test_numbers_inside_of_fields(good: Record, bad: Record) -> None:
    assert read(good) == (7, good)
    with pytest.raises(RecordMalformed):
        read(bad)


@pytest.mark.parametrize(
    ("kind", "outcome", "refused"),
    [
        (Command.PUBLISH, 0, ""),
        (0, 2, ""),
        (Command.PUBLISH, Outcome.REPEATED, ""),
        (Command.PUBLISH, 599, ""),
        (Command.ACTIVATE, Outcome.IGNORED, ""),
        (0, Outcome.OUT_OF_SEQUENCE, ""),
        (25, 0, "a batch with a command of kind 25"),
        (99, 0, "a batch with a command of kind 99"),
        (Command.PUBLISH, 4, "a batch with the outcome 4"),
        (Command.PUBLISH, 299, "a batch with the outcome 299"),
        (Command.PUBLISH, 600, "a batch with the outcome 600"),
        (Command.ACK, 200, "a batch with the outcome 200 of a command of kind 18"),
        (Command.TX_COMMIT, 200, "a batch with the outcome 200 of a command of kind 23"),
        (Command.GET, 201, "a batch with the outcome 201 of a command of kind 17"),
        (Command.PUBLISH, 2, "a batch with the outcome 2 of a command of kind 14"),
        (Command.TICK, 3, "a batch with the outcome 3 of a command of kind 66"),
        (0, 0, "a batch with the outcome 0 of a command of kind 0"),
        (0, 404, "a batch with the outcome 404 of a command of kind 0"),
    ],
)
def test_commands_and_outcomes_are_of_closed_lists(kind: int, outcome: int, refused: str) -> None:
    one = cast("Batch", small(Batch))._replace(
        commands=2, kinds=bytes((Command.TICK, kind)), outcomes=struct.pack("<HH", 0, outcome)
    )
    if not refused:
        assert read(one)[1] == one
        return
    with pytest.raises(RecordMalformed, match=f"^{refused}$"):
        read(one)
