"""The log as a file: written, rotated, torn, repaired or damaged, and how the reader judges it."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.memberlog.codec import FRAME, MAGIC, NO_LINK, encode, frame, next_link
from broker.memberlog.reader import (
    BrokenLink,
    Damaged,
    Entry,
    LogError,
    MissingRecords,
    NotALog,
    OtherVersion,
    TornTail,
    read_segment,
)
from broker.memberlog.records import VERSION, Durable, End, Header, Stop
from broker.memberlog.writer import LogWriteFailed, MemberLogWriter
from tests.support.memberlog_writer import read_until_fault

ROOT = Path(__file__).parents[3]


def writer(directory: Path, segment_bytes: int = 1 << 20) -> MemberLogWriter:
    """Open the log of member a, incarnation 7."""
    return MemberLogWriter(directory, "prod", "", "a:1", 7, lambda: 123, segment_bytes)


def written(directory: Path, count: int, segment_bytes: int = 1 << 20) -> list[Path]:
    """Write a log of `count` Durable records; return its segments."""
    log = writer(directory, segment_bytes)
    for position in range(1, count + 1):
        log.append(Durable(position))
        log.flush()
    log.close()
    return sorted(directory.iterdir())


def read(path: Path) -> list[Entry]:
    """Read one segment."""
    return list(read_segment(path.read_bytes(), path.name))


def offsets(data: bytes) -> list[int]:
    """Return where each record starts."""
    found, offset = [], len(MAGIC)
    while offset < len(data):
        found.append(offset)
        offset += FRAME.size + FRAME.unpack_from(data, offset)[0]
    return found


class TestWriting:
    def test_appended_records_are_read_back(self, tmp_path: Path) -> None:
        (path,) = written(tmp_path, 3)
        assert path.name == "a:1.7.000000.qml"
        header, *rest = read(path)
        assert header.record == Header(VERSION, "prod", "", "a:1", 7, 0, NO_LINK, "blake2b-16", 123)
        assert [(entry.lsn, entry.record) for entry in rest] == [
            (1, Durable(1)), (2, Durable(2)), (3, Durable(3)),
            (4, End(0, 0, bytes(16), 5, 0, 0, 0, 0, 1024, b"")),
        ]  # fmt: skip

    def test_nothing_is_written_before_a_flush(self, tmp_path: Path) -> None:
        log = writer(tmp_path)
        before = log.path.stat().st_size
        assert log.append(Durable(1)) == 1
        assert log.next_lsn == 2
        assert log.path.stat().st_size == before
        log.flush()
        assert log.path.stat().st_size > before
        log.close()
        log.close()

    def test_segments_continue_each_other(self, tmp_path: Path) -> None:
        paths = written(tmp_path, 40, segment_bytes=300)
        assert len(paths) > 2
        lsn, link = 0, NO_LINK
        for number, path in enumerate(paths):
            entries = read(path)
            assert isinstance(entries[0].record, Header)
            assert (entries[0].record.segment, entries[0].record.prev_link) == (number, link)
            assert [entry.lsn for entry in entries] == list(range(lsn, lsn + len(entries)))
            lsn, link = lsn + len(entries), entries[-1].link

    def test_a_cluster_id_learned_later_is_in_the_next_header(self, tmp_path: Path) -> None:
        log = writer(tmp_path, segment_bytes=10)
        log.cluster_id = "abc"
        log.append(Durable(1))
        log.flush()
        header = read(log.path)[0].record
        assert isinstance(header, Header)
        assert header.cluster_id == "abc"
        log.close()

    def test_a_member_name_cannot_leave_the_directory(self, tmp_path: Path) -> None:
        log = MemberLogWriter(tmp_path, "prod", "", "../../x/y", 1, lambda: 0)
        assert log.path.parent == tmp_path
        log.close()

    def test_a_directory_that_cannot_be_created(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_text("")
        with pytest.raises(LogWriteFailed):
            writer(tmp_path / "log")


class TestResuming:
    def test_the_same_incarnation_continues(self, tmp_path: Path) -> None:
        written(tmp_path, 3)
        paths = written(tmp_path, 2)
        assert [[entry.lsn for entry in read(path)] for path in paths] == [
            [0, 1, 2, 3, 4], [5, 6, 7, 8],
        ]  # fmt: skip
        header = read(paths[1])[0].record
        assert isinstance(header, Header)
        assert header.prev_link == read(paths[0])[-1].link

    def test_at_any_cut_the_tail_is_repaired(self, tmp_path: Path) -> None:
        (path,) = written(tmp_path, 3)
        whole = path.read_bytes()
        starts = offsets(whole)
        for cut in range(len(whole)):  # the closing record is never left whole
            path.write_bytes(whole[:cut])
            survivors = sum(1 for start in [*starts[1:], len(whole)] if start <= cut)
            log = writer(tmp_path)
            assert log.next_lsn == max(survivors, 1)
            log.append(Durable(9))
            log.close()
            entries = read(path)
            assert [entry.lsn for entry in entries] == list(range(max(survivors, 1) + 2))
            assert isinstance(entries[-1].record, End)
            assert entries[-1].record.records == len(entries)

    def test_a_rotation_without_a_header_is_repeated(self, tmp_path: Path) -> None:
        paths = written(tmp_path, 40, segment_bytes=300)
        paths[-1].write_bytes(MAGIC[:5])
        log = writer(tmp_path, segment_bytes=300)
        expected = read(paths[-2])[-1].lsn + 2
        assert log.next_lsn == expected  # the new header was written
        log.append(Durable(1))
        log.flush()
        log.append(Durable(2))
        log.close()
        assert read(paths[-1])[0].lsn == expected - 1

    def test_damage_is_not_overwritten(self, tmp_path: Path) -> None:
        (path,) = written(tmp_path, 9)
        data = bytearray(path.read_bytes())
        data[offsets(bytes(data))[4] + FRAME.size] ^= 1
        path.write_bytes(data)
        with pytest.raises(Damaged):
            writer(tmp_path)


class TestReading:
    def test_every_cut_is_torn_and_nothing_else(self, tmp_path: Path) -> None:
        (path,) = written(tmp_path, 4)
        whole = path.read_bytes()
        ends = [*offsets(whole)[1:], len(whole)]
        for cut in range(len(whole)):
            entries, fault = read_until_fault(whole[:cut])
            assert len(entries) == sum(1 for end in ends if end <= cut)
            clean = cut in ends or cut == len(MAGIC)
            assert fault is None if clean else isinstance(fault, TornTail)

    def test_every_flipped_byte_is_detected(self, tmp_path: Path) -> None:
        (path,) = written(tmp_path, 4)
        whole = path.read_bytes()
        starts = offsets(whole)
        good = list(read_segment(whole, "x"))
        for at in range(len(MAGIC), len(whole)):
            data = bytearray(whole)
            data[at] ^= 0x41
            entries, fault = read_until_fault(bytes(data))
            assert fault is not None, at
            hit = max(i for i, start in enumerate(starts) if start <= at)
            assert fault.lsn == hit - 1
            assert [e.record for e in entries] == [e.record for e in good[:hit]]

    def test_a_removed_record_is_a_gap(self, tmp_path: Path) -> None:
        (path,) = written(tmp_path, 4)
        whole = path.read_bytes()
        starts = offsets(whole)
        entries, fault = read_until_fault(whole[: starts[2]] + whole[starts[3] :])
        assert isinstance(fault, MissingRecords)
        assert (fault.lsn, fault.what) == (1, "lsn 3 follows lsn 1")
        assert [entry.lsn for entry in entries] == [0, 1]

    @pytest.mark.parametrize("hole", [bytes(3 << 20), bytes(1 << 19), b"\x5a" * (3 << 20)])
    def test_a_hole_is_damage_where_records_follow(self, tmp_path: Path, hole: bytes) -> None:
        """A power loss leaves a hole of any size. (Regression: beyond 1 MiB it was taken for a
        torn tail.)"""
        (path,) = written(tmp_path, 4)
        whole = path.read_bytes()
        at = offsets(whole)[3]
        entries, fault = read_until_fault(whole[:at] + hole + whole[at:])
        assert isinstance(fault, Damaged)
        assert (fault.offset, fault.lsn) == (at, 2)
        assert [entry.lsn for entry in entries] == [0, 1, 2]
        assert isinstance(read_until_fault(whole[:at] + hole)[1], TornTail)

    def test_a_whole_record_of_unknown_kind_is_damage_even_at_the_end(self, tmp_path: Path) -> None:
        """No crash writes a valid checksum over a non-record. (Regression: taken for a
        torn tail.)"""
        (path,) = written(tmp_path, 2)
        unknown = frame(msgpack.packb([99, 4]), NO_LINK)
        entries, fault = read_until_fault(path.read_bytes() + unknown)
        assert isinstance(fault, Damaged)
        assert (fault.lsn, len(entries)) == (3, 4)

    def test_a_replaced_record_breaks_the_link(self, tmp_path: Path) -> None:
        (path,) = written(tmp_path, 4)
        whole = path.read_bytes()
        starts = offsets(whole)
        forged = frame(encode(2, Durable(99)), whole[starts[2] + 8 : starts[2] + 16])
        with pytest.raises(BrokenLink) as caught:
            list(read_segment(whole[: starts[2]] + forged + whole[starts[3] :], "x"))
        assert caught.value.lsn == 1

    def test_other_files_and_versions_are_refused(self) -> None:
        with pytest.raises(NotALog):
            list(read_segment(b"something else", "x"))
        for version in (VERSION - 1, VERSION + 1, "1", None):
            payload = msgpack.packb((1, 0, version, "what", "ever"))
            other = MAGIC + frame(payload, next_link(NO_LINK, payload))
            with pytest.raises(OtherVersion, match=f"version {version}.*the release that wrote"):
                list(read_segment(other, "x"))
        header = Header(VERSION, "prod", "", "a", 1, 0, NO_LINK, "sha3", 0)
        foreign = MAGIC + frame(encode(0, header), next_link(NO_LINK, encode(0, header)))
        with pytest.raises(OtherVersion, match="sha3"):
            list(read_segment(foreign, "x"))

    def test_a_segment_without_header(self) -> None:
        data = MAGIC + frame(encode(0, Durable(1)), NO_LINK)
        with pytest.raises(Damaged, match="header"):
            list(read_segment(data, "x"))

    def test_faults_can_be_pickled(self) -> None:
        fault = pickle.loads(pickle.dumps(Damaged("f", 3, 4, "why")))
        assert isinstance(fault, Damaged)
        assert (fault.offset, fault.lsn, str(fault)) == (3, 4, "f: why (byte 3, after lsn 4)")

    @settings(max_examples=60)
    @given(st.binary(max_size=200))
    def test_any_bytes_are_read_or_refused(self, tail: bytes) -> None:
        with suppress(LogError):
            list(read_segment(MAGIC + tail, "x"))


KILLED = """
import os, sys
from pathlib import Path
from broker.memberlog.records import VERSION, Durable
from broker.memberlog.writer import MemberLogWriter
log = MemberLogWriter(Path(sys.argv[1]), "prod", "", "a:1", 7, lambda: 0, 4000)
while True:
    for _ in range(5):
        lsn = log.append(Durable(log.next_lsn))
    log.flush()
    os.write(1, b"%d\\n" % lsn)
