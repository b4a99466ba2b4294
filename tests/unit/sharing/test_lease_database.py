"""Leases in SQLite: the contract, and its own failures; PostgreSQL's test is in tests/system."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from broker.options.modes.shared_store import DatabaseLock
from broker.sharing.databases import DatabaseTrouble, SQLite
from broker.sharing.generations import generation_path
from broker.sharing.lease_database import lease_in
from broker.sharing.leases import MARK
from store.errors import StoreMissing, StoreUnreadable
from tests.unit.sharing.lease_database_contract import LeaseDatabaseContract, lease

NORMAL = 1
"""The level of `PRAGMA synchronous` at which a commit to a write-ahead log is not flushed."""


class TestSqlite(LeaseDatabaseContract):
    @pytest.fixture
    def lock(self, tmp_path: Path) -> DatabaseLock:
        path = tmp_path / "lease.db"
        return DatabaseLock(f"sqlite://{path}", f"sqlite://{path}", path)

    def test_an_unavailable_database_is_trouble(self, store: Path, tmp_path: Path) -> None:
        path = tmp_path / "away" / "lease.db"
        one = self.of(store, DatabaseLock("", "", path))
        with pytest.raises(DatabaseTrouble, match="unable to open database file"):
            one.newest()
        path.parent.mkdir()
        assert one.newest() is None, "it is used once available"

    def test_a_locked_database_is_trouble(
        self, store: Path, lock: DatabaseLock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("broker.sharing.lease_database.PATIENCE_S_MIN", 0.0)
        one = self.of(store, lock)
        one.newest()
        assert lock.file is not None
        other = sqlite3.connect(lock.file, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseTrouble, match="locked"):
            one.claim(lease(1))
        other.close()
        assert one.claim(lease(1))

    def test_a_stalled_reader_blocks_no_renewal(self, store: Path, lock: DatabaseLock) -> None:
        one = self.of(store, lock)
        one.newest()
        assert one.claim(lease(1))
        assert lock.file is not None
        other = sqlite3.connect(lock.file, isolation_level=None)
        other.execute("BEGIN")
        assert other.execute("SELECT token FROM qpidd_store_lease").fetchall() == [(1,)]
        one.renew(lease(1, count=1))
        other.close()

    def test_the_file_is_locked_over_a_disk_flush_only_for_claims(
        self, store: Path, lock: DatabaseLock
    ) -> None:
        one = self.of(store, lock)
        one.newest()

        def durable() -> bool:
            assert isinstance(one._database, SQLite)
            assert one._database._connection is not None
            (level,) = one._database._connection.execute("PRAGMA synchronous").fetchone()
            return bool(level > NORMAL)

        assert one.claim(lease(1))
        assert durable()
        one.renew(lease(1, count=1))
        assert not durable()
        one.newest()
        assert one.claim(lease(2, "b")) is False
        assert durable()
        assert isinstance(one._database, SQLite)
        one._database._has_log = False  # it was refused: half of a page may reach the disk
        one.renew(lease(1, count=2))
        assert durable()

    def test_a_mark_of_another_release_is_named(self, store: Path, lock: DatabaseLock) -> None:
        (store / MARK).write_text("qpidd-lease-database 2 x\n")
        with pytest.raises(StoreUnreadable, match="start the release that wrote it"):
            self.of(store, lock)

    def test_a_generation_that_was_seen_is_not_forgotten(
        self, store: Path, lock: DatabaseLock
    ) -> None:
        """If it is away when this broker leads, an empty store would begin in its place."""
        one = self.of(store, lock)
        generation_path(store, 9).mkdir()
        one.newest()
        generation_path(store, 9).rmdir()
        with pytest.raises(StoreMissing):
            one.newest()
        assert one.complete == 9

    @pytest.mark.parametrize(("lease_ms", "patience_s"), [(800, 2.0), (30_000, 30.0)])
    def test_a_statement_may_take_as_long_as_the_lease(
        self, store: Path, lock: DatabaseLock, lease_ms: int, patience_s: float
    ) -> None:
        """A later answer is of no use; a short lease is no reason to give up at once."""
        database = lease_in(store, "shop", lock, lease_ms)._database
        assert isinstance(database, SQLite)
        assert database._patience_s == patience_s
