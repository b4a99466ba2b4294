"""The writer thread: order, batching, checkpoints in slices, and the stop after a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store.api import Marker, Meta, Staging
from store.commit_queue import CHECKPOINT_SLICE_BYTES, SPACE_RETRY_S, CommitQueue
from store.commit_thread import CommitThread
from store.errors import NoSpace, StoreError, StoreFailed, StoreStuck
from store.lmdb_store import LmdbStore
from tests.support.stores.memory import MemoryDisk, MemoryStore

FRESH = Meta(cluster_name="prod", member="a", store_id="5eed")


class SlowStore(MemoryStore):
    """A store whose commits wait for the test."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk, FRESH)
        self.gate = threading.Semaphore(0)
        self.commits: list[tuple[int, int]] = []
        self.broken = ""  # the method that finds the disk full

    def put_meta(self, meta: Meta) -> None:
        self._break("put_meta")
        super().put_meta(meta)

    def stage(self, position: int) -> Staging:
        self._break("stage")
        return super().stage(position)

    def switch(self, position: int, chunks: list[bytes], meta: Meta | None) -> None:
        self._break("switch")
        super().switch(position, chunks, meta)

    def trim(self, entries_max: int = 256) -> bool:
        self._break("trim")
        return super().trim(entries_max)

    def _break(self, name: str) -> None:
        if self.broken == name:
            raise OSError(28, "No space left on device")

    def commit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        assert self.gate.acquire(timeout=5)
        super().commit(entry, first, last, meta)
        self.commits.append((first, last))


