"""What a store may look like when a member comes back to it (G14)."""

from __future__ import annotations

import pytest

from broker.durability import recovery
from broker.durability.recovery import checkpoint_head, recover
from broker.machine.command_codec import pack_blob
from broker.machine.commands import CONNECTION_OPEN, ConnectionOpen
from broker.machine.machine import Machine
from broker.replication.chain import History
from broker.replication.replica import Item, Replica
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


def test_a_checkpoint_in_the_middle_of_a_commit() -> None:
    """The writer joins what was handed over before and after a checkpoint into one commit: the
    items before it must not be applied a second time."""
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


def test_a_long_start_tells_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """By positions: a line for each few hundred entries was hundreds of lines."""
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
