"""A store on a full disk: no commit fails for space, and a reserve given up comes back (G21)."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from store.api import Meta
from store.errors import NoSpace
from store.files.space import (
    BESIDE_BYTES,
    RESERVE_NAME,
    START_BYTES,
    STEP_BYTES,
    OwnedSpace,
    Reserve,
)
from store.lmdb_environment import DATA_NAME
from store.lmdb_store import LmdbStore

META = Meta("shop", "a", "s")


class Disk:
    """A disk with this much space left to allocate; written bytes replace allocated ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        self._allocate = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self.allocate)
        monkeypatch.setattr(os, "statvfs", self.look)

    def look(self, _path: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=self.free, f_frsize=1, f_blocks=64 << 20)

    def allocate(self, fd: int, start: int, length: int) -> None:
        more = start + length - os.fstat(fd).st_size
        if more > self.free:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.free -= max(0, more)
        self._allocate(fd, start, length)


def commit(store: LmdbStore, size: int) -> None:
    last = store.meta.position + 1
    store.commit(b"x" * size, last, last, replace(store.meta, position=last))


def cut(directory: Path, ahead: int) -> None:
    """Make the file of a closed store own this much beyond what it uses."""
    store = LmdbStore(directory)
    used = store.size_bytes()
    store.close()
    os.truncate(directory / DATA_NAME, used)
    with (directory / DATA_NAME).open("ab") as file:
        file.write(bytes(ahead))


def test_a_commit_without_space_changes_nothing_and_succeeds_later(
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
    commit(store, 100)  # what the file already owns is used
    disk.free = 40 << 20
    commit(store, 24 << 20)
    store.close()
    store = LmdbStore(tmp_path / "store")
    assert [first for first, _ in store.log(0)] == [1, 2, 3]
    store.close()


def test_less_than_a_step_is_allocated_if_no_more_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbStore(tmp_path / "store", META)
    Disk(monkeypatch, 3 << 20)
    commit(store, 1 << 20)
    with pytest.raises(NoSpace):
        commit(store, 4 << 20)
    store.close()


def test_allocated_space_is_written_into(tmp_path: Path) -> None:
    """Commits that fit do not lengthen the file, and it opens again at any time."""
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


def test_space_of_a_replaced_checkpoint_is_reused(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", META, log_bytes_kept=0)
    commit(store, 8 << 20)
    assert store.reusable_bytes() < 1 << 20
    store.write_checkpoint(1, [b"small"], store.meta)
    assert store.reusable_bytes() > 7 << 20
    store.close()


def test_a_hole_in_the_file_is_no_space_that_it_owns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the file may have some."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    Disk(monkeypatch, START_BYTES + (1 << 20))
    space = OwnedSpace(path, lambda: 0)
    with pytest.raises(NoSpace):
        space.own(2 << 20, START_BYTES)
    space.own(2 << 20)


def test_a_file_system_that_cannot_allocate_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(fd: int, start: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    store = LmdbStore(tmp_path / "store", META)
    commit(store, 1 << 20)
    assert store.meta.position == 1
    store.close()


def test_the_reserve_is_kept_given_up_once_and_restored(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("ahead", range(0, STEP_BYTES + (1 << 20), 512 << 10))
def test_a_start_on_a_full_disk_leaves_the_space_others_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """G21. However much of its file an earlier process allocated ahead: a start that took a whole
    step more would take the space of the member log."""
    store = LmdbStore(tmp_path / "store", META)
    commit(store, 100)
    store.close()
    cut(tmp_path / "store", ahead)
    disk = Disk(monkeypatch, 3 << 20)
    store = LmdbStore(tmp_path / "store")
    store.put_meta(replace(store.meta, incarnation=7))
    for _ in range(20):
        commit(store, 1000)
    assert store.meta.position == 21
    assert disk.free >= (3 << 20) - 2 * BESIDE_BYTES
    store.close()


def test_a_checkpoint_on_a_full_disk_leaves_the_space_commits_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G21. What is left of a given-up reserve is there to drain queues with."""
    store = LmdbStore(tmp_path / "store", META)
    commit(store, 100)
    disk = Disk(monkeypatch, 24 << 20)
    staging = store.stage(1)
    staging.add([b"x" * (16 << 20)])
    with pytest.raises(NoSpace):
        staging.add([b"x" * (16 << 20)])
    assert disk.free >= START_BYTES
    staging.abandon()
    while store.trim():
        pass
    for _ in range(100):  # and commits use what it had allocated
        commit(store, 100_000)
    assert disk.free >= START_BYTES - BESIDE_BYTES
    store.close()


def test_a_small_checkpoint_is_written_where_a_start_would_write_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once everything is drained, it is what makes room."""
    store = LmdbStore(tmp_path / "store", META, log_bytes_kept=0)
    commit(store, 1 << 20)
    store.close()
    cut(tmp_path / "store", 0)
    disk = Disk(monkeypatch, (1 << 20) + 3 * BESIDE_BYTES)
    store = LmdbStore(tmp_path / "store", log_bytes_kept=0)
    store.write_checkpoint(1, [b"small"], store.meta)
    assert store.reusable_bytes() > 1 << 20
    assert disk.free >= 1 << 20
    store.close()


def test_garbage_is_trimmed_in_small_steps_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G21. A usual step would take the space of a given-up reserve."""
    store = LmdbStore(tmp_path / "store", META, log_bytes_kept=0)
    for _ in range(300):
        commit(store, 10_000)
    staging = store.stage(300)
    staging.add([b"small"])
    staging.finish()
    store.close()
    cut(tmp_path / "store", 0)
    disk = Disk(monkeypatch, 3 << 20)
    store = LmdbStore(tmp_path / "store", log_bytes_kept=0)
    while store.trim():
        pass
    assert store.reusable_bytes() > 2 << 20
    assert disk.free >= (3 << 20) - 2 * BESIDE_BYTES
    store.close()
