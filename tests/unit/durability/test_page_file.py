"""The file of pages: what was put there comes back, space is used again, a sick disk is named."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from broker.durability import pages as page_file
from broker.durability.pages import GRAIN, PageFile
from broker.waiting.pager import Place
from store.errors import NotWritable, StoreFailed


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageFile:
    monkeypatch.setattr(page_file, "KEPT_FREE_SHARE", 0.0)  # of the disk that tests run on
    return PageFile(tmp_path)


def put(pages: PageFile, data: bytes) -> Place:
    place = pages.put(data)
    assert place is not None
    return place


def test_it_leaves_no_file_behind(tmp_path: Path) -> None:
    PageFile(tmp_path)
    assert not list(tmp_path.iterdir())


def test_whatever_comes_and_goes_is_what_it_was_and_ends_with_nothing(pages: PageFile) -> None:
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


def test_a_queue_that_moves_on_needs_no_more_file(pages: PageFile) -> None:
    waiting = [put(pages, bytes(10_000)) for _ in range(10)]
    longest = pages.file_bytes
    for _ in range(100):
        pages.drop(waiting.pop(0))
        waiting.append(put(pages, bytes(10_000)))
    assert pages.file_bytes == longest


def test_another_byte_than_was_written_is_noticed(pages: PageFile) -> None:
    place = put(pages, b"as it was")
    os.pwrite(pages._fd, b"A", place[0])
    with pytest.raises(StoreFailed, match="not what was written"):
        pages.get(place)


def test_an_older_page_of_the_same_place_is_noticed(pages: PageFile) -> None:
    before = put(pages, b"what was consumed")
    old = os.pread(pages._fd, GRAIN, before[0])
    pages.drop(before)
    place = put(pages, b"what waits today.")
    assert place[:2] == before[:2]
    os.pwrite(pages._fd, old, place[0])  # the system could not write it, and forgot it
    with pytest.raises(StoreFailed, match="not what was written"):
        pages.get(place)


def test_a_sick_disk_takes_no_page_and_is_said_once(
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


def test_a_full_disk_is_no_error(
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


def test_pages_leave_what_an_operator_wants_to_be_free(
    pages: PageFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--disk-free-limit`: below it publishers are blocked, and not for the sake of pages."""
    monkeypatch.setattr(page_file, "LOOK_BYTES", 1)
    found = os.statvfs(pages._fd)
    free = found.f_bavail * found.f_frsize
    pages.wanted_bytes = lambda: 2 * free
    assert pages.put(b"x") is None
    pages.wanted_bytes = lambda: 0
    assert pages.get(put(pages, b"x")) == b"x"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotWritable, match="missing"):
        PageFile(tmp_path / "missing")
