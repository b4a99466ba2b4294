"""Writer thread of a store: one commit in flight while the next one accumulates (group commit).

The loop thread only appends to a list; the writer takes all of it at once, joins the bytes, and
commits them in one transaction.  So the slower the disk, the larger the commits.  A checkpoint is
written in slices, with commits in between.

After the first failure nothing more is written: `on_failed` is called once, and the member stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from store.api import Meta, Staging, Store
from store.errors import StoreError, StoreFailed, StoreStuck

CHECKPOINT_SLICE_BYTES = 1 << 20


class CommitLag(NamedTuple):
    """Submissions that are not durable yet: number, bytes, and since when the oldest one waits
    (the loop's time; meaningless when none waits)."""

    waiting: int
    bytes: int
    since: float


@dataclass(slots=True)
class _Work:
    """Contents of one commit; `meta` is the newest one submitted."""

    entries: list[bytes]
    first: int
    last: int
    meta: Meta
    submitted: int  # number of the last submission in it


class CheckpointJob:
    """A checkpoint being written: the loop puts chunks, the writer thread takes them."""

    def __init__(
        self, position: int, done: Callable[[], object], wake: threading.Condition
    ) -> None:
        self.position, self.done = position, done
        self.bytes_waiting = 0
        self.complete = False
        self.staging: Staging | None = None
        self._chunks: list[bytes] = []
        self._wake = wake

    def put(self, chunk: bytes) -> None:
        """Add the next chunk."""
        with self._wake:
            self._chunks.append(chunk)
            self.bytes_waiting += len(chunk)
            if self.ready:
                self._wake.notify()

    def end(self) -> None:
        """No chunk follows."""
        with self._wake:
            self.complete = True
            self._wake.notify()

    @property
    def ready(self) -> bool:
        """Whether there is a slice to write."""
        return self.complete or self.bytes_waiting >= CHECKPOINT_SLICE_BYTES

    def take(self) -> tuple[list[bytes], bool]:
        """Return the chunks put since the last call, and whether they were the last."""
        with self._wake:
            chunks, self._chunks, self.bytes_waiting = self._chunks, [], 0
            return chunks, self.complete


class CommitThread:
    """Owns the writing side of `store` from construction to `close`.

    Callbacks run on `loop`.  `on_durable(position)` follows each commit that moved the position.
    """

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        on_durable: Callable[[int], object],
        on_failed: Callable[[StoreError], object],
    ) -> None:
        self._store = store
        self._loop = loop
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._wake = threading.Condition()
        self._entries: list[bytes] = []
        self._first = 0
        self._last = store.meta.position
        self._meta: Meta | None = None
        self._metas_done: list[Callable[[], object]] = []
        self._checkpoints: deque[CheckpointJob] = deque()
        # Used on the loop: (number, time, bytes) of each submission that is not durable.
        self._waiting: deque[tuple[int, float, int]] = deque()
        self._submitted = self._waiting_bytes = 0
        self._stopping = False
        self._failed: StoreError | None = None
        self.counters: dict[str, int] = {"commits": 0, "entries": 0, "checkpoints": 0}
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    # -- called on the loop ----------------------------------------------------------------------

    def submit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        """Submit one entry, contiguous with the one before; `on_durable` reports it."""
        with self._wake:
            self._raise_if_over()
            assert first == self._last + 1, (
                f"entry starts at {first}, the last ended at {self._last}"
            )
            assert meta.position == last >= first
            if not self._entries:
                self._first = first
            self._entries.append(entry)
            self._last = last
            self._meta = meta
            self._count_submission(len(entry))
            self._wake.notify()

    def submit_meta(self, meta: Meta, done: Callable[[], object] | None = None) -> None:
        """Make `meta` durable behind everything submitted; then call `done`."""
        with self._wake:
            self._raise_if_over()
            assert meta.position == self._last, f"meta says {meta.position}, store at {self._last}"
            self._meta = meta
            if done is not None:
                self._metas_done.append(done)
            self._count_submission(0)
            self._wake.notify()

    def begin_checkpoint(self, position: int, done: Callable[[], object]) -> CheckpointJob:
        """Begin a checkpoint of the state at `position`, written between commits; then call `done`.

        `position` must have been submitted.  The caller puts the chunks into the returned job.
        """
        with self._wake:
            self._raise_if_over()
            assert position <= self._last
            checkpoint = CheckpointJob(position, done, self._wake)
            self._checkpoints.append(checkpoint)
            return checkpoint

    def _count_submission(self, size: int) -> None:
        self._submitted += 1
        self._waiting.append((self._submitted, self._loop.time(), size))
        self._waiting_bytes += size

    def _on_commit(self, submitted: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= submitted:
            self._waiting_bytes -= waiting.popleft()[2]

    def backlog(self) -> int:
        """Return how many positions were submitted and are not yet taken into a commit."""
        with self._wake:
            return self._last - self._first + 1 if self._entries else 0

    def lag(self) -> CommitLag:
        """Return how far the disk is behind.  Call it on the loop."""
        waiting = self._waiting
        return CommitLag(len(waiting), self._waiting_bytes, waiting[0][1] if waiting else 0.0)

    def close(self) -> None:
        """Commit what was submitted, then end the thread.  The store stays open.

        Blocks; callbacks that are already scheduled on the loop still run.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    async def drain(self, patience_s: float | None = None) -> None:
        """Close without blocking the loop.

        Raises `StoreStuck` after `patience_s`: the thread is blocked in the disk, and the store
        must not be used any more, not even closed.
        """
        ended: asyncio.Future[None] = self._loop.create_future()  # cancelled at the thread's end

        def close() -> None:
            self.close()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(ended.cancel)

        # No executor: the process would wait for its threads when it ends.
        threading.Thread(target=close, name="store-closing", daemon=True).start()
        try:
            async with asyncio.timeout(patience_s):
                await asyncio.wait([ended])
        except TimeoutError:
            lag = self.lag()
            raise StoreStuck(
                f"the disk took nothing for {patience_s} s; {lag.bytes} bytes that were not "
                "durable here are given up"
            ) from None

    def _raise_if_over(self) -> None:
        if self._failed is not None:
            raise StoreFailed(str(self._failed)) from self._failed
        if self._stopping:
            raise StoreFailed("the store writer is closed")

    # -- on the writer thread --------------------------------------------------------------------

    def _run(self) -> None:
        trimming = True  # garbage of an earlier process
        try:
            while True:
                with self._wake:
                    while not (self._meta or self._next_slice() or trimming or self._stopping):
                        self._wake.wait()
                    work, callbacks = self._take()
                    stopping = self._stopping
                if work is not None:
                    self._commit(work, callbacks)
                elif stopping:
                    return
                if self._next_slice():
                    trimming |= self._advance(self._checkpoints[0])
                elif trimming and work is None:
                    trimming = self._store.trim()
        except BaseException as error:  # of any kind: nothing more may be written
            self._fail(error)

    def _take(self) -> tuple[_Work | None, list[Callable[[], object]]]:
        if self._meta is None:
            return None, []
        work = _Work(self._entries, self._first, self._last, self._meta, self._submitted)
        callbacks, self._metas_done = self._metas_done, []
        self._entries, self._meta = [], None
        return work, callbacks

    def _commit(self, work: _Work, callbacks: list[Callable[[], object]]) -> None:
        if work.entries:
            self._store.commit(b"".join(work.entries), work.first, work.last, work.meta)
            self.counters["commits"] += 1
            self.counters["entries"] += len(work.entries)
            self._call_on_loop(lambda: self._on_durable(work.last))
        else:
            self._store.put_meta(work.meta)
        self._call_on_loop(lambda: self._on_commit(work.submitted))
        for done in callbacks:
            self._call_on_loop(done)

    def _next_slice(self) -> bool:
        return bool(self._checkpoints) and self._checkpoints[0].ready

    def _advance(self, checkpoint: CheckpointJob) -> bool:
        """Write one slice; True when the checkpoint is complete and there is garbage to trim."""
        if checkpoint.position > self._store.meta.position:
            return False  # its positions are part of the commit that is still accumulating
        if checkpoint.staging is None:
            checkpoint.staging = self._store.stage(checkpoint.position)
        chunks, complete = checkpoint.take()
        checkpoint.staging.add(chunks)
        if not complete:
            return False
        checkpoint.staging.finish()
        self._checkpoints.popleft()
        self.counters["checkpoints"] += 1
        self._call_on_loop(checkpoint.done)
        return True

    def _fail(self, error: BaseException) -> None:
        failure = (
            error if isinstance(error, StoreError) else StoreFailed(f"store writer: {error!r}")
        )
        with self._wake:
            self._failed = failure
        self._call_on_loop(lambda: self._on_failed(failure))

    def _call_on_loop(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop is closed: the process is about to end.
            with self._wake:
                self._stopping = True
