"""The disk side of a member's store: commits on their thread, checkpoints in slices, the switch.

A checkpoint must never delay the token. The state is cut at once; packing it takes long. Each slice
packs for a moment and goes to the commit thread, then the loop does other things. If the disk is
slower than the packing, the packing waits, so only a few megabytes of a checkpoint are in memory at
a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from broker.durability.recovery import checkpoint_in_steps
from broker.exit_codes import Exit
from broker.replication.chain import Promise
from broker.replication.persister import Persister, StoreT, Writer
from broker.replication.replica import Replica
from store import swap
from store.api import Marker, Meta
from store.commit_queue import Call, CheckpointJob, CommitLag, CommitQueue
from store.commit_thread import CommitThread
from store.errors import (
    NO_SPACE,
    REFUSED,
    DiskBroken,
    FullMidway,
    NoSpace,
    NotWritable,
    StoreError,
    StoreFailed,
    StoreMissing,
    StoreStuck,
    failed,
)
from store.files.space import Reserve
from store.lmdb_store import LmdbStore

log = logging.getLogger("qpidd.join")

SLICE_S = 0.002
PAUSE_S = 0.004
"""Packing takes at most a third of the loop's time while a checkpoint is made."""
_END = b"the end"
AHEAD_BYTES_MAX = 4 << 20
SHORT_LOG_BYTES = 4 << 20
SHORT_LOG_SHARE = 32
"""Re-executing a message costs about twenty times as much as restoring one that waits on disk, and
four times as much as restoring one in memory: so a start takes at most about half as long again."""
PATIENCE_S = 10.0
"""How long an ending member waits for its disk."""
CHECKPOINT_S = 30.0
"""How long an orderly stop waits for a checkpoint: the samples for systemd, Kubernetes and
Pacemaker allow two minutes for a stop, and the rest of it may take one of them on a slow disk."""
PROGRESS_S = 5.0
"""How often a stop that waits for a checkpoint logs how far it is."""
POLL_S = 0.02
"""How often the end of a clean shutdown looks at its checkpoint."""


class Handle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Timers(Protocol):
    """The part of the event loop that a checkpoint needs."""

    def call_soon(self, callback: Call, /) -> Handle:
        """Call once the others have had their turn."""

    def call_later(self, delay: float, callback: Call, /) -> Handle:
        """Call after a while."""


