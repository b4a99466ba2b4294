"""Numbers that no log comes near are named; they ended the check with an error about integers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, get_origin, get_type_hints

import pytest

from tools.verify.format.countable import POSITION_BITS, _is_usual, uncountable
from tools.verify.format.moves import MOVE, Op
from tools.verify.format.records import (
    CHECKPOINT_ROW,
    KINDS,
    Batch,
    Checkpoint,
    ConfirmRecord,
    Durable,
    End,
    Queues,
    Record,
)

SMALL: dict[object, object] = {int: 7, str: "a", bytes: b"", bool: True, tuple: ()}
LARGE = (1 << 63, (1 << 64) - 1)


def small(kind: type[Record]) -> Record:
    """Return a record in which each number is 7."""
    hints = get_type_hints(kind)
    values = [SMALL.get(get_origin(hint) or hint) for hint in hints.values()]
    return tuple.__new__(kind, values)


def changed(kind: type[Record]) -> Iterator[tuple[str, int, Record]]:
    """Yield a record for each number and each value that it cannot have."""
    of_kind: Any = small(kind)
    for name, hint in get_type_hints(kind).items():
        if hint is int and name != "root":
            for value in LARGE if name in ("time_us", "wall_us") else (-1, *LARGE):
                yield name, value, of_kind._replace(**{name: value})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not End])
def test_a_number_that_cannot_be_is_named(kind: type[Record]) -> None:
    assert uncountable(7, small(kind)) == ""
    assert f"{KINDS[kind].name} {1 << 63} has lsn" in uncountable(1 << 63, small(kind))
    for name, value, record in changed(kind):
        assert f"has {name} {value}, which cannot be" in uncountable(7, record)
        assert not _is_usual(record)


def test_any_root_and_any_end_can_be() -> None:
    """A root is a hash; an END is only compared with what was counted."""
    for kind in KINDS:
        of_kind: Any = small(kind)
        if "root" in of_kind._fields:
            assert uncountable(7, of_kind._replace(root=(1 << 64) - 1)) == ""
    for _, _, record in changed(End):
        assert uncountable(7, record) == ""


def moved(seq: int) -> Batch:
    """Return a batch with a move of this number."""
    batch = small(Batch)
    assert isinstance(batch, Batch)
    return batch._replace(commands=1, moves=MOVE.pack(Op.SETTLED, 7, 1, seq, 1, (1 << 64) - 1))


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
            ConfirmRecord(1, 9, (1, 9), (9,)),
            ConfirmRecord(1, 9, (1, 1 << POSITION_BITS), ()),
        ),
        (ConfirmRecord(1, 9, (1, 9), None), ConfirmRecord(1, 9, (9,), (1 << POSITION_BITS,))),
        (
            Queues(((1, "/", "q", True, -1),)),
            Queues(((1, "/", "q", True, -1), (1 << 63, "/", "r", True, -1))),
        ),
        *(
            (
                Checkpoint(1, 1, 1, CHECKPOINT_ROW.pack(1, 1, 1, 1, (1 << 64) - 1)),
                Checkpoint(1, 1, 1, CHECKPOINT_ROW.pack(1, ready, 1, following, 1)),
            )
            for ready, following in ((1 << 63, 1), (1, 1 << 63))
        ),
    ],
)
def test_numbers_inside_of_fields(good: Record, bad: Record) -> None:
    assert uncountable(7, good) == ""
    assert "which cannot be" in uncountable(7, bad)
    assert not _is_usual(bad)


def test_a_look_at_the_usual_kinds_passes_nothing_else() -> None:
    usual = (moved(1), small(Durable), ConfirmRecord(1, 9, (1, 9), None))
    assert all(map(_is_usual, usual))
    for record, bits in product(usual, range(64)):
        of_kind: Any = record
        for name, hint in get_type_hints(type(record)).items():
            if hint is int and name not in ("root", "commands"):
                other = of_kind._replace(**{name: 1 << bits})
                assert _is_usual(other) == (uncountable(7, other) == "")
