"""The page file: pages come back as written, space is reused, and a failing disk is named."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from broker.durability import pages as page_file
from broker.durability.pages import GRAIN, PageFile
from broker.waiting.pager import Place
from store.errors import FullMidway, NotWritable, StoreFailed


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageFile:
    monkeypatch.setattr(page_file, "KEPT_FREE_SHARE", 0.0)  # of the disk the tests run on
    return PageFile(tmp_path)


def put(pages: PageFile, data: bytes) -> Place:
    place = pages.put(data)
    assert place is not None
    return place


def test_it_leaves_no_file_behind(tmp_path: Path) -> None:
    PageFile(tmp_path)
    assert not list(tmp_path.iterdir())


def test_pages_stay_intact_through_random_use_and_the_file_ends_empty(pages: PageFile) -> None:
    rng = random.Random(7)
    held: dict[Place, bytes] = {}
    for _ in range(300):
        if held and rng.random() < 0.45:
            place = rng.choice(list(held))
            assert pages.get(place) == held.pop(place)
            pages.drop(place)
        else:
            data = rng.randbytes(rng.choice((0, 1, 4080, 4088, 4089, 20_000)))
            held[put(pages, data)] = data
        assert all(pages.get(place) == data for place, data in held.items())
    assert pages.held_bytes >= len(held) * GRAIN
    for place in held:
        pages.drop(place)
    pages.tidy()
    assert (pages.held_bytes, pages.file_bytes) == (0, 0)


def test_a_queue_that_advances_needs_no_larger_file(pages: PageFile) -> None:
    waiting = [put(pages, bytes(10_000)) for _ in range(10)]
    longest = pages.file_bytes
    for _ in range(100):
        pages.drop(waiting.pop(0))
        waiting.append(put(pages, bytes(10_000)))
    assert pages.file_bytes == longest


def test_a_page_at_the_end_keeps_no_other_space_on_disk(pages: PageFile) -> None:
    """A drained backlog gives its space back wherever the last message lies."""
    mib = 1 << 20
    data = [os.urandom(mib) for _ in range(32)]  # nothing a file system could compress
    *drained, last = [put(pages, one) for one in data]
    assert pages.disk_bytes >= 32 * mib
    for place in drained:
        pages.drop(place)
    pages.tidy()
    if not pages._punches:
        pytest.skip("this file system cannot punch holes")
    assert pages.file_bytes == 32 * mib, "the file is not truncated"
    assert pages.disk_bytes < 16 * mib, "a file system may take a little more than the page"
    assert pages.get(last) == data[31]
    again = [put(pages, one) for one in data[:20]]
    assert pages.file_bytes == 32 * mib, "the gap is reused"
    assert [pages.get(place) for place in again] == data[:20]


@pytest.fixture
def punched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The holes punched, by offset and size."""
    calls: list[tuple[int, int]] = []

    def punch(_file: int, begin: int, size: int) -> int:
        calls.append((begin, size))
        return 0

    monkeypatch.setattr(page_file, "_punch_hole", punch)
    monkeypatch.setattr(page_file, "_FALLOCATE", punch)
    return calls


def test_only_gaps_are_released_and_once(punched: list[tuple[int, int]], pages: PageFile) -> None:
    places = [put(pages, bytes(GRAIN)) for _ in range(8)]
    for number in (1, 2, 5):
        pages.drop(places[number])
    assert not punched
    for _ in range(3):
        pages.tidy()
    assert punched == [(places[1][0], 2 * GRAIN), (places[5][0], GRAIN)]
    punched.clear()
    pages.drop(places[7])
    pages.tidy()
    assert pages.file_bytes == 7 * GRAIN, "the end is truncated"
    assert all(begin + size < pages.file_bytes for begin, size in punched)


def test_a_busy_writer_releases_what_it_does_not_use(
    punched: list[tuple[int, int]], pages: PageFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_file, "PUNCH_BYTES", 8 * GRAIN)
    moving = [put(pages, bytes(GRAIN)) for _ in range(20)]
    for _ in range(100):
        pages.drop(moving.pop(0))
        moving.append(put(pages, bytes(GRAIN)))
    assert not punched, "space reused at once stays"
    for place in moving[:9]:
        pages.drop(place)
    put(pages, bytes(GRAIN))
    assert sum(size for _, size in punched) == 9 * GRAIN


