"""Recorded bytes, read by the broker and by the check: two decoders of one documented format.

`golden/member.qml` is from a member of a cluster, `streams.qml` from one with a stream,
`readers.qml` begins where readers of a stream stand, `lease.qml` is from a leader of a shared
store. `client.qml` and `odd.qml` were made by hand after docs/MEMBERLOG.md and hold rare cases.
They are never regenerated: if one is read differently, so are logs that are already on disks.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import pytest

from broker.machine import commands, move_log
from broker.memberlog import codec, reader, records, segment_totals, segments
from tests.support.memberlog_writer import read_until_fault
from tools.verify.format import files, moves
from tools.verify.format import reader as own_reader
from tools.verify.format import records as own
from tools.verify.format.commands import Command, Outcome
from tools.verify.input.batch_summaries import KnownBatch, SegmentTotals
from tools.verify.input.tables import unpack

GOLDEN = Path(__file__).parent / "golden"
FILES = ("client.qml", "lease.qml", "member.qml", "odd.qml", "readers.qml", "streams.qml")
BEYOND = [6, 9, 10]
"""Records of `odd.qml` with numbers that the check does not count with."""
Plain = list[tuple[int, bytes, int, str, tuple[Any, ...]]]
Faults = list[tuple[str, int, bool]]


def read(data: bytes) -> tuple[Plain, Faults]:
    """Return what the broker's decoder reads up to the first fault, as plain values."""
    found, fault = read_until_fault(data)
    entries: Plain = [
        (one.lsn, one.link, one.end, type(one.record).__name__, tuple(one.record)) for one in found
    ]
    if fault is None:
        return entries, []
    if isinstance(fault, reader.NotALog | reader.OtherVersion):
        raise fault
    return entries, [(fault.what, fault.lsn, isinstance(fault, reader.TornTail))]


def read_by_the_check(data: bytes) -> tuple[Plain, Faults]:
    """Return what the check's decoder reads, as plain values."""
    faults: list[own_reader.Fault] = []
    entries: Plain = [
        (one.lsn, one.link, one.end, type(one.record).__name__, tuple(one.record))
        for one in own_reader.read_segment(data, "x", faults)
    ]
    return entries, [(one.what, one.lsn, one.torn_tail) for one in faults]


@pytest.mark.parametrize("name", FILES)
def test_both_decoders_read_the_same(name: str) -> None:
    entries, faults = read_by_the_check((GOLDEN / name).read_bytes())
    theirs, faults_of_theirs = read((GOLDEN / name).read_bytes())
    assert faults_of_theirs == []
    refused = [int(what.split()[1]) for what, _, _ in faults]
    assert refused == (BEYOND if name == "odd.qml" else [])
    assert entries == [one for one in theirs if one[0] not in refused]


