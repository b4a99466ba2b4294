"""Journals with failing writes, damaged files, or another store's files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from store.errors import StoreCorrupt, StoreFailed
from store.journal import Journal
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore
from tests.unit.store.test_journal import commit, filled, in_lmdb, killed, positions


class FailsAtItsEnd:
    """An environment whose last write reaches the disk although its commit reports a failure."""

    def __init__(self, env: lmdb.Environment, meanwhile: Callable[[], None]) -> None:
        self._env, self._meanwhile = env, meanwhile

    @contextmanager
    def begin(self, *, write: bool = False) -> Iterator[lmdb.Transaction]:
        with self._env.begin(write=write) as txn:
            yield txn
        if write:
            self._meanwhile()
            raise lmdb.Error("mdb_txn_commit: Input/output error")

    def close(self) -> None:
        self._env.close()


class SaysWhoComes:
    """A lock that reports when a thread of this name waits for it."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.RLock()
        self.came = threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread().name == self._name:
            self.came.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_commit_that_waited_for_a_failed_write_confirms_nothing(tmp_path: Path) -> None:
    """A reader of the log brings the journal into LMDB, and fails while a commit waits for it."""
    store = filled(tmp_path / "one", 3)
    lock = SaysWhoComes("writer")
    inside, said = threading.Event(), [""]

    def meanwhile() -> None:
        inside.set()
        lock.came.wait()

    def write() -> None:
        inside.wait()
        try:
            store.commit(b"4", 4, 4, replace(meta, position=4))
        except StoreFailed as error:
            said[0] = str(error)

    meta = store.meta
    vars(store).update(_writing=lock, _env=FailsAtItsEnd(store._env, meanwhile))
    writer = threading.Thread(target=write, name="writer")
    writer.start()
    with pytest.raises(StoreFailed):
        positions(store)
    writer.join()
    assert "Input/output error" in said[0], "it was reported durable"
    left = killed(store, tmp_path / "left")
    store.close()
    again = LmdbStore(left)
    assert positions(again) == [1, 2, 3]
    again.close()


def test_records_lmdb_also_holds_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If LMDB's last commit is on disk after all, the journal begins before LMDB's end."""

    def failed(self: Journal) -> None:
        self.waiting, self.waiting_bytes = [], 0

    monkeypatch.setattr(Journal, "restart", failed)
    store = filled(tmp_path / "one", 3)
    store.put_meta(store.meta)
    commit(store)
    left = killed(store, tmp_path / "left")
    monkeypatch.undo()
    store.close()
    assert in_lmdb(left) == (True, 3)
    assert inspect(left).position == 4
    again = LmdbStore(left)
    assert positions(again) == [1, 2, 3, 4]
    again.close()


def test_a_store_that_is_older_than_its_journal_is_refused(tmp_path: Path) -> None:
    """An operator brought back one of the two files: what lies between them is nowhere."""
    store = filled(tmp_path / "one", 2)
    store.put_meta(store.meta)
    older = (tmp_path / "one" / "data.mdb").read_bytes()
    commit(store)
    store.put_meta(store.meta)
    commit(store)
    left = killed(store, tmp_path / "left")
    store.close()
    (left / "data.mdb").write_bytes(older)
    with pytest.raises(StoreCorrupt, match="a record is damaged before the one of position 4"):
        LmdbStore(left)


def test_a_journal_without_its_store_is_not_a_new_store(tmp_path: Path) -> None:
    store = filled(tmp_path / "one", 3)
    meta = store.meta
    left = killed(store, tmp_path / "left")
    store.close()
    (left / "data.mdb").unlink()
    with pytest.raises(StoreCorrupt, match="is gone, its journal is there"):
        LmdbStore(left, create=replace(meta, position=0))