class Rig:
    """A writer on a loop, and what it reported."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.store = SlowStore(self.disk)
        self.durable: list[int] = []
        self.failed: list[StoreError] = []
        self.changed = asyncio.Event()
        self.writer = CommitThread(
            self.store, asyncio.get_running_loop(), self.on_durable, self.on_failed
        )

    def on_durable(self, position: int) -> None:
        self.durable.append(position)
        self.changed.set()

    def on_failed(self, error: StoreError) -> None:
        self.failed.append(error)
        self.changed.set()

    def submit(self, first: int, last: int) -> None:
        self.writer.submit(f"{first}|".encode(), first, last, replace(FRESH, position=last))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await asyncio.wait([asyncio.ensure_future(self.changed.wait())], timeout=0.01)


def run(story: Callable[[Rig], Awaitable[None]]) -> None:
    """Run a story with a rig on its own loop."""

    async def whole() -> None:
        rig = Rig()
        try:
            await story(rig)
        finally:
            rig.store.gate.release(1000)
            await rig.writer.drain()

    asyncio.run(whole())


def test_entries_gather_while_a_commit_is_in_flight() -> None:
    async def story(rig: Rig) -> None:
        rig.submit(1, 1)
        await rig.until(lambda: rig.writer.backlog() == 0)
        rig.submit(2, 4)
        rig.submit(5, 5)
        assert rig.writer.backlog() == 4
        rig.store.gate.release(2)
        await rig.until(lambda: rig.durable == [1, 5])
        assert rig.store.commits == [(1, 1), (2, 5)]
        assert list(rig.store.log(1)) == [(2, b"2|5|")]

    run(story)


def test_meta_follows_what_was_submitted_before_it() -> None:
    async def story(rig: Rig) -> None:
        told: list[int] = []
        rig.submit(1, 2)
        rig.writer.submit_meta(
            replace(FRESH, position=2, marker=Marker.CLEAN), lambda: told.append(1)
        )
        rig.store.gate.release(2)
        await rig.until(lambda: told)
        assert rig.store.meta.marker is Marker.CLEAN
        assert rig.store.meta.position == 2

    run(story)


def test_a_checkpoint_is_written_beside_the_commits() -> None:
    async def story(rig: Rig) -> None:
        done: list[bool] = []
        rig.submit(1, 3)
        checkpoint = rig.writer.begin_checkpoint(3, lambda: done.append(True))
        for chunk in [bytes(700_000)] * 4:
            checkpoint.put(chunk)
        checkpoint.end()
        rig.submit(4, 6)
        rig.store.gate.release(5)
        await rig.until(lambda: done)
        await rig.until(lambda: rig.durable[-1:] == [6])
        await rig.until(lambda: list(rig.disk.entries) == [4] or rig.store.commits == [(1, 6)])
        kept = rig.store.checkpoint()
        assert kept is not None
        assert kept[0] == 3
        assert len(list(kept[1])) == 4
        assert rig.writer.counters["checkpoints"] == 1

    run(story)


def test_closing_commits_what_was_submitted() -> None:
    async def story(rig: Rig) -> None:
        rig.submit(1, 1)
        rig.submit(2, 2)
        rig.store.gate.release(2)
        await rig.writer.drain()
        assert rig.store.meta.position == 2
        with pytest.raises(StoreFailed):
            rig.submit(3, 3)

    run(story)


def test_the_first_failure_is_reported_once_and_stops_everything() -> None:
    async def story(rig: Rig) -> None:
        rig.disk.fail_next_commit = True
        rig.submit(1, 1)
        rig.store.gate.release(5)
        await rig.until(lambda: rig.failed)
        with pytest.raises(StoreFailed):
            rig.submit(2, 2)
        with pytest.raises(StoreFailed):
            rig.writer.submit_meta(replace(FRESH, position=1))
        await asyncio.sleep(0.02)
        assert len(rig.failed) == 1
        assert rig.durable == []

    run(story)


def test_commits_go_on_while_a_checkpoint_waits_for_its_chunks() -> None:
    async def story(rig: Rig) -> None:
        rig.store.gate.release(10)
        done: list[bool] = []
        rig.submit(1, 3)
        checkpoint = rig.writer.begin_checkpoint(3, lambda: done.append(True))
        checkpoint.put(b"a")
        rig.submit(4, 6)
        await rig.until(lambda: rig.durable[-1:] == [6])
        checkpoint.put(bytes(CHECKPOINT_SLICE_BYTES))
        await rig.until(lambda: checkpoint.bytes_waiting == 0)
        assert rig.store.checkpoint() is None
        checkpoint.put(b"z")
        checkpoint.end()
        await rig.until(lambda: done)
        kept = rig.store.checkpoint()
        assert kept is not None
        assert [len(chunk) for chunk in kept[1]] == [1, CHECKPOINT_SLICE_BYTES, 1]

    run(story)


CHUNK = bytes(CHECKPOINT_SLICE_BYTES // 4)


def test_a_commit_waits_for_one_slice_however_large_the_checkpoint() -> None:
    """And the checkpoint ends although there is always something to commit."""
    staged: list[int] = []

    class Watched(MemoryStore):
        def commit_point(self, size: int = 0) -> None:
            super().commit_point(size)
            if size > 1000:
                staged.append(size)

    store, done = Watched(MemoryDisk(), FRESH), list[bool]()
    queue = CommitQueue(store, threading.Condition(), lambda: 0.0, int, print, lambda: False)

    def commit(position: int) -> None:
        queue.submit(b"x", position, position, replace(FRESH, position=position))
        before = store.meta.position
        for _ in range(2):  # the slice under way when it comes, and itself
            if store.meta.position == before and (task := queue.take()) is not None:
                for call in task.write():
                    call()
        assert store.meta.position == position

    commit(1)
    checkpoint = queue.begin_checkpoint(1, lambda: done.append(True))
    for _ in range(40):
        checkpoint.put(CHUNK)
    checkpoint.end()
    for position in range(2, 14):
        commit(position)
    assert done == [True]
    assert staged == [CHECKPOINT_SLICE_BYTES] * 10
    kept = store.checkpoint()
    assert kept is not None
    assert list(kept[1]) == [CHUNK] * 40


def test_garbage_goes_though_there_is_always_something_to_commit() -> None:
    """What each checkpoint leaves behind would fill the disk under a load that never rests."""
    disk = MemoryDisk()
    store = MemoryStore(disk, FRESH, log_bytes_kept=0)
    queue = CommitQueue(store, threading.Condition(), lambda: 0.0, int, print, lambda: False)
    largest = 0
    for position in range(1, 2001):
        queue.submit(b"x", position, position, replace(FRESH, position=position))
        task = queue.take()
        assert task is not None
        for call in task.write():
            call()
        if position % 100 == 0:
            queue.begin_checkpoint(store.meta.position, int).end()
        largest = max(largest, len(disk.entries))
    assert queue.counters["checkpoints"] > 15
    assert largest < 300


def test_a_checkpoint_of_what_is_not_committed_yet_waits_for_that_commit() -> None:
    store = MemoryStore(MemoryDisk(), FRESH)
    queue = CommitQueue(store, threading.Condition(), lambda: 0.0, int, print, lambda: False)
    queue.trimming = False
    done: list[int] = []
    for position in (1, 2):  # a commit is the last thing that was done, and another task is due
        queue.submit(b"x", position, position, replace(FRESH, position=position))
        if position == 2:
            queue.begin_checkpoint(2, lambda: done.append(store.meta.position)).end()
        task = queue.take()
        assert task is not None
        task.write()
        assert store.meta.position == position
    task = queue.take()
    assert task is not None
    for call in task.write():
        call()
    assert done == [2]


def test_a_checkpoint_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    """G21.  It would take the space that it did not find."""
    store = LmdbStore(tmp_path / "store", FRESH)
    queue = CommitQueue(store, threading.Condition(), lambda: 0.0, int, print, lambda: False)
    queue.submit(b"x", 1, 1, replace(FRESH, position=1))
    given_up: list[int] = []
    checkpoint = queue.begin_checkpoint(1, int, lambda: given_up.append(1))
    for _ in range(3):
        checkpoint.put(bytes(CHECKPOINT_SLICE_BYTES))
    own, slices = store._space.own, [0]

    def owns(size: int, leave: int = 0) -> None:
        slices[0] += size > CHECKPOINT_SLICE_BYTES
        if slices[0] == 2:
            raise NoSpace("here", size)
        own(size, leave)

    store._space.own = owns  # type: ignore[method-assign]
    while (task := queue.take()) is not None:
        for call in task.write():
            call()
    assert given_up == [1]
    assert queue.counters["checkpoints_given_up"] == 1
    assert store.reusable_bytes() > CHECKPOINT_SLICE_BYTES, "it was trimmed"
    assert not store.trim()
    store.close()


def test_a_writer_that_ends_commits_and_does_nothing_else() -> None:
    store = MemoryStore(MemoryDisk(), FRESH)
    queue = CommitQueue(store, threading.Condition(), lambda: 0.0, int, print, lambda: False)

    def write() -> None:
        task = queue.take()
        assert task is not None
        task.write()

    for position in (1, 2):
        queue.submit(b"x", position, position, replace(FRESH, position=position))
        if position == 1:
            write()
            queue.begin_checkpoint(1, int).end()
    queue.stop()
    write()
    assert store.meta.position == 2
    assert queue.take() is None


def test_after_a_failure_there_is_nothing_to_do() -> None:
    store = MemoryStore(MemoryDisk(), FRESH)
    queue = CommitQueue(store, threading.Condition(), lambda: 0.0, int, print, lambda: False)
    queue.submit(b"x", 1, 1, replace(FRESH, position=1))
    queue.fail(OSError(5, "Input/output error"))
    assert queue.take() is None


@pytest.mark.parametrize("reserve", [False, True])
def test_garbage_that_takes_space_waits_for_the_next_checkpoint(
    reserve: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G21.  Unless there is a reserve to give up. It is not tried over and over."""
    store, tries = MemoryStore(MemoryDisk(), FRESH), list[int]()

    def full(_entries_max: int = 256) -> bool:
        tries.append(1)
        raise NoSpace("here", 1)

    monkeypatch.setattr(store, "trim", full)
    reserves = [True] * reserve
    queue = CommitQueue(
        store, threading.Condition(), lambda: 0.0, int, print,
        lambda: bool(reserves) and reserves.pop(),
    )  # fmt: skip
    for _ in range(5):
        if (task := queue.take()) is not None:
            task.write()
    assert len(tries) == 1 + reserve