@pytest.mark.parametrize("name", FILES)
def test_some_kinds_of_records_are_found_by_lengths_alone(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    read = list(own_reader.read_segment(data, "x", [], decode=own.decode_written))
    wanted = own.RecordKind.CONFIRM, own.RecordKind.BATCH
    some = [
        (one.lsn, one.record)
        for one in read
        if isinstance(one.record, own.ConfirmRecord | own.Batch)
    ]
    assert list(own_reader.read_kinds(data, *wanted)) == some
    assert list(own_reader.read_kinds(data[:-7] + bytes(40), *wanted)) == some


def test_the_files_have_all_kinds_of_records() -> None:
    kinds = Counter(kind for name in FILES for *_, kind, _ in read((GOLDEN / name).read_bytes())[0])
    assert kinds.keys() == {of.__name__ for of in own.KINDS}


@pytest.mark.parametrize("name", FILES)
def test_the_broker_still_writes_this_format(name: str) -> None:
    """A difference here is a change of the format: it needs a new version, and a golden file of
    it."""
    for one in reader.read_segment((GOLDEN / name).read_bytes(), "x"):
        again = codec.encode(one.lsn, one.record)
        # Rows may be packed differently where a batch is written again after it was spelled out.
        assert codec.decode(again) == (one.lsn, one.record)
        if not isinstance(one.record, records.Batch):
            assert again == one.payload
        if isinstance(one.record, records.Header):
            assert one.record.version == own_reader.VERSION == records.VERSION


def test_a_compressed_segment_equals_the_plain_one() -> None:
    plain, packed = GOLDEN / "member.qml", GOLDEN / "member.qml.gz"
    assert files.open_segment(packed) == segments.open_segment(packed) == plain.read_bytes()
    assert tuple(files.ends_of(packed)) == tuple(segments.ends_of(packed))
    assert files.ends_of(packed) == files.ends_of(plain)
    assert files.ends_of(plain).end is not None


def test_a_compressed_segment_that_claims_an_end_beyond_itself(tmp_path: Path) -> None:
    """`--fast` ended with a Python error about an integer, and named no file."""
    data = bytearray((GOLDEN / "member.qml.gz").read_bytes())
    data[16:32] = struct.pack("<QQ", 1 << 20, 2**64 - 1)  # size, and where the second part begins
    lying = tmp_path / "m.1.000000.qml.gz"
    lying.write_bytes(data)
    with pytest.raises(own_reader.LogError, match=r"m\.1\.000000\.qml\.gz: .*its end is missing"):
        files.ends_of(lying)


def test_rare_records_mean_what_the_document_says() -> None:
    found = [one.record for one in own_reader.read_segment(_odd(), "x", [])]
    header, view, queues, batch, low, none, *rest = found
    assert isinstance(header, own.Header)
    assert (header.member, header.role) == ("a/b", "member")
    assert view == own.ViewSeen(7 + 2, "b", False, ())
    assert queues == own.Queues(((3, "/", "q", True, -1), (2**32 - 1, "v", "p", False, 255)))
    assert isinstance(batch, own.Batch)
    rows = list(moves.MOVE.iter_unpack(batch.moves))
    assert len(rows) == 13 * 3  # PUBLISHED and PASSED, which stands for ENQUEUED and DELIVERED
    assert rows[3:6] == [
        (0x81, 8, 2, 101, 0xABC, 2**64 - 2),
        (0x82, 8, 3, 2, 101, 2**63 + 1),
        (0x03, 8, 3, 2, 0xDEF, 2**63 + 1),
    ]
    assert low == own.ConfirmRecord(1, 0, (65536, 65537, 65537, 65537 + 0x3FFF))
    assert none == own.ConfirmRecord(1, 0, ())
    assert isinstance(rest[-1], own.End)
    assert own.marks_of(rest[-1]) == [(65555, b"m" * 16)]


def test_moves_of_stream_readers_mean_what_the_document_says() -> None:
    data = (GOLDEN / "streams.qml").read_bytes()
    found = [one.record for one in own_reader.read_segment(data, "x", [])]
    named = [queue for one in found if isinstance(one, own.Queues) for queue in one.queues]
    assert named == [(1, "/", "log", True, 257)]
    rows = [
        row
        for one in found
        if isinstance(one, own.Batch)
        for row in moves.MOVE.iter_unpack(one.moves)
    ]
    whats = [what for what, *_ in rows]
    assert (whats[0], rows[0][4]) == (0x88, 258), "declared durable, and a stream"
    assert [seq for what, _, _, seq, _, _ in rows if what & 15 == moves.Op.ENQUEUED] == [0, 1, 2, 3]
    begin = [seq for what, _, _, seq, _, _ in rows if what == moves.Op.READER]
    assert begin == [1, 2, 3, 3]
    first = next(row for row in rows if row[0] == moves.Op.READER)
    read = [seq for what, _, _, seq, _, name in rows if (what, name) == (12, first[5])]
    assert read == [1, 2, 3]
    assert {what for what in whats if what & 15 == moves.Op.READ_END} == {
        0x0D, 0x1D, 0x2D, 0x3D, 0x5D, 0x6D,
    }  # fmt: skip


def test_offsets_of_readers_mean_what_the_document_says() -> None:
    data = (GOLDEN / "readers.qml").read_bytes()
    found = [one.record for one in own_reader.read_segment(data, "x", [])]
    assert [type(one) for one in found[:4]] == [
        own.Header, own.Queues, own.Readers, own.Checkpoint,
    ]  # fmt: skip
    rows = [
        list(own.READER_ROW.iter_unpack(one.readers))
        for one in found
        if isinstance(one, own.Readers)
    ]
    (everything, some), (left,) = rows
    assert everything[0] == some[0] == 1
    assert everything[1] == some[1] == left[1], "the readers share a channel"
    assert (everything[3:], some[3:]) == ((2, False), (3, True)), "one reader has no credit"
    assert left == (*some[:3], 5, True)


def test_records_of_a_leader_mean_what_the_document_says() -> None:
    data = (GOLDEN / "lease.qml").read_bytes()
    found = [one.record for one in own_reader.read_segment(data, "x", [])]
    first, last = (at for at, one in enumerate(found) if isinstance(one, own.Lease))
    before = [type(one) for one in found[:first]]
    assert before == [own.Header, own.Start, own.Checkpoint], "there is no view yet"
    behind = {type(one) for one in found[last + 1 :]}
    assert behind == {own.Checkpoint, own.Stop, own.End}
    taken, lost = found[first], found[last]
    assert isinstance(taken, own.Lease)
    assert isinstance(lost, own.Lease)
    assert (taken.what, lost.what, taken.token, taken.source) == (own.TAKEN, own.LOST, 1, 0)
    assert taken[1:5] == lost[1:5]
    boot, namespace = taken.clock.split("/")
    assert len(boot) == 36
    assert namespace.isdigit()
    assert taken.at_us < taken.until_us < lost.at_us < lost.until_us, (
        "the lease was renewed, then lost"
    )


def test_a_move_that_stands_for_two_becomes_two() -> None:
    """Compared with the rows decoded one by one, as docs/MEMBERLOG.md describes."""
    chance = random.Random(3)
    passed = (moves.PASSED, moves.PASSED | moves.FLAG)
    for _ in range(300):
        whats = chance.choices([*moves.WHATS, *passed * 9], k=chance.randrange(12))
        rows = [(what, *(chance.randrange(1 << n) for n in (16, 32, 64, 32, 64))) for what in whats]
        packed = b"".join(moves.MOVE.pack(*row) for row in rows)
        expected, number = [], None
        for what, index, queue, seq, of, detail in rows:
            if what not in passed:
                expected.append((what, index, queue, seq, of, detail))
            elif number is None:
                break
            else:
                expected.append((2 | what & 0x80, index, queue, seq, number, detail))
                expected.append((3, index, queue, seq, of, detail))
            if what & 15 == moves.Op.PUBLISHED:
                number = seq & 0xFFFF_FFFF
        else:
            assert list(moves.MOVE.iter_unpack(moves.expand(packed))) == expected
            assert moves.count(packed) == len(expected)
            assert len(moves.ops_of(packed[:: moves.MOVE.size])) == len(rows)
            continue
        for refuse in (moves.expand, moves.count):
            with pytest.raises(ValueError, match="before any was published"):
                refuse(packed)


def test_columns_are_the_same_for_single_and_combined_moves() -> None:
    """Whichever way the batches of a part were written, with one move for both or with two."""
    chance = random.Random(4)
    whats = [1, 1, 2, 3, 4, moves.PASSED, moves.PASSED | moves.FLAG]
    batches = [
        b"".join(
            moves.MOVE.pack(what, *(chance.randrange(1 << n) for n in (16, 32, 62, 32, 64)))
            for what in (1, *chance.choices(whats, k=chance.randrange(9)))
        )
        for _ in range(200)
    ]
    firsts = sorted(chance.sample(range(1 << 30), len(batches)))
    counts, columns = unpack([*batches, b""], [*firsts, 1 << 30])
    expected_counts, expected = unpack([*map(moves.expand, batches), b""], [*firsts, 1 << 30])
    assert counts.tolist() == expected_counts.tolist() == [*map(moves.count, batches), 0]
    assert {name: one.tolist() for name, one in columns.items()} == {
        name: one.tolist() for name, one in expected.items()
    }
    assert len(columns["op"]) > sum(len(one) // moves.MOVE.size for one in batches)


def _odd() -> bytes:
    return (GOLDEN / "odd.qml").read_bytes()


def test_both_decoders_judge_damage_alike() -> None:
    chance = random.Random(7)
    seen: Counter[str] = Counter()
    for name in FILES:
        if name == "odd.qml":
            continue  # some of its numbers are damage only to the check
        whole = (GOLDEN / name).read_bytes()[:1200]
        for _ in range(15):
            data = bytearray(whole)
            at = chance.randrange(8, len(data))
            match chance.randrange(4):
                case 0:
                    data[at] ^= 1 << chance.randrange(8)
                case 1:
                    del data[at:]
                case 2:
                    del data[at : at + chance.randrange(1, 300)]
                case _:
                    data[at:at] = data[at : at + chance.randrange(1, 300)]
            try:
                expected = read(bytes(data))
            except reader.LogError:
                with pytest.raises(own_reader.LogError):
                    read_by_the_check(bytes(data))
                continue
            (entries, faults), (wanted, wanted_faults) = read_by_the_check(bytes(data)), expected
            assert entries[: len(wanted)] == wanted
            assert [fault[1:] for fault in faults[:1]] == [fault[1:] for fault in wanted_faults]
            assert wanted_faults or entries == wanted
            seen.update("torn" if torn else "damaged" for _, _, torn in faults)
    assert min(seen["torn"], seen["damaged"]) > 5


def test_a_hole_of_any_size_is_damage_where_records_follow() -> None:
    """A loss of power leaves a hole where nothing was written; a large one was taken for a torn
    tail."""
    whole = (GOLDEN / "member.qml").read_bytes()
    entries, faults = read_by_the_check(whole[:1200] + bytes(1 << 9) + whole[1200:])
    assert faults == [("a record fails its checksum", 11, False)]
    assert len(entries) > 100
    noise = random.Random(7).randbytes(3 << 20)
    for hole in (bytes(3 << 20), b"\xff" * (3 << 20), noise):
        beyond, same = read_by_the_check(whole[:1200] + hole + whole[1200:])
        assert same == faults
        assert [one[0] for one in beyond] == [one[0] for one in entries]
        assert read_by_the_check(whole[:1200] + hole)[1] == [
            ("the last record is not complete", 11, True)
        ]


def test_more_packed_moves_than_lz4_can_count() -> None:
    """They ended the check with a Python error about an integer."""
    packed = [(1 << 31) // 27 + 1, bytes(9 << 20)]
    fields = [1, 1, 1, 1, 1, "a", 1, 1, 1, b"\1", bytes(2), *[bytes(16)] * 2, 1, bytes(16), packed]
    with pytest.raises(own.RecordMalformed, match="packed moves"):
        own.decode(msgpack.packb([6, 1, *fields]))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x06",
        msgpack.packb([]),
        msgpack.packb([0, 1]),
        msgpack.packb([17, 1, 2]),
        msgpack.packb([18, 1, "bought", 1, "o", 0, "c", 1, 2]),
        msgpack.packb([True, 1, 2]),
        msgpack.packb([9, 1]),
        msgpack.packb([9, 1, 2, 3]),
        msgpack.packb([9, -1, 2]),
        msgpack.packb([9, 1, "2"]),
        msgpack.packb([9, 1, True]),
        msgpack.packb([9, 1.0, 2]),
        msgpack.packb([9, 1, 2]) + b"\0",
        msgpack.packb([{}, 1, 2]),
        msgpack.packb([7, 1, 1, 1, b"\x80"]),
        msgpack.packb([7, 1, 1, 1, b"\x80" * 10 + b"\1"]),
        msgpack.packb([7, 1, 1, 1, None]),
        msgpack.packb([7, 1, 1, 1, b"", b""]),
        msgpack.packb([7, 1, 1, 1]),
        msgpack.packb([13, 1, 0, 0, b"short", 1, 1, 1, 1, 1, 1, b""]),
        msgpack.packb([13, 1, 0, 0, bytes(16), 1, 1, 1, 1, 1, 1, b"cut"]),
        msgpack.packb([14, 1, [[1, "v", "n", 1, -1]]]),
        msgpack.packb([14, 1, ["v"]]),
        msgpack.packb([15, 1, 1, 1, 1, b"cut"]),
        msgpack.packb([16, 1, 1, "q", 1, b"cut"]),
        msgpack.packb([16, 1, 1, "q", 1, b"\x08" + bytes(16)]),
        msgpack.packb([1, 0, 4, "n", "", "m", 1, 0, b"", "blake2b-16", 1, "guest"]),
    ],
)
def test_both_decoders_refuse_malformed_records(payload: bytes) -> None:
    with pytest.raises(codec.RecordMalformed):
        codec.decode(payload)
    with pytest.raises(own.RecordMalformed):
        own.decode(payload)


@pytest.mark.parametrize(
    "change",
    [
        {4: 2},  # of two commands
        {9: b""},
        {10: b"\0"},
        {11: b"short"},
        {15: b"cut"},
        {15: bytes(27)},  # a move of no kind
        {15: b"\x12" + bytes(26)},  # PASSED, with nothing published before
        {15: b"\x74" + bytes(26)},
        {15: None},
        {15: [1]},
        {15: [1, b"no block"]},
        {15: [1 << 40, b"\0"]},
        {15: [-1, b"\0"]},
        {15: ["1", b"\0"]},
        {15: [2, b"\x1f\x01\x00\x01\x00\x07\x50" + bytes(5)]},
    ],
)
def test_malformed_batches_are_refused(change: dict[int, object]) -> None:
    fields = [1, 1, 1, 1, 1, "a", 1, 1, 1, b"\1", bytes(2), *[bytes(16)] * 2, 1, bytes(16), b""]
    good = msgpack.packb([6, 1, *fields])
    assert tuple(own.decode(good)[1]) == tuple(codec.decode(good)[1]) == tuple(fields)
    for at, value in change.items():
        fields[at] = value
    test_both_decoders_refuse_malformed_records(msgpack.packb([6, 1, *fields]))


@pytest.mark.parametrize(
    "payload",
    [
        msgpack.packb([3, 1, 1, "a", True, [["a"]]]),
        msgpack.packb([3, 1, 1, "a", True, ["a"]]),
        msgpack.packb([4, 1, 1, 1, "a", 1, bytes(16), [["a", 1]], ["a"], False]),
        msgpack.packb([4, 1, 1, 1, "a", 1, bytes(16), [["a", 1, True]], [1], False]),
    ],
)
def test_the_check_refuses_malformed_members(payload: bytes) -> None:
    """They ended it with a traceback."""
    with pytest.raises(own.RecordMalformed):
        own.decode(payload)


def test_the_checks_numbers_are_those_of_the_broker() -> None:
    """The check has its own; a member that wrote others would be judged by the wrong rules."""
    for one in Command:
        assert getattr(commands, one.name) == one
    assert set(commands.CLASSES) == set(Command)
    for outcome in Outcome:
        assert getattr(commands, outcome.name) == outcome
    assert {op.name: int(op) for op in moves.Op} == {op.name: int(op) for op in move_log.Op}
    assert moves.WHATS == move_log.OPS_KNOWN
    assert moves.PASSED == move_log.PASSED
    assert moves.FORGOTTEN == move_log.FORGOTTEN
    assert [(op.name, int(op)) for op in own.ClientOp] == [
        (op.name, int(op)) for op in records.ClientOp
    ]


def test_both_count_totals_alike() -> None:
    for seed in range(3):
        chance = random.Random(seed)
        theirs, ours, position = segment_totals.SegmentTotals(), SegmentTotals(), 1
        taken: list[KnownBatch] = []
        for _ in range(800):
            commands_in_it = chance.choice((1, 3, 900, 2500))
            fields = (1, 1, 1, position, commands_in_it, "a", 1, 1, 1, b"", b"", b"", bytes(16), 1)
            theirs.take(records.Batch(*fields, b"", b""))
            taken.append(KnownBatch.of(own.Batch(*fields, b"", b""), 0))
            position += commands_in_it
            jumps = chance.random() < 0.01
            if jumps or chance.random() < 0.1:
                ours.take(taken)
                taken = []
            if jumps:
                position += 5000
                theirs.take(records.Snapshot(1, position - 1, bytes(16), 0, "b"))
                ours.state = position - 1, bytes(16)
        if taken:
            ours.take(taken)
        end = theirs.end()
        assert tuple(ours.end(end.records, end.confirms)) == tuple(end)
