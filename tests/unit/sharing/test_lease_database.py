"""The lease in a database: what it promises, over SQLite; PostgreSQL's is in tests/system."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from broker.options.active_passive import DatabaseLock
from broker.sharing.databases import DatabaseTrouble
from broker.sharing.leases import MARK
from store.errors import StoreUnreadable
from tests.unit.sharing.lease_database_contract import LeaseDatabaseContract, lease


class TestSqlite(LeaseDatabaseContract):
    @pytest.fixture
    def lock(self, tmp_path: Path) -> DatabaseLock:
        path = tmp_path / "lease.db"
        return DatabaseLock(f"sqlite://{path}", f"sqlite://{path}", path)

    def test_a_database_that_is_away_is_trouble(self, store: Path, tmp_path: Path) -> None:
        path = tmp_path / "away" / "lease.db"
        one = self.of(store, DatabaseLock("", "", path))
        with pytest.raises(DatabaseTrouble, match="unable to open database file"):
            one.newest()
        path.parent.mkdir()
        assert one.newest() is None, "and it is used when it is there"

    def test_a_database_that_is_locked_is_trouble(
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

    def test_a_mark_of_another_release_is_named(self, store: Path, lock: DatabaseLock) -> None:
        (store / MARK).write_text("qpidd-lease-database 2 x\n")
        with pytest.raises(StoreUnreadable, match="start the release that wrote it"):
            self.of(store, lock)