def test_without_hole_punching_the_file_still_works(
    pages: PageFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def punch(_file: int, begin: int, _size: int) -> int:
        asked.append(begin)
        return errno.EOPNOTSUPP

    monkeypatch.setattr(page_file, "_punch_hole", punch)
    monkeypatch.setattr(pages, "_punches", True)
    places = [put(pages, bytes(GRAIN)) for _ in range(6)]
    for number in (1, 3):
        pages.drop(places[number])
        pages.tidy()
    assert len(asked) == 1, "it is tried once"
    assert put(pages, bytes(GRAIN))[0] == places[1][0]
    assert not caplog.records


def test_a_changed_byte_is_detected(pages: PageFile) -> None:
    place = put(pages, b"as it was")
    os.pwrite(pages._fd, b"A", place[0])
    with pytest.raises(StoreFailed, match="not what was written"):
        pages.get(place)


def test_an_older_page_in_the_same_place_is_detected(pages: PageFile) -> None:
    before = put(pages, b"what was consumed")
    old = os.pread(pages._fd, GRAIN, before[0])
    pages.drop(before)
    place = put(pages, b"what waits today.")
    assert place[:2] == before[:2]
    os.pwrite(pages._fd, old, place[0])  # the system could not write it, and dropped it
    with pytest.raises(StoreFailed, match="not what was written"):
        pages.get(place)


def test_a_failing_disk_takes_no_page_and_is_reported_once(
    pages: PageFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def sick(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    for call in ("pwrite", "statvfs", "ftruncate"):
        caplog.clear()
        with monkeypatch.context() as disk:
            pages.drop(put(pages, b"to be cut"))
            disk.setattr(page_file, "LOOK_BYTES", 1)
            disk.setattr(os, call, sick)
            for _ in range(3):
                place = pages.put(b"x")
                assert (place is None) == (call != "ftruncate")
                if place is not None:
                    pages.drop(place)
                pages.tidy()
        assert len(caplog.records) == (call != "ftruncate"), call
    assert pages.get(put(pages, b"well again")) == b"well again"


def test_a_full_disk_is_not_an_error(
    pages: PageFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        assert pages.put(b"x") is None
    monkeypatch.setattr(page_file, "KEPT_FREE_SHARE", 1.0)
    monkeypatch.setattr(page_file, "KEPT_FREE_BYTES", 1 << 60)
    monkeypatch.setattr(page_file, "LOOK_BYTES", 1)
    assert pages.put(b"x") is None
    assert "too little free space" in caplog.text
    pages.tidy()
    assert pages.held_bytes == 0


def test_pages_leave_the_free_space_an_operator_wants(
    pages: PageFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--disk-free-limit`: below it publishers are blocked, and pages must not be the cause."""
    monkeypatch.setattr(page_file, "LOOK_BYTES", 1)
    found = os.statvfs(pages._fd)
    free = found.f_bavail * found.f_frsize
    pages.wanted_bytes = lambda: 2 * free
    assert pages.put(b"x") is None
    pages.wanted_bytes = lambda: 0
    assert pages.get(put(pages, b"x")) == b"x"


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotWritable, match="missing"):
        PageFile(tmp_path / "missing")


def test_a_disk_without_an_inode_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(FullMidway, match=r"pages cannot be made: No space.*; free space there"):
        PageFile(tmp_path)


def test_parts_are_one_page_and_come_back_in_pieces(
    pages: PageFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_file, "PIECE_BYTES", 1000)
    rng = random.Random(5)
    parts = [rng.randbytes(size) for size in (700, 0, 3000, 41)]
    whole = b"".join(parts)
    place = pages.put(parts)
    assert place is not None
    assert pages.get(place) == whole
    assert [len(piece) for piece in pages.pieces(place)] == [1000, 1000, 1000, 741]
    assert b"".join(pages.pieces(place)) == whole
    begin, size, checksum = place
    with pytest.raises(StoreFailed, match="not what was written there"):
        list(pages.pieces((begin, size, checksum ^ 1)))


def test_a_disk_that_fills_up_between_parts_takes_none(
    pages: PageFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def pwrite(_file: int, data: bytes, _at: int) -> int:
        taken.append(len(data) if len(taken) < 2 else 10)
        return taken[-1]

    monkeypatch.setattr(os, "pwrite", pwrite)
    assert pages.put([bytes(100)] * 5) is None
    assert taken == [100, 100, 10]
    pages.tidy()
    assert pages.held_bytes == 0
