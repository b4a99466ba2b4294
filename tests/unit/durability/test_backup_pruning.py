"""Stores that were set aside: removed by number, age and size, but never a possible only copy."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.durability.backup_pruning import LEVEL_S, BackupPruner, Stays, judge_backups
from broker.options.retention import BackupPolicy
from store.api import Marker, Meta
from store.backups import Backup, backup_paths
from store.files.directory_lock import DirectoryLock
from store.lmdb_store import LmdbStore

DAY_S = 86_400
META = Meta(
    "prod", "a:5672", "5eed", cluster_id="ab" * 16, state_epoch=4, position=10, marker=Marker.DIRTY
)
PRESENT = replace(META, state_epoch=5, position=90)
NOW_S = 100.0 * DAY_S
DISK_BYTES = 1000
POLICY = BackupPolicy()


def backup(number: int, meta: Meta | None = META, *, age_days: float = 50, size: int = 1) -> Backup:
    changed = NOW_S - age_days * DAY_S
    return Backup(number, Path(f"_cluster.bak.{number:04x}"), meta, "", size, changed)


def judged(
    *backups: Backup, present: Meta | None = PRESENT, policy: BackupPolicy = POLICY
) -> list[Stays]:
    return judge_backups(backups, present, policy, NOW_S, DISK_BYTES)


class TestWhatStays:
    def test_the_newest_three_and_those_of_a_week(self) -> None:
        old = [backup(1), backup(2, age_days=6.9), backup(3, age_days=7.1), backup(4), backup(5)]
        due, number = Stays.DUE, Stays.IN_NUMBER
        found = judged(*old, backup(6))
        assert found == [due, Stays.YOUNG, due, number, number, Stays.NEWEST]

    def test_together_a_fifth_of_the_disk_oldest_removed_first(self) -> None:
        young = [backup(number, age_days=1, size=60) for number in range(1, 6)]
        due, number = Stays.DUE, Stays.IN_NUMBER
        assert judged(*young) == [due, due, number, number, Stays.NEWEST]
        bytes_ = BackupPolicy(keep_bytes=60)
        assert judged(*young, policy=bytes_) == [due, due, due, due, Stays.NEWEST]

    def test_the_newest_however_large(self) -> None:
        assert judged(backup(1, size=900)) == [Stays.NEWEST]

    def test_a_state_the_present_store_did_not_pass_through(self) -> None:
        policy = BackupPolicy(keep=1, keep_s=0, keep_bytes=1)
        beyond = [
            replace(META, state_epoch=6),
            replace(PRESENT, position=91),
            replace(META, cluster_id="cd" * 16),
        ]
        for meta in beyond:
            found = judged(backup(1, meta), backup(2), policy=policy)
            assert found == [Stays.BEYOND, Stays.NEWEST], meta
        assert judged(backup(1, PRESENT), backup(2), policy=policy)[0] is Stays.DUE

    def test_everything_while_no_store_is_level(self) -> None:
        found = judged(backup(1), backup(2), present=None, policy=BackupPolicy(1, 0, 1))
        assert found == [Stays.BEYOND, Stays.NEWEST]

    def test_the_newest_that_an_operator_restored(self) -> None:
        restored = replace(META, marker=Marker.BACKUP)
        found = judged(
            backup(1, restored), backup(2, restored), backup(3), backup(4),
            policy=BackupPolicy(1, 0, 1),
        )  # fmt: skip
        assert found == [Stays.DUE, Stays.RESTORED, Stays.DUE, Stays.NEWEST]

    def test_an_unreadable_store(self) -> None:
        found = judged(backup(1, None), backup(2), policy=BackupPolicy(1, 0, 1))
        assert found == [Stays.UNREADABLE, Stays.NEWEST]

    def test_a_store_that_was_always_empty_goes(self) -> None:
        empty = replace(META, cluster_id="", state_epoch=0, position=0, marker=Marker.EMPTY)
        assert judged(backup(1, empty), backup(2), policy=BackupPolicy(1, 0, 1))[0] is Stays.DUE

    def test_all_if_requested(self) -> None:
        found = judged(*map(backup, range(9)), policy=BackupPolicy(0, 0, 1))
        assert found == [Stays.IN_NUMBER] * 8 + [Stays.NEWEST]


class Clock:
    """A loop that gives the pruner the time and calls back at once."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class Member:
    """A data directory with old stores, and a pruner that runs on this thread."""

    def __init__(self, data_dir: Path, backups: int, policy: BackupPolicy) -> None:
        self.data_dir, self.clock = data_dir, Clock()
        for number in range(1, backups + 1):
            path = data_dir / f"_cluster.bak.{number:04x}"
            LmdbStore(path, replace(META, position=0)).close()
            os.utime(path / "data.mdb", (number, number))
        self.loop = asyncio.new_event_loop()
        self.pruner = BackupPruner(data_dir, policy, self.loop)
        self.pruner._loop = self.clock  # type: ignore[assignment]

    def wake_for(self, seconds: float, present: Meta | None = PRESENT) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.pruner.wake(present)
            self.clock.now += 1
        self.loop.run_until_complete(self.pruner._files.settled(30))

    @property
    def left(self) -> list[int]:
        return list(backup_paths(self.data_dir))


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Callable[[int], Member]]:
    made: list[Member] = []

    def make(backups: int) -> Member:
        made.append(Member(tmp_path, backups, BackupPolicy()))
        return made[-1]

    yield make
    for one in made:
        one.loop.close()


