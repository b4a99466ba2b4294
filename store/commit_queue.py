"""Decides a store writer's next task: commit, slice of a checkpoint, or garbage. Pure.

The loop hands over entries; the writer takes all waiting entries at once and commits them in one
transaction, while the next ones accumulate (group commit). So the slower the disk, the larger the
commits. A checkpoint is written in slices, and garbage deleted in steps, with commits in between.

A thread (`store.commit_thread`) or a simulated disk drives the queue: it calls `take`, lets the
task write, and calls on the loop what the task returns. After the first failure nothing more is
written: `on_failed` is called once, and the member stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol

from store.api import Meta, Staging, Store
from store.errors import NoSpace, StoreError, StoreFailed, again, failed

CHECKPOINT_SLICE_BYTES = 1 << 20
"""A commit waits for this much of a checkpoint, or for one chunk if that is larger.
Decision: docs/decisions/0138-a-commit-waits-for-a-mebibyte-of-a-checkpoint.md."""
SPACE_RETRY_S = 0.25
DURATIONS = 4096

Call = Callable[[], object]


class Wake(Protocol):
    """The lock between the loop and the writer, with a condition that wakes the writer."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def notify(self) -> None:
        """There may be something to take."""


class CommitLag(NamedTuple):
    """The submissions that are not durable yet: number, bytes, and since when the oldest has waited
    (the loop's time; meaningless if none waits)."""

    waiting: int
    bytes: int
    since: float

    def beside(self, other: CommitLag) -> CommitLag:
        """Return the combined lag of both."""
        if not self.waiting or not other.waiting:
            return self if self.waiting else other
        waiting, size = self.waiting + other.waiting, self.bytes + other.bytes
        return CommitLag(waiting, size, min(self.since, other.since))


class Task(Protocol):
    """One piece of the writer's work."""

    def write(self) -> list[Call]:
        """Write it; return what to call on the loop, in order."""


@dataclass(slots=True)
class _Commit:
    """The content of one commit; `meta` is the newest one submitted. Raises NoSpace, and may then
    be written again."""

    queue: CommitQueue
    entries: list[bytes]
    first: int
    last: int
    meta: Meta
    submitted: int  # number of the last submission in it
    done_calls: list[Call]

    def write(self) -> list[Call]:
        """One transaction."""
        queue = self.queue
        calls: list[Call] = []
        if self.entries:
            began = queue.now()
            queue.store.commit(b"".join(self.entries), self.first, self.last, self.meta)
            queue.commit_took_s.append(queue.now() - began)
            queue.counters["commits"] += 1
            queue.counters["entries"] += len(self.entries)
            calls.append(lambda: queue.on_durable(self.last))
        else:
            queue.store.put_meta(self.meta)
        queue.full = ""
        return [*calls, lambda: queue.committed(self.submitted), *self.done_calls]


class CheckpointJob:
    """A checkpoint being written: the loop puts chunks, the writer takes them."""

    def __init__(self, position: int, done: Call, given_up: Call, wake: Wake) -> None:
        self.position, self.done, self.given_up = position, done, given_up
        self.bytes_waiting = 0
        self.complete = False
        self.staging: Staging | None = None
        self._chunks: deque[bytes] = deque()
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
        """Return the chunks of the next slice, and whether they were the last."""
        with self._wake:
            chunks, size = [], 0
            while self._chunks and size < CHECKPOINT_SLICE_BYTES:
                chunks.append(self._chunks.popleft())
                size += len(chunks[-1])
            self.bytes_waiting -= size
            return chunks, self.complete and not self._chunks


@dataclass(slots=True)
class _Slice:
    """The next slice of the oldest checkpoint."""

    queue: CommitQueue
    job: CheckpointJob

    def write(self) -> list[Call]:
        """Add the waiting chunks; after the last of them switch to the checkpoint.

        It needs now the space that it frees later: where there is no space, the checkpoint is given
        up.
        """
        queue, job = self.queue, self.job
        if job.staging is None:
            job.staging = queue.store.stage(job.position)
        chunks, complete = job.take()
        try:
            job.staging.add(chunks)
            if not complete:
                return []
            job.staging.finish()
        except NoSpace:
            job.staging.abandon()
            queue.checkpoint_ended("checkpoints_given_up")
            return [job.given_up]
        queue.checkpoint_ended("checkpoints")
        return [job.done]


@dataclass(slots=True)
class _Trim:
    """A bounded amount of garbage."""

    queue: CommitQueue

    def write(self) -> list[Call]:
        """Delete it; that takes a little space as well."""
        queue = self.queue
        try:
            queue.trimming = queue.store.trim()
        except NoSpace:
            queue.trimming = queue.give_up_reserve()  # else after the next checkpoint
        return []


