"""Checkpoints in slices: short turns, little memory, and the disk sets the pace."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from broker.durability import store_writer
from broker.durability.recovery import recover
from broker.durability.store_writer import (
    AHEAD_BYTES_MAX,
    CHECKPOINT_S,
    SHORT_LOG_BYTES,
    SLICE_S,
    CheckpointBeforeStop,
    CheckpointWriter,
    DataDirectoryDevice,
    close_store,
    exit_of_store,
    is_worth_a_checkpoint,
)
from broker.exit_codes import Exit
from broker.machine import commands as c
from broker.machine.machine import Machine
from broker.replication.chain import History, Promise
from broker.replication.persister import Persister
from broker.replication.replica import Item, Replica
from store import swap
from store.api import Marker, Meta
from store.commit_queue import CheckpointJob
from store.errors import StoreError
from store.files.space import Reserve
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore
from vsync.primary.events import Activation
from vsync.types import RingId

CHUNK = bytes(256 * 1024)


class Bench:
    """A loop with stepped time: each look at the clock costs a millisecond."""

    def __init__(self) -> None:
        self.now = 0.0
        self.errors: list[Exception] = []
        self.taken: list[bytes] = []
        self.checkpoint = CheckpointJob(1, int, int, threading.Condition())

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def run(
        self, steps: Iterator[bytes | None], until: Callable[[CheckpointWriter], bool]
    ) -> CheckpointWriter:
        async def whole() -> CheckpointWriter:
            loop = asyncio.get_running_loop()
            slices = CheckpointWriter(loop, steps, self.checkpoint, self.errors.append, self.clock)
            async with asyncio.timeout(30):
                while not until(slices):  # noqa: ASYNC110  (a clock of its own)
                    await asyncio.sleep(0)
            slices.cancel()
            return slices

        return asyncio.run(whole())


def test_a_slice_takes_a_few_steps_and_yields() -> None:
    bench = Bench()
    turns: list[float] = []

    def steps() -> Iterator[bytes]:
        for number in range(12):
            turns.append(bench.now)
            yield CHUNK if number % 3 else b""

    slices = bench.run(steps(), lambda _: bench.checkpoint.complete)
    assert slices.bytes == 8 * len(CHUNK)
    taken = [bench.checkpoint.take() for _ in range(2)]
    assert [len(chunks) for chunks, _ in taken] == [4, 4], "pauses are not written"
    assert [last for _, last in taken] == [False, True]
    assert bench.now > len(turns) * SLICE_S / 2, "several slices"


def test_no_more_is_packed_than_the_disk_accepts() -> None:
    bench = Bench()

    def endless() -> Iterator[bytes]:
        while True:
            yield CHUNK

    slices = bench.run(endless(), lambda s: s.bytes >= AHEAD_BYTES_MAX and bench.now > 0.1)
    assert slices.bytes == AHEAD_BYTES_MAX
    assert not bench.checkpoint.complete


def test_a_slice_ends_at_a_read_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next slice asks again, instead of this one repeating the request."""
    monkeypatch.setattr(store_writer, "SLICE_S", 0.01)
    bench = Bench()
    looks: list[float] = []

    def late() -> Iterator[bytes | None]:
        yield CHUNK
        for _ in range(5):
            looks.append(bench.now)
            yield None
        yield CHUNK

    slices = bench.run(late(), lambda _: bench.checkpoint.complete)
    assert slices.bytes == 2 * len(CHUNK)
    pauses = [after - before for before, after in pairwise(looks)]
    assert len(pauses) == 4
    assert min(pauses) > 0.0015, "a slice begins with two looks at the clock, a step with one"


def test_a_failure_is_reported_and_ends_the_checkpoint() -> None:
    bench = Bench()

    def broken() -> Iterator[bytes]:
        yield CHUNK
        raise ZeroDivisionError

    bench.run(broken(), lambda _: bool(bench.errors))
    assert isinstance(bench.errors[0], ZeroDivisionError)
    assert not bench.checkpoint.complete


