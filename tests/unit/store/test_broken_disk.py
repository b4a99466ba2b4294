"""A disk that is read-only, gone or failing: how the error names it, and the remedy."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from broker.durability.store_writer import exit_of, exit_of_store
from broker.exit_codes import Exit
from store.commit_thread import CommitThread
from store.errors import (
    BROKEN,
    MEND,
    NO_SPACE,
    REFUSED,
    DiskBroken,
    FullMidway,
    NotWritable,
    StoreError,
    StoreFailed,
)
from store.files.durable_files import explain
from store.lmdb_store import LmdbStore
from tests.unit.store.test_journal import commit, filled

NUMBERS = [
    (errno.EROFS, DiskBroken, Exit.IO_ERROR),
    (errno.EIO, DiskBroken, Exit.IO_ERROR),
    (errno.ENODEV, DiskBroken, Exit.IO_ERROR),
    (errno.ENOENT, DiskBroken, Exit.IO_ERROR),
    (errno.EACCES, DiskBroken, Exit.IO_ERROR),
    (errno.ENOSPC, FullMidway, Exit.FULL),
    (errno.ENOMEM, StoreFailed, Exit.INTERNAL),
]


class Broken:
    """An environment whose commits fail, with the system's error as LMDB's text."""

    def __init__(self, env: lmdb.Environment, number: int) -> None:
        self._env, self._number = env, number
        self.info, self.stat, self.close = env.info, env.stat, env.close

    @contextmanager
    def begin(self, *, write: bool = False) -> Iterator[lmdb.Transaction]:
        with self._env.begin() as txn:
            if not write:
                yield txn
        if write:
            raise lmdb.Error(f"mdb_txn_commit: {os.strerror(self._number)}")


def refusing(number: int) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize(("number", "kind", "code"), NUMBERS)
@pytest.mark.parametrize("journaled", [True, False])
def test_a_failed_commit_names_the_file_the_cause_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type, code: Exit,
    *, journaled: bool,
) -> None:  # fmt: skip
    store = filled(tmp_path / "one", 2)
    with monkeypatch.context() as patch:
        if journaled:
            patch.setattr(os, "pwrite", refusing(number))
        else:
            patch.setattr(store, "_env", Broken(store._env, number))
        with pytest.raises(StoreFailed) as said:
            commit(store, 20 if journaled else 1 << 20)
    assert type(said.value) is kind
    assert exit_of_store(said.value) is exit_of(number) is code
    name = "journal" if journaled else "data.mdb"
    assert f"{tmp_path / 'one' / name}: commit failed: " in str(said.value)
    assert os.strerror(number) in str(said.value)
    if number in BROKEN:
        assert str(said.value).endswith(f"({errno.errorcode[number]}); {MEND}")
    with pytest.raises(kind):  # and says so to whoever asks for more
        commit(store)
    store.close()


@pytest.mark.parametrize(("number", "kind", "code"), NUMBERS)
def test_the_writer_passes_the_error_to_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type, code: Exit
) -> None:
    """Also if the check for space fails, of which LMDB knows nothing."""
    store = filled(tmp_path / "one", 2)
    told: list[StoreError] = []

    def broken(*_: object) -> None:
        raise OSError(number, os.strerror(number), str(store.path / "data.mdb"))

    async def run() -> None:
        monkeypatch.setattr(store._space, "own", broken)
        writer = CommitThread(store, asyncio.get_running_loop(), lambda _: None, told.append)
        writer.submit_meta(store.meta)
        await writer.drain()

    asyncio.run(run())
    assert exit_of_store(told[0]) is code
    assert type(told[0]) is kind
    store.close()


def test_a_removed_file_is_gone(tmp_path: Path) -> None:
    store = filled(tmp_path / "one", 2)
    shutil.rmtree(store.path)
    assert "No such file or directory (ENOENT)" in store.misplaced()
    with pytest.raises(DiskBroken, match=r"data.mdb: No such file or directory \(ENOENT\)"):
        commit(store, 64 << 20)
    store.close()


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EIO, DiskBroken), (errno.ENOSPC, FullMidway), (errno.EACCES, NotWritable)],
)
@pytest.mark.parametrize("of_lmdb", [True, False])
def test_an_environment_that_cannot_be_opened_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type, *, of_lmdb: bool
) -> None:
    """LMDB makes its lock file, and its binding the directory. (Without space it was code 65.)"""
    filled(tmp_path / "one", 1).close()
    text = f"{tmp_path}: {os.strerror(number)}"

    def refuse(*_: object, **__: object) -> None:
        raise lmdb.Error(text) if of_lmdb else OSError(number, os.strerror(number))

    monkeypatch.setattr(lmdb, "open", refuse)
    with pytest.raises(kind, match=f"{tmp_path / 'one'}.*{os.strerror(number)}"):
        LmdbStore(tmp_path / "one")


@pytest.mark.parametrize("number", BROKEN)
def test_a_start_on_a_failed_disk_differs_from_a_foreign_directory(number: int) -> None:
    error = explain(OSError(number, os.strerror(number)), Path("DIR"))
    assert exit_of_store(error) is Exit.IO_ERROR
    assert f"DIR: {os.strerror(number)}" in str(error)
    assert not isinstance(
        explain(PermissionError(13, "Permission denied"), Path("DIR")), DiskBroken
    )


def test_no_error_has_two_remedies() -> None:
    assert not set(REFUSED) & set(NO_SPACE)
    assert set(BROKEN) < set(REFUSED)


def test_a_store_opens_again_after_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path / "one", 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refusing(errno.EROFS))
        with pytest.raises(DiskBroken):
            commit(store)
    store.close()
    store = LmdbStore(tmp_path / "one")
    assert store.meta.position == 3
    store.close()