class CheckpointWriter:
    """Feeds one checkpoint. `on_error` is called when packing fails: the broker's own fault."""

    def __init__(
        self,
        loop: Timers,
        steps: Iterator[bytes | None],
        checkpoint: CheckpointJob,
        on_error: Callable[[Exception], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.bytes = 0
        self._pause_s = PAUSE_S
        self._loop, self._steps, self._checkpoint = loop, steps, checkpoint
        self._on_error, self._clock = on_error, clock
        self._handle = loop.call_soon(self._slice)

    def cancel(self) -> None:
        """Stop making it: its store is given up."""
        self._handle.cancel()

    def hurry(self) -> None:
        """Pack without pauses: the loop has nothing else to do."""
        self._pause_s = 0.0

    def _slice(self) -> None:
        deadline = self._clock() + SLICE_S
        try:
            while self._clock() < deadline and self._checkpoint.bytes_waiting < AHEAD_BYTES_MAX:
                chunk = next(self._steps, _END)
                if chunk is None:
                    break  # what comes next is being read from disk
                if chunk is _END:
                    self._checkpoint.end()
                    return
                if chunk:
                    self.bytes += len(chunk)
                    self._checkpoint.put(chunk)
        except Exception as error:
            self._on_error(error)
            return
        self._handle = self._loop.call_later(self._pause_s, self._slice)


class CheckpointFailed(StoreFailed):
    """The state could not be packed; the store is unchanged, and still takes commits."""


def begin_checkpoint(
    queue: CommitQueue,
    loop: Timers,
    replica: Replica,
    done: Callable[[], None],
    given_up: Callable[[], None],
    on_failed: Callable[[StoreError], object],
    clock: Callable[[], float] = time.perf_counter,
) -> CheckpointWriter:
    """Pack and write a checkpoint of the present state; then call `done`, or `given_up` where there
    is no space for it."""
    position = replica.history.position

    def failed(error: Exception) -> None:
        failure = CheckpointFailed(f"a checkpoint of position {position} failed: {error!r}")
        failure.__cause__ = error
        on_failed(failure)

    job = queue.begin_checkpoint(position, done, given_up)
    return CheckpointWriter(loop, checkpoint_in_steps(replica), job, failed, clock)


class StoreWriter(CommitThread):
    """The commit thread of one store, with checkpoints of a replica beside the commits."""

    def checkpoint(
        self, replica: Replica, done: Callable[[], None], given_up: Callable[[], None]
    ) -> CheckpointWriter:
        """Pack and write a checkpoint of the present state; then call `done`, or `given_up` where
        there is no space for it."""
        return begin_checkpoint(self, self._loop, replica, done, given_up, self.on_failed)

    def all_counters(self) -> dict[str, int]:
        """Return counters of written and waiting data."""
        lag = self.lag()
        return {**self.counters, "waiting": lag.waiting, "waiting_bytes": lag.bytes}


class DataDirectoryDevice:
    """The stores of one data directory."""

    def __init__(
        self,
        data_dir: Path,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[StoreError], None],
        reserve: Reserve,
    ) -> None:
        self._dir, self._loop, self._on_failed = data_dir, loop, on_failed
        self._reserve = reserve
        self._switch: asyncio.Future[tuple[LmdbStore, tuple[int, int]]] | None = None
        self._switch_since = 0.0
        self._writer: StoreWriter | None = None  # the present one

    def open_writer(self, store: LmdbStore, on_durable: Callable[[int], None]) -> StoreWriter:
        """Start the thread that commits to `store`."""
        self._writer = StoreWriter(
            store, self._loop, on_durable, self._on_failed, self._reserve.give_up
        )
        return self._writer

    def switch(
        self, writer: StoreWriter, received: LmdbStore, current: LmdbStore, meta: Meta,
        done: Callable[[LmdbStore, tuple[int, int]], None],
    ) -> None:  # fmt: skip
        """Replace the current store, which is set aside, by the received one."""

        def work() -> tuple[LmdbStore, tuple[int, int]]:
            writer.close()
            received.put_meta(meta)
            received.close()
            current.close()
            aside = swap.install(self._dir, received.path)
            log.info("the transferred state is in force; the old store is kept as %s", aside)
            store = LmdbStore(self._dir / swap.STORE_NAME)
            return store, store.bytes_to_start()

        def switched(future: asyncio.Future[tuple[LmdbStore, tuple[int, int]]]) -> None:
            self._switch = None
            error = future.exception()
            if error is None:
                done(*future.result())
            elif isinstance(error, StoreError):
                self._on_failed(error)
            else:
                place = error.filename if isinstance(error, OSError) else None
                where = f"{place or self._dir}: putting the received state in force failed"
                self._on_failed(failed(where, error))

        self._switch_since = self._loop.time()
        self._switch = self._loop.run_in_executor(None, work)
        self._switch.add_done_callback(switched)

    async def settled(self, patience_s: float) -> None:
        """Wait until no switch is under way; `StoreStuck` when the disk does not answer."""
        if self._switch is not None:
            await asyncio.wait([self._switch], timeout=patience_s)
        if self._switch is not None:
            raise StoreStuck(f"the disk did not put the received state in force in {patience_s} s")

    def lag(self) -> CommitLag:
        """Return how far the disk is behind; a switch under way counts like a waiting commit."""
        switch = CommitLag(int(self._switch is not None), 0, self._switch_since)
        return switch if self._writer is None else self._writer.lag().beside(switch)


class DrainedWriter(Writer, Protocol):
    """A writer that can be closed with patience."""

    async def drain(self, patience_s: float | None = None) -> None:
        """Commit everything submitted and end; `StoreStuck` if the disk does not answer."""


WriterT = TypeVar("WriterT", bound=DrainedWriter)
LmdbPersister = Persister[LmdbStore, StoreWriter]


def is_worth_a_checkpoint(checkpoint_bytes: int, log_bytes: int) -> bool:
    """Whether an ending member should write a checkpoint: packing, writing and syncing a large
    state takes seconds, re-executing a short log does not."""
    return log_bytes > max(SHORT_LOG_BYTES, checkpoint_bytes // SHORT_LOG_SHARE)


class CheckpointBeforeStop(Generic[StoreT, WriterT]):
    """The checkpoint that an orderly stop leaves: otherwise the next start re-executes everything
    since the last one, up to 64 MiB of log.

    It is made like any other, between commits. One member that stops votes and serves meanwhile: so
    it is away no longer than before, and a kill at any moment is one of a running member. The log
    of items applied meanwhile is short. A shutdown of all has it made `at_the_end`, when nothing is
    applied any more. If anything prevents the checkpoint, the stop goes on.
    Decision: docs/decisions/0151-an-orderly-stop-leaves-a-checkpoint.md.
    """

    def __init__(self, persister: Persister[StoreT, WriterT], patience_s: float) -> None:
        self._persister, self._patience_s = persister, patience_s
        self._before = 0  # so many were written before it
        self._told = 0.0  # when how far it is was logged last
        self._until: float | None = None  # it is awaited so long
        self._over = False

    def awaited(self, replica: Replica, now: float) -> bool:
        """Whether the stop waits for it; called repeatedly, from the stop's beginning on."""
        persister = self._persister
        if self._over:
            return False
        if self._until is None:
            return self._begin(replica, now)
        if persister.checkpoints > self._before:
            log.info("the checkpoint before the stop is written")
        elif not persister.checkpoint_to_come:
            self.skip("there is no space for it")
        elif not persister.may_checkpoint(replica):
            self.skip("the state is in doubt")
        elif now >= self._until:
            self.skip(f"the disk did not take it within {self._patience_s:.0f} s")
        else:
            self._tell(now)
            return True
        self._over = True
        return False

    def _begin(self, replica: Replica, now: float) -> bool:
        persister = self._persister
        checkpoint_bytes, log_bytes = persister.bytes_to_start
        to_come = persister.checkpoint_to_come
        worth = to_come or is_worth_a_checkpoint(checkpoint_bytes, log_bytes)
        if not worth or not persister.may_checkpoint(replica):
            self._over = True
            return False
        if not to_come:
            persister.request_checkpoint()
        self._before, self._until = persister.checkpoints, now + self._patience_s
        self._told = now
        log.info(
            "a checkpoint is written before the stop, so that the next start is a short one; it "
            "may take %.0f s, a second SIGTERM ends that", self._patience_s,
        )  # fmt: skip
        return True

    def _tell(self, now: float) -> None:
        if now - self._told >= PROGRESS_S:
            self._told = now
            packed, last = self._persister.packed_bytes, self._persister.bytes_to_start[0]
            log.info(
                "the checkpoint before the stop: %.1f MiB packed, the last one had %.1f MiB",
                packed / (1 << 20), last / (1 << 20),
            )  # fmt: skip

    async def at_the_end(
        self, replica: Replica, promise: Promise, *, sparing: bool = False
    ) -> None:
        """Wait for it where nothing is applied any more, and no turn hands it to the disk.

        `sparing`: the reserve was given up, and the rest of it is for the next start.
        """
        now = asyncio.get_running_loop().time
        wanted = not (sparing or replica.half_way or replica.broken)
        while wanted and self.awaited(replica, now()):
            self._persister.keep(replica, promise)
            self._persister.hurry_checkpoint()
            await asyncio.sleep(POLL_S)

    def skip(self, why: str) -> None:
        """Do without it."""
        if self._until is not None and not self._over:
            self._persister.cancel_checkpoint()
            log.warning("no checkpoint before the stop, the next start takes longer: %s", why)
        self._over = True


LmdbCheckpointBeforeStop = CheckpointBeforeStop[LmdbStore, StoreWriter]


async def close_store(
    persister: Persister[StoreT, WriterT], replica: Replica, marker: Marker, reason: str
) -> None:
    """Write the remaining work, and record in the marker how this incarnation ended.

    `reason` is noted when the store is wrong. Raises `StoreStuck` when the disk does not answer:
    then leave the store alone, and do not even close it.
    """
    persister.cancel_checkpoint()
    await persister.writer.drain(PATIENCE_S)
    if marker is not Marker.DIRTY:
        note = reason if marker is Marker.INCONSISTENT else ""
        persister.store.put_meta(
            replace(persister.meta, marker=marker, shutdown_id=replica.shutdown_id, note=note)
        )


def exit_of(number: int) -> Exit:
    """Return the exit of a member that met the system's error `number` while writing a file."""
    if number in REFUSED:
        return Exit.IO_ERROR
    return Exit.FULL if number in NO_SPACE else Exit.INTERNAL


def exit_of_store(error: BaseException) -> Exit:
    """Return the exit of a member whose store failed. What cannot be written, or is missing, was
    there when it started."""
    if isinstance(error, (DiskBroken, NotWritable, StoreMissing)):
        return Exit.IO_ERROR
    return Exit.FULL if isinstance(error, (NoSpace, FullMidway)) else Exit.INTERNAL