@pytest.mark.parametrize(
    ("checkpoint_bytes", "log_bytes", "wanted"),
    [
        (0, 0, False),
        (0, SHORT_LOG_BYTES, False),
        (0, SHORT_LOG_BYTES + 1, True),
        (300 << 20, 9 << 20, False),
        (300 << 20, 10 << 20, True),
    ],
)
def test_a_short_log_is_not_worth_a_checkpoint_at_the_end(
    checkpoint_bytes: int, log_bytes: int, wanted: bool
) -> None:
    """An ordered stop with a million messages wrote them all again, with every fsync."""
    assert is_worth_a_checkpoint(checkpoint_bytes, log_bytes) is wanted


def test_a_received_store_takes_the_place_of_one_that_has_all_that_was_submitted(
    tmp_path: Path,
) -> None:
    """G8: what is set aside is all that the member has confirmed."""

    async def switch() -> tuple[Path, LmdbStore]:
        loop = asyncio.get_running_loop()
        device = DataDirectoryDevice(tmp_path, loop, failed.append, Reserve(tmp_path))
        current = LmdbStore(tmp_path / "store", Meta("c", "a", "s"))
        writer = device.open_writer(current, lambda _: None)
        commit, before = current.commit, current.meta
        may = threading.Event()  # commit: not before the writer is told to end, or its store closed

        def when_it_may(entry: bytes, first: int, last: int, meta: Meta) -> None:
            may.wait()
            commit(entry, first, last, meta)

        def then_it_may(call: Callable[[], None]) -> Callable[[], None]:
            def called() -> None:
                call()
                may.set()

            return called

        vars(current).update(commit=when_it_may, close=then_it_may(current.close))
        vars(writer).update(stop=then_it_may(writer.stop))
        for position in range(1, 4):
            writer.submit(b"x", position, position, replace(before, position=position))
        received = swap.incoming(tmp_path, "1", Meta("c", "a", "s"))
        received.write_checkpoint(7, [b"state"], replace(received.meta, position=7))
        meta = replace(received.meta, marker=Marker.DIRTY, cluster_id="c1")
        in_force = loop.create_future()
        waiting = device.lag().waiting
        device.switch(writer, received, current, meta, lambda *found: in_force.set_result(found))
        assert device.lag().waiting == waiting + 1, "it counts as late if it takes long"
        await device.settled(30)
        store, sizes = await in_force
        assert sizes == store.bytes_to_start() == (len(b"state"), 0)
        return tmp_path / "_cluster.bak.0001", store

    failed: list[StoreError] = []
    aside, store = asyncio.run(switch())
    assert not failed
    assert inspect(aside).position == 3
    assert (store.meta.position, store.meta.marker) == (7, Marker.DIRTY)
    store.close()


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EIO, Exit.IO_ERROR), (errno.EACCES, Exit.IO_ERROR)]
)
def test_a_received_store_that_cannot_be_put_in_force_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: Exit
) -> None:
    mark = tmp_path / "store.joining.1" / "verified"

    def install(*_: object) -> None:
        raise OSError(number, os.strerror(number), str(mark))

    async def switch() -> StoreError:
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[StoreError] = loop.create_future()
        device = DataDirectoryDevice(tmp_path, loop, failed.set_result, Reserve(tmp_path))
        current = LmdbStore(tmp_path / "store", Meta("c", "a", "s"))
        received = swap.incoming(tmp_path, "1", Meta("c", "a", "s"))
        writer = device.open_writer(current, lambda _: None)
        device.switch(writer, received, current, received.meta, lambda *_: None)
        return await failed

    monkeypatch.setattr(swap, "install", install)
    error = asyncio.run(switch())
    assert str(error).startswith(f"{mark}: putting the received state in force failed: ")
    assert exit_of_store(error) is code


