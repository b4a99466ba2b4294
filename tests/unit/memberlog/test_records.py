"""Records and their bytes: records round-trip, and no other bytes decode."""

from __future__ import annotations

from contextlib import suppress

import lz4.block
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.machine.move_log import BY_DEAD_LETTER, DELIVERED, ENQUEUED, FLAG, MOVE, PASSED
from broker.memberlog.codec import (
    PACKED_MOVES_MIN,
    RecordMalformed,
    decode,
    encode,
    pack_positions,
    unpack_positions,
)
from broker.memberlog.records import (
    CHECKPOINT_ROW,
    CLIENT_ROW,
    READER_ROW,
    Active,
    Batch,
    Checkpoint,
    Client,
    ConfirmRecord,
    Decided,
    Durable,
    End,
    Header,
    Inactive,
    Lease,
    Queues,
    Readers,
    Record,
    RecordKind,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)

U64 = (1 << 64) - 1
SAMPLES: list[Record] = [
    Header(
        2, "prod", "ab" * 16, "a:5672", 1_700_000_000, 3, b"prevlink", "blake2b-16", 5, "member"
    ),
    Start(4, 100, b"c" * 16, U64),
    ViewSeen(9, "a", True, (("a", 1), ("b", 2))),
    Active(5, 9, "a", 100, b"c" * 16, (("a", 1, False), ("b", 2, True)), ("a", "b", "c"), False),
    Inactive("view ended"),
    Decided(5),
    Batch(
        5, 9, 77, 101, 3, "a", 90, 12, 1_700_000, bytes([14, 14, 18]), b"\0\0\xc8\0\x94\1",
        b"h" * 16, b"C" * 16, U64, b"o" * 16,
        MOVE.pack(1, 101, 7, 12, 99, U64) + MOVE.pack(0x93, 102, 3, U64, 5, 6),
    ),
    ConfirmRecord(5, 120, (101, 102, 102, 5000)),
    ConfirmRecord(5, 120, ()),
    Snapshot(5, 200, b"c" * 16, 7, "b"),
    Durable(103),
    Stop("shutdown", 103, b"c" * 16),
    Vote(100, b"c" * 16, 8, "agreed"),
    End(101, 103, b"c" * 16, 9, 1, 3, 2, 2, 1024, b"\7" * 24),
    Queues(()),
    Queues(((1, "/", "orders", True, -1), (U64, "v", "x", False, 255))),
    Checkpoint(100, U64, 17, CHECKPOINT_ROW.pack(1, 3, 2, 9, U64)),
    Readers(b""),
    Readers(READER_ROW.pack(1, 2**32 - 1, U64, 3, True) + READER_ROW.pack(1, 2, 3, U64, False)),
    Lease("taken", 7, "ab" * 16, 6, "boot/1", 1_700, 2_500),
    Client(1, "orders", 1_700, CLIENT_ROW.pack(1, U64, 4) + CLIENT_ROW.pack(0x85, 3, 9)),
]  # fmt: skip


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_round_trips(record: Record) -> None:
    assert decode(encode(42, record)) == (42, record)


def test_confirms_may_leave_in_any_order() -> None:
    _, record = decode(encode(1, ConfirmRecord(1, 9, (7, 3, 12))))
    assert record == ConfirmRecord(1, 9, (3, 7, 12))


def test_every_kind_has_a_sample() -> None:
    assert {msgpack.unpackb(encode(0, record))[0] for record in SAMPLES} == set(RecordKind)


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_fields_of_the_wrong_number_or_type_are_refused(record: Record) -> None:
    fields = msgpack.unpackb(encode(1, record), use_list=False)
    wrong = [fields[:-1], (*fields, 0), ("x", *fields[1:]), (fields[0], -1, *fields[2:])]
    wrong += [(*fields[:i], 1.5, *fields[i + 1 :]) for i in range(2, len(fields))]
    for candidate in wrong:
        with pytest.raises(RecordMalformed):
            decode(msgpack.packb(candidate))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x01", b"\x90", b"\x92\x63\x01", b"\x91\x06"])
def test_other_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(RecordMalformed):
        decode(payload)


