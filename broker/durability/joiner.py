"""The joiner's side of state transfer: the tail of a history, or a checkpoint and then the tail.

A member whose state lies on the donor's history gets the items after it, and applies them to its
own replica. If the donor's log does not lead on from there, its checkpoint is received into a
separate store, restored and verified on a worker thread, and replaces the old store; then the tail
follows. A partly received checkpoint outlives the attempt: the next attempt goes on where it ended,
if the donor still has the same checkpoint. A complete one can be used with any donor.

Each attempt has a store of its own, so that no thread touches another attempt's data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, NamedTuple, Protocol

import msgpack

from broker.durability.recovery import recover
from broker.durability.store_writer import exit_of_store
from broker.durability.transfer_protocol import Block, Offer, Receiver, Tag, Tail
from broker.exit_codes import Exit
from broker.incidents.quarantine import TRANSFER, Quarantine
from broker.replication.chain import History
from broker.replication.persister import StoreT
from broker.replication.replica import (
    Divergence,
    ExecutionFailed,
    Recorded,
    Replica,
    Withheld,
    records_of,
)
from store.api import Marker, Meta, Staging
from store.errors import REFUSED, StoreError, failed
from vsync.types import Member

log = logging.getLogger("qpidd.join")

PROGRESS_S = 5.0
"""How often a long transfer logs its progress."""
SPACE_RESERVED = 64 << 20
"""The space that a received checkpoint must leave free, in addition to a store's overhead of a
quarter."""


class Device(Protocol[StoreT]):
    """A joiner's stores, threads and datagrams: in a process, or a simulated one."""

    def now(self) -> float:
        """Return a clock that does not go back."""

    def send(self, to: Member, payload: bytes) -> None:
        """Send one datagram; it may be lost."""

    def work(
        self, job: Callable[[], object], done: Callable[[object, Exception | None], None]
    ) -> None:
        """Run `job` on a worker thread, then `done` with its result or its error on the loop."""

    def create(self, attempt: str, meta: Meta) -> StoreT:
        """Create the store of one attempt; on a worker thread."""

    def discard(self, store: StoreT) -> None:
        """Close and remove a store that `create` made; on a worker thread."""

    def free_bytes(self) -> int:
        """Return the free space for stores."""


class NoRoom(StoreError):
    """The disk has no room for the state that a donor offers."""


class Verified(NamedTuple, Generic[StoreT]):
    """A received state that was restored and verified."""

    replica: Replica
    store: StoreT


class _Incoming(Generic[StoreT]):
    """A checkpoint being received into its store."""

    def __init__(self, donor: Member, offer: Offer) -> None:
        self.donor, self.offer = donor, offer
        self.chunks = 0  # so many are in the store
        self.store: StoreT | None = None
        self.staging: Staging | None = None
        self.busy = self.over = False

    def is_of(self, donor: Member, offer: Offer) -> bool:
        """Whether the same donor offers the same checkpoint again."""
        return (self.donor, self.offer) == (donor, offer) and not self.over