class CommitQueue:
    """All work between a member and the writer of one store.

    `on_durable(position)` is among the calls that follow each commit that moved the position.
    """

    def __init__(
        self,
        store: Store,
        wake: Wake,
        now: Callable[[], float],
        on_durable: Callable[[int], object],
        on_failed: Callable[[StoreError], object],
        give_up_reserve: Callable[[], bool],
    ) -> None:
        """`give_up_reserve` frees space; False: none is left to free."""
        self.store, self.on_durable, self.on_failed = store, on_durable, on_failed
        self.give_up_reserve = give_up_reserve
        self.full = ""  # why a commit waits for space; empty: none waits
        self.commit_took_s: deque[float] = deque(maxlen=DURATIONS)
        """Durations of the latest commits, until a reader takes them out."""
        self._wake, self.now = wake, now
        self._entries: list[bytes] = []
        self._first = 0
        self._last = store.meta.position
        self._meta: Meta | None = None
        self._done_calls: list[Call] = []
        self._checkpoints: deque[CheckpointJob] = deque()
        self._other_is_due = False  # the last task taken was a commit
        self.trimming = True  # there may be garbage: at the start, an earlier process's
        # Used on the loop: (number, time, bytes) of each submission that is not durable.
        self._waiting: deque[tuple[int, float, int]] = deque()
        self._submitted = self._waiting_bytes = 0
        self.stopping = False
        self._failed: StoreError | None = None
        self.counters: dict[str, int] = {
            "commits": 0, "entries": 0, "checkpoints": 0, "checkpoints_given_up": 0,
            "reserve_given_up": 0,
        }  # fmt: skip

    # -- called on the loop ----------------------------------------------------------------------

    def submit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        """Submit one entry, contiguous with the previous one; `on_durable` reports it."""
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

    def submit_meta(self, meta: Meta, done: Call | None = None) -> None:
        """Make `meta` durable after everything submitted so far; then call `done`."""
        with self._wake:
            self._raise_if_over()
            assert meta.position == self._last, f"meta says {meta.position}, store at {self._last}"
            self._meta = meta
            if done is not None:
                self._done_calls.append(done)
            self._count_submission(0)
            self._wake.notify()

    def begin_checkpoint(
        self, position: int, done: Call, given_up: Call = lambda: None
    ) -> CheckpointJob:
        """Begin a checkpoint of the state at `position`, written between commits; then call `done`,
        or `given_up` if there is no space for it.

        `position` must have been submitted. The caller puts the chunks into the returned job.
        """
        with self._wake:
            self._raise_if_over()
            assert position <= self._last
            checkpoint = CheckpointJob(position, done, given_up, self._wake)
            self._checkpoints.append(checkpoint)
            return checkpoint

    def _count_submission(self, size: int) -> None:
        self._submitted += 1
        self._waiting.append((self._submitted, self.now(), size))
        self._waiting_bytes += size

    def committed(self, submitted: int) -> None:
        """Everything up to this submission is durable."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= submitted:
            self._waiting_bytes -= waiting.popleft()[2]

    def backlog(self) -> int:
        """Return the number of submitted positions not yet taken into a commit."""
        with self._wake:
            return self._last - self._first + 1 if self._entries else 0

    def lag(self) -> CommitLag:
        """Return how far the disk is behind. Call it on the loop."""
        waiting = self._waiting
        return CommitLag(len(waiting), self._waiting_bytes, waiting[0][1] if waiting else 0.0)

    def stop(self) -> None:
        """Accept nothing more; everything submitted is still committed."""
        with self._wake:
            self.stopping = True
            self._wake.notify()

    def _raise_if_over(self) -> None:
        if self._failed is not None:
            raise again(self._failed) from self._failed
        if self.stopping:
            raise StoreFailed("the store writer is closed")

    # -- called by the writer, under the lock ----------------------------------------------------

    def take(self) -> Task | None:
        """Return the next task to write; None: nothing now, or ever once it is stopping.

        A commit is followed by something else, if there is anything else to do: under a load that
        never rests a checkpoint would not end, and what it replaces would never be deleted.
        """
        if self._failed is not None:
            return None
        other = self._other()
        if self._meta is not None and not (self._other_is_due and other is not None):
            self._other_is_due = True
            return self._take_commit(self._meta)
        self._other_is_due = False
        return other

    def _other(self) -> Task | None:
        """Return the next task that is not a commit; None: there is none."""
        if self.stopping:
            return None
        if self._has_slice():
            return _Slice(self, self._checkpoints[0])
        return _Trim(self) if self.trimming else None

    def _take_commit(self, meta: Meta) -> _Commit:
        work = _Commit(
            self, self._entries, self._first, self._last, meta, self._submitted, self._done_calls
        )
        self._entries, self._meta, self._done_calls = [], None, []
        return work

    def _has_slice(self) -> bool:
        """The positions of a checkpoint may be part of the commit that still accumulates."""
        if not self._checkpoints:
            return False
        checkpoint = self._checkpoints[0]
        return checkpoint.ready and checkpoint.position <= self.store.meta.position

    # -- called by the writer --------------------------------------------------------------------

    def no_space(self, error: NoSpace) -> float:
        """A commit found no space; return the seconds until it should be written again.

        Raises the error if this is final: a stopping writer does not wait.
        """
        if self.give_up_reserve():
            self.counters["reserve_given_up"] += 1
            return 0.0
        if self.stopping:
            raise error
        self.full = str(error)
        return SPACE_RETRY_S

    def checkpoint_ended(self, counter: str) -> None:
        """The oldest checkpoint job is in force or given up: now the checkpoint it replaces, or its
        own partial data, is garbage."""
        self._checkpoints.popleft()
        self.counters[counter] += 1
        self.trimming = True

    def fail(self, error: BaseException) -> list[Call]:
        """A task raised any exception: nothing more may be written."""
        failure = error if isinstance(error, StoreError) else failed("store writer", error)
        with self._wake:
            self._failed = failure
        return [lambda: self.on_failed(failure)]
