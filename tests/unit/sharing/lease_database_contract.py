"""The contract of a lease in a database; each database's own test runs it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.options.modes.shared_store import DatabaseLock
from broker.sharing.databases import DatabaseTrouble
from broker.sharing.lease import Held, LeaseRecord
from broker.sharing.lease_database import TABLE, LeaseDatabase, lease_in
from broker.sharing.lease_directory import LeaseDirectory
from broker.sharing.leases import MARK, LeaseGone
from store.errors import StoreMissing, StoreUnreadable

LONG_MS = 60_000


def lease(token: int, holder: str = "a", cluster: str = "shop", **more: object) -> LeaseRecord:
    made = LeaseRecord(token, cluster, holder, f"host process {holder}", "now", LONG_MS, 0)
    return replace(made, **more)  # type: ignore[arg-type]


def _full(_fd: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class LeaseDatabaseContract:
    """Subclasses give the fixture `lock`: an empty database."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        path = tmp_path / "store"
        path.mkdir()
        return path

    @pytest.fixture(autouse=True)
    def _closed(self) -> Iterator[None]:
        self._made: list[LeaseDatabase] = []
        yield
        for one in self._made:
            one.close()

    def of(self, store: Path, lock: DatabaseLock, cluster: str = "shop") -> LeaseDatabase:
        leases = lease_in(store, cluster, lock, 800)
        self._made.append(leases)
        leases.open()
        return leases

    def test_a_lease_is_claimed_renewed_and_read(self, store: Path, lock: DatabaseLock) -> None:
        one, other = self.of(store, lock), self.of(store, lock)
        assert one.newest() is None
        assert one.claim(lease(1))
        one.renew(lease(1, count=1, generation=1))
        found = other.newest()
        assert found is not None
        assert found.lease == lease(1, count=1, generation=1)
        assert found == one.read(1)
        assert one.newest_token() == other.newest_token() == 1

    def test_only_one_of_many_gets_a_token(self, store: Path, lock: DatabaseLock) -> None:
        results: list[bool] = []
        contenders = [self.of(store, lock) for _ in range(6)]
        for one in contenders:
            while True:  # all create the table and the row at once: those too late retry
                try:
                    assert one.newest() is None
                    break
                except DatabaseTrouble:
                    continue
        start = threading.Barrier(len(contenders))

        def claim(index: int) -> None:
            start.wait()
            results.append(contenders[index].claim(lease(1, f"h{index}")))

        threads = [threading.Thread(target=claim, args=(one,)) for one in range(len(contenders))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [False] * 5 + [True]
        assert sorted(path.name for path in store.iterdir()) == [MARK]

    def test_a_lease_is_not_taken_before_it_is_over(self, store: Path, lock: DatabaseLock) -> None:
        one, other = self.of(store, lock), self.of(store, lock)
        one.newest()
        one.claim(lease(1))
        other.newest()
        assert not other.claim(lease(2, "b"))
        one.renew(lease(1, count=1, lease_ms=0))
        assert not other.claim(lease(2, "b")), "it was renewed after it was read"
        other.newest()
        assert other.claim(lease(2, "b"))

    @pytest.mark.parametrize("held", [Held.RELEASED, Held.SHUT_DOWN])
    def test_a_lease_that_was_given_up_is_free(
        self, store: Path, lock: DatabaseLock, held: Held
    ) -> None:
        one, other = self.of(store, lock), self.of(store, lock)
        one.newest()
        one.claim(lease(1))
        one.renew(lease(1, count=1, held=held))
        found = other.newest()
        assert found is not None
        assert found.given_up
        assert other.claim(lease(2, "b"))
        assert other.read(1) == found, "the record the claim replaced"

    def test_a_clock_set_back_keeps_no_lease_alive(self, store: Path, lock: DatabaseLock) -> None:
        """The row is written as if by a clock one hour ahead."""
        one, other = self.of(store, lock), self.of(store, lock)
        one.newest()
        one.claim(lease(1))
        one._database.execute(f"UPDATE {TABLE} SET expires = expires + 3600")
        other.newest()
        assert other.claim(lease(2, "b"))

    def test_a_former_holder_changes_nothing(self, store: Path, lock: DatabaseLock) -> None:
        """A renewal that arrives late, and one sent before another by the same holder."""
        one, other = self.of(store, lock), self.of(store, lock)
        one.newest()
        one.claim(lease(1))
        one.renew(lease(1, count=2, held=Held.RELEASED))
        with pytest.raises(LeaseGone):
            one.renew(lease(1, count=1))
        other.newest()
        other.claim(lease(2, "b"))
        with pytest.raises(LeaseGone, match="is this broker's no more"):
            one.renew(lease(1, count=3))
        found = one.newest()
        assert found is not None
        assert found.lease == lease(2, "b")

    def test_a_claim_whose_answer_was_lost_counts(
        self, store: Path, lock: DatabaseLock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = self.of(store, lock)
        one.newest()
        change = one._change

        def lose(statement: str, values: list[str | int | float]) -> bool:
            change(statement, values)
            raise DatabaseTrouble("the answer was lost")

        monkeypatch.setattr(one, "_change", lose)
        assert one.claim(lease(1))

    def test_no_token_is_given_twice(self, store: Path, lock: DatabaseLock) -> None:
        """The database was restored from an old copy: the generations are newer."""
        one = self.of(store, lock)
        one.newest()
        one.claim(lease(1, held=Held.RELEASED))
        (store / "generation.000007").mkdir()
        found = one.newest()
        assert found is not None
        assert (found.token, found.lease) == (7, None)
        assert one.claim(lease(8, "b"))
        assert one.read(7) == found

    def test_a_store_that_cannot_name_its_row_leaves_one(
        self, store: Path, lock: DatabaseLock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its disk is full: the broker tries again ten times a second."""
        one = self.of(store, lock)
        with monkeypatch.context() as full:
            full.setattr("broker.sharing.lease_database.os.fsync", _full)
            for _ in range(3):
                with pytest.raises(OSError, match="No space left"):
                    one.newest()
        assert one.newest() is None
        assert one._database.execute(f"SELECT count(*) FROM {TABLE}").rows == [(1,)]

    def test_of_two_that_name_a_row_at_once_one_row_stays(
        self, store: Path, lock: DatabaseLock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = self.of(store, lock), self.of(store, lock)
        write = one._write_mark

        def late(drawn: str) -> str:
            other.newest()
            return write(drawn)

        monkeypatch.setattr(one, "_write_mark", late)
        assert one.newest() is None
        assert other.claim(lease(1))
        found = one.newest()
        assert found is not None
        assert found.token == 1, "both use the same row"
        assert one._database.execute(f"SELECT count(*) FROM {TABLE}").rows == [(1,)]

    def test_after_an_error_another_connection_is_used(
        self, store: Path, lock: DatabaseLock
    ) -> None:
        """Nothing is ever answered over one that the server has closed."""
        one = self.of(store, lock)
        one.newest()
        before = vars(one._database)["_connection"]
        with pytest.raises(DatabaseTrouble):
            one._database.execute("no SQL")
        assert one.newest() is None
        assert vars(one._database)["_connection"] is not before

    def test_another_database_is_detected(self, store: Path, lock: DatabaseLock) -> None:
        one = self.of(store, lock)
        one.newest()
        one._database.execute(f"DROP TABLE {TABLE}")
        one.close()
        with pytest.raises(StoreMissing, match="no such row: give the database of the other"):
            one.newest()

    def test_a_row_of_another_release_is_named(self, store: Path, lock: DatabaseLock) -> None:
        one = self.of(store, lock)
        one.newest()
        one._database.execute(f"UPDATE {TABLE} SET held = 'lent'")
        with pytest.raises(StoreUnreadable, match=r"'lent'.*start the release that wrote it"):
            one.newest()

    def test_another_cluster_is_refused(self, store: Path, lock: DatabaseLock) -> None:
        one = self.of(store, lock)
        one.newest()
        one.claim(lease(1))
        with pytest.raises(StoreUnreadable, match=r"cluster 'shop'.*cluster 'bank'"):
            self.of(store, lock, "bank").newest()

    def test_a_lease_is_either_in_files_or_in_a_database(
        self, store: Path, lock: DatabaseLock
    ) -> None:
        self.of(store, lock).newest()
        with pytest.raises(StoreUnreadable, match="give this broker the --shared-store-lock"):
            LeaseDirectory(store, "shop").open()
        (store / MARK).unlink()
        files = LeaseDirectory(store, "shop")
        files.open()
        files.claim(lease(1))
        with pytest.raises(StoreUnreadable, match="is in its files"):
            self.of(store, lock)

    def test_two_stores_have_two_rows(self, tmp_path: Path, lock: DatabaseLock) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            one = self.of(tmp_path / name, lock)
            assert one.newest() is None
            assert one.claim(lease(1))
