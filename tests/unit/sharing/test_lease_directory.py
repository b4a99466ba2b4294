"""Leases as files: who gets a token, and what may be in their place."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from broker.sharing.lease import Found, LeaseRecord
from broker.sharing.lease_directory import LeaseDirectory
from broker.sharing.leases import LeaseGone
from store.errors import NotWritable, StoreMissing, StoreUnreadable


def lease(token: int, holder: str = "a", cluster: str = "shop") -> LeaseRecord:
    return LeaseRecord(token, cluster, holder, f"host process {holder}", "", 800, 0)


@pytest.fixture
def leases(tmp_path: Path) -> LeaseDirectory:
    made = LeaseDirectory(tmp_path / "store", "shop")
    made.open()
    return made


def test_a_token_is_given_once(leases: LeaseDirectory, tmp_path: Path) -> None:
    assert leases.newest() is None
    results: list[bool] = []
    start = threading.Barrier(8)

    def claim(holder: str) -> None:
        start.wait()
        results.append(leases.claim(lease(1, holder)))

    threads = [threading.Thread(target=claim, args=(f"h{index}",)) for index in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(results) == [False] * 7 + [True]
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["lease.000001"]


def test_a_renewal_changes_only_the_record_of_its_token(leases: LeaseDirectory) -> None:
    leases.claim(lease(1))
    leases.claim(lease(2, "b"))
    leases.renew(replace(lease(1), count=9))
    newest = leases.newest()
    assert newest is not None
    assert newest.lease == lease(2, "b")
    assert leases.read(1).lease == replace(lease(1), count=9)


def test_a_claim_and_a_renewal_are_on_disk_before_they_count(
    leases: LeaseDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure the same token would be given again."""
    synced: list[str] = []

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", noted)
    leases.claim(lease(1))
    leases.renew(lease(1))
    assert synced == ["lease.a.new", "store", "lease.000001"]


def test_a_listing_that_missed_an_entry_is_no_loss(
    leases: LeaseDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that come and go while a directory is listed may be missing from the list."""
    found = iter([5, 3, 5, 4, 4])
    monkeypatch.setattr(leases, "_highest_number", lambda: next(found))
    assert [leases.newest_token(), leases.newest_token()] == [5, 5]
    with pytest.raises(StoreMissing, match="has lost what was in it: token 5"):
        leases.newest_token()


def test_a_removed_token_is_not_recreated(leases: LeaseDirectory) -> None:
    leases.claim(lease(1))
    for token in (2, 3):
        leases.claim(lease(token))
    leases.tidy(3)
    assert leases.read(1) == Found(1, b"", None)
    with pytest.raises(LeaseGone):
        leases.renew(lease(1))


def test_removed_leases_leave_their_generations(leases: LeaseDirectory, tmp_path: Path) -> None:
    """The store is not taken for a new one."""
    (tmp_path / "store" / "generation.000007").mkdir()
    assert leases.newest() == Found(7, b"", None)


@pytest.mark.parametrize("name", ["generation.000009", "generation.000009.new"])
def test_no_token_below_a_generation_is_given(
    leases: LeaseDirectory, tmp_path: Path, name: str
) -> None:
    """Leases older than a generation: the next leader's token was lower than the generation
    it copied."""
    leases.claim(lease(6))
    (tmp_path / "store" / name).mkdir()
    assert leases.newest_token() == 9
    assert leases.newest() == Found(9, b"", None)


def test_a_store_that_went_away_is_not_started_anew(leases: LeaseDirectory, tmp_path: Path) -> None:
    """An unmounted file system leaves an empty mount point."""
    leases.claim(lease(1))
    assert leases.newest() is not None
    (tmp_path / "store").rename(tmp_path / "unmounted")
    (tmp_path / "store").mkdir()
    with pytest.raises(StoreMissing, match="token 1 was there, and the newest is none now"):
        leases.newest()
    (tmp_path / "store").rmdir()
    (tmp_path / "unmounted").rename(tmp_path / "store")
    assert leases.newest_token() == 1


def test_missing_parent_directories_are_not_created(tmp_path: Path) -> None:
    with pytest.raises(NotWritable, match=r"No such file.*is its file system mounted"):
        LeaseDirectory(tmp_path / "mount" / "store", "shop").open()
    assert not (tmp_path / "mount").exists()


@pytest.mark.parametrize("there", [lease(1, "b").encode(), b"somebody's notes"])
def test_a_renewal_does_not_overwrite_another_holders(
    leases: LeaseDirectory, tmp_path: Path, there: bytes
) -> None:
    leases.claim(lease(1))
    path = tmp_path / "store" / "lease.000001"
    path.write_bytes(there)
    with pytest.raises(LeaseGone, match="this broker's lease no more"):
        leases.renew(lease(1))
    assert path.read_bytes() == there


def test_leftovers_of_former_claims_are_removed(leases: LeaseDirectory, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for holder, content in (
        ("a", lease(2).encode()), ("b", b""), ("c", lease(9).encode()), ("d", b"notes")
    ):  # fmt: skip
        (store / f"lease.{holder * 32}.new").write_bytes(content)
    leases.tidy(4)
    assert sorted(one.name[6] for one in store.iterdir()) == ["c", "d"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"somebody's notes\n", "is no lease that this release can read"),
        (b"qpidd-lease 2 00000000 {}", "start the release that wrote it"),
        (lease(1, cluster="bank").encode(), "cluster 'bank'"),
        (lease(1, cluster="").encode(), "no cluster name"),
    ],
)
def test_a_foreign_file_is_named(
    leases: LeaseDirectory, tmp_path: Path, content: bytes, sentence: str
) -> None:
    (tmp_path / "store" / "lease.000001").write_bytes(content)
    with pytest.raises(StoreUnreadable, match=sentence):
        leases.newest()


def test_a_data_directory_is_not_shared(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(StoreUnreadable, match="give a directory of its own"):
        LeaseDirectory(tmp_path, "shop").open()


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match=r"file/store.*the same rights"):
        LeaseDirectory(tmp_path / "file" / "store", "shop").open()
