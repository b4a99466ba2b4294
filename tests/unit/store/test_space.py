"""A store on a disk without space: no commit meets it, and what was given up comes back (G21)."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from store.api import Meta
from store.errors import NoSpace
from store.files.space import RESERVE_NAME, START_BYTES, Reserve
from store.lmdb_store import LmdbStore

META = Meta("shop", "a", "s")


class Disk:
    """So much space is left for what is allocated; what is written goes where it was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        self._allocate = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self.allocate)

    def allocate(self, fd: int, start: int, length: int) -> None:
        more = start + length - os.fstat(fd).st_size
        if more > self.free:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.free -= max(0, more)
        self._allocate(fd, start, length)


def commit(store: LmdbStore, size: int) -> None:
    last = store.meta.position + 1
    store.commit(b"x" * size, last, last, replace(store.meta, position=last))


def test_a_commit_without_space_changes_nothing_and_is_done_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G21."""
    store = LmdbStore(tmp_path / "store", META)
    commit(store, 100)
    disk = Disk(monkeypatch, 0)
    with pytest.raises(
        NoSpace, match=r"store: No space left on device: 2\d\.\d MB more are needed"
    ):
        commit(store, 24 << 20)
    assert store.meta.position == 1
    commit(store, 100)  # what the file owns already is used
    disk.free = 40 << 20
    commit(store, 24 << 20)
    store.close()
    store = LmdbStore(tmp_path / "store")
    assert [first for first, _ in store.log(0)] == [1, 2, 3]
    store.close()


def test_less_than_a_step_is_taken_where_there_is_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbStore(tmp_path / "store", META)
    Disk(monkeypatch, 3 << 20)
    commit(store, 1 << 20)
    with pytest.raises(NoSpace):
        commit(store, 4 << 20)
    store.close()


def test_what_is_allocated_ahead_is_written_into(tmp_path: Path) -> None:
    """The file does not become longer by commits that fit into it, and opens again at any time."""
    store = LmdbStore(tmp_path / "store", META)
    commit(store, 1000)
    size = (tmp_path / "store" / "data.mdb").stat().st_size
    assert size > store.size_bytes() + (1 << 20)
    for _ in range(100):
        commit(store, 1000)
    assert (tmp_path / "store" / "data.mdb").stat().st_size == size
    store.close()
    store = LmdbStore(tmp_path / "store")
    assert store.meta.position == 101
    store.close()


def test_what_a_checkpoint_replaced_can_be_used_again(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", META, log_bytes_kept=0)
    commit(store, 8 << 20)
    assert store.reusable_bytes() < 1 << 20
    store.write_checkpoint(1, [b"small"], store.meta)
    assert store.reusable_bytes() > 7 << 20
    store.close()


def test_a_file_system_that_cannot_allocate_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(fd: int, start: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    store = LmdbStore(tmp_path / "store", META)
    commit(store, 1 << 20)
    assert store.meta.position == 1
    store.close()


def test_the_reserve_is_kept_given_up_once_and_taken_back(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    assert not reserve.held
    reserve.tend(2 * reserve.bytes + START_BYTES)
    assert reserve.held
    path = tmp_path / RESERVE_NAME
    assert path.stat().st_blocks * 512 >= reserve.bytes
    assert reserve.give_up()
    assert not reserve.give_up()
    assert not path.exists()
    reserve.tend(2 * reserve.bytes)
    assert not reserve.held
    reserve.tend(2 * reserve.bytes + START_BYTES)
    assert reserve.held
