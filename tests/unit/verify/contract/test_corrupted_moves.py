"""Generated corruptions of moves in the logs of all members, which only the contract can find.

Each field of each kind of move is changed; each kind of move is left out, duplicated, or swapped
with the one before it; the same is done for names and figures of queues. Corruptions that cannot be
found are listed in UNSEEN with the reason, and the test fails if one is found after all. (A
corruption of one member alone differs from the others: G14.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("duckdb")

from broker.machine.move_log import FLAG, MOVE, Op
from broker.memberlog.records import (
    CHECKPOINT_ROW,
    READER_ROW,
    Batch,
    Checkpoint,
    Queues,
    Readers,
    Record,
)
from tests.system.verify.support.make_moves import (
    INCARNATIONS,
    MoveTuple,
    is_breached,
    packed,
)
from tests.system.verify.support.recorded_history import plain_history
from tools.verify.format.records import RecordMalformed

SEED = 20_261_121
SHARES = 8  # share of all corruptions, so that each test ends in time
DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "memberlog-blind-spots.md"
FIELDS = ("index", "queue", "seq", "of", "detail")
Corruption = tuple[str, int, Record]  # key, place in the log, new value

BODY = "only clients know what they sent: the check of their histories compares it"
ONCE = "logged once, and nothing else in a log depends on it"
TAG = "a number of the channel; clients' histories name it"
NAME = "text for people: moves have the number"
ORDER = "neither of the two depends on the other, so either order may be true"

ENDED = "as if the reader had ended, which is not logged"

CLAIM = "a claim, which only what is claimed later contradicts"

REFUSED = "as if the queue had refused the message: clients' histories name it"

UNSEEN: dict[str, str] = {
    "REPEATED.detail +1": ONCE,
    "REPEATED dropped": REFUSED,
    "READ_END.detail +1": TAG,
    "READ_END moved": ORDER,
    "NOTED doubled": "a repetition contradicts nothing",
    "NOTED moved": ORDER,
    "Queues.vhost changed": NAME,
    "Queues.name changed": NAME,
    "Readers without its first": ENDED,
    "PURGED moved": ORDER,
    "RETURNED moved": ORDER,
}

# Found at some places and not at others, with the reason.
PARTLY: dict[str, str] = {
    "DELIVERED moved": ORDER,
    "NOTED.queue +1": "of what is bound: only what is called unroutable later contradicts it",
    "NOTED.of +1": "of what is bound: it names the exchange for when that goes",
    "NOTED.cause +1": "of what is bound: as if it had been unbound",
    "NOTED.detail +1": CLAIM,
    "PUBLISHED.detail +1": BODY,
    "NOTED dropped": CLAIM,
    "SETTLED.detail +1": "of the first that its channel settles, where it settles no other",
    "DELIVERED.of +1": "what a get took, as it has no consumer, where it is not settled later",
    "DROPPED moved": ORDER,
    "READ moved": ORDER,
    "READER.flag negated": "where no checkpoint comes before its end: it then leaves nothing out",
    "READ_END dropped": "of what was browsed: it waits, and is not counted as unacked",
    "READ_END.cause +1": "as of RETURNED, and a nack of any kind is the same here",
    "PUBLISHED.of +1": ONCE,
    "REPEATED.seq +1": "where another message entered at that place: keys are not logged",
    "ENQUEUED.detail +1": "where the message is purged, as nothing names its content again",
    "PUBLISHED.flag negated": "where it reached no queue",
    "PURGED.flag negated": "where no later repeat contradicts it: keys are not logged",
    "PUBLISHED.queue +1": "where the channel publishes nothing later: numbers may have holes",
    "RETURNED.cause +1": "where the channel does nothing later: its end may go on at any command",
}


def corruptions_in(records: list[Record]) -> Iterator[Corruption]:
    """Yield every corruption of moves, names and figures."""
    for at, record in enumerate(records):
        match record:
            case Batch():
                rows: list[MoveTuple] = list(MOVE.iter_unpack(record.moves))
                for key, changed in _about_moves(rows):
                    yield key, at, record._replace(moves=packed(changed))
            case Queues(queues):
                number, vhost, name, durable, priority = queues[0]
                rest = queues[1:]
                for key, queue in (
                    ("Queues.number +1", (number + 90, vhost, name, durable, priority)),
                    ("Queues.vhost changed", (number, vhost + "x", name, durable, priority)),
                    ("Queues.name changed", (number, vhost, name + "x", durable, priority)),
                    ("Queues.durable negated", (number, vhost, name, not durable, priority)),
                    ("Queues.max_priority +1", (number, vhost, name, durable, priority + 1)),
                ):
                    yield key, at, Queues((queue, *rest))
                yield "Queues dropped", at, Queues(())
            case Checkpoint(_, root, next_message, packed_rows) if packed_rows:
                yield "Checkpoint.root +1", at, record._replace(root=root + 1)
                yield (
                    "Checkpoint.next_message +1",
                    at,
                    record._replace(next_message=next_message + 1),
                )
                row = list(CHECKPOINT_ROW.unpack_from(packed_rows))
                others = packed_rows[CHECKPOINT_ROW.size :]
                for i, field in enumerate(("number", "ready", "unacked", "next_seq", "ready_sum")):
                    changed = [*row[:i], row[i] + (90 if i == 0 else 1), *row[i + 1 :]]
                    changed_rows = CHECKPOINT_ROW.pack(*changed) + others
                    yield f"Checkpoint.{field} +1", at, record._replace(queues=changed_rows)
                yield "Checkpoint without its first", at, record._replace(queues=others)
            case Readers(packed_rows):
                row = list(READER_ROW.unpack_from(packed_rows))
                others = packed_rows[READER_ROW.size :]
                for i, field in enumerate(("number", "channel", "name", "offset")):
                    changed = [*row[:i], row[i] + 1, *row[i + 1 :]]
                    yield f"Readers.{field} +1", at, Readers(READER_ROW.pack(*changed) + others)
                flipped = READER_ROW.pack(*row[:-1], not row[-1])
                yield "Readers.filtered negated", at, Readers(flipped + others)
                yield "Readers without its first", at, Readers(others)
            case _:
                pass


def _about_moves(rows: list[MoveTuple]) -> Iterator[tuple[str, list[MoveTuple]]]:
    for i, row in enumerate(rows):
        name = Op(row[0] & 15).name
        others = rows[:i], rows[i + 1 :]
        yield f"{name}.flag negated", [*others[0], (row[0] ^ FLAG, *row[1:]), *others[1]]
        what = (row[0] & ~0x70) | ((row[0] + 0x10) & 0x70)
        yield f"{name}.cause +1", [*others[0], (what, *row[1:]), *others[1]]
        for at, field in enumerate(FIELDS, 1):
            changed = list(row)
            changed[at] += 1
            yield f"{name}.{field} +1", [*others[0], tuple(changed), *others[1]]  # type: ignore[list-item]
        yield f"{name} dropped", [*others[0], *others[1]]
        yield f"{name} doubled", [*others[0], row, row, *others[1]]
        if i and rows[i - 1] != row:
            yield f"{name} moved", [*rows[: i - 1], row, rows[i - 1], *others[1]]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """One correct log."""
    return plain_history().logs[INCARNATIONS[0]]


def is_seen(records: list[Record], corruption: Corruption) -> bool:
    """Whether the contract finds a corruption."""
    _, at, changed = corruption
    try:
        return is_breached([*records[:at], changed, *records[at + 1 :]])
    except RecordMalformed:  # damage that the reader reports
        return True


@pytest.mark.lies
def test_each_corruption_of_all_logs_is_found_or_listed(records: list[Record]) -> None:
    by_key: dict[str, list[Corruption]] = {}
    for corruption in corruptions_in(records):
        by_key.setdefault(corruption[0], []).append(corruption)
    assert len(by_key) > 90
    assert (UNSEEN.keys() | PARTLY.keys()) - by_key.keys() == set(), "there is no such corruption"
    chance = random.Random(SEED)
    for key, corruptions in by_key.items():
        if key not in PARTLY:
            corruption = chance.choice(corruptions)
            assert is_seen(records, corruption) is (key not in UNSEEN), corruption


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize("share", range(SHARES))
def test_every_corruption_of_all_logs(records: list[Record], share: int) -> None:
    seen: dict[str, set[bool]] = {}
    everything = list(corruptions_in(records))
    keys = {*sorted({key for key, *_ in everything})[share::SHARES]}
    for corruption in everything:
        if corruption[0] in keys:
            seen.setdefault(corruption[0], set()).add(is_seen(records, corruption))
    assert {key for key, ways in seen.items() if ways == {False}} == UNSEEN.keys() & keys
    assert {key for key, ways in seen.items() if len(ways) == 2} == PARTLY.keys() & keys


def test_the_lists_agree_with_the_document() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert [key for key in (*UNSEEN, *PARTLY) if f"`{key}`" not in text] == []
