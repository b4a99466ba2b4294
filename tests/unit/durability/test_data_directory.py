"""A broker's data directory: one broker at a time, even while it has no store."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from broker.durability import data_directory
from broker.durability.data_directory import LOG_DIR, DataDirectory, filled, truncated
from broker.options.broker import BrokerOptions, broker_options
from store import swap
from store.api import Marker, Meta
from store.errors import NoSpace, StoreBusy, StoreUnreadable
from store.files.space import LAST_BYTES, RESERVE_NAME, START_BYTES, UNFINISHED
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore

RECEIVED = Meta(cluster_name="", member="b", store_id="5eed", marker=Marker.DIRTY)


def of_cluster(data_dir: Path, name: str, bind: int) -> BrokerOptions:
    """The meta record of a member of three."""
    return broker_options({
        "data-dir": str(data_dir), "cluster-name": name, "cluster-size": "3",
        "cluster-bind": f"127.0.0.1:{bind}",
    })  # fmt: skip


def test_nobody_completes_the_switch_of_a_running_broker(tmp_path: Path) -> None:
    """Between its two renames there is no store, so no store's lock keeps others out."""
    options = broker_options({"data-dir": str(tmp_path)})
    running = DataDirectory(options)
    received = tmp_path / f"{swap.JOINING_PREFIX}1"
    LmdbStore(received, RECEIVED).close()
    (received / swap.VERIFIED_NAME).touch()
    running.store.close()
    aside = swap.set_aside(tmp_path)
    for attempt in (
        lambda: DataDirectory(options),
        lambda: truncated(tmp_path),
        lambda: swap.restore(tmp_path, aside),
    ):
        with pytest.raises(StoreBusy, match="is in use by process"):
            attempt()
        assert received.is_dir()
        assert not (tmp_path / "store").exists()
    running.close()
    second = DataDirectory(options)
    assert second.store.meta.store_id == "5eed"
    second.close()
    assert inspect(tmp_path / "store").store_id == "5eed"


def test_a_refused_start_leaves_the_directory_free(tmp_path: Path) -> None:
    LmdbStore(tmp_path / "store", RECEIVED).close()
    named = {"cluster-name": "shop", "cluster-size": "3", "cluster-bind": "127.0.0.1:21001"}
    options = broker_options({"data-dir": str(tmp_path)})
    DataDirectory(options).close()
    with pytest.raises(Exception, match="was started for cluster 'shop'"):
        DataDirectory(broker_options({"data-dir": str(tmp_path), **named}))
    DataDirectory(options).close()


@pytest.mark.parametrize(
    ("version", "taken"), [(0, True), (1, False), (2, True), (3, True), (4, False)]
)
def test_a_store_of_a_version_that_this_release_cannot_execute_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, *, taken: bool
) -> None:
    """Version 0: nothing was executed yet."""
    monkeypatch.setattr(data_directory, "MACHINE_VERSION_MIN", 2)
    monkeypatch.setattr(data_directory, "MACHINE_VERSION", 3)
    options = of_cluster(tmp_path, "shop", 21001)
    identity = DataDirectory(options)
    identity.store.put_meta(replace(identity.store.meta, version=version))
    identity.close()
    if taken:
        DataDirectory(options).close()
    else:
        with pytest.raises(StoreUnreadable, match=f"start one that executes version {version}"):
            DataDirectory(options)
    LmdbStore(tmp_path / "store").close()