def test_gaps_are_a_bug() -> None:
    async def story(rig: Rig) -> None:
        with pytest.raises(AssertionError):
            rig.submit(2, 2)
        with pytest.raises(AssertionError):
            rig.writer.submit_meta(replace(FRESH, position=1))

    run(story)


def test_the_lag_is_what_is_not_durable_and_its_age() -> None:
    async def story(rig: Rig) -> None:
        started = asyncio.get_running_loop().time()
        rig.submit(1, 1)
        await rig.until(lambda: rig.writer.backlog() == 0)
        rig.submit(2, 4)
        rig.writer.submit_meta(replace(FRESH, position=4))
        lag = rig.writer.lag()
        assert (lag.waiting, lag.bytes) == (3, 4), "a commit in flight counts too"
        assert lag.since >= started
        rig.store.gate.release(1)
        await rig.until(lambda: rig.durable == [1] and rig.writer.lag().waiting == 2)
        rig.store.gate.release(1)
        await rig.until(lambda: rig.writer.lag().waiting == 0)
        assert rig.writer.lag().bytes == 0

    run(story)


def test_closing_does_not_wait_for_ever_for_a_blocked_disk() -> None:
    async def story(rig: Rig) -> None:
        rig.submit(1, 1)
        with pytest.raises(StoreStuck, match="2 bytes"):
            await rig.writer.drain(0.01)

    run(story)