@pytest.mark.parametrize("log_bytes_min", [0, SHORT_LOG_BYTES])
def test_an_ordered_end_is_clean_with_or_without_a_checkpoint(
    log_bytes_min: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store_writer, "SHORT_LOG_BYTES", log_bytes_min)
    replica = Replica("a", Machine("a"), History())
    activation = Activation(1, (("a", 1, True),), False, ("a",), "c")
    replica.apply(Item(1, RingId(1, "a", 1), 1, "a", activation))
    store = LmdbStore(tmp_path / "store", Meta("c", "a", "s"))

    async def end() -> None:
        loop = asyncio.get_running_loop()
        device = DataDirectoryDevice(tmp_path, loop, lambda _: None, Reserve(tmp_path))
        persister = Persister(device, store, store.meta, lambda _: None)
        promise = Promise("c", ("a",), 1)
        persister.keep(replica, promise)
        await CheckpointBeforeStop(persister, CHECKPOINT_S).at_the_end(replica, promise)
        await close_store(persister, replica, Marker.CLEAN, "")

    asyncio.run(end())
    assert store.meta.marker is Marker.CLEAN
    assert (store.checkpoint() is not None) is (log_bytes_min == 0)
    assert recover("a", store).machine.root() == replica.machine.root()
    store.close()


@pytest.mark.parametrize("why", ["sparing", "ahead"])
def test_an_ordered_end_has_no_checkpoint_that_takes_the_last_space_or_is_ahead(
    why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """G21.  And one of more than the store has would contradict its record: it gets that first."""
    monkeypatch.setattr(store_writer, "SHORT_LOG_BYTES", 0)
    replica = Replica("a", Machine("a"), History())
    activation = Activation(1, (("a", 1, True),), False, ("a",), "c")
    replica.apply(Item(1, RingId(1, "a", 1), 1, "a", activation))
    store = LmdbStore(tmp_path / "store", Meta("c", "a", "s"))

    async def end() -> None:
        loop = asyncio.get_running_loop()
        device = DataDirectoryDevice(tmp_path, loop, lambda _: None, Reserve(tmp_path))
        persister = Persister(device, store, store.meta, lambda _: None)
        promise = Promise("c", ("a",), 1)
        persister.keep(replica, promise)
        if why == "ahead":
            replica.apply(Item(2, RingId(2, "a", 1), 1, "a", activation._replace(epoch=2)))
        before_stop = CheckpointBeforeStop(persister, CHECKPOINT_S)
        await before_stop.at_the_end(replica, promise, sparing=why == "sparing")
        await close_store(persister, replica, Marker.CLEAN, "")

    asyncio.run(end())
    saved = store.checkpoint()
    assert (saved and saved[0]) == (2 if why == "ahead" else None)
    assert store.meta.marker is Marker.CLEAN
    assert recover("a", store).history.position == (2 if why == "ahead" else 1)
    store.close()


def test_the_final_checkpoint_has_no_half_applied_item(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It waits for a page in the middle of an item as the member is about to end."""
    monkeypatch.setattr(store_writer, "SHORT_LOG_BYTES", 0)
    replica = Replica("a", Machine("a"), History())
    activation = Activation(1, (("a", 1, True),), False, ("a",), "c")
    replica.apply(Item(1, RingId(1, "a", 1), 1, "a", activation))
    root = replica.machine.root()
    store = LmdbStore(tmp_path / "store", Meta("c", "a", "s"))

    async def end() -> None:
        loop = asyncio.get_running_loop()
        device = DataDirectoryDevice(tmp_path, loop, lambda _: None, Reserve(tmp_path))
        persister = Persister(device, store, store.meta, lambda _: None)
        promise = Promise("c", ("a",), 1)
        persister.keep(replica, promise)
        replica.half_way = True
        replica.machine.apply(2, 1024, 1, c.Shutdown(c.SHUTDOWN, "the end"))
        await CheckpointBeforeStop(persister, CHECKPOINT_S).at_the_end(replica, promise)
        await close_store(persister, replica, Marker.CLEAN, "")

    asyncio.run(end())
    assert store.checkpoint() is None
    assert recover("a", store).machine.root() == root
    store.close()