"""


def test_flushed_records_survive_kill(tmp_path: Path) -> None:
    reported = 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        # What was read before the kill counts too: on a busy machine nothing may follow it.
        lines = [process.stdout.readline().rstrip() for _ in range(50)]
        process.kill()
        lines += process.stdout.read().split(b"\n")
        process.stdout.close()
        process.wait()
        reported = max(reported, *(int(line) for line in lines[:-1]))
    log = writer(tmp_path)
    log.append(Stop("end", 0, b""))
    log.close()
    lsn = 0
    for path in sorted(tmp_path.iterdir()):
        for entry in read(path):
            assert entry.lsn == lsn
            lsn += 1
    assert lsn > reported > 200


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """No file can grow beyond this, as on a full disk: a write is cut short, and the next
    one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestADiskThatIsFull:
    def test_nothing_follows_a_record_that_could_not_be_written(self, tmp_path: Path) -> None:
        """Half a record followed by another would read as damage, not as a crash."""
        log = writer(tmp_path)
        log.append(Durable(1))
        log.flush()
        whole = log.path.stat().st_size
        with limited_file_size(whole + 10):
            log.append(Durable(2))
            with pytest.raises(LogWriteFailed):
                log.flush()
        log.append(Durable(3))
        with pytest.raises(LogWriteFailed):
            log.flush()
        with pytest.raises(LogWriteFailed):
            log.close()
        entries, fault = read_until_fault(log.path.read_bytes())
        assert [type(entry.record).__name__ for entry in entries] == ["Header", "Durable"]
        assert isinstance(fault, TornTail)
