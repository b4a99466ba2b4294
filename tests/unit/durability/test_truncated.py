"""A store set aside on the operator's order, even after an interrupted switch of stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.durability.data_directory import truncated
from store import swap
from store.api import Meta
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore

FRESH = Meta(cluster_name="prod", member="b", store_id="5eed")


def test_without_a_store_there_is_nothing_to_set_aside(tmp_path: Path) -> None:
    assert truncated(None) is None
    assert truncated(tmp_path) is None


@pytest.mark.parametrize("steps", [0, 1, 2], ids=["marked", "old one aside", "new one in place"])
def test_nothing_returns_from_an_interrupted_switch(tmp_path: Path, steps: int) -> None:
    """The order is to start empty: neither the old state nor the received one may come back.

    The process was killed with the mark made, with the old store set aside too, or with the new
    store in place.
    """
    LmdbStore(tmp_path / "store", FRESH).close()
    received = tmp_path / f"{swap.JOINING_PREFIX}1"
    LmdbStore(received, FRESH).close()
    (received / swap.VERIFIED_NAME).touch()
    if steps:
        (tmp_path / "store").rename(tmp_path / "_cluster.bak.0001")
    if steps == 2:
        received.rename(tmp_path / "store")
    aside = truncated(tmp_path)
    assert aside is not None
    assert inspect(aside).store_id == "5eed"
    assert not swap.recover(tmp_path)
    assert not (tmp_path / "store").exists()
