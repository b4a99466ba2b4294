"""What a member keeps: its store, the thread that writes it, and the meta record in force.

Everything applied goes to the writer in order; a promise goes behind it, so that a durable promise
implies a durable state at its base.  A checkpoint is made when the log since the last one has grown
large, so that its cost stays a constant share of the writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from broker.durability.checkpoint_writer import CheckpointWriter
from broker.durability.recovery import checkpoint_in_steps, checkpoint_of
from broker.durability.transfer import adopt
from broker.replication.promise import Promise
from broker.replication.replica import AppliedBatch, Replica
from store.api import Marker, Meta
from store.commit_thread import CommitThread
from store.errors import StoreError, StoreFailed, StoreStuck
from store.lmdb_store import LmdbStore

CHECKPOINT_BYTES_MIN = 64 << 20

PATIENCE_S = 10.0
"""How long a member that ends waits for its disk."""


class Persister:
    """The durable half of a member.  `on_durable(position)` follows each commit."""

    def __init__(
        self,
        data_dir: Path,
        store: LmdbStore,
        meta: Meta,
        loop: asyncio.AbstractEventLoop,
        on_durable: Callable[[int], None],
        on_failed: Callable[[StoreError], None],
    ) -> None:
        self.store, self.meta = store, meta
        self.checkpoints = 0
        self.stuck = False  # the disk did not answer in the end: hands off the store
        self._dir, self._loop = data_dir, loop
        self._on_durable, self._on_failed = on_durable, on_failed
        self._log_bytes = 0
        self._checkpoint_bytes = 0
        self._checkpointing = False
        self._wished = False
        self._slices: CheckpointWriter | None = None
        self.hold_checkpoints = False  # what is disputed is re-executed from the present one
        self.writer = self._new_writer()

    def _new_writer(self) -> CommitThread:
        def on_durable(position: int) -> None:
            # A commit of a store that was replaced meanwhile says nothing about the new one.
            if self.writer is writer:
                self._on_durable(position)

        writer = CommitThread(self.store, self._loop, on_durable, self._on_failed)
        return writer

    def keep(self, replica: Replica, promise: Promise) -> None:
        """Hand over what was applied since the last call."""
        commit = replica.cut()
        if commit is not None:
            self._submit(commit, promise)
            self._log_bytes += len(commit.entry)
        if self._checkpointing or self.hold_checkpoints or replica.broken:
            return  # of a state that a command left half-way, nothing may be kept
        limit = max(CHECKPOINT_BYTES_MIN, 2 * self._checkpoint_bytes)
        if self._log_bytes > limit or self._wished:
            self._checkpoint(replica)

    def wish_checkpoint(self) -> None:
        """Make a checkpoint as soon as there is none under way."""
        self._wished = True

    def _submit(self, commit: AppliedBatch, promise: Promise) -> None:
        history = commit.history
        self.meta = replace(
            self.meta, state_epoch=history.epoch, position=history.position,
            chain=history.chain, order=history.order, marker=Marker.DIRTY, shutdown_id="",
            cluster_id=promise.cluster_id, voters=promise.voters,
            promised_epoch=max(promise.promised_epoch, self.meta.promised_epoch),
        )  # fmt: skip
        self.writer.submit(commit.entry, commit.first, commit.last, self.meta)

    def _checkpoint(self, replica: Replica) -> None:
        self._checkpointing, self._wished = True, False
        self._log_bytes = 0
        position = replica.history.position

        def done() -> None:
            if self._slices is slices:  # else the store was replaced meanwhile
                self._checkpointing = False
                self._checkpoint_bytes = slices.bytes
                self.checkpoints += 1

        def failed(error: Exception) -> None:
            self._on_failed(StoreFailed(f"a checkpoint of position {position} failed: {error!r}"))

        checkpoint = self.writer.begin_checkpoint(position, done)
        slices = CheckpointWriter(self._loop, checkpoint_in_steps(replica), checkpoint, failed)
        self._slices = slices

    def promise(self, promise: Promise, done: Callable[[], None]) -> None:
        """Make a promise durable, behind everything that was handed over; then call `done`."""
        marker = self.meta.marker if self.meta.marker is Marker.CLEAN else Marker.DIRTY
        self.meta = replace(
            self.meta, cluster_id=promise.cluster_id, voters=promise.voters,
            promised_epoch=promise.promised_epoch, marker=marker,
        )  # fmt: skip
        self.writer.submit_meta(self.meta, done)

    def adopt(self, joined: LmdbStore) -> None:
        """Go on with a store that was received and verified; the old one is set aside."""
        if self._slices is not None:
            self._slices.cancel()
        self._slices = None
        self.writer.close()
        self.store = adopt(self._dir, joined, self.meta, self.store)
        self.meta = self.store.meta
        self._log_bytes = self._checkpoint_bytes = 0
        self._checkpointing = False
        self.writer = self._new_writer()

    async def close(
        self, marker: Marker, replica: Replica, *, shutdown_id: str = "", note: str = ""
    ) -> None:
        """Write what is left, and say in the marker how this life ended.

        A clean end leaves a checkpoint of the last state: the next start re-executes nothing.
        """
        if self._slices is not None:
            self._slices.cancel()
        try:
            await self.writer.drain(PATIENCE_S)
        except StoreStuck:
            self.stuck = True
            raise
        if marker is Marker.DIRTY:
            return
        meta = replace(self.meta, marker=marker, shutdown_id=shutdown_id, note=note)
        if marker is Marker.CLEAN and replica.history.position == meta.position:
            chunks = checkpoint_of(replica)
            self.store.write_checkpoint(meta.position, chunks, meta)
        else:
            self.store.put_meta(meta)

    def counters(self) -> dict[str, int]:
        """Return what was written."""
        lag = self.writer.lag()
        return {**self.writer.counters, "waiting": lag.waiting, "waiting_bytes": lag.bytes}
