"""Switching to a joined copy: atomic, finished after a crash, nothing deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from store import swap
from store.api import Marker, Meta
from store.errors import StoreMissing, StoreUnreadable
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore

FRESH = Meta(cluster_name="prod", member="b", store_id="b-store")


def make(path: Path, note: str) -> None:
    """Make a store that can be recognised."""
    LmdbStore(path, replace(FRESH, note=note)).close()


def join(data_dir: Path, note: str, marker: Marker = Marker.DIRTY) -> None:
    """Receive a donor's copy into DIR/store.joining and make it this member's."""
    donor = LmdbStore(data_dir / "donor", Meta("prod", "a", "a-store", cluster_id="c1"))
    position = donor.meta.position + 3
    donor.commit(b"x", donor.meta.position + 1, position, replace(donor.meta, position=position))
    donor.copy_to(data_dir / f"copy.{note}")
    donor.close()
    file = data_dir / f"copy.{note}" / "data.mdb"
    swap.incoming_file(data_dir).write_bytes(file.read_bytes())
    store = swap.received(data_dir, FRESH)
    assert store.meta.marker is Marker.JOINING
    assert (store.meta.member, store.meta.store_id) == ("b", "b-store")
    assert (store.meta.cluster_id, store.meta.position) == ("c1", position)
    store.put_meta(replace(store.meta, note=note, marker=marker))
    store.close()


def test_the_old_store_is_set_aside_and_kept(tmp_path: Path) -> None:
    make(tmp_path / "store", "first")
    for number, note in enumerate(["second", "third"]):
        join(tmp_path, note)
        assert swap.install(tmp_path) == tmp_path / f"_cluster.bak.{number + 1:04x}"
    assert inspect(tmp_path / "store").note == "third"
    assert inspect(tmp_path / "_cluster.bak.0001").note == "first"
    assert inspect(tmp_path / "_cluster.bak.0002").note == "second"
    assert not (tmp_path / "store.joining").exists()


def test_a_copy_that_is_not_complete_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "store", "old")
    join(tmp_path, "half", Marker.JOINING)
    with pytest.raises(StoreUnreadable, match="not complete"):
        swap.install(tmp_path)
    assert inspect(tmp_path / "store").note == "old"


class Crash(Exception):
    """The process ends here."""


@pytest.mark.parametrize("renames", [0, 1])
def test_a_crash_between_the_renames_is_finished_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    make(tmp_path / "store", "old")
    join(tmp_path, "new")
    done: list[Path] = []
    rename = swap._rename

    def crashing(old: Path, new: Path) -> None:
        if len(done) == renames:
            raise Crash
        rename(old, new)
        done.append(new)

    with monkeypatch.context() as patch:
        patch.setattr(swap, "_rename", crashing)
        with pytest.raises(Crash):
            swap.install(tmp_path)
    assert swap.recover(tmp_path) == (renames == 1)
    store = LmdbStore(tmp_path / "store")
    assert store.meta.note == ("new" if renames else "old")
    assert (store.meta.member, store.meta.position) == ("b", 3 if renames else 0)
    store.close()
    assert not swap.recover(tmp_path)
    join(tmp_path, "again")
    swap.install(tmp_path)
    assert inspect(tmp_path / "store").note == "again"


def test_a_copy_that_is_not_verified_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "store", "old")
    join(tmp_path, "half", Marker.JOINING)
    with pytest.raises(StoreUnreadable, match="not complete"):
        swap.install(tmp_path)
    assert inspect(tmp_path / "store").note == "old"


def test_half_a_copy_is_never_taken(tmp_path: Path) -> None:
    assert not swap.recover(tmp_path)
    join(tmp_path, "half", Marker.DIRTY)
    assert not swap.recover(tmp_path)
    assert not (tmp_path / "store").exists()
    swap.incoming_file(tmp_path).write_bytes(b"half a file")
    assert not swap.recover(tmp_path)
    with pytest.raises(StoreMissing):
        swap.install(tmp_path)
    with pytest.raises(StoreUnreadable):
        swap.received(tmp_path, FRESH)
    swap.discard_join(tmp_path)
    assert not (tmp_path / "store.joining").exists()


def test_an_operator_may_name_either_directory(tmp_path: Path) -> None:
    make(tmp_path / "store", "x")
    assert swap.find_store(tmp_path) == tmp_path / "store"
    assert swap.find_store(tmp_path / "store") == tmp_path / "store"
    with pytest.raises(StoreMissing):
        swap.find_store(tmp_path / "nothing")
