"""A disk that takes its time: `store.commit_thread.CommitThread` in virtual time, over the store in
memory.

One piece of work is in flight while the next gathers, as with the real writer.  What is in flight
when the power goes is there as a whole afterwards, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.durability.recovery import checkpoint_of
from broker.replication.replica import Replica
from store.api import Meta
from store.memory import MemoryStore
from tests.sim.world.disk_lag import SimLag
from tests.sim.world.random_tape import Tape
from vsync.types import record

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper

Call = Callable[[], None]
POLL_S = 0.01


@record
class Work:
    """One transaction: entries that follow each other, or only a meta record, or a checkpoint."""

    entries: tuple[bytes, ...]
    first: int
    last: int
    meta: Meta | None
    done_calls: tuple[Call, ...]
    checkpoint: tuple[int, list[bytes]] | None


class SimCheckpoint:
    """A checkpoint on its way; with its store it is given up whole."""

    def __init__(self, size: int) -> None:
        self.bytes = size

    def cancel(self) -> None:
        """Its writer is about to be closed, which drops it."""


class SimWriter:
    """The writing side of one open store."""

    def __init__(
        self, upper: BrokerUpper, tape: Tape, store: MemoryStore, on_durable: Callable[[int], None]
    ) -> None:
        self.upper, self.member, self.tape, self.store = upper, upper.member, tape, store
        self._on_durable = on_durable
        self._entries: list[bytes] = []
        self._first = 0
        self._last = store.meta.position
        self._meta: Meta | None = None
        self._done_calls: list[Call] = []
        self._checkpoints: list[tuple[int, list[bytes], Call]] = []
        self._flying: Work | None = None
        self._over = False
        self.lag = SimLag()

    @property
    def idle(self) -> bool:
        return self._flying is None and self._meta is None and not self._checkpoints

    def submit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        assert first == self._last + 1, f"entry {first} after {self._last}"
        assert meta.position == last >= first
        if not self._entries:
            self._first = first
        self._entries.append(entry)
        self.lag.submitted(self.member.world.now, len(entry))
        self._last, self._meta = last, meta
        self._kick()

    def submit_meta(self, meta: Meta, done: Call) -> None:
        assert meta.position == self._last, f"meta says {meta.position}, store at {self._last}"
        self._meta = meta
        self._done_calls.append(done)
        self._kick()

    def checkpoint(self, replica: Replica, done: Call) -> SimCheckpoint:
        position, chunks = replica.history.position, checkpoint_of(replica)
        assert position <= self._last

        def counted() -> None:
            self.upper.judge.counters["checkpoints"] += 1
            done()

        self.upper.note("checkpoint", str(replica.history))
        self._checkpoints.append((position, chunks, counted))
        self._kick()
        return SimCheckpoint(sum(map(len, chunks)))

    def close(self) -> None:
        """Commit what was submitted and end; as with the real writer the caller waits for it."""
        while (work := self._flying or self._next()) is not None:
            self._flying = None
            if work.checkpoint is None:
                self._perform(work)
        self._over = True

    def crash(self, keep: bool) -> None:
        """The power goes."""
        if self._flying is not None and keep:
            self._perform(self._flying)
        self._over = True

    def _next(self) -> Work | None:
        if self._meta is not None:
            work = Work(
                tuple(self._entries),
                self._first,
                self._last,
                self._meta,
                tuple(self._done_calls),
                None,
            )
            self._entries, self._meta, self._done_calls = [], None, []
            return work
        if self._checkpoints:
            position, chunks, done = self._checkpoints.pop(0)
            return Work((), 0, 0, None, (done,), (position, chunks))
        return None

    def _kick(self) -> None:
        if self._flying is None and not self._over:
            self._flying = self._next()
            if self._flying is not None:
                world = self.member.world
                world.after(self.member.fsync_s(self.tape), self._landed, self._flying)

    def _landed(self, work: Work) -> None:
        if self._over or self._flying is not work or self.member.disk_failed():
            return
        self._flying = None
        self._perform(work)
        self.lag.landed(len(work.entries))
        self._tell(work)
        self._kick()

    def _perform(self, work: Work) -> None:
        if work.checkpoint is not None:
            position, chunks = work.checkpoint
            staging = self.store.stage(position)
            staging.add(chunks)
            staging.finish()
            self.store.trim()
        elif work.entries:
            assert work.meta is not None
            self.store.commit(b"".join(work.entries), work.first, work.last, work.meta)
        else:
            assert work.meta is not None
            self.store.put_meta(work.meta)

    def _tell(self, work: Work) -> None:
        """The loop hears of it when it runs."""
        if self._over or not self.member.up:
            return
        if self.member.paused:
            self.member.world.after(POLL_S, self._tell, work)
            return
        if work.entries:
            self._on_durable(work.last)
        for done in work.done_calls:
            done()
        self.member.finish_step()
