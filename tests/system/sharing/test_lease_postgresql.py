"""The lease of a shared store in a real PostgreSQL: its promises, and faults of the server.

Skipped where PostgreSQL is not installed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.options.modes.shared_store import DatabaseLock
from broker.sharing.databases import DatabaseTrouble
from broker.sharing.lease_database import TABLE
from tests.system.support.postgresql import PostgresServer, programs, running
from tests.unit.sharing.lease_database_contract import LeaseDatabaseContract, lease

BIN = programs()
pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(BIN is None, reason="PostgreSQL (initdb, postgres) is not installed"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    assert BIN is not None
    with running(BIN) as made:
        yield made


class TestPostgresql(LeaseDatabaseContract):
    @pytest.fixture
    def lock(self, server: PostgresServer, store: Path) -> DatabaseLock:
        lock = DatabaseLock(server.url(), "postgresql://qpidd:***@/postgres")
        one = self.of(store, lock)
        one._database.execute(f"DROP TABLE IF EXISTS {TABLE}")
        one.close()
        return lock

    def test_a_wrong_password_is_named_and_not_shown(
        self, store: Path, server: PostgresServer
    ) -> None:
        one = self.of(store, DatabaseLock(server.url("falsch"), "postgresql://qpidd:***@/postgres"))
        with pytest.raises(DatabaseTrouble, match="password authentication failed") as refused:
            one.newest()
        assert "falsch" not in str(refused.value)

    def test_a_password_may_be_in_a_file(
        self, store: Path, tmp_path: Path, server: PostgresServer
    ) -> None:
        """So that the password is not in the list of processes."""
        file = tmp_path / "pgpass"
        file.write_text("*:*:*:qpidd:geheim\n")
        file.chmod(0o600)
        url = f"postgresql://qpidd@/postgres?host={server.home}&passfile={file}"
        self.of(store, DatabaseLock(url, url)).newest()

    def test_a_stalled_server_is_given_up(
        self,
        store: Path,
        lock: DatabaseLock,
        server: PostgresServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The statement may still take effect later; its sender renews again."""
        monkeypatch.setattr("broker.sharing.lease_database.PATIENCE_S_MIN", 0.0)
        one = self.of(store, lock)
        one.newest()
        one.claim(lease(1))
        server.hold()
        try:
            with pytest.raises(DatabaseTrouble, match=r"no answer within 0\.8 s"):
                one.renew(lease(1, count=1))
        finally:
            server.let_go()
        one.renew(lease(1, count=2))

    def test_a_restarted_server_is_reconnected(
        self, store: Path, lock: DatabaseLock, server: PostgresServer
    ) -> None:
        one = self.of(store, lock)
        one.newest()
        one.claim(lease(1))
        server.stop()
        try:
            for _ in range(2):
                with pytest.raises(DatabaseTrouble):
                    one.renew(lease(1, count=1))
        finally:
            server.start()
        one.renew(lease(1, count=1))

    def test_an_existing_table_is_used(
        self, store: Path, lock: DatabaseLock, server: PostgresServer
    ) -> None:
        """By a user who may not create one."""
        owner = self.of(store, lock)
        owner.newest()
        owner._database.execute("DROP ROLE IF EXISTS poor")
        owner._database.execute("CREATE ROLE poor LOGIN PASSWORD 'poor'")
        owner._database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO poor")
        url = f"postgresql://poor:poor@/postgres?host={server.home}"
        assert self.of(store, DatabaseLock(url, url)).newest() is None

    def test_statements_of_many_threads_do_not_mix(self, store: Path, lock: DatabaseLock) -> None:
        """The thread of the lease renews while another looks for a later token."""
        one = self.of(store, lock)
        one.newest()
        one.claim(lease(1))
        seen: set[int] = set()
        threads = [
            threading.Thread(target=lambda: seen.update(one.newest_token() for _ in range(50)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for count in range(1, 50):
            one.renew(lease(1, count=count))
        for thread in threads:
            thread.join()
        assert seen == {1}
