"""Closed segments: always whole in one form while compressed, and dropped by the policy."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import json
import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.memberlog import archive
from broker.memberlog.archive import (
    ArchiveResult,
    archive_segments,
    command_line,
    dropped_in,
    is_due,
    verified_in,
)
from broker.memberlog.reader import Damaged, read_ends, read_segment
from broker.memberlog.records import Durable
from broker.memberlog.segments import (
    PACKED,
    ends_of,
    one_of_each,
    open_segment,
    pack,
    segments_in,
    unpack,
)
from broker.memberlog.writer import MemberLogWriter
from broker.options.retention import Policy
from broker.process.log_archiver import LogArchiver
from store.files.space import LAST_BYTES, UNFINISHED

DAY_S = 86_400
ROOT = Path(__file__).resolve().parents[3]


def write_incarnation(
    directory: Path, incarnation: int, segments: int, end: bool = True
) -> MemberLogWriter:
    """Write an incarnation of `closed` closed segments and one that is open or cut by a crash."""
    log = MemberLogWriter(directory, "prod", "c1", "a", incarnation, lambda: 1, 40_000)
    while len([path for path in segments_in(directory) if f".{incarnation}." in path.name]) <= (
        segments
    ):
        for position in range(50):
            log.append(Durable(position))
        log.flush()
    log.append(Durable(9))
    log.flush()
    if end:
        log.close()
    return log


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def tended(
    directory: Path, policy: Policy, current: str = "", now_s: float = 0
) -> list[ArchiveResult]:
    return list(archive_segments(directory, current, policy, now_s))


class TestBytes:
    @pytest.mark.parametrize("size", [0, 1, 16 << 10, 32 << 10, (32 << 10) + 1, 200_000])
    def test_compressed_bytes_come_back(self, size: int) -> None:
        data = (bytes(range(256)) * (size // 256 + 1))[:size]
        assert unpack(pack(data), "x") == gzip.decompress(pack(data)) == data

    def test_the_closing_record_is_read_without_the_rest(self, tmp_path: Path) -> None:
        write_incarnation(tmp_path, 1, 3)
        for path in segments_in(tmp_path)[:3]:
            data = path.read_bytes()
            packed = path.with_name(path.name + PACKED)
            packed.write_bytes(pack(data))
            expected = read_ends(BytesIO(data), "x")
            assert expected.end is not None
            assert ends_of(packed) == ends_of(path) == expected
            packed.write_bytes(gzip.compress(data))  # by hand
            assert ends_of(packed) == expected

    def test_damage_in_the_middle_does_not_hide_the_ends(self, tmp_path: Path) -> None:
        write_incarnation(tmp_path, 1, 1)
        path = segments_in(tmp_path)[0]
        packed = bytearray(pack(path.read_bytes() + path.read_bytes()))
        expected = ends_of(path)
        packed[len(packed) // 2] ^= 255
        other = path.with_name(path.name + PACKED)
        other.write_bytes(packed)
        assert ends_of(other).header == expected.header
        with pytest.raises(Damaged, match="the compressed file cannot be read"):
            open_segment(other)
        for cut in (0, 50, len(packed) // 2, len(packed) - 100):
            other.write_bytes(packed[:cut])
            with pytest.raises(Damaged, match="cannot be read"):
                ends_of(other)

    def test_a_segment_cut_between_its_two_parts_is_damaged(self, tmp_path: Path) -> None:
        packed = pack(bytes(100_000))
        with pytest.raises(Damaged, match="its end is missing"):
            unpack(packed[: packed.rindex(b"\x1f\x8b\x08")], "x")

    def test_a_segment_compressed_meanwhile_is_found(self, tmp_path: Path) -> None:
        write_incarnation(tmp_path, 1, 1)
        path = segments_in(tmp_path)[0]
        data, ends = path.read_bytes(), ends_of(path)
        assert [did.what for did in tended(tmp_path, Policy())] == ["compressed"] * 2
        assert not path.exists()
        assert (open_segment(path), ends_of(path)) == (data, ends)

    def test_a_missing_segment_is_missing(self, tmp_path: Path) -> None:
        for name in ("a.1.000000.qml", "a.1.000000.qml.gz"):
            with pytest.raises(FileNotFoundError):
                open_segment(tmp_path / name)
            with pytest.raises(FileNotFoundError):
                ends_of(tmp_path / name)

    def test_incarnations_are_ordered_by_number(self, tmp_path: Path) -> None:
        order = ["a.2.000000.qml", "a.2.000001.qml", "a.10.000000.qml", "a.10.000001.qml.gz"]
        paths = [tmp_path / name for name in (*order, "a.10.000000.qml.gz")]
        assert [path.name for path in one_of_each(reversed(paths))] == order


class TestCompression:
    def test_all_closed_segments_but_the_current_are_compressed(self, tmp_path: Path) -> None:
        crashed = write_incarnation(tmp_path, 1, 2, end=False)
        current = write_incarnation(tmp_path, 2, 2, end=False)
        before = {path.name: path.read_bytes() for path in segments_in(tmp_path)}
        done = tended(tmp_path, Policy(), current.path.name)
        assert [did.file for did in done] == [
            "a.1.000000.qml", "a.1.000001.qml", "a.2.000000.qml", "a.2.000001.qml",
        ]  # fmt: skip
        assert all(did.what == "compressed" and did.after < did.before for did in done)
        assert {path.name for path in segments_in(tmp_path) if path.suffix != PACKED} == {
            crashed.path.name, current.path.name,
        }  # fmt: skip
        assert {
            path.name.removesuffix(PACKED): open_segment(path) for path in segments_in(tmp_path)
        } == before
        assert tended(tmp_path, Policy(), current.path.name) == []

    def test_a_segment_keeps_its_age(self, tmp_path: Path) -> None:
        write_incarnation(tmp_path, 1, 1)
        path = segments_in(tmp_path)[0]
        os.utime(path, (1000, 1000))
        tended(tmp_path, Policy())
        assert segments_in(tmp_path)[0].stat().st_mtime == 1000

    @pytest.mark.parametrize("step", range(12))
    def test_killed_at_any_step_one_form_is_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        write_incarnation(tmp_path, 1, 1)
        path = segments_in(tmp_path)[0]
        data = path.read_bytes()
        steps = 0

        class KilledError(BaseException):
            pass

        def dying(name: str) -> None:
            original = getattr(archive if name == "sync_directory" else os, name)

            def call(*args: object, **more: object) -> object:
                nonlocal steps
                steps += 1
                if steps > step:
                    raise KilledError
                return original(*args, **more)

            monkeypatch.setattr(archive if name == "sync_directory" else os, name, call)

        for name in ("fsync", "chmod", "utime", "sync_directory", "replace", "rename", "unlink"):
            dying(name)
        with contextlib.suppress(KilledError):
            tended(tmp_path, Policy())
        monkeypatch.undo()
        assert len([p for p in segments_in(tmp_path) if ".1.000000." in p.name]) == 1
        assert open_segment(path if path.exists() else segments_in(tmp_path)[0]) == data
        for one in segments_in(tmp_path):
            assert list(read_segment(open_segment(one), "x"))
        tended(tmp_path, Policy())  # the next run completes it
        assert names(tmp_path) == ["a.1.000000.qml.gz", "a.1.000001.qml.gz"]
        assert open_segment(path) == data

    def test_two_differing_forms_are_left_to_the_operator(self, tmp_path: Path) -> None:
        write_incarnation(tmp_path, 1, 1)
        path = segments_in(tmp_path)[0]
        path.with_name(path.name + PACKED).write_bytes(pack(b"something else"))
        (failed,) = [did for did in tended(tmp_path, Policy(compress=False)) if did.why]
        assert "remove one of the two" in failed.why
        assert path.exists()

    def test_a_full_disk_leaves_the_plain_form(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_incarnation(tmp_path, 1, 0)
        monkeypatch.setattr(archive, "pack", lambda data: bytes(0))  # does not come back
        (did,) = tended(tmp_path, Policy())
        assert did.what == "failed"
        assert names(tmp_path) == ["a.1.000000.qml"]

    def test_a_disk_that_fills_up_halfway_is_not_filled_further(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_incarnation(tmp_path, 1, 0)
        synced = 0

        def full(fd: int) -> None:
            nonlocal synced
            synced += 1
            if synced == 3:  # after those of the segment and of its directory
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        (did,) = tended(tmp_path, Policy())
        assert "No space left" in did.why
        assert names(tmp_path) == ["a.1.000000.qml"]

    def test_the_last_space_of_a_disk_is_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """G21. The member needs it to record acks; compression can wait."""
        write_incarnation(tmp_path, 1, 0)
        size = len(pack(segments_in(tmp_path)[0].read_bytes()))
        free = LAST_BYTES + size - 1
        found = SimpleNamespace(f_bavail=free, f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda _path: found)
        (did,) = tended(tmp_path, Policy())
        assert did.what == "failed"
        assert "for the member" in did.why
        assert names(tmp_path) == ["a.1.000000.qml"]
        found.f_bavail += 1
        (did,) = tended(tmp_path, Policy())
        assert did.what == "compressed"

    def test_it_can_be_turned_off(self, tmp_path: Path) -> None:
        write_incarnation(tmp_path, 1, 1)
        assert tended(tmp_path, Policy(compress=False)) == []
        assert not is_due(tmp_path, "a.1.000000.qml", Policy())
        assert is_due(tmp_path, "a.1.000001.qml", Policy())
        assert is_due(tmp_path, "a.2.000000.qml", Policy(keep_s=1))

    def test_one_process_at_a_time(self, tmp_path: Path) -> None:
        write_incarnation(tmp_path, 1, 1)
        first = archive_segments(tmp_path, "", Policy(), 0)
        assert next(first).file == "a.1.000000.qml"
        command = [sys.executable, *command_line(tmp_path, "", Policy(), 0)]
        second = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(0.5)  # it waits, however long
        assert [did.file for did in first] == ["a.1.000001.qml"]
        output, _ = second.communicate()
        assert (second.returncode, output) == (0, b"")

    def test_one_whose_member_was_killed_ends_without_a_word(self, tmp_path: Path) -> None:
        """Both write to one log, in which a traceback is a fault of ours."""
        write_incarnation(tmp_path, 1, 2)
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, *command_line(tmp_path, "", Policy(), 0)]
        ended = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, check=False
        )
        os.close(writer)
        assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, b"")


class TestRetention:
    def aged(self, tmp_path: Path, incarnations: int = 1) -> list[Path]:
        """Write three segments each, the first dated day 1, the next a day later."""
        for incarnation in range(1, incarnations + 1):
            write_incarnation(tmp_path, incarnation, 2)
        paths = segments_in(tmp_path)
        for day, path in enumerate(paths, 1):
            os.utime(path, (day * DAY_S, day * DAY_S))
        return paths

    def verify(self, tmp_path: Path, paths: list[Path]) -> None:
        rows = [
            [header.member, header.incarnation, header.segment, link.hex()]
            for header, _, _, _, link in map(ends_of, paths)
        ]
        (tmp_path / "verified").write_text(json.dumps({"settled": rows, "rows": []}))

    def test_unverified_segments_stay(self, tmp_path: Path) -> None:
        paths = self.aged(tmp_path)
        policy = Policy(compress=False, keep_s=DAY_S)
        done = tended(tmp_path, policy, now_s=10 * DAY_S)
        assert [(did.what, did.file) for did in done] == [("kept unverified", paths[0].name)]
        assert segments_in(tmp_path) == paths

    def test_old_verified_segments_go_oldest_first(self, tmp_path: Path) -> None:
        paths = self.aged(tmp_path)
        self.verify(tmp_path, paths)
        done = tended(tmp_path, Policy(compress=False, keep_s=DAY_S), now_s=3.5 * DAY_S)
        assert [(did.what, did.file) for did in done] == [
            ("dropped", paths[0].name), ("dropped", paths[1].name),
        ]  # fmt: skip
        assert segments_in(tmp_path) == paths[2:]

    def test_compressed_segments_go_too(self, tmp_path: Path) -> None:
        paths = self.aged(tmp_path)
        self.verify(tmp_path, paths)
        tended(tmp_path, Policy())
        tended(tmp_path, Policy(keep_s=DAY_S), now_s=3.5 * DAY_S)
        assert names(tmp_path) == ["a.1.000002.qml.gz", "dropped", "verified"]

    @pytest.mark.parametrize("by_size", [False, True])
    def test_one_that_a_clock_that_went_back_makes_older_than_the_one_before_it_stays(
        self, tmp_path: Path, by_size: bool
    ) -> None:
        """It was dropped, and the one before it not: a gap in the middle of an incarnation."""
        paths = self.aged(tmp_path)
        os.utime(paths[1], (0.5 * DAY_S, 0.5 * DAY_S))
        total = sum(path.stat().st_size for path in paths)
        limit = {"keep_bytes": total - 1} if by_size else {"keep_s": 2 * DAY_S}
        policy = Policy(compress=False, drop_unverified=True, **limit)
        tended(tmp_path, policy, paths[2].name, now_s=2.75 * DAY_S)
        assert segments_in(tmp_path) == (paths[1:] if by_size else paths)

    def test_a_total_size(self, tmp_path: Path) -> None:
        paths = self.aged(tmp_path)
        self.verify(tmp_path, paths)
        total = sum(path.stat().st_size for path in paths)
        tended(tmp_path, Policy(compress=False, keep_bytes=total - 1))
        assert segments_in(tmp_path) == paths[1:]

    def test_none_goes_that_follows_one_that_stays_in_its_incarnation(self, tmp_path: Path) -> None:
        paths = self.aged(tmp_path, incarnations=2)
        self.verify(tmp_path, [*paths[1:3], *paths[3:5]])
        done = tended(tmp_path, Policy(compress=False, keep_s=DAY_S), now_s=99 * DAY_S)
        assert [(did.what, did.file) for did in done] == [
            ("kept unverified", paths[0].name), ("dropped", paths[3].name),
            ("dropped", paths[4].name), ("kept unverified", paths[5].name),
        ]  # fmt: skip

    def test_another_segment_of_that_name_is_not_the_verified_one(self, tmp_path: Path) -> None:
        paths = self.aged(tmp_path)
        self.verify(tmp_path, paths)
        text = (tmp_path / "verified").read_text()
        (tmp_path / "verified").write_text(text.replace(ends_of(paths[0]).link.hex(), "00" * 8))
        tended(tmp_path, Policy(compress=False, keep_s=1), now_s=99 * DAY_S)
        assert segments_in(tmp_path) == paths

    def test_unverified_segments_go_if_the_policy_allows_it(self, tmp_path: Path) -> None:
        paths = self.aged(tmp_path)
        policy = Policy(compress=False, keep_s=DAY_S, drop_unverified=True)
        done = tended(tmp_path, policy, paths[2].name, now_s=99 * DAY_S)
        assert [did.what for did in done] == ["dropped unverified"] * 2
        assert segments_in(tmp_path) == paths[2:]  # the one being written always stays

    def test_drops_are_noted_for_readers_of_the_rest(self, tmp_path: Path) -> None:
        paths = self.aged(tmp_path, incarnations=2)
        self.verify(tmp_path, paths[:1])
        policy = Policy(compress=False, keep_s=DAY_S, drop_unverified=True)
        tended(tmp_path, policy, paths[5].name, now_s=3.5 * DAY_S)
        assert dropped_in(tmp_path / "dropped") == {"a.1": (1, 1)}
        tended(tmp_path, policy, paths[5].name, now_s=99 * DAY_S)
        assert dropped_in(tmp_path / "dropped") == {"a.1": (2, 2), "a.2": (1, 2)}
        assert segments_in(tmp_path) == paths[5:]

    def test_a_share_of_the_file_system(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = self.aged(tmp_path)
        total = sum(path.stat().st_size for path in paths)
        disk = SimpleNamespace(f_blocks=2 * (total - 1), f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda _path: disk)
        tended(tmp_path, Policy(compress=False, keep_bytes=0.5, drop_unverified=True))
        assert segments_in(tmp_path) == paths[1:]

    def test_a_disk_too_full_for_the_note_is_freed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = self.aged(tmp_path)

        def full(_path: Path, _dropped: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(archive, "replace_file", full)
        policy = Policy(compress=False, keep_s=DAY_S, drop_unverified=True)
        done = tended(tmp_path, policy, paths[1].name, now_s=99 * DAY_S)
        assert [did.what for did in done] == ["failed", "dropped unverified"]
        assert segments_in(tmp_path) == paths[1:]

    def test_segments_after_the_current_one_stay_too(self, tmp_path: Path) -> None:
        """A member may have gone on to the next segment since it named the current one."""
        paths = self.aged(tmp_path)
        policy = Policy(keep_s=DAY_S, keep_bytes=1, drop_unverified=True)
        tended(tmp_path, policy, paths[1].name, now_s=99 * DAY_S)
        assert segments_in(tmp_path) == paths[1:]

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"settled": [1]}', '{"settled": [[1]]}'])
    def test_an_invalid_verified_point_verifies_nothing(self, tmp_path: Path, text: str) -> None:
        paths = self.aged(tmp_path)
        (tmp_path / "verified").write_text(text)
        with pytest.raises(ValueError, match="not a verified point of --save"):
            verified_in(tmp_path / "verified")
        done = tended(tmp_path, Policy(compress=False, keep_s=1), now_s=99 * DAY_S)
        assert [did.what for did in done] == ["failed", "kept unverified"]
        assert segments_in(tmp_path) == paths


class TestProcess:
    @pytest.mark.parametrize(
        "policy", [Policy(), Policy(False, 86_400, 0.125, True), Policy(True, 0, 1 << 40, False)]
    )
    def test_it_receives_the_whole_policy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
    ) -> None:
        given: list[object] = []

        def note(*arguments: object) -> list[ArchiveResult]:
            given.extend(arguments)
            return []

        monkeypatch.setattr(archive, "archive_segments", note)
        monkeypatch.setattr(os, "nice", lambda _more: 0)
        archive.main(command_line(tmp_path, "a.1.000002.qml", policy, 12.5)[2:])
        assert given == [tmp_path, "a.1.000002.qml", policy, 12.5]

    def test_a_disk_that_can_do_nothing_is_one_result(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def full(*_: object) -> list[ArchiveResult]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(archive, "archive_segments", full)
        monkeypatch.setattr(os, "nice", lambda _more: 0)
        assert archive.main(command_line(tmp_path, "a.1.000002.qml", Policy(), 0)[2:]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        did = ArchiveResult(**json.loads(line))
        assert (did.what, did.file) == (archive.FAILED, tmp_path.name)
        assert "No space left on device" in did.why

    def test_it_does_the_work_and_counts_it(self, tmp_path: Path) -> None:
        write_incarnation(tmp_path, 1, 1)
        (tmp_path / f"x.qml.gz{UNFINISHED}").write_bytes(b"left over")

        async def run() -> dict[str, int]:
            loop = asyncio.get_running_loop()
            policy = Policy(keep_bytes=1)
            archiver = LogArchiver(tmp_path, lambda: tmp_path / "a.1.000001.qml", policy, loop)
            archiver.closed(tmp_path / "a.1.000000.qml")
            archiver.tend()  # while it runs: one run more
            await archiver.idle()
            await archiver.stop()
            return archiver.counters

        counters = asyncio.run(run())
        assert names(tmp_path) == ["a.1.000000.qml.gz", "a.1.000001.qml"]
        assert counters["segments_closed"] == counters["segments_compressed"] == 1
        assert counters["segments_kept_unverified"] == 1
        assert counters["bytes_saved"] > 1000
        assert counters["archive_failures"] == 0

    @pytest.mark.parametrize("right", [True, False])
    def test_by_a_clock_that_is_not_right_nothing_is_too_old(
        self, tmp_path: Path, *, right: bool
    ) -> None:
        """A clock a year ahead dropped all closed segments, before anybody had looked at it."""
        write_incarnation(tmp_path, 1, 1)
        os.utime(tmp_path / "a.1.000000.qml", (0, 0))

        async def run() -> int:
            loop = asyncio.get_running_loop()
            policy = Policy(keep_s=86_400, drop_unverified=True)
            current = tmp_path / "a.1.000001.qml"
            archiver = LogArchiver(tmp_path, lambda: current, policy, loop)
            archiver.clock_is_right = lambda: right
            archiver.tend()
            await archiver.idle()
            return archiver.counters["segments_dropped_unverified"]

        assert asyncio.run(run()) == right
        assert ("a.1.000000.qml.gz" not in names(tmp_path)) is right

    def test_what_fails_each_time_is_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A full disk with a hundred segments logged a hundred lines at each new segment."""
        write_incarnation(tmp_path, 1, 1)
        (tmp_path / archive.DROPPED_NAME).write_text("no object")

        async def run() -> int:
            policy = Policy(keep_bytes=1 << 40)
            loop = asyncio.get_running_loop()
            archiver = LogArchiver(tmp_path, lambda: tmp_path / "a.1.000001.qml", policy, loop)
            for _ in range(2):
                archiver.tend()
                await archiver.idle()
            return archiver.counters["archive_failures"]

        assert asyncio.run(run()) == 2
        assert caplog.text.count("dropped cannot be compressed or dropped") == 1

    def test_a_failed_start_is_counted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_incarnation(tmp_path, 1, 0)
        monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))

        async def run() -> int:
            loop = asyncio.get_running_loop()
            archiver = LogArchiver(tmp_path, lambda: tmp_path / "x", Policy(), loop)
            archiver.tend()
            await archiver.idle()
            return archiver.counters["archive_failures"]

        assert asyncio.run(run()) == 1
