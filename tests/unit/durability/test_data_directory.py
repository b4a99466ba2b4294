"""The data directory of a broker: one broker at a time, also while it has no store."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.durability.data_directory import LOG_DIR, DataDirectory, truncated
from broker.options.broker import broker_options
from store import swap
from store.api import Marker, Meta
from store.errors import NoSpace, StoreBusy
from store.files.space import LAST_BYTES, UNFINISHED
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore

RECEIVED = Meta(cluster_name="", member="b", store_id="5eed", marker=Marker.DIRTY)


def test_nobody_completes_the_switch_that_a_running_broker_is_in(tmp_path: Path) -> None:
    """Between its two renames there is no store, so no lock of a store keeps anybody out."""
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


def test_a_start_that_is_refused_leaves_the_directory_free(tmp_path: Path) -> None:
    LmdbStore(tmp_path / "store", RECEIVED).close()
    named = {"cluster-name": "shop", "cluster-size": "3", "cluster-bind": "127.0.0.1:21001"}
    options = broker_options({"data-dir": str(tmp_path)})
    DataDirectory(options).close()
    with pytest.raises(Exception, match="was started for cluster 'shop'"):
        DataDirectory(broker_options({"data-dir": str(tmp_path), **named}))
    DataDirectory(options).close()


def test_leftovers_are_removed_before_a_start_is_refused_for_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G21.  Of a state that was being received, and of a segment that was being compressed."""
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
    with pytest.raises(NoSpace):
        DataDirectory(options)