@pytest.mark.parametrize("back_s", [0.0, 3600.0])
def test_each_start_is_a_later_incarnation_also_when_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back_s: float
) -> None:
    """Members drop the frames of an earlier one."""
    now_ns, former = 1_764_424_800_000_000_000, 0
    clock = Mock()
    monkeypatch.setattr("time.time_ns", clock)
    for _ in range(2):
        clock.return_value = now_ns
        identity = DataDirectory(of_cluster(tmp_path, "shop", 21001))
        assert identity.begin().incarnation == identity.incarnation
        assert identity.incarnation == max(now_ns // 1_000_000, former + 1)
        former = identity.incarnation
        identity.close()
        assert inspect(tmp_path / "store").incarnation == former, "it is on disk"
        now_ns += int((1.0 - back_s) * 1e9)


def test_a_member_at_any_port_is_named_after_its_store(tmp_path: Path) -> None:
    """The next start gets another port, and the voters name this member."""
    identity = DataDirectory(of_cluster(tmp_path, "shop", 0))
    assert identity.name == f"m-{identity.store.meta.store_id[:8]}"
    identity.close()


def test_a_temporary_directory_goes_with_its_process() -> None:
    identity = DataDirectory(broker_options({}))
    assert identity.temporary
    assert (identity.data_dir / "store").is_dir()
    identity.close()
    assert not identity.data_dir.exists()


@pytest.mark.parametrize("marker", Marker)
@pytest.mark.parametrize("cluster_id", ["", "c1"])
def test_which_stores_count_in_a_state_exchange(marker: Marker, cluster_id: str) -> None:
    meta = replace(RECEIVED, marker=marker, cluster_id=cluster_id)
    assert filled(meta) is (cluster_id == "c1" and marker.value in ("dirty", "clean"))


def test_a_store_no_cluster_has_used_may_change_its_member(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A name mistyped at the first start can be corrected."""
    caplog.set_level(logging.INFO, "qpidd")
    for name, bind in (("shpo", 21001), ("shop", 21001), ("shop", 21003), ("shop", 21003)):
        identity = DataDirectory(of_cluster(tmp_path, name, bind))
        meta = identity.store.meta
        assert (meta.cluster_name, meta.member) == (name, f"127.0.0.1:{bind}")
        assert identity.name == meta.member
        identity.close()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[1].endswith("so it becomes that of member 127.0.0.1:21003 of cluster 'shop'")


@pytest.mark.parametrize(
    "used", [{"cluster_id": "c1"}, {"marker": Marker.DIRTY}, {"marker": Marker.BACKUP}]
)
def test_a_store_a_cluster_has_used_keeps_its_member(tmp_path: Path, used: dict[str, Any]) -> None:
    identity = DataDirectory(of_cluster(tmp_path, "shop", 21001))
    identity.store.put_meta(replace(identity.store.meta, **used))
    identity.close()
    with pytest.raises(StoreUnreadable, match="keep --cluster-bind or change --data-dir"):
        DataDirectory(of_cluster(tmp_path, "shop", 21003))
    with pytest.raises(StoreUnreadable, match="was started for cluster 'shpo'"):
        DataDirectory(of_cluster(tmp_path, "shpo", 21001))
    DataDirectory(of_cluster(tmp_path, "shop", 21001)).close()


def test_a_start_that_gives_up_a_reserve_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = broker_options({"data-dir": str(tmp_path)})
    DataDirectory(options).close()
    (tmp_path / RESERVE_NAME).write_bytes(bytes(10))
    found = SimpleNamespace(f_bavail=START_BYTES - 1, f_frsize=1, f_blocks=1 << 40)
    monkeypatch.setattr(os, "statvfs", lambda _path: found)
    for _ in range(2):  # the second one finds nothing to give up
        DataDirectory(options).close()
    (told,) = caplog.records
    assert f"less than 4 MiB are free in {tmp_path}: its reserve of 32 MiB" in told.getMessage()


def test_leftovers_are_removed_before_a_full_disk_refuses_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G21. Leftovers of a state being received, and of a segment being compressed."""
    options = broker_options({"data-dir": str(tmp_path)})
    DataDirectory(options).close()
    received = tmp_path / f"{swap.JOINING_PREFIX}1"
    LmdbStore(received, RECEIVED).close()
    (tmp_path / LOG_DIR).mkdir()
    half = tmp_path / LOG_DIR / f"b.1.000000.qml.gz{UNFINISHED}"
    half.write_bytes(bytes(1000))
    others = 0

    def look(_path: object) -> SimpleNamespace:
        free = LAST_BYTES - others - (received.exists() or half.exists())
        return SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=64 << 20)

    monkeypatch.setattr(os, "statvfs", look)
    DataDirectory(options).close()
    assert not received.exists()
    assert not half.exists()
    others = 1
    with pytest.raises(NoSpace, match=r"1\.0 MB more are needed"):
        DataDirectory(options)
