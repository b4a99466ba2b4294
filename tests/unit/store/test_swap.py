"""Switching to a received copy: atomic, completed after a crash, and nothing deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from store import swap
from store.api import Marker, Meta
from store.errors import StoreMissing, StoreUnreadable
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore
from tests.unit.store.crashing_renames import crash_behind

FRESH = Meta(cluster_name="prod", member="b", store_id="b-store")


def make(path: Path, note: str) -> None:
    """Make a store that can be recognized."""
    LmdbStore(path, replace(FRESH, note=note)).close()


def join(data_dir: Path, note: str, marker: Marker = Marker.DIRTY) -> Path:
    """Receive a state into the attempt's own directory; return the path."""
    store = swap.incoming(data_dir, note, FRESH)
    assert store.path == data_dir / f"store.joining.{note}"
    meta = replace(FRESH, cluster_id="c1", position=3, note=note, marker=marker)
    store.write_checkpoint(3, [b"state"], meta)
    store.close()
    return store.path


def test_the_old_store_is_set_aside_and_kept(tmp_path: Path) -> None:
    make(tmp_path / "store", "first")
    for number, note in enumerate(["second", "third"]):
        assert (
            swap.install(tmp_path, join(tmp_path, note))
            == tmp_path / f"_cluster.bak.{number + 1:04x}"
        )
    assert inspect(tmp_path / "store").note == "third"
    assert inspect(tmp_path / "_cluster.bak.0001").note == "first"
    assert inspect(tmp_path / "_cluster.bak.0002").note == "second"
    assert not list(tmp_path.glob("store.joining.*"))
    assert not (tmp_path / "store" / swap.VERIFIED_NAME).exists(), "an operator may move it"


@pytest.mark.parametrize("renames", [0, 1])
def test_a_crash_between_the_renames_is_completed_at_start(tmp_path: Path, renames: int) -> None:
    make(tmp_path / "store", "old")
    new = join(tmp_path, "new")
    with crash_behind(renames):
        swap.install(tmp_path, new)
    assert swap.recover(tmp_path) == (renames == 1)
    store = LmdbStore(tmp_path / "store")
    assert store.meta.note == ("new" if renames else "old")
    assert (store.meta.member, store.meta.position) == ("b", 3 if renames else 0)
    store.close()
    assert not swap.recover(tmp_path)
    swap.install(tmp_path, join(tmp_path, "again"))
    assert inspect(tmp_path / "store").note == "again"


def test_an_unverified_state_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "store", "old")
    half = join(tmp_path, "half", Marker.EMPTY)
    with pytest.raises(StoreUnreadable, match="not complete"):
        swap.install(tmp_path, half)
    assert inspect(tmp_path / "store").note == "old"


def test_a_partial_state_is_never_used(tmp_path: Path) -> None:
    assert not swap.recover(tmp_path)
    join(tmp_path, "half", Marker.DIRTY)
    assert not swap.recover(tmp_path)
    assert not (tmp_path / "store").exists()


def test_states_received_by_an_earlier_process_are_removed(tmp_path: Path) -> None:
    make(tmp_path / "store", "old")
    for attempt in ("1", "2"):
        join(tmp_path, attempt)
    swap.discard_incoming(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_an_operator_may_name_either_directory(tmp_path: Path) -> None:
    make(tmp_path / "store", "x")
    assert swap.find_store(tmp_path) == tmp_path / "store"
    assert swap.find_store(tmp_path / "store") == tmp_path / "store"
    with pytest.raises(StoreMissing):
        swap.find_store(tmp_path / "nothing")


def test_a_store_that_was_set_aside_is_not_an_unfinished_switch(tmp_path: Path) -> None:
    """The mark outlived its switch: the process was killed, or power was lost, after the last
    rename. Once set aside, the store looked like one being switched in, and came back."""
    make(tmp_path / "store", "old")
    (tmp_path / "store" / swap.VERIFIED_NAME).touch()
    assert not swap.recover(tmp_path)
    aside = swap.set_aside(tmp_path)
    assert not swap.recover(tmp_path), "the store that was set aside came back"
    assert not (tmp_path / "store").exists()
    assert inspect(aside).note == "old"
