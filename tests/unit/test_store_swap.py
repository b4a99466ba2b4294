"""Switching to a joined copy: atomic, finished after a crash, nothing deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from store import swap
from store.api import Marker, Meta
from store.environment import inspect
from store.errors import StoreMissing, StoreUnreadable
from store.lmdb_store import LmdbStore

FRESH = Meta(cluster_name="prod", member="b", store_id="b-store")


def make(path: Path, note: str) -> None:
    """Make a store that can be told apart."""
    LmdbStore.open(path, replace(FRESH, note=note)).close()


def join(data_dir: Path, note: str, marker: Marker = Marker.DIRTY) -> None:
    """Fill DIR/store.joining."""
    store = swap.begin_join(data_dir, FRESH)
    assert store.meta.marker is Marker.JOINING
    store.write_checkpoint(5, [b"state"], replace(store.meta, position=5))
    store.put_meta(replace(store.meta, note=note, marker=marker))
    store.close()


def test_the_old_store_is_set_aside_and_kept(tmp_path: Path) -> None:
    make(tmp_path / "store", "first")
    for number, note in enumerate(["second", "third"]):
        join(tmp_path, note)
        assert swap.install(tmp_path) == tmp_path / f"store.aside.{number:04x}"
    assert inspect(tmp_path / "store").note == "third"
    assert inspect(tmp_path / "store.aside.0000").note == "first"
    assert inspect(tmp_path / "store.aside.0001").note == "second"
    assert not (tmp_path / "store.joining").exists()


def test_a_copy_that_is_not_complete_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "store", "old")
    join(tmp_path, "half", Marker.JOINING)
    with pytest.raises(StoreUnreadable, match="not complete"):
        swap.install(tmp_path)
    assert inspect(tmp_path / "store").note == "old"


def test_a_crash_between_the_renames_is_finished_at_start(tmp_path: Path) -> None:
    make(tmp_path / "store", "old")
    join(tmp_path, "new")
    swap.set_aside(tmp_path)
    assert swap.recover(tmp_path)
    assert inspect(tmp_path / "store").note == "new"
    assert not swap.recover(tmp_path)


def test_a_crash_before_the_switch_keeps_the_old_store(tmp_path: Path) -> None:
    make(tmp_path / "store", "old")
    join(tmp_path, "new")
    assert not swap.recover(tmp_path)
    assert inspect(tmp_path / "store").note == "old"
    join(tmp_path, "again")
    swap.install(tmp_path)
    assert inspect(tmp_path / "store").note == "again"


def test_half_a_copy_is_never_taken(tmp_path: Path) -> None:
    assert not swap.recover(tmp_path)
    join(tmp_path, "half", Marker.JOINING)
    assert not swap.recover(tmp_path)
    path = swap.incoming_file(tmp_path)
    path.write_bytes(b"half a file")
    assert not swap.recover(tmp_path)


def test_a_file_that_came_becomes_this_members_store(tmp_path: Path) -> None:
    donor_meta = Meta("prod", "a", "a-store", cluster_id="c1", marker=Marker.DIRTY)
    donor = LmdbStore.open(tmp_path / "donor", donor_meta)
    donor.commit(b"x", 1, 4, replace(donor_meta, position=4))
    donor.copy_to(tmp_path / "copy")
    donor.close()
    data_dir = tmp_path / "b"
    make(data_dir / "store", "old")
    own = inspect(data_dir / "store")
    swap.incoming_file(data_dir).write_bytes((tmp_path / "copy" / "data.mdb").read_bytes())
    store = swap.received(data_dir, own)
    assert store.meta.marker is Marker.JOINING
    assert (store.meta.member, store.meta.store_id) == ("b", "b-store")
    assert (store.meta.cluster_id, store.meta.position) == ("c1", 4)
    assert list(store.log(0)) == [(1, b"x")]
    store.put_meta(replace(store.meta, marker=Marker.DIRTY))
    store.close()
    swap.install(data_dir)
    assert inspect(data_dir / "store").position == 4


def test_an_operator_may_name_either_directory(tmp_path: Path) -> None:
    make(tmp_path / "store", "x")
    assert swap.find_store(tmp_path) == tmp_path / "store"
    assert swap.find_store(tmp_path / "store") == tmp_path / "store"
    with pytest.raises(StoreMissing):
        swap.find_store(tmp_path / "nothing")
