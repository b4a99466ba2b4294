"""What a member may find in its store when it restarts (G14)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.durability import recovery
from broker.durability.recovery import checkpoint_head, recover
from broker.durability.startup import resume
from broker.incidents.incidents import Incidents
from broker.incidents.quarantine import Quarantine
from broker.machine.command_codec import pack_blob
from broker.machine.commands import CONNECTION_OPEN, ConnectionOpen
from broker.machine.machine import Machine
from broker.replication.chain import History
from broker.replication.replica import Divergence, Item, Replica
from store.api import Marker, Meta
from tests.support.stores.memory import MemoryDisk, MemoryStore
from vsync.primary.events import Activation
from vsync.types import RingId

RING = RingId(1, "a", 1)


def activated() -> Replica:
    replica = Replica("a", Machine("a"), History())
    activation = Activation(1, (("a", 1, False),), True, ("a",), "c")
    replica.apply(Item(1, RING, 1, "a", activation))
    return replica


def connection(replica: Replica, number: int) -> None:
    session = replica.machine.sessions["a"].session
    command = ConnectionOpen(CONNECTION_OPEN, number, "/", "guest", f"p:{number}")
    body = pack_blob(session, number, 1, [command])
    replica.apply(Item(1, RING, 1 + number, "a", body))


def test_a_checkpoint_in_mid_commit() -> None:
    """The writer joins what it got before and after a checkpoint into one commit: the items before
    the checkpoint must not be applied a second time."""
    replica = activated()
    connection(replica, 1)
    before = replica.cut()
    assert before is not None
    chunks = [checkpoint_head(replica.history), *replica.machine.snapshot()]
    connection(replica, 2)
    after = replica.cut()
    assert after is not None
    history = replica.history
    store = MemoryStore(MemoryDisk(), Meta("n", "a", "s"))
    meta = Meta(
        "n", "a", "s", cluster_id="c", state_epoch=1, position=history.position,
        chain=history.chain, order=history.order, marker=Marker.DIRTY,
    )  # fmt: skip
    store.commit(before.entry + after.entry, before.first, after.last, meta)
    store.write_checkpoint(before.last, chunks, meta)
    again = recover("a", store)
    assert again.history == history
    assert again.machine.root() == replica.machine.root()


def test_a_long_start_reports_its_progress_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """By positions: a line for every few hundred entries made hundreds of lines."""
    monkeypatch.setattr(recovery, "TOLD_POSITIONS", 4)
    replica, store = activated(), MemoryStore(MemoryDisk(), Meta("n", "a", "s"))
    for number in range(1, 10):
        connection(replica, number)
        batch = replica.cut()
        assert batch is not None
        now = batch.history
        store.commit(batch.entry, batch.first, batch.last, Meta(
            "n", "a", "s", cluster_id="c", state_epoch=1, position=now.position, chain=now.chain,
            order=now.order, marker=Marker.DIRTY,
        ))  # fmt: skip
    told: list[tuple[int, int]] = []
    recover("a", store, lambda *at: told.append(at))
    assert told == [(4, 10), (8, 10)]


def stored(**changes: object) -> MemoryStore:
    """A store with one item, and a meta record that says something else of it."""
    replica, store = activated(), MemoryStore(MemoryDisk(), Meta("n", "a", "s"))
    batch = replica.cut()
    assert batch is not None
    now = batch.history
    meta = Meta(
        "n", "a", "s", cluster_id="c", state_epoch=1, position=now.position, chain=now.chain,
        order=now.order, marker=Marker.DIRTY, voters=("a", "b", "c"),
    )  # fmt: skip
    store.commit(batch.entry, batch.first, batch.last, replace(meta, **changes))  # type: ignore[arg-type]
    return store


@pytest.mark.parametrize("what", ["chain", "order"])
def test_a_store_whose_record_is_of_another_history_is_not_used(what: str) -> None:
    recover("a", stored())
    with pytest.raises(Divergence, match="its record says"):
        recover("a", stored(**{what: bytes(16)}))


def test_a_checkpoint_of_another_position_is_not_used() -> None:
    store = stored()
    store.write_checkpoint(1, [checkpoint_head(History(1, 2))], store.meta)
    with pytest.raises(Divergence, match="the checkpoint of position 1 holds position 2"):
        recover("a", store)


@pytest.mark.parametrize("marker", [Marker.INCONSISTENT, Marker.BACKUP])
def test_of_a_store_without_a_vote_nothing_is_gone_on_from(marker: Marker, tmp_path: Path) -> None:
    """Its state is not what the others have: nothing may follow it, and nothing counts."""
    store = stored(marker=marker)
    resumed = resume(store, Quarantine(Incidents(tmp_path), "1.0"))
    assert resumed.replica.broken
    assert not resumed.filled
    assert resumed.replica.history.position == store.meta.position, "it is not an empty member"