@pytest.mark.parametrize("what", ["put_meta", "stage", "switch", "trim"])
def test_any_failed_write_stops_everything(what: str) -> None:
    """A meta record and each step of a checkpoint count like a commit.

    Decision: docs/decisions/0009-a-disk-that-lags-slows-all-down-then-leaves.md.
    """

    async def story(rig: Rig) -> None:
        rig.store.gate.release(10)
        rig.submit(1, 1)
        await rig.until(lambda: rig.durable)
        rig.store.broken = what
        if what == "put_meta":
            rig.writer.submit_meta(replace(FRESH, position=1))
        else:
            rig.writer.begin_checkpoint(1, int).end()
        await rig.until(lambda: rig.failed)
        assert "No space left" in str(rig.failed[0])
        with pytest.raises(StoreFailed):
            rig.submit(2, 2)
        assert len(rig.failed) == 1

    run(story)


def test_draining_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without memory for another thread must still stop in order."""

    async def scenario(rig: Rig) -> None:
        def refused(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refused)
        rig.submit(1, 2)
        rig.store.gate.release()
        await rig.writer.drain(20)
        assert rig.store.commits == [(1, 2)]

    run(scenario)


def test_a_commit_without_space_takes_the_reserve_then_waits() -> None:
    """G21. At a stop it fails."""

    async def story(rig: Rig) -> None:
        reserve = [True]
        rig.writer.give_up_reserve = lambda: bool(reserve) and reserve.pop()
        error = NoSpace("/data", 4096)
        assert rig.writer.no_space(error) == 0.0
        assert (rig.writer.full, rig.writer.counters["reserve_given_up"]) == ("", 1)
        assert rig.writer.no_space(error) == SPACE_RETRY_S
        assert rig.writer.full == str(error)
        rig.store.gate.release()
        rig.submit(1, 1)
        await rig.until(lambda: rig.durable == [1])
        assert not rig.writer.full, "there was space for it"
        rig.writer.stop()
        with pytest.raises(NoSpace):
            rig.writer.no_space(error)

    run(story)