@pytest.mark.parametrize(
    "change", [{"commands": 2}, {"kinds": b"\x0e"}, {"outcomes": b"\0\0"}, {"chain": b"short"}]
)
def test_a_batch_must_be_consistent(change: dict[str, int | bytes]) -> None:
    batch = next(record for record in SAMPLES if isinstance(record, Batch))
    with pytest.raises(RecordMalformed):
        decode(encode(1, batch._replace(**change)))  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, PACKED_MOVES_MIN - 1, PACKED_MOVES_MIN, 1000])
def test_moves_round_trip(count: int) -> None:
    batch = next(record for record in SAMPLES if isinstance(record, Batch))
    moves = b"".join(MOVE.pack(DELIVERED, 7, 1, U64 - n, 9, n * 0x9E3779B9) for n in range(count))
    record = batch._replace(moves=moves)
    payload = encode(1, record)
    assert decode(payload) == (1, record)
    assert (len(payload) < len(moves)) == (count >= PACKED_MOVES_MIN)


@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("flag", [0, FLAG])
def test_a_message_that_passed_through_was_enqueued_and_delivered(count: int, flag: int) -> None:
    batch = next(record for record in SAMPLES if isinstance(record, Batch))
    numbers = range(1 << 33, (1 << 33) + count)
    recorded = [
        (MOVE.pack(BY_DEAD_LETTER, 7, 0, n, 0, 5), MOVE.pack(PASSED | flag, 7, 3, U64, 9, n))
        for n in numbers
    ]
    spelled = [
        (
            MOVE.pack(BY_DEAD_LETTER, 7, 0, n, 0, 5),
            MOVE.pack(ENQUEUED | flag, 7, 3, U64, n & 0xFFFF_FFFF, n),
            MOVE.pack(DELIVERED, 7, 3, U64, 9, n),
        )
        for n in numbers
    ]
    rows, moves = (b"".join(b"".join(one) for one in rows) for rows in (recorded, spelled))
    assert decode(encode(1, batch._replace(moves=rows))) == (1, batch._replace(moves=moves))


@pytest.mark.parametrize(
    "rows",
    [
        MOVE.pack(PASSED, 7, 3, 1, 9, 5) + MOVE.pack(BY_DEAD_LETTER, 7, 0, 1, 0, 5),
        MOVE.pack(ENQUEUED, 7, 3, 1, 9, 5) + MOVE.pack(PASSED, 7, 3, 2, 9, 5),
        MOVE.pack(BY_DEAD_LETTER, 7, 0, 1, 0, 5) + MOVE.pack(PASSED, 7, 3, 1, 9, 5)[:-1],
    ],
)
def test_a_message_that_passed_through_was_published_before(rows: bytes) -> None:
    batch = next(record for record in SAMPLES if isinstance(record, Batch))
    with pytest.raises(RecordMalformed):
        decode(encode(1, batch._replace(moves=rows)))


@pytest.mark.parametrize(
    "field",
    [
        (),
        (20,),
        (20, b"", 0),
        (20, 5),
        ("x", b"x"),
        (0, b""),
        (-1, b"x"),
        (1 << 40, b"x"),
        (1, b"x"),
        (20, b"\xff" * 20),
        (19, lz4.block.compress(bytes(27 * 20), store_size=False)),
        (21, lz4.block.compress(bytes(27 * 20), store_size=False)),
        (20, lz4.block.compress(bytes(27 * 20), store_size=False)),  # of an unknown kind
    ],
)
def test_invalid_packed_moves_are_refused(field: tuple[object, ...]) -> None:
    batch = next(record for record in SAMPLES if isinstance(record, Batch))
    fields = msgpack.unpackb(encode(1, batch), use_list=False)
    with pytest.raises(RecordMalformed):
        decode(msgpack.packb((*fields[:-1], field)))


@given(st.lists(st.integers(0, U64)).map(sorted))
def test_positions_round_trip_through_packing(positions: list[int]) -> None:
    assert unpack_positions(pack_positions(positions)) == tuple(positions)


def test_positions_that_do_not_ascend_are_a_bug() -> None:
    with pytest.raises(ValueError, match="ascend"):
        pack_positions([2, 1])


@pytest.mark.parametrize("packed", [b"\x80", b"\x80" * 10 + b"\x01"])
def test_positions_that_are_cut_or_endless_are_refused(packed: bytes) -> None:
    with pytest.raises(RecordMalformed):
        unpack_positions(packed)


@given(st.binary(max_size=80))
def test_decoding_anything_gives_a_record_or_a_refusal(payload: bytes) -> None:
    with suppress(RecordMalformed):
        decode(payload)