class TestPruner:
    def test_a_level_member_removes_what_is_due(self, member: Callable[[int], Member]) -> None:
        one = member(5)
        one.wake_for(LEVEL_S - 1)
        assert one.left == [1, 2, 3, 4, 5]
        one.wake_for(3)
        assert one.left == [3, 4, 5]
        assert one.pruner.counters["pruned"] == 2
        assert one.pruner.counters["kept"] == 3
        assert sorted(path.name for path in one.data_dir.iterdir()) == [
            f"_cluster.bak.000{number}" for number in one.left
        ]

    def test_by_a_clock_that_is_not_right_none_is_too_old(
        self, member: Callable[[int], Member]
    ) -> None:
        one = member(5)
        one.pruner.clock_is_right = lambda: False
        one.wake_for(LEVEL_S + 2)
        assert one.left == [1, 2, 3, 4, 5]
        one.pruner.clock_is_right = lambda: True
        one.wake_for(LEVEL_S + 2)
        assert one.left == [3, 4, 5]

    def test_a_member_level_for_less_than_a_minute_removes_nothing(
        self, member: Callable[[int], Member]
    ) -> None:
        one = member(5)
        for _ in range(5):
            one.wake_for(LEVEL_S - 2)
            one.wake_for(1, None)
        assert one.left == [1, 2, 3, 4, 5]

    def test_a_backup_a_tool_has_open_stays_and_goes_later(
        self, member: Callable[[int], Member]
    ) -> None:
        one = member(4)
        lock = DirectoryLock(one.data_dir / "_cluster.bak.0001")
        one.wake_for(LEVEL_S + 2)
        assert one.left == [1, 2, 3, 4]
        lock.release()
        one.wake_for(LEVEL_S + 2)
        assert one.left == [2, 3, 4]

    def test_a_backup_a_crash_left_half_removed_goes(
        self, member: Callable[[int], Member], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = member(4)

        def crash(_path: Path) -> None:
            raise OSError(5, "crashed")

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", crash)
            one.wake_for(LEVEL_S + 2)
        assert one.pruner.counters["failures"] == 1
        assert one.left == [2, 3, 4]
        assert (one.data_dir / "_pruned.0001").exists()
        one.wake_for(LEVEL_S + 2)
        assert not (one.data_dir / "_pruned.0001").exists()
        assert one.left == [2, 3, 4]
