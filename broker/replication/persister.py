"""Hands a member's entries, promises and checkpoints to its store, in order. Pure.

Everything applied goes to the writer in order; a promise goes behind it, so that a durable promise
implies a durable state at its base. A checkpoint is made when the log since the last one has grown
large, so that its cost stays a constant share of the writing. Incomplete bodies do not count: a
checkpoint would write them again without freeing anything, and the sender of a large message
already takes enough of the disk from all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from broker.replication.chain import Promise
from broker.replication.replica import AppliedBatch, Replica
from store.api import Marker, Meta, Store

CHECKPOINT_BYTES_MIN = 64 << 20


class CheckpointFeed(Protocol):
    """A checkpoint that is being packed and written."""

    bytes: int

    def cancel(self) -> None:
        """Stop making it: its store is given up."""

    def hurry(self) -> None:
        """Make it without pauses."""


class Writer(Protocol):
    """Commits to one open store, in order and in the background."""

    def submit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        """Take one entry, contiguous with the previous one."""

    def submit_meta(self, meta: Meta, done: Callable[[], None]) -> None:
        """Make `meta` durable after everything submitted so far; then call `done`."""

    def checkpoint(
        self, replica: Replica, done: Callable[[], None], given_up: Callable[[], None]
    ) -> CheckpointFeed:
        """Write a checkpoint of the current state between commits; then call `done`, or
        `given_up` if there is no space for it."""

    def close(self) -> None:
        """Commit everything submitted and end; blocks."""


StoreT = TypeVar("StoreT", bound=Store)
WriterT = TypeVar("WriterT", bound=Writer)


class StoreDevice(Protocol[StoreT, WriterT]):
    """Where stores live: a directory, or a simulated disk."""

    def open_writer(self, store: StoreT, on_durable: Callable[[int], None]) -> WriterT:
        """Return a writer for `store`; `on_durable(position)` follows each commit."""

    def switch(
        self, writer: WriterT, received: StoreT, current: StoreT, meta: Meta,
        done: Callable[[StoreT, tuple[int, int]], None],
    ) -> None:  # fmt: skip
        """Once `writer` has ended, atomically replace `current` by `received`, marked with `meta`;
        then call `done` with it, open, and its `bytes_to_start`, for which no disk is asked any
        more. A failure counts as one of the writer's."""

    async def settled(self, patience_s: float) -> None:
        """Wait until no switch is under way; `StoreStuck` when the disk does not answer."""


