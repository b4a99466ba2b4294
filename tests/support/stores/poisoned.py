"""Stores with a history of a few blobs, and a machine that raises at inputs marked as poison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

from broker.machine import commands as c
from broker.machine import machine as machines
from broker.machine.command_codec import pack_blob
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.machine.state import Channel, State
from broker.replication.chain import History
from broker.replication.replica import Item, Replica
from store.api import Marker, Meta
from store.lmdb_store import LmdbStore
from tests.support.stores.memory import MemoryStore
from vsync.primary.events import Activation
from vsync.types import RingId

VOTERS = ("a", "b", "c")
RING = RingId(1, "a", 1)
META = Meta("prod", "a", "5eed", cluster_id="ab" * 16, voters=VOTERS, marker=Marker.DIRTY)
POISON = b"poison"


def publish(number: int, body: bytes) -> Command:
    return c.Publish(c.PUBLISH, 1, 1, number, "", "q", 4, b"\0\0", body)


def activation() -> Activation:
    members = tuple((name, 1, False) for name in VOTERS)
    return Activation(
        epoch=1, members=members, cold=False, voters=VOTERS, cluster_id=META.cluster_id
    )


class Author:
    """Applies a history at a member, as commands of member a's session."""

    def __init__(self, local: str = "a") -> None:
        self.replica = Replica(local, Machine(local), History())
        self.blob_no = 0
        self.apply(activation())
        self.submit(
            c.ConnectionOpen(c.CONNECTION_OPEN, 1, "/", "guest", "p:1"),
            c.ChannelOpen(c.CHANNEL_OPEN, 1, 1),
            c.QueueDeclare(
                c.QUEUE_DECLARE, 1, 1, "q", False, True, False, False, False, {}
            ),
        )  # fmt: skip

    def item(self, *commands: Command) -> Item:
        """The next blob of the session, not applied."""
        session = self.replica.machine.sessions["a"].session
        body = pack_blob(session, self.blob_no + 1, 1_000_000, list(commands))
        return Item(1, RING, self.blob_no + 2, "a", body)

    def submit(self, *commands: Command) -> None:
        item = self.item(*commands)
        self.blob_no += 1
        self.replica.apply(item)

    def apply(self, body: Activation) -> None:
        self.replica.apply(Item(body.epoch, RING, 1, "a", body))

    def keep(self, store: LmdbStore | MemoryStore) -> None:
        """Make all applied commands durable."""
        commit = self.replica.cut()
        if commit is None:
            return
        h = commit.history
        meta = replace(
            store.meta, position=h.position, chain=h.chain, order=h.order, state_epoch=h.epoch
        )
        store.commit(commit.entry, commit.first, commit.last, meta)


def flip_on_disk(store: LmdbStore, prefix: bytes) -> None:
    """Flip a bit in the middle of the last value whose key has this prefix."""
    store._settle()
    with store._env.begin(write=True) as txn, txn.cursor() as cursor:
        behind = bytes([prefix[0] + 1])
        assert cursor.prev() if cursor.set_range(behind) else cursor.last()
        assert bytes(cursor.key()).startswith(prefix)
        key, value = bytes(cursor.key()), bytearray(cursor.value())
        value[len(value) // 2] ^= 1
        txn.put(key, bytes(value))


class Tripwire:
    """Counts what it lets through and what it stops."""

    def __init__(self) -> None:
        self.tried = 0
        self.error: Exception = RuntimeError("tripped")


@contextmanager
def raising(kind: int = c.PUBLISH, containing: bytes = POISON) -> Iterator[Tripwire]:
    """While the block runs, the handler of `kind` raises for a body that contains these bytes, with
    half of its change done."""
    wire = Tripwire()
    handler = machines._ON_CHANNEL[kind]

    assert handler is not None

    def trip(state: State, channel: Channel, command: Command) -> int:
        if containing in cast("c.Publish", command)[-1]:
            wire.tried += 1
            state.next_message += 1
            raise wire.error
        return handler(state, channel, command)

    machines._ON_CHANNEL[kind] = trip
    try:
        yield wire
    finally:
        machines._ON_CHANNEL[kind] = handler