class Joiner(Generic[StoreT]):
    """Brings one member to the primary's state.

    `replica` returns the member's own replica; `may_replace` tells whether a state at a given point
    may replace it; `keeps_up` whether the disk keeps up with what the member applies; `on_verified`
    replaces the replica at once, or refuses the state; `on_items` is called when `next_item` has
    something; `on_failed` when the transfer fails; `on_broken` when this member's disk takes
    nothing any more, so that another attempt would fail as well.
    """

    def __init__(
        self,
        device: Device[StoreT],
        quarantine: Quarantine,
        *,
        own: Callable[[], Meta],
        replica: Callable[[], Replica],
        may_replace: Callable[[History], bool],
        keeps_up: Callable[[], bool],
        on_verified: Callable[[Replica, StoreT], bool],
        on_items: Callable[[], None],
        on_failed: Callable[[str], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self.counters = {
            "attempts": 0, "tails": 0, "checkpoints": 0, "resumed": 0, "failed": 0,
            "unexpected": 0, "received_bytes": 0,
        }  # fmt: skip
        self._device, self._quarantine = device, quarantine
        self._own, self._replica, self._may_replace = own, replica, may_replace
        self._keeps_up = keeps_up
        self._on_verified, self._on_items = on_verified, on_items
        self._on_failed, self._on_broken = on_failed, on_broken
        self._donor: Member | None = None
        self._receiver: Receiver | None = None
        self._items: Iterator[Recorded] = iter(())
        self._waits_for_disk = False  # with the next item, which may be here
        self._incoming: _Incoming[StoreT] | None = None
        self._verified: Verified[StoreT] | None = None
        self._verifying = self._dropped = False  # a worker has the state; and nobody waits for it
        self._begun_at, self._begun_position = 0.0, 0
        self._said_at = 0.0

    # -- ordered by the member -------------------------------------------------------------------

    def begin(self, donor: Member, base: int) -> None:
        """Reach `donor`'s state, which is at `base` or beyond; an earlier attempt is dropped."""
        self.abort()
        self._donor = donor
        self._begun_at, self._begun_position = self._device.now(), 0
        self._said_at = self._begun_at
        log.info("asking %s for what leads to its state, position %d or beyond", donor.name, base)
        if not self._verifying and not (self._incoming is not None and self._incoming.busy):
            self._ask()

    def abort(self) -> None:
        """Stop asking; the received part of a checkpoint is kept for the next attempt."""
        self._donor = self._receiver = None
        self._items = iter(())

    def done(self) -> None:
        """The state is level, however it got there: nothing more is needed, and nothing is kept."""
        if self._receiver is not None:
            self._receiver.done()
        self.abort()
        self._drop_incoming()
        self._drop_verified()

    def next_item(self) -> Recorded | None:
        """Return the next item of the tail; None when none is here yet, or the disk lags.

        A member fetches and applies a tail faster than a slow disk writes it. Without this pause,
        all of it would wait in memory until the lag made the member leave.
        """
        self._waits_for_disk = not self._keeps_up()
        if self._waits_for_disk:
            return None
        # The member may ask while a checkpoint is being received: its blocks are not items.
        while self._receiver is not None and isinstance(self._receiver.answer, Tail):
            try:
                item = next(self._items, None)
            except ValueError as error:
                self._fail(f"what {self._receiver.donor.name} sent cannot be read: {error}")
                return None
            if item is not None:
                return item
            block = self._receiver.take(self._device.now())
            if block is None:
                return None
            self._items = records_of(block.data)
        return None

    # -- the attempt -----------------------------------------------------------------------------

    def _ask(self) -> None:
        assert self._donor is not None
        point: History | None = None
        if self._verified is not None:
            point = self._verified.replica.history
        elif not self._replica().broken:
            point = self._replica().history
        incoming = self._incoming
        resumed = None
        if incoming is not None and incoming.donor == self._donor:
            resumed = incoming.offer, incoming.chunks
        self.counters["attempts"] += 1
        self._items = iter(())
        self._receiver = Receiver(
            str(self.counters["attempts"]), self._donor, point, self._quarantine.beyond(),
            self._device.now(), self._device.send, resumed,
        )  # fmt: skip

    def on_message(self, tag: Tag, fields: tuple[object, ...]) -> None:
        """Handle a datagram from a donor."""
        receiver = self._receiver
        if receiver is not None:
            answer = receiver.answer
            receiver.on_message(tag, fields, self._device.now())
            if answer is None and receiver.answer is not None:
                self._answered(receiver.donor, receiver.answer)
            self._advance()

    def wake(self) -> None:
        """Do the work that is due by the clock."""
        now = self._device.now()
        if self._donor is not None and now - self._said_at >= PROGRESS_S:
            self._said_at = now
            log.info("%s", self.progress)
        if self._receiver is not None:
            self._receiver.wake(now)
            self._advance()
        if self._receiver is not None and self._waits_for_disk and self._keeps_up():
            self._on_items()

    def _answered(self, donor: Member, answer: Tail | Offer) -> None:
        if isinstance(answer, Tail):
            self.counters["tails"] += 1
            self._begun_at, self._begun_position = (
                self._device.now(), self._replica().history.position,
            )  # fmt: skip
            if self._verified is None:
                self._on_items()  # perhaps there is nothing to wait for
        else:
            self._drop_verified()
            if self._incoming is not None and self._incoming.is_of(donor, answer):
                self.counters["resumed"] += 1
                return
            self.counters["checkpoints"] += 1
            self._drop_incoming()
            self._incoming = _Incoming(donor, answer)
            log.info(
                "the log of %s does not lead on from here; receiving its checkpoint of position "
                "%d, %d bytes", donor.name, answer.position, answer.size,
            )  # fmt: skip
            self._on_incoming(self._incoming, lambda: self._create(answer), self._advance)

    def _advance(self) -> None:
        receiver, incoming = self._receiver, self._incoming
        if receiver is None:
            return
        if receiver.failed:
            self._fail(receiver.failed)
        elif isinstance(receiver.answer, Tail):
            if self._verified is not None:
                self._lead_on(receiver, self._verified)
            elif receiver.has_block:
                self._on_items()
        elif isinstance(receiver.answer, Offer) and incoming is not None:
            if incoming.busy or incoming.staging is None:
                return
            if incoming.chunks == incoming.offer.chunks:
                self._receiver = None
                self._verify(incoming)
            elif (block := receiver.take(self._device.now())) is not None:
                self.counters["received_bytes"] += len(block.data)
                self._on_incoming(incoming, lambda: _add(incoming, block), self._advance)

    def _create(self, offer: Offer) -> object:
        needed = offer.size + offer.size // 4 + SPACE_RESERVED
        free = self._device.free_bytes()
        if offer.chunks and free < needed:
            raise NoRoom(
                f"the state takes {needed} bytes here and {free} are free: make room on the disk "
                "of --data-dir, for instance by removing old backups of the store; it is tried "
                "again by itself"
            )
        own = self._own()
        fresh = Meta(
            own.cluster_name, own.member, own.store_id, incarnation=own.incarnation,
            marker=Marker.EMPTY,
        )  # fmt: skip
        store = self._device.create(str(self.counters["checkpoints"]), fresh)
        return store, store.stage(offer.position)

    def _on_incoming(
        self, incoming: _Incoming[StoreT], job: Callable[[], object], then: Callable[[], None]
    ) -> None:
        """Work on a store that is being filled; one job at a time."""

        def done(result: object, error: Exception | None) -> None:
            incoming.busy = False
            if isinstance(result, tuple):
                incoming.store, incoming.staging = result
            if incoming.over:
                self._discard(incoming.store)
            elif error is not None:
                self._drop_incoming()
                self._failed_with(error)
            elif self._receiver is not None:
                then()
            elif self._donor is not None:
                self._ask()

        incoming.busy = True
        self._device.work(job, done)

    # -- a complete checkpoint -------------------------------------------------------------------

    def _verify(self, incoming: _Incoming[StoreT]) -> None:
        self._incoming = None
        offer, staging, store = incoming.offer, incoming.staging, incoming.store
        assert staging is not None
        assert store is not None
        withheld, pager = self._quarantine.withheld(), self._replica().machine.pager

        def job() -> Replica:
            meta = replace(
                store.meta, state_epoch=offer.epoch, position=offer.position, chain=offer.chain,
                order=offer.order,
            )  # fmt: skip
            if offer.chunks:
                staging.finish(meta)
            another = pager.another() if pager is not None else None
            return recover(meta.member, store, withheld=withheld, pager=another)

        self._on_verified_store(store, job)

    def _on_verified_store(self, store: StoreT, job: Callable[[], Replica]) -> None:
        """Restore a received state, or bring it forward, while nothing else uses it."""

        def done(result: object, error: Exception | None) -> None:
            dropped, self._dropped = self._dropped, False
            self._verifying = False
            if error is None and not dropped:
                assert isinstance(result, Replica)
                self._verified = Verified(result, store)
            else:
                self._verified = None
                self._discard(store)
            if self._donor is None:
                return  # the next attempt asks whether it is still good
            if error is not None and not dropped:
                self._failed_with(error)
            elif self._receiver is None:
                self._ask()
            else:
                self._advance()

        self._verifying = True
        self._device.work(job, done)

    def _lead_on(self, receiver: Receiver, verified: Verified[StoreT]) -> None:
        """Put the received state in force, unless the store that it would replace may hold more."""
        if self._verifying:
            return
        replica, store = verified
        if self._may_replace(replica.history):
            self._verified = None
            if self._on_verified(replica, store):
                self._on_items()
            else:
                self._discard(store)
                self._fail("that state is no longer needed")
        elif (block := receiver.take(self._device.now())) is not None:
            self._on_verified_store(store, lambda: _follow(replica, store, block))

    # -- failing ---------------------------------------------------------------------------------

    def _failed_with(self, error: Exception) -> None:
        if isinstance(error, ExecutionFailed):
            # The next attempt asks for a state behind that command.
            self._fail(self._quarantine.add(error, TRANSFER, self._own().member))
            return
        if isinstance(error, OSError) and error.errno in REFUSED:
            error = failed(f"{error.filename}: a received state cannot be kept", error)
        if exit_of_store(error) is Exit.IO_ERROR:
            self._on_broken(error)
            return
        if not isinstance(error, (StoreError, Divergence, Withheld, ValueError, OSError)):
            self.counters["unexpected"] += 1
            log.error("verifying a received state failed in a way that is ours", exc_info=error)
        self._fail(str(error) or repr(error))

    def _fail(self, reason: str) -> None:
        if self._donor is None:
            return
        self.counters["failed"] += 1
        self.abort()
        self._on_failed(reason)

    def _drop_incoming(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.over = True
            if not incoming.busy:
                self._discard(incoming.store)

    def _drop_verified(self) -> None:
        verified, self._verified = self._verified, None
        if self._verifying:
            self._dropped = True  # its store is discarded when the worker has done with it
        elif verified is not None:
            self._discard(verified.store)

    def _discard(self, store: StoreT | None) -> None:
        if store is not None:
            self._device.work(lambda: self._device.discard(store), lambda *_: None)

    def close(self) -> None:
        """The process ends."""
        self.abort()
        self._drop_incoming()
        self._drop_verified()

    # -- for people ------------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """Return the received share of the checkpoint or the tail; 1: nothing is being fetched."""
        if self._donor is None or self._verifying:
            return 1.0
        answer = None if self._receiver is None else self._receiver.answer
        if self._receiver is None or answer is None:
            return 0.0
        if isinstance(answer, Offer):
            return self._receiver.counters["bytes"] / max(answer.size, 1)
        position = self._replica().history.position
        return (position - self._begun_position) / max(answer.end - self._begun_position, 1)

    @property
    def progress(self) -> str:
        """Return the progress of the transfer; empty when there is none."""
        if self._donor is None:
            return ""
        if self._verifying:
            return "re-executing and verifying the received checkpoint"
        receiver, name = self._receiver, self._donor.name
        if receiver is None or receiver.answer is None:
            return f"asking {name} for its state"
        elapsed = max(self._device.now() - self._begun_at, 0.001)
        if isinstance(receiver.answer, Offer):
            whole, got = receiver.answer.size, receiver.counters["bytes"]
            rate = got / elapsed / 1e6
            return f"received {got} of {whole} bytes of the checkpoint of {name}, {rate:.1f} MB/s"
        position = self._replica().history.position
        rate = (position - self._begun_position) / elapsed
        end = max(receiver.answer.end, position)
        return f"at position {position} of {end} of {name}, {rate:.0f} positions/s"


def _follow(replica: Replica, store: StoreT, block: Block) -> Replica:
    for recorded in records_of(block.data):
        if recorded.first > replica.history.position:
            replica.follow(recorded)
    batch = replica.cut()
    if batch is not None:
        now = batch.history
        meta = replace(
            store.meta, state_epoch=now.epoch, position=now.position, chain=now.chain,
            order=now.order,
        )  # fmt: skip
        store.commit(batch.entry, batch.first, batch.last, meta)
    return replica


def _add(incoming: _Incoming[StoreT], block: Block) -> None:
    if block.cursor != incoming.chunks:
        raise ValueError(f"chunks from {block.cursor} on came, {incoming.chunks} are here")
    chunks = msgpack.unpackb(block.data)
    assert incoming.staging is not None
    incoming.staging.add(chunks)
    incoming.chunks += len(chunks)
    if incoming.chunks != block.following:
        raise ValueError(f"chunks to {block.following} were announced, {incoming.chunks} came")