class Persister(Generic[StoreT, WriterT]):
    """The durable half of a member. `on_durable(position)` follows each commit."""

    def __init__(
        self,
        device: StoreDevice[StoreT, WriterT],
        store: StoreT,
        meta: Meta,
        on_durable: Callable[[int], None],
        checkpoint_bytes_min: int = CHECKPOINT_BYTES_MIN,
    ) -> None:
        self.store, self.meta = store, meta
        self.checkpoints = 0
        self.hold_checkpoints = False  # what is disputed is re-executed from the present one
        self._device, self._on_durable = device, on_durable
        self._checkpoint_bytes_min = checkpoint_bytes_min
        self._checkpoint_bytes, self._log_bytes = store.bytes_to_start()
        self._behind = self._log_bytes  # of log behind the checkpoint in force
        self._uncounted = 0  # up to here it was handed over with the mark of a joining store
        self._reported = 0  # of the present store
        self._requested = False
        self.switching = False  # a received store is about to take the place of `store`
        self._when_in_force: list[Callable[[], None]] = []
        self._feed: CheckpointFeed | None = None
        self.writer = self._new_writer()

    def _new_writer(self) -> WriterT:
        def on_durable(position: int) -> None:
            if position > self._uncounted:  # what does not count yet shows nothing
                self._report(writer, position)

        writer = self._device.open_writer(self.store, on_durable)
        return writer

    def _report(self, writer: WriterT, position: int) -> None:
        """Report a durable position, except that of a store being replaced, and one not beyond an
        earlier report."""
        if self.writer is writer and not self.switching and position > self._reported:
            self._reported = position
            self._on_durable(position)

    def keep(self, replica: Replica, promise: Promise, *, counts: bool = True) -> None:
        """Hand over everything applied since the last call; `counts`: with it the store may vote.

        It waits while a received store is being put in force.
        """
        if self.switching:
            return
        batch = replica.cut()
        if batch is not None:
            marker = Marker.DIRTY if counts else Marker.JOINING
            self._submit(batch, promise, replica.machine.version, marker)
            if not counts:
                self._uncounted = batch.last
            self._log_bytes += len(batch.entry)
            self._behind += len(batch.entry)
        due = self._requested or self._log_bytes > self.log_bytes_limit(replica)
        if not due or self._feed is not None or not self.may_checkpoint(replica):
            return
        if not replica.half_way:  # nothing may be kept of a state that an item left half-way
            self._checkpoint(replica)

    def may_checkpoint(self, replica: Replica) -> bool:
        """Whether the state may be resumed from: not disputed, not broken, not to be replaced."""
        return not (self.hold_checkpoints or self.switching or replica.broken)

    def request_checkpoint(self) -> None:
        """Make a checkpoint as soon as none is under way."""
        self._requested = True

    @property
    def checkpoint_to_come(self) -> bool:
        """Whether a checkpoint is being made, or was requested."""
        return self._requested or self._feed is not None

    @property
    def packed_bytes(self) -> int:
        """How much of the checkpoint under way is packed."""
        return 0 if self._feed is None else self._feed.bytes

    def hurry_checkpoint(self) -> None:
        """Make the checkpoint under way, if any, without pauses: nothing else is to be done."""
        if self._feed is not None:
            self._feed.hurry()

    @property
    def bytes_to_start(self) -> tuple[int, int]:
        """As `Store.bytes_to_start`, including what was handed over, without asking the store."""
        return self._checkpoint_bytes, self._behind

    def log_bytes_limit(self, replica: Replica) -> int:
        """The size of the log behind the checkpoint at which the next one is due."""
        limit = max(self._checkpoint_bytes_min, 2 * self._checkpoint_bytes)
        return limit + replica.machine.unfinished_bytes

    def _submit(self, batch: AppliedBatch, promise: Promise, version: int, marker: Marker) -> None:
        before, history = self.meta, batch.history
        self.meta = Meta(  # written out: with each commit, and `replace` looks at all fields
            before.cluster_name, before.member, before.store_id, promise.cluster_id,
            before.incarnation, promise.voters,
            promised_epoch=max(promise.promised_epoch, before.promised_epoch),
            state_epoch=history.epoch, position=history.position,
            chain=history.chain, order=history.order, marker=marker,
            note=before.note, version=version,
        )  # fmt: skip
        self.writer.submit(batch.entry, batch.first, batch.last, self.meta)

    def _checkpoint(self, replica: Replica) -> None:
        self._requested = False
        self._log_bytes = 0
        covers = self._behind

        def done() -> None:
            if self._feed is feed:  # else the store was replaced meanwhile
                self._feed = None
                self._checkpoint_bytes = feed.bytes
                self._behind -= covers
                self.checkpoints += 1

        def given_up() -> None:
            if self._feed is feed:
                self.cancel_checkpoint()
                self._log_bytes += self._checkpoint_bytes_min // 2  # sooner than after a whole one

        feed = self._feed = self.writer.checkpoint(replica, done, given_up)

    def promise(self, promise: Promise, done: Callable[[], None]) -> None:
        """Make a promise durable behind everything handed over so far; then call `done`."""
        marker = self.meta.marker if self.meta.marker is Marker.CLEAN else Marker.DIRTY
        self.meta = replace(
            self.meta, cluster_id=promise.cluster_id, voters=promise.voters,
            promised_epoch=max(promise.promised_epoch, self.meta.promised_epoch), marker=marker,
        )  # fmt: skip
        self.writer.submit_meta(self.meta, done)

    def takes_back_vote(self, done: Callable[[], None]) -> None:
        """Durably mark this store as joining, without a vote; then call `done`."""
        self.meta = replace(self.meta, marker=Marker.JOINING)
        self._uncounted = self.meta.position
        self.writer.submit_meta(self.meta, done)

    def counts(self) -> None:
        """Let a store that was marked as joining vote; from then on it is reported as durable."""
        if self.meta.marker is Marker.JOINING:
            self.meta = replace(self.meta, marker=Marker.DIRTY)
            writer, position = self.writer, self.meta.position
            writer.submit_meta(self.meta, lambda: self._report(writer, position))

    @property
    def votes(self) -> bool:
        """Whether this store counts in a state exchange."""
        return bool(self.meta.cluster_id) and self.meta.marker in (Marker.DIRTY, Marker.CLEAN)

    def adopt(self, received: StoreT, replica: Replica, *, counts: bool) -> None:
        """Go on with a store that was received and verified; the old one is set aside.

        `replica` is its state. The member keeps its own promises. Its cluster becomes that of the
        state: the old store may name one from a first start that broke off. The switch takes time
        on disk: until the new store is in force, a crash leaves the old one.
        """
        assert not self.switching
        self.cancel_checkpoint()
        marker = Marker.DIRTY if counts else Marker.JOINING
        self.meta = replace(
            received.meta, marker=marker,
            cluster_id=replica.machine.cluster_id or self.meta.cluster_id,
            voters=replica.machine.voters or self.meta.voters, version=replica.machine.version,
            promised_epoch=self.meta.promised_epoch,
        )  # fmt: skip
        self._uncounted = self._reported = 0
        self.switching = True
        self._device.switch(self.writer, received, self.store, self.meta, self._in_force)

    def _in_force(self, store: StoreT, bytes_to_start: tuple[int, int]) -> None:
        self.store, self.switching = store, False
        self._checkpoint_bytes, self._log_bytes = bytes_to_start
        self._behind = self._log_bytes
        self.writer = self._new_writer()
        waiting, self._when_in_force = self._when_in_force, []
        for call in waiting:
            call()

    def when_in_force(self, call: Callable[[], None]) -> None:
        """Call, in order, as soon as no received store is waiting to come into force."""
        if self.switching:
            self._when_in_force.append(call)
        else:
            call()

    async def settled(self, patience_s: float) -> None:
        """Wait until no switch is under way; `StoreStuck` when the disk does not answer."""
        await self._device.settled(patience_s)

    @property
    def for_others(self) -> StoreT | None:
        """The store with this member's state, for reading; None while it is not in force: the store
        that it replaces may be of another history."""
        return None if self.switching else self.store

    def cancel_checkpoint(self) -> None:
        """Give up the checkpoint that is being made, if any."""
        if self._feed is not None:
            self._feed.cancel()
        self._feed = None
